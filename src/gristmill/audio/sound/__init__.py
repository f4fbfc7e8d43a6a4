"""Samples: formats, encoding, and what is measured of them."""
