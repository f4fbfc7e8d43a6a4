"""Isolation: finding the records that a stage fails on, so that all others go on.

A stage that raises on a batch is given one half of its rows, then the other, and so on down to the row at fault,
which goes to quarantine after its retries. What the parts give is put together again, so that the output is that
of the batch without the row.

A record that ends its worker, or hangs in it, cannot be found from inside. The page that the worker shares with
the driver says which rows of which task it was given last; the driver remembers them as a `Trouble`, and the next
attempt gives the stage those rows in smaller and smaller pieces, until a single row is left. It is not given to
the stage again.

What is given up: stages that look at several rows at once see them in other company after a failure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

from gristmill.core.batch import Batch
from gristmill.core.errors import StageError
from gristmill.core.quarantine import Budget, SetAside, failed_record, unreadable_record
from gristmill.core.stage import Answer
from gristmill.core.task import Task

if TYPE_CHECKING:
    from gristmill.core.task import Lineage
    from gristmill.core.worker import Worker

PIECES = 16
"""Into how many pieces suspect rows are cut: each costs a worker only if the record is in it."""

HELD_TASKS, HELD_BYTES = 10_000, 64 * 2**20
"""So much of what a stage makes of one batch is held back until it has made all of it, to be able to start over."""


@dataclass(slots=True)
class Place:
    """Which rows of which task a worker had given to which stage. A task that is no batch has outputs for rows."""

    position: int
    task: int
    start: int
    stop: int


@dataclass(slots=True)
class Trouble:
    """Rows that a worker ended on. With an `error`, it is known that the one that is left is to blame."""

    place: Place
    tries: int = 1
    error: StageError | None = None

    def covers(self, place: Place) -> bool:
        mine = self.place
        same = (mine.position, mine.task) == (place.position, place.task)
        return self.error is None and same and mine.start <= place.start and place.stop <= mine.stop

    def blame(self, error: StageError, max_retries: int) -> None:
        """The error is the record's, if there is one record left and it was tried often enough."""
        if self.place.stop - self.place.start <= 1 and self.tries > max_retries:
            self.error = error


@dataclass(slots=True)
class History:
    """What is known of an item from earlier attempts."""

    attempts: int = 0
    troubles: list[Trouble] = field(default_factory=list)

    def learn(self, place: Place, error: StageError, max_retries: int) -> bool:
        """A worker has ended there. False: it ends somewhere else each time, so no record is to blame."""
        known = next((trouble for trouble in self.troubles if trouble.covers(place)), None)
        if known:
            known.place, known.tries = place, known.tries + 1
        else:
            known = Trouble(place)
            self.troubles.append(known)
        known.blame(error, max_retries)
        return sum(trouble.error is None for trouble in self.troubles) <= max_retries + 2


def mark(lineage: Lineage) -> int:
    """A number for a task that fits into a float, to be left where a dead worker's last words are read."""
    return int.from_bytes(hashlib.blake2b(lineage.id.encode(), digest_size=6).digest(), "big")


class Isolator:
    """Asks stages for answers on behalf of a worker, and sets aside what they fail on."""

    def __init__(self, worker: Worker, budget: Budget) -> None:
        self.worker, self.budget = worker, budget
        self.history = History()
        self.aside: list[SetAside] = []
        self.failed = 0
        self.notes: list[dict[str, Any]] = []
        for stage in worker.stages:
            stage.__dict__["_aside"] = self.notes

    def take(self) -> list[SetAside]:
        """What was set aside since the last call."""
        aside, self.aside, self.failed = self.aside, [], 0
        return aside

    # -- one stage -----------------------------------------------------------------------------------

    def answers(self, position: int, tasks: list[Task[Any]]) -> list[Answer[Any]]:
        if any(trouble.place.position == position for trouble in self.history.troubles):
            return [self._carefully(position, task) for task in tasks]
        return self._try(position, tasks)

    def _try(self, position: int, tasks: list[Task[Any]], start: int = 0) -> list[Answer[Any]]:
        """One answer per task. `start` is the number of the first row in the batch that the task is a slice of."""
        try:
            answers = self.worker.ask(position, tasks, start)
            return [self._held(position, *pair, start) for pair in zip(tasks, answers, strict=True)]
        except StageError as error:
            if not self.may_isolate(position, error):
                raise
            if len(tasks) == 1:
                return [self._divide(position, tasks[0], start, error)]
        half = len(tasks) // 2
        return [*self._try(position, tasks[:half]), *self._try(position, tasks[half:])]

    def _divide(self, position: int, task: Task[Any], start: int, error: StageError) -> Answer[Any]:
        if not isinstance(task, Batch) or task.num_items < 2:
            return self._again(position, task, start, error)
        half = task.num_items // 2
        first = self._try(position, [task.slice(0, half)], start)
        second = self._try(position, [task.slice(half)], start + half)
        return merge(first[0], second[0])

    def _again(self, position: int, task: Task[Any], start: int, error: StageError) -> Answer[Any]:
        """One record: try as often as the stage allows, then give it up."""
        tries = self.worker.stages[position].max_retries
        for _ in range(tries):
            try:
                return self._held(position, task, self.worker.ask(position, [task], start)[0], start)
            except StageError as another:
                error = another
        self.set_aside(position, failed_record(task, error, tries + 1, start), task.num_rows)
        return None

    def _held(self, position: int, parent: Task[Any], answer: Answer[Any], start: int) -> Answer[Any]:
        """The answer, of which nothing leaves before all of it is there: if it fails half-way it can be had again."""
        if not isinstance(parent, Batch) or not isinstance(answer, Iterator):
            return answer
        held: list[Any] = []
        outputs = self.worker.outputs(position, parent, answer, start)
        size = 0
        for output in outputs:
            held.append(output)
            size += output.nbytes if isinstance(output, Task) else 0
            if len(held) >= HELD_TASKS or size >= HELD_BYTES:
                return chain(held, outputs)
        return held

    # -- records that end their worker ---------------------------------------------------------------

    def _carefully(self, position: int, task: Task[Any]) -> Answer[Any]:
        """A task at a stage in which a worker has ended: rows at fault are left out, suspect rows go in pieces."""
        troubles = self._troubles(position, task)
        if not isinstance(task, Batch):
            blamed = [trouble.error for trouble in troubles if trouble.error and trouble.place.start == 0]
            if blamed:
                self._give_up(position, task, blamed[0], troubles[0].tries)
                return None
            return self._try(position, [task])[0]
        answers: list[Answer[Any]] = []
        for start, stop, trouble in pieces(task.num_items, troubles):
            rows = task.slice(start, stop - start)
            if trouble is not None and trouble.error is not None:
                self._give_up(position, rows, trouble.error, trouble.tries, number=start)
            else:
                answers += self._try(position, [rows], start)
        return reduce(merge, answers, None)

    def _troubles(self, position: int, task: Task[Any]) -> list[Trouble]:
        here = (position, mark(task.lineage))
        found = [trouble for trouble in self.history.troubles if (trouble.place.position, trouble.place.task) == here]
        return sorted(found, key=lambda trouble: trouble.place.start)

    def cut_short(self, position: int, parent: Task[Any], index: int) -> bool:
        """Whether output number `index` of a task that is no batch must not be asked for."""
        if isinstance(parent, Batch) or not self.history.troubles:
            return False
        for trouble in self._troubles(position, parent):
            if trouble.error is not None and trouble.place.start == index:
                self._give_up(position, parent, trouble.error, trouble.tries, after=index)
                return True
        return False

    def gives_up(self, position: int, parent: Task[Any], error: StageError, index: int) -> bool:
        """Whether a task that failed after some outputs is set aside. It is tried again from its start before."""
        last = self.history.attempts >= self.worker.stages[position].max_retries
        if isinstance(parent, Batch) or not last or not self.may_isolate(position, error):
            return False
        self._give_up(position, parent, error, self.history.attempts + 1, after=index)
        return True

    # -- the books -----------------------------------------------------------------------------------

    def may_isolate(self, position: int, error: StageError) -> bool:
        """What cannot be written, and what is wrong with the pipeline, is no fault of a record."""
        stage = self.worker.stages[position]
        return not (error.hopeless or stage.writes or stage.gather or stage.durable)

    def _give_up(
        self, position: int, task: Task[Any], error: StageError, tries: int, number: int = 0, after: int = 0
    ) -> None:
        self.set_aside(position, failed_record(task, error, tries, number, after), 0 if after else task.num_rows)

    def set_aside(self, position: int, record: SetAside, rows: int) -> None:
        self.aside.append(record)
        self.worker.stats[position].quarantined += rows
        self.failed += record.records
        seen = max(max(stat.rows_in, stat.rows_out) for stat in self.worker.stats)
        if self.budget.spent(self.failed, seen):
            raise OverBudget(record.stage, record.task, record.files, record.error, record.traceback, position)

    def collect(self, position: int, lineage: Lineage, failed: bool) -> None:
        """Take what a stage has set aside by itself; after a failure it will do so again."""
        if self.notes and not failed:
            name = self.worker.stages[position].name
            for note in list(self.notes):
                record = unreadable_record(name, lineage, note)
                self.set_aside(position, record, record.records)
        self.notes.clear()


class OverBudget(StageError):
    """One call alone has spent the error budget."""

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self.hopeless = True


def pieces(rows: int, troubles: Sequence[Trouble]) -> Iterator[tuple[int, int, Trouble | None]]:
    """The rows of a batch, cut at troubles: what is not suspect in one piece, suspects in up to PIECES."""
    done = 0
    for trouble in troubles:
        start, stop = max(trouble.place.start, done), min(trouble.place.stop, rows)
        if start >= stop:
            continue
        if done < start:
            yield done, start, None
        step = stop - start if trouble.error else max(1, -(-(stop - start) // PIECES))
        for first in range(start, stop, step):
            yield first, min(first + step, stop), trouble
        done = stop
    if done < rows:
        yield done, rows, None


def merge(first: Answer[Any], second: Answer[Any]) -> Answer[Any]:
    """The answer for a batch, from those for its parts."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, Batch) and isinstance(second, Batch):
        return type(first).concat([first, second])
    return [*_as_list(first), *_as_list(second)]


def _as_list(answer: Any) -> list[Any]:
    return [answer] if isinstance(answer, Task) else list(answer)
