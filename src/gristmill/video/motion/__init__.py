"""How much moves in a video."""
