"""The persistent index of what earlier runs kept: versions and files, comparing new rows with it, extending it, and recognising a run that is repeated."""
