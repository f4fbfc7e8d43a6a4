"""Lists of words as they are nice to read: in lines of text."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())
