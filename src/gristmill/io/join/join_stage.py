"""Join: add columns from the rows of other files that have the same key, or filter by them.

    small other side    each worker reads it once and looks up keys (`broadcast_join.py`): rows keep their files and
                        their order, and no exchange is needed
    any other side      both sides go through an exchange by key, and their partitions are merged, sorted by key
                        (`partitioned_join.py`): a key may have any number of rows on either side

The size of the files decides between the two before the run, never the number of workers. Null and NaN match nothing,
as in SQL.

What is given up: joins by other conditions than equality, and right and full joins (swap the two sides instead).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar

from gristmill.core.batch import Batch
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.io.exchange.exchange import Exchange, sort_memory_bytes
from gristmill.io.join.broadcast_join import BroadcastJoin
from gristmill.io.join.key_matching import INNER, JOIN_TYPES, JOINS_ADDING_COLUMNS, DropUnmatched
from gristmill.io.join.other_side import OtherSide, OtherSideReader, other_side_reader
from gristmill.io.join.partitioned_join import partitioned_join_stages

BROADCAST_BYTES = 32 * 2**20
"""An other side up to this size is broadcast by default."""

Path = str | PathLike[str]


class Join(CompositeStage[Batch, Batch]):
    """Joins rows with the rows of other files that have the same key.

    `other` is a path, several paths, or a reader: paths for JSON lines and Parquet, a reader for other formats. `on` is
    the key column, or several; {"domain": "host"} if it has another name in the other side. `how` is "inner": a row for
    each matching pair; "left": also rows without a match; "semi": rows that have a match, unchanged; or "anti": rows
    that have none. `columns` are taken from the other side (None: all but the key), with `suffix` appended to their
    names; {"name": "owner"} renames. A name that rows already have is an error.

    `broadcast` says whether each worker reads the whole other side (None: if its files are small). If not, rows come
    out by key, in `num_partitions` output files, and partitions that do not fit into `memory_gb` are sorted on disk.
    """

    folds: ClassVar[bool] = True

    def __init__(
        self,
        other: Path | Sequence[Path] | CompositeStage[Any, Any],
        on: str | Sequence[str] | Mapping[str, str],
        how: str = INNER,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        suffix: str = "",
        *,
        broadcast: bool | None = None,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.other, self.on, self.how, self.columns, self.suffix = other, on, how, columns, suffix
        self.broadcast, self.num_partitions, self.memory_gb = broadcast, num_partitions, memory_gb
        self.storage_options = storage_options
        if how not in JOIN_TYPES:
            raise ValueError(f"Join: how is {how!r}, must be one of {', '.join(JOIN_TYPES)}")
        if how not in JOINS_ADDING_COLUMNS and (columns is not None or suffix):
            raise ValueError(
                f"Join: how={how!r} adds no columns: leave out columns and suffix, or use 'inner' or 'left'"
            )
        if isinstance(columns, str):
            raise TypeError(f"Join: columns is the text {columns!r}, must be a list of names: [{columns!r}]")
        self._keys = _key_columns(on)
        if isinstance(other, ProcessingStage):
            self._described()  # raises unless it is a reader of files
        Exchange(num_partitions=num_partitions)  # raises for an invalid number
        sort_memory_bytes(memory_gb)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self._keys)

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], self._described().added_names()

    def _described(self) -> OtherSide:
        reader: OtherSideReader = other_side_reader(self.name, self.other, self.storage_options)
        return OtherSide(self.name, reader, self._keys, self.columns, self.suffix, self.how in JOINS_ADDING_COLUMNS)

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        other = self._described()
        small = other.reader.bytes() <= BROADCAST_BYTES if self.broadcast is None else self.broadcast
        if small:
            stages: list[ProcessingStage[Any, Any]] = [BroadcastJoin(other, self.how, f"{self.name}_look_up")]
        else:
            stages = partitioned_join_stages(self.name, other, self.how, self.num_partitions, self.memory_gb)
        return [*stages, DropUnmatched(other, self.name)]


def _key_columns(on: Any) -> dict[str, str]:
    """The key columns, and their names in the other side."""
    named = dict(on) if isinstance(on, Mapping) else {name: name for name in ([on] if isinstance(on, str) else on)}
    if not named or not all(isinstance(name, str) and name for pair in named.items() for name in pair):
        raise ValueError(f"Join: on is {on!r}, must be the name of a column, or several")
    return named
