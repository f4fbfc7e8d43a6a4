"""How a stage's counts read: which of them are rows, and which are files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.core.stage import SourceStage, task_types
from gristmill.core.task import EmptyTask, FileGroupTask

if TYPE_CHECKING:
    from gristmill.core.stage import ProcessingStage


@dataclass(frozen=True, slots=True)
class Ends:
    """Whether rows go into a stage and come out of it. Readers take files, writers give files."""

    takes_rows: bool = True
    gives_rows: bool = True


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in, kept and dropped; None where a stage does not count rows."""

    taken: int | None
    kept: int | None
    dropped: int | None


def ends_of(stages: Iterable[ProcessingStage[Any, Any]]) -> list[Ends]:
    """For each stage of a plan. Where a stage does not say what it takes, it is what the one before it gives."""
    found: list[Ends] = []
    for stage in stages:
        takes, gives = task_types(stage)
        before = found[-1].gives_rows if found else not isinstance(stage, SourceStage)
        takes_rows = before if takes is None or stage.gather else _is_rows(takes)
        found.append(Ends(takes_rows, takes_rows if gives is None else _is_rows(gives)))
    return found


def _is_rows(kind: type) -> bool:
    return not issubclass(kind, FileGroupTask | EmptyTask)


def rows_of(ends: Ends, rows_in: int, rows_out: int) -> Rows:
    if not ends.takes_rows:
        return Rows(None, rows_out if ends.gives_rows else None, None)
    if not ends.gives_rows:
        return Rows(rows_in, rows_in, 0)  # what a writer takes, it writes
    return Rows(rows_in, rows_out, max(rows_in - rows_out, 0))


def totals(rows: Sequence[Rows]) -> tuple[int, int]:
    """Rows that came in at the first stage that knows, and those that left the last one."""
    first = next((row for row in rows if row.kept is not None), None)
    last = next((row for row in reversed(rows) if row.kept is not None), None)
    if first is None or last is None or last.kept is None:
        return 0, 0
    return (first.kept or 0) if first.taken is None else first.taken, last.kept
