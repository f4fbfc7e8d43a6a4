"""The worker process: takes calls from its channel, runs them with a Worker, sends back what comes out.

Messages to the worker:    (setup, ...) (call, ...) (ack, bytes) (share, n) (stop,)
Messages from the worker:  (ready, error) (out, outputs, stats so far) (done, outputs, stats, set aside, memory)
                           (failed, error, set aside) (stopped, error, whether it may rest)

One that may rest says next, with True or False, whether it does, and waits for another set-up (`worker_reuse.py`).

Flow control: outputs that were sent and not acknowledged may hold at most WINDOW bytes; then the worker waits.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import pickle
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from gristmill.core.errors import StageError, describe_error
from gristmill.core.records.quarantine import ErrorBudget
from gristmill.core.records.rejected_rows import REJECTED_POSITION
from gristmill.core.run.isolation import RowLocation
from gristmill.core.run.recovery import RetryCheck
from gristmill.core.run.schedule import WINDOW
from gristmill.core.run.worker import Worker, never_share, stage_traceback
from gristmill.core.stage import NodeInfo, WorkerMetadata
from gristmill.core.task import GatherTask, Lineage, Task
from gristmill.executors.local.task_transport import PackedTask, pack_task
from gristmill.executors.local.zygote import TEARDOWN_ERROR_SUFFIX
from gristmill.executors.machine import private_memory_bytes
from gristmill.executors.worker_pool import CallRequest
from gristmill.executors.worker_reuse import is_reusable, process_state

MAX_REUSE_GROWTH_BYTES = 32 * 2**20
"""A process that has so much more memory for itself than at its beginning does not rest: a new one would be better."""

GATHER_HOLD_SECONDS = 1.0
"""So long a call may hold the tasks of a source to gather it by itself. What takes longer is heard of on the way, and
is not all done again if its gathering fails."""

_FLUSH_COUNT = 64
_FLUSH_BYTES = 256 * 1024
_FLUSH_SECONDS = 0.05


class StatusPage:
    """A page that a worker shares with the driver: the stage it is in, since when, and with which rows of which
    task. It outlives the worker.

    Each number is written in one step, the stage last, so a reader never sees a stage with an older time.
    """

    IDLE = -1
    SIZE = 40

    def __init__(self, path: str) -> None:
        with open(path, "a+b") as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is an error here, not a bus error later
                os.posix_fallocate(file.fileno(), 0, self.SIZE)
            file.truncate(self.SIZE)
            self._numbers = memoryview(mmap.mmap(file.fileno(), self.SIZE)).cast("d")
        self.leave()

    def enter(self, position: int, task: int = 0, start: int = 0, stop: int = 0) -> None:
        numbers = self._numbers
        numbers[1] = time.monotonic()
        numbers[2], numbers[3], numbers[4] = task, start, stop
        numbers[0] = position

    def leave(self) -> None:
        self._numbers[0] = self.IDLE

    def read(self) -> tuple[int, float]:
        """The stage's position (or IDLE) and the seconds that it has been at work."""
        position, since, still = self._numbers[0], self._numbers[1], self._numbers[0]
        if position != still or position == self.IDLE:
            return self.IDLE, 0.0
        return int(position), time.monotonic() - since

    def place(self) -> RowLocation | None:
        """What a worker that has ended was doing; None when it was not in a stage."""
        position, _, task, start, stop = self._numbers
        return None if position == self.IDLE else RowLocation(int(position), int(task), int(start), int(stop))


@dataclass(eq=False, repr=False)
class WorkerSetup:
    """What a worker needs to begin."""

    stages: bytes
    worker_id: str
    page: str
    folders: list[str]
    needs_node_setup: bool
    final: bool
    budget: ErrorBudget | None
    gpus: tuple[int, ...] = ()
    cpus: float = 1.0
    env: dict[str, str] = field(default_factory=dict)
    node: str = "local"
    outlives_driver: bool = False
    """Whether it tears down also when the driver is killed (`zygote.py`)."""
    has_next_segment: bool = False
    """Whether another segment follows."""


class _StopRequested(BaseException):
    """The driver wants the worker to end in the middle of a call."""


def run_worker_process(channel: Connection) -> None:
    """The life of a worker process: the worker of one group, and then maybe of others."""
    memory = private_memory_bytes()
    while _work_for_one_group(channel, memory):
        pass  # and nothing is held of the group that it has worked for


def _next_setup(channel: Connection) -> WorkerSetup | None:
    """What to do next; None if who asked for it has ended meanwhile, or needs it no more."""
    try:
        while (message := channel.recv())[0] != "setup":
            pass  # it was asked to stop twice, or to go on with what is done
    except (EOFError, ConnectionError):
        return None
    setup: WorkerSetup = message[1]
    return setup


def _work_for_one_group(channel: Connection, memory: int) -> bool:
    """Work for a group. Whether this process can then do so for another one."""
    if (setup := _next_setup(channel)) is None:
        return False
    session = _WorkerSession(channel, setup, memory)
    session.install_signal_handlers()
    problem = session.begin()
    asked = False
    try:
        channel.send(("ready", problem))
        while problem is None:
            kind, *rest = channel.recv()
            if kind == "stop":
                asked = True
                break
            if kind == "call":
                session.call(rest[0])
                session.interruptible(False)
    except (_StopRequested, EOFError, ConnectionError, KeyboardInterrupt):
        session.interruptible(False)
    rests = problem is None and session.end(asked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return rests


class _WorkerSession:
    def __init__(self, channel: Connection, setup: WorkerSetup, memory: int) -> None:
        """`memory` is what this process had for itself at its beginning."""
        self.channel, self.setup, self.memory = channel, setup, memory
        self.in_call = self.interrupted = False
        self.unacknowledged = 0
        self.tasks_to_share = 0
        self.outbox: list[tuple[Lineage, PackedTask, int, int]] = []
        self.outbox_bytes = 0
        self.outbox_since = 0.0

    def begin(self) -> StageError | None:
        """Set up. What went wrong, if anything did."""
        os.environ.update(_environment_variables(self.setup))
        self.process_state = process_state()
        import pyarrow as pa

        pa.set_cpu_count(thread_count(self.setup.cpus))
        metadata = WorkerMetadata(self.setup.worker_id, NodeInfo(self.setup.node), self.setup.gpus)
        try:
            stages, rejecter = cloudpickle.loads(self.setup.stages)
            if rejecter is not None:
                rejecter.send = lambda fragment: self.send(fragment, REJECTED_POSITION)
            page = StatusPage(self.setup.page)
            self.worker = Worker(stages, metadata, page, self.setup.final, self.setup.budget, rejecter)
            if self.setup.needs_node_setup:
                self.worker.setup_on_node()
            self.worker.setup()
        except BaseException as error:  # noqa: BLE001
            with contextlib.suppress(Exception):
                self.worker.teardown()
            return as_stage_error(error)
        return None

    def end(self, asked: bool) -> bool:
        """Tear down. Whether this process rests: one that was `asked` to end, and not in the middle of a call, may."""
        problem = None
        try:
            self.worker.teardown()
        except StageError as error:
            problem = error
            if self.setup.outlives_driver:  # who hears of it may be killed before it can tell anybody
                write_teardown_error(self.setup.page, problem)
        setup = self.setup
        wants_its_own = setup.env or setup.gpus or setup.outlives_driver
        may_rest = asked and problem is None and setup.has_next_segment and not (wants_its_own or self.interrupted)
        with contextlib.suppress(OSError):  # the driver is gone
            self.channel.send(("stopped", problem, may_rest))
            return may_rest and self._offer_for_reuse()
        return False

    def _offer_for_reuse(self) -> bool:
        del self.worker
        rests = is_reusable(self.process_state, self.memory + MAX_REUSE_GROWTH_BYTES)
        self.channel.send(rests)
        return rests

    def install_signal_handlers(self) -> None:
        """An interrupt ends the call that it is in, or the next one, but never a set-up or a teardown."""

        def interrupt(*_: object) -> None:
            self.interrupted = not self.in_call
            if self.in_call:
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
        self.interruptible(False)

    def interruptible(self, yes: bool) -> None:
        """Whether it may be interrupted, and terminated when the driver is gone."""
        self.in_call = yes
        if self.setup.outlives_driver:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if yes else signal.SIG_IGN)
        if yes and self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt

    def call(self, order: CallRequest) -> None:
        self.unacknowledged = self.tasks_to_share = 0
        repeat = RetryCheck(order.sent, self.worker.stages, order.items[0][0])

        def emit(task: Task[Any], position: int) -> None:
            if position not in ends or not repeat.leaves_out(task):
                self.send(task, position)

        def share() -> bool:
            self.listen(block=False)
            if self.tasks_to_share <= 0 or repeat.lags:
                return False
            self.tasks_to_share -= 1
            return True

        ends = self.worker.ends
        if self.worker.isolator:
            self.worker.isolator.begin(order.history, order.budget)
        try:
            self.interruptible(True)
            # what has left early may have an ancestor that would leave whole this time, with it
            shares = order.streams and not order.sent_early
            # of what was sent in an earlier attempt, all had been gathered
            until = math.inf if order.sent.count else time.perf_counter() + GATHER_HOLD_SECONDS
            asks = share if shares else never_share
            self.worker.run(
                _load_tasks(order), emit, order.start, asks, order.sent_early, order.complete_sources, until
            )
            repeat.check()
        except _StopRequested:
            raise
        except BaseException as error:  # noqa: BLE001  whatever a stage raises is the stage's failure, not the worker's
            self.interruptible(False)
            self.worker.take_stats()
            for _, parcel, _, _ in self.take_outbox():
                parcel.discard()
            self.channel.send(("failed", as_stage_error(error, self.worker, order), self.worker.take_quarantined()))
            return
        found = self.take_outbox(), self.worker.take_stats(), self.worker.take_quarantined()
        self.channel.send(("done", *found, private_memory_bytes()))

    def send(self, task: Task[Any], position: int) -> None:
        parcel = self.pack(task, position)
        if not self.outbox:
            self.outbox_since = time.monotonic()
        self.outbox.append((task.lineage, parcel, parcel.nbytes, position))
        self.outbox_bytes += parcel.nbytes
        late = time.monotonic() - self.outbox_since > _FLUSH_SECONDS
        late = late or (position >= 0 and position not in self.worker.ends)  # others wait for what leaves early
        if late or len(self.outbox) >= _FLUSH_COUNT or self.outbox_bytes >= _FLUSH_BYTES:
            self.unacknowledged += self.outbox_bytes
            self.channel.send(("out", self.take_outbox(), self.worker.look_at_stats()))
            self.listen(block=False)  # so that what the driver says never piles up until it cannot go on
            while self.unacknowledged > WINDOW:
                self.listen(block=True)

    def pack(self, task: Task[Any], position: int) -> PackedTask:
        stages = self.worker.stages
        is_result = self.setup.final and position == len(stages)  # which is kept on disk
        try:
            return pack_task(task, self.setup.folders[1:] if is_result else self.setup.folders)
        except Exception as error:
            last = (position if position > 0 else len(stages)) - 1
            reason = f"its output cannot be sent on: {type(error).__name__}: {error}"
            raise StageError(stages[last].name, task.id, task.lineage.files, reason, position=last) from error

    def take_outbox(self) -> list[tuple[Lineage, PackedTask, int, int]]:
        outbox, self.outbox, self.outbox_bytes = self.outbox, [], 0
        return outbox

    def listen(self, block: bool) -> None:
        """Take what the driver says in the middle of a call."""
        while block or self.channel.poll(0):
            kind, *rest = self.channel.recv()
            if kind == "ack":
                self.unacknowledged -= rest[0]
            elif kind == "share":
                self.tasks_to_share = rest[0]
            else:
                raise _StopRequested
            block = False


def write_teardown_error(page: str, problem: StageError) -> None:
    """Write down what went wrong, whole or not at all: the disk may be full, or this process be killed."""
    words = Path(page + TEARDOWN_ERROR_SUFFIX)
    with contextlib.suppress(OSError):
        part = words.with_suffix(".part")
        part.write_bytes(pickle.dumps(problem))
        part.rename(words)


def thread_count(cpus: float) -> int:
    """How many threads libraries may have in a worker with so many cores."""
    return max(1, int(cpus))


def _environment_variables(setup: WorkerSetup) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(thread_count(setup.cpus)))
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, setup.gpus))} if setup.gpus else {}
    return threads | devices | setup.env


def _load_tasks(order: CallRequest) -> list[Task[Any]]:
    if not order.gather:
        return [parcels[0].load().named(lineage) for lineage, parcels in order.items]
    return [GatherTask([parcel.load() for parcel in parcels]).named(lineage) for lineage, parcels in order.items]


def as_stage_error(error: BaseException, worker: Worker | None = None, order: CallRequest | None = None) -> StageError:
    """The error as the driver can take it: plain text, with the stage that the worker was in."""
    if isinstance(error, StageError):
        return error
    lineage = order.items[0][0] if order else None
    if worker is not None:
        return worker.failure(order.start if order else 0, lineage, error)
    return StageError("(worker)", "(none yet)", (), describe_error(error), stage_traceback(error))
