"""A page to look at data: the rows of a run or of any dataset, served on this machine only."""
