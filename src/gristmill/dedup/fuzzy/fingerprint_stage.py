"""FingerprintDeduplicationStage: recordings that sound the same, by a column of acoustic fingerprints.

A fingerprint is a sequence of 32-bit codes, one for each 32 ms (`AudioFingerprintStage`); 0 stands for silence. Two
rounds over exchanges find what sounds the same:

    MatchWindows   recordings with a code in common are compared where they have it: the codes around it
    AlignPairs     pairs whose places agree in one shift, over enough of the shorter recording, stay

Clusters and verdicts are those of perceptual hashes (`hash_distance_stages.py`).

Gives up some pairs: of a code that many recordings have, such as a hum, each is compared with the next few only. And
recordings of less than 1.5 seconds, which have no fingerprint to go by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.hash_partitioning import required_column
from gristmill.core.batch import Batch
from gristmill.core.errors import ColumnError, printable
from gristmill.core.stage import Columns
from gristmill.dedup.clusters.cluster_table import SIMILARITY
from gristmill.dedup.clusters.keep_policy import FIRST, Keep
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, from_numbers, numbers
from gristmill.dedup.fuzzy.hash_distance_stages import ABOUT, NODE, OTHER, PairClusteringStage, about_rows
from gristmill.io.exchange.keyed_stage import KeyedStage

WINDOW, BEFORE = 48, 24
"""Codes that are compared around one in common: 1.5 seconds."""

LEAST_SOUNDING = 36
"""Codes of a window that must not be silence."""

MOST_KEYS, MOST_COMPARED = 1024, 16
SHIFT_SLACK = 2
"""Codes by which places may disagree and count as one shift."""

_KEY, _PLACE, _LENGTH, _AROUND, _SHIFT, _PAIR = "__key__", "__at__", "__length__", "__around__", "__shift__", "__pair__"
_OTHERS = [f"{name}other" for name in ABOUT]


class FingerprintDeduplicationStage(PairClusteringStage):
    """Drops recordings that sound the same as another; of each cluster, one is kept.

    `fingerprint_field` is a column of acoustic fingerprints, as `AudioFingerprintStage` makes it. Two recordings are
    the same if they agree, shifted against each other, over at least `min_overlap` of the shorter one, in all but
    a share of `max_error` of the bits. Copies in another codec, louder, cut, or as part of a longer one are found.

    `keep` is "first" in the order of the input, the one with the "highest" or "newest" `score_field`, such as duration,
    or a `Keep`. `id_field` is the column that names rows in the cluster table, where similarity is the share of equal
    bits. A recording without a fingerprint is never a duplicate.
    """

    def __init__(
        self,
        fingerprint_field: str = "fingerprint",
        max_error: float = 0.25,
        min_overlap: float = 0.5,
        keep: str | Keep | Mapping[str, Any] = FIRST,
        score_field: str | None = None,
        id_field: str | None = None,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
    ) -> None:
        super().__init__(None, keep, score_field, id_field, num_partitions, memory_gb)
        if not 0 <= max_error <= 0.35 or not 0 < min_overlap <= 1:
            raise ValueError(
                f"FingerprintDeduplicationStage: max_error={max_error} must be 0 to 0.35 (what has nothing in common "
                f"differs in 0.5), and min_overlap={min_overlap} above 0 and at most 1"
            )
        self.fingerprint_field, self.max_error, self.min_overlap = fingerprint_field, max_error, min_overlap

    def inputs(self) -> tuple[list[str], Columns]:
        named = [self.fingerprint_field, self._policy.field, self.id_field]
        return ["data"], list(dict.fromkeys(name for name in named if name))

    def keys(self, batch: Batch) -> pa.Table:
        column = as_one_array(required_column(batch.data, self.fingerprint_field))
        binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_null)
        if not any(of_kind(column.type) for of_kind in binary):
            raise ColumnError(
                f"stage {self.name!r} needs fingerprints in column {self.fingerprint_field!r}, which holds "
                f"{printable(column.type)}. Set fingerprint_field to the column that AudioFingerprintStage has added"
            )
        values = column.to_pylist()
        found = [_windows(value) for value in values]
        counts = [len(places) for _, places, _ in found]
        rows = np.repeat(np.arange(len(values)), counts)
        codes, places, around = (np.concatenate([_EMPTY[part], *(one[part] for one in found)]) for part in range(3))
        lengths = np.array([_sounding(value) for value in values], np.int64)[rows]
        about = about_rows(self, batch, self._policy, self.id_field).take(from_numbers(rows))
        keyed = about.append_column(_PLACE, from_numbers(places.astype(np.int64)))
        keyed = keyed.append_column(_LENGTH, from_numbers(lengths.astype(np.int64)))
        keyed = keyed.append_column(_AROUND, _fixed(around, 4 * WINDOW))
        return keyed.append_column(_KEY, _fixed(codes, 4))

    def pair_stages(self) -> list[KeyedStage]:
        return [MatchWindows(self.max_error), AlignPairs(self.min_overlap)]

    def thresholds(self) -> dict[str, str]:
        return {SIMILARITY: f"max_error={self.max_error}, at least {1 - self.max_error:g}"}


_EMPTY = (np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros((0, WINDOW), np.uint32))


def _codes(value: bytes | None) -> Numbers:
    return np.frombuffer(value[: len(value) // 4 * 4], "<u4") if value else _EMPTY[0]


def _sounding(value: bytes | None) -> int:
    return int(np.count_nonzero(_codes(value)))


def _windows(value: bytes | None) -> tuple[Numbers, Numbers, Numbers]:
    """Codes that a recording is found by, their places, and the codes around them.

    Of long recordings, only codes with a small hash: the same ones in each copy, whatever its length.
    """
    codes = _codes(value)
    if len(codes) < WINDOW:
        return _EMPTY
    places = np.arange(BEFORE, len(codes) - (WINDOW - BEFORE) + 1)
    sums = np.concatenate([[0], np.cumsum(codes != 0)])
    sounding = sums[places + WINDOW - BEFORE] - sums[places - BEFORE]
    own = codes[places]
    places = places[(own != 0) & (sounding >= LEAST_SOUNDING) & (np.append(True, own[1:] != own[:-1]))]
    level, mixed = 0, reference.scramble(codes[places].astype(np.uint64))
    while len(places) >> level > MOST_KEYS:
        level += 1
    places = places[mixed & np.uint64((1 << level) - 1) == 0]
    around = np.lib.stride_tricks.sliding_window_view(codes, WINDOW)[places - BEFORE]
    return codes[places], places, around


def _fixed(values: Any, width: int) -> pa.Array:
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.binary(width), len(data), [None, pa.py_buffer(data)])


def _as_codes(column: pa.ChunkedArray, width: int) -> Numbers:
    array = as_one_array(column)
    codes = np.frombuffer(array.buffers()[1], np.uint32)[array.offset * width : (array.offset + len(array)) * width]
    return codes.reshape(-1, width)


def _compared(keys: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Positions with the same key, each with the next few; keys are sorted."""
    for distance in range(1, MOST_COMPARED + 1):
        left = np.flatnonzero(keys[:-distance] == keys[distance:]) if len(keys) > distance else np.zeros(0, np.int64)
        if not len(left):
            return
        yield left, left + distance


class MatchWindows(KeyedStage):
    """Compares what is around a code that recordings have in common. Each answer is a pair of rows and a shift."""

    step_name = "match_windows"
    key = _KEY

    def __init__(self, max_error: float) -> None:
        super().__init__()
        self.max_error = max_error

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [_PAIR]

    def process_groups(self, table: pa.Table) -> pa.Table:
        keys, nodes = _as_codes(table[_KEY], 1)[:, 0], numbers(table[NODE])
        order = np.lexsort((nodes, keys))
        around = _as_codes(table[_AROUND], WINDOW)
        ones, others, shares = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
        for left, right in _compared(keys[order]):
            one, other = order[left], order[right]
            different = nodes[one] != nodes[other]
            one, other = one[different], other[different]
            errors = np.bitwise_count(around[one] ^ around[other]).sum(axis=1) / (32 * WINDOW)
            near = errors <= self.max_error
            ones.append(one[near])
            others.append(other[near])
            shares.append(1 - errors[near])
        u, v = np.concatenate(ones), np.concatenate(others)
        places, lengths = numbers(table[_PLACE]), numbers(table[_LENGTH])
        rows = table.select(ABOUT).take(from_numbers(u))
        for name, column in zip(_OTHERS, table.select(ABOUT).take(from_numbers(v)).columns, strict=True):
            rows = rows.append_column(name, column)
        for name, values in ((_PLACE, places[u]), (_SHIFT, places[v] - places[u])):
            rows = rows.append_column(name, from_numbers(values.astype(np.int64)))
        rows = rows.append_column(_LENGTH, from_numbers(np.minimum(lengths[u], lengths[v]).astype(np.int64)))
        rows = rows.append_column(SIMILARITY, from_numbers(np.concatenate(shares)))
        return rows.append_column(_PAIR, _fixed(np.stack([nodes[u], nodes[v]], axis=1), 16))


class AlignPairs(KeyedStage):
    """Keeps pairs whose places agree in one shift, over enough of the shorter recording."""

    step_name = "align_pairs"
    key = _PAIR

    def __init__(self, min_overlap: float) -> None:
        super().__init__()
        self.min_overlap = min_overlap

    def outputs(self) -> tuple[list[str], Columns]:
        return [], ABOUT

    def process_groups(self, table: pa.Table) -> pa.Table:
        shifts, places = numbers(table[_SHIFT]), numbers(table[_PLACE])
        lengths, shares = numbers(table[_LENGTH]), numbers(table[SIMILARITY])
        first, second = numbers(table[NODE]), numbers(table[f"{NODE}other"])
        order = np.lexsort((places, shifts, second, first))
        same = (first[order][1:] == first[order][:-1]) & (second[order][1:] == second[order][:-1])
        chosen, found = [], []
        for rows in np.split(order, np.flatnonzero(~same) + 1) if len(order) else []:
            agreeing = rows[np.abs(shifts[rows] - _usual(shifts[rows])) <= SHIFT_SLACK]
            covered = _covered(np.sort(places[agreeing]))
            if covered >= self.min_overlap * max(lengths[rows[0]], 1):
                chosen.append(rows[0])
                found.append(float(shares[agreeing].mean()))
        picked = table.take(from_numbers(np.array(chosen, np.int64)))
        ones = picked.select(ABOUT).append_column(OTHER, picked[f"{NODE}other"])
        ones = ones.append_column(SIMILARITY, from_numbers(np.array(found, np.float64)))
        others = picked.select(_OTHERS).rename_columns(ABOUT)
        others = others.append_column(OTHER, pa.nulls(len(picked), pa.int64()))
        others = others.append_column(SIMILARITY, pa.nulls(len(picked), pa.float64()))
        return pa.concat_tables([ones, others])


def _usual(shifts: Numbers) -> int:
    """The shift that most others are near; shifts are sorted."""
    near = np.searchsorted(shifts, shifts + SHIFT_SLACK, "right") - np.searchsorted(
        shifts, shifts - SHIFT_SLACK, "left"
    )
    return int(shifts[int(np.argmax(near))])


def _covered(places: Numbers) -> int:
    """How many codes agree: from the first to the last window, without gaps of more than ten windows."""
    gaps = np.diff(places)
    return WINDOW + int(np.where(gaps <= 10 * WINDOW, gaps, 0).sum())
