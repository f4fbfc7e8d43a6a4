"""Rows with the same text: by hash through an exchange, or by a Bloom filter."""
