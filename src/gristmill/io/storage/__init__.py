"""Bytes on any file system: open part of an input file, create output files atomically, compute checksums."""
