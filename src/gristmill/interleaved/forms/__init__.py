"""The forms in which interleaved documents are found, each to and from items."""
