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

from gristmill import DocumentBatch, EmptyTask, ProcessingStage, Task
from gristmill.core import isolate
from gristmill.core.errors import StageError, WorkerLostError
from gristmill.core.isolate import PIECES, History, OverBudget, Place, Trouble, merge, pieces
from gristmill.core.quarantine import Budget
from gristmill.core.repeat import Repeat, Trail
from gristmill.core.task import Lineage
from gristmill.core.worker import Worker

ERROR = WorkerLostError("grind", "0", (), "it died")


# -- pieces ----------------------------------------------------------------------------------------------


@st.composite
def troubles(draw: st.DrawFn) -> Trouble:
    start = draw(st.integers(0, 60))
    blamed = draw(st.booleans())
    stop = start + (1 if blamed else draw(st.integers(0, 60)))
    return Trouble(Place(0, 0, start, stop), 1, ERROR if blamed else None)


@given(st.integers(0, 80), st.lists(troubles(), max_size=8))
def test_pieces_cover_all_rows_once_and_in_order(rows: int, found: list[Trouble]) -> None:
    found.sort(key=lambda trouble: trouble.place.start)
    cut = list(pieces(rows, found))
    assert [row for start, stop, _ in cut for row in range(start, stop)] == list(range(rows))
    assert all(start < stop for start, stop, _ in cut)
    for start, stop, trouble in cut:
        if trouble is not None:
            assert trouble.place.start <= start < stop <= trouble.place.stop
    for trouble in found:
        assert sum(known is trouble for _, _, known in cut) <= (1 if trouble.error else PIECES)


@given(st.integers(1, 10_000))
def test_suspects_are_cut_into_a_few_pieces_and_others_left_whole(rows: int) -> None:
    suspect = Trouble(Place(0, 0, rows // 3, rows - rows // 3))
    cut = list(pieces(rows, [suspect]))
    assert sum(known is None for _, _, known in cut) <= 2
    assert len(cut) <= PIECES + 2


# -- merge -----------------------------------------------------------------------------------------------


def batch(*numbers: int, **objects: list[Any]) -> DocumentBatch:
    return DocumentBatch([{"n": number} for number in numbers], objects=objects)


def test_merge_of_answers_for_parts() -> None:
    assert merge(None, None) is None
    assert merge(None, one := batch(1)) is one
    assert merge(one, None) is one
    assert merge(batch(1), batch(2, 3)).to_rows() == [{"n": 1}, {"n": 2}, {"n": 3}]  # type: ignore[union-attr]
    assert merge([Task(1)], [Task(2), Task(3)]) == [Task(1), Task(2), Task(3)]
    assert merge(Task(1), [Task(2)]) == [Task(1), Task(2)]
    assert merge([], Task(2)) == [Task(2)]
    assert list(merge(iter([Task(1)]), (Task(2),))) == [Task(1), Task(2)]  # type: ignore[arg-type]


def test_merge_keeps_objects_and_unites_columns() -> None:
    joined: Any = merge(batch(1, frames=["a"]), batch(2, frames=["b"]))
    assert joined.objects == {"frames": ["a", "b"]}
    joined = merge(DocumentBatch([{"n": 1, "score": None}]), DocumentBatch([{"n": 2, "score": 0.5, "late": "x"}]))
    assert joined.to_rows() == [{"n": 1, "score": None, "late": None}, {"n": 2, "score": 0.5, "late": "x"}]


# -- a worker that dies ----------------------------------------------------------------------------------


class Died(KeyboardInterrupt):
    pass


class Page:
    """What the driver would find after the worker's death."""

    place = Place(0, 0, 0, 0)

    def enter(self, position: int, task: int = 0, start: int = 0, stop: int = 0) -> None:
        self.place = Place(position, task, start, stop)

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
            raise Died
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
        self.sent = Trail()
        self.deaths: list[set[int]] = []
        self.stopped = False

    def dies(self, numbers: list[int]) -> bool:
        if not self.flake() and self.deadly.isdisjoint(numbers):
            return False
        self.deaths.append(set(numbers))
        return True

    def run(self) -> Mill:
        history = History()
        while not self.attempt(history):
            history.attempts += 1
            if not history.learn(self.page.place, ERROR, self.max_retries):
                self.stopped = True
                return self
        return self

    def attempt(self, history: History) -> bool:
        kind = GrindSeveral if self.form == "vectorised" else Grind
        stages = [Cut(self.size), kind(self.dies, self.raises, self.form, self.max_retries)]
        self.page = Page()
        worker = Worker(stages, board=self.page, budget=Budget())
        assert worker.isolator is not None
        worker.isolator.begin(pickle.loads(pickle.dumps(history)), Budget())
        given = Task(self.rows).named(Lineage("0", "0"))
        try:
            for task in Repeat(self.sent, stages, given.lineage).rest(worker.stream([given])):
                data = task.to_rows() if isinstance(task, DocumentBatch) else [{"n": task.data}]
                self.tasks.append([row["n"] for row in data])
                self.sent.add(task.id)
        except Died:
            return False
        except StageError:  # a row was blamed that had gone through before: the same is not given again
            self.stopped = True
            return True
        self.aside = worker.take_aside()
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
    steps = math.ceil(math.log(max(rows, 2), PIECES)) + max_retries + 2
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
    monkeypatch.setattr(isolate, "HELD_TASKS", 10)
    mill = Mill(100, 100, {40}, form="yields").run()
    assert mill.stopped
    assert mill.out[:10] == list(range(10))
    assert mill.out == list(range(len(mill.out)))
    assert len(mill.deaths) == 3


# -- one attempt -----------------------------------------------------------------------------------------


def worker_of(*stages: Any, budget: Budget | None = None) -> Worker:
    return Worker(stages, budget=budget or Budget())


def pass_through(worker: Worker, *tasks: Task[Any]) -> list[Any]:
    named = [task.named(Lineage(str(index), str(index))) for index, task in enumerate(tasks)]
    return list(worker.stream(named))


class Count(ProcessingStage[Any, Any]):
    """Counts each row, then fails on some; sets aside others by itself."""

    def __init__(self, bad: set[int], aside: frozenset[int] = frozenset(), form: str = "process") -> None:
        self.bad, self.aside, self.form = bad, aside, form
        self.batch_size = 4 if form == "several" else 1

    def process(self, task: Any) -> Any:
        if self.form == "yields":
            return self.steps(task)
        return task.take([index for index, row in enumerate(task.to_rows()) if self.look(row["n"])])

    def steps(self, task: Any) -> Iterator[Any]:
        for index, row in enumerate(task.to_rows() if isinstance(task, DocumentBatch) else task.data):
            if self.look(row["n"] if isinstance(row, dict) else row):
                yield task.take([index]) if isinstance(task, DocumentBatch) else Task(row)

    def look(self, number: int) -> bool:
        self.count("seen")
        if number in self.aside:
            self.set_aside("odd", content=str(number))
        if number in self.bad:
            raise ValueError(number)
        return number not in self.aside


class CountSeveral(Count):
    def process_batch(self, tasks: Any) -> Any:
        return [Count.process(self, task) for task in tasks]


@pytest.mark.parametrize("form", ["process", "yields", "several"])
def test_tries_that_failed_are_not_counted(form: str) -> None:
    """Neither what a stage counts nor what it sets aside by itself."""
    stage = (CountSeveral if form == "several" else Count)({3, 7}, frozenset({0, 2, 5, 9}), form)
    worker = worker_of(stage)
    batches = [batch(0, 1, 2), batch(3, 4), batch(5, 6, 7, 8), batch(9)]
    out = pass_through(worker, *batches)
    assert sorted(row["n"] for task in out for row in task.to_rows()) == [1, 4, 6, 8]
    aside = worker.take_aside()
    found = sorted((int(record.content or (record.row or {})["n"]), record.task) for record in aside)
    assert found == [(0, "0"), (2, "0"), (3, "1"), (5, "2"), (7, "2"), (9, "3")]
    [stats] = worker.take_stats()
    assert (stats.rows_in, stats.rows_out, stats.quarantined) == (10, 4, 6)
    assert stats.counts == {"seen": 8}


class Stumble(Count):
    """Fails on the numbers in `bad` as often as they say."""

    def __init__(self, stumbles: dict[int, int], **rest: Any) -> None:
        super().__init__(set(), **rest)
        self.stumbles = stumbles

    def look(self, number: int) -> bool:
        going_on = super().look(number)
        if self.stumbles.get(number, 0) > 0:
            self.stumbles[number] -= 1
            raise ValueError(number)
        return going_on


def test_a_stream_that_stumbles_is_taken_up_where_it_was() -> None:
    """Each task has its own retries, and what was counted and set aside before is not again."""
    worker = worker_of(Stumble({2: 2, 12: 2, 13: 2, 14: 1, 22: 3}, aside=frozenset({1, 10}), form="yields"))
    out = pass_through(worker, Task([0, 1, 2, 3]), Task([10, 11, 12, 15]), Task([20, 21, 22, 23]))
    assert [(task.id, task.data) for task in out] == [
        ("0.0", 0),
        ("0.1", 2),
        ("0.2", 3),
        ("1.0", 11),
        ("1.1", 12),
        ("1.2", 15),
        ("2.0", 20),
        ("2.1", 21),
    ]
    aside = worker.take_aside()
    assert [(record.task, record.content, record.attempts) for record in aside] == [
        ("0", "1", 1),
        ("1", "10", 1),
        ("2", "[20, 21, 22, 23], after its output number 2", 3),
    ]
    [stats] = worker.take_stats()
    assert stats.counts["seen"] == 4 + 4 + 3


def test_a_source_that_fails_is_no_record() -> None:
    """Nobody knows what it would have given: the run stops, however large the budget."""

    class Source(ProcessingStage[EmptyTask, Task[int]]):
        def process(self, task: EmptyTask) -> Iterator[Task[int]]:
            yield Task(1)
            raise OSError("gone")

    worker = worker_of(Source())
    with pytest.raises(StageError, match="OSError: gone") as caught:
        pass_through(worker, EmptyTask())
    assert caught.value.hopeless
    assert worker.take_aside() == []


def test_an_empty_batch_that_fails_is_no_record() -> None:
    class Picky(ProcessingStage[DocumentBatch, DocumentBatch]):
        takes_empty = True

        def process(self, task: DocumentBatch) -> DocumentBatch:
            return task.take([task.to_rows()[0]["n"]])

    with pytest.raises(StageError, match="IndexError"):
        pass_through(worker_of(Picky()), batch(1).slice(0, 0))


def test_a_record_that_shows_a_mistake_in_the_pipeline_when_tried_again_stops_the_run() -> None:
    from gristmill.core.errors import ContractError

    class Mistaken(ProcessingStage[Task[int], Task[int]]):
        tries = 0

        def process(self, task: Task[int]) -> Task[int]:
            self.tries += 1
            raise ValueError("first") if self.tries == 1 else ContractError("no such option")

    with pytest.raises(StageError, match="no such option"):
        pass_through(worker_of(Mistaken()), Task(1))


def test_answers_that_cannot_be_joined_name_the_stage() -> None:
    class Odd(ProcessingStage[DocumentBatch, DocumentBatch]):
        def process(self, task: DocumentBatch) -> DocumentBatch:
            numbers = [row["n"] for row in task.to_rows()]
            if 1 in numbers:
                raise ValueError(1)
            return batch(*numbers, frames=numbers) if 0 in numbers else task

    with pytest.raises(StageError, match="'Odd' failed on task 0: joining its answers for parts raised KeyError"):
        pass_through(worker_of(Odd()), batch(0, 1, 2))


def test_a_lazy_answer_need_not_be_an_iterator() -> None:
    class Lazy:
        def __init__(self, numbers: list[int]) -> None:
            self.numbers = numbers

        def __iter__(self) -> Iterator[Any]:
            for number in self.numbers:
                if number == 2:
                    raise ValueError(number)
                yield batch(number)

    class Give(ProcessingStage[DocumentBatch, DocumentBatch]):
        def process(self, task: DocumentBatch) -> Any:
            return Lazy([row["n"] for row in task.to_rows()])

    worker = worker_of(Give())
    assert [task.to_rows()[0]["n"] for task in pass_through(worker, batch(0, 1, 2, 3))] == [0, 1, 3]
    assert [record.row for record in worker.take_aside()] == [{"n": 2}]


def test_a_call_stops_when_it_has_spent_what_is_left() -> None:
    worker = worker_of(Count(set(range(100))))
    assert worker.isolator is not None
    worker.isolator.begin(History(), Budget(most=20).after(15, 1000))
    with pytest.raises(OverBudget) as caught:
        pass_through(worker, batch(*range(-3, 100)))
    assert len(worker.take_aside()) == 6
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.rows, error.hopeless, error.stage) == (103, True, "Count")


def test_a_call_full_of_errors_is_not_too_many_when_others_were_fine() -> None:
    worker = worker_of(Count(set(range(300))))
    assert worker.isolator is not None
    worker.isolator.begin(History(), Budget(share=0.01).after(0, 30_000))
    pass_through(worker, batch(*range(300)))
    assert len(worker.take_aside()) == 300
