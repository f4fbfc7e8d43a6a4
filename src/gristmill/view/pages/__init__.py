"""The pages of `gristmill view` as HTML: the list of rows, one row, and what-if."""
