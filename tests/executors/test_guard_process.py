"""The parts that keep promises inside another engine, without one: guard processes, and serialised tasks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import Task
from gristmill.core.errors import StageError
from gristmill.core.task import Lineage
from gristmill.executors.engines import guard_process as guard_module
from gristmill.executors.engines.driver_channel import CallReceipt
from gristmill.executors.engines.engine_executor import Delivery
from gristmill.executors.engines.guard_process import GuardProcess, wait_for_local_guards
from gristmill.executors.local.task_transport import TemporaryFolder
from gristmill.executors.local.worker_process import write_teardown_error
from gristmill.executors.local.zygote import teardown_error_files
from tests.conformance.small_stages import Witness


class Sleeps(Witness):
    def process(self, task: Task[int]) -> Task[int]:
        self._mark("work")
        time.sleep(600)
        return task


class SlowSetup(Witness):
    def setup(self, worker_metadata: Any = None) -> None:
        super().setup(worker_metadata)
        time.sleep(1.0)


class SlowTeardown(Witness):
    def teardown(self) -> None:
        self._mark("tearing")
        time.sleep(1.0)
        super().teardown()


class BadTeardown(Witness):
    def teardown(self) -> None:
        super().teardown()
        raise OSError("cannot close")


class SlowBadTeardown(BadTeardown, SlowTeardown):
    """Both."""


class Forgotten(SlowBadTeardown):
    """Nobody holds the guard any more while this tears down."""


class Patient(SlowTeardown):
    """It takes longer than others would wait, and not longer than a guard does."""


class Heard(BadTeardown):
    """The guard has heard of it, and ends."""


class Unheard(BadTeardown):
    """The guard is ended while it hears of it."""


ACTOR = """
import contextlib, gc, json, os, signal, sys, time
from pathlib import Path
from gristmill import Task
from gristmill.core.run.task_flow import WorkItem
from gristmill.core.plan.planner import Group
from gristmill.core.records.quarantine import ErrorBudget
from gristmill.core.task import Lineage
from gristmill.executors.driver import Driver
from gristmill.executors.engines.guard_process import GroupAssignment, GuardDriver
from gristmill.executors.worker_pool import pickle_group
from gristmill.executors.local.task_transport import pack_task
from tests.executors import test_guard_process

kind, folder = sys.argv[1], Path(sys.argv[2])
stage = getattr(test_guard_process, kind)(folder)
guard = GuardDriver(GroupAssignment(0, pickle_group(Group(0, (stage,))), True, True, True, ErrorBudget()), "node", 0)
print(json.dumps([guard.zygote.pid, guard.folders]), flush=True)
guard.begin(needs_node_setup=True)
lineage = Lineage("0", "0")
for outputs in guard.run_call([WorkItem(lineage, [pack_task(Task(1).named(lineage), guard.folders)])]):
    print([output.ref.load().data for output in outputs], flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
if kind == "Patient":
    Driver.grace = 0.05
if kind == "Unheard":
    guard.remove_worker = sys.exit
if isinstance(stage, (test_guard_process.SlowTeardown, test_guard_process.Heard, test_guard_process.Unheard)):
    with contextlib.suppress(SystemExit):
        guard.end()
    if kind == "Forgotten":
        del guard
        gc.collect()
    time.sleep(2)
    sys.exit()
signal.pause()
"""


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        ("Witness", ""),
        ("Sleeps", "work-*"),
        ("SlowSetup", "setup-*"),
        ("SlowTeardown", "tearing-*"),
        ("BadTeardown", ""),
        ("SlowBadTeardown", "tearing-*"),
        ("Forgotten", "tearing-*"),
        ("Patient", "ends"),
        ("Heard", "ends"),
        ("Unheard", "ends"),
    ],
)
def test_a_worker_tears_down_when_the_engine_kills_its_actor(kind: str, when: str, tmp_path: Path) -> None:
    """Also in the middle of a call, of its set-up, or when it was about to; and what goes wrong is told."""
    actor = subprocess.Popen([sys.executable, "-c", ACTOR, kind, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert actor.stdout is not None
    pid, folders = json.loads(actor.stdout.readline())
    if not when:
        assert json.loads(actor.stdout.readline()) == [1]
    while "*" in when and not list(tmp_path.glob(when)):
        assert actor.poll() is None
        time.sleep(0.01)
    if when != "ends":
        actor.terminate() if when == "tearing-*" else actor.kill()
    actor.communicate()
    TemporaryFolder().remove()  # another run begins, and sweeps what was left by those that were killed
    problem = wait_for_local_guards([GuardProcess("node", pid, tuple(folders))], 60.0)
    hooks = [path.name.split("-")[0] for path in tmp_path.iterdir()]
    assert [hooks.count(name) for name in ("node", "setup", "teardown")] == [1, 1, 1]
    assert not any(Path(folder).exists() for folder in folders)
    assert ("cannot close" in str(problem)) if issubclass(globals()[kind], BadTeardown) else problem is None


@pytest.mark.parametrize(("command", "message"), [("exec sleep 600", False), ("sleep 600 & echo; wait", True)])
def test_only_a_worker_that_was_there_can_be_late(command: str, message: bool) -> None:
    """One that was still being started had nothing to tear down."""
    late = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True)
    assert late.stdout is not None
    if message:
        late.stdout.readline()
    problem = wait_for_local_guards([GuardProcess("node", late.pid, ())], 0.0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(late.pid, signal.SIGKILL)
    late.communicate()
    assert late.returncode == -signal.SIGKILL
    assert ("took more than 0 s" in str(problem)) == message


@pytest.mark.parametrize("proc", ["/proc", "/no/such/place"])
def test_whether_a_process_lives(proc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "_PROC", Path(proc))
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert [guard_module.is_process_running(pid) for pid in (os.getpid(), 1, ended.pid)] == [True, True, False]


def test_last_words_are_left_whole_or_not_at_all(tmp_path: Path) -> None:
    """A full disk keeps nobody from ending as if there had been nothing to say."""
    page = str(tmp_path / "page-0")
    (tmp_path / "page-0.part").symlink_to("/dev/full")
    write_teardown_error(page, StageError("s", "t", (), "in teardown"))
    assert teardown_error_files(str(tmp_path)) == []
    write_teardown_error(str(tmp_path / "gone" / "page-0"), StageError("s", "t", (), "in teardown"))
    (tmp_path / "page-0.part").unlink()
    (tmp_path / "page-1.part").write_bytes(b"half")
    write_teardown_error(page, StageError("s", "t", (), "in teardown"))
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert "in teardown" in str(wait_for_local_guards([GuardProcess("node", gone.pid, (str(tmp_path),))], 0.0))


def test_a_folder_that_its_guard_removes_in_that_moment_is_no_failure(tmp_path: Path) -> None:
    """Then the run failed for it, instead of for what its stage had raised. Python before 3.12 tells it rarely."""
    folder, over = tmp_path / "guard", threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            folder.mkdir()
            folder.rmdir()

    guard = threading.Thread(target=come_and_go)
    guard.start()
    try:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            assert teardown_error_files(str(folder)) == []
    finally:
        over.set()
        guard.join()


# -- convoys -------------------------------------------------------------------------------------------------

GROUPS = 3


@st.composite
def journeys(draw: Any) -> tuple[int, list[CallReceipt]]:
    """Tasks that pass through groups in calls of several, each giving some tasks, and the calls' receipts."""
    count = draw(st.integers(1, 4))
    waiting = [(number, str(number)) for number in range(count)]
    receipts = []
    for group in range(GROUPS):
        following = []
        while waiting:
            size = draw(st.integers(1, len(waiting)))
            items, waiting = waiting[:size], waiting[size:]
            children = [f"{name}.{index}" for _, name in items for index in range(draw(st.integers(0, 2)))]
            ref = "result" if group + 1 == GROUPS else None
            receipts.append(CallReceipt(group, items, [(Lineage(name), ref, 1, 1) for name in children]))
            following += [(items[0][0], name) for name in children]
        waiting = following
    return count, receipts


@given(journeys(), st.randoms(use_true_random=False))
def test_a_convoy_is_whole_when_all_has_arrived_in_whatever_order(journey: Any, random: Any) -> None:
    count, receipts = journey
    convoy = Delivery(list(range(count)), {(0, number, str(number)) for number in range(count)})
    random.shuffle(receipts)
    for index, receipt in enumerate(receipts):
        assert not convoy.is_complete
        for _ in range(random.choice([1, 2])):  # an engine may repeat a call
            convoy.add_receipt(receipt, receipt.group + 1 if receipt.group + 1 < GROUPS else None)
        assert convoy.is_complete == (index + 1 == len(receipts))
    assert sorted(map(id, convoy.receipts)) == sorted(map(id, receipts))


def test_a_convoy_with_a_call_that_was_repeated_in_part_is_never_whole() -> None:
    convoy = Delivery([0, 1], {(0, 0, "0"), (0, 1, "1")})
    convoy.add_receipt(CallReceipt(0, [(0, "0")]), None)
    convoy.add_receipt(CallReceipt(0, [(0, "0"), (1, "1")]), None)
    assert not convoy.is_complete
