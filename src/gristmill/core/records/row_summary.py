"""Summarise the rows at each stage for the report, in little enough space to be sent along with the counts.

For a deciding stage: a histogram of its scores, or how many rows got each label, how many rows each rule dropped, and a
sample of these. For input and output: histograms
of text lengths and languages, and a sample. Summaries can be merged in any order: the sample holds the rows with the
smallest random draws, which depend only on a row's file and position.

Histograms have 32 buckets per power of two, by the leading bits of a number. So integers up to 64 are exact, and other
numbers are within 3%.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, VERDICT, column_values, is_json, table_to_rows
from gristmill.core.batch import Batch, column_cache, read_copy, scatter_to_rows, stored_rows
from gristmill.core.deciding_stage import DecidingStage, Decision, Rule
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.drop_reasons import counted, dropped_rows, drops_by_rule
from gristmill.core.records.rejected_rows import rejected_column_name
from gristmill.core.row_sampling import draw_uniform
from gristmill.core.task import Task, digest

SAMPLES, VALUES = 12, 200
OTHERS = "(others)"
"""What labels are counted as that come after so many others."""

_CLIP, _LABEL = 1200, 100
_FEW = 16
"""So many numbers are counted one by one: of many small files, each has its own summary."""
_SHIFT_BITS = 47
_SHIFT, _ZERO = literal(_SHIFT_BITS, pa.int64()), literal(0.0, pa.float64())
_FLOAT, _INTEGER = struct.Struct("<d"), struct.Struct("<q")
_LANGUAGE = "language"
_DRAWS = "__draws__"


@fast_dataclass(slots=True)
class RowSummary:
    """A summary of the rows at one stage."""

    histograms: dict[str, Counter[int]] = field(default_factory=dict)
    """Rows per bucket, for each score or length."""
    values: dict[str, Counter[str]] = field(default_factory=dict)
    """Rows per value, for each categorical column such as the language."""
    samples: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    """The rows with the smallest draws, each with its scores."""
    drops: dict[str, Counter[str]] = field(default_factory=dict)
    """Rows that each filter of a stage dropped, by the first rule that they break; "" for filters without rules."""
    labels: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """For each filter whose score is a label: how many rows got each label, and how many of them the stage dropped."""

    def add(self, other: RowSummary) -> None:
        for name, buckets in other.histograms.items():
            self.histograms.setdefault(name, Counter()).update(buckets)
        for name, counts in other.values.items():
            known = self.values.setdefault(name, Counter())
            known.update({value: count for value, count in counts.items() if value in known or len(known) < VALUES})
        for name, drops in other.drops.items():
            self.drops.setdefault(name, Counter()).update(drops)
        for name, labels in other.labels.items():
            for label, (rows, dropped) in labels.items():
                self.add_label(name, label, rows, dropped)
        self.samples = _smallest([*self.samples, *other.samples])

    def add_label(self, name: str, label: str, rows: int, dropped: int) -> None:
        """More rows got a label."""
        known = self.labels.setdefault(name, {})
        total = known.setdefault(label if label in known or len(known) < VALUES else OTHERS, [0, 0])
        total[0] += rows
        total[1] += dropped


def _smallest(samples: list[tuple[float, dict[str, Any]]]) -> list[tuple[float, dict[str, Any]]]:
    return sorted(samples, key=lambda sample: sample[0])[:SAMPLES]


class RowSummariser:
    """Makes the summaries of a worker's stages. Remembers the draws it has sent, to skip rows that cannot be among the
    smallest any more."""

    def __init__(self, wanted: Sequence[bool]) -> None:
        """`wanted` tells for each stage whether it is summarised."""
        self._wanted = list(wanted)
        self._bounds = [1.0] * len(wanted)
        self._drawn: list[list[float]] = [[] for _ in wanted]
        self._rules: dict[int, Mapping[str, Sequence[Rule]]] = {}
        self.summaries: dict[tuple[str, int], RowSummary] = {}

    def take(self) -> dict[tuple[str, int], RowSummary]:
        """The summaries since the last call, by source and stage."""
        taken, self.summaries = self.summaries, {}
        return taken

    def decided(self, position: int, stage: DecidingStage[Any], batch: Batch, decision: Decision) -> None:
        """Summarise the decision of a stage on a batch."""
        if not self._wanted[position]:
            return
        rules = self._rules.get(position)
        if rules is None:
            rules = self._rules[position] = stage.rules()
        batch = read_copy(batch) if decision.keep.true_count < len(decision.keep) else batch
        summary = self.summaries.setdefault((batch.lineage.source, position), RowSummary())
        for name, scores in decision.scores.items():
            if (numbers := _numbers(scores)) is not None:
                _count(summary, name, numbers)
            elif not any(rule.name for rule in rules.get(name, ())):
                _count_labels(summary, name, scores, dropped_rows(decision))
        for name, drops in drops_by_rule(rules, decision).items():
            summary.drops.setdefault(name, Counter()).update(drops)
        keep = decision.keep
        if keep.true_count < len(keep):
            table, rows = stored_rows(batch)
            gone = pc.invert(keep)
            if rows is not None:
                gone = scatter_to_rows(gone, rows).fill_null(literal(False, pa.bool_()))
            self._sample(position, summary, batch, table, gone, decision.scores, rows)

    def passed(self, position: int, writes: bool, parent: Task[Any], child: Task[Any]) -> None:
        """Summarise the rows of a task where they are read or written; other stages are ignored."""
        if not self._wanted[position]:
            return
        batch = parent if writes else child
        if isinstance(batch, Batch) and batch.num_items and (writes or not isinstance(parent, Batch)):
            self._profile(position, parent.lineage.source, read_copy(batch))

    def _profile(self, position: int, source: str, batch: Batch) -> None:
        summary = self.summaries.setdefault((source, position), RowSummary())
        table, names = batch.data, batch.data.column_names
        main = batch.main_column
        if main in names and _is_text(table.column(main).type):
            lengths = _numbers(pc.binary_length(table.column(main)))
            _count(summary, "bytes", lengths)
        for name in batch.category_columns.get(_LANGUAGE, ()):
            if name in names and _is_text(table.column(name).type):
                counted = pc.value_counts(table.column(name))
                pairs = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
                counts = {"(none)" if value is None else str(value): count for value, count in pairs}
                summary.values.setdefault(name, Counter()).update(counts)
        everywhere = pa.repeat(literal(True, pa.bool_()), table.num_rows)
        self._sample(position, summary, batch, table, everywhere, {}, None)

    def _sample(
        self,
        position: int,
        summary: RowSummary,
        batch: Batch,
        table: pa.Table,
        mask: pa.BooleanArray,
        scores: dict[str, pa.Array],
        rows: pa.BooleanArray | None,
    ) -> None:
        draws = _draws(batch, table)
        if len(draws) <= _FEW and min(draws.to_pylist(), default=1.0) >= self._bounds[position]:
            return
        low = pc.indices_nonzero(pc.and_(mask, pc.less(draws, literal(self._bounds[position], pa.float64()))))
        if not len(low):
            return
        picked = low.take(pc.array_sort_indices(draws.take(low)).slice(0, SAMPLES))
        drawn = draws.take(picked).to_pylist()
        if rows is not None:
            scores = {name: scatter_to_rows(column, rows) for name, column in scores.items()}
        picked_scores = {name: column.take(picked).to_pylist() for name, column in scores.items()}
        for index, (draw, row) in enumerate(zip(drawn, table_to_rows(table.take(picked)), strict=True)):
            row_scores = {name: values[index] for name, values in picked_scores.items()}
            origin = {"file": batch.metadata.get("file"), "position": row.pop(POSITION, None)}
            clipped = {rejected_column_name(name): _clip(value) for name, value in row.items() if name != VERDICT}
            summary.samples.append((draw, {"row": clipped, "scores": row_scores, **origin}))
        summary.samples = _smallest(summary.samples)
        best = sorted([*self._drawn[position], *drawn])[:SAMPLES]
        self._drawn[position] = best
        self._bounds[position] = best[-1] if len(best) == SAMPLES else 1.0


def _draws(batch: Batch, table: pa.Table) -> pa.Array:
    """The random draw of each row, cached with the batch for later stages."""
    if _DRAWS in column_cache(batch):
        return column_cache(batch)[_DRAWS]
    owner, numbers = batch.lineage.id, None
    if POSITION in table.column_names:
        positions = table.column(POSITION).combine_chunks()
        if pa.types.is_integer(positions.type) and not positions.null_count:
            owner, numbers = str(batch.metadata.get("file") or batch.lineage.source), positions
    if numbers is None:
        numbers = pc.indices_nonzero(pa.repeat(literal(True, pa.bool_()), table.num_rows))
    draws = draw_uniform(numbers.cast(pa.uint64(), safe=False), int(digest(["look", owner]), 16))
    column_cache(batch)[_DRAWS] = draws
    return draws


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _clip(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _CLIP else f"{value[:_CLIP]}…"
    if isinstance(value, int | float | bool) or value is None:
        return value
    text = repr(value)
    return text if len(text) <= _CLIP else f"{text[:_CLIP]}…"


def _numbers(scores: Any) -> pa.Array | None:
    kind = scores.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    scores = scores.combine_chunks() if isinstance(scores, pa.ChunkedArray) else scores
    scores = scores.cast(pa.int8()) if pa.types.is_boolean(kind) else scores
    return scores.drop_null().cast(pa.float64(), safe=False)


def _count(summary: RowSummary, name: str, numbers: pa.Array) -> None:
    if len(numbers) <= _FEW:
        summary.histograms.setdefault(name, Counter()).update(map(_bucket, filter(_is_number, numbers.to_pylist())))
        return
    counted = pc.value_counts(histogram_buckets(numbers))
    pairs = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
    summary.histograms.setdefault(name, Counter()).update(dict(pairs))


def _count_labels(summary: RowSummary, name: str, scores: Any, dropped: pa.BooleanArray) -> None:
    """Count the rows by their label, where the scores are some."""
    labels = _labels(scores.combine_chunks() if isinstance(scores, pa.ChunkedArray) else scores)
    if labels is None:
        return
    gone = counted(labels.filter(dropped).drop_null())
    for label, rows in counted(labels.drop_null()).items():
        summary.add_label(name, label if len(label) <= _LABEL else f"{label[:_LABEL]}…", rows, gone.get(label, 0))


def _labels(scores: pa.Array) -> pa.Array | None:
    """Scores as text: labels, lists of them, or those beside a number; None if they are something else."""
    kind = scores.type
    if _is_text(kind):
        return scores
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_text(kind.value_type):
        return pc.binary_join(scores, literal(", ", kind.value_type))
    if is_json(kind):
        return make_array([_label(value) for value in column_values(scores)], pa.string())
    if pa.types.is_struct(kind):
        parts = [field.name for field in kind if _is_text(field.type)]
        return pc.struct_field(scores, parts[0]) if len(parts) == 1 else None
    return None


def _label(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return ", ".join(value)
    return value if isinstance(value, str) else None


def histogram_buckets(numbers: pa.Array) -> pa.Array:
    """The bucket of each number; NaN falls into none."""
    plain = pc.add(numbers.filter(pc.invert(pc.is_nan(numbers))), _ZERO)  # adding zero turns -0.0 into 0.0
    return pc.shift_right(plain.view(pa.int64()), _SHIFT)


def _is_number(value: float) -> bool:
    return value == value  # noqa: PLR0124  NaN is not


def _bucket(number: float) -> int:
    """What `histogram_buckets` computes, for one number."""
    bits: int = _INTEGER.unpack(_FLOAT.pack(number + 0.0))[0]
    return bits >> _SHIFT_BITS


def bucket_lower_bound(bucket: int) -> float:
    """The number in a bucket that is nearest to zero."""
    return float(struct.unpack("<d", struct.pack("<q", bucket << _SHIFT_BITS))[0])
