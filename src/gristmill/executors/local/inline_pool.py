"""Runs a plan in the calling process, for debuggers, tests and tiny jobs.

What is given up: isolation of crashes, and time limits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from gristmill.core.errors import StageError
from gristmill.core.executor import Job, LocalTaskRef, TaskRef
from gristmill.core.records.rejected_rows import REJECTED_POSITION
from gristmill.core.run.isolation import FailureHistory
from gristmill.core.run.lost_tasks import RetryCheck
from gristmill.core.run.task_flow import CallOutput, Flow, WorkerCall, WorkItem
from gristmill.core.run.user_interrupts import noting_interrupts
from gristmill.core.run.worker import Worker
from gristmill.core.stage import copies_for_this_process
from gristmill.core.task import GatherTask, Lineage, Task


def run_inline(job: Job) -> Iterator[tuple[Lineage, TaskRef | None]]:
    """Run one call at a time, the group nearest to the output first."""
    sources = ([WorkItem(task.lineage, [LocalTaskRef(task)], task.nbytes) for task in tasks] for tasks in job.sources)
    flow = Flow(job.plan, iter(sources), job.quarantine)
    workers = _InlineWorkers(job, flow)
    job.observer.started(job.plan)
    reported_at = 0.0
    try:
        while not flow.over:
            flow.list_sources(job.plan.groups[0].batch_size)
            for _ in workers.drain(0):
                if time.monotonic() - reported_at > 0.2:
                    reported_at = time.monotonic()
                    job.observer.progressed(flow.progress())
                while flow.results:
                    yield flow.results.popleft()
            while flow.results:
                yield flow.results.popleft()
    except BaseException:
        workers.tear_down(quietly=True)
        raise
    else:
        workers.tear_down()
    finally:
        job.observer.finished(flow.progress())


class _InlineWorkers:
    """One worker per group, set up when its first task arrives. Generators yield after each output."""

    def __init__(self, job: Job, flow: Flow) -> None:
        self.flow = flow
        self.plan, self.groups = job.plan, job.plan.groups
        self.budget = job.quarantine.budget if job.quarantine.enabled else None
        self.workers: dict[int, Worker] = {}

    def drain(self, first: int, full: bool = False) -> Iterator[None]:
        """Run calls until no task (or no full batch) waits at or after group `first`, the last group first."""
        while True:
            waiting = [
                index
                for index in range(first, len(self.groups))
                if len(self.flow.pools[index].queue) >= (self.groups[index].batch_size if full else 1)
            ]
            if not waiting:
                return
            yield from self.call(waiting[-1])

    def call(self, index: int) -> Iterator[None]:
        worker = self._worker(index)
        call = self.flow.next_call(index, self.groups[index].batch_size)
        if worker.side_output_recorder:
            worker.side_output_recorder.send = partial(self._reject, call)
        if worker.isolator:
            worker.isolator.begin(call.items[0].history if call.streams else FailureHistory(), call.budget)
        repeat = RetryCheck(call.items[0].sent_outputs, worker.stages, call.items[0].lineage)
        tasks = [_load_task(self.groups[index].gather, item) for item in call.items]
        outputs = repeat.rest(worker.stream(tasks, call.start))
        while True:
            try:
                with noting_interrupts():
                    task = next(outputs, None)
            except StageError as error:
                worker.take_stats()
                self.flow.retry_call(call, error, aside=worker.take_quarantined())
                return
            if task is None:
                break
            call.partial_stats = worker.look_at_stats()
            self.flow.add_output(call, CallOutput(task.lineage, LocalTaskRef(task), task.nbytes, len(worker.stages)))
            yield
            if call.streams:  # otherwise outputs of a generator would pile up
                yield from self.drain(index + 1, full=True)
        self.flow.finish_call(call, worker.take_stats(), worker.take_quarantined())
        yield

    def _reject(self, call: WorkerCall, fragment: Task[Any]) -> None:
        self.flow.add_output(
            call, CallOutput(fragment.lineage, LocalTaskRef(fragment), fragment.nbytes, REJECTED_POSITION)
        )

    def _worker(self, index: int) -> Worker:
        if index not in self.workers:
            worker = self.workers[index] = Worker(
                copies_for_this_process(self.groups[index].stages),
                final=index + 1 == len(self.plan.main_groups),
                budget=self.budget,
                side_output_recorder=self.plan.side_output_recorder(self.groups[index]),
            )
            worker.setup_on_node()
            worker.setup()
        return self.workers[index]

    def tear_down(self, quietly: bool = False) -> None:
        for worker in self.workers.values():
            try:
                worker.teardown()
            except StageError:
                if not quietly:
                    raise


def _load_task(gather: bool, item: WorkItem) -> Task[Any]:
    if gather:
        return GatherTask([ref.load() for ref in item.refs]).named(item.lineage)
    task: Task[Any] = item.refs[0].load().named(item.lineage)
    return task
