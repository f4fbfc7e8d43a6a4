"""Training windows for audio language models, made of the segments of long recordings."""
