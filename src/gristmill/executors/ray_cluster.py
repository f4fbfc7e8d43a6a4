"""The Ray cluster that this process is connected to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive, and what it has."""

    id: str
    cpus: float
    gpus: float


def connect(init: Mapping[str, Any] | None = None) -> None:
    """Join the cluster that is there, or start one on this machine, quietly. It is left running."""
    import ray

    if ray.is_initialized():
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    if "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # or tools that join later wait for a token
        quiet["include_dashboard"] = False  # half of Ray's processes and memory
    ray.init(**{**quiet, **(init or {})})


def cluster(ignore_head_node: bool = False) -> list[Node]:
    """The nodes that workers may run on."""
    import ray

    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node for node in found if node["Alive"]]
    if ignore_head_node:
        nodes = [node for node in nodes if "node:__internal_head__" not in node["Resources"]]
    return [
        Node(node["NodeID"], node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0)) for node in nodes
    ]
