"""Listing, reading, writing and exchanging files of rows on any file system, independent of the modality."""
