"""Worker processes of this machine stay between the groups and segments of a run, and nothing of them after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest

from gristmill import LocalExecutor, Pipeline, Resources
from gristmill.core.errors import WorkerLostError
from gristmill.executors.local.zygote import Zygote
from tests.executors.leftover_processes import nothing_left
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

__all__ = ["corpus", "nothing_left"]

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The workers that were forked, of which none may be left."""
    found = set[int]()
    fork = Zygote.fork

    def count(zygote: Zygote) -> tuple[int, Connection]:
        pid, channel = fork(zygote)
        found.add(pid)
        return pid, channel

    monkeypatch.setattr(Zygote, "fork", count)
    yield found
    assert not [pid for pid in found if Path(f"/proc/{pid}").exists()]


class Heard:
    """A channel of which the next message has been heard, and is there still."""

    def __init__(self, channel: Connection) -> None:
        self.channel, self.next = channel, [channel.recv()] if channel.poll(10) else []

    def poll(self, timeout: float = 0.0) -> bool:
        return bool(self.next) or self.channel.poll(timeout)

    def recv(self) -> Any:
        return self.next.pop() if self.next else self.channel.recv()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)


@pytest.fixture
def rested(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Those that have rested, by their own word."""
    found = set[int]()
    keep = Zygote.keep_idle

    def note(zygote: Zygote, pid: int, channel: Any, *terms: int) -> None:
        heard = Heard(channel)
        if heard.next == [True]:
            found.add(pid)
        keep(zygote, pid, cast("Connection", heard), *terms)

    monkeypatch.setattr(Zygote, "keep_idle", note)
    return found


def test_workers_go_on_with_the_next_segment(
    corpus: Path, tmp_path: Path, forked: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[int]()
    worker = Zygote.take_worker

    def note(zygote: Zygote, threads: int) -> tuple[int, Connection]:
        pid, channel = worker(zygote, threads)
        taken.append(pid)
        return pid, channel

    monkeypatch.setattr(Zygote, "take_worker", note)
    marks = tmp_path / "marks"
    result = Pipeline("p", stages=stages(corpus, marks, shuffle(), shuffle())).run(LocalExecutor(2))
    assert rows(result) == EXPECTED
    assert set(taken) == forked
    assert len(forked) <= 3 < len(taken), "a segment has had processes of its own"
    for step in range(3):
        assert sorted(noted(marks, "setup", step)) == sorted(noted(marks, "teardown", step)) != []


def test_those_that_die_at_rest_are_replaced(
    corpus: Path, tmp_path: Path, forked: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = set[int]()
    keep = Zygote.keep_idle

    def kill_first(zygote: Zygote, pid: int, channel: Connection, *terms: int) -> None:
        if not killed:
            os.kill(pid, signal.SIGKILL)
            channel.poll(10)  # until it is dead
            killed.add(pid)
        keep(zygote, pid, channel, *terms)

    monkeypatch.setattr(Zygote, "keep_idle", kill_first)
    marks = tmp_path / "marks"
    pipeline = Pipeline("p", stages=stages(corpus, marks, shuffle()))
    assert rows(pipeline.run(LocalExecutor(1), on_error="raise")) == EXPECTED
    assert len(killed) == 1
    assert not killed & set(noted(marks, "work", 1))


@pytest.mark.parametrize("what", LEFT)
def test_a_process_that_is_not_as_good_as_new_does_not_rest(
    corpus: Path, tmp_path: Path, forked: set[int], rested: set[int], what: str
) -> None:
    marks = tmp_path / "marks"
    made = stages(corpus, marks, shuffle())
    made[1] = Leaves(marks, what)
    assert rows(Pipeline("p", stages=made).run(LocalExecutor(2))) == EXPECTED
    assert bool(rested & set(noted(marks, "setup", 0))) == (what == "nothing")


@pytest.mark.parametrize("change", [{"max_tasks_per_worker": 100}, {"runtime_env": {"env_vars": {"GRIST": "mill"}}}])
def test_a_process_of_a_stage_that_wants_its_own_does_not_rest(
    corpus: Path, tmp_path: Path, rested: set[int], change: dict[str, Any]
) -> None:
    marks = tmp_path / "marks"
    made = stages(corpus, marks, shuffle())
    made[1] = made[1].with_(**change)
    assert rows(Pipeline("p", stages=made).run(LocalExecutor(2))) == EXPECTED
    assert not rested & set(noted(marks, "setup", 0))


def test_no_more_rest_than_may(forked: set[int]) -> None:
    zygote = Zygote(["/nowhere", "/nowhere"])
    workers = [zygote.fork() for _ in range(3)]
    for pid, channel in workers:
        zygote.keep_idle(pid, channel, 1, 2)
    assert [Path(f"/proc/{pid}").exists() for pid, _ in workers] == [False, True, True]
    zygote.close()


def test_a_setup_that_kills_is_to_blame_also_in_a_process_that_has_rested(corpus: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    made = [*stages(corpus, marks, shuffle())[:-1], DiesInSetup(marks, 1).with_(num_workers=1)]
    with pytest.raises(WorkerLostError, match="during setup"):
        Pipeline("p", stages=made).run(LocalExecutor(2))
    assert len(noted(marks, "setup", 1)) == 1, "those that had rested did not count"


def test_a_process_goes_on_with_groups_of_as_many_cores_only(corpus: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    made = stages(corpus, marks, shuffle())
    made[-1] = made[-1].with_(resources=Resources(cpus=2))  # what has loaded OpenMP would go on with one thread
    assert rows(Pipeline("p", stages=made).run(LocalExecutor(2))) == EXPECTED
    assert not set(noted(marks, "setup", 0)) & set(noted(marks, "setup", 1))
