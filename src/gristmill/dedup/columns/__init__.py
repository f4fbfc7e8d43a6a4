"""Columns as deduplication reads them: Arrow to numpy, texts, normal forms and hashes.

`kernel_reference.py` defines in plain Python what the kernels in C compute.
"""
