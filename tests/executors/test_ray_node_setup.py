"""`setup_on_node` runs once on each node of a cluster, before any other worker of the stage is set up there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import Pipeline, ProcessingStage, RayActorPoolExecutor, Resources, Task
from tests.executors.multi_node_cluster import Cluster

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(cpus=2, gpus=1) as started:
        started.add(cpus=2, gpus=1)
        started.wait_for(2)
        yield started


class Fetches(ProcessingStage[Task[int], Task[Any]]):
    """Needs what it fetches to its node, which takes a while."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        time.sleep(1.0)
        (self.folder / f"{node_info.node_id}-{time.monotonic_ns()}").touch()

    def setup(self, worker_metadata: Any = None) -> None:
        self.node = worker_metadata.node.node_id
        assert list(self.folder.glob(f"{self.node}-*")), "this node was not set up"

    def process(self, task: Task[int]) -> Task[Any]:
        deadline = time.monotonic() + 60
        while len(list(self.folder.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.05)
        return Task((task.data, self.node))


@pytest.mark.parametrize("gpus", [0, 0.5])
@pytest.mark.usefixtures("cluster")
def test_each_node_is_set_up_once(gpus: float, tmp_path: Path) -> None:
    stage = Fetches(tmp_path).with_(num_workers=4, resources=Resources(cpus=0.5, gpus=gpus))
    given = [Task(number) for number in range(100)]
    result = Pipeline("p", stages=[stage]).run(RayActorPoolExecutor(), initial_tasks=given)
    found = [task.data for task in result]
    assert [number for number, _ in found] == list(range(100))
    set_up = Counter(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert set(set_up.values()) == {1}
    assert {node for _, node in found} == set(set_up)
    assert len(set_up) == 2
