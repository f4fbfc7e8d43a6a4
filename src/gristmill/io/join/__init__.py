"""Join rows of a pipeline with rows of other files by key: a broadcast join for a small other side, a partitioned merge join for any size."""
