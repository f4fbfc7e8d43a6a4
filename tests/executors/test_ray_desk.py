"""Actors of an engine on one node: one of them sets it up, and dies (without a cluster: `test_desk.py`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import Task
from gristmill.core.plan import Group
from gristmill.core.quarantine import Budget
from gristmill.core.task import Lineage
from gristmill.executors.desk import Desk, Station
from gristmill.executors.freight import load_up
from gristmill.executors.guard import Duty
from gristmill.executors.lodging import see_off_all
from gristmill.executors.pool import pickled
from gristmill.executors.ray_cluster import connect
from gristmill.executors.transport import pack
from tests.conformance.stages import Witness
from tests.ray_cluster import ray_cluster

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    with ray_cluster(num_cpus=2) as mark:
        yield mark


class SlowNode(Witness):
    """The first time, it takes long to set up the node: until the actor is gone."""

    def setup_on_node(self, node_info: Any, worker_metadata: Any) -> None:
        super().setup_on_node(node_info, worker_metadata)
        while not (self.folder / "gone").exists():
            time.sleep(0.05)


class Works(Station):
    def do(self, row: bytes) -> int:
        return len(list(self.work([row])))


def hooks(folder: Path, name: str) -> int:
    return len(list(folder.glob(f"{name}-*")))


def test_another_one_sets_up_the_node_when_the_first_dies_of_it(tmp_path: Path) -> None:
    import ray

    connect()
    desk = ray.remote(Desk).options(num_cpus=0, max_concurrency=10).remote()
    duty = Duty(0, pickled(Group(0, (SlowNode(tmp_path),))), False, False, True, Budget())
    first, second = (ray.remote(Works).options(num_cpus=0).remote(duty, desk) for _ in range(2))
    lineage = Lineage("0", "0")
    row = load_up(0, lineage, pack(Task(1).named(lineage), None))
    first.do.remote(row)
    while not hooks(tmp_path, "node"):
        time.sleep(0.05)
    waits = second.do.remote(row)
    assert not ray.wait([waits], timeout=3)[0]
    ray.kill(first)
    (tmp_path / "gone").touch()
    assert ray.get(waits, timeout=60) == 1
    assert hooks(tmp_path, "node") == 2
    lodgings = ray.get(desk.close.remote())
    for actor in (second, desk):
        ray.kill(actor)
    assert see_off_all(lodgings, 60) is None
    assert hooks(tmp_path, "setup") == hooks(tmp_path, "teardown") == 2
