"""Models that listen to speech: where it is, how good it sounds, and what is said."""
