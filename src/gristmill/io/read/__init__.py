"""From input paths to batches: list files, split them into tasks, read them block by block."""
