"""Ray watches the memory of its nodes, and kills a worker when too little is left: that stops no run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import Pipeline, ProcessingStage, RayActorPoolExecutor, Task
from tests.conformance.small_stages import AddOne, CountTo
from tests.executors.multi_node_cluster import Cluster, pids

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

ROOM = 2 * 2**30
"""What may be taken before Ray thinks that it is too much."""


class TakesMemory(ProcessingStage[Task[int], Task[int]]):
    """Takes more and more memory for one number, for as long as it is let."""

    max_retries = 1

    def process(self, task: Task[int]) -> Task[int]:
        taken = []
        while task.data == 7:
            taken.append(b"x" * 2**26)
            time.sleep(0.02)
            assert len(taken) * 2**26 < 2 * ROOM, "Ray does not watch the memory here"
        return task


def memory() -> tuple[int, int]:
    """Of this machine, all of it and what is in use."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {line[0]: int(line[1]) * 1024 for line in lines}
    return sizes["MemTotal:"], sizes["MemTotal:"] - sizes["MemAvailable:"]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster that kills workers when so much more memory is in use than now."""
    total, used = memory()
    if total - used < 3 * ROOM:
        pytest.skip("too little memory is free here")
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{(used + ROOM) / total:.4f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    with Cluster() as started:
        yield started


@pytest.mark.usefixtures("watched")
def test_a_record_for_which_ray_kills_its_worker_is_set_aside() -> None:
    stages = [CountTo(20), TakesMemory().with_(num_workers=1), AddOne()]
    result = Pipeline("p", stages=stages).run(RayActorPoolExecutor(), max_errors=1)
    assert [task.data for task in result] == [number + 1 for number in range(20) if number != 7]
    assert [(record.kind, record.content) for record in result.quarantined()] == [("crashed", "7")]


class Slow(ProcessingStage[Task[int], Task[int]]):
    """Takes its time, and has a time limit, so that it notes where it is. What it prints it speaks of in the end."""

    timeout_s = 60.0

    def process(self, task: Task[int]) -> Task[int]:
        print(task.data)
        time.sleep(0.1)
        return task


@pytest.mark.parametrize("workers", ["are killed", "live on"])
def test_a_run_goes_on_when_ray_kills_its_board(
    watched: Cluster, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else takes the memory, so that killing workers frees none, and the board goes, too."""
    elsewhere = workers == "live on"
    if elsewhere:
        monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")
        watched.add(cpus=2)
        watched.wait_for(2)
    stages = [CountTo(100), Slow().with_(num_workers=2)]
    executor = RayActorPoolExecutor(fuse=False, ignore_head_node=elsewhere)
    stream = Pipeline("p", stages=stages).stream(executor, on_error="raise")
    came = [next(stream).data]
    boards = pids("ControlActor")
    assert boards
    taken, deadline = [], time.monotonic() + 60
    while pids("ControlActor") & boards and time.monotonic() < deadline:
        if len(taken) * 2**26 < ROOM + ROOM // 2:
            taken.append(b"x" * 2**26)
        time.sleep(0.05)
    assert not pids("ControlActor") & boards, "Ray did not kill it"
    taken.clear()
    came += [task.data for task in stream]
    assert sorted(came) == list(range(100))
