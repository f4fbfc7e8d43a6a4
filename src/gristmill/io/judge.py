"""Judge: verdicts on rows become rows that are kept or dropped (`verdicts.py`).

Rows that wait in their file, as lines that would be written just so, need not be read for that: they stay unread until
somebody looks at them, and a writer of JSON lines copies them (`again.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.columns import literal
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

    def batches(self) -> Iterator[Batch]:
        if self._rows is not None:
            about = dict(self._about)
            yield kind_named(about.pop("kind"))(self._rows.columns, **about).read_later(self._rows)


class JudgedCopy(Copy):
    """Lines on which there is a verdict each."""

    def __init__(self, columns: pa.Table) -> None:
        super().__init__(columns)
        self.keep: list[pa.BooleanArray] = []


def attached(table: pa.Table, verdicts: pa.Table | None, adds: Sequence[str] = ()) -> pa.Table:
    """The rows, with the verdict on each and what else there is to say."""
    count = table.num_rows
    table = table.append_column(VERDICT, verdict_column(count, verdicts))
    if verdicts is None or not verdicts.num_rows:
        return table
    verdicts, named = _by_row(count, verdicts)
    for name in verdicts.column_names:
        if name in (TASK, ROW, KEEP):
            continue
        values = verdicts.column(name).combine_chunks()
        told = pc.replace_with_mask(pa.nulls(count, values.type), named, values)
        if name not in table.column_names:
            table = table.append_column(name, told)
        elif name in adds:  # other columns of the user's are not ours to change
            table = table.set_column(table.column_names.index(name), name, told)
    return table


def verdict_column(count: int, verdicts: pa.Table | None) -> pa.BooleanArray:
    """Whether each row is kept."""
    everywhere = pa.repeat(literal(True, pa.bool_()), count)
    if verdicts is None or not verdicts.num_rows:
        return everywhere
    verdicts, named = _by_row(count, verdicts)
    drops = pa.repeat(literal(False, pa.bool_()), verdicts.num_rows)
    keep = verdicts.column(KEEP).combine_chunks() if KEEP in verdicts.column_names else drops
    return pc.replace_with_mask(everywhere, named, keep)


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

    def __init__(self, stage: VerdictStage) -> None:
        super().__init__()
        self.stage, self.name = stage, stage.name

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self.stage.adds)

    def process(self, task: Batch) -> Batch:
        return self.apply(task, self.decide(task))

    def decide(self, batch: Batch) -> Decision:
        rows = batch.unread
        keep = (
            pa.concat_arrays(rows.keep) if isinstance(rows, JudgedCopy) else batch.data.column(VERDICT).combine_chunks()
        )
        return Decision(keep)

    def apply(self, batch: Batch, decision: Decision) -> Batch:
        kept = batch.keep(decision.keep)
        if isinstance(kept.unread, JudgedCopy):
            return kept.read_later(kept.unread.as_read())
        table = kept.data
        first = table.column_names.index(VERDICT)
        extra = [name for name in table.column_names[first:] if name not in self.stage.adds]
        return kept.with_data(table.drop_columns(extra))
