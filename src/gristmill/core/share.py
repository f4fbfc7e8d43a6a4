"""Sharing: of the many children of one task, some leave their worker when others are idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.core.task import Task


def kept(
    children: Iterator[tuple[Task[Any], bool]],
    share: Callable[[], bool],
    shed: Set[str],
    leave: Callable[[Task[Any]], None],
) -> Iterator[Task[Any]]:
    """The children that go on here. Each comes with whether it is the only one. Those of `shed` have left before.

    One that may leave does so when there is another one: the last would only change hands, which costs more than it
    brings, and loses what is known of it here.
    """
    leaving: Task[Any] | None = None
    for child, alone in children:
        if leaving is not None:
            leave(leaving)
            leaving = None
        if not alone and child.id in shed:
            continue
        if not alone and share():
            leaving = child
        else:
            yield child
    if leaving is not None:
        yield leaving
