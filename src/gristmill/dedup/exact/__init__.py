"""Exact duplicates: by hash through an exchange, or by a Bloom filter."""
