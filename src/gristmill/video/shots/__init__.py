"""Where one shot of a film ends and the next begins."""
