"""Batches: tasks whose rows are one Arrow table, plus Python objects that belong to the rows.

The objects (decoded frames, waveforms) live in memory only and never reach disk. Every row operation acts on both, so
they stay aligned.

Two things are lazy, to save copies. Dropped rows are only marked, and the others copied when `data` is read: a chain of
filters copies its text once, not once per filter. And rows may be `UnreadRows`, which are read from their file when
`data` is. The functions at the end of this module look at the rows as they are stored; they are for the framework.

What is given up: `nbytes` is an estimate while dropped rows are still stored.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

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
    from collections.abc import Mapping, Sequence

SOURCE_FILE = "file"
"""Key in `Batch.metadata`: the file that the rows were read from, under the name that users know. Readers set it;
rejected rows, scores and quarantine name it together with the position of a row in that file."""

# Entries of a batch's __dict__ that are not fields. They are looked up there, and not as attributes, because `data` is
# missing from it while rows are lazy, and a missing attribute would make them be read.
_STORED = "_lazy_rows"
"""A table or UnreadRows, and a mask of the rows that are left, in place of `data`."""
_CACHE = "_cache"
_READ_COPY = "_read_copy"
_SIZE = "_size"
"""A table and its bytes: Arrow counts them anew with each call."""
_ORIGIN = "_origin"


class UnreadRows(Protocol):
    """Rows whose number and size are known and that are not yet in memory."""

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

    encoded_column: ClassVar[str | None] = None
    """The column with the bytes that decoded objects are made of."""

    decoded_objects: ClassVar[tuple[str, ...]] = ()
    """How the names of `objects` begin that are decoded from `encoded_column`. They are not sent to other processes as
    long as that column is: they are several times as large, and the receiver can decode again."""

    main_column: ClassVar[str | None] = None
    """The column of text whose length is shown in reports and recorded with scores, unless a stage names another."""

    category_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """By what reports divide rows, such as their language, each with the columns that may hold it."""

    id_columns: ClassVar[tuple[str, ...]] = ("id", "doc_id")
    """The columns that rows may have their ids in, the usual one first. Recorded with scores."""

    part_column: ClassVar[str | None] = None
    """The column that names the rows which a stage has made of one row, as clips of a film; each name occurs once."""

    count_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Whole numbers that are recorded with scores, such as of tokens, each with the columns that may hold it."""

    def __post_init__(self) -> None:
        self.data = as_table(self.data)
        self._check_objects()

    def _check_objects(self) -> None:
        for name, values in self.objects.items():
            if len(values) != self.data.num_rows:
                raise ContractError(
                    f"objects[{name!r}] has {len(values)} entries for {self.data.num_rows} rows: "
                    "use keep, take or slice, which act on the rows and their objects together"
                )

    def __setattr__(self, name: str, value: Any) -> None:
        """Rows that are assigned to `data` become a table, as in the constructor."""
        if name == "data" and "objects" in self.__dict__:  # the constructor sets `data` before it
            value = as_table(value)
            self.__dict__.update(data=value)
            self.__dict__.pop(_STORED, None)
            self.__dict__.pop(_ORIGIN, None)
            self._check_objects()
            return
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name != "data" or _STORED not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        table, mask = stored_rows(self)
        self.__dict__.pop(_STORED, None)
        self.__dict__.pop(_SIZE, None)
        rows = table if mask is None else table.filter(mask)
        self.__dict__["data"] = rows
        return rows

    def __getstate__(self) -> dict[str, Any]:
        assert self.data is not None  # reads lazy rows: a pickle holds the rows that are left, and nothing else
        local = (_CACHE, _STORED, _READ_COPY, _SIZE, _ORIGIN)
        state = {name: value for name, value in self.__dict__.items() if name not in local}
        if self.decoded_objects and self.encoded_column in self.data.column_names:
            kept = {name: values for name, values in self.objects.items() if not name.startswith(self.decoded_objects)}
            state["objects"] = kept
        return state

    def _stored(self) -> tuple[Any, pa.BooleanArray | None]:
        """The rows as they are stored, a table or UnreadRows, and the mask of those that are left (None: all)."""
        return (self.data, None) if "data" in self.__dict__ else self.__dict__[_STORED]

    @property
    def num_items(self) -> int:
        table, mask = self._stored()
        return int(table.num_rows if mask is None else mask.true_count)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows; an estimate while dropped rows are only marked."""
        table, mask = self._stored()
        sized, size = self.__dict__.get(_SIZE, (None, 0))
        if sized is not table:
            size = int(table.nbytes)
            self.__dict__[_SIZE] = table, size
        return int(size if mask is None else size * mask.true_count // len(mask))

    def get_columns(self) -> list[str]:
        return list(stored_rows(self)[0].column_names)

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
        return replace(self, data=data)._with_lineage(self)

    def with_column(self, name: str, column: pa.Array) -> Self:
        """The same rows with a column added, or replaced in its position."""
        table, mask = stored_rows(self)
        if mask is not None:
            column = scatter_to_rows(column, mask)
        cache = {field: value for field, value in column_cache(self).items() if field != name}
        sized, size = self.__dict__.get(_SIZE, (None, 0))
        at = table.column_names.index(name) if name in table.column_names else table.num_columns
        replaces = at < table.num_columns
        changed = table.set_column(at, name, column) if replaces else table.append_column(name, column)
        other = self._with_stored(changed, mask, cache)
        if sized is table:
            removed = table.column(at).nbytes if replaces else 0
            other.__dict__[_SIZE] = changed, size - removed + changed.column(at).nbytes
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
        table, left = self._stored()
        if mask.true_count < len(mask):
            left = mask if left is None else pc.replace_with_mask(left, left, mask)
        return self._with_stored(table, left, {} if unread_rows(self) else dict(column_cache(self)))

    def _with_stored(self, table: Any, mask: pa.BooleanArray | None, cache: dict[str, Any]) -> Self:
        """A copy with other stored rows. Faster than `replace`, which checks and converts them."""
        other = object.__new__(type(self))
        left_out = {"data", _STORED, _READ_COPY, _ORIGIN}
        if self.__dict__.get(_SIZE, (None,))[0] is not table:
            left_out.add(_SIZE)
        own = {name: value for name, value in self.__dict__.items() if name not in left_out}
        stored = {"data": table} if mask is None and isinstance(table, pa.Table) else {_STORED: (table, mask)}
        other.__dict__.update(own, **{_CACHE: (table, cache)}, **stored)
        return other

    def take(self, indices: Sequence[int]) -> Self:
        rows = self.data.take(make_array(indices, pa.int64()))
        objects = {name: [values[index] for index in indices] for name, values in self.objects.items()}
        return replace(self, data=rows, objects=objects)._with_lineage(self)

    def slice(self, offset: int, length: int | None = None) -> Self:
        end = None if length is None else offset + length
        objects = {name: values[offset:end] for name, values in self.objects.items()}
        return replace(self, data=self.data.slice(offset, length), objects=objects)._with_lineage(self)

    @classmethod
    def concat(cls, batches: Sequence[Self]) -> Self:
        """The rows of several batches, in order; all must have the same objects."""
        if not batches:
            raise ValueError(f"{cls.__name__}.concat needs at least one batch")
        first = batches[0]
        schema = unify_schemas([batch.data.schema for batch in batches])
        data = pa.concat_tables([conform_to_schema(batch.data, schema) for batch in batches])
        objects = {name: [item for batch in batches for item in batch.objects[name]] for name in first.objects}
        return replace(first, data=data, objects=objects)._with_lineage(first)

    def _with_lineage(self, other: Self) -> Self:
        self.lineage = other.lineage
        return self


B = TypeVar("B", bound=Batch)

# -- rows as they are stored, for the framework ------------------------------------------------------------------


def stored_rows(batch: Batch) -> tuple[pa.Table, pa.BooleanArray | None]:
    """A table, and the mask of its rows that are in the batch (None: all). Unread rows are read."""
    if unread := unread_rows(batch):
        batch.__dict__[_STORED] = (unread.read(), row_mask(batch))
    return batch._stored()


def row_mask(batch: Batch) -> pa.BooleanArray | None:
    """Which of the stored rows are in the batch (None: all)."""
    return batch._stored()[1]


def unread_rows(batch: Batch) -> Any:
    """The UnreadRows of the batch; None if its rows are in memory."""
    rows = batch._stored()[0]
    return None if isinstance(rows, pa.Table) else rows


def with_unread_rows(batch: B, rows: UnreadRows) -> B:
    """The batch with rows that are read when they are needed. Rows that were dropped stay dropped."""
    return batch._with_stored(rows, row_mask(batch), {})


def all_stored_rows(batch: B, cache: dict[str, Any]) -> B:
    """A batch of all stored rows, also those that were dropped and are not yet removed."""
    return batch._with_stored(stored_rows(batch)[0], None, cache)


def read_copy(batch: B) -> B:
    """The batch for looking at: unread rows are read in the copy, and stay unread in the batch itself."""
    unread = unread_rows(batch)
    if not unread:
        return batch
    if _READ_COPY not in batch.__dict__:
        batch.__dict__[_READ_COPY] = batch._with_stored(unread.read(), row_mask(batch), {})
    return batch.__dict__[_READ_COPY]  # type: ignore[no-any-return]


def column_cache(batch: Batch) -> dict[str, Any]:
    """What stages have computed of the stored columns, by the name of the column. Batches that `keep` and
    `with_column` give share it, except for a replaced column. It is never pickled."""
    table, _ = stored_rows(batch)
    cached, cache = batch.__dict__.get(_CACHE, (None, {}))
    if cached is not table:  # a user may have set `data`
        cache = {}
    batch.__dict__[_CACHE] = table, cache
    return cache  # type: ignore[no-any-return]


def set_origin(batch: Batch, origin: Any) -> None:
    """Note where the rows can be read from again. It is true of these rows alone, and dropped with any change."""
    batch.__dict__[_ORIGIN] = origin


def get_origin(batch: Batch) -> Any:
    """What `set_origin` has noted; None if nothing."""
    return batch.__dict__.get(_ORIGIN)


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
