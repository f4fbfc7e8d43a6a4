"""How long a call of a stage may take before its worker is stopped.

A stage with `timeout_s` may take that long for one call. Stages of Gristmill that work on rows have a limit without it:
no record may take longer than RECORD_SECONDS, and a call with many rows may take longer in proportion. After a call
that took too long its rows are tried in smaller pieces, until the record at fault is found. A stage that takes its rows
one by one notes its progress (`row_progress.py`), and is late when a few rows take longer than they may.

Gives up: stages that read, write or gather whole files, which have no limit by default; stages that run code of the
user, such as a filter by a model that answers once a minute; and on Ray all stages without `timeout_s`, as the driver
does not know where a worker is. In the driver's own process (`num_workers=0`) no limit can be enforced.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from gristmill.core.batch import Batch
from gristmill.core.function_stage import FunctionStage, task_types
from gristmill.core.stage_roles import CommitRole, GatherRole, WriterRole

if TYPE_CHECKING:
    from gristmill.core.stage import ProcessingStage

RECORD_SECONDS = 300.0
ROWS_PER_LIMIT = 100
"""A call with this many rows may take twice as long as a call with none."""

SETUP_SECONDS = 3600.0
"""How long `setup` and `setup_on_node` of a stage may take each: enough to fetch a large model."""


def time_limit(stage: ProcessingStage[Any, Any], rows: int = 1) -> float | None:
    """How many seconds a call with so many rows may take; None for no limit."""
    if stage.timeout_s is not None:
        return stage.timeout_s
    return RECORD_SECONDS * (1 + rows / ROWS_PER_LIMIT) if has_default_limit(stage) else None


def has_default_limit(stage: ProcessingStage[Any, Any]) -> bool:
    return _is_of_rows(stage) and not any(map(_is_user_code, _parts(stage)))


def _is_of_rows(stage: ProcessingStage[Any, Any]) -> bool:
    ours = type(stage).__module__.startswith("gristmill.")
    if not ours or isinstance(stage, FunctionStage | WriterRole | GatherRole | CommitRole):
        return False
    takes = task_types(stage)[0]
    return takes is None or issubclass(takes, Batch)


def _parts(stage: ProcessingStage[Any, Any]) -> Iterator[Any]:
    for value in vars(stage).values():
        yield from value if isinstance(value, list | tuple) else [value]


def _is_user_code(value: Any) -> bool:
    """Whether a function or an object, such as a filter, is not of Gristmill."""
    owner = value if isinstance(value, type | FunctionType) else type(value)
    root = (getattr(owner, "__module__", None) or "").partition(".")[0]
    return root not in ("gristmill", "builtins", "collections", "pyarrow", "pathlib", "functools", "re")
