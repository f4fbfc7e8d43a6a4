"""Finding the rows that end their worker, played through without processes: a worker "dies" by an odd exception."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch, ProcessingStage, Task
from gristmill.core.errors import StageError, WorkerLostError
from gristmill.core.records.quarantine import ErrorBudget
from gristmill.core.run import isolation
from gristmill.core.run.isolation import (
    MAX_SUSPECT_PIECES,
    FailureHistory,
    RowLocation,
    SuspectRows,
    merge_answers,
    suspect_pieces,
)
from gristmill.core.run.lost_tasks import RetryCheck, SentDigest
from gristmill.core.run.user_interrupts import forget_interrupt, interrupt
from gristmill.core.run.worker import Worker
from gristmill.core.task import Lineage

ERROR = WorkerLostError("grind", "0", (), "it died")


# -- pieces ----------------------------------------------------------------------------------------------


@st.composite
def troubles(draw: st.DrawFn) -> SuspectRows:
    start = draw(st.integers(0, 60))
    blamed = draw(st.booleans())
    stop = start + (1 if blamed else draw(st.integers(0, 60)))
    return SuspectRows(RowLocation(0, 0, start, stop), 1, ERROR if blamed else None)


@given(st.integers(0, 80), st.lists(troubles(), max_size=8))
def test_pieces_cover_all_rows_once_and_in_order(rows: int, found: list[SuspectRows]) -> None:
    found.sort(key=lambda trouble: trouble.place.start)
    cut = list(suspect_pieces(rows, found))
    assert [row for start, stop, _ in cut for row in range(start, stop)] == list(range(rows))
    assert all(start < stop for start, stop, _ in cut)
    for start, stop, trouble in cut:
        if trouble is not None:
            assert trouble.place.start <= start < stop <= trouble.place.stop
    for trouble in found:
        assert sum(known is trouble for _, _, known in cut) <= (1 if trouble.error else MAX_SUSPECT_PIECES)


@given(st.integers(1, 10_000))
def test_suspects_are_cut_into_a_few_pieces_and_others_left_whole(rows: int) -> None:
    suspect = SuspectRows(RowLocation(0, 0, rows // 3, rows - rows // 3))
    cut = list(suspect_pieces(rows, [suspect]))
    assert sum(known is None for _, _, known in cut) <= 2
    assert len(cut) <= MAX_SUSPECT_PIECES + 2


# -- merge -----------------------------------------------------------------------------------------------


def batch(*numbers: int, **objects: list[Any]) -> DocumentBatch:
    return DocumentBatch([{"n": number} for number in numbers], objects=objects)


def test_merge_of_answers_for_parts() -> None:
    assert merge_answers(None, None) is None
    assert merge_answers(None, one := batch(1)) is one
    assert merge_answers(one, None) is one
    assert merge_answers(batch(1), batch(2, 3)).to_rows() == [{"n": 1}, {"n": 2}, {"n": 3}]  # type: ignore[union-attr]
    assert merge_answers([Task(1)], [Task(2), Task(3)]) == [Task(1), Task(2), Task(3)]
    assert merge_answers(Task(1), [Task(2)]) == [Task(1), Task(2)]
    assert merge_answers([], Task(2)) == [Task(2)]
    assert list(merge_answers(iter([Task(1)]), (Task(2),))) == [Task(1), Task(2)]  # type: ignore[arg-type]


def test_merge_keeps_objects_and_unites_columns() -> None:
    joined: Any = merge_answers(batch(1, frames=["a"]), batch(2, frames=["b"]))
    assert joined.objects == {"frames": ["a", "b"]}
    joined = merge_answers(
        DocumentBatch([{"n": 1, "score": None}]), DocumentBatch([{"n": 2, "score": 0.5, "late": "x"}])
    )
    assert joined.to_rows() == [{"n": 1, "score": None, "late": None}, {"n": 2, "score": 0.5, "late": "x"}]


# -- a worker that dies ----------------------------------------------------------------------------------


class Page:
    """What the driver would find after the worker's death."""

    place = RowLocation(0, 0, 0, 0)

    def enter(self, position: int, task: int = 0, start: int = 0, stop: int = 0) -> None:
        self.place = RowLocation(position, task, start, stop)

    def leave(self) -> None: ...


class Cut(ProcessingStage[Task[int], DocumentBatch]):
    """Numbers below n, in batches."""

    def __init__(self, size: int) -> None:
        self.size = size

    def process(self, task: Task[int]) -> Iterator[DocumentBatch]:
        for start in range(0, task.data, self.size):
            yield batch(*range(start, min(start + self.size, task.data)))


class Grind(ProcessingStage[DocumentBatch, Any]):
    def __init__(self, dies: Callable[[list[int]], bool], raises: set[int], form: str, max_retries: int) -> None:
        self.dies, self.raises, self.form, self.max_retries = dies, raises, form, max_retries
        self.batch_size = 3 if form == "vectorised" else 1

    def process(self, task: DocumentBatch) -> Any:
        numbers = [row["n"] for row in task.to_rows()]
        if self.form == "yields":
            return self.one_by_one(numbers)
        self.check(numbers)
        return task

    def one_by_one(self, numbers: list[int]) -> Iterator[Task[int]]:
        for number in numbers:
            self.check(numbers, number)
            yield Task(number)

    def check(self, numbers: list[int], number: int | None = None) -> None:
        if self.dies(numbers if number is None else [number]):
            raise interrupt()  # nothing after this is the stage's failure, as when the process ends
        for value in numbers if number is None else [number]:
            if value in self.raises:
                raise ValueError(value)


class GrindSeveral(Grind):
    def process_batch(self, tasks: Any) -> Any:
        self.check([row["n"] for task in tasks for row in task.to_rows()])
        return list(tasks)


@dataclass
class Mill:
    """A driver in miniature: starts a worker again when it has died, and counts what came out once."""

    rows: int
    size: int
    deadly: set[int] = field(default_factory=set)
    raises: set[int] = field(default_factory=set)
    form: str = "process"
    max_retries: int = 2
    flake: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.tasks: list[list[int]] = []
        self.sent = SentDigest()
        self.deaths: list[set[int]] = []
        self.stopped = False

    def dies(self, numbers: list[int]) -> bool:
        if not self.flake() and self.deadly.isdisjoint(numbers):
            return False
        self.deaths.append(set(numbers))
        return True

    def run(self) -> Mill:
        history = FailureHistory()
        while not self.attempt(history):
            history.attempts += 1
            if not history.record_failure(self.page.place, ERROR, self.max_retries):
                self.stopped = True
                return self
        return self

    def attempt(self, history: FailureHistory) -> bool:
        kind = GrindSeveral if self.form == "vectorised" else Grind
        stages = [Cut(self.size), kind(self.dies, self.raises, self.form, self.max_retries)]
        self.page = Page()
        worker = Worker(stages, activity=self.page, budget=ErrorBudget())
        assert worker.isolator is not None
        worker.isolator.begin(pickle.loads(pickle.dumps(history)), ErrorBudget())
        given = Task(self.rows).named(Lineage("0", "0"))
        try:
            for task in RetryCheck(self.sent, stages, given.lineage).rest(worker.stream([given])):
                data = task.to_rows() if isinstance(task, DocumentBatch) else [{"n": task.data}]
                self.tasks.append([row["n"] for row in data])
                self.sent.add(task.id)
        except KeyboardInterrupt:
            forget_interrupt()
            return False
        except StageError:  # a row was blamed that had gone through before: the same is not given again
            self.stopped = True
            return True
        self.aside = worker.take_quarantined()
        self.stats = worker.take_stats()
        return True

    @property
    def out(self) -> list[int]:
        return [number for numbers in self.tasks for number in numbers]

    @property
    def blamed(self) -> list[int]:
        return sorted(record.row["n"] for record in self.aside if record.row)


rows_and_poison = st.integers(1, 300).flatmap(
    lambda rows: st.tuples(
        st.just(rows),
        st.sets(st.integers(0, rows - 1), max_size=3),
        st.sets(st.integers(0, rows - 1), max_size=3),
    )
)


@given(
    rows_and_poison,
    st.integers(1, 400),
    st.integers(0, 3),
    st.sampled_from(["process", "yields", "vectorised"]),
)
@example((300, {299}, set()), 300, 0, "process")
@example((300, {0}, {1}), 300, 0, "yields")
@example((6, {4}, set()), 1, 0, "vectorised")
@example((6, {0, 1}, {2}), 1, 0, "vectorised")
@settings(max_examples=60)
def test_exactly_the_rows_that_kill_or_raise_are_blamed(
    case: tuple[int, set[int], set[int]], size: int, max_retries: int, form: str
) -> None:
    rows, deadly, raises = case
    mill = Mill(rows, size, deadly, raises - deadly, form, max_retries).run()
    assert not mill.stopped
    assert mill.blamed == sorted(deadly | raises)
    assert mill.out == [row for row in range(rows) if row not in deadly | raises]
    steps = math.ceil(math.log(max(rows, 2), MAX_SUSPECT_PIECES)) + max_retries + 2
    assert len(mill.deaths) <= steps * len(deadly) + (form == "vectorised")
    for record in mill.aside:
        assert record.attempts >= max_retries + 1
        assert record.kind == ("crashed" if record.row and record.row["n"] in deadly else "raised")
    line = mill.stats[1]
    assert line.rows_in == rows
    assert line.rows_out == len(mill.out)
    assert line.quarantined == len(deadly | raises)


@given(
    st.integers(1, 200),
    st.integers(1, 200),
    st.sets(st.integers(0, 199), max_size=2),
    st.integers(1, 3),
    st.sampled_from(["process", "yields", "vectorised"]),
    st.floats(0.001, 0.1),
    st.integers(0, 2**32),
)
@settings(max_examples=60)
def test_deaths_at_random_blame_nobody_who_was_not_there_more_than_max_retries_times(
    rows: int, size: int, deadly: set[int], max_retries: int, form: str, often: float, seed: int
) -> None:
    rng = random.Random(seed)
    mill = Mill(rows, size, deadly, set(), form, max_retries, lambda: rng.random() < often).run()
    assert len(mill.deaths) < 60
    if mill.stopped:  # it died in too many places: no record is to blame, and the run stops
        assert len(mill.deaths) > max_retries
        return
    for number in mill.blamed:
        deaths = [numbers for numbers in mill.deaths if number in numbers or form == "yields"]
        assert number in deadly or len(deaths) > max_retries
    assert set(mill.out) | set(mill.blamed) == set(range(rows))
    assert len(mill.out) == len(set(mill.out))
    assert set(mill.blamed) >= deadly & set(range(rows))


def test_a_worker_that_ends_somewhere_else_each_time_stops_the_run() -> None:
    """A machine without memory, say: no record is to blame."""
    rng = random.Random(1)
    mill = Mill(1000, 10, flake=lambda: rng.random() < 0.03).run()
    assert mill.stopped
    assert len(mill.deaths) <= 8


def test_what_has_left_a_batch_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than can be held has left when row 40 kills: which row it was cannot be undone, so the run stops."""
    monkeypatch.setattr(isolation, "HELD_TASKS", 10)
    mill = Mill(100, 100, {40}, form="yields").run()
    assert mill.stopped
    assert mill.out[:10] == list(range(10))
    assert mill.out == list(range(len(mill.out)))
    assert len(mill.deaths) == 3
