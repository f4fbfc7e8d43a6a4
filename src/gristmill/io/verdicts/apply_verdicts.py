"""Judge: verdicts on rows become rows that are kept or dropped (`verdict_stage.py`).

Rows that wait in their file, as lines that would be written just so, need not be read for that: they stay unread until
somebody looks at them, and a writer of JSON lines copies them (`reread.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import VERDICT
from gristmill.core.batch import Batch, unread_rows, with_unread_rows
from gristmill.core.decision import Decision
from gristmill.core.errors import ContractError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.io.exchange.shuffle_files import batch_class_named
from gristmill.io.read.reread import BlockOrigin, UnreadLines
from gristmill.io.storage.file_input import DEFAULT_BLOCK_BYTES

if TYPE_CHECKING:
    from gristmill.io.exchange.partitions import ShuffleBlockSlice
    from gristmill.io.verdicts.verdict_stage import VerdictStage

TASK, ROW = "__task__", "__row__"
"""What a row is known by while its keys are under way: its batch, and its number there."""

KEEP = "keep"
"""The column of verdicts that says whether the row is kept; without it, it is dropped."""

SIMILARITY = "similarity"
"""The column of verdicts on duplicates that says how like its partner a row is."""

_TRUE, _NO_SCORE = literal(True, pa.bool_()), literal(None, pa.float64())

UNREAD_BATCH_BYTES = 2 * DEFAULT_BLOCK_BYTES
"""Lines of one file that are copied, as far as nobody looks at them, are one batch up to this size."""


class UnreadBatchBuilder:
    """Blocks of lines that become one batch, which need not be read to be judged."""

    def __init__(self) -> None:
        self._rows: UnreadLinesWithVerdicts | None = None
        self._about: dict[str, Any] = {}

    def can_add(self, schema: pa.Schema, about: Mapping[str, Any], nbytes: int) -> bool:
        """Whether a block may be added."""
        rows = self._rows
        if rows is None:
            return True
        same = about == self._about and schema.equals(rows.columns.schema)
        return same and rows.nbytes + nbytes <= UNREAD_BATCH_BYTES

    def add(
        self,
        columns: pa.Table,
        about: dict[str, Any],
        origin: BlockOrigin,
        run: ShuffleBlockSlice,
        verdicts: pa.Table | None,
    ) -> None:
        self._rows = self._rows or UnreadLinesWithVerdicts(columns)
        self._about = about
        found = BlockVerdicts.from_table(run.stop, verdicts)
        self._rows.add(origin, run.stop, run.nbytes, found.attach_to)
        self._rows.block_verdicts.append(found)

    def batches(self) -> Iterator[Batch]:
        if self._rows is not None:
            about = dict(self._about)
            yield with_unread_rows(batch_class_named(about.pop("kind"))(self._rows.columns, **about), self._rows)


class UnreadLinesWithVerdicts(UnreadLines):
    """Lines on which there is a verdict each."""

    def __init__(self, columns: pa.Table) -> None:
        super().__init__(columns)
        self.block_verdicts: list[BlockVerdicts] = []
        """What was found out about the rows of each block."""

    def keep(self) -> pa.BooleanArray:
        """Whether each row is kept."""
        return pa.concat_arrays([found.keep() for found in self.block_verdicts])

    def scores(self, name: str) -> pa.Array:
        """What a column of the verdicts says of each row."""
        return pa.concat_arrays([found.score(name) for found in self.block_verdicts])


@fast_dataclass(frozen=True)
class BlockVerdicts:
    """The verdicts on the rows of a block, and which of them is on each row, or none."""

    count: int
    verdicts: pa.Table | None = None
    verdict_rows: pa.Int64Array | None = None

    @classmethod
    def from_table(cls, count: int, verdicts: pa.Table | None) -> BlockVerdicts:
        if verdicts is None or not verdicts.num_rows:
            return cls(count)
        rows = as_one_array(verdicts.column(ROW).cast(pa.int64())).drop_null()
        numbers = np.frombuffer(rows.buffers()[1], np.int64, len(rows), 8 * rows.offset)
        numbers = numbers[(numbers >= 0) & (numbers < count)]
        named, places = np.zeros(count, np.bool_), np.zeros(count, np.int64)
        named[numbers] = True
        if (found := int(named.sum())) != verdicts.num_rows:
            raise ContractError(f"{verdicts.num_rows} verdicts name {found} rows: give at most one for each")
        places[numbers] = np.arange(found)
        bits = np.packbits(named, bitorder="little")
        return cls(
            count,
            verdicts,
            pa.Array.from_buffers(pa.int64(), count, [pa.py_buffer(bits), pa.py_buffer(places)], count - found),
        )

    def keep(self) -> pa.BooleanArray:
        """Whether each row is kept."""
        if self.verdicts is None or self.verdict_rows is None:
            return pa.repeat(_TRUE, self.count)
        if KEEP not in self.verdicts.column_names:
            return self.verdict_rows.is_null()
        return pc.if_else(self.verdict_rows.is_valid(), self._column(KEEP), _TRUE)

    def score(self, name: str) -> pa.Array:
        """A number of the verdicts for each row; null where there is none."""
        if self.verdicts is None or name not in self.verdicts.column_names:
            return pa.nulls(self.count, pa.float64())
        return self._column(name).cast(pa.float64())

    def attach_to(self, table: pa.Table, adds: Sequence[str] = ()) -> pa.Table:
        """The rows, with the verdict on each and what else there is to say. Columns of the user's are not ours to
        change, and other blocks may have others: so what is said has names of its own (`verdict_column_name`), unless it is to be
        added to the rows."""
        table = table.append_column(VERDICT, self.keep())
        for name in self.verdicts.column_names if self.verdicts is not None else ():
            if name in (TASK, ROW, KEEP):
                continue
            told, values = verdict_column_name(name, adds), self._column(name)
            if told in table.column_names:
                table = table.set_column(table.column_names.index(told), told, values)
            else:
                table = table.append_column(told, values)
        return table

    def _column(self, name: str) -> pa.Array:
        assert self.verdicts is not None
        return as_one_array(self.verdicts.column(name)).take(self.verdict_rows)


def verdict_column_name(name: str, adds: Sequence[str]) -> str:
    """What a column of verdicts is called beside the columns of the rows."""
    return name if name in adds or name.startswith("__") else f"{VERDICT}{name}"


class ApplyVerdicts(ProcessingStage[Batch, Batch]):
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
        rows, names = unread_rows(batch), self.stage.thresholds()
        if isinstance(rows, UnreadLinesWithVerdicts):
            keep, scores = rows.keep(), {name: rows.scores(name) for name in names}
        else:
            keep, scores = (
                as_one_array(batch.data.column(VERDICT)),
                {name: self._verdict_scores(batch.data, name) for name in names},
            )
        return Decision(keep, {name: pc.if_else(keep, _NO_SCORE, column) for name, column in scores.items()})

    def _verdict_scores(self, table: pa.Table, name: str) -> pa.Array:
        """What verdicts say of each row."""
        column = verdict_column_name(name, self.stage.adds)
        if column not in table.column_names:  # there is no verdict on any row
            return pa.nulls(table.num_rows, pa.float64())
        return as_one_array(table.column(column)).cast(pa.float64())

    def thresholds(self) -> dict[str, str]:
        return self.stage.thresholds()

    def apply(self, batch: Batch, decision: Decision) -> Batch:
        kept = batch.keep(decision.keep)
        if isinstance(unread_rows(kept), UnreadLinesWithVerdicts):
            return with_unread_rows(kept, unread_rows(kept).without_verdicts())
        table = kept.data
        first = table.column_names.index(VERDICT)
        extra = [name for name in table.column_names[first:] if name not in self.stage.adds]
        return kept.with_data(table.drop_columns(extra))
