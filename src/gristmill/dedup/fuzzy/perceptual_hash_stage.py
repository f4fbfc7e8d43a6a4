"""Deduplication by perceptual hashes: 64 bits of each picture, few of which differ between copies of one.

Each hash is sent by several keys, so that all that differ in a few bits meet, and pairs are verified (`simhash.py`): no
pair within the radius is missed.

What is given up: rows that are alike by way of others are one cluster, so a large radius may link pictures that differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.hash_partitioning import required_column
from gristmill.core.arrow.table_conversion import is_text
from gristmill.core.batch import Batch
from gristmill.core.errors import ColumnError, printable
from gristmill.core.stage import Columns
from gristmill.dedup.clusters.keep_policy import FIRST, Keep, policy
from gristmill.dedup.columns.arrow_numpy import as_one_array
from gristmill.dedup.fuzzy.simhash import HashDistanceStage
from gristmill.io.exchange.exchange import Exchange

MOST = 12


class PerceptualHashDeduplicationStage(HashDistanceStage):
    """Drops each row whose perceptual hash is nearly that of another; of those that are alike, one is kept.

    `hash_field` is a column of 64 bits, as `ImagePerceptualHashStage` makes it: whole numbers, eight bytes, or sixteen
    hexadecimal digits. Alike are rows whose hashes differ in at most `radius` bits, 0 to 12, and those that others
    link. Copies that were resized or compressed again differ in up to about 6 bits, different pictures in 20 to 40.

    `keep` is "first" in the order of the input, the one with the "highest" or "newest" `score_field`, such as width, or
    a `Keep`. `id_field` names the rows in the cluster table, whose similarity is the share of equal bits. Null is
    like no other. Output files are those that there would be without this stage, in the same order.
    """

    def __init__(
        self,
        hash_field: str = "phash",
        radius: int = 6,
        keep: str | Keep | Mapping[str, Any] = FIRST,
        score_field: str | None = None,
        id_field: str | None = None,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
    ) -> None:
        super().__init__()
        if isinstance(radius, bool) or not isinstance(radius, int) or not 0 <= radius <= MOST:
            raise ValueError(f"PerceptualHashDeduplicationStage: radius is {radius!r}, must be 0 to {MOST} bits")
        Exchange(num_partitions=num_partitions, memory_gb=memory_gb)  # a wrong number is an error here
        self.hash_field, self.radius, self.keep, self.score_field = hash_field, radius, keep, score_field
        self.id_field, self.num_partitions, self.memory_gb = id_field, num_partitions, memory_gb
        self._policy = policy("PerceptualHashDeduplicationStage", keep, None, score_field)

    def inputs(self) -> tuple[list[str], Columns]:
        named = [self.hash_field, self._policy.field, self.id_field]
        return ["data"], list(dict.fromkeys(name for name in named if name))

    def hashes(self, batch: Batch) -> pa.Array:
        column = as_one_array(required_column(batch.data, self.hash_field))
        kind = column.type
        if kind == pa.uint64():
            return column
        if pa.types.is_integer(kind):
            return column.cast(pa.int64()).view(pa.uint64())
        if pa.types.is_null(kind):
            return column.cast(pa.uint64())
        if is_text(kind):
            return make_array([_bits(value) for value in column.to_pylist()], pa.uint64())
        if pa.types.is_fixed_size_binary(kind) and kind.byte_width == 8:
            values = (None if value is None else int.from_bytes(value, "big") for value in column.to_pylist())
            return make_array(list(values), pa.uint64())
        raise ColumnError(
            f"stage {self.name!r} needs 64 bits in column {self.hash_field!r}, which holds {printable(kind)}. "
            "Name the column that ImagePerceptualHashStage has made, hash_field=..."
        )


def _bits(text: str | None) -> int | None:
    """The number that hexadecimal digits stand for; another text is set aside with its row."""
    if text is None:
        return None
    if len(text) != 16:
        raise ValueError(f"{text[:40]!r} is no hash of 64 bits, which has 16 hexadecimal digits")
    return int(text, 16)
