"""Deduplication of embeddings gives the same bytes for any number of workers, and when it is killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import SemanticDeduplicationStage
from gristmill.text import ParquetReader, ParquetWriter
from tests.conformance.executor_params import CLUSTER


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Embeddings with near copies, in three files."""
    rng = np.random.default_rng(7)
    base = np.repeat(rng.normal(size=(500, 80)), 3, axis=0)
    rows = rng.permutation(base + 0.2 * rng.normal(size=base.shape)).astype(np.float32)
    (tmp_path / "in").mkdir()
    for part in range(3):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows[part::3].reshape(-1)), 80)
        table = pa.table({"id": [f"{part}-{row}" for row in range(500)], "embeddings": lists})
        pq.write_table(table, tmp_path / "in" / f"{part}.parquet", row_group_size=130)
    return tmp_path / "in"


def stages(corpus: Path, out: Path, blocksize: str) -> list[Any]:
    dedup = SemanticDeduplicationStage("id", eps=0.05, n_clusters=9, num_partitions=4)
    return [ParquetReader(corpus, blocksize=blocksize), dedup, ParquetWriter(out)]


def found(corpus: Path, out: Path, executor: Any, blocksize: str = "1MB") -> dict[str, bytes]:
    result = Pipeline("p", stages=stages(corpus, out, blocksize)).run(executor, out.with_suffix(".run"))
    assert 200 < result.summary()["SemanticDeduplicationStage"].dropped < 1000
    return outputs(out)


def outputs(out: Path) -> dict[str, bytes]:
    """The files, and what is in the cluster table."""
    table = pq.read_table(out.with_suffix(".run") / "clusters").to_pylist()
    return {path.name: path.read_bytes() for path in out.glob("*.parquet")} | {"clusters": repr(table).encode()}


def test_the_same_bytes_for_any_number_of_workers(corpus: Path, tmp_path: Path) -> None:
    wanted = found(corpus, tmp_path / "inline", LocalExecutor(0))
    assert len(wanted) == 4
    assert found(corpus, tmp_path / "two", LocalExecutor(2), "20KB") == wanted


@pytest.mark.slow
def test_one_worker(corpus: Path, tmp_path: Path) -> None:
    wanted = found(corpus, tmp_path / "inline", LocalExecutor(0))
    assert found(corpus, tmp_path / "one", LocalExecutor(1)) == wanted


@pytest.mark.ray
@pytest.mark.parametrize("name", CLUSTER)
def test_the_same_bytes_on_a_cluster(corpus: Path, tmp_path: Path, cluster: str, name: str) -> None:
    if name == "xenna":
        pytest.importorskip("cosmos_xenna")
    wanted = found(corpus, tmp_path / "inline", LocalExecutor(0))
    assert found(corpus, tmp_path / "cluster", CLUSTER[name]()) == wanted


SCRIPT = """
import sys
from pathlib import Path
from gristmill import LocalExecutor, Pipeline
from tests.conformance.test_semantic_bytes import stages
corpus, out = map(Path, sys.argv[1:])
Pipeline("p", stages=stages(corpus, out, "1MB")).run(LocalExecutor(1), out.with_suffix(".run"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("segment", [1, 2, 3])
def test_killed_in_a_segment_and_started_again(corpus: Path, tmp_path: Path, segment: int) -> None:
    wanted = found(corpus, tmp_path / "inline", LocalExecutor(0))
    out = tmp_path / "killed"
    command = [sys.executable, "-c", SCRIPT, str(corpus), str(out)]
    process = subprocess.Popen(command, start_new_session=True)
    place = out.with_suffix(".run") / "segments" / str(segment)
    while process.poll() is None and not list(place.glob("*.runs")):
        time.sleep(0.002)
    assert process.poll() is None, "it was over before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(command, check=True)
    assert outputs(out) == wanted
