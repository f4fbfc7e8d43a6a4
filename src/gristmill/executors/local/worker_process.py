"""The worker process: receives calls through its channel, runs them with a `Worker`, sends back the outputs.

Messages to the worker:    (setup, ...) (call, ...) (ack, bytes) (share, n) (stop,)
Messages from the worker:  (ready, error) (out, outputs, stats so far) (done, outputs, stats, quarantined, memory)
                           (failed, error, quarantined) (stopped, error, whether it may be reused)

A worker that may be reused then sends True or False, whether it is fit for it, and waits for another setup
(`worker_reuse.py`).

Flow control: unacknowledged outputs may hold at most WINDOW bytes; then the worker waits.
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
from gristmill.core.run.lost_tasks import RetryCheck
from gristmill.core.run.row_progress import note_with
from gristmill.core.run.schedule import WINDOW
from gristmill.core.run.user_interrupts import forget_interrupt, interrupt
from gristmill.core.run.worker import Worker, never_share, stage_traceback
from gristmill.core.stage import NodeInfo, WorkerMetadata
from gristmill.core.task import GatherTask, Lineage, Task
from gristmill.executors.local.task_transport import PackedTask, pack_task
from gristmill.executors.local.zygote import TEARDOWN_ERROR_SUFFIX
from gristmill.executors.machine_resources import private_memory_bytes
from gristmill.executors.worker_pool import CallRequest
from gristmill.executors.worker_reuse import is_reusable, process_state

MAX_REUSE_GROWTH_BYTES = 32 * 2**20
"""A process whose private memory has grown by more than this is not reused."""

GATHER_HOLD_SECONDS = 1.0
"""How long a call may hold the tasks of a source to gather them itself. Longer ones are sent on, so that progress is
visible and a failing gather does not repeat everything."""

_FLUSH_COUNT = 64
_FLUSH_BYTES = 256 * 1024
_FLUSH_SECONDS = 0.05

CHANNEL_CLOSED = 188
"""The exit code of a worker whose channel to the driver was closed by a stage."""


class StatusPage:
    """A page that a worker shares with the driver: the stage it is in, since when, and with which rows of which
    task. It outlives the worker.

    Each number is written in one step, the stage last, so a reader never sees a stage with an older time.
    """

    IDLE = -1
    SIZE = 56

    def __init__(self, path: str) -> None:
        with open(path, "a+b") as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is an error here, not a bus error later
                os.posix_fallocate(file.fileno(), 0, self.SIZE)
            file.truncate(self.SIZE)
            self._numbers = memoryview(mmap.mmap(file.fileno(), self.SIZE)).cast("d")
        self._channel: tuple[int, tuple[int, int] | None] | None = None
        self.leave()

    def enter(self, position: int, task: int = 0, start: int = 0, stop: int = 0) -> None:
        numbers = self._numbers
        numbers[1] = time.monotonic()
        numbers[2], numbers[3], numbers[4], numbers[5] = task, start, stop, 0
        numbers[0] = position

    def leave(self) -> None:
        if self._channel is not None and _identity(self._channel[0]) != self._channel[1]:
            os._exit(CHANNEL_CLOSED)  # still in the stage, so that the driver knows which one it was
        self._numbers[0] = self.IDLE

    def note_rows(self, rows: int) -> None:
        """So many rows will pass until the next note; 0 if that is not known."""
        self._numbers[6] = time.monotonic()
        self._numbers[5] = rows

    def rows_noted(self) -> tuple[int, float] | None:
        """The last note of the running call, and how many seconds ago it was; None if there is none."""
        rows, since = int(self._numbers[5]), self._numbers[6]
        return (rows, time.monotonic() - since) if rows else None

    def watch(self, channel: Connection) -> None:
        """End the process if a stage closes the channel to the driver, as with `os.closerange`."""
        self._channel = channel.fileno(), _identity(channel.fileno())

    def read(self) -> tuple[int, float]:
        """The position of the current stage (or IDLE), and for how many seconds it has been running."""
        position, since, still = self._numbers[0], self._numbers[1], self._numbers[0]
        if position != still or position == self.IDLE:
            return self.IDLE, 0.0
        return int(position), time.monotonic() - since

    def location(self) -> RowLocation | None:
        """The rows that a dead worker was at; None if it was not in a stage."""
        position, _, task, start, stop, *_ = self._numbers
        return None if position == self.IDLE else RowLocation(int(position), int(task), int(start), int(stop))


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Which file a descriptor is of; None if it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@dataclass(eq=False, repr=False)
class WorkerSetup:
    """What a process needs to become a worker."""

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
    """Whether it tears down even if the driver is killed (`zygote.py`)."""
    has_next_segment: bool = False
    """Whether another segment follows."""


class _StopRequested(BaseException):
    """The driver wants the worker to stop in the middle of a call."""


def run_worker_process(channel: Connection) -> None:
    """Main function of a worker process: work for one group, and then perhaps for others."""
    memory = private_memory_bytes()
    while _work_for_one_group(channel, memory):
        pass  # no variable here keeps objects of the last group


def _next_setup(channel: Connection) -> WorkerSetup | None:
    """The next setup; None if the driver has ended, or needs this process no more."""
    try:
        while (message := channel.recv())[0] != "setup":
            pass  # late messages for the last group
    except (EOFError, ConnectionError):
        return None
    setup: WorkerSetup = message[1]
    return setup


def _work_for_one_group(channel: Connection, memory: int) -> bool:
    """Work for one group. Returns whether this process can work for another one."""
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
    reusable = problem is None and session.end(asked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return reusable


class _WorkerSession:
    """The work of a process for one group."""

    def __init__(self, channel: Connection, setup: WorkerSetup, memory: int) -> None:
        """`memory` is the private memory of the process when it started."""
        self.channel, self.setup, self.memory = channel, setup, memory
        self.in_call = self.interrupted = False
        self.unacknowledged = 0
        self.tasks_to_share = 0
        self.outbox: list[tuple[Lineage, PackedTask, int, int]] = []
        self.outbox_bytes = 0
        self.outbox_since = 0.0

    def begin(self) -> StageError | None:
        """Set up the stages. Returns the error, if there is one."""
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
            page.watch(self.channel)
            note_with(page.note_rows)
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
        """Tear down. Returns whether the process can be reused; only if it was `asked` to stop, outside of a call."""
        problem = None
        try:
            self.worker.teardown()
        except StageError as error:
            problem = error
            if self.setup.outlives_driver:  # the guard may be killed before it can report the error
                write_teardown_error(self.setup.page, problem)
        setup = self.setup
        wants_its_own = setup.env or setup.gpus or setup.outlives_driver
        may_be_reused = asked and problem is None and setup.has_next_segment and not (wants_its_own or self.interrupted)
        with contextlib.suppress(OSError):  # the driver is gone
            self.channel.send(("stopped", problem, may_be_reused))
            return may_be_reused and self._offer_for_reuse()
        return False

    def _offer_for_reuse(self) -> bool:
        del self.worker
        reusable = is_reusable(self.process_state, self.memory + MAX_REUSE_GROWTH_BYTES)
        self.channel.send(reusable)
        return reusable

    def install_signal_handlers(self) -> None:
        """Let an interrupt end the current call, or the next one, but never a setup or a teardown."""

        def handle(*_: object) -> None:
            self.interrupted = not self.in_call
            if self.in_call:
                raise interrupt()

        signal.signal(signal.SIGINT, handle)
        self.interruptible(False)

    def interruptible(self, yes: bool) -> None:
        """Set whether interrupts take effect now (and SIGTERM, after the driver is gone)."""
        self.in_call = yes
        forget_interrupt()
        if self.setup.outlives_driver:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if yes else signal.SIG_IGN)
        if yes and self.interrupted:
            self.interrupted = False
            raise interrupt()

    def call(self, request: CallRequest) -> None:
        self.unacknowledged = self.tasks_to_share = 0
        repeat = RetryCheck(request.sent, self.worker.stages, request.items[0][0])

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
            self.worker.isolator.begin(request.history, request.budget)
        try:
            self.interruptible(True)
            # sharing again could send an ancestor of a task that was shared in an earlier attempt
            shares = request.streams and not request.sent_early
            # outputs that an earlier attempt has sent were gathered, so gather again, however long it takes
            until = math.inf if request.sent.count else time.perf_counter() + GATHER_HOLD_SECONDS
            asks = share if shares else never_share
            self.worker.run(
                _load_tasks(request), emit, request.start, asks, request.sent_early, request.complete_sources, until
            )
            repeat.check()
        except _StopRequested:
            raise
        except BaseException as error:  # noqa: BLE001  anything may come from a stage
            self.interruptible(False)
            self.worker.take_stats()
            for _, packed, _, _ in self.take_outbox():
                packed.discard()
            self.channel.send(("failed", as_stage_error(error, self.worker, request), self.worker.take_quarantined()))
            return
        summary = self.take_outbox(), self.worker.take_stats(), self.worker.take_quarantined()
        self.channel.send(("done", *summary, private_memory_bytes()))

    def send(self, task: Task[Any], position: int) -> None:
        packed = self.pack(task, position)
        if not self.outbox:
            self.outbox_since = time.monotonic()
        self.outbox.append((task.lineage, packed, packed.nbytes, position))
        self.outbox_bytes += packed.nbytes
        late = time.monotonic() - self.outbox_since > _FLUSH_SECONDS
        late = late or (position >= 0 and position not in self.worker.ends)  # idle workers wait for shared tasks
        if late or len(self.outbox) >= _FLUSH_COUNT or self.outbox_bytes >= _FLUSH_BYTES:
            self.unacknowledged += self.outbox_bytes
            self.channel.send(("out", self.take_outbox(), self.worker.look_at_stats()))
            self.listen(block=False)  # otherwise unread messages could fill the pipe and block the driver
            while self.unacknowledged > WINDOW:
                self.listen(block=True)

    def pack(self, task: Task[Any], position: int) -> PackedTask:
        stages = self.worker.stages
        is_result = self.setup.final and position == len(stages)  # results are kept on disk, not in shared memory
        try:
            return pack_task(task, self.setup.folders[1:] if is_result else self.setup.folders)
        except Exception as error:
            last = (position if position > 0 else len(stages)) - 1
            reason = f"its output cannot be sent to the next worker: {type(error).__name__}: {error}"
            raise StageError(stages[last].name, task.id, task.lineage.files, reason, position=last) from error

    def take_outbox(self) -> list[tuple[Lineage, PackedTask, int, int]]:
        outbox, self.outbox, self.outbox_bytes = self.outbox, [], 0
        return outbox

    def listen(self, block: bool) -> None:
        """Handle messages of the driver in the middle of a call."""
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
    """Save the error atomically: the disk may be full, or this process may be killed."""
    path = Path(page + TEARDOWN_ERROR_SUFFIX)
    with contextlib.suppress(OSError):
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps(problem))
        part.rename(path)


def thread_count(cpus: float) -> int:
    """How many threads libraries may use in a worker with this many cores."""
    return max(1, int(cpus))


def _environment_variables(setup: WorkerSetup) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(thread_count(setup.cpus)))
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, setup.gpus))} if setup.gpus else {}
    return threads | devices | setup.env


def _load_tasks(request: CallRequest) -> list[Task[Any]]:
    if not request.gather:
        return [packed_tasks[0].load().named(lineage) for lineage, packed_tasks in request.items]
    return [
        GatherTask([packed.load() for packed in packed_tasks]).named(lineage) for lineage, packed_tasks in request.items
    ]


def as_stage_error(
    error: BaseException, worker: Worker | None = None, request: CallRequest | None = None
) -> StageError:
    """Convert any exception to a StageError, which can be pickled, with the stage that the worker was in."""
    if isinstance(error, StageError):
        return error
    lineage = request.items[0][0] if request else None
    if worker is not None:
        return worker.failure(request.start if request else 0, lineage, error)
    return StageError("(worker)", "(none yet)", (), describe_error(error), stage_traceback(error))
