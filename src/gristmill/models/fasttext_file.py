"""Reads fastText model files into the buffers that `kernels/fasttext.c` expects.

A file has a magic number and a version, the training arguments, the dictionary (words, then labels), the input matrix
(a row for each word and each bucket of hashed n-grams) and the output matrix (a row for each label). In quantised
models a row is a sequence of bytes, each the index of a centroid of a few numbers, and optionally one for its norm;
they are expanded to floats here. Pruned buckets have no row.

Matrices that are floats in the file are memory-mapped, so all processes of a machine share them.

A file may come from anywhere: every number in it is checked against its size before memory is taken or an index used.

Gives up: unsupervised models, which predict no labels; and quantised ones of more than 512 MiB as floats, for which
`TooLargeFastText` is raised, after all checks, and the caller uses the library.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array

MAGIC, VERSION, OLDER_VERSION = 793712314, 12, 11
SUPERVISED, TREE = 3, 1
LOSSES = range(1, 5)
CENTROIDS = 256
MAX_BYTES = 2**29
"""The maximum size of a quantised matrix after expansion to floats."""

MAX_BUCKETS = 2**27
MAX_DEPTH = 500

Floats = npt.NDArray[np.float32]


class TooLargeFastText(Exception):
    """The file is sound, but this module cannot read it; the library can."""


class WrongFastText(ValueError):
    """The file is not a model of the kind that predicts labels."""


class DamagedFastText(ValueError):
    """The file is truncated or inconsistent."""


@dataclass(frozen=True)
class FastTextParts:
    """The labels, and the arguments of the kernel `fasttext_open`."""

    labels: list[str]
    entries: pa.Array
    numbers: tuple[int, int, int, int, int, int, int, int]
    buffers: tuple[Any, ...]


class ByteCursor:
    """Reads forward through a file, and raises at its end."""

    def __init__(self, data: memoryview | bytes) -> None:
        self.data, self.at = memoryview(data), 0

    def take(self, size: int) -> memoryview:
        if size < 0 or size > len(self.data) - self.at:
            raise DamagedFastText(f"the file is truncated: it ends after {len(self.data):,} bytes")
        self.at += size
        return self.data[self.at - size : self.at]

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}")))

    def floats(self, count: int) -> Floats:
        return np.frombuffer(self.take(4 * count), "<f4")


def read_parts(path: Path) -> FastTextParts:
    """The parts of a model file. Raises WrongFastText, DamagedFastText or TooLargeFastText."""
    if sys.byteorder != "little":
        raise WrongFastText("fastText models can only be read on little-endian machines")
    with open(path, "rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file cannot be mapped
            raise DamagedFastText("the file is empty") from error
    return parse_parts(memoryview(data))


def parse_parts(data: memoryview | bytes) -> FastTextParts:
    cursor = ByteCursor(data)
    magic, version = cursor.numbers("ii")
    if magic != MAGIC or version not in (VERSION, OLDER_VERSION):
        raise WrongFastText("not a fastText file, or of an unknown version")
    dim, *_, word_ngrams, loss, kind, bucket, min_ngram, max_ngram, _, _ = cursor.numbers("12id")
    if kind != SUPERVISED or loss not in LOSSES:
        raise WrongFastText("not a supervised model, so it cannot predict labels")
    if version == OLDER_VERSION:  # whatever it says, such a model has no n-grams of characters
        max_ngram = 0
    words, labels, counts, pruned = _dictionary(cursor)
    quantised = bool(cursor.take(1)[0])
    if pruned is not None and not quantised:
        raise DamagedFastText("pruned but not quantised")
    inputs = _matrix(cursor, quantised, dim)
    outputs = _matrix(cursor, bool(cursor.take(1)[0]) and quantised, dim)
    if outputs.count != len(labels):
        raise DamagedFastText(f"{outputs.count} rows of output for {len(labels)} labels")
    if max_ngram > 0 or word_ngrams > 1:
        _check_buckets(bucket, pruned, inputs.count - len(words))
    tree = huffman_tree(counts) if loss == TREE else b""
    if max(inputs.size, outputs.size) > MAX_BYTES:
        raise TooLargeFastText("too large to expand to floats")
    rows, scales = inputs.read()
    if scales is not None:
        with np.errstate(all="ignore"):  # the numbers of a damaged file may be infinite, or none
            rows *= scales[:, None]
    output, output_scales = outputs.read()
    if output_scales is None:
        output_scales = np.ones(len(labels), np.float32)
    return FastTextParts(
        labels=[label.decode(errors="replace") for label in labels],
        entries=make_array([*words, *labels], pa.large_binary()),
        numbers=(dim, len(words), max(1, bucket), min_ngram, max_ngram, word_ngrams, loss, pruned is not None),
        buffers=(
            rows.reshape(-1),
            *_buckets(pruned, max(1, bucket)),
            np.array(output).reshape(-1),  # a copy, because floats in the file may not be aligned
            np.ascontiguousarray(output_scales),
            tree,
        ),
    )


def _dictionary(cursor: ByteCursor) -> tuple[list[bytes], list[bytes], list[int], npt.NDArray[np.int32] | None]:
    """Words, labels, the count of each label, and for pruned models pairs of a bucket and its row."""
    size, word_count, label_count, _, pruned = cursor.numbers("iiiqq")
    if not 0 < size == word_count + label_count or word_count < 0 or label_count < 1:
        raise DamagedFastText(f"the dictionary has {size} entries, but {word_count} words and {label_count} labels")
    names, counts, kinds = _entries(cursor, size)
    if kinds != bytes(word_count) + b"\1" * label_count:
        raise DamagedFastText("words and labels are mixed")
    pairs = None if pruned < 0 else np.frombuffer(cursor.take(8 * pruned), "<i4").reshape(-1, 2)
    return names[:word_count], names[word_count:], counts[word_count:], pairs


def _entries(cursor: ByteCursor, size: int) -> tuple[list[bytes], list[int], bytes]:
    names, counts, kinds = [], [], bytearray()
    read, find = struct.Struct("<qb").unpack_from, _finder(cursor.data)
    at, end = cursor.at, len(cursor.data)
    for _ in range(size):
        stop = find(b"\0", at)
        if stop < 0 or stop + 10 > end:
            raise DamagedFastText("the file is truncated: it ends within the dictionary")
        names.append(bytes(cursor.data[at:stop]))
        count, kind = read(cursor.data, stop + 1)
        counts.append(count)
        kinds.append(kind & 0xFF)
        at = stop + 10
    cursor.at = at
    return names, counts, bytes(kinds)


def _finder(data: memoryview) -> Any:
    """The `find` method of the underlying object: a memoryview has none."""
    underlying = data.obj
    return underlying.find if isinstance(underlying, bytes | mmap.mmap) else bytes(data).find


@dataclass(frozen=True)
class _Matrix:
    """A matrix as it is in the file. Of one that is quantised, `size` is how many bytes it takes as floats."""

    count: int
    floats: Floats | None = None
    codes: _Codes | None = None
    scale_codes: _Codes | None = None

    @property
    def size(self) -> int:
        return 4 * self.count * self.codes.width if self.codes else 0

    def read(self) -> tuple[Floats, Floats | None]:
        """The rows, and the factor of each row if it has any."""
        if self.floats is not None:
            return self.floats, None
        assert self.codes
        return self.codes.expand(), self.scale_codes.expand().reshape(-1) if self.scale_codes else None


def _matrix(cursor: ByteCursor, quantised: bool, dim: int) -> _Matrix:
    if not quantised:
        count, width = cursor.numbers("qq")
        _check_shape(count, width, dim)
        return _Matrix(count, cursor.floats(count * width).reshape(count, width))
    scaled, count, width, size = cursor.numbers("?qqi")
    _check_shape(count, width, dim)
    codes = _codes(cursor, cursor.take(size), count, width)
    return _Matrix(count, None, codes, _codes(cursor, cursor.take(count), count, 1) if scaled else None)


def _check_shape(count: int, width: int, dim: int) -> None:
    if count < 1 or width != dim or dim < 1:
        raise DamagedFastText(f"a matrix of {count} rows and {width} columns does not fit {dim} dimensions")


@dataclass(frozen=True)
class _Codes:
    """Rows made of centroids of `piece` numbers each; the last centroid of a row may be shorter."""

    table: npt.NDArray[np.uint8]
    centroids: Floats
    width: int
    piece: int

    def expand(self) -> Floats:
        rows = np.empty((len(self.table), self.width), np.float32)
        for start in range(0, self.width, self.piece):
            codebook = self.centroids[start * CENTROIDS : (start + self.piece) * CENTROIDS].reshape(CENTROIDS, -1)
            rows[:, start : start + self.piece] = codebook[self.table[:, start // self.piece]]
        return rows


def _codes(cursor: ByteCursor, codes: memoryview, count: int, dim: int) -> _Codes:
    width, pieces, size, last = cursor.numbers("4i")
    if width != dim or pieces < 1 or size < 1 or size * (pieces - 1) + last != dim or not 0 < last <= size:
        raise DamagedFastText(f"{pieces} pieces of {size} numbers are not a row of {dim}")
    if len(codes) != count * pieces:
        raise DamagedFastText(f"{len(codes)} codes for {count} rows of {pieces}")
    return _Codes(np.frombuffer(codes, np.uint8).reshape(count, pieces), cursor.floats(dim * CENTROIDS), dim, size)


def _check_buckets(count: int, pairs: npt.NDArray[np.int32] | None, rows: int) -> None:
    """Whether each bucket has one of the rows that are left for buckets."""
    if not 0 < count <= MAX_BUCKETS:
        raise DamagedFastText(f"{count} buckets")
    if (count if pairs is None else len(pairs)) > rows:
        raise DamagedFastText("there are fewer rows than words and buckets")
    if pairs is not None and len(pairs) and not 0 <= pairs[:, 1].min() <= pairs[:, 1].max() < rows:
        raise DamagedFastText("a bucket has a row that is not there")


def _buckets(pairs: npt.NDArray[np.int32] | None, count: int) -> tuple[Any, Any, Any]:
    """A bit set of the buckets that have a row, the number of set bits before each 64, and the rows in bucket order."""
    if pairs is None:
        return b"", b"", b""
    buckets = pairs[:, 0]
    order = np.argsort(buckets, kind="stable")
    if len(pairs) and (buckets.min() < 0 or (np.diff(buckets[order]) == 0).any()):
        raise DamagedFastText("a bucket occurs twice or is negative")
    order = order[buckets[order] < count]
    blocks, bit = np.divmod(buckets[order].astype(np.int64), 64)
    bits = np.zeros((count + 63) // 64, np.uint64)
    np.bitwise_or.at(bits, blocks, np.uint64(1) << bit.astype(np.uint64))
    sizes = np.bincount(blocks, minlength=len(bits))
    return bits, (np.cumsum(sizes) - sizes).astype(np.uint32), np.ascontiguousarray(pairs[order, 1])


def huffman_tree(counts: Sequence[int]) -> npt.NDArray[np.int32]:
    """The children of each inner node of the Huffman tree, whose leaves are the labels.

    The same algorithm as the library's, which assumes that labels are sorted by count, the most frequent first.
    """
    size, not_built = len(counts), 10**15
    if min(counts) < 0 or sum(counts) >= not_built:
        raise DamagedFastText("the label counts are out of range")
    weights = [*counts, *([not_built] * (size - 1))]
    depths = [0] * len(weights)
    children = []
    leaf, node = size - 1, size
    for parent in range(size, 2 * size - 1):
        pair = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                pair.append(leaf)
                leaf -= 1
            else:
                pair.append(node)
                node += 1
        if max(pair) >= parent or (depth := 1 + max(depths[child] for child in pair)) > MAX_DEPTH:
            raise DamagedFastText("the label counts are not sorted")
        weights[parent], depths[parent] = weights[pair[0]] + weights[pair[1]], depth
        children.append(pair)
    return np.array(children, np.int32).reshape(-1)
