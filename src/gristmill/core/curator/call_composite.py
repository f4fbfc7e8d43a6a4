"""A composite stage called by hand: `JsonlWriter("out").process(batch)` passes the task through its parts.

For notebooks and tests of single stages. Nothing of a run is there: no workers, no ledger, no quarantine. A part that
lists files is skipped, since the task has them. Files that are written are named after the task, or, if no pipeline
named it, after its content: the same batch twice is one file.
"""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gristmill.core.stage import CompositeStage, ProcessingStage, SourceStage
from gristmill.core.stage_roles import GatherRole, RunStateRole
from gristmill.core.task import GatherTask, Lineage, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORIES: WeakKeyDictionary[ProcessingStage[Any, Any], dict[int, dict[str, Any]]] = WeakKeyDictionary()
"""What the parts of a stage have noted at its first call: `mode="overwrite"` deletes once, not with every call."""


def process_directly(composite: CompositeStage[Any, Any], task: Task[Any]) -> Any:
    """One task, several, or None, as `process` of a stage returns them."""
    memories = _MEMORIES.setdefault(composite, {})
    tasks = [_with_lineage(task)]
    for number, stage in enumerate(_leaves(composite)):
        if isinstance(stage, SourceStage) and task.data is not None:
            continue
        if not tasks:
            break
        if number not in memories:
            stage.check()
        tasks = _outputs(stage, tasks, memories.setdefault(number, {}))
    return tasks[0] if len(tasks) == 1 else tasks or None


def _leaves(stage: ProcessingStage[Any, Any]) -> list[ProcessingStage[Any, Any]]:
    if not isinstance(stage, CompositeStage):
        return [stage]
    return [leaf for part in stage.stages() for leaf in _leaves(part)]


def _with_lineage(task: Task[Any]) -> Task[Any]:
    if task.id:
        return task
    name = task.key() or blake2b(pickle.dumps(task.data, protocol=5), digest_size=8).hexdigest()
    return task.named(Lineage(name, name, task.files()))


def _outputs(stage: ProcessingStage[Any, Any], tasks: Sequence[Task[Any]], memory: dict[str, Any]) -> list[Task[Any]]:
    """What a stage makes of tasks, named after the task that each came from."""
    if isinstance(stage, RunStateRole):
        stage.prepare_run(memory)
    stage.setup_on_node()
    stage.setup()
    found: list[Task[Any]] = []
    try:
        gathered = GatherTask(list(tasks)).named(tasks[0].lineage.gathered())
        for one in [gathered] if isinstance(stage, GatherRole) else tasks:
            answer = stage.process(one)
            outputs = [answer] if isinstance(answer, Task) else list(answer or ())
            for index, output in enumerate(outputs):
                found.append(output.named(one.lineage if len(outputs) == 1 else one.lineage.child(index)))
    finally:
        stage.teardown()
    return found
