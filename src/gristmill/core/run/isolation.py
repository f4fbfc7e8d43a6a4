"""Isolation: finding the records that a stage fails on, so that all others go on.

A stage that raises on a batch is given one half of its rows, then the other, and so on down to the row at fault,
which goes to quarantine after its retries. What the parts give is put together again, so that the output is that
of the batch without the row.

A record that ends its worker, or hangs in it, cannot be found from inside. The page that the worker shares with
the driver says which rows of which task it was given last; the driver remembers them as a `SuspectRows`, and the next
attempt gives the stage those rows in smaller and smaller pieces, until a single row is left. It is not given to
the stage again.

What is given up: stages that look at several rows at once see them in other company after a failure.
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
"""Into how many pieces suspect rows are cut: each costs a worker only if the record is in it."""

HELD_TASKS, HELD_BYTES = 10_000, 64 * 2**20
"""So much of what a stage makes of one batch is held back until it has made all of it, to be able to start over."""

_END = object()
_READY = (Task, list, tuple, type(None))
"""Answers that are there at once; others are made step by step."""


@fast_dataclass(slots=True)
class RowLocation:
    """Which rows of which task a worker had given to which stage. A task that is no batch has outputs for rows."""

    position: int
    task: int
    start: int
    stop: int

    @property
    def known(self) -> bool:
        """False once a batch has given more than is held: rows that have left cannot be taken back."""
        return self.start >= 0


@fast_dataclass(slots=True)
class SuspectRows:
    """Rows that a worker ended on. With an `error`, it is known that the one that is left is to blame."""

    place: RowLocation
    tries: int = 1
    error: StageError | None = None

    def covers(self, place: RowLocation) -> bool:
        mine = self.place
        same = (mine.position, mine.task) == (place.position, place.task)
        return self.error is None and same and mine.start <= place.start and place.stop <= mine.stop

    def confirm(self, error: StageError, max_retries: int) -> None:
        """The error is the record's, if there is one record left and it was tried often enough."""
        if self.place.stop - self.place.start <= 1 and self.tries > max_retries:
            self.error = error


@fast_dataclass(slots=True)
class FailureHistory:
    """What is known of an item from earlier attempts."""

    attempts: int = 0
    troubles: list[SuspectRows] = field(default_factory=list)

    @property
    def failures_without_record(self) -> int:
        """Attempts that failed and taught nothing about a record."""
        return self.attempts - sum(trouble.tries for trouble in self.troubles)

    def record_failure(self, place: RowLocation, error: StageError, max_retries: int) -> bool:
        """A worker has ended there. False: it ends somewhere else each time, so no record is to blame."""
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
    """A number for a task that fits into a float, to be left where a dead worker's last words are read."""
    return int.from_bytes(blake2b(lineage.id.encode(), digest_size=6).digest(), "big")


class Isolator:
    """Asks stages for answers on behalf of a worker, and sets aside what they fail on."""

    def __init__(self, worker: Worker, budget: ErrorBudget) -> None:
        self.worker, self.budget = worker, budget
        self.history = FailureHistory()
        self.quarantined: list[QuarantinedRecord] = []
        self.failed = 0
        self.reported_by_stage: list[dict[str, Any]] = []
        self.repeating = False
        """What a stage does now it has done before, and it was written down."""
        for stage in worker.stages:
            stage._report = StageReport(quarantined=self.reported_by_stage)

    def begin(self, history: FailureHistory, budget: ErrorBudget) -> None:
        """A call begins: what is known from earlier attempts, and what is left of the budget."""
        self.history, self.budget = history, budget

    def take(self) -> list[QuarantinedRecord]:
        """What was set aside since the last call."""
        aside, self.quarantined, self.failed = self.quarantined, [], 0
        return aside

    # -- one stage -----------------------------------------------------------------------------------

    def answers(self, position: int, tasks: list[Task[Any]]) -> list[Answer[Any]]:
        """One answer per task. What a stage yields is stepped through here, so that it can be asked for again."""
        troubles = self.history.troubles
        if troubles and any(trouble.place.position == position for trouble in troubles):
            return [self._avoid_suspects(position, task) for task in tasks]
        return self._try(position, tasks)

    def _try(self, position: int, tasks: list[Task[Any]], start: int = 0) -> list[Answer[Any]]:
        """One answer per task. `start` is the number of the first row in the batch that the task is a slice of."""
        try:
            return self._ask(position, tasks, start)
        except StageError as error:
            if not self.can_isolate(position, error):
                raise
            failure = error  # handled below, so that what fails next has a traceback of its own
        if len(tasks) == 1:
            return [self._divide(position, tasks[0], start, failure)]
        half = len(tasks) // 2
        return [*self._try(position, tasks[:half]), *self._try(position, tasks[half:])]

    def _ask(self, position: int, tasks: list[Task[Any]], start: int) -> list[Answer[Any]]:
        """One answer per task. When the stage fails, the books are as they were before."""
        books = self._counters_before(position)
        try:
            answers = self.worker.ask(position, tasks, start)
            if len(tasks) == 1:
                return [self._stepped(position, tasks[0], answers[0], start)]
            if len(self.quarantined) > books[0]:  # which of the tasks was it?
                self._reset(position, books)
                return [self._ask(position, [task], 0)[0] for task in tasks]
            return [self._stepped(position, *pair, start) for pair in zip(tasks, answers, strict=True)]
        except StageError as error:
            if not isinstance(error, OverBudget):
                self._reset(position, books)
            raise

    def _divide(self, position: int, task: Task[Any], start: int, error: StageError) -> Answer[Any]:
        if not isinstance(task, Batch) or task.num_items < 2:
            return self._retry_record(position, task, start, error)
        half = task.num_items // 2
        first = self._try(position, [task.slice(0, half)], start)
        second = self._try(position, [task.slice(half)], start + half)
        return self._merge(position, task, [first[0], second[0]])

    def _retry_record(self, position: int, task: Task[Any], start: int, error: StageError) -> Answer[Any]:
        """One record: try as often as the stage allows, then give it up."""
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

    # -- what a stage yields -------------------------------------------------------------------------

    def _stepped(self, position: int, parent: Task[Any], answer: Answer[Any], start: int) -> Answer[Any]:
        """The answer; if it is made step by step, with all its steps taken or watched."""
        if isinstance(answer, _READY):
            return answer
        if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
            return answer  # no answer at all: the worker will say so
        if isinstance(parent, Batch):
            return self._buffered(position, parent, iter(answer), start)
        return self._resumable(position, parent, iter(answer))

    def _buffered(self, position: int, parent: Batch, answer: Iterator[Any], start: int) -> Iterable[Any]:
        """The steps, none of which leaves before all are there: if one fails, they can be had again without a row."""
        held: list[Any] = []
        size = 0
        for output in self.worker.outputs(position, parent, answer, start):
            held.append(output)
            size += output.nbytes if isinstance(output, Task) else 0
            if len(held) >= HELD_TASKS or size >= HELD_BYTES:
                return chain(held, self.worker.outputs(position, parent, answer, -1 - parent.num_items))
        return held

    def _resumable(self, position: int, parent: Task[Any], answer: Iterator[Any] | None) -> Iterator[Any]:
        """The steps for a task that is no batch. If one fails they are taken again, without what has left already."""
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
        """What a stage yields, asked anew if need be, up to a step that ends its worker."""
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

    # -- records that end their worker ---------------------------------------------------------------

    def _avoid_suspects(self, position: int, task: Task[Any]) -> Answer[Any]:
        """A task at a stage in which a worker has ended: rows at fault are left out, suspect rows go in pieces."""
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
        found = [trouble for trouble in self.history.troubles if (trouble.place.position, trouble.place.task) == here]
        return sorted(found, key=lambda trouble: trouble.place.start)

    def _stops_at(self, position: int, parent: Task[Any], index: int) -> bool:
        """Whether output number `index` of a task that is no batch must not be asked for."""
        if not self.history.troubles:
            return False
        for trouble in self._troubles(position, parent):
            if trouble.error is not None and trouble.place.start == index:
                self._give_up(position, parent, trouble.error, trouble.tries, after=index)
                return True
        return False

    # -- the books -----------------------------------------------------------------------------------

    def can_isolate(self, position: int, error: StageError) -> bool:
        """What cannot be written, and what is wrong with the pipeline, is no fault of a record."""
        stage = self.worker.stages[position]
        elsewhere = error.stage != stage.name
        return not error.hopeless and not elsewhere and can_set_records_aside(stage)

    def _give_up(
        self, position: int, task: Task[Any], error: StageError, tries: int, number: int = 0, after: int = 0
    ) -> None:
        if isinstance(task, EmptyTask) or (isinstance(task, Batch) and not task.num_items):  # no record is at fault
            error.hopeless = True
            raise error
        # a list of files has no rows, and yet something of it is missing
        self.set_aside(position, failed_record(task, error, tries, number, after), max(task.num_rows, 1))

    def set_aside(self, position: int, record: QuarantinedRecord, rows: int) -> None:
        self.quarantined.append(record)
        self.worker.stats[position].quarantined += rows
        self.failed += record.records
        seen = rows_read(self.worker.stats) if self.budget.reads else 0
        if self.budget.is_exhausted(self.failed, seen):
            raise OverBudget(record.stage, record.task, record.files, record.error, record.traceback, position, seen)

    def collect(self, position: int, lineage: Lineage, failed: bool) -> None:
        """Take what a stage has set aside by itself; after a failure it will do so again."""
        if self.worker.side_output_recorder:
            places = (note["position"] for note in self.reported_by_stage if not failed)
            self.worker.side_output_recorder.aside = [place for place in places if place is not None]
        if self.reported_by_stage and not failed and not self.repeating:
            name = self.worker.stages[position].name
            for note in list(self.reported_by_stage):
                record = unreadable_record(name, lineage, note)
                self.set_aside(position, record, record.records)
        self.reported_by_stage.clear()

    def _counters_before(self, position: int) -> tuple[int, int, int, dict[str, float]]:
        counts = dict(report_of(self.worker.stages[position]).counters)
        return len(self.quarantined), self.failed, self.worker.stats[position].quarantined, counts

    def _reset(self, position: int, books: tuple[int, int, int, dict[str, float]]) -> None:
        aside, self.failed, self.worker.stats[position].quarantined, counters = books
        del self.quarantined[aside:]
        report_of(self.worker.stages[position]).counters = counters


class OverBudget(StageError):
    """A call has spent what was left of the error budget, having read so many rows."""

    def __init__(
        self, stage: str, task_id: str, files: Sequence[str], reason: str, details: str, position: int, rows: int = 0
    ) -> None:
        super().__init__(stage, task_id, files, reason, details, position)
        self.hopeless, self.rows = True, rows

    def __reduce__(self) -> tuple[Any, ...]:
        kind, fields, state = super().__reduce__()
        return kind, (*fields, self.rows), state


def suspect_pieces(rows: int, troubles: Sequence[SuspectRows]) -> Iterator[tuple[int, int, SuspectRows | None]]:
    """The rows of a batch, cut at troubles: what is not suspect in one piece, suspects in up to PIECES."""
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
    """The answer for a batch, from those for its parts."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, Batch) and isinstance(second, Batch):
        return type(first).concat([first, second])
    return [*_as_list(first), *_as_list(second)]


def _as_list(answer: Any) -> list[Any]:
    return [answer] if isinstance(answer, Task) else list(answer)
