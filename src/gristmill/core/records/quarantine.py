"""Quarantine: records that could not be processed, kept with all that is needed to understand and redo them.

The driver keeps the books (`Quarantine`), counts against the error budget, and stops the run when it is spent.
How a failing record is found is in `isolation.py`; where it is written in `run_directory.py`.
"""

from __future__ import annotations

import base64
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson
import pyarrow as pa

from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.errors import ErrorBudgetError, StageError, TaskTimeoutError, WorkerLostError, shorten
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.task import FileGroupTask, Task, digest

if TYPE_CHECKING:
    from gristmill.core.executor import Progress
    from gristmill.core.task import Lineage

RAISED, CRASHED, TIMED_OUT, UNREADABLE = "raised", "crashed", "timed out", "unreadable"

MIN_ROWS_FOR_SHARE = 10_000
"""A share of errors stops a run before its end only if it is too large for this many rows too."""

ALL_FAILED = 10
"""A stage that failed on all of its records, and on at least this many, stops the run whatever the budget."""

_SHOWN = 10_000
_CAUSES = 1_000
"""So many different causes are told apart."""


@fast_dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record in quarantine: what it was, where it came from, which stage failed on it, how and how often."""

    stage: str
    kind: str
    error: str
    task: str
    source: str
    files: tuple[str, ...] = ()
    file: str | None = None
    position: int | None = None
    number: int = 0
    """Of the row in its task, for rows that have no position in a file."""
    row: dict[str, Any] | None = None
    """The row as the stage got it."""
    content: str | None = None
    """What there was instead of a row: bytes that could not be read, or a description of a task."""
    records: int = 1
    attempts: int = 1
    traceback: str = ""

    @property
    def id(self) -> str:
        """The same for the same record in every run over the same input."""
        place = [self.task, str(self.number)] if self.position is None else [self.file or "", str(self.position)]
        return digest([self.stage, self.source, *place], 6)

    def line(self, attempt: str = "") -> bytes:
        """The record as JSON, with the attempt of the run that it belongs to."""
        told = {"id": self.id, "attempt": attempt, **{field.name: getattr(self, field.name) for field in fields(self)}}
        try:
            return orjson.dumps(told, default=_plain, option=orjson.OPT_NON_STR_KEYS)
        except TypeError:  # what orjson cannot say: huge integers, lone surrogates, deep nesting
            return _any_json(told)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> QuarantinedRecord:
        known = {name: value for name, value in fields.items() if name in cls.__dataclass_fields__}
        return cls(**{**known, "files": tuple(known.get("files", ()))})


def _plain(value: Any) -> Any:
    """What JSON has no form for."""
    return "base64:" + base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _any_json(told: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(_json_safe(told), default=_plain, option=orjson.OPT_NON_STR_KEYS)
    except Exception:  # noqa: BLE001  a stage may set aside whatever it likes
        row = {"repr": _clipped_repr(told["row"])}
        return orjson.dumps(_json_safe({**told, "row": row}), default=_plain, option=orjson.OPT_NON_STR_KEYS)


def _json_safe(value: Any) -> Any:
    """The value without what is no Unicode text, and without integers beyond 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_json_safe(key): _json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(item) for item in value]
    wide = isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64
    return str(value) if wide else value


def failed_record(
    task: Task[Any], error: StageError, attempts: int, number: int = 0, after: int = 0
) -> QuarantinedRecord:
    """The record of a task (for a batch: of its only row) that a stage failed on, having given `after` outputs."""
    lineage = task.lineage
    row, position, content = None, None, None
    if isinstance(task, Batch):
        row = _row(task.data)
        position = row.pop(POSITION, None)
    else:
        content = _describe(task) + (f", after its output number {after}" if after else "")
    return QuarantinedRecord(
        stage=error.stage,
        kind=kind_of(error),
        error=error.reason,
        task=lineage.id,
        source=lineage.source,
        files=lineage.files,
        file=task.metadata.get(SOURCE_FILE) if isinstance(task.metadata, Mapping) else None,
        position=position,
        number=number,
        row=row,
        content=content,
        attempts=attempts,
        traceback=error.details,
    )


def unreadable_record(stage: str, lineage: Lineage, note: Mapping[str, Any]) -> QuarantinedRecord:
    """A record that a stage itself has set aside."""
    return QuarantinedRecord(
        stage=stage, kind=UNREADABLE, task=lineage.id, source=lineage.source, files=lineage.files, **note
    )


def _row(table: pa.Table) -> dict[str, Any]:
    """The first row, as far as Python can hold it."""
    row: dict[str, Any] = {}
    for name in table.column_names:
        try:
            row |= table_to_rows(table.select([name]).slice(0, 1))[0]
        except Exception as error:  # noqa: BLE001  text that is no UTF-8, a date beyond Python's: what a stage may fail on
            row[name] = f"({error})"
    return row


def _describe(task: Task[Any]) -> str:
    if isinstance(task, FileGroupTask):
        return "files " + ", ".join(map(str, task.parts()[:100]))[:_SHOWN]
    return _clipped_repr(task.data)


_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = _SHOWN
_brief.maxlist = _brief.maxtuple = _brief.maxdict = _brief.maxset = _brief.maxarray = 100


def _clipped_repr(value: Any) -> str:
    """A value in words, whatever it is and however large."""
    try:
        text = value if isinstance(value, str) else _brief.repr(value[:_SHOWN] if isinstance(value, bytes) else value)
    except Exception as error:  # noqa: BLE001
        text = f"{type(value).__name__}, which cannot be shown: {type(error).__name__}"
    return text[:_SHOWN].encode("utf-8", "backslashreplace").decode()


def kind_of(error: StageError) -> str:
    if isinstance(error, TaskTimeoutError):
        return TIMED_OUT
    return CRASHED if isinstance(error, WorkerLostError) else RAISED


class ErrorBudget(NamedTuple):
    """How many records may fail: a number, a share of those that were read, or (both None) any."""

    most: int | None = None
    share: float | None = None
    failed: int = 0
    rows: int = 0
    """What others have spent, and read."""
    reads: bool = True
    """Whether who spends reads rows too; if not, others have."""

    @classmethod
    def of(cls, max_errors: float | None) -> ErrorBudget:
        if max_errors is None:
            return cls()
        whole = isinstance(max_errors, int)
        if isinstance(max_errors, bool) or not isinstance(max_errors, int | float) or not max_errors >= 0:
            raise ValueError(f"max_errors is {max_errors!r}: must be a number of records, a share like 0.01, or None")
        if not whole and max_errors > 1:
            raise ValueError(f"max_errors is {max_errors!r}: a share is at most 1.0, a number of records is whole")
        return cls(most=int(max_errors)) if whole else cls(share=float(max_errors))

    def remaining(self, failed: int, rows: int, reads: bool = True) -> ErrorBudget:
        """What is left, for one call to know when it has spent it."""
        return self._replace(failed=failed, rows=rows, reads=reads)

    def is_exhausted(self, failed: int, rows: int, final: bool = False) -> bool:
        """Whether too many of the rows seen so far have failed. Only at the end are a few rows enough to tell."""
        failed, rows = failed + self.failed, rows + self.rows
        if self.most is not None:
            return failed > self.most
        return self.share is not None and failed > self.share * (rows if final else max(rows, MIN_ROWS_FOR_SHARE))

    def __str__(self) -> str:
        return f"{self.most:,}" if self.most is not None else f"{(self.share or 0) * 100:g}%"


class QuarantineWriter(Protocol):
    """Who writes down what was set aside: the run."""

    @property
    def url(self) -> str: ...

    @property
    def earlier_errors(self) -> tuple[int, int]:
        """How many records of sources that earlier attempts have done are in quarantine, and how many were read."""

    def add_quarantined(self, records: Sequence[QuarantinedRecord]) -> None: ...

    def add_rows_read(self, source: str, rows: int) -> None: ...

    def quarantined(self) -> Iterator[QuarantinedRecord]: ...


class Quarantine:
    """The driver's books of what was set aside in one attempt of a run."""

    def __init__(
        self, isolates: bool = False, budget: ErrorBudget | None = None, keeper: QuarantineWriter | None = None
    ) -> None:
        self.enabled, self.budget = isolates, budget or ErrorBudget()
        self.failed = 0
        self._rows = 0
        self._keeper = keeper
        self._first: QuarantinedRecord | None = None
        self._causes: Counter[tuple[str, str]] = Counter()

    def remaining_budget(self, rows: int, reads: bool) -> ErrorBudget:
        """What is left of the budget after `rows` were read in this attempt."""
        failed, read = self._before
        return self.budget.remaining(self.failed + failed, max(rows, self._rows) + read, reads)

    def begin_segment(self, rows: int) -> None:
        """A segment begins: those before it have read so many rows, and there may be fewer in this one."""
        self._rows = max(self._rows, rows)

    def saw(self, source: str, rows: int) -> None:
        """Rows of a source were read."""
        if self._keeper:
            self._keeper.add_rows_read(source, rows)

    def take(self, records: Iterable[QuarantinedRecord], rows: int) -> None:
        """Keep records; `rows` were read so far. Raises when the budget is spent."""
        taken = list(records)
        if not taken:
            return
        self._note(taken)
        if self.remaining_budget(rows, reads=False).is_exhausted(0, 0):
            raise self._stop(rows, f"more than max_errors={self.budget} allows: the run was stopped")

    def _note(self, records: Sequence[QuarantinedRecord]) -> None:
        self._first = self._first or records[0]
        for each in records:
            self.failed += each.records
            cause = each.stage, each.error.partition("\n")[0][:120]
            if len(self._causes) >= _CAUSES and cause not in self._causes:
                cause = each.stage, each.error.partition(":")[0][:60] + ": ..."
            self._causes[cause] += each.records
        if self._keeper:
            self._keeper.add_quarantined(records)

    def overspent(self, records: Sequence[QuarantinedRecord], rows: int) -> StageError:
        """A worker has stopped because its call has spent what was left of the budget."""
        self._note(records)
        return self._stop(max(rows, self.failed), f"more than max_errors={self.budget} allows: the run was stopped")

    def close(self, progress: Progress) -> None:
        """The run is over: raise if too much of it is here."""
        rows = progress.rows_read
        left = self.remaining_budget(rows, reads=False)
        if left.failed and left.is_exhausted(0, 0, final=True):
            raise self._stop(rows, f"more than max_errors={self.budget} allows")
        for name, stats in progress.stages:
            if stats.quarantined >= max(ALL_FAILED, stats.rows_in) and not stats.rows_out:
                raise self._stop(rows, f"and stage {name!r} failed on everything that it was given")

    @property
    def _before(self) -> tuple[int, int]:
        return self._keeper.earlier_errors if self._keeper else (0, 0)

    def _stop(self, rows: int, why: str) -> StageError:
        failed, read = self._before
        rows, total = rows + read, self.failed + failed
        share = f" of {rows:,} records ({100 * total / rows:.3g}%)" if rows else " records"
        lines = [f"{total:,}{share} failed, {why}."]
        common = self._causes.most_common(5)
        lines += [f"  {count:>9,}  stage {stage!r}: {error}" for (stage, error), count in common]
        lines += [f"  ... and {len(self._causes) - len(common)} other causes"] if len(self._causes) > 5 else []
        lines += [f"  {failed:>9,}  in earlier attempts of this run"] if failed else []
        place = self._keeper.url if self._keeper else ""
        lines.append(
            (f"What failed is kept: gristmill quarantine list {place}\n" if place else "")
            + "Fix the cause and run again: with the same run_dir=... it goes on where this run stopped; "
            "or allow more with max_errors=..."
        )
        first = self._first or next(self._keeper.quarantined() if self._keeper else iter(()))
        reason = f"{first.error}\n\n" + "\n".join(lines)
        return ErrorBudgetError(first.stage, first.task, first.files, reason, first.traceback)

    def summary(self) -> str:
        """One line for people, empty when nothing was set aside."""
        if not self.failed:
            return ""
        stages = shorten(list(dict.fromkeys(stage for stage, _ in self._causes)))
        return f"{self.failed:,} records could not be processed ({stages})"
