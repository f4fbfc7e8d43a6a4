"""Join rows with the rows of other files by key: broadcast for a small other side, sort-merge for any size."""
