"""Repeated parts of documents (lines, paragraphs, sentences, byte spans), found in the whole corpus and cut out."""
