"""Rows with nearly the same embedding: k-means cells, comparison within a cell, greedy selection by rank."""
