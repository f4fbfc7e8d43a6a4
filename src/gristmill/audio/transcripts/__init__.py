"""What is said in recordings: error rates, filters and repairs of transcripts. Nothing here decodes sound."""
