"""Keep the records that could not be processed, with what is needed to understand and redo them.

The driver counts them against the error budget and stops the run when it is exhausted (`Quarantine`). `isolation.py`
finds the failing records; `run_directory.py` writes them.
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
from gristmill.core.errors import (
    MAX_REASON_CHARS,
    ErrorBudgetError,
    StageError,
    TaskTimeoutError,
    WorkerLostError,
    cut_middle,
    shorten,
)
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.secret_values import hide_in_urls, hide_secrets
from gristmill.core.task import FileGroupTask, Task, digest

if TYPE_CHECKING:
    from gristmill.core.executor import Progress
    from gristmill.core.records.stage_stats import StageStats
    from gristmill.core.task import Lineage

RAISED, CRASHED, TIMED_OUT, UNREADABLE = "raised", "crashed", "timed out", "unreadable"

MIN_ROWS_FOR_SHARE = 10_000
"""Before the end of a run, a share of errors is taken of at least this many rows."""

ALL_FAILED = 10
"""A stage that fails on all its records, and on at least this many, stops the run, unless any number may fail."""

_SHOWN = 10_000
_CAUSES = 1_000
"""How many different causes are counted separately."""


@fast_dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A quarantined record: its content and origin, the stage that failed on it, how and how often."""

    stage: str
    kind: str
    error: str
    task: str
    source: str
    files: tuple[str, ...] = ()
    file: str | None = None
    position: int | None = None
    number: int = 0
    """The index of the row in its task, for rows without a position in a file."""
    row: dict[str, Any] | None = None
    """The row as passed to the stage."""
    content: str | None = None
    """In place of a row: bytes that could not be parsed, or a description of the task."""
    records: int = 1
    attempts: int = 1
    traceback: str = ""

    @property
    def id(self) -> str:
        """An id that is the same in every run over the same input."""
        place = [self.task, str(self.number)] if self.position is None else [self.file or "", str(self.position)]
        return digest([self.stage, self.source, *place], 6)

    def line(self, attempt: str = "") -> bytes:
        """The record as JSON, with the attempt of the run that it belongs to."""
        entry = {"id": self.id, "attempt": attempt, **{field.name: getattr(self, field.name) for field in fields(self)}}
        try:
            return orjson.dumps(entry, default=_plain, option=orjson.OPT_NON_STR_KEYS)
        except TypeError:  # orjson rejects huge integers, lone surrogates and deep nesting
            return _any_json(entry)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> QuarantinedRecord:
        known = {name: value for name, value in fields.items() if name in cls.__dataclass_fields__}
        return cls(**{**known, "files": tuple(known.get("files", ()))})


def _plain(value: Any) -> Any:
    """A value of a type that JSON lacks, as text."""
    return "base64:" + base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _any_json(entry: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(_json_safe(entry), default=_plain, option=orjson.OPT_NON_STR_KEYS)
    except Exception:  # noqa: BLE001  a row may hold any Python object
        row = {"repr": _clipped_repr(entry["row"])}
        return orjson.dumps(_json_safe({**entry, "row": row}), default=_plain, option=orjson.OPT_NON_STR_KEYS)


def _json_safe(value: Any) -> Any:
    """The value with invalid Unicode escaped, and integers beyond 64 bits as text."""
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
    """The record for a task, or for the only row of a batch, on which a stage failed after `after` outputs."""
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
    """A record that the stage itself reported as unreadable."""
    found = {**note, "error": hide_secrets(cut_middle(note["error"], MAX_REASON_CHARS))}
    return QuarantinedRecord(
        stage=stage, kind=UNREADABLE, task=lineage.id, source=lineage.source, files=lineage.files, **found
    )


def _row(table: pa.Table) -> dict[str, Any]:
    """The first row; a value that Python cannot represent is replaced by the error."""
    row: dict[str, Any] = {}
    for name in table.column_names:
        try:
            row |= table_to_rows(table.select([name]).slice(0, 1))[0]
        except Exception as error:  # noqa: BLE001  invalid UTF-8, or a date out of Python's range
            row[name] = f"({error})"
    return row


def _describe(task: Task[Any]) -> str:
    if isinstance(task, FileGroupTask):
        return "files " + hide_in_urls(", ".join(map(str, task.parts()[:100])))[:_SHOWN]
    return _clipped_repr(task.data)


_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = _SHOWN
_brief.maxlist = _brief.maxtuple = _brief.maxdict = _brief.maxset = _brief.maxarray = 100


def _clipped_repr(value: Any) -> str:
    """A short representation of any value, however large."""
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
    """How many records may fail: a number, a share of those read, or any (both None)."""

    most: int | None = None
    share: float | None = None
    failed: int = 0
    rows: int = 0
    """Records failed and read before this call."""
    reads: bool = True
    """Whether the call itself reads rows, which then count towards the share."""

    @classmethod
    def of(cls, max_errors: float | None) -> ErrorBudget:
        if max_errors is None:
            return cls()
        whole = isinstance(max_errors, int)
        if isinstance(max_errors, bool) or not isinstance(max_errors, int | float) or not max_errors >= 0:
            raise ValueError(f"max_errors is {max_errors!r}: must be a number of records, a share like 0.01, or None")
        if not whole and max_errors > 1:
            raise ValueError(f"max_errors is {max_errors!r}: a share is at most 1.0, a number of records is an integer")
        return cls(most=int(max_errors)) if whole else cls(share=float(max_errors))

    @property
    def is_limited(self) -> bool:
        return self.most is not None or self.share is not None

    def remaining(self, failed: int, rows: int, reads: bool = True) -> ErrorBudget:
        """The budget for one call, after `failed` of `rows` records."""
        return self._replace(failed=failed, rows=rows, reads=reads)

    def is_exhausted(self, failed: int, rows: int, final: bool = False) -> bool:
        """Whether too many rows have failed. Unless `final`, a share is taken of at least MIN_ROWS_FOR_SHARE rows."""
        failed, rows = failed + self.failed, rows + self.rows
        if self.most is not None:
            return failed > self.most
        return self.share is not None and failed > self.share * (rows if final else max(rows, MIN_ROWS_FOR_SHARE))

    def __str__(self) -> str:
        return f"{self.most:,}" if self.most is not None else f"{(self.share or 0) * 100:g}%"


class QuarantineWriter(Protocol):
    """Writes quarantined records; implemented by `Run`."""

    @property
    def url(self) -> str: ...

    @property
    def earlier_errors(self) -> tuple[int, int]:
        """Records quarantined and read in sources that earlier attempts finished."""

    @property
    def resumes(self) -> bool:
        """Whether the run goes on where it stopped, when it is started again."""

    def add_quarantined(self, records: Sequence[QuarantinedRecord]) -> None: ...

    def add_counts(self, source: str, group: int, stats: Sequence[StageStats]) -> None: ...

    def quarantined(self) -> Iterator[QuarantinedRecord]: ...


_FROM_THE_START = "without run_dir=... it starts from the beginning; "


class Quarantine:
    """The quarantined records of one attempt of a run, kept by the driver."""

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
        """The remaining budget after `rows` rows were read in this attempt."""
        failed, read = self._before
        return self.budget.remaining(self.failed + failed, max(rows, self._rows) + read, reads)

    def begin_segment(self, rows: int) -> None:
        """Start a segment. `rows` were read so far and stay the base of a share, though later segments see fewer."""
        self._rows = max(self._rows, rows)

    def counted(self, source: str, group: int, stats: Sequence[StageStats]) -> None:
        """Record what the stages of a group have done with a source."""
        if self._keeper:
            self._keeper.add_counts(source, group, stats)

    def take(self, records: Iterable[QuarantinedRecord], rows: int) -> None:
        """Keep records, after `rows` rows were read. Raises when the budget is exhausted."""
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
        """The error for a call that stopped because it exhausted the remaining budget."""
        self._note(records)
        return self._stop(max(rows, self.failed), f"more than max_errors={self.budget} allows: the run was stopped")

    def close(self, progress: Progress) -> None:
        """End a segment: raise if too many of its records failed."""
        rows = progress.rows_read
        left = self.remaining_budget(rows, reads=False)
        if left.failed and left.is_exhausted(0, 0, final=True):
            raise self._stop(rows, f"more than max_errors={self.budget} allows")
        for name, stats in progress.stages if self.budget.is_limited else ():
            if stats.quarantined >= max(ALL_FAILED, stats.rows_in) and not stats.rows_out:
                raise self._stop(rows, f"and stage {name!r} failed on everything that it was given")

    @property
    def _before(self) -> tuple[int, int]:
        return self._keeper.earlier_errors if self._keeper else (0, 0)

    @property
    def _resumes(self) -> bool:
        return self._keeper is not None and self._keeper.resumes

    def _stop(self, rows: int, why: str) -> StageError:
        failed, read = self._before
        rows, total = rows + read, self.failed + failed
        share = f" of {rows:,} records ({100 * total / rows:.3g}%)" if rows else " records"
        lines = [f"{total:,}{share} failed, {why}."]
        common = self._causes.most_common(5)
        lines += [f"  {count:>9,}  stage {stage!r}: {error}" for (stage, error), count in common]
        lines += [f"  ... and {len(self._causes) - len(common)} other causes"] if len(self._causes) > 5 else []
        lines += [f"  {failed:>9,}  in earlier attempts of this run"] if failed else []
        url = self._keeper.url if self._keeper else ""
        lines.append(
            (f"To see the failed records: gristmill quarantine list {url}\n" if url else "")
            + "Fix the cause and run again: "
            + ("with the same run_dir=... it goes on where this run stopped; " if self._resumes else _FROM_THE_START)
            + "or allow more with max_errors=..."
        )
        first = self._first or next(self._keeper.quarantined() if self._keeper else iter(()))
        reason = f"{first.error}\n\n" + "\n".join(lines)
        return ErrorBudgetError(first.stage, first.task, first.files, reason, first.traceback)

    def summary(self) -> str:
        """One line for the user, empty if nothing was quarantined."""
        if not self.failed:
            return ""
        stages = shorten(list(dict.fromkeys(stage for stage, _ in self._causes)))
        return f"{self.failed:,} records could not be processed ({stages})"
