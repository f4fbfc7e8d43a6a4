"""The worker as a Ray actor: takes orders, runs them with a Worker, gives back what comes out.

What comes out travels in two parts. A message, which the driver reads, holds lineages, counts and small tasks. Large
tasks lie in the object store of the node, one list of them per message, and only a reference passes the driver.

An actor that dies leaves no page to read. While nothing has gone wrong, it notes what it does only for stages with a
time limit; when an item is tried again, it notes each step on a board, an actor near the driver, and waits until it is
written there. The board is also where the driver asks it, in the middle of a call, to leave some tasks to others, and
where it leaves them. What it leaves comes once more with what the call gives next: boards may be killed.
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
from gristmill.core.records.quarantine import ErrorBudget, QuarantinedRecord
from gristmill.core.records.rejected_rows import REJECTED_POSITION
from gristmill.core.run.recovery import RetryCheck, WantedOutputs
from gristmill.core.run.schedule import RECALL_SECONDS
from gristmill.core.run.stage_stats import StageStats
from gristmill.core.run.worker import Worker, never_share
from gristmill.core.stage import NodeInfo, WorkerMetadata
from gristmill.core.task import GatherTask, Lineage, Task
from gristmill.executors.local.task_transport import INLINE_BYTES, PackedTask, compact_task, pack_task
from gristmill.executors.local.worker_process import as_stage_error
from gristmill.executors.machine import private_memory_bytes
from gristmill.executors.ray.control_actor import SharedPart
from gristmill.executors.ray.control_client import ControlClient, PositionRecorder
from gristmill.executors.ray.output_forwarding import OutputMarker
from gristmill.executors.worker_pool import CallRequest
from gristmill.executors.worker_reuse import is_reusable, process_state

_FLUSH_BYTES = 8 * 2**20
_FLUSH_COUNT = 500
_FLUSH_SECONDS = 0.5
_SHARE_POLL_SECONDS = 0.02
"""How often a worker looks whether others are idle."""

_TASK_LOST_MESSAGE = (
    "what this task holds is gone: the node that it lay on has disappeared, or the cluster has stopped. Results lie in "
    "the cluster until they are looked at: look at them as they come (Pipeline.stream), or end the pipeline with a "
    "writer and give the run a run_dir, with which it goes on where it stopped"
)


@dataclass(slots=True)
class StoredTask:
    """A large task: a place in a list in the object store."""

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
        except ray.exceptions.RayTaskError:  # it could not be stored
            raise
        except ray.exceptions.RayError as error:
            raise LostTaskError(_TASK_LOST_MESSAGE) from error
        return task

    def discard(self) -> None:
        """The store keeps a list as long as somebody has a reference to it."""
        self.refs = []

    release = discard


@dataclass(slots=True)
class WorkerMessage:
    """What the driver reads. The outputs that have an index lie in the list that follows."""

    kind: str
    outputs: list[tuple[Lineage, PackedTask | int, int, int]] = field(default_factory=list)
    stats: list[StageStats] = field(default_factory=list)
    aside: list[QuarantinedRecord] = field(default_factory=list)
    error: StageError | None = None
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Which parts of which items could not be loaded, by number."""
    shared_parts: list[SharedPart] = field(default_factory=list)
    """What was left to others before this, on the board: the driver may have heard of it, or not."""
    memory: int = 0


class _WorkSharing:
    """Leaves tasks to others when the board says that they are idle."""

    def __init__(self, line: ControlClient, look_at_stats: Callable[[], list[StageStats]]) -> None:
        self.line, self.look_at_stats = line, look_at_stats
        self.asked: Any = None
        self.polled_at = 0.0
        self.begin(0)

    def begin(self, number: int) -> None:
        self.number = number
        self.tasks_to_share, self.parts, self.shared_parts, self.outbox = 0, 0, list[SharedPart](), _Outbox(short=False)

    def share(self) -> bool:
        """Whether the next task should be left to others."""
        if self.tasks_to_share <= 0 and time.monotonic() - self.polled_at > _SHARE_POLL_SECONDS:
            self._look()
        self.tasks_to_share -= 1
        return self.tasks_to_share >= 0

    def _look(self) -> None:
        import ray

        self.polled_at = time.monotonic()
        if self.asked is None:
            self.asked = self.line.actor.asked.remote(self.line.key)
        elif ray.wait([self.asked], timeout=0)[0]:
            asked, self.asked = self.asked, None
            with contextlib.suppress(ray.exceptions.RayError):  # whoever asked will ask again on the next board
                self.tasks_to_share = ray.get(asked)

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
            self.line.actor.leave.remote(self.line.key, self.number, self.shared_parts[-1])

    def take_shared_parts(self) -> list[SharedPart]:
        """What was left since the last time: it must be heard before what the call gave after it."""
        self.flush()
        left, self.shared_parts = self.shared_parts, []
        return left


class RayWorker:
    """One worker of a group."""

    def __init__(self, board: tuple[Any, str, int], key: int, *terms: Any) -> None:
        """`board` is the one that there is, the name of those that take its place, and its number."""
        self.line = ControlClient(*board, key)
        self.in_call = self.stopped = self.setup_failed = False
        """Whether it may be interrupted, whether nobody waits for what it does, and whether setting up has failed."""
        self.output_marker, self.surroundings = OutputMarker(), process_state()
        self._watches_for_stop = False
        self._join(key, *terms)

    def _join(self, key: int, payload: bytes, budget: ErrorBudget | None, final: bool, cpus: float) -> None:
        self.key, self.payload, self.budget, self.final, self.cpus = key, payload, budget, final, cpus
        self.took = 0.0
        """Seconds that the last call took."""

    def change(self, needs_node_setup: bool, key: int, *terms: Any) -> tuple[StageError | None, str]:
        """Become a worker of another group, some time after the end. `terms` are those that one is made with."""
        self.line.switch_worker(key)
        self._join(key, *terms)
        return self.begin(needs_node_setup)

    def begin(self, needs_node_setup: bool) -> tuple[StageError | None, str]:
        """Set up. What went wrong, if anything did, and the node that this is."""
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
            self.notes = PositionRecorder(self.line, timed)
            metadata = WorkerMetadata(f"{self.key}", NodeInfo(node), gpus)
            self.worker = Worker(stages, metadata, self.notes, self.final, self.budget, rejecter)
            self.sharing = _WorkSharing(self.line, self.worker.look_at_stats)
            if needs_node_setup:
                self.worker.setup_on_node()
            self.worker.setup()
        except BaseException as error:  # noqa: BLE001
            self.setup_failed = True
            self.end()
            return as_stage_error(error), node
        return None, node

    def end(self) -> StageError | None:
        """Tear down. What went wrong, if anything did."""
        problem: StageError | None = None
        try:
            if hasattr(self, "worker"):
                self.worker.teardown()
        except StageError as error:
            problem = error
        self.line.report_output_marks(self.output_marker)
        return problem

    def rest(self, most_bytes: int) -> bool:
        """Forget all of the group, after the end. Whether this can become another worker, as good as a new one."""
        for name in ("worker", "notes", "sharing", "payload"):
            self.__dict__.pop(name, None)
        return not self.stopped and not self.setup_failed and is_reusable(self.surroundings, most_bytes)

    def _watch_for_stop(self) -> None:
        """When the run is stopped, what a stage does is interrupted, so that it can be torn down."""
        if threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which Ray blocks
        if not self._watches_for_stop:
            self._watches_for_stop = True
            threading.Thread(target=self._watch, args=(threading.get_ident(),), daemon=True).start()

    def _watch(self, main: int) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self.line.ask("until_stopped")
            self.stopped = True
            signal.pthread_kill(main, signal.SIGINT)

    def _interrupt(self, *_: object) -> None:
        if self.in_call:
            raise KeyboardInterrupt

    def once(self, order: CallRequest) -> tuple[WorkerMessage, list[Task[Any]]]:
        """A call of several items, which count as a whole or not at all, or of one that is expected to give little."""
        parts = list(self.stream(order, flushes=False))
        if self.stopped and len(parts) < 2:
            return WorkerMessage("returned"), []
        assert len(parts) == 2
        return parts[0], parts[1]

    def stream(self, order: CallRequest, flushes: bool = True) -> Iterator[Any]:
        """A call whose outputs leave as they come: messages, each followed by the large tasks that belong to it."""
        if self.stopped or not self._is_still_wanted(order):
            yield WorkerMessage("returned")
            yield []
            return
        began = time.monotonic()
        parts = self._stream(order, flushes)
        while (part := self._next(parts)) is not None:
            if isinstance(part, WorkerMessage):
                part.shared_parts = self.sharing.take_shared_parts()
            yield part
        self.took = time.monotonic() - began

    def _next(self, parts: Generator[Any, None, None]) -> Any:
        """What comes next of a call. Only here may it be interrupted: elsewhere, Ray would take it for its own."""
        try:
            self.in_call = True
            return parts.throw(KeyboardInterrupt) if self.stopped else next(parts, None)
        except (KeyboardInterrupt, StopIteration):
            return None
        finally:
            self.in_call = False

    def _is_still_wanted(self, order: CallRequest) -> bool:
        """Whether nobody has taken an order back. That is only done when the call before it takes long."""
        if not order.waits or self.took < RECALL_SECONDS / 2:
            return True
        return self.line.begin_call(order.number)

    def _stream(self, order: CallRequest, flushes: bool) -> Generator[Any, None, None]:
        outbox = _Outbox(order.has_small_output)
        if self.worker.side_output_recorder:
            self.worker.side_output_recorder.send = lambda fragment: outbox.add(fragment, REJECTED_POSITION)
        if self.worker.isolator:
            self.worker.isolator.begin(order.history, order.budget)
        self.sharing.begin(order.number)
        self.notes.acknowledged = order.history.attempts > 0
        last = len(self.worker.stages)
        try:
            for task in self._outputs(order, outbox):
                outbox.add(task, last)
                if flushes and outbox.full:
                    yield from outbox.flush("out", self.worker.look_at_stats(), [])
        except BaseException as error:  # noqa: BLE001  whatever a stage raises is the stage's failure, not the worker's
            self.worker.take_stats()
            aside = self.worker.take_quarantined()
            if isinstance(error, _OutputTooLarge):
                yield WorkerMessage("again")
            elif isinstance(error, LostTaskError):
                yield WorkerMessage("missing", missing=_missing_inputs(order))
            else:
                failure = as_stage_error(error, self.worker, order)
                yield WorkerMessage("failed", error=failure, aside=aside)
            yield []
            return
        yield from outbox.flush("done", self.worker.take_stats(), self.worker.take_quarantined())

    def _outputs(self, order: CallRequest, outbox: _Outbox) -> Iterator[Task[Any]]:
        """What leaves the last stage, without what has left in an earlier attempt, or only what is wanted."""
        if order.wanted is None:
            repeat = RetryCheck(order.sent, self.worker.stages, order.items[0][0])
            # what has left early may have an ancestor that would leave whole this time, with it
            shares = order.streams and not order.has_small_output and not order.sent_early
            share = (lambda: not repeat.lags and self.sharing.share()) if shares else never_share
            yield from repeat.rest(
                self.worker.stream(_load_tasks(order), order.start, self.sharing.leave, share, order.sent_early)
            )
            self.sharing.flush()
            return
        wishes, last = WantedOutputs(order.wanted), len(self.worker.stages)

        def early(task: Task[Any], position: int) -> None:
            if wishes.take(task.id, position):
                outbox.add(task, position)

        if self.worker.side_output_recorder:
            self.worker.side_output_recorder.send = lambda fragment: None
        for task in self.worker.stream(_load_tasks(order), order.start, early, wishes.is_wanted_here, wishes):
            if wishes.take(task.id, last):
                yield task
            if not wishes.pending:
                return


class _OutputTooLarge(Exception):
    """A call gives more than should be held back until it is done."""


class _Outbox:
    """Outputs that wait to be sent."""

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
        parcel = pack_task(task, None) if task.nbytes <= INLINE_BYTES else None  # a task may not know how large it is
        size = parcel.nbytes if parcel else task.nbytes
        self.nbytes += size
        if parcel and size <= 2 * INLINE_BYTES:
            self.outputs.append((task.lineage, parcel, size, position))
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


def _missing_inputs(order: CallRequest) -> list[tuple[int, int]]:
    """What of an order cannot be loaded."""
    missing = []
    for number, (_, refs) in enumerate(order.items):
        for part, ref in enumerate(refs):
            try:
                ref.load()
            except LostTaskError:
                missing.append((number, part))
    return missing


def _load_tasks(order: CallRequest) -> Iterator[Task[Any]]:
    for lineage, refs in order.items:
        tasks = [ref.load() for ref in refs]
        yield (GatherTask(tasks) if order.gather else tasks[0]).named(lineage)
