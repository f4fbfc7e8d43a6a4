"""Stages that score, filter and change documents.

    ScoreFilter   score documents and drop some by their score
    Score         only add the score as a column
    Filter        only drop, by a column that exists already
    Modify        change the text

Each takes one filter, modifier or function, here called tools, or a list that is run in order: a row that one filter
drops is not scored by the next. With a list, an argument that names columns is one value for all tools, or a list with
one for each. A stage is named after its tools.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import table_to_rows
from gristmill.core.deciding_stage import FilteringStage, FilterStep, Measures, Rule, StepDecision
from gristmill.core.errors import ContractError, shorten
from gristmill.core.stage import ProcessingStage
from gristmill.core.stage_roles import ReportingRole, ScoringRole
from gristmill.samples.batch import DocumentBatch
from gristmill.text import english_only
from gristmill.text.document_filter import DocumentFilter, annotated_score_type, score_array, values_to_score
from gristmill.text.document_modifier import DocumentModifier, modified_array
from gristmill.text.rule_filter import RuleFilter
from gristmill.text.statistics import column_statistics
from gristmill.text.text_columns import (
    TextFieldStage,
    any_column,
    as_array,
    batch_column,
    batch_statistics,
    batch_texts,
    batch_values,
    python_values,
    text_column,
    value_column,
)

if TYPE_CHECKING:
    from gristmill.core.stage import Columns, WorkerMetadata

DocumentFunction: TypeAlias = Callable[..., Any]
FieldNames: TypeAlias = "str | Sequence[str]"
TOOL_TYPES = (DocumentFilter, DocumentModifier)


class _TextStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Base of the stages below: takes its name from its tools, and checks and sets them up."""

    _tools: list[DocumentFilter | DocumentModifier]

    def _set_tools(self, tools: Sequence[Any]) -> None:
        if not tools:
            raise ValueError(f"{type(self).__name__} got an empty list: give at least one filter, modifier or function")
        self._tools = [tool for tool in tools if isinstance(tool, TOOL_TYPES)]
        if not self._own_name:
            self.name = shorten([tool_name(tool, type(self).__name__) for tool in tools])

    def check(self) -> None:
        for tool in self._tools:
            tool.check()
        if any(tool.statistics() for _, tool in self._text_filters()):
            column_statistics.warn_without_kernels()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        for tool in self._tools:
            tool.setup()
        column_statistics.warn_without_kernels(seen=True)
        column_statistics.withdraw(self)
        needed = ((field, self._needed_statistics(tool)) for field, tool in self._text_filters())
        column_statistics.announce(self, [(field, names) for field, names in needed if names])

    def teardown(self) -> None:
        column_statistics.withdraw(self)

    def _text_filters(self) -> list[tuple[str, DocumentFilter]]:
        """The filters that score a text column, each with the name of the column."""
        return []

    def _needed_statistics(self, tool: DocumentFilter) -> tuple[str, ...]:
        """The statistics that a filter will need in `process`."""
        return tool.statistics()


class _DroppingStage(FilteringStage[DocumentBatch], _TextStage):
    """A stage that decides which documents to keep."""

    def _verdict(self, step: FilterStep, scores: pa.Array) -> pa.Array | None:
        if not isinstance(step.tool, DocumentFilter) or decides_by_row(step.tool):
            return None
        return check_one_value_per_row(f"{step.tool.name}.keep_batch", step.tool.keep_batch(scores), len(scores))

    def _rules(self, step: FilterStep) -> Sequence[Rule]:
        return step.tool.deciding_rules() if isinstance(step.tool, DocumentFilter) else ()

    def _threshold(self, step: FilterStep) -> str | None:
        threshold = type(step.tool).threshold if isinstance(step.tool, DocumentFilter) else None
        return threshold(step.tool) if callable(threshold) else None  # a filter may have a number of that name


class ScoreFilter(_DroppingStage, TextFieldStage, ReportingRole):
    """Scores documents and keeps those that the filter keeps, or with `invert` those that it does not.

    `score_field` is the column for the scores; with None they are not stored. Null text is scored like "". A filter of
    your own may score values that are no text: leave the parameter of `score_document` without `str`. `verbose` has no
    effect: the summary always shows what was dropped.
    """

    takes_empty = True
    warning_topic = "language"

    def __init__(
        self,
        filter_obj: DocumentFilter | Sequence[DocumentFilter],
        text_field: FieldNames = "text",
        score_field: str | Sequence[str | None] | None = None,
        invert: bool | Sequence[bool] = False,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.filter_obj, self.text_field, self.score_field, self.invert = filter_obj, text_field, score_field, invert
        self.verbose = verbose
        filters = as_list(filter_obj)
        for one in filters:
            if not isinstance(one, DocumentFilter):
                raise TypeError(f"ScoreFilter takes a DocumentFilter (functions: Score, Filter): {_describe_tool(one)}")
        self._set_tools(filters)
        count = len(filters)
        fields = one_per_tool("text_field", text_field, count)
        labels = number_repeated_labels([one.name for one in filters])
        targets = check_distinct_columns("score_field", one_per_tool("score_field", score_field, count))
        inverts = one_per_tool("invert", invert, count)
        self._steps = [FilterStep(*parts) for parts in zip(filters, fields, labels, targets, inverts, strict=True)]

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], needed_columns([(step.field, needed_type(step.tool)) for step in self._steps])

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [step.score_field for step in self._steps if step.score_field is not None]

    def _text_filters(self) -> list[tuple[str, DocumentFilter]]:
        return [(step.field, step.tool) for step in self._steps if isinstance(step.tool, DocumentFilter)]

    def _needed_statistics(self, tool: DocumentFilter) -> tuple[str, ...]:
        counts_english = tool.english_only and english_only.counting_is_free
        return (*tool.statistics(), *(english_only.ENGLISH_STATISTICS if counts_english else ()))

    def run_warning(self, stats: Any) -> str | None:
        return english_only.not_english_warning(self.name, stats)

    def _look(self, step: FilterStep, batch: DocumentBatch) -> None:
        is_for_english = isinstance(step.tool, DocumentFilter) and step.tool.english_only
        if is_for_english and (others := english_only.count_not_english(self, batch, step.field)):
            self.count(english_only.NOT_ENGLISH_COUNTER, others)

    def _judge(self, step: FilterStep, batch: DocumentBatch) -> StepDecision:
        assert isinstance(step.tool, DocumentFilter)
        tool, measures = step.tool, None
        if isinstance(tool, RuleFilter) and tool.decides_by_rules:
            measures = measure_text_column(self, tool, batch, step.field)
            scores = as_array(tool.score_measures(measures))
        else:
            scores = score_text_column(self, tool, batch, step.field)
        return StepDecision(scores, filter_verdicts(tool, scores, batch), measures)


class Filter(_DroppingStage):
    """Keeps rows by a column: the function, or the filter's `keep_document`, is true for the value in `filter_field`.

    A function gets each value, None for null. With `invert`, the other rows are kept. `verbose` has no effect.
    """

    takes_empty = True
    scores_are_given: ClassVar[bool] = True

    def __init__(
        self,
        filter_fn: DocumentFilter | DocumentFunction | Sequence[DocumentFilter | DocumentFunction],
        filter_field: FieldNames,
        invert: bool | Sequence[bool] = False,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.filter_fn, self.filter_field, self.invert = filter_fn, filter_field, invert
        self.verbose = verbose
        tools = [check_tool("Filter", one, DocumentFilter) for one in as_list(filter_fn)]
        self._set_tools(tools)
        fields = one_per_tool("filter_field", filter_field, len(tools))
        inverts = one_per_tool("invert", invert, len(tools))
        labels = number_repeated_labels([tool_name(*pair) for pair in zip(tools, fields, strict=True)])
        steps = zip(tools, fields, labels, inverts, strict=True)
        self._steps = [FilterStep(tool, field, label, invert=flip) for tool, field, label, flip in steps]

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(dict.fromkeys(step.field for step in self._steps))

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def _judge(self, step: FilterStep, batch: DocumentBatch) -> StepDecision:
        column = batch_column(self, batch, step.field)
        if isinstance(step.tool, DocumentFilter):
            return StepDecision(column, filter_verdicts(step.tool, column, batch))
        return StepDecision(column, make_array([bool(step.tool(value)) for value in python_values(column)], pa.bool_()))

    def _rules(self, step: FilterStep) -> Sequence[Rule]:
        rules = super()._rules(step)
        return rules if len(rules) == 1 and not rules[0].name else ()  # the column holds scores, and no measures


class Score(_TextStage, TextFieldStage, ScoringRole):
    """Adds a column with the score of each document, and drops none. Null text is scored like ""."""

    takes_empty = True

    def __init__(
        self,
        score_fn: DocumentFilter | DocumentFunction | Sequence[DocumentFilter | DocumentFunction],
        score_field: FieldNames,
        text_field: FieldNames = "text",
    ) -> None:
        super().__init__()
        self.score_fn, self.score_field, self.text_field = score_fn, score_field, text_field
        tools = [check_tool("Score", one, DocumentFilter) for one in as_list(score_fn)]
        self._set_tools(tools)
        texts = one_per_tool("text_field", text_field, len(tools))
        scores = check_distinct_columns("score_field", one_per_tool("score_field", score_field, len(tools)))
        self._steps = list(zip(tools, texts, scores, strict=True))

    def inputs(self) -> tuple[list[str], Columns]:
        added: set[str] = set()
        needed = []
        for tool, field, score_field in self._steps:
            if field not in added:
                needed.append((field, needed_type(tool)))
            added.add(score_field)
        return ["data"], needed_columns(needed)

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [score_field for _, _, score_field in self._steps]

    def _text_filters(self) -> list[tuple[str, DocumentFilter]]:
        return [(field, tool) for tool, field, _ in self._steps if isinstance(tool, DocumentFilter)]

    def recorded(self) -> list[str]:
        return [score_field for _, _, score_field in self._steps]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        for tool, field, score_field in self._steps:
            if isinstance(tool, DocumentFilter):
                scores = score_text_column(self, tool, task, field)
            else:
                values = values_to_score(batch_values(self, task, field))
                scores = score_array([tool(value) for value in values], annotated_score_type(tool))
            task = task.with_column(score_field, scores)
        return task


class Modify(_TextStage):
    """Changes text, in place or into the columns `output_fields`.

    With one input column, the modifier or function gets the text, and null stays null. With several, it is called with
    the values of the row as keywords, and `output_fields` names the column for the result. A list of modifiers is
    applied one after the other; its `input_fields` may give each its own column, or list of columns, and None among its
    `output_fields` is the column that is read. Values that are no text are passed as they are, unless the parameter is
    annotated as `str`.
    """

    takes_empty = True

    def __init__(
        self,
        modifier_fn: DocumentModifier | DocumentFunction | Sequence[DocumentModifier | DocumentFunction],
        input_fields: str | Sequence[str | Sequence[str]] = "text",
        output_fields: str | Sequence[str | None] | None = None,
    ) -> None:
        super().__init__()
        self.modifier_fn, self.input_fields, self.output_fields = modifier_fn, input_fields, output_fields
        tools = [check_tool("Modify", one, DocumentModifier) for one in as_list(modifier_fn)]
        self._set_tools(tools)
        self._steps = list(zip(tools, *modifier_columns(len(tools), input_fields, output_fields), strict=True))

    def inputs(self) -> tuple[list[str], Columns]:
        added: set[str] = set()
        needed: list[tuple[str, str]] = []
        for tool, fields, output in self._steps:
            kind = needed_type(tool) if len(fields) == 1 else "any"
            needed += [(field, kind) for field in fields if field not in added]
            added.add(output)
        return ["data"], needed_columns(needed)

    def outputs(self) -> tuple[list[str], Columns]:
        outputs = [output for _, _, output in self._steps]
        is_text = all(isinstance(tool, DocumentModifier) and returns_text(tool) for tool, _, _ in self._steps)
        return ["data"], dict.fromkeys(outputs, "string") if is_text else outputs

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        super().setup(worker_metadata)
        column_statistics.announce(self, [(output, ()) for _, _, output in self._steps])

    def process(self, task: DocumentBatch) -> DocumentBatch:
        for tool, fields, output in self._steps:
            task = task.with_column(output, self._modified(tool, fields, task.data))
        return task

    def _modified(self, tool: DocumentModifier | DocumentFunction, fields: Sequence[str], table: pa.Table) -> pa.Array:
        if len(fields) > 1:
            function = tool.modify_document if isinstance(tool, DocumentModifier) else tool
            columns = {field: any_column(self, table, field) for field in fields}
            return self._array([function(**row) for row in table_to_rows(pa.table(columns))])
        takes_text = needed_type(tool) == "string"
        values = (text_column if takes_text else value_column)(self, table, fields[0])
        if isinstance(tool, DocumentModifier):
            return check_one_value_per_row(f"{tool.name}.modify_batch", tool.modify_batch(values), len(values))
        return self._array([None if value is None else tool(value) for value in python_values(values)])

    def _array(self, values: list[Any]) -> pa.Array:
        return modified_array(f"stage {self.name!r}: the function", values)


def needed_type(tool: DocumentFilter | DocumentModifier | DocumentFunction) -> str:
    """What a tool needs its column to hold: "string", or "any" if it also takes values that are no text."""
    if isinstance(tool, DocumentFilter):
        if tool.statistics() or type(tool).score_batch is not DocumentFilter.score_batch:
            return "string"
        tool = tool.score_document
    elif isinstance(tool, DocumentModifier):
        if type(tool).modify_batch is not DocumentModifier.modify_batch:
            return "string"
        tool = tool.modify_document
    annotations = inspect.get_annotations(tool)
    annotations.pop("return", None)
    return "string" if next(iter(annotations.values()), None) in (str, "str") else "any"


def needed_columns(needs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The columns that tools need, each with its type: "string" if one of them needs text."""
    return dict(sorted(dict.fromkeys(needs), key=lambda need: need[1] == "string"))


def returns_text(tool: DocumentModifier) -> bool:
    """Whether a modifier is known to return text."""
    own_batch_form = type(tool).modify_batch is not DocumentModifier.modify_batch
    return own_batch_form or inspect.get_annotations(tool.modify_document).get("return") in (str, "str")


def decides_by_row(tool: DocumentFilter) -> bool:
    """Whether a filter decides by the row, and not by its score alone."""
    return type(tool).keep_rows is not DocumentFilter.keep_rows


def check_tool(stage: str, tool: Any, kind: type) -> Any:
    """The tool, if it is an instance of `kind` or a function."""
    is_class = isinstance(tool, type) and issubclass(tool, TOOL_TYPES)
    if is_class or not (isinstance(tool, kind) or callable(tool)):
        raise TypeError(f"{stage} takes a function or a {kind.__name__}: {_describe_tool(tool)}")
    return tool


def _describe_tool(tool: Any) -> str:
    return f"write {tool.__name__}(...), not the class" if isinstance(tool, type) else f"not {tool!r}"


def tool_name(tool: Any, lambda_name: str) -> str:
    """The name of a filter, modifier or function; for a lambda, `lambda_name`."""
    if isinstance(tool, TOOL_TYPES):
        return tool.name
    name: str = getattr(tool, "__name__", type(tool).__name__)
    return lambda_name if name == "<lambda>" else name


def score_text_column(
    stage: ProcessingStage[Any, Any], tool: DocumentFilter, batch: DocumentBatch, field: str
) -> pa.Array:
    """The scores of a text column: from statistics that filters share, or from the text itself."""
    if (names := tool.statistics()) and not tool.unspaced:
        scores = tool.score_counts(batch_statistics(stage, batch, field, names))
        return check_one_value_per_row(f"{tool.name}.score_counts", scores, batch.num_items)
    values = (batch_texts if needed_type(tool) == "string" else batch_values)(stage, batch, field)
    return check_one_value_per_row(f"{tool.name}.score_batch", tool.score_batch(values), len(values))


def measure_text_column(
    stage: ProcessingStage[Any, Any], tool: RuleFilter, batch: DocumentBatch, field: str
) -> Measures:
    """The measures of a text column: from statistics that filters share, or from the text itself."""
    if (names := tool.statistics()) and not tool.unspaced:
        return tool.measure_counts(batch_statistics(stage, batch, field, names))
    return tool.measure_batch(batch_texts(stage, batch, field))


def filter_verdicts(tool: DocumentFilter, scores: pa.Array, batch: DocumentBatch) -> pa.Array:
    """Whether a filter keeps each row of a batch."""
    return check_one_value_per_row(f"{tool.name}.keep_rows", tool.keep_rows(scores, batch), len(scores))


def check_one_value_per_row(method: str, answer: Any, rows: int) -> pa.Array:
    """What a batch method returned, if it is an array with one value per row."""
    if not isinstance(answer, pa.Array | pa.ChunkedArray) or len(answer) != rows:
        got = f"{len(answer)} values" if hasattr(answer, "__len__") else "no values"
        raise ContractError(
            f"{method} got {rows} rows and returned {got} as {type(answer).__name__}: "
            "return a pyarrow Array with one value per row"
        )
    return as_array(answer)


def modifier_columns(count: int, inputs: Any, outputs: Any) -> tuple[list[list[str]], list[str]]:
    """The columns that each modifier reads, and the one that it writes."""
    given = as_list(inputs)
    if count == 1 and all(isinstance(field, str) for field in given):
        given = [given]
    columns = [as_list(fields) for fields in one_per_tool("input_fields", given, count)]
    if outputs is None:
        if any(len(fields) != 1 for fields in columns):
            raise ValueError(f"Modify: name the column for the result of {inputs!r} in output_fields")
        return columns, [fields[0] for fields in columns]
    targets = one_per_tool("output_fields", outputs, count)
    for number, (fields, target) in enumerate(zip(columns, targets, strict=True)):
        if target is None and len(fields) != 1:
            raise ValueError(f"Modify: name the column for the result of {fields!r} in output_fields, instead of None")
        targets[number] = fields[0] if target is None else target
    if len(as_list(outputs)) == 1 and len(given) == 1 and count > 1:
        columns[1:] = [[targets[0]]] * (count - 1)  # each continues with the result of the one before it
    return columns, targets


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def one_per_tool(argument: str, value: Any, count: int) -> list[Any]:
    """One value per tool, from one for all or a list with one for each."""
    values = as_list(value)
    for one in values:
        if argument == "invert" and not isinstance(one, bool):
            raise TypeError(f"invert is {one!r}, must be True or False")
        in_place = argument == "output_fields" and one is None
        names_column = argument in ("text_field", "filter_field", "output_fields")
        if names_column and not in_place and not (isinstance(one, str) and one):
            raise TypeError(f"{argument} is {one!r}, must be the name of a column")
    if len(values) == 1:
        return values * count
    if len(values) != count:
        raise ValueError(f"{argument} has {len(values)} values for {count} tools: give one, or one for each")
    return values


def check_distinct_columns(argument: str, names: list[Any]) -> list[Any]:
    given = [name for name in names if name is not None]
    if len(set(given)) != len(given):
        raise ValueError(f"{argument}: {shorten(given)} would be written more than once: give each its own column")
    return names


def number_repeated_labels(labels: list[str]) -> list[str]:
    """The labels, numbered from the second occurrence on."""
    counts = [labels[: index + 1].count(label) for index, label in enumerate(labels)]
    return [label if count == 1 else f"{label} {count}" for label, count in zip(labels, counts, strict=True)]
