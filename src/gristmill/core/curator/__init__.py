"""What code written for NeMo Curator calls and finds here under its own names. Nobody else needs it."""
