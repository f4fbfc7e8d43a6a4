"""Runs a model on batches of a fixed shape, so that the result for a row does not depend on its batch.

Engines choose their kernels by shape, and different kernels round differently. Therefore rows are grouped by shape, and
the last batch of a shape is filled up with copies of its last row.

Gives up: the time spent on the filling. On a CPU larger batches are not faster, so they are small there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from gristmill.models.model_loader import Array

CPU_ROWS = 4
"""The maximum number of rows in a batch on a CPU."""

Row = TypeVar("Row")


def run_in_batches(run: Callable[[Array], Array], rows: Iterable[Array], size: int) -> list[Array]:
    """The output of `run` for each row, in order. `run` is called with arrays of exactly `size` rows."""
    waiting: dict[tuple[int, ...], list[tuple[int, Array]]] = {}
    results: dict[int, Array] = {}

    def flush(shape: tuple[int, ...]) -> None:
        numbered = waiting.pop(shape)
        filled = [row for _, row in numbered] + [numbered[-1][1]] * (size - len(numbered))
        outputs = run(np.stack(filled))
        results.update((number, outputs[index]) for index, (number, _) in enumerate(numbered))

    for number, row in enumerate(rows):
        waiting.setdefault(row.shape, []).append((number, row))
        if len(waiting[row.shape]) == size:
            flush(row.shape)
    for shape in list(waiting):
        flush(shape)
    return [results[number] for number in range(len(results))]


def prefetch_rows(rows: Iterable[Row], count: int) -> Iterator[Row]:
    """Yields the same rows, up to `count` of which another thread prepares in advance."""
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
