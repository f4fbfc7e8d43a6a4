"""Rows given to a model in batches of one shape each, whatever the rows are that happen to be together.

Rows of one shape wait for each other, and the last batch of a shape is filled up with copies of its last row. So a row
is computed in the same way in every batch, and gives the same bytes: engines choose their kernels by shape.

On a CPU larger batches are no faster, and their filling is lost time, so they are small there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from gristmill.models.model import Array

CPU_ROWS = 4
"""Rows in a batch on a CPU, at most."""

Row = TypeVar("Row")


def run_in_batches(run: Callable[[Array], Array], rows: Iterable[Array], size: int) -> list[Array]:
    """What `run` makes of each row, in their order. It is given arrays of `size` rows."""
    waiting: dict[tuple[int, ...], list[tuple[int, Array]]] = {}
    found: dict[int, Array] = {}

    def flush(shape: tuple[int, ...]) -> None:
        numbered = waiting.pop(shape)
        filled = [row for _, row in numbered] + [numbered[-1][1]] * (size - len(numbered))
        answers = run(np.stack(filled))
        found.update((number, answers[place]) for place, (number, _) in enumerate(numbered))

    for number, row in enumerate(rows):
        waiting.setdefault(row.shape, []).append((number, row))
        if len(waiting[row.shape]) == size:
            flush(row.shape)
    for shape in list(waiting):
        flush(shape)
    return [found[number] for number in range(len(found))]


def prefetch_rows(rows: Iterable[Row], count: int) -> Iterator[Row]:
    """The same rows, of which up to `count` are made by another thread before they are asked for."""
    source = iter(rows)
    end = object()
    with ThreadPoolExecutor(1) as thread:
        pending = [thread.submit(next, source, end) for _ in range(count)]
        while pending:
            row = pending.pop(0).result()
            if row is end:
                return
            pending.append(thread.submit(next, source, end))
            yield row  # type: ignore[misc]
