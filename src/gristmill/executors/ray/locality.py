"""Prefer queued tasks whose data is already on the idle worker's node.

When all workers are busy, the first to become idle is on the node of the first queued task only by chance. So among the
first tasks of the queue, those on its node go first, and fewer blocks cross the network. A task that was passed over a
few times goes next, wherever its data is. A call holds tasks of one node, unless a batch needs more.

What is given up: the order of the queue, which no result depends on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from itertools import islice, takewhile

from gristmill.core.run.task_flow import WorkerCall, WorkItem
from gristmill.executors.worker_pool import WorkerHandle

_WINDOW = 32
"""How many tasks at the front of the queue are considered."""

_MAX_PASSED_OVER = 16
"""How often the first task may be passed over."""


def node_of(item: WorkItem) -> str:
    """The node that stores an item; empty if it is small and travels with the call."""
    node: str = item.refs[0].node
    return node


def nearest_worker(workers: Sequence[WorkerHandle], call: WorkerCall, free: Mapping[str, float]) -> WorkerHandle:
    """A worker on the node of the call's data if a core is free there, else on the node with the most free cores."""
    wanted = node_of(call.items[0])

    def order(worker: WorkerHandle) -> tuple[bool, bool, float]:
        left = 1.0 if call.waits else free.get(worker.node, 0.0)  # a busy worker has a core
        return left <= 0, worker.node != wanted, -left

    return min(workers, key=order)


def move_local_items_first(queue: deque[WorkItem], nodes: Set[str], limit: int) -> int:
    """Move items of one of the nodes to the front. Returns how many of them, up to `limit`, make one call."""
    first = queue[0]
    if first.runs_alone:
        return 1
    if not node_of(first):
        return sum(1 for _ in takewhile(lambda item: not node_of(item), islice(queue, limit)))
    window = islice(queue, max(_WINDOW, limit))
    alike = list(takewhile(lambda item: item.start == first.start and not item.runs_alone, window))
    wanted = node_of(first)
    if first.passed < _MAX_PASSED_OVER:
        wanted = next((node_of(item) for item in alike if node_of(item) in nodes), wanted)
    chosen = [index for index, item in enumerate(alike) if node_of(item) == wanted][:limit]
    for index in reversed(chosen):
        del queue[index]
    queue.extendleft(alike[index] for index in reversed(chosen))
    for index in set(range(chosen[-1])).difference(chosen):
        alike[index].passed += 1
    return len(chosen)
