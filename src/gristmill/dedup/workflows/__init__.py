"""Deduplication from files to files, without a pipeline of one's own."""
