"""A Bloom filter: which texts were there before, in a few bits for each, whatever their length.

It never forgets: what was added is always known. What was not is taken for known with a probability that is chosen
(`false_positive_rate`, when as many texts are in it as it was made for). Gives up who was there: there is no partner
to name. The same texts in the same order give the same bytes on every machine.
"""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pyarrow as pa

from gristmill.core.native import kernels
from gristmill.dedup import reference
from gristmill.dedup.columns import Column, flags, from_numbers
from gristmill.dedup.digest import hash128

_MAGIC = b"GRISTBLM"


class BloomFilter:
    """Which texts were there before, with a stated rate of error."""

    def __init__(self, capacity: int, false_positive_rate: float = 0.001, seed: int = 0) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} is too small: say how many different texts there will be")
        if not 0 < false_positive_rate < 1:
            raise ValueError(f"false_positive_rate={false_positive_rate} is not between 0 and 1")
        self.capacity, self.false_positive_rate, self.seed = capacity, false_positive_rate, seed
        bits = math.ceil(-capacity * math.log(false_positive_rate) / math.log(2) ** 2)
        self.bits = bytearray((bits + 63) // 64 * 8)
        self.probes = max(1, round(len(self.bits) * 8 / capacity * math.log(2)))
        self.added = 0

    def seen(self, column: Column) -> pa.BooleanArray:
        """Whether each text was there before; null was not."""
        return self._look(column, add=False)

    def add(self, column: Column) -> pa.BooleanArray:
        """Add each text, in order, and tell whether it was there before: the second of two equal ones was."""
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
        found = np.zeros(len(hashes), np.bool_)
        found[flags(present)] = known
        return from_numbers(found)

    @property
    def error_rate(self) -> float:
        """How probable it is now that a text that was not there is taken for one that was."""
        filled = int(np.bitwise_count(np.frombuffer(self.bits, np.uint64)).sum()) / (len(self.bits) * 8)
        return float(filled**self.probes)

    def merge(self, other: BloomFilter) -> None:
        """Add all that is in another filter, made with the same arguments."""
        if self._shape() != other._shape():
            raise ValueError(f"filters of {self._shape()} and {other._shape()} cannot be merged: make both alike")
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
        """The filter that `to_bytes` made bytes of."""
        if data[:8] != _MAGIC or len(data) < 12:
            raise ValueError("this is no Bloom filter of gristmill; give the bytes that to_bytes() made")
        size = struct.unpack_from("<I", data, 8)[0]
        head = json.loads(data[12 : 12 + size])
        found = cls(head["capacity"], head["false_positive_rate"], head["seed"])
        bits = data[12 + size :]
        if len(bits) != len(found.bits):
            raise ValueError(f"the Bloom filter is damaged: it has {len(bits)} bytes instead of {len(found.bits)}")
        found.bits, found.added = bytearray(bits), head["added"]
        return found
