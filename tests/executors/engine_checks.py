"""What holds on every executor that hands scheduling to another engine: the same tests for each of them."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Task
from gristmill.core.errors import StageError
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter
from tests.conformance.small_stages import AddOne, CountTo, Gather, Trouble, Witness
from tests.ray_cluster import left_over


def check_faults_and_hooks(executor: Any, mark: str, folder: Path) -> None:
    """A record at fault is found, hooks run, and nothing is left behind."""
    stages = [CountTo(100), Witness(folder), Trouble("exit", 37), AddOne()]
    result = Pipeline("p", stages=stages).run(executor, max_errors=1)
    assert [task.data for task in result] == [number + 1 for number in range(100) if number != 37]
    assert [(record.kind, record.content) for record in result.quarantined()] == [("crashed", "37")]
    hooks = [path.name.split("-")[0] for path in folder.iterdir()]
    assert hooks.count("node") == 1
    assert hooks.count("setup") > hooks.count("teardown") >= 1  # those that crashed could not
    assert left_over(mark) == []


class BadTeardown(AddOne):
    def teardown(self) -> None:
        raise OSError("cannot close")


def check_bad_teardown(executor: Any) -> None:
    """It is told, unless the engine itself has failed: so this also shows that the engine ends well."""
    with pytest.raises(StageError, match="cannot close"):
        Pipeline("p", stages=[BadTeardown()]).run(executor, initial_tasks=[Task(1)])


class Blocks(ProcessingStage[Task[int], DocumentBatch]):
    """Batches of more than rides in a message."""

    def process(self, task: Task[int]) -> Iterator[DocumentBatch]:
        for block in range(3):
            yield DocumentBatch([{"n": task.data, "block": block, "text": "x" * 1000} for _ in range(300)])


class Same(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


def check_large_batches(executor: Any, mark: str) -> None:
    """They pass from group to group, and results outlive the engine, and nothing outlives the results."""
    big = DocumentBatch([{"n": number, "text": "y" * 1000} for number in range(300)])
    kept = Pipeline("p", stages=[Same()]).run(executor, initial_tasks=[big, big])
    made = Pipeline("p", stages=[Blocks(), Same(), Gather()]).run(executor, initial_tasks=[Task(1), Task(2)])
    assert [len(task.data) for task in made] == [3, 3]
    assert [task.to_rows() for task in kept] == [big.to_rows()] * 2
    del kept, made
    gc.collect()
    assert left_over(mark) == []


class Stop(ProcessingStage[Any, Any]):
    max_retries = 0

    def __init__(self, go: Path) -> None:
        self.go = go

    def process(self, task: Any) -> Any:
        if not self.go.exists() and "/4.jsonl" in task.lineage.files[0]:
            raise RuntimeError("stop here")
        return task


def check_resumes(executor: Any, folder: Path) -> None:
    """A run that was stopped goes on with another executor, and gives the same bytes and the same rejected rows."""
    (folder / "in").mkdir()
    for number in range(6):
        rows = [{"id": f"{number}-{row}", "text": "grist " * (row % 40)} for row in range(300)]
        (folder / "in" / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(out: str, executor: Any, run_dir: Path | None = None, **options: Any) -> Any:
        stages = [
            JsonlReader(str(folder / "in"), blocksize=5000),
            ScoreFilter(WordCountFilter(min_words=5)),
            Stop(folder / "go"),
            JsonlWriter(folder / out),
        ]
        return Pipeline("p", stages=stages).run(executor, run_dir, **options)

    with pytest.raises(Exception, match="stop here"):
        run("out", executor, folder / "run", on_error="raise")
    (folder / "go").touch()
    run("out", LocalExecutor(0), folder / "run")
    run("there", executor, rejected=folder / "rejected there")
    run("here", LocalExecutor(0), rejected=folder / "rejected here")
    for one, other in (("out", "here"), ("there", "here"), ("rejected there", "rejected here")):
        assert contents(folder / one) == contents(folder / other)
        assert not list(folder.rglob("_tmp"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith("_")}


class Slow(ProcessingStage[Task[int], Task[int]]):
    """Takes its time, and says so."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def process(self, task: Task[int]) -> Task[int]:
        (self.marks / str(task.data)).touch()
        time.sleep(0.05)
        return task


@contextlib.contextmanager
def killing(actor: str, marks: Path, after: int) -> Iterator[list[int]]:
    """Kill an actor of the engine, once so many tasks were begun."""
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        import ray
        from ray._private.state import actors

        while not over.wait(0.05) and not killed:
            if ray.is_initialized() and len(list(marks.iterdir())) >= after:
                alive = [one for one in actors().values() if one["State"] == "ALIVE"]
                killed.extend(one["Pid"] for one in alive if one["ActorClassName"].startswith(actor))
                for pid in killed:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def check_killed_actor(executor: Any, actor: str, marks: Path, after: int = 5) -> None:
    """Whatever the engine makes of it, all tasks come out, once."""
    marks.mkdir()
    with killing(actor, marks, after) as killed:
        result = Pipeline("p", stages=[Slow(marks), AddOne()]).run(
            executor, initial_tasks=[Task(number) for number in range(60)]
        )
    assert killed
    assert [task.data for task in result] == list(range(1, 61))
    assert result.summary()["Slow"].rows_in == 60
