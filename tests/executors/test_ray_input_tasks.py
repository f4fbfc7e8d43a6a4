"""What came of large tasks that the user gave is lost with a node: it is made again, of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import (
    DocumentBatch,
    Pipeline,
    ProcessingStage,
    RayActorPoolExecutor,
    RayDataExecutor,
    Task,
    XennaExecutor,
)
from gristmill.core.stage import WorkerMetadata
from gristmill.core.stage_roles import GatherRole
from gristmill.executors.ray.cluster import cluster_nodes as nodes
from gristmill.executors.ray.cluster import connect_to_cluster
from tests.executors.multi_node_cluster import Cluster
from tests.executors.test_ray_faults import Note, by_node, when

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

COUNT = 24


class Copies(ProcessingStage[DocumentBatch, DocumentBatch]):
    """A large batch becomes another one, and that is noted. Other nodes wait until one has made some."""

    def __init__(self, folder: Path, first: str) -> None:
        super().__init__()
        self.folder, self.first = folder, first

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self.node = worker_metadata.node.node_id

    def process(self, task: DocumentBatch) -> DocumentBatch:
        (self.folder / f"{task.data['n'][0]}-{time.monotonic_ns()}-{self.node}").touch()
        deadline = time.monotonic() + 120
        while self.node != self.first and by_node(self.folder)[self.first] < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        return DocumentBatch([{**row, "block": 0} for row in task.to_rows()])


class Sums(Note, GatherRole):
    """What came of one task, as one number: results that lay on the node would be lost."""

    def process(self, task: Any) -> Any:
        rows = super().process(task.data[0]).to_rows()
        return Task((rows[0]["n"], sum(len(row["text"]) for row in rows)))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


@pytest.mark.filterwarnings("ignore:.* left .* tasks undone:RuntimeWarning")  # it may have nearly ended
@pytest.mark.parametrize("executor", [RayActorPoolExecutor, RayDataExecutor, XennaExecutor])
def test_what_came_of_it_is_made_again(cluster: Cluster, tmp_path: Path, executor: Any) -> None:
    doomed = cluster.add(cpus=2)
    made, seen, gone = tmp_path / "made", tmp_path / "seen", tmp_path / "gone"
    made.mkdir()
    seen.mkdir()
    cluster.wait_for(2)
    connect_to_cluster()
    (there,) = nodes(ignore_head_node=True)

    def ready() -> bool:  # all of it is made, in the stores of both nodes, and most of it waits
        return by_node(made).total() >= COUNT and any(seen.iterdir())

    def act() -> None:
        doomed.kill()
        gone.touch()

    thread = when(ready, act)
    given = [DocumentBatch([{"n": number, "text": "x" * 1000} for _ in range(300)]) for number in range(COUNT)]
    stages = [Copies(made, there.id), Sums(seen, gone).with_(num_workers=1)]
    result = Pipeline("p", stages=[stage.with_(max_retries=0) for stage in stages]).run(executor(), initial_tasks=given)
    thread.join()
    assert [task.data for task in result] == [(number, 300_000) for number in range(COUNT)]
    assert result.quarantined() == []
    assert by_node(made)[there.id] >= 5
    assert COUNT < len(list(made.iterdir())) <= 2 * COUNT
