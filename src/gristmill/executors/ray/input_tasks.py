"""Puts the tasks that enter a run on a Ray cluster where workers can load them.

A small task travels in the message of its call. A large one is in the object store until it was processed. If its
outputs are lost with a node, it is needed again. Tasks that the user passed (`initial_tasks`) stay in the driver's
memory for the whole run, so they can be put into the store again.

What is given up: repeating large tasks of a source stage, which the driver does not keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gristmill.core.run.task_flow import WorkItem
from gristmill.core.task import Task
from gristmill.executors.local.task_transport import INLINE_BYTES, pack_task
from gristmill.executors.ray.worker_actor import StoredTask


@dataclass(slots=True)
class InitialTaskRef(StoredTask):
    """A large task that the user passed. Workers receive it as a StoredTask."""

    task: Task[Any] = field(kw_only=True)

    def __copy__(self) -> InitialTaskRef:
        """A copy stays usable when the original is discarded."""
        return replace(self)

    def put(self) -> None:
        """Put the task into the store, right before it is sent. Earlier, all lost tasks would be in the store at once;
        later, while the message is pickled, Ray does not allow it."""
        self.refs = self.refs or _put_in_object_store(self.task)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredTask, (self.refs, self.index, self.nbytes, self.node)


def store_input_tasks(sources: Iterator[Sequence[Task[Any]]], is_initial: bool) -> Iterator[list[WorkItem]]:
    """The items that enter a plan. `is_initial`: the user passed the tasks."""
    for tasks in sources:
        refs = [_reference_to(task, is_initial) for task in tasks]
        yield [WorkItem(task.lineage, [ref], ref.nbytes) for task, ref in zip(tasks, refs, strict=True)]


def _reference_to(task: Task[Any], is_initial: bool) -> Any:
    if task.nbytes <= INLINE_BYTES:
        return pack_task(task, None)
    refs = _put_in_object_store(task)
    return InitialTaskRef(refs, 0, task.nbytes, task=task) if is_initial else StoredTask(refs, 0, task.nbytes)


def _put_in_object_store(task: Task[Any]) -> list[Any]:
    import ray

    return [ray.put([task])]
