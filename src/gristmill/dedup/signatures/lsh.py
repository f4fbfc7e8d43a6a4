"""Locality-sensitive hashing: documents whose signatures agree in a whole band are candidates for comparison.

A signature is cut into bands of `rows` numbers each. Documents with Jaccard similarity s share a given band with
probability s ** rows, and at least one band with 1 - (1 - s ** rows) ** bands: an S-shaped curve whose steep part is
set by bands and rows. The number of a band is part of its keys, so keys of different bands never match.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.native_kernels import kernels
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_one_array, from_numbers, numbers
from gristmill.dedup.signatures.minhash import signature_matrix

SURE_PROBABILITY = 0.995
"""The wanted probability that a pair just at the threshold is found."""

SIZE = 260
"""Numbers of a signature, unless a low threshold needs more."""

FEW_FALSE, MORE_FALSE = 0.05, (0.1, 0.2, 0.3, 0.5)
"""The share of pairs half as similar as the threshold that may become candidates; and larger shares, tried in turn if
too few pairs at the threshold would be found."""

CIRCLE = 256
"""In a large bucket, documents in groups of this size are paired with the first of their group."""

PAIRS = pa.schema([("u", pa.int64()), ("v", pa.int64())])


# -- the curve ---------------------------------------------------------------------------------------------


def probability(similarity: Numbers | float, bands: Numbers | int, rows: int) -> Numbers:
    """The probability that documents of a similarity share a band."""
    return 1.0 - (1.0 - np.asarray(similarity, np.float64) ** rows) ** bands


@lru_cache(maxsize=256)
def choose_bands(
    threshold: float,
    size: int | None = None,
    false_positive_weight: float = 0.02,
    false_negative_weight: float = 0.98,
    sure: float = SURE_PROBABILITY,
    verified: bool = True,
) -> tuple[int, int]:
    """The number of bands and of rows that find pairs from a threshold on best, with signatures of `size` numbers.

    Minimises the weighted sum of pairs below the threshold that are found and pairs above it that are missed, for
    uniformly distributed similarities. By default false candidates are cheap, since they can be verified, and missed
    pairs are lost. Of pairs half as similar as the threshold, which are many more, at most one in twenty is found. Of
    pairs just at the threshold at least the share `sure` is found, if possible.

    Without `size`, signatures have 260 numbers, or up to twice as many if a low threshold needs them. If that is still
    too few and pairs are `verified`, more of the pairs half as similar are let through, up to one in two; in the end
    as many pairs at the threshold are found as that allows.
    """
    weights = false_positive_weight, false_negative_weight
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold={threshold} must be above 0 and at most 1")
    if size is not None:
        return _best_bands(threshold, size, *weights, sure, FEW_FALSE)
    tries = [(SIZE, FEW_FALSE), (2 * SIZE, FEW_FALSE), *((2 * SIZE, most) for most in MORE_FALSE if verified)]
    for length, most in tries:
        chosen = _best_bands(threshold, length, *weights, sure, most)
        if probability(threshold, *chosen) >= sure:
            return chosen
    if verified:
        return _most_bands(threshold, 2 * SIZE, MORE_FALSE[-1])
    return _best_bands(threshold, SIZE, *weights, sure, FEW_FALSE)


def _cuts(size: int) -> Iterator[tuple[int, Numbers]]:
    """All ways to cut a signature: the rows of a band, and a column of possible numbers of bands."""
    for rows in range(1, size + 1):
        yield rows, np.arange(1, size // rows + 1)[:, None]


def _best_bands(
    threshold: float, size: int, false_positive_weight: float, false_negative_weight: float, sure: float, most: float
) -> tuple[int, int]:
    """The bands and rows of the least error that find at most the share `most` of pairs half as similar."""
    if size < 1:
        raise ValueError(f"size={size} is too small: a signature has 1 or more numbers")
    steps = (np.arange(100) + 0.5) / 100
    below, above = steps * threshold, threshold + steps * (1 - threshold)
    best, chosen = (True, np.inf), (1, 1)
    for rows, bands in _cuts(size):
        errors = false_positive_weight * threshold * probability(below, bands, rows).mean(axis=1)
        errors += false_negative_weight * (1 - threshold) * (1 - probability(above, bands, rows)).mean(axis=1)
        allowed = probability(threshold / 2, bands, rows)[:, 0] <= most
        misses = probability(threshold, bands, rows)[:, 0] < sure
        for at in np.flatnonzero(allowed).tolist():
            best, chosen = min((best, chosen), ((bool(misses[at]), float(errors[at])), (at + 1, rows)))
    return chosen


def _most_bands(threshold: float, size: int, most: float) -> tuple[int, int]:
    """The bands and rows that find most pairs at the threshold, and at most the share `most` half as similar."""
    options = [(0.0, (1, 1))]
    for rows, bands in _cuts(size):
        allowed = np.flatnonzero(probability(threshold / 2, bands, rows)[:, 0] <= most)
        if len(allowed):
            count = int(allowed[-1]) + 1
            options.append((float(probability(threshold, count, rows)), (count, rows)))
    return max(options)[1]


def s_curve(bands: int, rows: int, step: float = 0.1) -> list[tuple[float, float]]:
    """Points of the S-curve: a similarity, and the probability that a pair of that similarity is found."""
    points = np.arange(step, 1.0 + step / 2, step).round(6)
    return [(float(point), float(probability(point, bands, rows))) for point in points]


def format_s_curve(bands: int, rows: int, threshold: float | None = None) -> str:
    """The S-curve as text, a line for each tenth, and the share of pairs found just at a threshold."""
    at = f"; {probability(threshold, bands, rows):.1%} at {threshold:g}, the threshold" if threshold else ""
    lines = [f"{bands} bands of {rows} rows: how many pairs of a similarity are found{at}"]
    lines += [f"  {point:.1f}  {found:7.2%}  {'█' * round(30 * found)}" for point, found in s_curve(bands, rows)]
    return "\n".join(lines)


# -- keys --------------------------------------------------------------------------------------------------


def band_hashes(signatures: Column, bands: int, rows: int, only: range | None = None) -> Numbers:
    """The keys of the bands of each signature, as a matrix of 64-bit numbers; rows of null signatures are undefined."""
    only = range(bands) if only is None else only
    size = signatures.type.list_size
    if bands < 1 or rows < 1 or bands * rows > size:
        raise ValueError(f"{bands} bands of {rows} rows do not fit a signature of {size} numbers")
    part = np.ascontiguousarray(signature_matrix(signatures)[:, only.start * rows : only.stop * rows])
    part = part.astype(part.dtype.newbyteorder("<"), copy=False)
    piece = rows * part.dtype.itemsize
    if kernels is not None:
        data = kernels.hash_pieces(part.view(np.uint8).reshape(-1), piece, max(len(only), 1), only.start, 8)
    else:
        data = _hash_slowly(part.tobytes(), piece, only)
    return np.frombuffer(data, "<u8").reshape(len(part), len(only))


def _hash_slowly(data: bytes, piece: int, only: range) -> bytes:
    starts = range(0, len(data), piece)
    return b"".join(
        reference.xxh3(data[start : start + piece], only.start + number % len(only))[:8]
        for number, start in enumerate(starts)
    )


def band_rows(ids: Column, signatures: Column, bands: int, rows: int, only: range | None = None) -> pa.Table:
    """A row for each band of each document that has a signature: `key` and `id`."""
    array, ids = as_one_array(signatures), as_one_array(ids)
    if array.null_count:
        present = array.is_valid()
        array, ids = array.filter(present), ids.filter(present)
    found = band_hashes(array, bands, rows, only)
    places = from_numbers(np.repeat(np.arange(len(found)), found.shape[1]))
    return pa.table([from_numbers(found.reshape(-1)), ids.take(places)], ["key", "id"])


# -- pairs -------------------------------------------------------------------------------------------------


def bucket_pairs(keys: Column, ids: Column, all_up_to: int = 2) -> pa.Table:
    """Distinct pairs `u < v` of ids (64-bit integers) that have a key in common.

    Documents with the same key are a bucket. A bucket of up to `all_up_to` documents gives all pairs, so that each can
    be verified. A larger one gives neighbours in the order of ids, and pairs each document with the first of its group
    of `CIRCLE` documents, and the first of each group with the first of all. That suffices for clusters, is at most
    twice as many pairs as documents, and does not put too many pairs on one document.
    """
    key, node = _repeated(numbers(keys, np.uint64), numbers(ids, np.int64))
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else np.zeros(0, np.int64)
    sizes = np.diff(np.append(starts, len(key)))
    u, v = [], []
    for size in np.unique(sizes[(sizes > 1) & (sizes <= all_up_to)]).tolist():
        begin = starts[sizes == size][:, None]
        left, right = np.triu_indices(size, 1)
        u.append(node[begin + left].reshape(-1))
        v.append(node[begin + right].reshape(-1))
    large = np.repeat(sizes > max(all_up_to, 1), sizes)
    begin, place = np.repeat(starts, sizes), np.arange(len(key)) - np.repeat(starts, sizes)
    firsts = node[np.where(place % CIRCLE, begin + place - place % CIRCLE, begin)]
    follows = large & np.append(False, key[1:] == key[:-1])[: len(key)]
    before = np.roll(node, 1)
    u += [firsts[follows], before[follows]]
    v += [node[follows], node[follows]]
    return distinct_pairs(np.concatenate(u), np.concatenate(v))


def _repeated(keys: Numbers, ids: Numbers) -> tuple[Numbers, Numbers]:
    """The rows whose key occurs more than once, sorted by key and id, without repetitions."""
    order = np.argsort(keys)
    ordered = keys[order]
    same = ordered[1:] == ordered[:-1]
    kept = order[np.append(same, False) | np.append(False, same)] if len(keys) else order
    keys, ids = keys[kept], ids[kept]
    order = np.lexsort((ids, keys))
    keys, ids = keys[order], ids[order]
    new = np.append(True, (keys[1:] != keys[:-1]) | (ids[1:] != ids[:-1]))[: len(keys)]
    return keys[new], ids[new]


def distinct_pairs(u: Numbers, v: Numbers) -> pa.Table:
    """Pairs as a table `u, v`, sorted, without repetitions and without pairs of an id with itself."""
    u, v = u[u != v], v[u != v]
    order = np.lexsort((v, u))
    u, v = u[order], v[order]
    new = np.append(True, (u[1:] != u[:-1]) | (v[1:] != v[:-1]))[: len(u)]
    return pa.table([from_numbers(u[new]), from_numbers(v[new])], schema=PAIRS)
