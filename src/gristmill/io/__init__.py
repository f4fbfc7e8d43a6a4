"""Bytes and rows: listing, reading and writing files on any file system, without knowing what the rows mean."""
