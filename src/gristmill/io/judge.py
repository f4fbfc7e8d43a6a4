"""Judge: verdicts on rows become rows that are kept or dropped (`verdicts.py`).

Rows that wait in their file, as lines that would be written just so, need not be read for that: they stay unread until
somebody looks at them, and a writer of JSON lines copies them (`again.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.columns import literal, whole
from gristmill.core.compute import pc
from gristmill.core.decide import Decision
from gristmill.core.errors import ContractError
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.core.table import VERDICT
from gristmill.io.again import Copy, Origin
from gristmill.io.input import BLOCK
from gristmill.io.runs import kind_named

if TYPE_CHECKING:
    from gristmill.io.partitions import Run
    from gristmill.io.verdicts import VerdictStage

TASK, ROW = "__task__", "__row__"
"""What a row is known by while its keys are under way: its batch, and its number there."""

KEEP = "keep"
"""The column of verdicts that says whether the row is kept; without it, it is dropped."""

ID, SIMILARITY = "id", "similarity"
"""Columns of verdicts on duplicates: the name of the row, and how like its partner it is."""

COPY_BYTES = 2 * BLOCK
"""Lines of one file that are copied, as far as nobody looks at them, are one batch up to this size."""


class Copied:
    """Blocks of lines that become one batch, which need not be read to be judged."""

    def __init__(self) -> None:
        self._rows: JudgedCopy | None = None
        self._about: dict[str, Any] = {}

    def fits(self, schema: pa.Schema, about: Mapping[str, Any], nbytes: int) -> bool:
        """Whether a block may be added."""
        rows = self._rows
        if rows is None:
            return True
        same = about == self._about and schema.equals(rows.columns.schema)
        return same and rows.nbytes + nbytes <= COPY_BYTES

    def add(
        self, columns: pa.Table, about: dict[str, Any], origin: Origin, run: Run, verdicts: pa.Table | None
    ) -> None:
        self._rows = self._rows or JudgedCopy(columns)
        self._about = about
        self._rows.add(origin, run.stop, run.nbytes, lambda table: attached(table, verdicts))
        self._rows.keep.append(verdict_column(run.stop, verdicts))
        self._rows.verdicts.append((run.stop, verdicts))

    def batches(self) -> Iterator[Batch]:
        if self._rows is not None:
            about = dict(self._about)
            yield kind_named(about.pop("kind"))(self._rows.columns, **about).read_later(self._rows)


class JudgedCopy(Copy):
    """Lines on which there is a verdict each."""

    def __init__(self, columns: pa.Table) -> None:
        super().__init__(columns)
        self.keep: list[pa.BooleanArray] = []
        self.verdicts: list[tuple[int, pa.Table | None]] = []
        """For each block how many rows it has, and what was found out about them."""

    def scores(self, name: str) -> pa.Array:
        """What a column of the verdicts says of each row."""
        return pa.concat_arrays([score_column(count, verdicts, name) for count, verdicts in self.verdicts])


def attached(table: pa.Table, verdicts: pa.Table | None, adds: Sequence[str] = ()) -> pa.Table:
    """The rows, with the verdict on each and what else there is to say. Columns of the user's are not ours to change:
    what has the name of one of them is told under another (`told_as`), unless it is to be added to the rows."""
    count, own = table.num_rows, table.column_names
    table = table.append_column(VERDICT, verdict_column(count, verdicts))
    if verdicts is None or not verdicts.num_rows:
        return table
    verdicts, named = _by_row(count, verdicts)
    for name in verdicts.column_names:
        if name in (TASK, ROW, KEEP) or (name == ID and name in own):  # the row has a name already
            continue
        values = verdicts.column(name).combine_chunks()
        told = pc.replace_with_mask(pa.nulls(count, values.type), named, values)
        if name in own and name in adds:
            table = table.set_column(own.index(name), name, told)
        else:
            table = table.append_column(told_as(name, own), told)
    return table


def told_as(name: str, own: Sequence[str]) -> str:
    """What a column of verdicts is called beside the columns of the rows."""
    while name in own:
        name = f"rejected_{name}"
    return name


def verdict_column(count: int, verdicts: pa.Table | None) -> pa.BooleanArray:
    """Whether each row is kept."""
    everywhere = pa.repeat(literal(True, pa.bool_()), count)
    if verdicts is None or not verdicts.num_rows:
        return everywhere
    verdicts, named = _by_row(count, verdicts)
    drops = pa.repeat(literal(False, pa.bool_()), verdicts.num_rows)
    keep = verdicts.column(KEEP).combine_chunks() if KEEP in verdicts.column_names else drops
    return pc.replace_with_mask(everywhere, named, keep)


def score_column(count: int, verdicts: pa.Table | None, name: str) -> pa.Array:
    """A number of the verdicts for each row; null where there is none."""
    nothing = pa.nulls(count, pa.float64())
    if verdicts is None or not verdicts.num_rows or name not in verdicts.column_names:
        return nothing
    verdicts, named = _by_row(count, verdicts)
    return pc.replace_with_mask(nothing, named, verdicts.column(name).combine_chunks().cast(pa.float64()))


def _by_row(count: int, verdicts: pa.Table) -> tuple[pa.Table, pa.BooleanArray]:
    """Verdicts in the order of rows, and which rows there is one on."""
    verdicts = verdicts.take(pc.sort_indices(verdicts.column(ROW)))
    numbers = pc.indices_nonzero(pa.repeat(literal(True, pa.bool_()), count)).cast(pa.int64())
    named = pc.is_in(numbers, value_set=verdicts.column(ROW).combine_chunks())
    if named.true_count != verdicts.num_rows:
        raise ContractError(f"{verdicts.num_rows} verdicts name {named.true_count} rows: give at most one for each")
    return verdicts, named


class Judge(ProcessingStage[Batch, Batch]):
    """Drops the rows whose verdict says so."""

    takes_empty = True
    together: ClassVar[bool] = True
    """Verdicts depend on other rows: from scores it cannot be told what other parameters would do."""

    def __init__(self, stage: VerdictStage) -> None:
        super().__init__()
        self.stage, self.name = stage, stage.name

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self.stage.adds)

    def process(self, task: Batch) -> Batch:
        return self.apply(task, self.decide(task))

    def decide(self, batch: Batch) -> Decision:
        rows, names = batch.unread, self.stage.thresholds()
        if isinstance(rows, JudgedCopy):
            keep, scores = pa.concat_arrays(rows.keep), {name: rows.scores(name) for name in names}
        else:
            keep, scores = whole(batch.data.column(VERDICT)), {name: self._told(batch.data, name) for name in names}
        nothing = literal(None, pa.float64())
        return Decision(keep, {name: pc.if_else(keep, nothing, column) for name, column in scores.items()})

    def _told(self, table: pa.Table, name: str) -> pa.Array:
        """What verdicts say of each row."""
        names = table.column_names
        column = name if name in self.stage.adds else told_as(name, names[: names.index(VERDICT)])
        if column not in names:  # there is no verdict on any row
            return pa.nulls(table.num_rows, pa.float64())
        return whole(table.column(column)).cast(pa.float64())

    def thresholds(self) -> dict[str, str]:
        return self.stage.thresholds()

    def apply(self, batch: Batch, decision: Decision) -> Batch:
        kept = batch.keep(decision.keep)
        if isinstance(kept.unread, JudgedCopy):
            return kept.read_later(kept.unread.as_read())
        table = kept.data
        first = table.column_names.index(VERDICT)
        extra = [name for name in table.column_names[first:] if name not in self.stage.adds]
        return kept.with_data(table.drop_columns(extra))
