"""Who leaves a stream in its midst, by Ctrl-C or because the program ends, has its workers torn down."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, ProcessingStage, Task, processing_stage
from gristmill.core.errors import StageError
from gristmill.core.run import stream_shutdown

ROOT = Path(__file__).parents[2]

LEAVES = """
import contextlib, os, signal, sys, time
from pathlib import Path
import gristmill
from gristmill import Pipeline, ProcessingStage, RayClient, Task

folder, executor, how = sys.argv[1:]

class Model(ProcessingStage[Task[int], Task[int]]):
    def setup(self):
        Path(folder, f"set up {os.getpid()}").touch()

    def process(self, task):
        return task

    def teardown(self):
        time.sleep(0.1)
        Path(folder, f"torn down {os.getpid()}").touch()

stage, tasks = Model().with_(num_workers=2), [Task(number) for number in range(50)]
name, _, count = executor.partition(":")
runs_on = getattr(gristmill, name)(*([int(count)] if count else []))
client = RayClient(num_cpus=2, include_dashboard=False) if name.startswith("Ray") else contextlib.nullcontext()
if how != "leaves the cluster":
    client.__enter__()
    client = contextlib.nullcontext()
with client:
    stream = Pipeline("p", stages=[stage]).stream(runs_on, initial_tasks=tasks)
    for task in stream:
        if how != "ends":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        break
"""


@pytest.mark.parametrize(
    ("executor", "how"),
    [
        ("LocalExecutor:2", "is interrupted"),
        ("LocalExecutor:0", "is interrupted"),
        pytest.param("LocalExecutor:2", "ends", marks=pytest.mark.slow),
        *(
            pytest.param(executor, how, marks=pytest.mark.ray)
            for executor, how in (
                ("RayActorPoolExecutor", "is interrupted"),
                ("RayActorPoolExecutor", "leaves the cluster"),
                ("RayDataExecutor", "is interrupted"),
            )
        ),
    ],
)
def test_a_stream_that_is_left_tears_its_workers_down(executor: str, how: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    command = [sys.executable, "-c", LEAVES, str(tmp_path), executor, how]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=180, check=False)
    said = "" if how == "ends" else "KeyboardInterrupt"
    assert done.stderr.rstrip().endswith(said), done.stderr
    assert "Exception ignored" not in done.stderr
    marks = sorted(path.name.rpartition(" ") for path in tmp_path.iterdir())
    for worker in {pid for what, _, pid in marks if what == "set up"}:
        assert ("torn down", " ", worker) in marks
    assert marks


def test_a_long_stream_leaves_no_more_behind_than_a_short_one() -> None:
    """What is to be done when the program ends is noted once: the list of that is looked through each time."""

    @processing_stage()
    def same(task: Task[int]) -> Task[int]:
        return task

    def noted(count: int) -> int:
        before = atexit._ncallbacks()
        tasks = [Task(number) for number in range(count)]
        assert len(list(Pipeline("p", stages=[same]).stream(LocalExecutor(0), initial_tasks=tasks))) == count
        return atexit._ncallbacks() - before

    noted(1)  # whatever is imported for the first time
    assert noted(50) == noted(1)


def test_a_stream_that_cannot_be_closed_keeps_no_other_from_it() -> None:
    closed = []

    def stream(number: int) -> Generator[int, None, None]:
        try:
            yield number
        finally:
            closed.append(number)
            if number < 2:
                raise OSError(f"stream {number} cannot be torn down")

    opened = [stream_shutdown.closed_at_exit(stream(number)) for number in range(4)]
    for one in opened:
        next(one)
    with pytest.raises(OSError, match="cannot be torn down"):
        stream_shutdown.close_open_streams()
    assert sorted(closed) == list(range(4))


def test_ctrl_c_while_all_are_closed_goes_before_what_else_goes_wrong() -> None:
    def stream(error: BaseException) -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            raise error

    errors = [OSError("cannot be torn down"), KeyboardInterrupt(), OSError("nor can this")]
    opened = [stream_shutdown.closed_at_exit(stream(error)) for error in errors]
    for one in opened:
        next(one)
    with pytest.raises(KeyboardInterrupt):
        stream_shutdown.close_open_streams()


def unclosable(number: int = 0) -> Generator[int, None, None]:
    """A stream that is begun, and gives more until it fails. It cannot be closed."""

    def tasks() -> Generator[int, None, None]:
        try:
            yield from range(number + 1)
            raise ValueError("a stage has failed")
        except GeneratorExit:
            raise OSError("cannot be torn down") from None

    stream = stream_shutdown.closed_at_exit(tasks())
    next(stream)
    return stream


def test_who_closes_a_stream_after_ctrl_c_sees_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt) as interrupted, contextlib.closing(unclosable()):
        raise KeyboardInterrupt
    assert "cannot be torn down" in str(interrupted.value.__context__)


def test_who_goes_on_after_ctrl_c_sees_what_goes_wrong_then() -> None:
    stream = unclosable(number=1)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert next(stream) == 1
        with pytest.raises(ValueError, match="a stage has failed"):
            next(stream)
        failing = Pipeline("p", stages=[Fails()])
        with pytest.raises(StageError, match="no"):
            failing.run(LocalExecutor(0), initial_tasks=[Task(1)], on_error="raise")


def test_who_opens_and_closes_a_stream_after_ctrl_c_sees_what_goes_wrong_with_it() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        stream = unclosable()
        with pytest.raises(OSError, match="cannot be torn down"):
            stream.close()


def test_a_stream_does_not_keep_what_was_being_handled_when_it_was_asked() -> None:
    gc.disable()
    try:
        try:
            raise Held
        except Held:
            gone, stream = weakref.ref(sys.exc_info()[1]), unclosable()  # type: ignore[arg-type]
        assert gone() is None
    finally:
        gc.enable()
    with pytest.raises(OSError, match="cannot be torn down"):
        stream.close()


class Held(Exception):
    pass


def test_contexts_that_go_in_a_circle_are_followed_once() -> None:
    error, before = ValueError("the last"), KeyError("before it")
    error.__context__, before.__context__ = before, error
    with (
        pytest.raises(ValueError, match="the last"),
        stream_shutdown.interrupt_first(stream_shutdown.handled_exception_id()),
    ):
        raise error


class Fails(ProcessingStage[Task[int], Task[int]]):
    max_retries = 0

    def process(self, task: Task[int]) -> Task[int]:
        raise RuntimeError("no")


class Unreadable(LocalExecutor):
    """Its results cannot be loaded, as when Ctrl-C comes at that moment."""

    closed = False

    def execute(self, job: Any) -> Iterator[tuple[Any, Any]]:
        class Ref:
            def load(self) -> None:
                raise KeyboardInterrupt

        try:
            for lineage, ref in super().execute(job):
                yield lineage, ref and Ref()
        finally:
            self.closed = True


def test_workers_are_torn_down_before_anybody_hears_of_an_error_in_the_midst_of_a_stream() -> None:
    executor = Unreadable(0)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        next(Pipeline("p", stages=[Same()]).stream(executor, initial_tasks=[Task(1), Task(2)]))
    assert executor.closed
    del interrupted  # which has held all frames until now


class Same(ProcessingStage[Task[int], Task[int]]):
    def process(self, task: Task[int]) -> Task[int]:
        return task
