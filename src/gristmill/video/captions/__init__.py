"""Captions of clips, written by models behind endpoints."""
