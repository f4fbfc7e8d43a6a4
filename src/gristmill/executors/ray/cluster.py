"""The Ray cluster that this process is connected to: its nodes, what they have, and whether they still answer."""

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
from gristmill.executors.machine import GpuSlot, GpuSlots
from gristmill.executors.ray.output_forwarding import output_forwarder

_ANSWER_SECONDS = 2.0
_JOIN_SECONDS = 10.0
_CORE_LOG_VARIABLE = "RAY_BACKEND_LOG_LEVEL"
_NODE_GONE = float("-inf")


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node that is alive, and what it has."""

    id: str
    cpus: float
    gpus: float
    memory_gb: float = 0.0
    address: tuple[str, int] = ("", 0)

    def is_reachable(self) -> bool:
        """Whether somebody is there. Ray itself needs a while to notice that a node has gone."""
        with contextlib.suppress(OSError), socket.create_connection(self.address, timeout=_ANSWER_SECONDS):
            return True
        return False


def connect_to_cluster(init: Mapping[str, Any] | None = None) -> None:
    """Join the cluster that is there, or start one on this machine, quietly. It is left running."""
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
            settings["address"] = "local"  # or Ray waits for a cluster that was killed, and has left its address behind
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # or tools that join later wait for a token
        settings.setdefault("include_dashboard", False)  # half of Ray's processes and memory
        ray.init(**settings)
    else:
        with _quiet_core():
            ray.init(**settings)
    if "log_to_driver" not in settings:  # or the user has said how it is to be
        output_forwarder.install()


def _last_cluster_address(temp_dir: str | None) -> str:
    """The address of the cluster that was started last on this machine, which Ray would join; it may be gone.

    Ray has no public name for it, so the file is read that it leaves. Where there is none, Ray looks for itself.
    """
    variables = ("RAY_TMPDIR", "TMPDIR") if sys.platform == "linux" else ("RAY_TMPDIR",)
    parent = next((os.environ[name] for name in variables if name in os.environ), "/tmp")  # noqa: S108
    with contextlib.suppress(OSError, ValueError):
        return Path(temp_dir or f"{parent}/ray", "ray_current_cluster").read_text().strip()
    return ""


def _is_reachable(address: str) -> bool:
    """Whether somebody listens at an address, or it is not one of a host and a port."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return True
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS):
        return True
    return False


def wait_for_head(address: str) -> None:
    """Until somebody listens at the address of a cluster; what Ray finds for itself ("auto") it must find."""
    deadline = time.monotonic() + _JOIN_SECONDS
    while not _is_reachable(address):
        if time.monotonic() > deadline:
            raise PlanError(
                f"no Ray cluster answers at {address}: is it running? RAY_ADDRESS, or the setting address, names the "
                "cluster to join; without them one is started on this machine"
            )
        time.sleep(0.2)


def _head_address(address: str) -> str:
    """The address of the head of a cluster that is named by its server for clients. It is asked who it is.

    Ray's client itself cannot move tasks by reference: it is only for this question, and this machine must be a node.
    """
    import ray

    require("grpc", "ray", f"joining {address}")
    try:
        _join_as_client(address)
    except ConnectionError:  # the cluster starts a server for each client, and gives up when that takes long
        _join_as_client(address, last=True)
    try:
        head: str = ray.get_runtime_context().gcs_address
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    finally:
        ray.shutdown()
    if not any(node["Alive"] and _is_own_address(node["NodeManagerAddress"]) for node in nodes):
        raise PlanError(
            f"the cluster is named by {address}, and this machine is none of its nodes: Ray's client cannot move tasks "
            "by reference. Run the script on a node of the cluster, or submit it as a job (ray job submit)"
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
        said = str(error).strip().splitlines()[-1:]
        raise PlanError(
            f"the cluster at {address} started no server for this client: {''.join(said)}. It may be too busy, or "
            "have no grpcio (pip install grpcio on its head). On a node of the cluster, RAY_ADDRESS=auto needs none"
        ) from error


def _is_own_address(host: str) -> bool:
    """Whether an address is one of this machine's: only those can be listened at."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((host, 0))
        return True
    return False


@contextlib.contextmanager
def _quiet_core() -> Iterator[None]:
    """Ray's core is started so that it does not tell the terminal what a node that disappears took with it.

    It is told so by a variable, and says on standard error that it was: that line is left out.
    """
    if _CORE_LOG_VARIABLE in os.environ:
        yield
        return
    os.environ[_CORE_LOG_VARIABLE] = "fatal"
    errors = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(errors, 2)
            os.close(errors)
            del os.environ[_CORE_LOG_VARIABLE]
            said.seek(0)
            for line in said:
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
    """The nodes without cores and GPUs that are left to others. Those come from the nodes that have most of them."""
    left = {node.id: node for node in nodes}
    for what, wanted in (("cpus", cpus), ("gpus", math.ceil(gpus))):
        rest = float(wanted)
        for node in sorted(left.values(), key=lambda node: -getattr(node, what)):
            taken = min(rest, getattr(node, what))
            left[node.id] = replace(node, **{what: getattr(node, what) - taken})
            rest -= taken
    return list(left.values())


class RayMessageFilter:
    """Keeps Ray from telling the user's terminal of deaths that a run deals with, while it runs.

    Ray has no setting for it: a thread prints them, whatever the log level. Other messages are let through.
    """

    HANDLED = ("A worker died or was killed", "has been marked dead", "The node with node id", "Raylet is terminated")
    AFTER = 5.0
    """Seconds after a run in which messages about it may still come."""

    def __init__(self) -> None:
        self.runs, self.until = 0, 0.0

    def begin(self) -> None:
        self.runs += 1
        worker = importlib.import_module("ray._private.worker")
        tell = getattr(worker, "print_to_stdstream", None)
        if tell is not None and not hasattr(tell, "gristmill"):
            worker.print_to_stdstream = self._filter(tell)  # type: ignore[attr-defined]

    def end(self) -> None:
        self.runs -= 1
        self.until = time.monotonic() + self.AFTER

    def _filter(self, tell: Callable[..., None]) -> Callable[..., None]:
        def tell_the_rest(data: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
            handled = data.get("pid") == "raylet" and any(
                word in line for word in self.HANDLED for line in data["lines"]
            )
            if not (handled and (self.runs or time.monotonic() < self.until)):
                tell(data, *args, **kwargs)

        tell_the_rest.gristmill = True  # type: ignore[attr-defined]
        return tell_the_rest


ray_message_filter = RayMessageFilter()


class ClusterGpuSlots(GpuSlots):
    """The GPUs of several nodes. What one worker gets is on one node; nodes come and go."""

    def __init__(self, nodes: Sequence[ClusterNode], memory_gb: float | None = None) -> None:
        super().__init__(())
        self.gpu_memory_gb, self.gpu_nodes = memory_gb, list[str]()
        self.update(nodes)

    def update(self, nodes: Sequence[ClusterNode]) -> None:
        """These are the nodes now."""
        there = {node.id for node in nodes}
        self.free = [
            free if home in there else _NODE_GONE for free, home in zip(self.free, self.gpu_nodes, strict=True)
        ]
        for node in nodes:
            if node.id not in self.gpu_nodes:
                self.gpu_nodes += [node.id] * int(node.gpus)
                self.free += [1.0] * int(node.gpus)
        self.memory = (self.gpu_memory_gb,) * len(self.gpu_nodes)

    @property
    def present_gpus(self) -> tuple[float | None, ...]:
        """The memory of each GPU that is there."""
        return tuple(memory for memory, free in zip(self.memory, self.free, strict=True) if free > _NODE_GONE)

    def find(self, wish: Resources) -> GpuSlot | None:
        return super().find(wish) if wish.gpus <= 1 else next((slot for slot, _ in self._in_turn(wish)), None)

    def find_outside_nodes(self, wish: Resources, count: int, closed: Container[str]) -> GpuSlot | None:
        """Of the slots that so many workers would take, the first that is not on one of some nodes.

        No other slots than those: who comes later must find room as if all nodes had been open.
        """
        for slot, workers in self._in_turn(wish):
            if count <= 0:
                break
            if self.gpu_nodes[slot.devices[0]] not in closed:
                return slot
            count -= workers
        return None

    def _in_turn(self, wish: Resources) -> Iterator[tuple[GpuSlot, int]]:
        """Slots in the order in which they are taken, each with the number of workers that go there before the next."""
        if wish.gpus > 1:
            by_node: dict[str, list[int]] = {}
            for device, free in enumerate(self.free):
                if free > 1 - 1e-9:
                    by_node.setdefault(self.gpu_nodes[device], []).append(device)
            for devices in sorted(by_node.values(), key=len):  # so that nodes keep room for larger wishes
                if len(devices) >= wish.gpus:
                    yield GpuSlot(tuple(devices[: int(wish.gpus)]), 1.0), int(len(devices) // wish.gpus)
            return
        for (free, memory), there in sorted(self._by_free_share().items(), key=lambda room: room[0][0]):
            share = wish.gpu_share(memory)
            if share <= free + 1e-9:
                for device in there:
                    yield GpuSlot((device,), share), int((free + 1e-9) / share)

    def fits(self, wish: Resources) -> int:
        homes = [home for home, free in zip(self.gpu_nodes, self.free, strict=True) if free > _NODE_GONE]
        if wish.gpus > 1:
            return sum(int(count // wish.gpus) for count in Counter(homes).values())
        share = wish.gpu_share(self.gpu_memory_gb)
        return len(homes) * int(1 / share + 1e-9) if share <= 1 + 1e-9 else 0


def request_autoscaler_cpus(count: int | None) -> None:
    """Workers reserve next to no CPU, so the cluster's autoscaler must be told what is wanted, if anybody says it."""
    if count is not None:
        from ray.autoscaler.sdk import request_resources

        request_resources(num_cpus=count)


def missing_resources(wish: Resources, nodes: Sequence[ClusterNode], slots: ClusterGpuSlots) -> str:
    """What no node has of what one worker wants, and the way out."""
    cpus, gpus, memory_gb = (
        max((getattr(node, what) for node in nodes), default=0.0) for what in ("cpus", "gpus", "memory_gb")
    )
    if wish.requires_gpu and not slots.fits(wish):
        each = f" of {slots.gpu_memory_gb:g} GB" if slots.gpu_memory_gb else ""
        return (
            f"{wish}, and the cluster has {len(slots.present_gpus)} GPUs{each} on {len(nodes)} nodes, at most {gpus:g} on "
            "one: add nodes that have what it wants, or run it on the CPU with .with_(resources=Resources(cpus=1))"
        )
    if wish.cpus > cpus:
        return (
            f"{wish.cpus:g} CPUs in one place, and the largest of {len(nodes)} nodes has {cpus:g}: lower cpus, or "
            "add larger nodes"
        )
    if wish.memory_gb > memory_gb > 0:
        return (
            f"{wish.memory_gb:g} GB of memory in one place, and the largest of {len(nodes)} nodes has "
            f"{memory_gb:.0f} GB: lower memory_gb, or add larger nodes"
        )
    return ""
