"""What is counted in a text: the definition of each statistic, the counting of whole columns in C, word segmentation and stop words."""
