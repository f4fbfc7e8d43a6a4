"""Rows that are nearly the same: candidate pairs by bands, comparison, clusters in memory or in rounds over exchanges; and 64-bit hashes compared by distance."""
