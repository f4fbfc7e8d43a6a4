"""What pictures of a film show, a few of them a second."""
