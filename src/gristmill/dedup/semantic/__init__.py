"""Rows whose embeddings are nearly the same: k-means cells, comparison inside a cell, greedy selection by rank."""
