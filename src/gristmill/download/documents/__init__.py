"""Document files: the text of PDF, DOCX and EPUB."""
