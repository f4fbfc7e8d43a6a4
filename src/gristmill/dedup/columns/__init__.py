"""Columns as deduplication reads them: Arrow to numpy, texts, normal forms, hashes; and the reference definition in plain Python of all that the kernels compute."""
