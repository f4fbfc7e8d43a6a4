"""The numbers that Sample draws, written out in plain Python."""

from __future__ import annotations

from gristmill.core.task import digest

MASK = 2**64 - 1


def splitmix(number: int, key: int) -> float:
    """What `draw` computes, for one row."""
    bits = (number * 0x9E3779B97F4A7C15 + key) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return ((bits ^ (bits >> 31)) >> 11) / 2**53


def number_of(owner: str, position: int, seed: int = 0, name: str = "Sample") -> float:
    return splitmix(position, int(digest([str(seed), name, owner]), 16))
