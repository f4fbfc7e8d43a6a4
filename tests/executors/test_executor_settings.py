"""Settings of executors and of RayClient: wrong ones are refused when the object is made, with the way out."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gristmill import (
    LocalExecutor,
    Pipeline,
    RayActorPoolExecutor,
    RayClient,
    RayDataExecutor,
    Resources,
    SlurmRayClient,
    Task,
    XennaExecutor,
)
from gristmill.core.errors import GristmillError, PlanError
from gristmill.core.executor import Machine
from gristmill.executors.ray.cluster import ClusterNode, without_reserved
from tests.conformance.small_stages import AddOne

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: RayActorPoolExecutor("x"), r"config='x'\): must be a mapping"),
    (lambda: RayActorPoolExecutor({"gpu_memory_gb": "80"}), r"gpu_memory_gb='80'\): must be a number greater than 0"),
    (lambda: RayActorPoolExecutor({"gpu_memory_gb": -1}), r"gpu_memory_gb=-1\): must be a number greater than 0"),
    (lambda: RayActorPoolExecutor({"request_cpus": "x"}), r"request_cpus='x'\): must be a whole number"),
    (lambda: RayActorPoolExecutor({"reserved_cpus": -1}), r"reserved_cpus=-1\): must be a number, 0 or more"),
    (lambda: RayActorPoolExecutor({"ray_init": 3}), r"ray_init=3\): must be a mapping"),
    (lambda: RayActorPoolExecutor({"runtime_env": "x"}), r"runtime_env='x'\): must be a mapping"),
    (
        lambda: RayActorPoolExecutor({"runtime_env": {"pipp": ["x"]}}),
        "runtime_env has no key 'pipp'. Did you mean 'pip'",
    ),
    (lambda: RayActorPoolExecutor({"runtime_env": {"env_vars": {"A": 1}}}), "env_vars .* must map text to text"),
    (lambda: RayActorPoolExecutor({"gpu_memory": 8}), "no setting 'gpu_memory'. Did you mean 'gpu_memory_gb'"),
    (lambda: RayActorPoolExecutor({"max_workers_per_stage": 4}), r"no setting .*with_\(num_workers=4\)"),
    (lambda: RayActorPoolExecutor({"cpu_allocation_percentage": 0.9}), "Use reserved_cpus"),
    (lambda: RayActorPoolExecutor(progress_interval=-1), r"progress_interval=-1\): must be a number greater"),
    (lambda: RayActorPoolExecutor(progress_interval="x"), r"progress_interval='x'\): must be a number greater"),
    (lambda: RayActorPoolExecutor(ignore_head_node="no"), r"ignore_head_node='no'\): must be True or False"),
    (lambda: RayActorPoolExecutor(execution_mode="bach"), "Did you mean 'batch'"),
    (lambda: RayDataExecutor(execution_mode="batch"), "has no batch mode.*use RayActorPoolExecutor"),
    (lambda: RayDataExecutor({"execution_mode": "batch"}), "has no batch mode.*use RayActorPoolExecutor"),
    (lambda: RayDataExecutor({"reserved_cpus": 1}), "no setting 'reserved_cpus'. Use RayActorPoolExecutor"),
    (lambda: XennaExecutor({"max_workers_per_stage": 4}), r"no setting .*with_\(num_workers=4\)"),
    (lambda: XennaExecutor({"reserved_cpus": 1}), "Use cpu_allocation_percentage"),
    (lambda: XennaExecutor({"cpu_allocation_percentage": 3}), r"cpu_allocation_percentage=3\): must be a share"),
    (lambda: XennaExecutor({"ignore_failures": "no"}), r"ignore_failures='no'\): must be True or False"),
    (lambda: XennaExecutor({"logging_interval": True}), r"logging_interval=True\): must be a number"),
    (lambda: LocalExecutor(gpus="x"), r"gpus='x'\): must be how many GPUs there are"),
    (lambda: LocalExecutor(gpus=[-8]), r"gpus=\[-8\]\): must be"),
    (lambda: RayClient(ray_port="x"), r"RayClient\(ray_port='x'\): must be a port"),
    (lambda: RayClient(num_cpus=-1), r"num_cpus=-1\): must be a whole number, 0 or more"),
    (lambda: RayClient(object_store_memory=1), r"object_store_memory=1\): must be .* at least 75 MiB"),
    (lambda: RayClient(include_dashboard=None), r"include_dashboard=None\): must be True or False"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_settings_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


def test_settings_of_the_peer_are_taken() -> None:
    config = {"reserved_cpus": 1.0, "reserved_gpus": 0.0, "resource_wait_timeout_s": 5.0, "runtime_env": {}}
    assert RayActorPoolExecutor({**config, "resource_wait_interval_s": 0.2}).config["reserved_cpus"] == 1.0
    assert XennaExecutor({"max_workers_per_stage": None, "ignore_failures": True}).setting("ignore_failures")
    assert not RayDataExecutor({"execution_mode": "streaming"}, execution_mode="streaming").batch


def test_what_is_reserved_comes_from_the_largest_nodes() -> None:
    nodes = [ClusterNode("a", 4, 1), ClusterNode("b", 8, 2)]
    assert [(node.cpus, node.gpus) for node in without_reserved(nodes, 0, 0)] == [(4, 1), (8, 2)]
    assert [(node.cpus, node.gpus) for node in without_reserved(nodes, 2, 0.5)] == [(4, 1), (6, 1)]
    assert [(node.cpus, node.gpus) for node in without_reserved(nodes, 99, 99)] == [(0, 0), (0, 0)]


@pytest.mark.ray
def test_a_cluster_that_does_not_start_is_told_in_a_few_words(tmp_path: Path, monkeypatch: Any) -> None:
    """And nothing is left of it: no file, no descriptor."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.listdir("/proc/self/fd")
    log = tmp_path / "ray.log"
    client = RayClient(ray_temp_dir="/proc/nothing", include_dashboard=False, ray_stdouterr_capture_file=str(log))
    with pytest.raises(GristmillError, match=r"did not start at .*The end of its log:\n.*/proc/nothing") as caught:
        client.start()
    assert len(str(caught.value)) < 1000
    assert "Traceback" not in str(caught.value)
    assert "Traceback" in log.read_text()
    assert os.listdir(tmp_path) == ["ray.log"]
    assert len(os.listdir("/proc/self/fd")) == len(before)


class Slow(RayClient):
    """A client on a machine that is busy, the first time or each time."""

    said: list[str]

    def _begin(self) -> str:
        if self.said:
            raise GristmillError(f"the Ray cluster did not start. Ray said:\n{self.said.pop()}")
        return "127.0.0.1:1"


@pytest.mark.parametrize(
    ("said", "starts"),
    [(["timed out during startup"], True), (["timed out during startup"] * 2, False), (["no such option"], False)],
)
def test_a_cluster_that_is_slow_to_start_gets_a_second_chance(
    said: list[str], starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "")
    client = Slow()
    client.said = said
    with contextlib.nullcontext() if starts else pytest.raises(GristmillError, match=said[0]):
        client.start()
    assert client.address == ("127.0.0.1:1" if starts else "")
    client.stop()


class Small(RayDataExecutor):
    """On a cluster of one node."""

    def nodes(self) -> list[ClusterNode]:
        return [ClusterNode("n0", 2.0, 0.0, 10.0)]

    def machine(self) -> Machine:
        return self.as_machine(self.nodes())


@pytest.mark.parametrize(
    ("config", "memory_gb", "groups"),
    [({}, 4, 1), ({"request_cpus": 1}, 4, 1), ({"request_cpus": 3}, 4, 2), ({}, 6, 2)],
)
def test_groups_share_a_worker_where_there_are_not_to_be_more_cores(
    config: dict[str, Any], memory_gb: float, groups: int
) -> None:
    """Nor do they if no node has the memory of both."""
    stages = [AddOne().with_(name=f"s{cpus}", resources=Resources(cpus, memory_gb=memory_gb)) for cpus in (1, 2)]
    plan = Pipeline("p", stages=stages).plan([Task(1)])
    assert len(Small(config).arrange(plan).groups) == groups


@pytest.mark.ray
def test_a_cluster_that_was_killed_is_not_waited_for() -> None:
    """It leaves its address behind, at which Ray would try for minutes."""
    ray = pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="grist", dir="/tmp") as folder:  # paths of Ray's sockets are short
        Path(folder, "ray_current_cluster").write_text("127.0.0.1:9")
        executor = RayActorPoolExecutor({"ray_init": {"_temp_dir": folder, "num_cpus": 1}})
        try:
            assert [task.data for task in Pipeline("p", stages=[AddOne()]).run(executor, initial_tasks=[Task(1)])] == [
                2
            ]
        finally:
            ray.shutdown()


def test_the_dashboard_of_a_cluster_listens_on_its_head_only():
    client = SlurmRayClient()
    client._ports = SimpleNamespace(take=int)  # none is opened
    assert "--dashboard-host=127.0.0.1" in client._head_options("10.0.0.7:6379")
