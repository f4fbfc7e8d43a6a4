"""Stages that fail on some rows, each giving its answer in another form."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gristmill import DocumentBatch, ProcessingStage, Task
from tests.conformance import small_stages


def misbehave(what: str) -> None:
    if what == "memory":
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 2**26
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        try:
            bytearray(2**33)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
    elif what == "fork":  # a child lives on, and holds all that its parent had open
        if os.fork() == 0:
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        small_stages.misbehave(what)


class Fail(ProcessingStage[Any, Any]):
    """Does something bad on rows whose `n` is in `bad`: always, or only the first `times` times.

    It counts each row, and drops those whose `n` can be divided by 7.
    """

    name = "Fail"

    def __init__(self, bad: Any, what: str = "raise", marks: Path | None = None, times: int = 10**9) -> None:
        super().__init__()
        self.bad = bad if isinstance(bad, dict) else dict.fromkeys(bad, what)
        self.marks, self.times = marks, times

    def kept(self, task: DocumentBatch) -> list[int]:
        numbers = task.data.column("n").to_pylist()
        return [index for index, number in enumerate(numbers) if self.look(number)]

    def look(self, number: int) -> bool:
        self.count("looks")
        if number in self.bad and self._this_time(number):
            misbehave(self.bad[number])
        return number % 7 != 0

    def _this_time(self, number: int) -> bool:
        if self.marks is None:
            return True
        failed = len(list(self.marks.glob(f"{number}-*")))
        if failed < self.times:
            (self.marks / f"{number}-{failed}").touch()
        return failed < self.times


class Filter(Fail):
    """One batch in, one batch out."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task.take(self.kept(task))


class AddColumn(Fail):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        import pyarrow as pa

        kept = task.take(self.kept(task))
        return kept.with_data(
            kept.data.append_column("half", pa.array([number / 2 for number in kept.data.column("n").to_pylist()]))
        )


class Several(Fail):
    """Several batches at once."""

    batch_size = 3

    def process_batch(self, tasks: Any) -> list[DocumentBatch]:
        return [task.take(self.kept(task)) for task in tasks]


class Lists(Fail):
    """A list of batches, one per row."""

    def process(self, task: DocumentBatch) -> list[DocumentBatch]:
        return [task.take([index]) for index in self.kept(task)]


class OrNone(Fail):
    """None, when no row is left."""

    def process(self, task: DocumentBatch) -> DocumentBatch | None:
        kept = self.kept(task)
        return task.take(kept) if kept else None


class RowByRow(Fail):
    """A generator: one batch per row."""

    def process(self, task: DocumentBatch) -> Iterator[DocumentBatch]:
        for index, number in enumerate(task.data.column("n").to_pylist()):
            if self.look(number):
                yield task.take([index])


class PieceByPiece(Fail):
    """A generator: pieces of three rows."""

    def process(self, task: DocumentBatch) -> Iterator[DocumentBatch]:
        for piece in (task.slice(start, 3) for start in range(0, task.num_items, 3)):
            yield piece.take(self.kept(piece))


class SeveralRowByRow(Fail):
    """Several batches at once, each answered by a generator."""

    batch_size = 3

    def process_batch(self, tasks: Any) -> list[Iterator[DocumentBatch]]:
        return [RowByRow.process(self, task) for task in tasks]  # type: ignore[arg-type]


class ToTasks(Fail):
    """One task per row."""

    def process(self, task: DocumentBatch) -> Iterator[Task[int]]:
        for number in task.data.column("n").to_pylist():
            if self.look(number):
                yield Task(number)


FORMS = [Filter, Several, RowByRow, PieceByPiece, Lists, OrNone, SeveralRowByRow, ToTasks]


class OneTask(Fail):
    def process(self, task: Task[int]) -> Task[int] | None:
        return task if self.look(task.data) else None


class SeveralTasks(Fail):
    batch_size = 4

    def process_batch(self, tasks: Any) -> list[Task[int] | None]:
        return [task if self.look(task.data) else None for task in tasks]


class TaskLists(Fail):
    def process(self, task: Task[int]) -> list[Task[int]]:
        return [task] if self.look(task.data) else []


TASK_FORMS = [OneTask, SeveralTasks, TaskLists]


class Steps(Fail):
    """From n come 10 n, 10 n + 1, 10 n + 2; it may fail on each of them."""

    def process(self, task: Task[int]) -> Iterator[Task[int]]:
        for step in range(3):
            number = 10 * task.data + step
            self.look(number)
            yield Task(number)


class SeveralSteps(Steps):
    batch_size = 4

    def process_batch(self, tasks: Any) -> list[Iterator[Task[int]]]:
        return [Steps.process(self, task) for task in tasks]


class Numbers(ProcessingStage[Task[int], Task[int]]):
    """Turns n into the tasks 0 to n - 1, so that what follows is fused with a stage that makes many of one."""

    def process(self, task: Task[int]) -> Iterator[Task[int]]:
        for number in range(task.data):
            yield Task(number)


class Batches(ProcessingStage[Task[Any], DocumentBatch]):
    """Rows of numbers, in batches of the sizes that the task holds."""

    def process(self, task: Task[Any]) -> Iterator[DocumentBatch]:
        begin = 0
        for size in task.data:
            yield numbered(begin, begin + size)
            begin += size


class After(ProcessingStage[Any, Any]):
    """Something that comes after."""

    def process(self, task: Any) -> Any:
        return task


def numbered(start: int, stop: int) -> DocumentBatch:
    numbers = range(start, stop)
    rows = [{"n": n, "text": f"row {n}"} for n in numbers]
    return DocumentBatch(rows, objects={"frames": [f"frame {n}" for n in numbers]})
