"""The control actor of a run may be killed: that stops no run, and changes nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import (
    DocumentBatch,
    Pipeline,
    ProcessingStage,
    RayActorPoolExecutor,
    RayDataExecutor,
    Task,
    XennaExecutor,
)
from tests.executors.multi_node_cluster import Cluster, pids

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    with Cluster(cpus=2) as started:
        yield started


@contextlib.contextmanager
def killing(
    times: int, ready: Callable[[], bool], *others: str, pause: float = 0.3, board: str = "ControlActor"
) -> Iterator[set[int]]:
    """Kill the board so many times, each one once, when it is time; and other actors at the same moment."""
    killed: set[int] = set()
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.02) and len(killed) < times:
            if ready() and (boards := pids(board) - killed):
                doomed = [*boards, *(pid for kind in others for pid in pids(kind))]
                for pid in doomed:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                killed.update(boards)
                over.wait(pause)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


class Many(ProcessingStage[Task[int], Task[Any]]):
    """One number becomes many, every third of which is too large for a message."""

    def process(self, task: Task[int]) -> Iterator[Task[Any]]:
        for number in range(task.data):
            yield Task((number, b"x" * (200_000 if number % 3 == 0 else 1)))


class Slow(ProcessingStage[Task[Any], Task[Any]]):
    """Takes its time, and leaves a mark before."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def process(self, task: Task[Any]) -> Task[Any]:
        mark(self.marks, task.data[0])
        time.sleep(0.1)
        return Task((task.data[0], os.getpid(), len(task.data[1])))

    def teardown(self) -> None:
        mark(self.marks, "torn down")


def mark(folder: Path, name: object) -> None:
    (folder / f"{name} {time.monotonic_ns()}").touch()


def marks(folder: Path, name: object = "*") -> int:
    return len(list(folder.glob(f"{name} *")))


def test_what_is_left_to_others_comes_once(tmp_path: Path) -> None:
    with killing(4, lambda: marks(tmp_path) > 3) as killed:
        result = Pipeline("p", stages=[Many(), Slow(tmp_path)]).run(RayActorPoolExecutor(), initial_tasks=[Task(120)])
    assert [task.data[0] for task in result] == list(range(120))
    assert [task.data[2] for task in result] == [200_000 if number % 3 == 0 else 1 for number in range(120)]
    assert len({task.data[1] for task in result}) == 2, "nothing was left to others"
    assert len(killed) == 4
    assert result.summary()["Slow"].rows_in == result.summary()["Slow"].rows_out == 120
    assert result.quarantined() == []


class Number(ProcessingStage[Task[int], Task[Any]]):
    """Some are too large for a message, and lie with a keeper."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def process(self, task: Task[int]) -> Task[Any]:
        mark(self.marks, task.data)
        time.sleep(0.1)
        return Task((task.data, b"x" * (200_000 if task.data % 3 == 0 else 1)))


@pytest.mark.parametrize("executor", [RayDataExecutor, XennaExecutor])
def test_what_an_engine_did_unheard_is_done_again(executor: type[RayDataExecutor], tmp_path: Path) -> None:
    """What the engine's workers have done is known at the desk, which is killed with all that nobody has taken yet."""
    pipeline = Pipeline("p", stages=[Number(tmp_path)])
    with (
        killing(1, lambda: marks(tmp_path) > 30, board="EngineCoordinator") as killed,
        pytest.warns(
            RuntimeWarning, match="Gristmill runs them on its own actors. Ray has killed the coordinator, which had its"
        ),
    ):
        result = pipeline.run(executor(), initial_tasks=[Task(number) for number in range(150)])
    found = [(number, len(text)) for number, text in (task.data for task in result)]
    assert found == [(number, 1 if number % 3 else 200_000) for number in range(150)]
    assert len(killed) == 1
    assert result.summary()["Number"].rows_in == result.summary()["Number"].rows_out == 150
    assert result.quarantined() == []


class Trouble(ProcessingStage[DocumentBatch, DocumentBatch]):
    """One of the rows ends its worker, or never returns: the batch that it is in leaves a mark."""

    def __init__(self, how: str, folder: Path) -> None:
        self.how, self.folder = how, folder

    def process(self, task: DocumentBatch) -> DocumentBatch:
        numbers = task.data["n"].to_pylist()
        time.sleep(0.2)
        if 37 in numbers:
            mark(self.folder, "trouble")
            if self.how == "ends":
                os._exit(1)
            time.sleep(600)
        return task


def batches() -> list[DocumentBatch]:
    return [DocumentBatch([{"n": number} for number in range(start, start + 20)]) for start in range(0, 100, 20)]


def check_one_is_set_aside(stage: ProcessingStage[Any, Any], kind: str) -> None:
    result = Pipeline("p", stages=[stage]).run(RayActorPoolExecutor(), initial_tasks=batches(), max_errors=1)
    assert [row["n"] for task in result for row in task.to_rows()] == [n for n in range(100) if n != 37]
    assert [(record.kind, record.row) for record in result.quarantined()] == [(kind, {"n": 37})]


def test_a_record_that_ends_its_worker_is_found_all_the_same(tmp_path: Path) -> None:
    stage = Trouble("ends", tmp_path).with_(max_retries=1)
    with killing(4, lambda: marks(tmp_path, "trouble") > 0, pause=0.8) as killed:
        check_one_is_set_aside(stage, "crashed")
    assert len(killed) == 4


@pytest.mark.parametrize("max_retries", [0, 1])
def test_a_record_that_hangs_is_found_all_the_same(tmp_path: Path, max_retries: int) -> None:
    """The board is killed while the record hangs: whoever is in it cannot note it anew."""
    stage = Trouble("hangs", tmp_path).with_(max_retries=max_retries, timeout_s=2.0)
    with killing(3, lambda: marks(tmp_path, "trouble") > 0, pause=2.5) as killed:
        check_one_is_set_aside(stage, "timed out")
    assert len(killed) == 3


def test_nobody_is_to_blame_for_what_went_with_the_board(tmp_path: Path) -> None:
    stages = [Many(), Slow(tmp_path).with_(max_retries=0)]
    with killing(3, lambda: marks(tmp_path) > 3, "RayWorker", pause=1.0) as killed:
        result = Pipeline("p", stages=stages).run(RayActorPoolExecutor(), initial_tasks=[Task(100)])
    assert [task.data[0] for task in result] == list(range(100))
    assert result.quarantined() == []
    assert len(killed) == 3


def test_a_run_that_is_stopped_right_after_is_torn_down(tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[Slow(tmp_path).with_(num_workers=2)])
    tasks = pipeline.stream(RayActorPoolExecutor(), initial_tasks=[Task((number, b"")) for number in range(200)])
    next(tasks)
    for pid in pids("ControlActor"):
        os.kill(pid, signal.SIGKILL)
    tasks.close()
    assert marks(tmp_path, "torn down") == 2
    assert pids("ControlActor") == pids("RayWorker") == set()
