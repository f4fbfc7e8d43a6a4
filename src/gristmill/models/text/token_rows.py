"""Runs a model on rows of tokens so that the result for a row does not depend on which rows were with it.

On a CPU each row runs alone at its own length: nothing is padded, which is also the fastest way, since larger batches
gain nothing there. Documents with the same tokens are computed once.

On a GPU rows are padded to one of a few lengths, and each length has batches of one size; the last batch of a length is
filled up. Rows of all tasks that the stage was given share these batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gristmill.core.run.row_progress import in_turn
from gristmill.models.model_loader import Array

LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""What rows are padded to on a GPU; longer rows to the next multiple of 4096."""

TOKENS_PER_ROW = 512
"""A batch on a GPU has as many tokens as `batch_size` rows of this length."""

Run = Callable[[Array, Array], Array]
"""Maps token ids and a mask, each of (rows, length), to one row of numbers for each row."""


def run_one_by_one(run: Run, rows: Sequence[Sequence[int]]) -> list[Array]:
    """The result for each row, computed alone and without padding."""
    known: dict[tuple[int, ...], Array] = {}
    results = []
    for row in in_turn(rows):
        key = tuple(row)
        if key not in known:
            ids = np.array([row], np.int64)
            known[key] = run(ids, np.ones_like(ids))[0]
        results.append(known[key])
    return results


def run_in_buckets(
    run: Run, rows: Sequence[Sequence[int]], batch_size: int, pad_id: int, pad_left: bool = False
) -> list[Array]:
    """The result for each row, computed in batches of rows of similar length."""
    results: dict[int, Array] = {}
    for numbers, ids, mask in _batches(rows, batch_size, pad_id, pad_left):
        outputs = run(ids, mask)
        results.update(zip(numbers, outputs, strict=False))  # the rest only fill the batch
    return [results[number] for number in range(len(rows))]


def _batches(
    rows: Sequence[Sequence[int]], batch_size: int, pad_id: int, pad_left: bool
) -> Iterator[tuple[list[int], Array, Array]]:
    by_length: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        by_length.setdefault(padded_length(len(row)), []).append(number)
    for length in sorted(by_length):
        size = max(1, min(batch_size, batch_size * TOKENS_PER_ROW // length))
        numbers = by_length[length]
        for start in range(0, len(numbers), size):
            some = numbers[start : start + size]
            yield some, *_padded([rows[number] for number in some], length, size, pad_id, pad_left)


def padded_length(length: int) -> int:
    return next((one for one in LENGTHS if one >= length), -(-length // LENGTHS[-1]) * LENGTHS[-1])


def _padded(rows: Sequence[Sequence[int]], length: int, size: int, pad_id: int, pad_left: bool) -> tuple[Array, Array]:
    ids = np.full((size, length), pad_id, np.int64)
    mask = np.zeros((size, length), np.int64)
    for number in range(size):
        row = rows[min(number, len(rows) - 1)]
        place = slice(length - len(row), length) if pad_left else slice(0, len(row))
        ids[number, place], mask[number, place] = row, 1
    return ids, mask
