"""Which columns stages need, and whether the stages before them, or the input, have them: a part of planning.

What is given up: columns that only files beyond the first few have.
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

_LOOKED_AT = 16
"""Sources, whose columns the plan looks at if the first of them lacks one, or shows none."""


def check_sampled_columns(
    stages: Sequence[ProcessingStage[Any, Any]], source: SourceStage[Any] | None, tasks: Sequence[Task[Any]] | None
) -> None:
    """Files differ in their columns, too: what one of the first has is there, and null in the others. An empty file
    shows none, and says nothing of the others."""
    if source:
        some = [first[0] for first in islice(source.sources(), _LOOKED_AT) if first]
    else:
        some = [task for task in tasks or () if task.num_items][:1]
    lacking: ColumnError | None = None
    for sample in some or [None]:
        try:
            if check_columns(stages, sample):
                return
        except ColumnError as error:
            lacking = lacking or error
    if lacking:
        raise lacking


def check_columns(stages: Sequence[ProcessingStage[Any, Any]], sample: Task[Any] | None) -> bool:
    """Each stage's columns must come from somewhere, as far as that can be known before running. Tells whether the
    sample shows any.

    No other check of columns stops a run: what this one has found may be missing in a block, or of another type.
    """
    known = dict(_columns_of(sample)) if sample is not None else {}
    closed = shown = bool(known)
    for stage in stages:
        needs = stage.inputs()[1]
        if closed:
            _check_needs(stage, needs, known)
            stage._planned = replace(stage._planned, columns=tuple(needs))
        seen = stage.peek_columns(sample) if sample is not None and isinstance(stage, PlanningRole) else None
        if seen is not None:
            known, closed, shown = dict(seen), True, True
        gives = stage.outputs()[1]
        known.update(gives if isinstance(gives, dict) else dict.fromkeys(gives))
        if not implements(stage, "outputs") and not isinstance(stage, SourceStage) and seen is None:
            closed = False  # a stage that does not say what it adds may add anything
    return shown


def _columns_of(sample: Task[Any]) -> Mapping[str, Any]:
    schema = getattr(sample.data, "schema", None)
    return {field.name: field.type for field in schema} if schema is not None and sample.num_items else {}


def _check_needs(
    stage: ProcessingStage[Any, Any], needs: Iterable[str], known: Mapping[str, pa.DataType | str | None]
) -> None:
    for column in needs:
        if column not in known:
            there = [name for name in known if not name.startswith("_")]
            raise ColumnError(
                f"stage {stage.name!r} needs column {column!r}, which nothing before it gives. "
                f"There are: {shorten(there, 12) or 'none'}.{did_you_mean(column, there)} "
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
