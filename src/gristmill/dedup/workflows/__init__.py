"""Workflows: deduplication from files to files, without writing a pipeline."""
