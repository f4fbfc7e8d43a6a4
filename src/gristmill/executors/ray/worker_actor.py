"""The Ray actor that runs one worker: it takes call requests, runs them with a `Worker` and returns the outputs.

Outputs travel in two parts. A message, which the driver reads, holds lineages, counts and small tasks. Large tasks go
to the object store of the node as one list per message, and the driver sees only a reference to it.

Other executors learn from shared memory where a dead worker was; an actor leaves none behind. So it records its
position with the control actor: only for stages with a time limit at first, and every step once an item is tried again.

The driver can ask, in the middle of a call, that tasks be shared with idle workers. They go through the control actor,
and once more with the next message of the call, because the control actor may be killed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from gristmill.core.errors import LostTaskError, StageError
from gristmill.core.executor import TaskRef
from gristmill.core.records.quarantine import ErrorBudget, QuarantinedRecord
from gristmill.core.records.rejected_rows import REJECTED_POSITION
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run.lost_tasks import RetryCheck, WantedOutputs
from gristmill.core.run.schedule import RECALL_SECONDS
from gristmill.core.run.user_interrupts import interrupt
from gristmill.core.run.worker import Worker, never_share
from gristmill.core.stage import NodeInfo, WorkerMetadata
from gristmill.core.task import GatherTask, Lineage, Task
from gristmill.executors.local.task_transport import INLINE_BYTES, PackedTask, compact_task, pack_task
from gristmill.executors.local.worker_process import as_stage_error
from gristmill.executors.machine_resources import private_memory_bytes
from gristmill.executors.ray.console_forwarding import OutputMarker
from gristmill.executors.ray.control_actor import ControlActor, ControlClient, PositionRecorder, SharedPart
from gristmill.executors.worker_pool import CallRequest
from gristmill.executors.worker_reuse import is_reusable, process_state

_FLUSH_BYTES = 8 * 2**20
_FLUSH_COUNT = 500
_FLUSH_SECONDS = 0.5
_SHARE_POLL_SECONDS = 0.02
"""How often a worker checks whether it should share tasks."""

_TASK_LOST_MESSAGE = (
    "the data of this task is lost: its node has disappeared, or the cluster has stopped. Results stay in the cluster "
    "until they are read. Read them as they come (Pipeline.stream), or end the pipeline with a writer and pass "
    "run_dir, with which the run continues where it stopped"
)


@dataclass(slots=True)
class StoredTask(TaskRef):
    """A large task: an entry of a list in the object store."""

    refs: list[Any]
    index: int
    nbytes: int
    node: str = ""

    def load(self) -> Task[Any]:
        import ray

        if not self.refs or not ray.is_initialized():
            raise LostTaskError(_TASK_LOST_MESSAGE)
        try:
            task: Task[Any] = ray.get(self.refs[0])[self.index]
        except ray.exceptions.RayTaskError:  # storing it failed
            raise
        except ray.exceptions.RayError as error:
            raise LostTaskError(_TASK_LOST_MESSAGE) from error
        return task

    def release(self) -> None:
        self.refs = []  # the store keeps a list as long as a reference to it exists


@dataclass(slots=True)
class WorkerMessage:
    """What the driver reads. Outputs given by an index are in the list of large tasks that follows the message."""

    kind: str
    outputs: list[tuple[Lineage, PackedTask | int, int, int]] = field(default_factory=list)
    stats: list[StageStats] = field(default_factory=list)
    aside: list[QuarantinedRecord] = field(default_factory=list)
    error: StageError | None = None
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Inputs that could not be loaded: numbers of the item and of its reference."""
    shared_parts: list[SharedPart] = field(default_factory=list)
    """Parts that were shared before this message; the driver may already have them from the control actor."""
    memory: int = 0


class _WorkSharing:
    """Hands tasks to other workers when the driver asks for it."""

    def __init__(self, control: ControlClient, look_at_stats: Callable[[], list[StageStats]]) -> None:
        self.control, self.look_at_stats = control, look_at_stats
        self.pending_request: Any = None
        self.polled_at = 0.0
        self.begin(0)

    def begin(self, number: int) -> None:
        self.number = number
        self.tasks_to_share, self.parts, self.shared_parts, self.outbox = 0, 0, list[SharedPart](), _Outbox(short=False)

    def share(self) -> bool:
        """Whether the next task should go to another worker."""
        if self.tasks_to_share <= 0 and time.monotonic() - self.polled_at > _SHARE_POLL_SECONDS:
            self._poll()
        self.tasks_to_share -= 1
        return self.tasks_to_share >= 0

    def _poll(self) -> None:
        import ray

        self.polled_at = time.monotonic()
        if self.pending_request is None:
            self.pending_request = self.control.actor.wait_for_share_request.remote(self.control.key)
        elif ray.wait([self.pending_request], timeout=0)[0]:
            request, self.pending_request = self.pending_request, None
            with contextlib.suppress(ray.exceptions.RayError):  # the driver asks again at the successor
                self.tasks_to_share = ray.get(request)

    def leave(self, task: Task[Any], position: int) -> None:
        self.outbox.add(task, position)
        if self.tasks_to_share <= 0 or self.outbox.full:
            self.flush()

    def flush(self) -> None:
        import ray

        if self.outbox.outputs:
            message, large = self.outbox.flush("out", self.look_at_stats(), [])
            self.shared_parts.append((self.parts, message, [ray.put(large)] if large else []))
            self.parts += 1
            self.control.actor.add_shared_part.remote(self.control.key, self.number, self.shared_parts[-1])

    def take_shared_parts(self) -> list[SharedPart]:
        """Parts since the last time. They must reach the driver before later outputs of the call."""
        self.flush()
        parts, self.shared_parts = self.shared_parts, []
        return parts


class RayWorker:
    """One worker of a group. After `prepare_for_reuse`, it can become a worker of another group."""

    def __init__(self, control_actor: tuple[Any, str, int], key: int, *settings: Any) -> None:
        """`control_actor` is its handle, the name that its successors share, and its number."""
        self.control = ControlClient(*control_actor, key)
        self.in_call = self.stopped = self.setup_failed = False
        """Whether a call may be interrupted now, whether the run was stopped, and whether setup failed."""
        self.output_marker, self.process_state = OutputMarker(), process_state()
        self._watches_for_stop = False
        self.worker: Any = None
        self.positions: Any = None
        self.sharing: Any = None
        """A Worker, PositionRecorder and _WorkSharing from `begin` to `prepare_for_reuse`."""
        self._join(key, *settings)

    def _join(self, key: int, payload: bytes, budget: ErrorBudget | None, final: bool, cpus: float) -> None:
        self.key, self.payload, self.budget, self.final, self.cpus = key, payload, budget, final, cpus
        self.last_call_seconds = 0.0
        """How long the last call took."""

    def begin_reused(self, needs_node_setup: bool, key: int, *settings: Any) -> tuple[StageError | None, str]:
        """Become a worker of another group. `settings` are those of the constructor."""
        self.control.switch_worker(key)
        self._join(key, *settings)
        return self.begin(needs_node_setup)

    def begin(self, needs_node_setup: bool) -> tuple[StageError | None, str]:
        """Set up the stages. Returns the error, if there is one, and the id of this node."""
        import pyarrow as pa
        import ray

        self._watch_for_stop()
        pa.set_cpu_count(max(1, int(self.cpus)))
        context = ray.get_runtime_context()
        node = context.get_node_id()
        gpus = tuple(int(device) for device in context.get_accelerator_ids().get("GPU", []))
        try:
            stages, rejecter = cloudpickle.loads(self.payload)
            timed = {index for index, stage in enumerate(stages) if stage.timeout_s is not None}
            self.positions = PositionRecorder(self.control, timed)
            metadata = WorkerMetadata(f"{self.key}", NodeInfo(node), gpus)
            self.worker = Worker(stages, metadata, self.positions, self.final, self.budget, rejecter)
            self.sharing = _WorkSharing(self.control, self.worker.look_at_stats)
            if needs_node_setup:
                self.worker.setup_on_node()
            self.worker.setup()
        except BaseException as error:  # noqa: BLE001
            self.setup_failed = True
            self.end()
            return as_stage_error(error), node
        return None, node

    def end(self) -> StageError | None:
        """Tear down the stages. Returns the error, if there is one."""
        problem: StageError | None = None
        try:
            if self.worker is not None:
                self.worker.teardown()
        except StageError as error:
            problem = error
        self.control.report_output_marks(self.output_marker)
        return problem

    def prepare_for_reuse(self, most_bytes: int) -> bool:
        """Drop the stages after `end`. Returns whether this process is as good as a new one."""
        self.worker = self.positions = self.sharing = None
        self.payload = b""
        return not self.stopped and not self.setup_failed and is_reusable(self.process_state, most_bytes)

    def _watch_for_stop(self) -> None:
        """Interrupt running stages when the run is stopped, so that they can be torn down."""
        if threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it
        if not self._watches_for_stop:
            self._watches_for_stop = True
            threading.Thread(target=self._watch, args=(threading.get_ident(),), daemon=True).start()

    def _watch(self, main: int) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self.control.ask(ControlActor.wait_until_stopped)
            self.stopped = True
            signal.pthread_kill(main, signal.SIGINT)

    def _interrupt(self, *_: object) -> None:
        if self.in_call:
            raise interrupt()

    def once(self, request: CallRequest) -> tuple[WorkerMessage, list[Task[Any]]]:
        """A call that is answered once: of several items, which succeed or fail together, or with little output."""
        parts = list(self.stream(request, flushes=False))
        if self.stopped and len(parts) < 2:
            return WorkerMessage("returned"), []
        assert len(parts) == 2
        return parts[0], parts[1]

    def stream(self, request: CallRequest, flushes: bool = True) -> Iterator[Any]:
        """A call whose outputs are sent as they come: messages, each followed by the list of its large tasks."""
        if self.stopped or not self._is_still_wanted(request):
            yield WorkerMessage("returned")
            yield []
            return
        began = time.monotonic()
        parts = self._stream(request, flushes)
        while (part := self._next(parts)) is not None:
            if isinstance(part, WorkerMessage):
                part.shared_parts = self.sharing.take_shared_parts()
            yield part
        self.last_call_seconds = time.monotonic() - began

    def _next(self, parts: Generator[Any, None, None]) -> Any:
        """The next part of a call. Interrupts are only allowed here; elsewhere, Ray would take them for its own."""
        try:
            self.in_call = True
            return parts.throw(interrupt()) if self.stopped else next(parts, None)
        except (KeyboardInterrupt, StopIteration):
            return None
        finally:
            self.in_call = False

    def _is_still_wanted(self, request: CallRequest) -> bool:
        """Whether the driver has not withdrawn the call, which it only does if the call before it takes long."""
        if not request.waits or self.last_call_seconds < RECALL_SECONDS / 2:
            return True
        return self.control.begin_call(request.number)

    def _stream(self, request: CallRequest, flushes: bool) -> Generator[Any, None, None]:
        outbox = _Outbox(request.has_small_output)
        if self.worker.side_output_recorder:
            self.worker.side_output_recorder.send = lambda fragment: outbox.add(fragment, REJECTED_POSITION)
        if self.worker.isolator:
            self.worker.isolator.begin(request.history, request.budget)
        self.sharing.begin(request.number)
        self.positions.acknowledged = request.history.attempts > 0
        last = len(self.worker.stages)
        try:
            for task in self._outputs(request, outbox):
                outbox.add(task, last)
                if flushes and outbox.full:
                    yield from outbox.flush("out", self.worker.look_at_stats(), [])
        except BaseException as error:  # noqa: BLE001  anything may come from a stage
            self.worker.take_stats()
            aside = self.worker.take_quarantined()
            if isinstance(error, _OutputTooLarge):
                yield WorkerMessage("again")
            elif isinstance(error, LostTaskError):
                yield WorkerMessage("missing", missing=_missing_inputs(request))
            else:
                failure = as_stage_error(error, self.worker, request)
                yield WorkerMessage("failed", error=failure, aside=aside)
            yield []
            return
        yield from outbox.flush("done", self.worker.take_stats(), self.worker.take_quarantined())

    def _outputs(self, request: CallRequest, outbox: _Outbox) -> Iterator[Task[Any]]:
        """What leaves the last stage, without what an earlier attempt has sent; or only what was lost with a node."""
        if request.wanted is None:
            repeat = RetryCheck(request.sent, self.worker.stages, request.items[0][0])
            # sharing again could send an ancestor of a task that was shared in an earlier attempt
            shares = request.streams and not request.has_small_output and not request.sent_early
            share = (lambda: not repeat.lags and self.sharing.share()) if shares else never_share
            yield from repeat.rest(
                self.worker.stream(_load_tasks(request), request.start, self.sharing.leave, share, request.sent_early)
            )
            self.sharing.flush()
            return
        wanted, last = WantedOutputs(request.wanted), len(self.worker.stages)

        def early(task: Task[Any], position: int) -> None:
            if wanted.take(task.id, position):
                outbox.add(task, position)

        if self.worker.side_output_recorder:
            self.worker.side_output_recorder.send = lambda fragment: None
        for task in self.worker.stream(_load_tasks(request), request.start, early, wanted.is_wanted_here, wanted):
            if wanted.take(task.id, last):
                yield task
            if not wanted.pending:
                return


class _OutputTooLarge(Exception):
    """The output of a call is too large to hold until the call is done."""


class _Outbox:
    """Outputs that are collected for the next message."""

    def __init__(self, short: bool) -> None:
        self.short = short
        self._clear()

    def _clear(self) -> None:
        self.outputs: list[tuple[Lineage, PackedTask | int, int, int]] = []
        self.large: list[Task[Any]] = []
        self.nbytes = 0
        self.since = time.monotonic()

    @property
    def full(self) -> bool:
        late = time.monotonic() - self.since > _FLUSH_SECONDS
        return bool(self.outputs) and (late or self.large_enough)

    @property
    def large_enough(self) -> bool:
        return self.nbytes > _FLUSH_BYTES or len(self.outputs) >= _FLUSH_COUNT

    def add(self, task: Task[Any], position: int) -> None:
        if not self.outputs:
            self.since = time.monotonic()
        packed = pack_task(task, None) if task.nbytes <= INLINE_BYTES else None  # nbytes may be an estimate
        size = packed.nbytes if packed else task.nbytes
        self.nbytes += size
        if packed and size <= 2 * INLINE_BYTES:
            self.outputs.append((task.lineage, packed, size, position))
        else:
            self.outputs.append((task.lineage, len(self.large), size, position))
            self.large.append(compact_task(task))
        if self.short and self.large_enough and len(self.outputs) > 1:
            raise _OutputTooLarge

    def flush(self, kind: str, stats: list[StageStats], aside: list[QuarantinedRecord]) -> Iterator[Any]:
        message, large = WorkerMessage(kind, self.outputs, stats, aside, memory=private_memory_bytes()), self.large
        self._clear()
        yield message
        yield large


def _missing_inputs(request: CallRequest) -> list[tuple[int, int]]:
    """The inputs of a call that cannot be loaded."""
    missing = []
    for number, (_, refs) in enumerate(request.items):
        for part, ref in enumerate(refs):
            try:
                ref.load()
            except LostTaskError:
                missing.append((number, part))
    return missing


def _load_tasks(request: CallRequest) -> Iterator[Task[Any]]:
    for lineage, refs in request.items:
        tasks = [ref.load() for ref in refs]
        yield (GatherTask(tasks) if request.gather else tasks[0]).named(lineage)
