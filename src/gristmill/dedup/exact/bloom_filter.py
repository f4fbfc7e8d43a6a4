"""A Bloom filter of texts, and the deduplication stage that uses it: a few bits for each text, whatever its length.

A text that was added is always found. A text that was not is found with a probability of at most
`false_positive_rate`, as long as the filter has no more texts than its capacity. The same texts in the same order give
the same bytes on every machine.

`BloomDeduplicationStage` sends hashes through an exchange to one worker, which looks them up in the order of the input.
A filter in each worker would know only the texts of that worker, and be lost with it. With one, the result is the same
for any number of workers, and a killed run can be resumed. Nothing is sorted, and only the filter is held in memory.

Gives up the duplicates' partners, and so the cluster table. Up to one new text in a thousand is dropped too.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.batch import Batch
from gristmill.core.stage import Columns
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_one_array, flags, from_numbers
from gristmill.dedup.columns.batch_texts import texts_of
from gristmill.dedup.columns.column_hashes import hash128
from gristmill.dedup.columns.normalisation import normalisation_without
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK, VerdictStage, identities

_MAGIC = b"GRISTBL2"
_OTHER_HASHES = b"GRISTBLM"
_HASH = "__hash__"


class BloomFilter:
    """A set of texts with a bounded rate of false positives."""

    def __init__(self, capacity: int, false_positive_rate: float = 0.001, seed: int = 0) -> None:
        _check(capacity, false_positive_rate)
        self.capacity, self.false_positive_rate, self.seed = capacity, false_positive_rate, seed
        bits = math.ceil(-capacity * math.log(false_positive_rate) / math.log(2) ** 2)
        self.bits = bytearray((bits + 63) // 64 * 8)
        self.probes = max(1, round(len(self.bits) * 8 / capacity * math.log(2)))
        self.added = 0

    def seen(self, column: Column) -> pa.BooleanArray:
        """Whether each text is in the filter; null never is."""
        return self._look(column, add=False)

    def add(self, column: Column) -> pa.BooleanArray:
        """Add each text, in order. Returns whether it was in the filter before, as the second of two equal ones is."""
        return self._look(column, add=True)

    def _look(self, column: Column, add: bool) -> pa.BooleanArray:
        hashes = hash128(column, self.seed)
        present = hashes.is_valid()
        data = hashes.filter(present).buffers()[1]
        raw = data.to_pybytes() if data is not None else b""
        raw = raw[: 16 * (len(hashes) - hashes.null_count)]
        look = reference.bloom if kernels is None else kernels.bloom
        known = np.frombuffer(look(self.bits, raw, self.probes, add), np.uint8).astype(np.bool_)
        if add:
            self.added += int((~known).sum())
        seen = np.zeros(len(hashes), np.bool_)
        seen[flags(present)] = known
        return from_numbers(seen)

    def merge(self, other: BloomFilter) -> None:
        """Add all texts of another filter, which was made with the same arguments."""
        if self._shape() != other._shape():
            raise ValueError(
                f"filters of {self._shape()} and {other._shape()} cannot be merged: make both with the same arguments"
            )
        np.frombuffer(self.bits, np.uint8)[:] |= np.frombuffer(other.bits, np.uint8)
        self.added += other.added

    def _shape(self) -> dict[str, float]:
        return {"capacity": self.capacity, "false_positive_rate": self.false_positive_rate, "seed": self.seed}

    def to_bytes(self) -> bytes:
        """The filter as bytes, for a file."""
        head = json.dumps({**self._shape(), "added": self.added}, sort_keys=True).encode()
        return _MAGIC + struct.pack("<I", len(head)) + head + self.bits

    @classmethod
    def from_bytes(cls, data: bytes) -> BloomFilter:
        """The filter from the bytes of `to_bytes`."""
        if data[:8] == _OTHER_HASHES:
            raise ValueError("this Bloom filter was made by an earlier version, with other hashes: rebuild it")
        if data[:8] != _MAGIC or len(data) < 12:
            raise ValueError("this is not a Bloom filter of gristmill: pass the bytes that to_bytes() returned")
        size = struct.unpack_from("<I", data, 8)[0]
        head = json.loads(data[12 : 12 + size])
        found = cls(head["capacity"], head["false_positive_rate"], head["seed"])
        bits = data[12 + size :]
        if len(bits) != len(found.bits):
            raise ValueError(f"the Bloom filter is damaged: it has {len(bits)} bytes instead of {len(found.bits)}")
        found.bits, found.added = bytearray(bits), head["added"]
        return found


def _check(capacity: int, false_positive_rate: float) -> None:
    if not isinstance(capacity, int | np.integer):
        raise TypeError(f"capacity={capacity!r} must be an integer: the number of different texts to expect")
    if capacity < 1:
        raise ValueError(f"capacity={capacity} must be 1 or more: the number of different texts to expect")
    if not 0 < false_positive_rate < 1:
        raise ValueError(f"false_positive_rate={false_positive_rate} must be between 0 and 1")


class GrowingBloomFilter:
    """A list of filters: when one is full, the next has twice the capacity and half the error rate.

    So the total error rate stays below the chosen one, however many texts are added.
    """

    def __init__(self, capacity: int, false_positive_rate: float) -> None:
        self.filters = [BloomFilter(capacity, false_positive_rate / 2)]

    def add(self, column: pa.Array) -> Numbers:
        """Add each text. Returns whether it was there before."""
        seen = np.zeros(len(column), np.bool_)
        start = 0
        while start < len(column):
            *full, last = self.filters
            if last.added >= last.capacity:
                self.filters.append(BloomFilter(last.capacity * 2, last.false_positive_rate / 2))
                continue
            part = column.slice(start, last.capacity - last.added)
            known = np.zeros(len(part), np.bool_)
            for one in full:
                known |= flags(one.seen(part))
            known[~known] = flags(last.add(part.filter(from_numbers(~known))))
            seen[start : start + len(part)] = known
            start += len(part)
        return seen


class BloomDeduplicationStage(VerdictStage):
    """Drops rows whose text occurred before, by a Bloom filter; the first row with a text stays.

    Of new texts, a share of at most `false_positive_rate` is dropped too. `capacity` is the expected number of
    different texts; if there are more, the filter grows, and the rate still holds. At a rate of 0.001 it takes two
    bytes for each text. `normalize` lists differences to ignore: "case", "whitespace", "punctuation", "unicode". Null
    is never a duplicate. Output files have the same names and order as without this stage.
    """

    def __init__(
        self,
        text_field: str = "text",
        false_positive_rate: float = 0.001,
        capacity: int = 1_000_000,
        normalize: Sequence[str] = (),
    ) -> None:
        super().__init__()
        try:
            _check(capacity, false_positive_rate)
        except (TypeError, ValueError) as error:
            raise type(error)(f"BloomDeduplicationStage: {error}") from None
        self.text_field, self.normalize = text_field, normalize
        self.false_positive_rate, self.capacity = false_positive_rate, capacity
        self._form = normalisation_without("BloomDeduplicationStage", normalize)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_field]

    def keys(self, batch: Batch) -> pa.Table:
        texts = texts_of(self.name, batch.data, self.text_field)
        hashes = hash128(self._form.apply(texts) if self._form else texts)
        known = identities(batch).append_column(_HASH, hashes)
        return known.filter(known[_HASH].is_valid())

    def rounds(self) -> Sequence[KeyedStage]:
        return [BloomLookup(f"{self.name}_filter", self.capacity, self.false_positive_rate)]


class BloomLookup(KeyedStage):
    """Looks up all hashes in one filter, in the order of the input."""

    key = ()
    num_partitions = 1

    def __init__(self, name: str, capacity: int, false_positive_rate: float) -> None:
        super().__init__()
        self.name, self.capacity, self.false_positive_rate = name, capacity, false_positive_rate

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []  # verdicts are no columns of the rows

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        known = GrowingBloomFilter(self.capacity, self.false_positive_rate)
        for table in tables:
            is_repeated = from_numbers(known.add(as_one_array(table[_HASH])))
            dropped = table.select([TASK, ROW]).filter(is_repeated)
            yield dropped.append_column(KEEP, from_numbers(np.zeros(dropped.num_rows, np.bool_)))
