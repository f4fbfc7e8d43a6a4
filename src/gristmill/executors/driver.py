"""The driver of a run: the scheduling loop that all executors with their own workers share.

It lists sources, sends calls to idle workers, handles their messages, replaces workers that die, divides GPUs, and
stops everything at the end. `core/run/schedule.py` and `core/run/task_flow.py` decide what runs next. How to start,
call and hear from a worker is up to the subclass: processes of this machine (`local_executor.py`) or Ray actors
(`actor_pool_executor.py`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, cast

from gristmill.core.errors import StageError, TaskTimeoutError, WorkerLostError
from gristmill.core.executor import Job, Machine, TaskRef
from gristmill.core.records.quarantine import QuarantinedRecord
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run.isolation import RowLocation
from gristmill.core.run.schedule import (
    EDGE_BYTES,
    RECALL_SECONDS,
    UNBOUNDED,
    PoolState,
    choose_pool,
    choose_prefetch_pool,
    has_output_room,
    is_backlogged,
    tasks_per_call,
)
from gristmill.core.run.task_flow import CallOutput, Flow, WorkerCall, WorkItem
from gristmill.core.run.time_limits import SETUP_SECONDS, time_limit
from gristmill.core.task import Lineage
from gristmill.executors.gpu_division import GpuDivision
from gristmill.executors.machine_resources import GpuSlots
from gristmill.executors.worker_pool import WorkerHandle, WorkerPool

WORKER_LOST = "lost"

_LISTEN_SECONDS = 0.1
_TEARDOWN_SECONDS = 60.0
"""How long workers may take to tear down after a successful run."""


class Driver(ABC):
    """The loop: list sources, dispatch calls, listen, yield results."""

    pools: Sequence[WorkerPool]
    grace = 3.0
    """How long workers may take to tear down after a failure or Ctrl-C, in seconds."""

    def __init__(self, job: Job, machine: Machine) -> None:
        self.job, self.machine = job, machine
        self.slots = GpuSlots(machine.gpus)
        self.flow = Flow(job.plan, self.input_items(job.sources), job.quarantine)
        self.progress_reported_at = 0.0
        self.division = GpuDivision(self)

    @abstractmethod
    def input_items(self, sources: Iterator[Sequence[Any]]) -> Iterator[list[WorkItem]]:
        """Put the tasks that enter the plan where workers can load them."""

    @abstractmethod
    def as_result(self, ref: Any) -> TaskRef:
        """The reference to a result that the user gets."""

    @abstractmethod
    def listen(self, seconds: float) -> Iterator[tuple[WorkerHandle, tuple[Any, ...]]]:
        """Messages of workers within some time, and `(WORKER_LOST,)` for workers that have died."""

    @abstractmethod
    def remove_worker(self, worker: WorkerHandle) -> str:
        """Forget a worker that has ended, or is about to. Returns how it ended, for messages."""

    @abstractmethod
    def close(self, discard_results: bool) -> None:
        """Free what the run used, after all workers have ended; also its results if the run failed."""

    def run(self) -> Iterator[tuple[Lineage, TaskRef | None]]:
        self.job.observer.started(self.job.plan)
        discard_results = True
        try:
            for _ in self.loop_turns():
                while self.flow.results:
                    lineage, ref = self.flow.results.popleft()
                    yield lineage, None if ref is None else self.as_result(ref)
            self._stop(raises=True)
            discard_results = False
        except GeneratorExit:  # a user who stops early may still read the results so far
            discard_results = False
            raise
        finally:
            try:
                self._stop(raises=False)
            finally:  # also after a second Ctrl-C
                self.close(discard_results)
                self.job.observer.finished(self._progress())

    def loop_turns(self) -> Iterator[None]:
        """Run the loop until nothing is left to do, yielding after each turn."""
        while not self.flow.over:
            self.flow.list_sources(self._wanted_queue_length())
            self._dispatch()
            self._listen()
            self._watch()
            yield

    def _wanted_queue_length(self) -> int:
        """How many items should wait before the first group: enough for the next calls of current and new workers."""
        pace = self.flow.pools[0].pace.seconds
        each = tasks_per_call(10**9, 1, pace, self.pools[0].group.batch_size)
        return 2 * each * min(self.pools[0].limit, 2 * len(self.pools[0].workers) + 8)

    # -- giving out work -------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        self._recall()
        free = self.division.rebalance(self._free_cpus())
        states = [self._state(pool) for pool in self.pools]
        while (
            index := choose_pool(
                states, free, self.machine.cpus, self.queue_bytes_limit, self._cpus_held_for_gpus(free)
            )
        ) is not None:
            pool = self.pools[index]
            if states[index].idle:
                self._send(pool, pool.candidates("idle"))
            else:
                pool.start()
            free -= min(pool.cpus, self.machine.cpus)
            self._refresh_states(states, index)
        while (index := choose_prefetch_pool(states, self.queue_bytes_limit)) is not None:
            self._send(self.pools[index], self.pools[index].candidates("busy"), ahead=True)
            self._refresh_states(states, index)
        self.division.release_idle_gpu()
        self._request_sharing(free)

    def _state(self, pool: WorkerPool) -> PoolState:
        queued = self.flow.ready(pool.index) if self.may_begin(pool) else 0
        behind = self.pools[pool.index + 1 : self.flow.group_count]
        return PoolState(
            queued=queued if pool.count("idle") else queued - pool.count("starting"),  # starting workers will take some
            downstream_bytes=self.flow.downstream_bytes(pool.index) + pool.coming_bytes(self.flow, behind),
            downstream_tasks=len(self.flow.pools[pool.index + 1].queue) if behind else 0,
            idle=pool.count("idle"),
            can_grow=queued > 0
            and pool.can_grow()
            and not (pool.keeps_up(self.flow) or self._is_downstream_full(pool)),
            cpus=pool.cpus,
            gpu=pool.gpu,
            takers=pool.count("busy"),
        )

    @property
    def queue_bytes_limit(self) -> float:
        """How many bytes may wait between two pools: a fixed amount per node."""
        return UNBOUNDED if self.job.batch else EDGE_BYTES * max(self.machine.nodes, 1)

    def may_begin(self, pool: WorkerPool) -> bool:
        """Whether a pool may start. In batch mode it waits until all pools before it have finished."""
        return not self.job.batch or pool.index == 0 or self.flow.is_over(pool.index - 1)

    def _refresh_states(self, states: list[PoolState], index: int) -> None:
        """Update what has changed by a dispatch: the pool itself, and the one before it, whose queue behind is
        shorter."""
        for one in range(max(0, index - 1), index + 1):
            states[one] = self._state(self.pools[one])

    def _is_downstream_full(self, pool: WorkerPool) -> bool:
        """Whether so much work waits behind a pool that more workers would not help."""
        if self.job.batch or not pool.workers or pool.index + 1 >= self.flow.group_count:
            return False
        after = self.flow.pools[pool.index + 1]
        return is_backlogged(len(after.queue), after.pace.seconds, len(self.pools[pool.index + 1].workers))

    def _free_cpus(self) -> float:
        return self.machine.cpus - sum(pool.cpus_in_use(self.machine.cpus) for pool in self.pools)

    def _cpus_held_for_gpus(self, free: float) -> float:
        """Cores to keep free for idle workers with a GPU, as far as every other pool can still run."""
        idle = sum(pool.count("idle") * pool.cpus for pool in self.pools if pool.gpu)
        need = max((min(pool.cpus, self.machine.cpus) for pool in self.pools if not pool.gpu), default=0.0)
        return min(idle, max(0.0, free - max(need, 1.0)))

    def _send(self, pool: WorkerPool, workers: Sequence[WorkerHandle], ahead: bool = False) -> None:
        state, after = self.flow.pools[pool.index], self.flow.pools[pool.index + 1 : self.flow.group_count]
        gives = after[0].arrived_bytes / max(state.tasks_done, 1) if after else 0.0
        count = tasks_per_call(len(state.queue), pool.limit, state.pace.seconds, pool.group.batch_size, pool.gpu, gives)
        if (left := workers[0].tasks_left) is not None:
            workers, count = workers[:1], min(count, left)
        worker, call = self.assign(pool.index, workers, count, ahead)
        worker.call(call, pool.has_small_output)

    def assign(
        self, group: int, workers: Sequence[WorkerHandle], most: int, ahead: bool
    ) -> tuple[WorkerHandle, WorkerCall]:
        """Take the next call of a group, and choose the worker that is closest to its data."""
        return workers[0], self.flow.next_call(group, most, waits=ahead)

    def _recall(self) -> None:
        """Withdraw queued calls from workers that are busy with a slow one, while others are idle."""
        long_ago = time.perf_counter() - RECALL_SECONDS
        for pool in self.pools:
            spare = 0 if self.flow.pools[pool.index].queue else pool.count("idle")
            for worker in pool.in_states("full") if spare else ():
                if spare and len(worker.calls) > 1 and worker.calls[0].began < long_ago and worker.recall():
                    self.flow.put_back(worker.calls.pop())
                    worker.update_state()
                    spare -= 1

    def _request_sharing(self, free: float) -> None:
        """Ask workers that turn one task into many to share some of them, while cores are idle."""
        for pool, state in zip(self.pools, self.flow.pools, strict=True):
            if state.queue or len(pool.group.stages) < 2 or free < min(pool.cpus, self.machine.cpus):
                continue
            spare = min(int(free // max(pool.cpus, 0.01)), pool.limit - pool.count("busy", "full"))
            for worker in pool.busy if spare > 0 else ():
                if worker.calls[0].streams and not worker.share_asked:
                    worker.ask_to_share(2 * spare)

    # -- listening -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self.flow.over:
            return
        for worker, message in self.listen(_LISTEN_SECONDS):
            if worker.state == "gone":
                continue
            if message[0] == WORKER_LOST:
                self._handle_lost_worker(worker)
            elif not worker.timed_out:  # messages of a worker that is being killed are ignored
                self._handle_message(worker, *message)
        self._acknowledge()

    def _handle_message(self, worker: WorkerHandle, kind: str, *rest: Any) -> None:
        pool = self.pools[worker.group]
        if kind == "ready":
            self._handle_ready(worker, pool, *rest)
        elif kind == "out":
            self._take_outputs(worker, rest[0], unacknowledged=True)
            worker.calls[0].partial_stats = rest[1]
        elif kind == "done":
            self._handle_done(worker, pool, *rest)
        elif kind == "failed":
            self._handle_failure(self._next(worker), rest[0], aside=rest[1])
        elif kind == "missing":
            self.flow.recover(self._next(worker), rest[0])
        elif kind == "again":  # too much output to hold: run it again with outputs sent as they come
            pool.has_small_output = pool.may_have_small_output = False
            self.flow.put_back(self._next(worker))
        elif kind == "stopped":
            self.remove_worker(worker)
            if rest[0] is not None:
                raise rest[0]

    def _handle_ready(self, worker: WorkerHandle, pool: WorkerPool, error: StageError | None) -> None:
        if error is not None:
            raise error
        worker.is_set_up = True
        pool.node_is_set_up(worker.node)
        pool.setup_seconds = time.monotonic() - worker.began
        if worker.state == "starting":
            worker.update_state()
            self._stop_if_retiring(worker)

    def _handle_done(
        self,
        worker: WorkerHandle,
        pool: WorkerPool,
        outputs: list[tuple[Any, ...]],
        stats: Sequence[StageStats],
        aside: Sequence[QuarantinedRecord],
        memory: int = 0,
    ) -> None:
        self._take_outputs(worker, outputs, unacknowledged=False)
        pool.setup_failures = 0
        worker.retiring = worker.retiring or worker.leaks(memory, pool.memory)
        call = self._next(worker)
        pool.has_small_output = pool.has_small_output or (
            pool.may_have_small_output and call.streams and not call.partial_stats
        )
        self.flow.finish_call(call, stats, aside)
        call.discard()

    def _next(self, worker: WorkerHandle) -> WorkerCall:
        """Take the finished call off a worker, and begin the one queued behind it, if any."""
        call = worker.finish()
        if worker.calls:
            self.flow.begin(worker.calls[0])
        self._stop_if_retiring(worker)
        return call

    def _stop_if_retiring(self, worker: WorkerHandle) -> None:
        if worker.retiring and worker.state == "idle":
            worker.stop()

    def _take_outputs(self, worker: WorkerHandle, outputs: list[tuple[Any, ...]], unacknowledged: bool) -> None:
        call = worker.calls[0]
        for lineage, ref, nbytes, position in outputs:
            self.flow.add_output(call, CallOutput(lineage, ref, nbytes, position))
            if position < len(self.pools[worker.group].group.stages) and position != worker.gather_position:
                worker.share_asked = False
            if unacknowledged:
                worker.unacknowledged_bytes += nbytes

    def _acknowledge(self) -> None:
        """Let workers continue that wait until the next group has room for their outputs."""
        for pool in self.pools:
            if pool.workers_to_acknowledge and has_output_room(
                self.flow.downstream_bytes(pool.index), self.queue_bytes_limit
            ):
                for worker in list(pool.workers_to_acknowledge.values()):
                    worker.acknowledge()

    def _handle_failure(
        self,
        call: WorkerCall,
        error: StageError,
        location: RowLocation | None = None,
        aside: Sequence[QuarantinedRecord] = (),
    ) -> None:
        for output in call.outputs:
            output.ref.discard()
        self.flow.retry_call(call, error, location, aside)

    # -- workers that fail -------------------------------------------------------------------------------

    def _handle_lost_worker(self, worker: WorkerHandle) -> None:
        """A worker has died."""
        leaving = worker.state == "leaving"
        worker.kill()  # it may have closed its channel and still be running
        how = self.remove_worker(worker)
        location = worker.last_position()
        position = location.position if location else 0
        if leaving:
            return
        pool = self.pools[worker.group]
        stage = pool.group.stages[position].name
        while len(worker.calls) > 1:  # calls that it had not begun are not at fault
            self.flow.put_back(worker.calls.pop())
        if worker.node_gone:
            if worker.calls:
                self.flow.requeue_moved(worker.calls.popleft())
            return
        if not worker.calls:
            pool.setup_failures += 1
            if pool.setup_failures > pool.group.stages[position].max_retries:
                reason = worker.timed_out or f"its worker {how} during setup, or while idle"
                raise WorkerLostError(stage, "(none yet)", (), reason)
            return
        call = worker.calls.popleft()
        lineage = call.items[0].lineage
        kind = TaskTimeoutError if worker.timed_out else WorkerLostError
        reason = worker.timed_out or f"its worker {how}"
        self._handle_failure(call, kind(stage, lineage.id, lineage.files, reason, position=position), location)

    def _watch(self) -> None:
        """Kill workers that exceed a time limit, stop pools that are finished, report progress."""
        for pool in self.pools:
            for worker in pool.busy if pool.timed else ():
                self._stop_if_late(pool, worker)
            for worker in pool.in_states("starting"):
                if not worker.timed_out and worker.current_stage()[1] > SETUP_SECONDS:
                    worker.timed_out = f"its setup took more than {SETUP_SECONDS:g} s and was stopped"
                    worker.kill()
            if pool.count("idle") and self.flow.is_over(pool.index) and self.flow.pools[pool.index].running == 0:
                self.stop_idle_workers(pool)
        if time.monotonic() - self.progress_reported_at > 0.2:
            self.progress_reported_at = time.monotonic()
            self.job.observer.progressed(self._progress())

    def _stop_if_late(self, pool: WorkerPool, worker: WorkerHandle) -> None:
        position, seconds = worker.current_stage()
        if position < 0 or seconds <= pool.shortest_limit or worker.timed_out:
            return
        stage, location = pool.group.stages[position], worker.last_position()
        rows = location.stop - location.start if location else 1
        if stage.timeout_s is None and (noted := worker.rows_noted()):
            rows, seconds = noted
        limit = time_limit(stage, rows) if pool.has_default_limits else stage.timeout_s
        if limit is not None and seconds > limit:
            which = "timeout_s" if stage.timeout_s else f"the limit for rows: {rows:,}; timeout_s sets another"
            worker.timed_out = f"it ran for more than {limit:g} s ({which}) and was stopped"
            worker.kill()

    def stop_idle_workers(self, pool: WorkerPool) -> None:
        """Stop the workers of a pool that has nothing left to do."""
        for worker in pool.idle:
            worker.stop()

    def _progress(self) -> Any:
        pools = [(len(pool.workers), pool.count("busy", "full")) for pool in self.pools]
        running = [call for pool in self.pools for worker in pool.busy if (call := worker.calls[0]).partial_stats]
        return self.flow.progress(pools, running)

    def _stop(self, raises: bool) -> None:
        """Ask all workers to tear down and end; kill those that take too long."""
        for worker in self._all_workers():
            worker.stop()
        now, grace, problem = (
            time.monotonic(),
            _TEARDOWN_SECONDS if raises else self.grace,
            cast("StageError | None", None),
        )
        deadline, soon = now + grace, now + self.grace
        while (left := self._all_workers()) and (now := time.monotonic()) < deadline:
            soon = now + self.grace if any(worker.is_set_up for worker in left) else soon
            if now > soon:  # the rest are still in setup, which is no longer needed
                break
            for worker, message in self.listen(_LISTEN_SECONDS):
                if worker.state != "gone":
                    problem = self._handle_final_message(worker, *message) or problem
        for worker in self._all_workers():
            if worker.is_set_up:
                problem = problem or self._teardown_failure(worker, f"it took more than {grace:g} s and was stopped")
            worker.kill()
            self.remove_worker(worker)
        if raises and problem is not None:
            raise problem

    def _all_workers(self) -> list[WorkerHandle]:
        return [worker for pool in self.pools for worker in pool.workers]

    def _handle_final_message(self, worker: WorkerHandle, kind: str, *rest: Any) -> StageError | None:
        """Handle messages until a worker has stopped. Outputs are ignored. Returns an error of its teardown."""
        if kind == WORKER_LOST:
            worker.kill()
            how = self.remove_worker(worker)
            lost = worker.is_set_up and self._has_own_teardown(worker)
            return self._teardown_failure(worker, f"its worker {how}") if lost else None
        worker.is_set_up = worker.is_set_up or kind == "ready"
        if kind != "stopped":
            return None
        self.remove_worker(worker)
        return cast("StageError | None", rest[0])

    def _has_own_teardown(self, worker: WorkerHandle) -> bool:
        """Whether a stage of the user has something to do at the end. Those of Gristmill only free what ends with the
        worker: its work is done, so that nothing is lost with it."""
        stages = self.pools[worker.group].group.stages
        return any(not getattr(stage.teardown, "__module__", "").startswith("gristmill.") for stage in stages)

    def _teardown_failure(self, worker: WorkerHandle, why: str) -> StageError:
        return WorkerLostError(self.pools[worker.group].group.name, "(none left)", (), f"in teardown, {why}")
