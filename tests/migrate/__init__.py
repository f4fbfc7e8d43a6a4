"""Code for NeMo Curator, rewritten."""
