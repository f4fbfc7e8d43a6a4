"""Batches: tasks whose rows are one Arrow table, plus objects that belong to the rows.

The objects (decoded frames, waveforms) live in memory only and never reach disk. Every row operation
acts on both, so they cannot come apart.

Rows that are dropped are only marked, and the others copied when somebody looks at `data`: a chain of filters
copies its text once, not once per filter. In the same way rows may be `UnreadRows`, until somebody looks at them.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import (
    conform_to_schema,
    is_json,
    rows_to_table,
    table_to_rows,
    unify_schemas,
    without_views,
)
from gristmill.core.errors import ContractError, require
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_DECODED = ("pixels", "headers")

ORIGIN = "_origin"
"""What a reader has noted on a batch: that is true as long as nothing has happened to its rows (`io/read/reread.py`)."""


_SEEN = "_seen"
_SIZE = "_size"
"""A table and its bytes, which Arrow counts anew each time that it is asked for them."""


class UnreadRows(Protocol):
    """Rows that are known, and not yet in memory."""

    @property
    def num_rows(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def read(self) -> pa.Table: ...


@fast_dataclass
class Batch(Task[pa.Table]):
    """Rows in an Arrow table. Also built from a pandas or polars frame, a list of dicts or a dict of columns."""

    data: pa.Table
    objects: dict[str, list[Any]] = field(default_factory=dict, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        self.data = as_table(self.data)
        for name, values in self.objects.items():
            if len(values) != self.data.num_rows:
                raise ContractError(
                    f"objects[{name!r}] has {len(values)} entries for {self.data.num_rows} rows: "
                    "use keep, take or slice, which act on the rows and their objects together"
                )

    def __getattr__(self, name: str) -> Any:
        if name != "data" or "_marked" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        table, rows = self.marked
        self.__dict__.pop("_marked", None)
        self.__dict__.pop(_SIZE, None)
        self.data = table if rows is None else table.filter(rows)
        return self.data

    def __getstate__(self) -> dict[str, Any]:
        assert self.data is not None  # a pickle holds the rows that are left, and nothing else
        passing = ("_memo", "_marked", _SEEN, _SIZE, ORIGIN)
        return {name: value for name, value in self.__dict__.items() if name not in passing}

    @property
    def marked(self) -> tuple[pa.Table, pa.BooleanArray | None]:
        """The rows where they lie: a table, and which of its rows are in the batch (None: all)."""
        if self.unread:
            self.__dict__["_marked"] = (self.unread.read(), self._where[1])
        return self._where

    @property
    def _where(self) -> tuple[Any, pa.BooleanArray | None]:
        """The same, without reading what is `unread`."""
        return (self.data, None) if "data" in self.__dict__ else self.__dict__["_marked"]

    @property
    def left(self) -> pa.BooleanArray | None:
        """Which rows are in the batch of those that lie there (None: all)."""
        return self._where[1]

    @property
    def unread(self) -> Any:
        """What the rows are to be read from, if nobody has looked at them yet."""
        rows = self._where[0]
        return None if isinstance(rows, pa.Table) else rows

    @property
    def seen(self) -> Self:
        """The batch for those who only look at it: rows that are `unread` are read there, and stay unread here."""
        if not self.unread:
            return self
        if _SEEN not in self.__dict__:
            self.__dict__[_SEEN] = self._marking(self.unread.read(), self.left, {})
        return self.__dict__[_SEEN]  # type: ignore[no-any-return]

    def read_later(self, rows: UnreadRows) -> Self:
        """The same batch, with rows that are read when somebody looks at them; those that were marked stay so."""
        return self._marking(rows, self._where[1], {})

    @property
    def memo(self) -> dict[str, Any]:
        """What is known of columns of the marked table, by name. Goes with the rows that are kept; never pickled."""
        table, _ = self.marked
        known, memo = self.__dict__.get("_memo", (None, {}))
        if known is not table:  # a user may have given the batch another one
            memo = {}
        self.__dict__["_memo"] = table, memo
        return memo  # type: ignore[no-any-return]

    @property
    def num_items(self) -> int:
        table, rows = self._where
        return int(table.num_rows if rows is None else rows.true_count)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows; an estimate while others are only marked as dropped."""
        table, rows = self._where
        known, size = self.__dict__.get(_SIZE, (None, 0))
        if known is not table:
            size = int(table.nbytes)
            self.__dict__[_SIZE] = table, size
        return int(size if rows is None else size * rows.true_count // len(rows))

    def get_columns(self) -> list[str]:
        return list(self.marked[0].column_names)

    def to_pyarrow(self) -> pa.Table:
        return self.data

    def to_pandas(self) -> Any:
        """A pandas frame; JSON columns become the objects that they hold."""
        require("pandas", "pandas", "to_pandas()")
        frame = self.data.to_pandas()
        for column in self.data.schema:
            if is_json(column.type):
                frame[column.name] = [row[column.name] for row in table_to_rows(self.data.select([column.name]))]
        return frame

    def to_polars(self) -> Any:
        """A polars frame; JSON columns become strings of JSON text."""
        polars = require("polars", "polars", "to_polars()")
        plain = [column.cast(pa.string()) if is_json(column.type) else column for column in self.data.columns]
        return polars.from_arrow(pa.table(plain, names=self.data.column_names))

    def to_rows(self) -> list[dict[str, Any]]:
        return table_to_rows(self.data)

    def with_data(self, data: Any) -> Self:
        """The same batch with other rows, which must line up with the objects, if there are any."""
        return replace(self, data=data)._as(self)

    def with_column(self, name: str, column: pa.Array) -> Self:
        """The same rows with a column added, or replaced where it stands."""
        table, rows = self.marked
        if rows is not None:
            column = scatter_to_rows(column, rows)
        known = {field: value for field, value in self.memo.items() if field != name}
        sized, size = self.__dict__.get(_SIZE, (None, 0))
        at = table.column_names.index(name) if name in table.column_names else table.num_columns
        there = at < table.num_columns
        changed = table.set_column(at, name, column) if there else table.append_column(name, column)
        other = self._marking(changed, rows, known)
        if sized is table:
            less = table.column(at).nbytes if there else 0
            other.__dict__[_SIZE] = changed, size - less + changed.column(at).nbytes
        return other

    def keep(self, mask: pa.Array | pa.ChunkedArray) -> Self:
        """Only the rows where `mask` is true."""
        if self.objects:
            flags = mask.to_pylist()
            return self.take([index for index, flag in enumerate(flags) if flag])
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        if mask.null_count:
            mask = mask.fill_null(literal(False, pa.bool_()))
        table, rows = self._where
        if mask.true_count < len(mask):
            rows = mask if rows is None else pc.replace_with_mask(rows, rows, mask)
        return self._marking(table, rows, {} if self.unread else dict(self.memo))

    def _marking(self, table: Any, rows: pa.BooleanArray | None, memo: dict[str, Any]) -> Self:
        other = object.__new__(type(self))
        rest = {"data", "_marked", _SEEN, ORIGIN}
        if self.__dict__.get(_SIZE, (None,))[0] is not table:
            rest.add(_SIZE)
        own = {name: value for name, value in self.__dict__.items() if name not in rest}
        where = {"data": table} if rows is None and isinstance(table, pa.Table) else {"_marked": (table, rows)}
        other.__dict__.update(own, _memo=(table, memo), **where)
        return other

    def take(self, indices: Sequence[int]) -> Self:
        rows = self.data.take(make_array(indices, pa.int64()))
        objects = {name: [values[index] for index in indices] for name, values in self.objects.items()}
        return replace(self, data=rows, objects=objects)._as(self)

    def slice(self, offset: int, length: int | None = None) -> Self:
        end = None if length is None else offset + length
        objects = {name: values[offset:end] for name, values in self.objects.items()}
        return replace(self, data=self.data.slice(offset, length), objects=objects)._as(self)

    def pieces(self, rows: int) -> Iterator[Self]:
        """The batch in pieces of at most `rows` rows."""
        for offset in range(0, self.num_items, rows):
            yield self.slice(offset, rows)

    @classmethod
    def concat(cls, batches: Sequence[Self]) -> Self:
        """The rows of several batches, in order; all must have the same objects."""
        if not batches:
            raise ValueError(f"{cls.__name__}.concat needs at least one batch")
        first = batches[0]
        schema = unify_schemas([batch.data.schema for batch in batches])
        data = pa.concat_tables([conform_to_schema(batch.data, schema) for batch in batches])
        objects = {name: [item for batch in batches for item in batch.objects[name]] for name in first.objects}
        return replace(first, data=data, objects=objects)._as(first)

    def _as(self, other: Self) -> Self:
        self.lineage = other.lineage
        return self


class DocumentBatch(Batch):
    """Text documents, one per row."""


class ImageBatch(Batch):
    """Images, one per row, as they were encoded. Decoded pixels are objects of the rows, and never reach disk.

    Nor do they travel to other processes when the encoded images do: they are made again (`image/decode.py`).
    """

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "image" in state["data"].column_names:
            state["objects"] = {name: values for name, values in self.objects.items() if not name.startswith(_DECODED)}
        return state


def scatter_to_rows(values: pa.Array, rows: pa.BooleanArray) -> pa.Array:
    """One value for each row: those of the rows that are true, each in its row; null in the others."""
    if len(values) == len(rows):
        return values
    positions = pc.subtract(pc.cumulative_sum(rows.cast(pa.int64())), literal(1, pa.int64()))
    return values.take(pc.if_else(rows, positions, literal(None, pa.int64())))


def as_table(data: Any) -> pa.Table:
    """An Arrow table from what users have: a table, a record batch, a frame, a list of dicts, a dict of columns."""
    if isinstance(data, pa.Table):
        return without_views(data)
    if isinstance(data, pa.RecordBatch):
        return without_views(pa.Table.from_batches([data]))
    if isinstance(data, dict):
        return pa.table(data)
    if isinstance(data, list):
        return rows_to_table(data)
    if hasattr(data, "to_arrow"):
        return without_views(data.to_arrow())
    if type(data).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None)
    raise ContractError(
        f"rows must be an Arrow table, a pandas or polars frame, a list of dicts or a dict of columns, "
        f"not {type(data).__name__}"
    )
