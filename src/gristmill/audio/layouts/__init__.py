"""Readers of datasets: lists of recordings, archives and tables."""
