"""Splits documents into segments, and joins segments into documents.

`DocumentJoiner` gets all rows of a partition at once, so the segments of a document may come from several blocks. Gives
up: documents whose segments are in several partitions. Costs: the memory of a partition.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import ColumnError
from gristmill.core.stage import ProcessingStage
from gristmill.core.stage_roles import GatherRole
from gristmill.core.task import GatherTask
from gristmill.samples.argument_checks import check_count
from gristmill.samples.batch import DocumentBatch
from gristmill.text.text_columns import TextFieldStage, any_column, text_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.core.stage import Columns


class DocumentSplitter(ProcessingStage[DocumentBatch, DocumentBatch], TextFieldStage):
    """Splits each document at a separator into rows of their own, numbered from 0 in `segment_id_field`.

    The separator is plain text and is removed. Other columns are repeated. A document without the separator, an empty
    document and a null are one segment.
    """

    def __init__(self, separator: str, text_field: str = "text", segment_id_field: str = "segment_id") -> None:
        super().__init__()
        if not separator:
            raise ValueError("DocumentSplitter: the separator is empty: give the text to split at")
        self.separator, self.text_field, self.segment_id_field = separator, text_field, segment_id_field

    takes_empty = True

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_field, self.segment_id_field]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        texts = text_column(self, task.data, self.text_field)
        parts = [[None] if text is None else text.split(self.separator) for text in texts.to_pylist()]
        bare = task.with_column(self.text_field, pa.nulls(len(parts), pa.string()))  # the text is not repeated
        rows = bare.take([row for row, pieces in enumerate(parts) for _ in pieces])
        segments = make_array([piece for pieces in parts for piece in pieces], pa.string())
        numbers = make_array([number for pieces in parts for number in range(len(pieces))], pa.int64())
        return rows.with_column(self.text_field, segments).with_column(self.segment_id_field, numbers)


class DocumentJoiner(ProcessingStage[GatherTask, DocumentBatch], GatherRole):
    """Joins the segments of each document, the rows with the same `document_id_field`, in the order of their numbers.

    Numbers may be text, as in CSV; other text is an error. Other columns are those of the first segment, and the
    document takes the position of its first row. With `max_length`, a document becomes several rows: a segment that
    would make a row longer starts the next one, and a segment that is longer by itself is a row. The length of a
    segment is its characters, or the number in `length_field`, which is set to the total; the characters of separators
    are added. A row without an id is a document of its own, and null text is left out.
    """

    def __init__(
        self,
        separator: str = "\n\n",
        text_field: str = "text",
        segment_id_field: str = "segment_id",
        document_id_field: str = "id",
        drop_segment_id_field: bool = True,
        max_length: int | None = None,
        length_field: str | None = None,
    ) -> None:
        super().__init__()
        if max_length is not None:
            check_count("DocumentJoiner", "max_length", max_length, least=1)
        if length_field is not None and max_length is None:
            raise ValueError("DocumentJoiner: length_field has no effect without max_length: give both")
        self.separator, self.text_field, self.segment_id_field = separator, text_field, segment_id_field
        self.document_id_field, self.drop_segment_id_field = document_id_field, drop_segment_id_field
        self.max_length, self.length_field = max_length, length_field

    def process(self, task: GatherTask | DocumentBatch) -> list[DocumentBatch] | DocumentBatch:
        if isinstance(task, DocumentBatch):  # called by hand; pipelines give all batches of a source
            return self._joined([task])[0]
        return self._joined(task.data)

    def _joined(self, batches: list[Any]) -> list[DocumentBatch]:
        if not batches:
            return []
        together = DocumentBatch.concat(batches)
        ends = list(pc.cumulative_sum(make_array([batch.num_items for batch in batches], pa.int64())).to_pylist())
        rows = list(self._joined_rows(together.data)) if together.num_items else []
        cuts = [0, *(bisect_left(rows, end, key=itemgetter(0)) for end in ends)]  # rows are sorted by their document
        joined = [self._build_batch(together, rows[start:end]) for start, end in pairwise(cuts)]
        return [replace(one, metadata=dict(batch.metadata)) for one, batch in zip(joined, batches, strict=True)]

    def _joined_rows(self, table: pa.Table) -> Iterator[tuple[int, int, str | None, int]]:
        """For each joined row: the first row of its document, the row of its first segment, its text and its length."""
        ids = any_column(self, table, self.document_id_field).to_pylist()
        numbers = [self._segment_number(one) for one in any_column(self, table, self.segment_id_field).to_pylist()]
        texts = text_column(self, table, self.text_field).to_pylist()
        lengths = [len(text or "") for text in texts]
        if self.length_field is not None:
            given = any_column(self, table, self.length_field).to_pylist()
            lengths = [int(length or 0) for length in given]
        documents: dict[Any, list[int]] = {}
        for row, one in enumerate(ids):
            documents.setdefault(("row", row) if one is None else ("id", one), []).append(row)
        for rows in documents.values():
            first_row = rows[0]
            rows.sort(key=lambda row: numbers[row])
            for part, length in self._cut_by_length(rows, lengths):
                present = [texts[row] for row in part if texts[row] is not None]
                yield first_row, part[0], self.separator.join(present) if present else None, length

    def _segment_number(self, value: Any) -> float:
        """The number of a segment in its document; segments without a number come last."""
        try:
            return math.inf if value is None else int(value) if isinstance(value, str) else value + 0
        except (TypeError, ValueError):
            raise ColumnError(
                f"stage {self.name!r}: {value!r} in column {self.segment_id_field!r} is not a number, so the order "
                "of the segments is unknown: name the column that numbers them with segment_id_field=..."
            ) from None

    def _cut_by_length(self, rows: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        part, length = [rows[0]], lengths[rows[0]]
        for row in rows[1:]:
            longer = length + len(self.separator) + lengths[row]
            if self.max_length is not None and longer > self.max_length:
                yield part, length
                part, length = [row], lengths[row]
            else:
                part.append(row)
                length = longer
        yield part, length

    def _build_batch(self, together: DocumentBatch, rows: Sequence[tuple[int, int, str | None, int]]) -> DocumentBatch:
        taken = together.take([first for _, first, _, _ in rows])
        taken = taken.with_column(self.text_field, make_array([text for _, _, text, _ in rows], pa.string()))
        if self.length_field is not None:
            taken = taken.with_column(self.length_field, make_array([length for *_, length in rows], pa.int64()))
        if self.drop_segment_id_field and self.segment_id_field in taken.get_columns():
            taken = taken.with_data(taken.data.drop_columns([self.segment_id_field]))
        return taken
