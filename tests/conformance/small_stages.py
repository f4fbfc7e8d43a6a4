"""Small stages that do one telling thing each, for the suite that every executor passes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gristmill import EmptyTask, ProcessingStage, Resources, Task
from gristmill.core.stage_roles import GatherRole


class CountTo(ProcessingStage[EmptyTask, Task[int]]):
    """A source: the numbers below n, streamed."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def process(self, task: EmptyTask) -> Iterator[Task[int]]:
        for number in range(self.n):
            yield Task(number)


class Repeat(ProcessingStage[Task[int], Task[int]]):
    """0 is dropped, 1 stays, n becomes n tasks."""

    def process(self, task: Task[int]) -> list[Task[int]] | None:
        return [Task(task.data) for _ in range(task.data)] or None


class AddOne(ProcessingStage[Task[int], Task[int]]):
    def process(self, task: Task[int]) -> Task[int]:
        return Task(task.data + 1)


class BatchDouble(ProcessingStage[Task[int], Task[int]]):
    """Vectorised; the sizes of its batches go into the metadata."""

    batch_size = 4

    def process_batch(self, tasks: Any) -> list[Task[int]]:
        return [Task(task.data * 2, metadata={"batch": len(tasks)}) for task in tasks]


class DropFirstSplitSecond(ProcessingStage[Task[int], Task[int]]):
    batch_size = 2

    def process_batch(self, tasks: Any) -> list[list[Task[int]] | None]:
        return [None if task.data % 2 == 0 else [Task(task.data), Task(-task.data)] for task in tasks]


class Trouble(ProcessingStage[Task[int], Task[int]]):
    """Does something bad on one number: always, or only the first time."""

    max_retries = 1

    def __init__(self, what: str, at: int, marks: Path | None = None) -> None:
        super().__init__()
        self.what, self.at, self.marks = what, at, marks

    def process(self, task: Task[int]) -> Task[int]:
        if task.data == self.at and self._this_time():
            misbehave(self.what)
        return task

    def _this_time(self) -> bool:
        if self.marks is None:
            return True
        try:
            (self.marks / "done").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class StreamThenTrouble(ProcessingStage[Task[int], Task[int]]):
    """Yields many children and fails once in the middle of them."""

    def __init__(self, what: str, marks: Path, children: int = 20, nap: float = 0.0) -> None:
        super().__init__()
        self.what, self.marks, self.children, self.nap = what, marks, children, nap

    def process(self, task: Task[int]) -> Iterator[Task[int]]:
        for index in range(self.children):
            if index == self.children // 2 and not (self.marks / f"{task.data}").exists():
                (self.marks / f"{task.data}").touch()
                misbehave(self.what)
            time.sleep(self.nap)
            yield Task(1000 * task.data + index)


def misbehave(what: str) -> None:
    if what == "raise":
        raise ValueError("bad byte")
    if what == "exit":
        os._exit(3)
    if what == "sys.exit":
        raise SystemExit(4)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "segfault":
        import ctypes

        ctypes.string_at(0)
    if what == "hang":
        time.sleep(600)


class Witness(ProcessingStage[Task[int], Task[int]]):
    """Leaves a file for each hook that is called."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        self._mark(f"node-{node_info.node_id}")

    def setup(self, worker_metadata: Any = None) -> None:
        self._mark(f"setup-{worker_metadata.worker_id}")

    def teardown(self) -> None:
        self._mark("teardown")

    def process(self, task: Task[int]) -> Task[int]:
        return task

    def _mark(self, name: str) -> None:
        (self.folder / f"{name}-{os.getpid()}-{time.monotonic_ns()}").touch()


class Gather(ProcessingStage[Task[Any], Task[list[int]]], GatherRole):
    def process(self, task: Any) -> Task[list[int]]:
        return Task([part.data for part in task.data])


class Big(ProcessingStage[Task[int], Task[bytes]]):
    """Many large children of one task."""

    def __init__(self, children: int, size: int) -> None:
        super().__init__()
        self.children, self.size = children, size

    def process(self, task: Task[int]) -> Iterator[Task[Any]]:
        import pyarrow as pa

        for index in range(self.children):
            yield Task(pa.py_buffer(bytes([index % 256]) * self.size))


class Slow(ProcessingStage[Task[Any], Task[int]]):
    """Takes its time, on resources of its own so that it is not fused."""

    resources = Resources(cpus=1)
    num_workers = 1

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def process(self, task: Task[Any]) -> Task[int]:
        time.sleep(self.seconds)
        return Task(len(task.data))


class Pid(ProcessingStage[Task[Any], Task[int]]):
    """Which process it ran in, after some work."""

    def __init__(self, seconds: float = 0.05) -> None:
        super().__init__()
        self.seconds = seconds

    def process(self, task: Task[Any]) -> Task[int]:
        time.sleep(self.seconds)
        return Task(os.getpid())


class Leak(ProcessingStage[Task[int], Task[int]]):
    """Keeps memory for each task, and answers with the process that it runs in. Notes each teardown."""

    def __init__(self, marks: Path, megabytes: int = 0) -> None:
        super().__init__()
        self.marks, self.megabytes = marks, megabytes

    def setup(self, worker_metadata: Any = None) -> None:
        self.kept: list[bytes] = []

    def process(self, task: Task[int]) -> Task[int]:
        self.kept.append(b"x" * (self.megabytes * 2**20))
        return Task(os.getpid())

    def teardown(self) -> None:
        (self.marks / f"{os.getpid()}").touch()
