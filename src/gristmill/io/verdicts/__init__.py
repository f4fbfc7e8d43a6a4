"""Stages that keep or drop rows by what the keys of all rows say: rows stay in their sources, keys move through exchanges, verdicts come back."""
