"""Estimates of similarity: MinHash signatures, LSH bands, sketches of documents, and the recall of bands."""
