"""Check at plan time that the columns each stage needs come from the input or from an earlier stage.

Only the first few sources are read: a column that exists only in later files counts as missing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from gristmill.core.arrow.table_conversion import is_json, is_text
from gristmill.core.errors import ColumnError, did_you_mean, shorten
from gristmill.core.stage import ProcessingStage, SourceStage, implements
from gristmill.core.stage_roles import PlanningRole
from gristmill.core.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

_MAX_SAMPLED_SOURCES = 16
"""How many sources are sampled before a column counts as missing."""


def check_sampled_columns(
    stages: Sequence[ProcessingStage[Any, Any]], source: SourceStage[Any] | None, tasks: Sequence[Task[Any]] | None
) -> None:
    """Raise ColumnError unless one of the first sources has all the columns that the stages need.

    One is enough: a column that a file lacks is read as null. Empty files have no columns and are skipped.
    """
    if source:
        samples = [
            tasks_of_source[0] for tasks_of_source in islice(source.sources(), _MAX_SAMPLED_SOURCES) if tasks_of_source
        ]
    else:
        samples = [task for task in tasks or () if task.num_items][:1]
    first_error: ColumnError | None = None
    for sample in samples or [None]:
        try:
            if check_columns(stages, sample):
                return
        except ColumnError as error:
            first_error = first_error or error
    if first_error:
        raise first_error


def check_columns(stages: Sequence[ProcessingStage[Any, Any]], sample: Task[Any] | None) -> bool:
    """Check the columns of each stage against those known before it. Returns whether the sample has any columns.

    This is the only check of columns that stops a run: single blocks may still lack one, or have another type.
    """
    known = dict(_columns_of(sample)) if sample is not None else {}
    closed = shown = bool(known)  # closed: `known` lists all columns that can exist here
    for stage in stages:
        needs = stage.inputs()[1]
        if closed:
            _check_needs(stage, needs, known)
            not_text = [column for column in needs if known[column] is not None and not _may_be_text(known[column])]
            stage._planned = replace(stage._planned, columns=tuple(needs), not_text=tuple(not_text))
        seen = stage.peek_columns(sample) if sample is not None and isinstance(stage, PlanningRole) else None
        if seen is not None:
            known, closed, shown = dict(seen), True, True
        gives = stage.outputs()[1]
        known.update(gives if isinstance(gives, dict) else dict.fromkeys(gives))
        if not implements(stage, "outputs") and not isinstance(stage, SourceStage) and seen is None:
            closed = False  # a stage that does not declare its outputs may add any column
    return shown


def _columns_of(sample: Task[Any]) -> Mapping[str, Any]:
    schema = getattr(sample.data, "schema", None)
    return {field.name: field.type for field in schema} if schema is not None and sample.num_items else {}


def _check_needs(
    stage: ProcessingStage[Any, Any], needs: Iterable[str], known: Mapping[str, pa.DataType | str | None]
) -> None:
    for column in needs:
        if column not in known:
            available = [name for name in known if not name.startswith("_")]
            raise ColumnError(
                f"stage {stage.name!r} needs column {column!r}, which nothing before it gives. "
                f"There are: {shorten(available, 12) or 'none'}.{did_you_mean(column, available)} "
                "Name the right column in the stage (for text stages: text_field=...)"
            )
        wanted = needs[column] if isinstance(needs, dict) else None
        kind = known[column]
        if wanted == "string" and kind is not None and not _may_be_text(kind):
            raise ColumnError(
                f"stage {stage.name!r} needs text in column {column!r}, which holds {kind}: "
                "name a text column in the stage (for text stages: text_field=...)"
            )


def _may_be_text(kind: Any) -> bool:
    import pyarrow as pa

    if isinstance(kind, str):
        return kind == "string"
    dictionary = pa.types.is_dictionary(kind) and is_text(kind.value_type)
    return is_text(kind) or is_json(kind) or pa.types.is_null(kind) or bool(dictionary)
