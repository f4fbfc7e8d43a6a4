"""Note how far a stage is in a batch, so that a hang in one record is found long before the batch is late.

A loop over the rows of a batch goes through `in_turn`. A worker that is watched notes every few rows; elsewhere it
costs nothing. What works on whole columns has nothing to note: it is judged by the size of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

NOTED_ROWS = 16
"""How many rows may pass between two notes."""

_note: Callable[[int], None] | None = None


def note_with(note: Callable[[int], None] | None) -> None:
    """Have `note` called every few rows, with how many will pass until the next note; with 0 after the last row."""
    global _note  # noqa: PLW0603  a process is one worker
    _note = note


def in_turn(rows: Iterable[T]) -> Iterable[T]:
    """The rows, of which each takes its time."""
    return rows if _note is None else _noted(rows, _note)


def _noted(rows: Iterable[T], note: Callable[[int], None]) -> Iterator[T]:
    left = iter(rows)
    note(NOTED_ROWS)
    while some := list(islice(left, NOTED_ROWS)):
        yield from some
        note(NOTED_ROWS)
    note(0)
