"""How workers and drivers on one machine end: well, interrupted, killed, late, and with what they have started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, ProcessingStage, Task
from gristmill.core.errors import StageError, WorkerLostError
from gristmill.executors.engines.guard_process import is_process_running
from gristmill.executors.local.local_executor import LocalDriver
from tests.conformance.small_stages import AddOne
from tests.executors.leftover_processes import leftovers, nothing_left

pytestmark = pytest.mark.usefixtures(nothing_left.__name__)

SCRIPT = """
import os, sys, time
from gristmill import LocalExecutor, Pipeline, ProcessingStage, Task

class Nap(ProcessingStage):
    def process(self, task):
        os.write(1, f"pid {{os.getpid()}}\\n".encode())  # in one piece: two workers write at once
        time.sleep({nap})
        return Own(task.data)

class Own(Task):
    pass

result = Pipeline("p", stages=[Nap()]).run(LocalExecutor(2), initial_tasks=[Task(i) for i in range(4)])
assert all(type(task) is Own for task in result)
print("done", [task.data for task in result])
"""


def start_script(tmp_path: Path, nap: float) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(nap=nap))
    env = os.environ | {"GRISTMILL_PROGRESS": "off"}
    return subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def test_a_script_needs_no_main_guard_and_may_define_its_classes(tmp_path: Path) -> None:
    out, err = start_script(tmp_path, 0).communicate(timeout=60)
    assert out.strip().endswith("done [0, 1, 2, 3]"), err
    assert err == ""


def workers_of(script: subprocess.Popen[str]) -> list[int]:
    assert script.stdout is not None
    assert script.stderr is not None
    lines = [script.stdout.readline() for _ in range(2)]
    assert all(lines), script.stderr.read()
    return [int(line.split()[1]) for line in lines]


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_a_killed_driver_leaves_no_workers_and_no_files(tmp_path: Path) -> None:
    script = start_script(tmp_path, 60)
    pids = workers_of(script)
    assert leftovers(script.pid)
    script.kill()
    script.communicate()
    assert gone(pids)
    deadline = time.monotonic() + 10
    while leftovers(script.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not leftovers(script.pid)


def test_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    script = start_script(tmp_path, 60)
    pids = workers_of(script)
    script.send_signal(signal.SIGINT)
    _, err = script.communicate(timeout=30)
    assert script.returncode != 0
    assert "KeyboardInterrupt" in err
    assert gone(pids)


class LeavesChild(ProcessingStage[Task[int], Task[int]]):
    """Starts a process that outlives it, and dies, closes its channel, or ends well."""

    max_retries = 0

    def __init__(self, then: str, note: Path) -> None:
        self.then, self.note = then, note

    def process(self, task: Task[int]) -> Task[int]:
        if self.then == "close":
            os.closerange(3, 100)
            time.sleep(600)
        child = subprocess.Popen(["sleep", "600"])
        self.note.write_text(str(child.pid))
        if self.then == "die":
            if os.fork() == 0:
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        return task


@pytest.mark.parametrize("then", ["die", "close", "end"])
def test_what_a_stage_has_started_ends_with_its_worker(then: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    pipeline = Pipeline("p", stages=[LeavesChild(then, note)])
    began = time.monotonic()
    if then == "end":
        pipeline.run(LocalExecutor(1), initial_tasks=[Task(1)])
    else:
        with pytest.raises(WorkerLostError, match="'LeavesChild' failed on task 0"):
            pipeline.run(LocalExecutor(1), initial_tasks=[Task(1)], on_error="raise")
    assert time.monotonic() - began < 15
    if note.exists():
        assert gone([int(note.read_text())])


@pytest.mark.slow
def test_a_slow_teardown_is_waited_for_and_a_deadly_one_told(tmp_path: Path) -> None:
    class Slowly(AddOne):
        def __init__(self, end: str) -> None:
            self.end = end

        def teardown(self) -> None:
            time.sleep(4)
            (tmp_path / "down").touch()
            if self.end == "exit":
                os._exit(9)

    Pipeline("p", stages=[Slowly("well")]).run(LocalExecutor(1), initial_tasks=[Task(1)])
    assert (tmp_path / "down").exists()
    with pytest.raises(WorkerLostError, match="in teardown, its worker exited with code 9"):
        Pipeline("p", stages=[Slowly("exit")]).run(LocalExecutor(1), initial_tasks=[Task(1)])


def test_a_worker_that_is_set_up_when_all_is_done_may_tear_down_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had only the short time that those have which are still being set up, and failed the run."""
    monkeypatch.setattr(LocalDriver, "grace", 1.5)

    class Latecomer(AddOne):
        def setup(self, worker_metadata: Any = None) -> None:
            try:
                (tmp_path / "first").touch(exist_ok=False)
                self.late = False
            except FileExistsError:
                self.late = True
                while not (tmp_path / "over").exists():
                    time.sleep(0.05)

        def process(self, task: Task[int]) -> Task[int]:
            time.sleep(0.5)  # there is time to start the other one
            return task

        def teardown(self) -> None:
            (tmp_path / "over").touch()
            time.sleep(2 if self.late else 0)
            (tmp_path / ("late" if self.late else "early")).touch()

    Pipeline("p", stages=[Latecomer()]).run(LocalExecutor(2), initial_tasks=[Task(i) for i in range(2)])
    assert (tmp_path / "late").exists()


INTERRUPTED = """
import sys, time
from pathlib import Path
from gristmill import LocalExecutor, Pipeline, ProcessingStage, Task

class Model(ProcessingStage[Task[int], Task[int]]):
    def __init__(self, folder):
        self.folder = folder

    def process(self, task):
        print("working", flush=True)
        time.sleep(600)

    def teardown(self):
        time.sleep(0.2)
        Path(self.folder, "torn down").touch()

Pipeline("p", stages=[Model(sys.argv[1])]).run(LocalExecutor(int(sys.argv[2])), initial_tasks=[Task(1)])
"""


@pytest.mark.parametrize("workers", ["1", "0"])
def test_a_stage_that_is_interrupted_is_torn_down(workers: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), workers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "working\n"
        script.send_signal(signal.SIGINT)
        _, err = script.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert (tmp_path / "torn down").exists()


class Endless(ProcessingStage[Task[int], Task[int]]):
    """Works on one task for ever, and tells when it was torn down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, task: Task[int]) -> Task[int]:
        if task.data:
            while not list(self.folder.iterdir()):
                time.sleep(0.01)
            raise ValueError("stop here")
        (self.folder / "at work").touch()
        time.sleep(600)
        return task

    def teardown(self) -> None:
        (self.folder / f"torn down {os.getpid()}").touch()


def test_after_a_failure_all_workers_tear_down(tmp_path: Path) -> None:
    stage = Endless(tmp_path).with_(max_retries=0)
    with pytest.raises(StageError, match="stop here"):
        Pipeline("p", stages=[stage]).run(LocalExecutor(2), initial_tasks=[Task(0), Task(1)], on_error="raise")
    assert len(list(tmp_path.glob("torn down *"))) == 2


def test_a_worker_that_dies_in_its_setup_when_all_is_done_fails_no_run(tmp_path: Path) -> None:
    class Latecomer(AddOne):
        def setup(self, worker_metadata: Any = None) -> None:
            try:
                (tmp_path / "first").touch(exist_ok=False)
            except FileExistsError:
                (tmp_path / "second").touch()
                while not (tmp_path / "over").exists():
                    time.sleep(0.05)
                os._exit(9)

        def process(self, task: Task[int]) -> Task[int]:
            while not (tmp_path / "second").exists():
                time.sleep(0.05)
            return task

        def teardown(self) -> None:
            (tmp_path / "over").touch()
            time.sleep(1)

    Pipeline("p", stages=[Latecomer()]).run(LocalExecutor(2), initial_tasks=[Task(i) for i in range(2)])
    assert (tmp_path / "over").exists()


def test_a_driver_that_was_held_up_still_waits_for_those_that_tear_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, one look that took longer than the grace was the last one, and failed a run that was done."""
    monkeypatch.setattr(LocalDriver, "grace", 0.2)
    listen = LocalDriver.listen

    def held_up(driver: LocalDriver, seconds: float) -> Iterator[Any]:
        time.sleep(0.4)
        yield from listen(driver, seconds)

    class Slowly(AddOne):
        def teardown(self) -> None:
            time.sleep(1)
            (tmp_path / "down").touch()

    monkeypatch.setattr(LocalDriver, "listen", held_up)
    Pipeline("p", stages=[Slowly()]).run(LocalExecutor(1), initial_tasks=[Task(1)])
    assert (tmp_path / "down").exists()


SEES_OFF = """
import json, os, signal, sys
from gristmill.executors.local.task_transport import TemporaryFolder, shared_memory_folder
from gristmill.executors.local.zygote import Zygote

disk = TemporaryFolder()
memory = shared_memory_folder(disk)
zygote = Zygote([memory.path, disk.path], float(sys.argv[1]))
(first, channel), others = zygote.fork(), [zygote.fork() for _ in range(2)]
print(json.dumps([zygote.pid, [memory.path, disk.path]]), flush=True)
zygote._send_message(f"wait {first}")  # which ends with this process
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("linger", [0.0, 30.0])
def test_a_driver_that_is_killed_while_a_worker_is_seen_off_leaves_nothing(linger: float) -> None:
    """The zygote has nobody to tell how the worker ended, and must not take it for one that is still there."""
    driver = subprocess.run(
        [sys.executable, "-c", SEES_OFF, str(linger)], capture_output=True, text=True, timeout=60, check=False
    )
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    zygote, folders = json.loads(driver.stdout)
    deadline = time.monotonic() + 20
    while is_process_running(zygote) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_process_running(zygote)
    assert not any(Path(folder).exists() for folder in folders)
    assert driver.stderr == ""
