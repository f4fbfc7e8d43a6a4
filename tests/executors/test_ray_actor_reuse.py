"""Actors and the control actor of a run on Ray stay between its segments, and nothing of them stays after it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, Pipeline, ProcessingStage, RayActorPoolExecutor
from gristmill.core.errors import WorkerLostError
from gristmill.executors.ray.actor_reuse import ActorCaches
from gristmill.text import JsonlWriter
from tests.executors.multi_node_cluster import Cluster, pids
from tests.executors.process_recording_stages import (
    EXPECTED,
    LEFT,
    DiesInSetup,
    Leaves,
    corpus,
    noted,
    rows,
    shuffle,
    stages,
)

__all__ = ["corpus"]

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    with Cluster(cpus=2) as started:
        yield started


def check_nothing_is_left() -> None:
    deadline = time.monotonic() + 30
    while pids("ControlActor") | pids("RayWorker") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert pids("ControlActor") == pids("RayWorker") == set()


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> list[tuple[set[int], set[int]]]:
    """The boards that were there, and the actors that could be others, each time when a segment was over."""
    import ray

    found = []
    rest = ActorCaches.keep_cache

    def look(crews: ActorCaches, crew: Any) -> None:
        fit = [spare.actor for spare in crew.idle_actors if ray.get(spare.reuse_ref)]
        spares = [actor.__ray_call__.remote(lambda worker: os.getpid()) for actor in fit]
        found.append((pids("ControlActor"), set(ray.get(spares))))
        rest(crews, crew)

    monkeypatch.setattr(ActorCaches, "keep_cache", look)
    return found


def test_actors_go_on_with_the_next_segment(
    corpus: Path, tmp_path: Path, at_rest: list[tuple[set[int], set[int]]]
) -> None:
    marks = tmp_path / "marks"
    result = Pipeline("p", stages=stages(corpus, marks, shuffle(), shuffle())).run(RayActorPoolExecutor())
    assert rows(result) == EXPECTED
    (board, first), (same, second) = at_rest
    assert len(board) == 1
    assert board == same
    assert first & set(noted(marks, "work", 1)), "every segment has started its own actors"
    assert second & set(noted(marks, "work", 2))
    for step in range(3):
        assert sorted(noted(marks, "setup", step)) == sorted(noted(marks, "teardown", step)) != []
    check_nothing_is_left()


@pytest.mark.parametrize("kinds", [("RayWorker",), ("ControlActor",), ("ControlActor", "RayWorker")])
def test_those_that_die_at_rest_are_replaced(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    marks, killed = tmp_path / "marks", list[int]()
    rest = ActorCaches.keep_cache

    def kill_some(crews: ActorCaches, crew: Any) -> None:
        for pid in [pid for kind in kinds for pid in pids(kind)]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        rest(crews, crew)

    monkeypatch.setattr(ActorCaches, "keep_cache", kill_some)
    pipeline = Pipeline("p", stages=stages(corpus, marks, shuffle()))
    result = pipeline.run(RayActorPoolExecutor(), on_error="raise")
    assert rows(result) == EXPECTED
    assert len(killed) >= len(kinds)
    assert not set(killed) & set(noted(marks, "work", 1))
    check_nothing_is_left()


def test_a_stream_that_is_left_leaves_nothing(corpus: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    tasks = Pipeline("p", stages=stages(corpus, marks, shuffle())).stream(RayActorPoolExecutor())
    next(tasks)
    assert pids("ControlActor")
    tasks.close()
    assert sorted(noted(marks, "setup", 1)) == sorted(noted(marks, "teardown", 1))
    check_nothing_is_left()


class Fails(ProcessingStage[DocumentBatch, DocumentBatch]):
    max_retries = 0

    def process(self, task: DocumentBatch) -> DocumentBatch:
        raise ValueError("as it should")


def test_a_failure_leaves_nothing(corpus: Path, tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[*stages(corpus, tmp_path / "marks", shuffle()), Fails()])
    with pytest.raises(Exception, match="as it should"):
        pipeline.run(RayActorPoolExecutor(), on_error="raise")
    check_nothing_is_left()


def test_two_runs_at_once_share_an_executor(corpus: Path, tmp_path: Path) -> None:
    executor = RayActorPoolExecutor(show_progress=False)

    def run(name: str) -> None:
        out = JsonlWriter(tmp_path / name)
        Pipeline(name, stages=[*stages(corpus, tmp_path / f"marks-{name}", shuffle(), shuffle()), out]).run(executor)

    with ThreadPoolExecutor(2) as both:
        for done in [both.submit(run, name) for name in "ab"]:
            done.result()
    for name in "ab":
        lines = [line for path in (tmp_path / name).glob("*.jsonl") for line in path.read_text().splitlines()]
        assert sorted(json.loads(line)["id"] for line in lines) == EXPECTED
        for step in range(3):
            marks = tmp_path / f"marks-{name}"
            assert sorted(noted(marks, "setup", step)) == sorted(noted(marks, "teardown", step)) != []
    check_nothing_is_left()


@pytest.mark.parametrize("what", LEFT)
def test_an_actor_that_is_not_as_good_as_new_does_not_rest(
    corpus: Path, tmp_path: Path, at_rest: list[tuple[set[int], set[int]]], what: str
) -> None:
    marks = tmp_path / "marks"
    made = stages(corpus, marks, shuffle())
    made[1] = Leaves(marks, what)
    assert rows(Pipeline("p", stages=made).run(RayActorPoolExecutor())) == EXPECTED
    [(_, rested)] = at_rest
    assert bool(rested & set(noted(marks, "setup", 0))) == (what == "nothing")


def test_a_setup_that_kills_is_to_blame_also_in_an_actor_that_has_rested(corpus: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    made = [*stages(corpus, marks, shuffle())[:-1], DiesInSetup(marks, 1).with_(num_workers=1)]
    with pytest.raises(WorkerLostError, match="during setup"):
        Pipeline("p", stages=made).run(RayActorPoolExecutor())
    assert len(noted(marks, "setup", 1)) == 1, "those that had rested did not count"
    check_nothing_is_left()
