"""The `gristmill` command."""
