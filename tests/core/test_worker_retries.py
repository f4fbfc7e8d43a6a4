"""One attempt of a worker: what is tried again, what is counted, and what stops the run."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gristmill import DocumentBatch, EmptyTask, ProcessingStage, Task
from gristmill.core.errors import StageError
from gristmill.core.records.quarantine import ErrorBudget
from gristmill.core.run.isolation import FailureHistory, OverBudget
from gristmill.core.run.worker import Worker
from gristmill.core.task import Lineage
from tests.core.test_isolation import batch

# -- one attempt -----------------------------------------------------------------------------------------


def worker_of(*stages: Any, budget: ErrorBudget | None = None) -> Worker:
    return Worker(stages, budget=budget or ErrorBudget())


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
    aside = worker.take_quarantined()
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
    aside = worker.take_quarantined()
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
    assert worker.take_quarantined() == []


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
    assert [record.row for record in worker.take_quarantined()] == [{"n": 2}]


def test_a_call_stops_when_it_has_spent_what_is_left() -> None:
    worker = worker_of(Count(set(range(100))))
    assert worker.isolator is not None
    worker.isolator.begin(FailureHistory(), ErrorBudget(most=20).remaining(15, 1000))
    with pytest.raises(OverBudget) as caught:
        pass_through(worker, batch(*range(-3, 100)))
    assert len(worker.take_quarantined()) == 6
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.rows, error.hopeless, error.stage) == (103, True, "Count")


def test_a_call_full_of_errors_is_not_too_many_when_others_were_fine() -> None:
    worker = worker_of(Count(set(range(300))))
    assert worker.isolator is not None
    worker.isolator.begin(FailureHistory(), ErrorBudget(share=0.01).remaining(0, 30_000))
    pass_through(worker, batch(*range(300)))
    assert len(worker.take_quarantined()) == 300


class Anew(ProcessingStage[Any, Any]):
    """Gives other rows, and notes how many of those that were given before are still in memory."""

    def __init__(self, given: list[weakref.ref[Any]], there: list[int], several: bool) -> None:
        self.given, self.there, self.several = given, there, several

    def process(self, task: Any) -> Any:
        self.there.append(sum(table() is not None for table in self.given))
        new = batch(*range(task.num_items))
        self.given.append(weakref.ref(new.data))
        return [new] if self.several else new


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("budget", [None, ErrorBudget()])
def test_rows_that_others_have_made_new_ones_of_are_let_go(budget: ErrorBudget | None, several: bool) -> None:
    """A stage finds in memory what it is given, and nothing of the stages or the tasks before."""
    given: list[weakref.ref[Any]] = []
    there: list[int] = []
    last = Anew(given, there, several=False)
    worker = Worker([Anew(given, there, several), Anew(given, there, False), last], budget=budget)
    tasks = (batch(1, 2).named(Lineage(str(index), str(index))) for index in range(3))
    worker.run(tasks, lambda *_: None)
    assert there == [0, 1, 2 if several else 1] * 3
