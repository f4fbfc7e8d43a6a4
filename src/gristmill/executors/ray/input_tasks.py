"""What enters a run on a Ray cluster, where workers can load it from.

A small task rides in the message of its call. A large one lies in the object store, until it was worked on. When what
came of it is lost with a node, it is needed once more. What the user gave (`initial_tasks`) is in the driver's memory
as long as the run lasts, so that it can be put into the store again.

What is given up: making again what came of a large task of a source stage, which the driver does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gristmill.core.run.flow import WorkItem
from gristmill.core.task import Task
from gristmill.executors.local.task_transport import INLINE_BYTES, pack_task
from gristmill.executors.ray.worker_actor import StoredTask


@dataclass(slots=True)
class InitialTaskRef(StoredTask):
    """A large task that the user gave. Workers get it as one that lies in the store."""

    task: Task[Any] = field(kw_only=True)

    def __copy__(self) -> InitialTaskRef:
        """One that can be worked on, also when this one has been and was discarded."""
        return replace(self)

    def put(self) -> None:
        """It is about to be sent. Not before, or all that was lost with a node would lie in the store at once; nor
        while the message is pickled, which Ray does not expect."""
        self.refs = self.refs or _put_in_object_store(self.task)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredTask, (self.refs, self.index, self.nbytes, self.node)


def store_input_tasks(sources: Iterator[Sequence[Task[Any]]], given: bool) -> Iterator[list[WorkItem]]:
    """The tasks that enter a plan; whether the user gave them."""
    for tasks in sources:
        refs = [_reference_to(task, given) for task in tasks]
        yield [WorkItem(task.lineage, [ref], ref.nbytes) for task, ref in zip(tasks, refs, strict=True)]


def _reference_to(task: Task[Any], given: bool) -> Any:
    if task.nbytes <= INLINE_BYTES:
        return pack_task(task, None)
    refs = _put_in_object_store(task)
    return InitialTaskRef(refs, 0, task.nbytes, task=task) if given else StoredTask(refs, 0, task.nbytes)


def _put_in_object_store(task: Task[Any]) -> list[Any]:
    import ray

    return [ray.put([task])]
