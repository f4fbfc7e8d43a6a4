"""From input paths to batches: list files, cut them into tasks, read them block by block, and read a block a second time."""
