"""Deduplication: exact, fuzzy, and of parts of documents."""
