"""Running a plan in the calling process: for debuggers, tests and tiny jobs. No processes, no time limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gristmill.core.errors import StageError
from gristmill.core.executor import Here, Job, Ref
from gristmill.core.flow import Flow, Item, Output
from gristmill.core.task import GatherTask, Lineage, Task
from gristmill.core.worker import Worker, own_copies


def run_inline(job: Job) -> Iterator[tuple[Lineage, Ref | None]]:
    """Run everything here, one task at a time, downstream first."""
    sources = ([Item(task.lineage, [Here(task)], task.nbytes) for task in tasks] for tasks in job.sources)
    flow = Flow(job.plan, iter(sources))
    crew = _Crew(job, flow)
    job.observer.started(job.plan)
    try:
        while not flow.over:
            flow.feed(job.plan.groups[0].batch_size)
            crew.drain(0)
            job.observer.progressed(flow.progress())
            while flow.results:
                yield flow.results.popleft()
    except _FailedBelowError as below:
        crew.dismiss(quietly=True)
        raise below.error from None
    except BaseException:
        crew.dismiss(quietly=True)
        raise
    else:
        crew.dismiss()
    finally:
        job.observer.finished(flow.progress())


class _FailedBelowError(Exception):
    """A stage further down has failed for good."""

    def __init__(self, error: StageError) -> None:
        self.error = error


class _Crew:
    """One worker per group, set up when its first task arrives."""

    def __init__(self, job: Job, flow: Flow) -> None:
        self.flow = flow
        self.groups = job.plan.groups
        self.workers: dict[int, Worker] = {}

    def drain(self, first: int, full: bool = False) -> None:
        """Work until nothing waits (or no full batch does) at or after group `first`, what is furthest along first."""
        while True:
            waiting = [
                index
                for index in range(first, len(self.groups))
                if len(self.flow.pools[index].queue) >= (self.groups[index].batch_size if full else 1)
            ]
            if not waiting:
                return
            self.call(waiting[-1])

    def call(self, index: int) -> None:
        group = self.groups[index]
        worker = self._worker(index)
        call = self.flow.take(index, group.batch_size)
        item = call.items[0]
        skip = item.sent if call.streams else 0

        def emit(task: Task[Any], position: int) -> None:
            nonlocal skip
            if skip:
                skip -= 1
                return
            self.flow.output(call, Output(task.lineage, Here(task), task.nbytes, position))
            if call.streams:
                self._drain_below(index)  # so that what a generator yields never piles up

        try:
            worker.run([_load(group.gather, item) for item in call.items], emit, call.start)
        except StageError as error:
            worker.take_stats()
            self.flow.fail(call, error)
        else:
            self.flow.finish(call, worker.take_stats())

    def _drain_below(self, index: int) -> None:
        try:
            self.drain(index + 1, full=True)
        except StageError as error:  # not a failure of the stage whose output is taken here
            raise _FailedBelowError(error) from error

    def _worker(self, index: int) -> Worker:
        if index not in self.workers:
            worker = self.workers[index] = Worker(
                own_copies(self.groups[index].stages), final=index + 1 == len(self.groups)
            )
            worker.setup_on_node()
            worker.setup()
        return self.workers[index]

    def dismiss(self, quietly: bool = False) -> None:
        for worker in self.workers.values():
            try:
                worker.teardown()
            except StageError:
                if not quietly:
                    raise


def _load(gather: bool, item: Item) -> Task[Any]:
    if gather:
        return GatherTask([ref.load() for ref in item.refs]).named(item.lineage)
    task: Task[Any] = item.refs[0].load().named(item.lineage)
    return task
