"""Where a stage is set up: the machine, and the worker on it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The machine that `setup_on_node` runs on."""

    node_id: str = "local"


@dataclass(frozen=True, slots=True)
class WorkerMetadata:
    """The worker that a stage is set up in."""

    worker_id: str = "0"
    node: NodeInfo = field(default_factory=NodeInfo)
    gpus: tuple[int, ...] = ()
