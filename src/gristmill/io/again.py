"""Reading again: a batch that is as its reader gave it need not be kept, since the file is still there.

A reader notes on each batch where it comes from. The note is lost as soon as anything happens to the rows, or the batch
goes to another process. A stage that would put the batch into a file keeps the note instead (`verdicts.py`), and the
rows are read a second time, with the same cuts.

What is given up: files that change while they are in use. That is found out, and stops the run. Compressed files, and
files that need storage options, which must not be written down, are kept the long way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from gristmill.core.batch import ORIGIN, Batch
from gristmill.core.errors import InputError
from gristmill.core.task import FileSlice
from gristmill.io.input import Input, file_system, ignore

if TYPE_CHECKING:
    import pyarrow as pa

JSONL, PARQUET = "jsonl", "parquet"


@dataclass(frozen=True)
class Origin:
    """Where a batch was read from: the how manieth block of a part of a file, cut to blocks of a size."""

    format: str
    part: FileSlice
    blocksize: int
    fields: Sequence[str] | None = None
    options: Mapping[str, Any] | None = None
    block: int = 0
    stamp: str = ""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Origin:
        part = dict(told["part"])
        groups = part.pop("row_groups")
        return cls(**{**told, "part": FileSlice(**part, row_groups=None if groups is None else tuple(groups))})

    def told(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def first(self) -> Origin:
        """The first block of the same part."""
        return replace(self, block=0)

    def tables(self) -> Iterator[pa.Table]:
        """The blocks of the part. Records that cannot be read were told of when they were read first."""
        source = Input(self.part, {}, self.blocksize, on_bad=ignore)
        if stamp_of(self.part.path) != self.stamp:
            raise InputError(
                f"{self.part.path} has changed since this run has read it for the first time: start the run again"
            )
        if self.format == PARQUET:
            from gristmill.io.parquet import read_parquet

            return read_parquet(source, self.fields)
        from gristmill.io.jsonl import read_jsonl

        return read_jsonl(source, self.fields, **(self.options or {}))


def stamp_of(path: str) -> str:
    """What is known of a file that changes with its content."""
    system, inner = file_system(path, {})
    try:
        info = system.info(inner)
    except FileNotFoundError as error:
        raise InputError(f"{path} has gone since this run has read it for the first time: put it back") from error
    marks = (info.get(key) for key in ("size", "ETag", "etag", "mtime", "LastModified", "created"))
    return " ".join(str(mark) for mark in marks if mark is not None)


def note_origin(batch: Batch, origin: Origin) -> None:
    """Note where a batch was read from."""
    batch.__dict__[ORIGIN] = (batch.data, origin)


def origin_of(batch: Batch) -> Origin | None:
    """Where a batch can be read from again as it is; None if nothing is known of it."""
    table: pa.Table | None
    origin: Origin
    table, origin = batch.__dict__.get(ORIGIN, (None, None))
    if table is None or batch.marked[0] is not table or batch.marked[1] is not None or batch.objects:
        return None
    return replace(origin, stamp=stamp_of(origin.part.path))


class Again:
    """Reads blocks again, one after the other; those of one part in one go."""

    def __init__(self) -> None:
        self._part: Origin | None = None
        self._tables: Iterator[pa.Table] = iter(())
        self._next = 0

    def table(self, origin: Origin, rows: int) -> pa.Table:
        if self._part != origin.first or self._next > origin.block:
            self._part, self._tables, self._next = origin.first, origin.tables(), 0
        found = None
        while self._next <= origin.block:
            found = next(self._tables, None)
            self._next += 1
        if found is None or found.num_rows != rows:
            raise InputError(f"{origin.part.path} has other rows than when this run has read it first: start it again")
        return found
