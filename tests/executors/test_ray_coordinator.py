"""Actors of an engine on one node: one of them sets it up, and dies (without a cluster: `test_coordinator.py`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import Task
from gristmill.core.plan.planner import Group
from gristmill.core.records.quarantine import ErrorBudget
from gristmill.core.task import Lineage
from gristmill.executors.engines.driver_channel import EngineCoordinator, GroupRunner
from gristmill.executors.engines.guard_process import GroupAssignment, wait_for_all_guards
from gristmill.executors.engines.task_serialisation import serialise_task
from gristmill.executors.local.task_transport import pack_task
from gristmill.executors.ray.cluster import connect_to_cluster
from gristmill.executors.worker_pool import pickle_group
from tests.conformance.small_stages import Witness
from tests.ray_cluster import ray_cluster

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    with ray_cluster(num_cpus=2) as mark:
        yield mark


class SlowNode(Witness):
    """The first time, it takes long to set up the node: until the actor is gone."""

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        super().setup_on_node(node_info, worker_metadata)
        while not (self.folder / "gone").exists():
            time.sleep(0.05)


class Works(GroupRunner):
    def do(self, row: bytes) -> int:
        return len(list(self.run([row])))


def hooks(folder: Path, name: str) -> int:
    return len(list(folder.glob(f"{name}-*")))


def test_another_one_sets_up_the_node_when_the_first_dies_of_it(tmp_path: Path) -> None:
    import ray

    connect_to_cluster()
    coordinator = ray.remote(EngineCoordinator).options(num_cpus=0, max_concurrency=10).remote()
    duty = GroupAssignment(0, pickle_group(Group(0, (SlowNode(tmp_path),))), False, False, True, ErrorBudget())
    first, second = (ray.remote(Works).options(num_cpus=0).remote(duty, coordinator) for _ in range(2))
    lineage = Lineage("0", "0")
    row = serialise_task(0, lineage, pack_task(Task(1).named(lineage), None))
    begun = first.do.remote(row)
    while not hooks(tmp_path, "node"):
        time.sleep(0.05)
    waits = second.do.remote(row)
    assert not ray.wait([waits], timeout=3)[0]
    ray.kill(first)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(begun, timeout=60)
    (tmp_path / "gone").touch()
    assert ray.get(waits, timeout=60) == 1
    assert hooks(tmp_path, "node") == 2
    lodgings = ray.get(coordinator.close.remote())
    for actor in (second, coordinator):
        ray.kill(actor)
    assert wait_for_all_guards(lodgings, 60) is None
    assert hooks(tmp_path, "setup") == hooks(tmp_path, "teardown") == 2
