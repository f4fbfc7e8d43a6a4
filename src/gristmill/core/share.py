"""Sharing: of the many children of one task, some leave their worker when others are idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.core.task import Task


def kept(
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
