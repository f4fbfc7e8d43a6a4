"""The Ray cluster: connecting to it, its nodes and their resources, and its GPU slots."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gristmill.core.errors import PlanError, require
from gristmill.core.resources import Resources
from gristmill.executors.machine_resources import GpuSlot, GpuSlots
from gristmill.executors.ray.console_forwarding import output_forwarder

_ANSWER_SECONDS = 2.0
_JOIN_SECONDS = 10.0
_CORE_LOG_VARIABLE = "RAY_BACKEND_LOG_LEVEL"
_NODE_GONE = float("-inf")


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node that is alive, and its resources."""

    id: str
    cpus: float
    gpus: float
    memory_gb: float = 0.0
    address: tuple[str, int] = ("", 0)

    def is_reachable(self) -> bool:
        """Whether the node still accepts connections. Ray itself takes a while to notice that a node is gone."""
        with contextlib.suppress(OSError), socket.create_connection(self.address, timeout=_ANSWER_SECONDS):
            return True
        return False


def connect_to_cluster(init: Mapping[str, Any] | None = None) -> None:
    """Connect to the running cluster, or start one on this machine, which is left running."""
    import ray

    if ray.is_initialized():
        return
    quiet: dict[str, Any] = {"logging_level": "ERROR", "configure_logging": True}
    settings = {**quiet, **(init or {})}
    address = settings.get("address") or os.environ.get("RAY_ADDRESS", "")
    wait_for_head(address)
    if address.startswith("ray://"):
        address = settings["address"] = _head_address(address)
    if not address:
        if not _is_reachable(_last_cluster_address(settings.get("_temp_dir"))):
            settings["address"] = (
                "local"  # otherwise Ray would wait for a killed cluster that has left its address behind
            )
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # otherwise tools that join later need a token
        settings.setdefault("include_dashboard", False)  # it is half of Ray's processes and memory
        ray.init(**settings)
    else:
        with _quiet_core():
            ray.init(**settings)
    if "log_to_driver" not in settings:  # otherwise the user has decided
        output_forwarder.install()


def _last_cluster_address(temp_dir: str | None) -> str:
    """The address of the last cluster that was started on this machine, which Ray would join; it may be gone.

    Ray has no public function for it, so this reads its file. Empty if there is none.
    """
    variables = ("RAY_TMPDIR", "TMPDIR") if sys.platform == "linux" else ("RAY_TMPDIR",)
    parent = next((os.environ[name] for name in variables if name in os.environ), "/tmp")  # noqa: S108
    with contextlib.suppress(OSError, ValueError):
        return Path(temp_dir or f"{parent}/ray", "ray_current_cluster").read_text().strip()
    return ""


def _is_reachable(address: str) -> bool:
    """Whether an address accepts connections. True if it is not of the form host:port."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return True
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS):
        return True
    return False


def wait_for_head(address: str) -> None:
    """Wait until a cluster accepts connections at its address. Other forms, such as "auto", are left to Ray."""
    deadline = time.monotonic() + _JOIN_SECONDS
    while not _is_reachable(address):
        if time.monotonic() > deadline:
            raise PlanError(
                f"no Ray cluster answers at {address}. Start it, or correct RAY_ADDRESS (or ray_init's address), which "
                "names the cluster to join; without an address, one is started on this machine"
            )
        time.sleep(0.2)


def _head_address(address: str) -> str:
    """The address of the head of a cluster that is given as ray://, found through Ray's client.

    The client is used for nothing else, because it cannot move tasks by reference. This machine must be a node.
    """
    import ray

    require("grpc", "ray", f"joining {address}")
    try:
        _join_as_client(address)
    except ConnectionError:  # the head starts a server for each client, and gives up if that is slow
        _join_as_client(address, last=True)
    try:
        head: str = ray.get_runtime_context().gcs_address
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    finally:
        ray.shutdown()
    if not any(node["Alive"] and _is_own_address(node["NodeManagerAddress"]) for node in nodes):
        raise PlanError(
            f"this machine is not a node of the cluster at {address}, and Ray's client cannot move tasks by reference. "
            "Run the script on a node of the cluster, or submit it as a job (ray job submit)"
        )
    return head


def _join_as_client(address: str, last: bool = False) -> None:
    import ray

    try:
        with _quiet_core():
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
    except ConnectionError as error:
        if not last:
            raise
        captured = str(error).strip().splitlines()[-1:]
        raise PlanError(
            f"the cluster at {address} started no server for this client: {''.join(captured)}. It may be too busy, or "
            "lack grpcio (pip install grpcio on its head). On a node of the cluster, RAY_ADDRESS=auto does not need it"
        ) from error


def _is_own_address(host: str) -> bool:
    """Whether an address belongs to this machine: only those can be bound."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((host, 0))
        return True
    return False


@contextlib.contextmanager
def _quiet_core() -> Iterator[None]:
    """Start Ray's core without log lines about lost nodes on the terminal.

    The variable that does this makes Ray print a line about it to standard error, which is removed.
    """
    if _CORE_LOG_VARIABLE in os.environ:
        yield
        return
    os.environ[_CORE_LOG_VARIABLE] = "fatal"
    errors = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(errors, 2)
            os.close(errors)
            del os.environ[_CORE_LOG_VARIABLE]
            captured.seek(0)
            for line in captured:
                if _CORE_LOG_VARIABLE.encode() not in line:
                    os.write(2, line)


def cluster_nodes(ignore_head_node: bool = False) -> list[ClusterNode]:
    """The nodes that workers may run on."""
    import ray

    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node for node in found if node["Alive"]]
    if ignore_head_node:
        nodes = [node for node in nodes if "node:__internal_head__" not in node["Resources"]]
    return [_node(node["Resources"], node) for node in nodes]


def _node(has: Mapping[str, float], node: Mapping[str, Any]) -> ClusterNode:
    address = (node["NodeManagerAddress"], node["NodeManagerPort"])
    return ClusterNode(node["NodeID"], has.get("CPU", 0.0), has.get("GPU", 0.0), has.get("memory", 0.0) / 1e9, address)


def without_reserved(nodes: Sequence[ClusterNode], cpus: float, gpus: float) -> list[ClusterNode]:
    """The nodes without the reserved cores and GPUs, which are taken from the nodes that have most of them."""
    left = {node.id: node for node in nodes}
    for what, wanted in (("cpus", cpus), ("gpus", math.ceil(gpus))):
        rest = float(wanted)
        for node in sorted(left.values(), key=lambda node: -getattr(node, what)):
            taken = min(rest, getattr(node, what))
            left[node.id] = replace(node, **{what: getattr(node, what) - taken})
            rest -= taken
    return list(left.values())


class RayMessageFilter:
    """Suppresses Ray's messages about dead workers and nodes, which a run handles itself.

    Ray has no setting for it: a thread prints them at any log level. Other messages pass.
    """

    HANDLED = ("A worker died or was killed", "has been marked dead", "The node with node id", "Raylet is terminated")
    AFTER = 5.0
    """How long after a run its messages may still arrive, in seconds."""

    def __init__(self) -> None:
        self.runs, self.until = 0, 0.0

    def begin(self) -> None:
        self.runs += 1
        worker = importlib.import_module("ray._private.worker")
        print_message = getattr(worker, "print_to_stdstream", None)
        if print_message is not None and not hasattr(print_message, "gristmill"):
            worker.print_to_stdstream = self._filter(print_message)  # type: ignore[attr-defined]

    def end(self) -> None:
        self.runs -= 1
        self.until = time.monotonic() + self.AFTER

    def _filter(self, print_message: Callable[..., None]) -> Callable[..., None]:
        def print_others(data: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
            handled = data.get("pid") == "raylet" and any(
                word in line for word in self.HANDLED for line in data["lines"]
            )
            if not (handled and (self.runs or time.monotonic() < self.until)):
                print_message(data, *args, **kwargs)

        print_others.gristmill = True  # type: ignore[attr-defined]
        return print_others


ray_message_filter = RayMessageFilter()


class ClusterGpuSlots(GpuSlots):
    """The GPUs of all nodes. The GPUs of one worker are on one node. Nodes may come and go."""

    def __init__(self, nodes: Sequence[ClusterNode], memory_gb: float | None = None) -> None:
        super().__init__(())
        self.gpu_memory_gb, self.gpu_nodes = memory_gb, list[str]()
        self.update(nodes)

    def update(self, nodes: Sequence[ClusterNode]) -> None:
        """Set the nodes that are present now."""
        present = {node.id for node in nodes}
        self.free = [
            free if home in present else _NODE_GONE for free, home in zip(self.free, self.gpu_nodes, strict=True)
        ]
        for node in nodes:
            if node.id not in self.gpu_nodes:
                self.gpu_nodes += [node.id] * int(node.gpus)
                self.free += [1.0] * int(node.gpus)
        self.memory = (self.gpu_memory_gb,) * len(self.gpu_nodes)

    @property
    def present_gpus(self) -> tuple[float | None, ...]:
        """The memory of each GPU on a node that is present."""
        return tuple(memory for memory, free in zip(self.memory, self.free, strict=True) if free > _NODE_GONE)

    def find(self, resources: Resources) -> GpuSlot | None:
        return (
            super().find(resources)
            if resources.gpus <= 1
            else next((slot for slot, _ in self._in_turn(resources)), None)
        )

    def find_outside_nodes(self, resources: Resources, count: int, closed: Container[str]) -> GpuSlot | None:
        """The first slot outside the `closed` nodes among those that the next `count` workers would take.

        Only among those, so that later workers find the same room as if no node had been closed.
        """
        for slot, workers in self._in_turn(resources):
            if count <= 0:
                break
            if self.gpu_nodes[slot.devices[0]] not in closed:
                return slot
            count -= workers
        return None

    def _in_turn(self, resources: Resources) -> Iterator[tuple[GpuSlot, int]]:
        """Slots in the order in which they are taken, each with how many workers fit there before the next is used."""
        if resources.gpus > 1:
            by_node: dict[str, list[int]] = {}
            for device, free in enumerate(self.free):
                if free > 1 - 1e-9:
                    by_node.setdefault(self.gpu_nodes[device], []).append(device)
            for devices in sorted(
                by_node.values(), key=len
            ):  # fill small nodes first, to keep room for larger requests
                if len(devices) >= resources.gpus:
                    yield GpuSlot(tuple(devices[: int(resources.gpus)]), 1.0), int(len(devices) // resources.gpus)
            return
        for (free, memory), present in sorted(self._by_free_share().items(), key=lambda entry: entry[0][0]):
            share = resources.gpu_share(memory)
            if share <= free + 1e-9:
                for device in present:
                    yield GpuSlot((device,), share), int((free + 1e-9) / share)

    def fits(self, resources: Resources) -> int:
        homes = [home for home, free in zip(self.gpu_nodes, self.free, strict=True) if free > _NODE_GONE]
        if resources.gpus > 1:
            return sum(int(count // resources.gpus) for count in Counter(homes).values())
        share = resources.gpu_share(self.gpu_memory_gb)
        return len(homes) * int(1 / share + 1e-9) if share <= 1 + 1e-9 else 0


def request_autoscaler_cpus(count: int | None) -> None:
    """Ask the autoscaler for CPUs, because workers reserve almost none. None leaves it alone."""
    if count is not None:
        from ray.autoscaler.sdk import request_resources

        request_resources(num_cpus=count)


def missing_resources(resources: Resources, nodes: Sequence[ClusterNode], slots: ClusterGpuSlots) -> str:
    """What no node can provide for one worker, and what to do; empty if a node can."""
    cpus, gpus, memory_gb = (
        max((getattr(node, what) for node in nodes), default=0.0) for what in ("cpus", "gpus", "memory_gb")
    )
    if resources.requires_gpu and not slots.fits(resources):
        each = f" of {slots.gpu_memory_gb:g} GB" if slots.gpu_memory_gb else ""
        return (
            f"{resources}, but the cluster has {len(slots.present_gpus)} GPUs{each} on {len(nodes)} nodes, at most "
            f"{gpus:g} on one: add nodes with enough GPUs, or run it on the CPU: .with_(resources=Resources(cpus=1))"
        )
    if resources.cpus > cpus:
        return (
            f"{resources.cpus:g} CPUs on one node, but the largest of {len(nodes)} nodes has {cpus:g}: lower cpus, or "
            "add larger nodes"
        )
    if resources.memory_gb > memory_gb > 0:
        return (
            f"{resources.memory_gb:g} GB of memory on one node, but the largest of {len(nodes)} nodes has "
            f"{memory_gb:.0f} GB: lower memory_gb, or add larger nodes"
        )
    return ""
