"""Find the records that a stage fails on and quarantine them, so that the others go on.

A batch on which a stage raises is halved again and again down to the failing row, which is quarantined after its
retries. The answers for the parts are merged, so the output is that of the batch without the row.

A record that kills its worker, or hangs, cannot be found from inside the process. The driver reads from shared memory
which rows the worker passed to a stage last, and keeps them as `SuspectRows`. The next attempts pass these rows in
smaller and smaller pieces, until a single row is left, which is quarantined without being passed again.

After a failure, a stage that compares the rows of a batch sees them in smaller batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import reduce
from hashlib import blake2b
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from gristmill.core.batch import Batch
from gristmill.core.errors import StageError
from gristmill.core.executor import rows_read
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.quarantine import ErrorBudget, QuarantinedRecord, failed_record, unreadable_record
from gristmill.core.stage import Answer, StageReport, report_of
from gristmill.core.stage_roles import can_set_records_aside
from gristmill.core.task import EmptyTask, Task

if TYPE_CHECKING:
    from gristmill.core.run.worker import Worker
    from gristmill.core.task import Lineage

MAX_SUSPECT_PIECES = 16
"""Into how many pieces suspect rows are cut. Only the piece with the failing record costs a worker."""

HELD_TASKS, HELD_BYTES = 10_000, 64 * 2**20
"""How much of a stage's output for one batch is held back until it is complete, so that the batch can be redone."""

_END = object()
_READY = (Task, list, tuple, type(None))
"""Types of answers that are complete; others are lazy."""


@fast_dataclass(slots=True)
class RowLocation:
    """The rows of a task that a worker passed to a stage. For tasks that are not batches, output numbers."""

    position: int
    task: int
    start: int
    stop: int

    @property
    def known(self) -> bool:
        """False once a batch has sent more than is held back, since rows that were sent cannot be withdrawn."""
        return self.start >= 0


@fast_dataclass(slots=True)
class SuspectRows:
    """Rows during which a worker died. With an `error`, they are a single row that is known to be the cause."""

    place: RowLocation
    tries: int = 1
    error: StageError | None = None

    def covers(self, place: RowLocation) -> bool:
        mine = self.place
        same = (mine.position, mine.task) == (place.position, place.task)
        return self.error is None and same and mine.start <= place.start and place.stop <= mine.stop

    def confirm(self, error: StageError, max_retries: int) -> None:
        """Blame the record, if only one is left and its retries are used up."""
        if self.place.stop - self.place.start <= 1 and self.tries > max_retries:
            self.error = error


@fast_dataclass(slots=True)
class FailureHistory:
    """The earlier failed attempts of an item."""

    attempts: int = 0
    troubles: list[SuspectRows] = field(default_factory=list)

    @property
    def failures_without_record(self) -> int:
        """Failed attempts that did not narrow down the failing record."""
        return self.attempts - sum(trouble.tries for trouble in self.troubles)

    def record_failure(self, place: RowLocation, error: StageError, max_retries: int) -> bool:
        """Record where a worker died. False if the place differs each time, so that no record is to blame."""
        if not place.known:
            return self.failures_without_record <= max_retries
        known = next((trouble for trouble in self.troubles if trouble.covers(place)), None)
        if known:
            known.place, known.tries = place, known.tries + 1
        else:
            known = SuspectRows(place)
            self.troubles.append(known)
        known.confirm(error, max_retries)
        return sum(trouble.error is None for trouble in self.troubles) <= max_retries + 2


def task_number(lineage: Lineage) -> int:
    """A hash of a task's id that a float holds exactly, for the shared memory that outlives the worker."""
    return int.from_bytes(blake2b(lineage.id.encode(), digest_size=6).digest(), "big")


class Isolator:
    """Calls stages on behalf of a worker, and quarantines the records they fail on."""

    def __init__(self, worker: Worker, budget: ErrorBudget) -> None:
        self.worker, self.budget = worker, budget
        self.history = FailureHistory()
        self.quarantined: list[QuarantinedRecord] = []
        self._rows_aside: list[int] = []
        """How many rows each of them stands for."""
        self.failed = 0
        self.reported_by_stage: list[dict[str, Any]] = []
        self.repeating = False
        """The stage is repeating outputs whose quarantined records were already recorded."""
        for stage in worker.stages:
            stage._report = StageReport(quarantined=self.reported_by_stage)

    def begin(self, history: FailureHistory, budget: ErrorBudget) -> None:
        """Start a call, with the history of its item and the remaining budget."""
        self.history, self.budget = history, budget

    def take(self) -> list[QuarantinedRecord]:
        """The records quarantined since the last call."""
        taken, self.quarantined, self._rows_aside, self.failed = self.quarantined, [], [], 0
        return taken

    # -- one stage -----------------------------------------------------------------------------------

    def answers(self, position: int, tasks: list[Task[Any]]) -> list[Answer[Any]]:
        """One answer per task. Lazy answers are consumed here, so that the stage can be called again."""
        troubles = self.history.troubles
        if troubles and any(trouble.place.position == position for trouble in troubles):
            return [self._avoid_suspects(position, task) for task in tasks]
        return self._try(position, tasks)

    def _try(self, position: int, tasks: list[Task[Any]], start: int = 0) -> list[Answer[Any]]:
        """One answer per task. `start` is the index of the first row in the batch that the task was sliced from."""
        try:
            return self._ask(position, tasks, start)
        except StageError as error:
            if not self.can_isolate(position, error):
                raise
            failure = error  # handled outside `except`, so that later errors are not chained to this one
        if len(tasks) == 1:
            return [self._divide(position, tasks[0], start, failure)]
        half = len(tasks) // 2
        return [*self._try(position, tasks[:half]), *self._try(position, tasks[half:])]

    def _ask(self, position: int, tasks: list[Task[Any]], start: int) -> list[Answer[Any]]:
        """One answer per task. If the stage fails, the counters are reset to their values before the call."""
        counters = self._counters_before(position)
        try:
            answers = self.worker.ask(position, tasks, start)
            if len(tasks) == 1:
                return [self._stepped(position, tasks[0], answers[0], start)]
            if len(self.quarantined) > counters[0]:  # ask again one by one, to attribute the records to their tasks
                self._reset(position, counters)
                return [self._ask(position, [task], 0)[0] for task in tasks]
            return [self._stepped(position, *pair, start) for pair in zip(tasks, answers, strict=True)]
        except StageError as error:
            if not isinstance(error, OverBudget):
                self._reset(position, counters)
            raise

    def _divide(self, position: int, task: Task[Any], start: int, error: StageError) -> Answer[Any]:
        if not isinstance(task, Batch) or task.num_items < 2:
            return self._retry_record(position, task, start, error)
        half = task.num_items // 2
        first = self._try(position, [task.slice(0, half)], start)
        second = self._try(position, [task.slice(half)], start + half)
        return self._merge(position, task, [first[0], second[0]])

    def _retry_record(self, position: int, task: Task[Any], start: int, error: StageError) -> Answer[Any]:
        """Retry a single record as often as the stage allows, then quarantine it."""
        tries = self.worker.stages[position].max_retries
        for _ in range(tries):
            try:
                return self._ask(position, [task], start)[0]
            except StageError as another:
                if not self.can_isolate(position, another):
                    raise
                error = another
        self._give_up(position, task, error, tries + 1, number=start)
        return None

    def _merge(self, position: int, task: Task[Any], answers: Iterable[Answer[Any]]) -> Answer[Any]:
        try:
            return reduce(merge_answers, answers, None)
        except StageError:
            raise
        except Exception as error:
            raise self.worker.failure(position, task.lineage, error, doing="joining its answers for parts") from error

    # -- lazy answers --------------------------------------------------------------------------------

    def _stepped(self, position: int, parent: Task[Any], answer: Answer[Any], start: int) -> Answer[Any]:
        """The answer; a lazy one is buffered, or can be resumed after a failure."""
        if isinstance(answer, _READY):
            return answer
        if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
            return answer  # not a valid answer: the worker reports it
        if isinstance(parent, Batch):
            return self._buffered(position, parent, iter(answer), start)
        return self._resumable(position, parent, iter(answer))

    def _buffered(self, position: int, parent: Batch, answer: Iterator[Any], start: int) -> Iterable[Any]:
        """The outputs, held back until all are there, so that they can be made again without the failing row."""
        held: list[Any] = []
        size = 0
        for output in self.worker.outputs(position, parent, answer, start):
            held.append(output)
            size += output.nbytes if isinstance(output, Task) else 0
            if len(held) >= HELD_TASKS or size >= HELD_BYTES:
                return chain(held, self.worker.outputs(position, parent, answer, -1 - parent.num_items))
        return held

    def _resumable(self, position: int, parent: Task[Any], answer: Iterator[Any] | None) -> Iterator[Any]:
        """The outputs for a task that is not a batch. After a failure, the stage is called again and outputs that were
        already passed on are skipped."""
        counts, given = self._counters_before(position)[-1], 0
        for tries in count(1):
            try:
                for index, output in enumerate(self._steps(position, parent, answer, given)):
                    if index >= given:
                        given += 1
                        yield output
            except StageError as error:
                if not self.can_isolate(position, error):
                    raise
                if tries > self.worker.stages[position].max_retries:
                    self._give_up(position, parent, error, tries, after=given)
                    return
                answer = None
                report_of(self.worker.stages[position]).counters = dict(counts)
            else:
                return

    def _steps(self, position: int, parent: Task[Any], answer: Iterator[Any] | None, skip: int) -> Iterator[Any]:
        """The outputs of a stage, called again if `answer` is None, up to one that is known to kill its worker."""
        if answer is None:
            again = self.worker.ask(position, [parent])[0]
            answer = iter([again] if isinstance(again, Task) else again or ())
        outputs = self.worker.outputs(position, parent, answer)
        for index in count():
            if self._stops_at(position, parent, index):
                return
            self.repeating = index < skip
            try:
                output = next(outputs, _END)
            finally:
                self.repeating = False
            if output is _END:
                return
            yield output

    # -- records that kill their worker --------------------------------------------------------------

    def _avoid_suspects(self, position: int, task: Task[Any]) -> Answer[Any]:
        """Pass a task to a stage in which a worker died, without the failing rows and with suspect rows in pieces."""
        troubles = self._troubles(position, task)
        if not isinstance(task, Batch):
            if self._stops_at(position, task, 0):
                return None
            return self._try(position, [task])[0]
        answers: list[Answer[Any]] = []
        for start, stop, trouble in suspect_pieces(task.num_items, troubles):
            rows = task.slice(start, stop - start)
            if trouble is not None and trouble.error is not None:
                self._give_up(position, rows, trouble.error, trouble.tries, number=start)
            else:
                answers += self._try(position, [rows], start)
        return self._merge(position, task, answers)

    def _troubles(self, position: int, task: Task[Any]) -> list[SuspectRows]:
        here = (position, task_number(task.lineage))
        same = [trouble for trouble in self.history.troubles if (trouble.place.position, trouble.place.task) == here]
        return sorted(same, key=lambda trouble: trouble.place.start)

    def _stops_at(self, position: int, parent: Task[Any], index: int) -> bool:
        """Whether output `index` of a task that is not a batch is known to kill its worker."""
        if not self.history.troubles:
            return False
        for trouble in self._troubles(position, parent):
            if trouble.error is not None and trouble.place.start == index:
                self._give_up(position, parent, trouble.error, trouble.tries, after=index)
                return True
        return False

    # -- quarantine and counters ---------------------------------------------------------------------

    def can_isolate(self, position: int, error: StageError) -> bool:
        """Whether a record may be the cause; not if the output cannot be written, or if the pipeline is wrong."""
        stage = self.worker.stages[position]
        elsewhere = error.stage != stage.name  # raised by the writer of side outputs
        return not error.hopeless and not elsewhere and can_set_records_aside(stage)

    def _give_up(
        self, position: int, task: Task[Any], error: StageError, tries: int, number: int = 0, after: int = 0
    ) -> None:
        if isinstance(task, EmptyTask) or (isinstance(task, Batch) and not task.num_items):  # there is no record
            error.hopeless = True
            raise error
        # A file group has no rows, but counts as one: otherwise its loss would not show in the counts.
        self.set_aside(position, failed_record(task, error, tries, number, after), max(task.num_rows, 1))

    def set_aside(self, position: int, record: QuarantinedRecord, rows: int) -> None:
        self.quarantined.append(record)
        self.worker.stats_of(record.source)[position].quarantined += rows
        self._rows_aside.append(rows)
        self.failed += record.records
        seen = rows_read(self.worker.stats) if self.budget.reads else 0
        if self.budget.is_exhausted(self.failed, seen):
            raise OverBudget(record.stage, record.task, record.files, record.error, record.traceback, position, seen)

    def collect(self, position: int, lineage: Lineage, failed: bool) -> None:
        """Quarantine the records that a stage reported itself. After a failure they are ignored, as the stage will
        report them again."""
        if self.worker.side_output_recorder:
            notes = [note for note in self.reported_by_stage if not failed and note["position"] is not None]
            aside = [(note["position"], note.get("row") or {}) for note in notes]
            self.worker.side_output_recorder.aside = aside
        if self.reported_by_stage and not failed and not self.repeating:
            name = self.worker.stages[position].name
            for note in list(self.reported_by_stage):
                record = unreadable_record(name, lineage, note)
                self.set_aside(position, record, record.records)
        self.reported_by_stage.clear()

    def _counters_before(self, position: int) -> tuple[int, int, dict[str, float]]:
        counts = dict(report_of(self.worker.stages[position]).counters)
        return len(self.quarantined), self.failed, counts

    def _reset(self, position: int, before: tuple[int, int, dict[str, float]]) -> None:
        length, self.failed, counters = before
        for record, rows in zip(self.quarantined[length:], self._rows_aside[length:], strict=True):
            self.worker.stats_of(record.source)[position].quarantined -= rows
        del self.quarantined[length:], self._rows_aside[length:]
        report_of(self.worker.stages[position]).counters = counters


class OverBudget(StageError):
    """A call has exhausted the remaining error budget, after reading `rows` rows."""

    def __init__(
        self, stage: str, task_id: str, files: Sequence[str], reason: str, details: str, position: int, rows: int = 0
    ) -> None:
        super().__init__(stage, task_id, files, reason, details, position)
        self.hopeless, self.rows = True, rows

    def __reduce__(self) -> tuple[Any, ...]:
        kind, fields, state = super().__reduce__()
        return kind, (*fields, self.rows), state


def suspect_pieces(rows: int, troubles: Sequence[SuspectRows]) -> Iterator[tuple[int, int, SuspectRows | None]]:
    """Cut the rows of a batch into ranges: unsuspected rows in one piece, suspects in up to MAX_SUSPECT_PIECES."""
    done = 0
    for trouble in troubles:
        start, stop = max(trouble.place.start, done), min(trouble.place.stop, rows)
        if start >= stop:
            continue
        if done < start:
            yield done, start, None
        step = stop - start if trouble.error else max(1, -(-(stop - start) // MAX_SUSPECT_PIECES))
        for first in range(start, stop, step):
            yield first, min(first + step, stop), trouble
        done = stop
    if done < rows:
        yield done, rows, None


def merge_answers(first: Answer[Any], second: Answer[Any]) -> Answer[Any]:
    """Merge the answers for two parts of a batch."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, Batch) and isinstance(second, Batch):
        return type(first).concat([first, second])
    return [*_as_list(first), *_as_list(second)]


def _as_list(answer: Any) -> list[Any]:
    return [answer] if isinstance(answer, Task) else list(answer)
