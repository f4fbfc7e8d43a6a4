"""What is shown of a run while it runs, and how its counts read."""
