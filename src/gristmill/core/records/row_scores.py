"""Record the score that each filter gave each row, beside the output.

A worker keeps one sheet per batch, with a column for each filter. Dropped rows stay on the sheet, and later filters
score them too while they are still stored in the batch, so that `whatif` can tell what a less strict filter would keep.
When the batch leaves the worker, its sheet is written as a fragment; the fragments of a source are committed together,
like output (`io/write/side_outputs.py`). None of this runs without `scores=`.

Rows that a stage has made of one row are told apart as `row_keys` tells.

Not recorded: rows without a file and a position, as after a `Shuffle`; and scores of rows that were dropped before
the text was changed, before an exchange, or by another worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.row_keys import missing_rows, part_values, repeated_keys, row_keys
from gristmill.core.arrow.table_conversion import POSITION, column_values, is_json, is_text
from gristmill.core.batch import (
    SOURCE_FILE,
    Batch,
    all_stored_rows,
    column_cache,
    scatter_to_rows,
    stored_rows,
    unread_rows,
)
from gristmill.core.deciding_stage import DecidingStage, Decision, FilteringStage, Measures, Rule
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.value_identity import describe_value
from gristmill.core.stage_roles import MainColumnRole, ScoringRole
from gristmill.core.task import Task

if TYPE_CHECKING:
    from gristmill.core.stage import Answer, ProcessingStage

FILE, PLACE, ID, LANGUAGE, SOURCE, CHARS, TOKENS = "file", "position", "id", "language", "source", "chars", "tokens"
SEGMENT, DROPPED = "segment", "dropped_by"
PART = "part"
"""What a row is called that is one of several made of the row at a position (`Batch.part_column`)."""
ALIKE = "alike"
"""True for rows that several were made of which have no names: their scores cannot be told apart. False if they have
scores of their own all the same."""

FACTS = (FILE, PLACE, PART, SEGMENT, ID, LANGUAGE, SOURCE, CHARS, TOKENS, DROPPED, ALIKE)
"""The columns that precede the scores, in order."""

_FALSE = literal(False, pa.bool_())


def unique_names(names: Iterable[str]) -> list[str]:
    """The names of a plan's stages, with a number appended to repeated ones."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return unique


def score_column_name(stage: str, label: str, name: str) -> str:
    """The column for a stage's scores under a label. `stage` is its unique name in the plan, `name` its own name."""
    column = stage if label == name else f"{stage}/{label}"
    return f"{column} score" if column in FACTS else column


def measure_column_name(column: str, rule: str) -> str:
    """The column for what a filter of several rules has measured for one of them; `column` is that of its scores."""
    return f"{column}/{rule}"


def score_columns(stages: Sequence[ProcessingStage[Any, Any]]) -> list[dict[str, Any]]:
    """Describe each stage that scores rows: the columns and, where declared, the thresholds of its filters."""
    described = []
    for number, (stage, name) in enumerate(zip(stages, unique_names(one.name for one in stages), strict=True)):
        deciding = stage if isinstance(stage, DecidingStage) else None
        thresholds = deciding.thresholds() if deciding else {}
        columns = {label: score_column_name(name, label, stage.name) for label in (*thresholds, *_labels(stage))}
        if columns or deciding:
            more: dict[str, Any] = {"branch": stage._planned.branch} if stage._planned.branch else {}
            more |= {"together": True} if deciding and deciding.depends_on_other_rows else {}
            rules = deciding.rules() if deciding else {}
            more |= {"rules": _described_rules(columns, rules)} if rules else {}
            described.append({"stage": number, "name": name, "columns": columns, "thresholds": thresholds, **more})
    return described


def _described_rules(
    columns: Mapping[str, str], rules: Mapping[str, Sequence[Rule]]
) -> dict[str, list[dict[str, Any]]]:
    """The rules of each filter as data, with the column of each one's numbers."""
    return {
        label: [
            {
                "rule": rule.name,
                "column": measure_column_name(columns[label], rule.name) if rule.name else columns[label],
                "low": rule.low,
                "high": rule.high,
                "low_name": rule.low_name,
                "high_name": rule.high_name,
                "strict": rule.strict,
                "spared": rule.spared,
                "measured_with": describe_value(rule.measured_with),
            }
            for rule in several
        ]
        for label, several in rules.items()
        if label in columns
    }


def _labels(stage: Any) -> list[str]:
    """What a stage records without saying what it is compared with."""
    return [step.label for step in stage.filter_steps()] if isinstance(stage, FilteringStage) else _recorded(stage)


def _recorded(stage: Any) -> list[str]:
    """Score columns that a stage adds without dropping rows by them."""
    return stage.recorded() if isinstance(stage, ScoringRole) else []


@fast_dataclass
class ScoreRecorder:
    """The score sheets of a worker. `first` is the number of the worker's first stage in its segment."""

    writer: ProcessingStage[Any, Any]
    names: Sequence[str]
    """The unique names of the worker's stages."""
    stages: InitVar[Sequence[Any]] = ()
    """The segment's stages. The first that names its main column determines the one whose length is recorded."""
    first: int = 0
    segment: int = 1
    sheets: dict[str, ScoreSheet] = field(default_factory=dict, repr=False)
    _children: tuple[str, dict[str, tuple[int, list[pa.Array]]]] = field(default=("", {}), repr=False)
    """The task that was split last, and by branch the positions of the rows that came of it, with the highest."""

    def __post_init__(self, stages: Sequence[Any]) -> None:
        named = (stage.main_column for stage in stages if isinstance(stage, MainColumnRole))
        self.main_column = next((name for name in named if name), None)
        columns = [stage.outputs() for stage in stages]
        self.made_columns = frozenset(name for attributes, names in columns if attributes for name in names)
        """The columns that stages after the reader add."""

    def begin(self) -> None:
        """Start a call. Sheets of a failed call are discarded, since the call is repeated."""
        self.sheets.clear()
        self._children = "", {}

    def add_task(self, position: int, parent: Task[Any], child: Task[Any], alone: bool) -> Iterator[Task[Any]]:
        """Start a sheet for a new task: rows that were just read, that were split off their batch, or that a stage has
        made of others."""
        if isinstance(parent, Batch) and alone:
            sheet = self.sheets.get(parent.lineage.id)
            if sheet is None or not isinstance(child, Batch) or not sheet.is_left_by(child):
                return
            if sheet.began == self.first + position:
                del self.sheets[parent.lineage.id]
        yield from self.finish_task(parent.lineage.id)
        if isinstance(child, Batch) and child.num_items and _is_known(child):
            sheet = self._sheet(position, child)
            if isinstance(parent, Batch) and not alone and sheet.parts is None and self._repeats(parent, child, sheet):
                sheet.confuse(None)

    def _repeats(self, parent: Batch, child: Batch, sheet: ScoreSheet) -> bool:
        """Whether a child of a batch has rows of positions that a child before it had."""
        if self._children[0] != parent.lineage.id:
            self._children = parent.lineage.id, {}
        seen, branch = self._children[1], child.lineage.branch
        highest, before = seen.get(branch, (-1, []))
        low, high = pc.min_max(sheet.rows).as_py().values()
        if low is None:
            return False
        in_order = low > highest  # as rows are that a batch was cut into
        there = None if in_order else pa.chunked_array(before, sheet.rows.type)
        before.append(sheet.rows)
        seen[branch] = max(high, highest), before
        return there is not None and bool(pc.any(pc.is_in(sheet.rows, value_set=there)).as_py())

    def finish_task(self, task_id: str) -> Iterator[Task[Any]]:
        """Write the sheet of a task that leaves the worker."""
        sheet = self.sheets.pop(task_id, None)
        if sheet is not None:
            yield sheet.write(self.writer)

    def finish_call(self) -> Iterator[Task[Any]]:
        """Write the sheets that are left: those of tasks without output."""
        for task_id in list(self.sheets):
            yield from self.finish_task(task_id)

    def _sheet(self, position: int, batch: Batch) -> ScoreSheet:
        sheet = self.sheets.get(batch.lineage.id)
        if sheet is None:
            sheet = ScoreSheet(batch, self.first + position, self.segment, self.main_column or batch.main_column)
            sheet.may_have_parts = type(batch).part_column in self.made_columns
            self.sheets[batch.lineage.id] = sheet
        return sheet

    def decide(self, position: int, stage: Any, batch: Batch) -> Decision | None:
        """The decision of a stage on the rows of a batch, made by scoring all rows stored in it, dropped ones too.

        None if that is not possible; the caller then asks for the rows of the batch alone.
        """
        if not isinstance(stage, FilteringStage) or not _is_known(batch) or not stored_rows(batch)[0].num_rows:
            return None
        sheet = self._sheet(position, batch)
        everything = sheet.everything(batch)
        try:
            decision = stage.decide_all(everything, batch)
        except Exception:  # noqa: BLE001  it may have failed on a dropped row, which must not fail the run
            return None
        rows = stored_rows(batch)[1]
        sheet.add_scores(everything, self._columns(position, stage, decision.scores, decision.measures))
        if rows is None:
            return decision
        scores = {name: column.filter(rows) for name, column in decision.scores.items()}
        measures: dict[str, Measures] = {
            label: {name: column.filter(rows) for name, column in numbers.items()}
            for label, numbers in decision.measures.items()
        }
        by = None if decision.dropped_by is None else decision.dropped_by.filter(rows)
        return Decision(decision.keep.filter(rows), scores, measures=measures, dropped_by=by)

    def add_scores(
        self, position: int, stage: Any, task: Task[Any], answer: Answer[Any], decision: Decision | None
    ) -> None:
        """Record the scores of a stage's answer and the rows it dropped."""
        if not isinstance(task, Batch) or not task.num_items or not _is_known(task):
            return
        if decision is None:
            self._add_answer(position, stage, task, answer)
            return
        sheet = self._sheet(position, task)
        if not isinstance(stage, FilteringStage):
            sheet.add_scores(task, self._columns(position, stage, decision.scores))
        if decision.keep.true_count < len(decision.keep):
            sheet.mark_dropped(task, pc.invert(decision.keep), self.names[position])

    def _add_answer(self, position: int, stage: Any, task: Batch, answer: Answer[Any]) -> None:
        """Record the answer of a stage without decisions; dropped rows are identified by position."""
        outputs = [] if answer is None else [answer] if isinstance(answer, Task) else list(answer)
        batches = [output for output in outputs if isinstance(output, Batch)]
        if len(batches) == 1 and batches[0].num_items == task.num_items:
            given = batches[0].get_columns()
            columns = {name: batches[0].data.column(name) for name in _recorded(stage) if name in given}
            if columns and POSITION in given:
                self._sheet(position, task).add_scores(batches[0], self._columns(position, stage, columns))
            return
        if (outputs and not batches) or any(POSITION not in batch.get_columns() for batch in batches):
            return  # the stage turned the rows into something else
        gone, divided = missing_rows(task, batches)
        if gone.true_count:
            self._sheet(position, task).mark_dropped(task, gone, self.names[position])
        if divided is not None:
            self._sheet(position, task).confuse(None)

    def _columns(
        self, position: int, stage: Any, scores: Mapping[str, Any], measures: Mapping[str, Measures] | None = None
    ) -> dict[str, pa.Array]:
        columns = {label: score_column_name(self.names[position], label, stage.name) for label in scores}
        named = {columns[label]: column for label, column in scores.items()}
        for label, numbers in (measures or {}).items():
            named |= {measure_column_name(columns[label], rule): column for rule, column in numbers.items()}
        return {name: as_one_array(column) for name, column in named.items() if not pa.types.is_null(column.type)}


class ScoreSheet:
    """The rows that a batch had when it entered the worker, with the scores and facts recorded for each."""

    def __init__(self, batch: Batch, began: int, segment: int, main_column: str | None) -> None:
        self.began = began
        self.lineage = replace(batch.lineage, id=f"{began}.{batch.lineage.id}")
        self.dataset_name, self.metadata = batch.dataset_name, dict(batch.metadata)
        self.segment = segment
        if segment > 1 and "partition" in self.metadata:
            self.metadata["partition"] = f"{self.metadata['partition']}-{segment}"
        table = batch.data
        self.rows = as_one_array(table.column(POSITION))
        self.part_column = type(batch).part_column
        self.parts = part_values(table, self.part_column)
        self.may_have_parts = False
        """Whether a stage divides rows, even if none of these was."""
        self.keys = row_keys(self.rows, self.parts)
        self._repeated = repeated_keys(self.keys)
        self._confused: pa.BooleanArray | None = None
        self.facts: dict[str, pa.Array] = {}
        self.scores: dict[str, pa.Array] = {}
        self._gone: dict[str, pa.BooleanArray] = {}
        self._seen: pa.Table | None = None
        self._view: Batch | None = None
        if main_column in table.column_names and is_text(table.column(main_column).type):
            self.facts[CHARS] = as_one_array(pc.utf8_length(table.column(main_column)).cast(pa.int64()))
        self._kind = type(batch)
        self._add_facts(table, None)

    def is_left_by(self, batch: Batch) -> bool:
        """Whether a stage has made other rows of the rows of this sheet: several of one."""
        if unread_rows(batch) or not batch.num_items or not _is_known(batch):
            return False
        table, _ = stored_rows(batch)
        if _same(table.column(POSITION), self.rows):
            return False
        parts = part_values(table, type(batch).part_column)
        keys = row_keys(table.column(POSITION), parts)
        if parts is None:
            return self.parts is None and self._repeated is None and repeated_keys(keys) is not None
        known = row_keys(self.rows, self._parts_or_nulls())
        return not pc.all(pc.is_in(keys, value_set=known)).as_py()

    def _parts_or_nulls(self) -> pa.Array:
        return pa.nulls(len(self.rows), pa.string()) if self.parts is None else self.parts

    def confuse(self, rows: pa.BooleanArray | None) -> None:
        """Note that these rows, or all, cannot be told from others."""
        rows = pc.invert(_flags(len(self.rows))) if rows is None else rows
        self._confused = rows if self._confused is None else pc.or_(self._confused, rows)

    def everything(self, batch: Batch) -> Batch:
        """A view of all rows stored in a batch, dropped ones too. Cached column values are kept between stages, except
        those that were computed for only some of the rows."""
        table, rows = stored_rows(batch)
        view = self._view
        if view is None or view.data is not table:
            known = dict(column_cache(batch)) if rows is None else _shared_memo(view, table)
            self._view = view = all_stored_rows(batch, known)
        return view

    def add_scores(self, batch: Batch, columns: dict[str, pa.Array]) -> None:
        """Add scores for the rows of a batch."""
        table, rows = stored_rows(batch)
        places = self._places(table, rows) if columns else None
        for name, column in columns.items():
            values = column if places is None else column.take(places)
            self.scores[name] = _coalesced(self.scores.get(name), values)
        if table is not self._seen:
            self._add_facts(table, self._places(table, None))

    def mark_dropped(self, batch: Batch, gone: pa.BooleanArray, stage: str) -> None:
        table, rows = stored_rows(batch)
        if _same(table.column(POSITION), self.rows):
            flags = gone if rows is None else pc.replace_with_mask(_flags(len(rows)), rows, gone)
        else:
            flags = gone.take(self._places(table, rows)).fill_null(_FALSE)
        known = self._gone.get(stage)
        self._gone[stage] = flags if known is None else pc.or_(known, flags)

    def _dropped(self) -> pa.Array:
        """The first stage that dropped each row; null for kept rows."""
        numbers = pa.nulls(len(self.rows), pa.int64())
        for number, flags in reversed(list(enumerate(self._gone.values()))):
            numbers = pc.if_else(flags, literal(number, pa.int64()), numbers)
        return make_array([*self._gone], pa.string()).take(numbers)

    def _places(self, table: pa.Table, rows: pa.BooleanArray | None) -> pa.Array | None:
        """The index in the batch of each row of the sheet; None if both have the same rows in the same order."""
        column = table.column(POSITION)
        if _same(column, self.rows):
            if rows is None:
                return None
            return scatter_to_rows(_numbers(rows.true_count), rows)
        known, keys = self.keys, column
        if self.parts is not None:
            parts = part_values(table, self.part_column)
            known = self.rows if parts is None else self.keys
            keys = row_keys(column, parts)
            if parts is None:
                self.confuse(None)
        if self._repeated is not None:
            self.confuse(self._repeated)
        return pc.index_in(known, value_set=as_one_array(keys if rows is None else keys.filter(rows)))

    def _alike(self) -> dict[str, pa.Array]:
        """The column that says which rows cannot be told apart, if there are such."""
        if self._repeated is None and self._confused is None:
            return {}
        unsaid = pa.nulls(len(self.rows), pa.bool_())
        flags = unsaid if self._repeated is None else pc.if_else(self._repeated, _FALSE, unsaid)
        return {
            ALIKE: flags if self._confused is None else pc.if_else(self._confused, literal(True, pa.bool_()), flags)
        }

    def _add_facts(self, table: pa.Table, places: pa.Array | None) -> None:
        """Record facts such as id and language from the first table that has a column for them."""
        self._seen = table
        for fact, name in _fact_columns(table, self._kind, self.facts):
            with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                values = table.column(name)
                plain = _plain(values) if is_json(values.type) else values
                column = as_one_array(plain.cast(pa.int64() if fact in self._kind.count_columns else pa.string()))
                self.facts[fact] = column if places is None else column.take(places)

    def write(self, writer: ProcessingStage[Any, Any]) -> Task[Any]:
        count = len(self.rows)
        file = pa.repeat(literal(self.metadata.get(SOURCE_FILE), pa.string()), count)
        segment = pa.repeat(literal(self.segment, pa.int64()), count)
        has_parts = self.parts is not None or self.may_have_parts
        parts = {PART: self._parts_or_nulls()} if has_parts else {}
        known = {FILE: file, PLACE: self.rows, **parts, SEGMENT: segment}
        facts = {**known, **self.facts, DROPPED: self._dropped(), **self._alike()}
        columns = {name: facts[name] for name in FACTS if name in facts} | self.scores
        batch = Batch(pa.table(columns), dataset_name=self.dataset_name, metadata=self.metadata)
        fragment: Any = writer.process(batch.named(self.lineage))
        named: Task[Any] = fragment.named(self.lineage)
        return named


def _is_known(batch: Batch) -> bool:
    """Whether the rows of a batch can be identified by file and position."""
    return POSITION in batch.get_columns() and batch.metadata.get(SOURCE_FILE) is not None


def _fact_columns(table: pa.Table, kind: type[Batch], known: dict[str, pa.Array]) -> Iterator[tuple[str, str]]:
    """Facts that are not known yet, each with the column that holds it."""
    names = table.column_names
    own_id = next((name for name in kind.id_columns if name in names), None)
    if ID not in known and own_id is not None and not pa.types.is_nested(table.schema.field(own_id).type):
        yield ID, own_id
    for fact, candidates in (*kind.category_columns.items(), *kind.count_columns.items()):
        name = next((name for name in candidates if name in names), None)
        if name is None or fact in known:
            continue
        found = table.schema.field(name).type
        if pa.types.is_integer(found) if fact in kind.count_columns else is_text(found):
            yield fact, name


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """The values of a column of mixed types, as text."""
    return make_array([None if value is None else str(value) for value in column_values(column)], pa.string())


def _shared_memo(view: Batch | None, table: pa.Table) -> dict[str, Any]:
    """The cached values of columns that a table shares with the previous view."""
    if view is None or not _same(table.column(POSITION), view.data.column(POSITION)):
        return {}
    before = view.data
    changed = {
        name
        for name in before.column_names
        if name not in table.column_names or not _same(table.column(name), before.column(name))
    }
    return {name: value for name, value in column_cache(view).items() if name not in changed}


def _same(left: pa.Array | pa.ChunkedArray, right: pa.Array | pa.ChunkedArray) -> bool:
    """Whether two columns share the same memory. Cheap, unlike comparing values; may miss equal columns."""
    return left is right or (len(left) == len(right) and _address(left) == _address(right))


def _address(column: pa.Array | pa.ChunkedArray) -> list[tuple[int, int]]:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    last = [(chunk.buffers()[-1], chunk.offset) for chunk in chunks]
    return [(buffer.address if buffer else 0, offset) for buffer, offset in last]


def _coalesced(known: pa.Array | None, values: pa.Array) -> pa.Array:
    """Known values, completed by new ones: a batch that a stage failed on is scored again in pieces."""
    if known is None or isinstance(values.type, pa.BaseExtensionType):
        return values
    return pc.coalesce(known, values)


def _flags(count: int) -> pa.BooleanArray:
    return pa.repeat(_FALSE, count)


def _numbers(count: int) -> pa.Array:
    if not count:
        return make_array([], pa.int64())
    return pc.indices_nonzero(pa.repeat(literal(True, pa.bool_()), count)).cast(pa.int64())
