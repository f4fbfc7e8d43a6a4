"""GPUs of several nodes, and what no node has."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill import Resources
from gristmill.core.errors import PlanError
from gristmill.executors.ray import cluster
from gristmill.executors.ray.cluster import ClusterGpuSlots, ClusterNode, connect_to_cluster, missing_resources
from gristmill.executors.ray.ray_client import RayClient


def nodes(*gpus: int, cpus: float = 4) -> list[ClusterNode]:
    return [ClusterNode(f"n{number}", cpus, count, 16.0) for number, count in enumerate(gpus)]


def taken(slots: ClusterGpuSlots, wish: Resources) -> list[str]:
    """The nodes of all workers that find room."""
    homes = []
    while slot := slots.take(wish):
        assert len({slots.gpu_nodes[device] for device in slot.devices}) == 1
        homes.append(slots.gpu_nodes[slot.devices[0]])
    return homes


@pytest.mark.parametrize(
    ("gpus", "wish", "gpu_nodes"),
    [
        ((1, 1), Resources(gpus=1), ["n0", "n1"]),
        ((1, 1), Resources(gpus=2), []),
        ((3, 2, 1), Resources(gpus=2), ["n1", "n0"]),
        ((1, 4), Resources(gpus=4), ["n1"]),
        ((1, 1), Resources(gpus=0.5), ["n0", "n0", "n1", "n1"]),
        ((0, 1), Resources(gpus=0.4), ["n1", "n1"]),
        ((1, 1), Resources(gpu_memory_gb=10), ["n0", "n0", "n1", "n1"]),
        ((2,), Resources(gpu_memory_gb=30), []),
    ],
)
def test_what_a_worker_gets_is_on_one_node(gpus: tuple[int, ...], wish: Resources, gpu_nodes: list[str]) -> None:
    slots = ClusterGpuSlots(nodes(*gpus), memory_gb=24)
    assert slots.fits(wish) == len(gpu_nodes)
    assert taken(slots, wish) == gpu_nodes


def test_nodes_come_and_go() -> None:
    slots, wish = ClusterGpuSlots(nodes(2, 2)), Resources(gpus=1)
    held = [slots.take(wish) for _ in range(3)]
    slots.update(nodes(0, 2)[1:])
    assert (slots.fits(wish), len(slots.present_gpus)) == (2, 2)
    for slot in held:
        assert slot is not None
        slots.release(slot)
    assert taken(slots, wish) == ["n1", "n1"]
    slots.update(nodes(2, 2, 1)[1:])  # a node that comes again has another name
    assert taken(slots, wish) == ["n2"]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (Resources(gpus=2), "the cluster has 2 GPUs of 24 GB on 2 nodes, at most 1 on one"),
        (Resources(gpu_memory_gb=40), "gpu_memory_gb=40, but the cluster has 2 GPUs of 24 GB"),
        (Resources(cpus=5), "5 CPUs on one node, but the largest of 2 nodes has 4: lower cpus"),
        (Resources(memory_gb=20), "20 GB of memory on one node, but the largest of 2 nodes has 16 GB"),
        (Resources(cpus=4, gpus=0.5), ""),
    ],
)
def test_what_no_node_has_is_named(wish: Resources, message: str) -> None:
    lack = missing_resources(wish, nodes(1, 1), ClusterGpuSlots(nodes(1, 1), memory_gb=24))
    assert f"needs {lack}".count(message) if message else not lack


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_does_not_answer_is_told(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(cluster, "_JOIN_SECONDS", 0.1)
    with pytest.raises(PlanError, match=f"no Ray cluster answers at {address}. Start it"):
        connect_to_cluster({"address": address})
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(PlanError, match=f"no Ray cluster answers at {address}. Start it"):
        RayClient().start()


@pytest.mark.parametrize("named_by", ["RAY_TMPDIR", "TMPDIR", "_temp_dir"])
def test_the_cluster_that_was_started_last_is_the_one_that_ray_knows(
    named_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own function for it is not public, and a version without it must do, too."""
    utils = pytest.importorskip("ray._private.utils")
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "ray"
    folder.mkdir()
    given = str(folder) if named_by == "_temp_dir" else None
    if given is None:
        monkeypatch.setenv(named_by, str(tmp_path))
    assert cluster._last_cluster_address(given) == ""
    (folder / "ray_current_cluster").write_text("192.0.2.7:6379\n")
    if hasattr(utils, "read_ray_address"):
        assert utils.read_ray_address(given) == "192.0.2.7:6379"
        monkeypatch.delattr(utils, "read_ray_address")
    assert cluster._last_cluster_address(given) == "192.0.2.7:6379"
    (folder / "ray_current_cluster").write_bytes(b"\xff")
    assert cluster._last_cluster_address(given) == ""
