"""More than the object store holds passes through it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, Pipeline, ProcessingStage, RayActorPoolExecutor, Task
from gristmill.executors.ray.cluster import connect_to_cluster
from tests.executors.multi_node_cluster import Cluster

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


class Numbers(ProcessingStage[Task[int], DocumentBatch]):
    """A batch of 8 MB."""

    def process(self, task: Task[int]) -> DocumentBatch:
        return DocumentBatch([{"n": task.data, "text": "x" * 2**20} for _ in range(8)])


class Pass(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        return DocumentBatch(task.to_rows())


class Weigh(ProcessingStage[DocumentBatch, Task[Any]]):
    def process(self, task: DocumentBatch) -> Task[Any]:
        rows = task.to_rows()
        return Task((rows[0]["n"], sum(len(row["text"]) for row in rows)))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_more_than_the_object_store_holds_passes_through_it() -> None:
    with Cluster(cpus=2, store_mb=80, spilling=True) as small:
        connect_to_cluster()
        before = resident()
        result = Pipeline("p", stages=[Numbers(), Pass(), Weigh().with_(num_workers=1)]).run(
            RayActorPoolExecutor(fuse=False), initial_tasks=[Task(number) for number in range(60)]
        )
        assert [task.data for task in result] == [(number, 8 * 2**20) for number in range(60)]
        assert resident() - before < 150 * 2**20  # of the 960 MB that were moved
        assert list(Path(small.folder, "spilled").iterdir())
