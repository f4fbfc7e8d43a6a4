"""Near: what lies on the node of a worker that has nothing to do is its work.

When all workers of a pool are busy, one of them is through first, and what waits first lies on its node only by chance.
So of what waits near the front, that which lies there goes first, and fewer blocks cross the network. What is passed
over goes after some turns, wherever it lies. A call holds what lies together, unless a batch needs more.

What is given up: the order of what waits, which no result depends on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from itertools import islice, takewhile

from gristmill.core.run.flow import WorkerCall, WorkItem
from gristmill.executors.worker_pool import WorkerHandle

_WINDOW = 32
"""How many of those that wait are looked at."""

_MAX_PASSED_OVER = 16
"""When so many calls have gone before the one that waits first, no more do."""


def node_of(item: WorkItem) -> str:
    """The node that holds what an item needs; empty if it is small, and goes with the call."""
    node: str = item.refs[0].node
    return node


def nearest_worker(workers: Sequence[WorkerHandle], call: WorkerCall, free: Mapping[str, float]) -> WorkerHandle:
    """A worker on the node that holds what the call needs, if a core is free there; else where most are free."""
    wanted = node_of(call.items[0])

    def order(worker: WorkerHandle) -> tuple[bool, bool, float]:
        left = 1.0 if call.waits else free.get(worker.node, 0.0)  # who is busy has a core
        return left <= 0, worker.node != wanted, -left

    return min(workers, key=order)


def move_local_items_first(queue: deque[WorkItem], nodes: Set[str], most: int) -> int:
    """Let those go first that lie together on one of the nodes. How many of them, up to `most`, make one call."""
    first = queue[0]
    if first.runs_alone:
        return 1
    if not node_of(first):
        return sum(1 for _ in takewhile(lambda item: not node_of(item), islice(queue, most)))
    window = islice(queue, max(_WINDOW, most))
    alike = list(takewhile(lambda item: item.start == first.start and not item.runs_alone, window))
    wanted = node_of(first)
    if first.passed < _MAX_PASSED_OVER:
        wanted = next((node_of(item) for item in alike if node_of(item) in nodes), wanted)
    near = [place for place, item in enumerate(alike) if node_of(item) == wanted][:most]
    for place in reversed(near):
        del queue[place]
    queue.extendleft(alike[place] for place in reversed(near))
    for place in set(range(near[-1])).difference(near):
        alike[place].passed += 1
    return len(near)
