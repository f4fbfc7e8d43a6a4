"""Sharing: of the many children of one task, some leave their worker when others are idle; and the tasks of a source
that is all at one worker are gathered there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Any

from gristmill.core.task import GatherTask, Task

Emit = Callable[[Task[Any], int], None]
"""Takes a task that is done with some stages, and the position of the stage it goes to next."""


def never_share() -> bool:
    return False


def no_emit(task: Task[Any], position: int) -> None:
    raise AssertionError(f"task {task.id} left early, before stage {position}, and nobody had asked for it")


def share_children(
    children: Iterator[Task[Any]], share: Callable[[], bool], shed: Set[str], leave: Callable[[Task[Any]], None]
) -> Iterator[Task[Any]]:
    """The children that go on here. Those of `shed` have left before.

    The first leaves only when there is another one: an only child would just change hands, which costs more than it
    brings, and loses what is known of it here. The others leave at once, so that none is held while the next is made.
    """
    waiting: list[Task[Any]] = []
    first = True
    for child in children:
        if waiting:
            leave(waiting.pop())
        if child.id not in shed:
            if not share():
                yield child
            elif first:
                waiting.append(child)
            else:
                leave(child)
        first = False
        del child
    while waiting:
        yield waiting.pop()


def gather_local_sources(
    tasks: Iterator[Task[Any]], position: int, emit: Emit, all_of: Set[str], holds: Callable[[], bool]
) -> Iterator[Task[Any]]:
    """Of sources of which all is here, the tasks of each as one. When `holds` says no they leave, as those of other
    sources do, to meet elsewhere: in the order in which they came, as they would have at once."""
    held: dict[str, list[Task[Any]]] = {}
    for task in tasks:
        if task.lineage.source in all_of and holds():
            held.setdefault(task.lineage.source, []).append(task)
            continue
        for before in held.pop(task.lineage.source, ()):
            emit(before, position)
        emit(task, position)
    for parts in held.values():
        if holds():
            parts.sort(key=lambda part: part.lineage.sort_key())
            yield GatherTask(parts).named(parts[0].lineage.gathered())
            continue
        for part in parts:
            emit(part, position)
