"""Clusters that are made in rounds, since they do not fit into memory, are the same on every executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import FuzzyDeduplicationStage
from gristmill.text import JsonlReader, JsonlWriter
from tests.conformance.executor_params import CLUSTER, EXECUTORS
from tests.dedup.test_clustering_rounds import write

WORKERS = [
    pytest.param("local-2", marks=pytest.mark.slow),
    *(pytest.param(name, marks=pytest.mark.ray) for name in CLUSTER),
]


def run(source: Path, folder: Path, executor: Any, blocksize: int, memory_gb: float | None) -> tuple[Any, ...]:
    """Output files, the table of clusters, and how many segments of rounds there were."""
    stage = FuzzyDeduplicationStage(word_ngrams=3, threshold=0.8, id_field="id", num_partitions=2, memory_gb=memory_gb)
    stages = [JsonlReader(source, blocksize=blocksize), stage, JsonlWriter(folder / "out")]
    Pipeline("p", stages=stages).run(executor, folder / "run")
    clusters = pq.read_table(folder / "run" / "clusters").sort_by("id").to_pylist()
    rounds = {path.name.partition("-round")[2][:1] for path in (folder / "run" / "segments" / "6").glob("*round*")}
    return {path.name: path.read_bytes() for path in (folder / "out").glob("*.jsonl")}, clusters, rounds


@pytest.mark.parametrize("name", WORKERS)
def test_the_same_bytes_in_rounds(tmp_path: Path, request: pytest.FixtureRequest, name: str) -> None:
    if name == "xenna":
        pytest.importorskip("cosmos_xenna")
    if name in CLUSTER:
        request.getfixturevalue("cluster")
    source = write(tmp_path)
    files, clusters, none = run(source, tmp_path / "at-once", LocalExecutor(0), 10**6, None)
    there = run(source, tmp_path / "there", {**EXECUTORS, **CLUSTER}[name](), 20_000, 1e-4)
    assert there[:2] == (files, clusters)
    assert len(there[2]) > len(none) == 0  # stars were drawn more than once
