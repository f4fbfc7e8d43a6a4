"""A local web page that shows the rows of a run or of any dataset."""
