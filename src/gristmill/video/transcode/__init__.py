"""Cut and encode videos."""
