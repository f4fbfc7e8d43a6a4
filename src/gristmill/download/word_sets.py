"""Lists of words as they are nice to read: in lines of text."""

from __future__ import annotations


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())
