"""Workers gather the sources that they have all of, and what was shared or cut meets elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, ProcessingStage, Task
from gristmill.core.errors import StageError
from gristmill.core.stage_roles import CommitStage
from gristmill.text import JsonlReader, JsonlWriter


class Split(ProcessingStage[Task[Any], Task[Any]]):
    """Makes some tasks of one, each slowly: others may take some of them over."""

    def __init__(self, count: int = 1, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds

    def process(self, task: Task[Any]) -> Iterator[Task[Any]]:
        for index in range(self.count):
            time.sleep(self.seconds)
            yield Task((task.data, index))


class Work(ProcessingStage[Task[Any], Task[Any]]):
    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def process(self, task: Task[Any]) -> Task[Any]:
        time.sleep(self.seconds)
        return Task((task.data, os.getpid()))


class Together(CommitStage):
    """Says what it has gathered, who had worked on that, and who gathers."""

    def __init__(self, fails: Path | None = None, how: str = "") -> None:
        self.fails, self.how = fails, how

    def process(self, task: Task[Any]) -> Task[Any]:
        if self.fails is not None and not self.fails.exists():
            self.fails.touch()
            if self.how == "raises":
                raise OSError("the disk is full")
            os._exit(3)
        names, pids = zip(*(part.data for part in task.data), strict=True)
        return Task((names, set(pids), os.getpid()))


def run(stages: list[Any], count: int = 1, workers: int = 2) -> list[Any]:
    pipeline = Pipeline("p", stages=stages)
    result = pipeline.run(LocalExecutor(num_workers=workers), initial_tasks=[Task(name) for name in range(count)])
    return [task.data for task in result]


@pytest.mark.parametrize(("sources", "parts"), [(1, 1), (1, 5), (40, 1), (40, 3)])
def test_the_worker_that_has_all_of_a_source_gathers_it(sources: int, parts: int) -> None:
    found = run([Split(parts), Work(), Together()], sources, workers=1)
    assert [names for names, _, _ in found] == [tuple((name, i) for i in range(parts)) for name in range(sources)]
    assert all(pids == {own} for _, pids, own in found)


def test_what_was_shared_is_gathered_in_order() -> None:
    [(names, pids, _)] = run([Split(12, 0.05), Work(0.2), Together()])
    assert names == tuple((0, index) for index in range(12))
    assert len(pids) == 2  # else this has shown nothing


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_source_whose_gathering_fails_is_done_again(tmp_path: Path, how: str, parts: int) -> None:
    stages = [Split(parts), Work(), Together(tmp_path / "failed", how).with_(max_retries=1)]
    found = run(stages, 3)
    assert [names for names, _, _ in found] == [tuple((name, i) for i in range(parts)) for name in range(3)]
    with pytest.raises(StageError, match="together"):
        run([Split(parts), Work(), Together(tmp_path / "failed too", how).with_(max_retries=0, name="together")])


def test_a_file_that_is_read_in_parts_is_committed_once(tmp_path: Path) -> None:
    lines = [f'{{"id":{number},"text":"{"word " * 20}"}}\n' for number in range(2000)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    (tmp_path / "b.jsonl").write_text(lines[0])
    stages = [JsonlReader(str(tmp_path / "*.jsonl"), blocksize=20_000), JsonlWriter(str(tmp_path / "out"))]
    Pipeline("p", stages=stages).run(LocalExecutor(num_workers=2))
    written = sorted((tmp_path / "out").glob("*.jsonl"))
    assert [path.read_text() for path in written] == ["".join(lines), lines[0]]


class Dies(Split):
    """Shares, and then ends its worker once."""

    def __init__(self, flag: Path) -> None:
        super().__init__(12, 0.1)
        self.flag = flag

    def process(self, task: Task[Any]) -> Iterator[Task[Any]]:
        for index, part in enumerate(super().process(task)):
            if index == 8 and not self.flag.exists():
                self.flag.touch()
                os._exit(3)
            yield Task((part.data, os.getpid()))


def test_a_worker_that_dies_just_before_it_gathers_is_replaced(tmp_path: Path) -> None:
    [(names, _, _)] = run([Work(), Dies(tmp_path / "died"), Together()])
    assert [index for (_, index) in names] == list(range(12))


class Log(Work):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(seconds)
        self.path = path

    def process(self, task: Task[Any]) -> Task[Any]:
        with self.path.open("a") as file:
            file.write(f"{task.id}\n")
        return super().process(task)


@pytest.mark.parametrize(("seconds", "attempts"), [(0.0, 2), (0.4, 1)])
def test_what_took_long_is_not_done_again_if_gathering_fails(tmp_path: Path, seconds: float, attempts: int) -> None:
    stages = [Split(4), Log(tmp_path / "log", seconds), Together(tmp_path / "failed", "raises").with_(max_retries=1)]
    [(names, _, _)] = run(stages, workers=1)
    assert names == tuple((0, index) for index in range(4))
    assert len((tmp_path / "log").read_text().splitlines()) == 4 * attempts
