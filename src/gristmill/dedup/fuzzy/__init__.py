"""Near-duplicate texts by MinHash bands, and 64-bit hashes compared by Hamming distance.

`fuzzy_stage.py` is the entry: candidate pairs, comparison, then clusters, in memory or in rounds over exchanges.
"""
