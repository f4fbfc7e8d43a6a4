"""arXiv: archives of papers, and LaTeX sources turned into plain text."""
