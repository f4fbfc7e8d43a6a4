"""Bytes on any file system: open a part of an input file, create output files that appear whole or not at all, checksums."""
