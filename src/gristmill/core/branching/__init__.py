"""Rows that go along several branches, each with a writer of its own, in one pass."""
