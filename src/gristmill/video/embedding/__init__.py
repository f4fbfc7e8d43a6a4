"""Models that look at frames: embeddings of clips, scores, and clips that are alike."""
