"""What is counted in a text: definitions in Python, counting of columns in C, word segmentation, stop words."""
