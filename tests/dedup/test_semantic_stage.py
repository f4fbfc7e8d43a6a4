"""Semantic deduplication: rows whose embeddings point in nearly the same direction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError
from gristmill.dedup import RankingStrategy, SemanticDeduplicationStage, SemanticDeduplicationWorkflow
from gristmill.dedup.semantic.cell_comparison import CellLinks
from gristmill.dedup.semantic.greedy_selection import kept_in_order
from gristmill.dedup.semantic.kmeans import CentroidCells, fit_centroids
from gristmill.text import JsonlReader, JsonlWriter

FIRST = {"ranking_strategy": {"metadata_cols": ["id"]}}


def at(*degrees: float) -> list[list[float]]:
    """Directions in a plane; 10 degrees are a cosine distance of 0.015, 20 of 0.06."""
    return [[float(np.cos(np.radians(one))), float(np.sin(np.radians(one)))] for one in degrees]


def planted(seed: int, groups: int, each: int, dim: int, noise: float) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.normal(size=(groups, dim)), each, axis=0)
    return rng.permutation(rows + noise * rng.normal(size=rows.shape)).astype(np.float32)


def kept(stage: Any, vectors: Any, batch: int = 7, **columns: list[Any]) -> list[int]:
    rows = [{"id": number, "embeddings": vector} for number, vector in enumerate(vectors)]
    rows = [{**row, **{name: values[index] for name, values in columns.items()}} for index, row in enumerate(rows)]
    tasks = [DocumentBatch(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=tasks)
    return [row["id"] for task in result for row in task.to_rows()]


def brute(vectors: Any, eps: float, greedy: bool = True) -> list[int]:
    """The definition: rows in order, each dropped that is near one before it that is kept."""
    rows = np.asarray(vectors, np.float64)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    near = rows @ rows.T >= 1 - eps - 1e-6
    found: list[int] = []
    for row in range(len(rows)):
        before = found if greedy else list(range(row))
        if not near[row, before].any():
            found.append(row)
    return found


@pytest.mark.parametrize(
    ("vectors", "options", "wanted"),
    [
        ([], {}, []),
        (at(0), {}, [0]),
        (at(0, 90, 180), {}, [0, 1, 2]),
        (at(*[30] * 20), {}, [0]),
        (at(0, 5, 90, 95), {"eps": 0.01}, [0, 2]),
        ([[3.0, 0.0], [0.5, 0.0], [0.0, 2.0]], {"eps": 0.0}, [0, 2]),  # only directions count
        (at(0, 5, 10, 15), {"eps": 0.005}, [0, 2]),  # 10 is near 5, which is dropped
        (at(0, 5, 10, 15), {"eps": 0.005, "greedy": False}, [0]),
        (at(0, 1, 90), {"n_clusters": 50}, [0, 2]),
        ([None, [1.0, 0.0], None, [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], {}, [0, 1, 2, 4, 5]),
        ([[], [1, 0], [2, 0], []], {}, [0, 1, 3]),
        ([None, None], {}, [0, 1]),
    ],
)
def test_rows_that_point_in_the_same_direction(vectors: Any, options: dict[str, Any], wanted: list[int]) -> None:
    assert kept(SemanticDeduplicationStage(**FIRST, **options), vectors) == wanted


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("clusters", [1, 12, "auto"])
def test_what_brute_force_finds(greedy: bool, clusters: Any) -> None:
    vectors = planted(1, 150, 4, 24, 0.25)
    stage = SemanticDeduplicationStage(
        eps=0.06, n_clusters=clusters, greedy=greedy, border=1.0, n_probe=12, num_partitions=3, **FIRST
    )
    wanted = brute(vectors, 0.06, greedy)
    assert 150 < len(wanted) < 500
    assert kept(stage, vectors, 97) == wanted


def test_a_border_of_one_misses_no_pair() -> None:
    """Rows everywhere, so that many pairs lie on both sides of a border."""
    rows = np.random.default_rng(3).normal(size=(1200, 3))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    cells = CentroidCells(fit_centroids(rows, 20, 1, 10, 1e-4), np.sqrt(2 * 0.02) / 2, 20)
    members: list[set[int]] = [set() for _ in range(20)]
    start = 0
    for home, row, other in cells.assign(rows):
        for number, cell in [*enumerate(home.tolist()), *zip(row.tolist(), other.tolist(), strict=True)]:
            members[cell].add(start + number)
        start += len(home)
    near = np.argwhere(np.triu(rows @ rows.T >= 0.98, 1)).tolist()
    assert len(near) > 1000
    assert all(any(u in some and v in some for some in members) for u, v in near)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"ranking_strategy": RankingStrategy(["score"])}, [2]),
        ({"ranking_strategy": RankingStrategy(["score"], ascending=False)}, [1]),
        ({"ranking_strategy": {"metadata_cols": ["name", "score"], "ascending": [False, True]}}, [3]),
        ({"ranking_strategy": RankingStrategy(["name"])}, [1]),
        ({"ranking_strategy": RankingStrategy(["day"], ascending=False)}, [2]),
    ],
)
def test_ranking_by_columns(options: dict[str, Any], wanted: list[int]) -> None:
    columns = {
        "score": [2.5, 7.0, -3.0, None],
        "name": ["b", "a\x00", "b", "ba"],
        "day": [None, *np.array(["2020-01-01", "2024-05-01", "2021-01-01"], "datetime64[D]").astype(object)],
    }
    assert kept(SemanticDeduplicationStage(**options), at(0, 1, 2, 1), **columns) == wanted


def test_hard_easy_and_random() -> None:
    """In one cluster, whose centre is at about 10 degrees."""
    vectors = at(0, 9, 24)
    assert kept(SemanticDeduplicationStage(eps=0.2, which_to_keep="hard"), vectors) == [2]
    assert kept(SemanticDeduplicationStage(eps=0.2, which_to_keep="easy"), vectors) == [1]
    assert kept(SemanticDeduplicationStage(eps=0.2, which_to_keep="easy", distance_metric="l2"), vectors) == [1]
    drawn = [
        kept(SemanticDeduplicationStage(eps=0.2, which_to_keep="random", random_state=seed), vectors)
        for seed in range(9)
    ]
    assert all(len(one) == 1 for one in drawn)
    assert len({one[0] for one in drawn}) == 3


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float64()),
        pa.list_(pa.float32(), 2),
        pa.list_(pa.float16()),
        pa.large_list(pa.float32()),
        pa.list_(pa.int8(), 2),
    ],
)
def test_any_kind_of_list(kind: pa.DataType) -> None:
    values = [[10, 0], [0, 10], None, [10, 0]]
    if pa.types.is_float16(kind.value_type):
        values = [None if row is None else [np.float16(one) for one in row] for row in values]
    batch = DocumentBatch(pa.table({"embeddings": pa.array(values, kind), "id": [0, 1, 2, 3]}))
    result = Pipeline("p", stages=[SemanticDeduplicationStage(**FIRST)]).run(
        LocalExecutor(0), initial_tasks=[batch, DocumentBatch(batch.data.slice(0, 0))]
    )
    assert [row["id"] for task in result for row in task.to_rows()] == [0, 1, 2]


def test_embeddings_that_cannot_be_meant_go_to_quarantine() -> None:
    vectors = [[1.0, 0.0], [float("nan"), 1.0], [float("inf"), 0.0], [1.0, 0.0, 0.0], [1.0, 0.01], [1.0, None]]
    table = pa.table({"id": range(6), "embeddings": pa.array(vectors, pa.list_(pa.float64()))})
    stage = SemanticDeduplicationStage(embedding_dim=2, **FIRST)
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=[DocumentBatch(table)], max_errors=10)
    assert [row["id"] for task in result for row in task.to_rows()] == [0]
    messages = {record.row["id"]: record.error for record in result.quarantined()}
    assert set(messages) == {1, 2, 3, 5}
    assert "NaN" in messages[1]
    assert "has 3 numbers, but embedding_dim is 2" in messages[3]
    with pytest.raises(GristmillError, match=r"2 numbers and of 3.*embedding_dim"):
        kept(SemanticDeduplicationStage(**FIRST), [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 1.5}, "eps is 1.5"),
        ({"n_clusters": 0}, "n_clusters is 0"),
        ({"which_to_keep": "best"}, "hard, easy, random"),
        ({"distance_metric": "l1"}, "'cosine' or 'l2'"),
        ({"border": 2}, "border is 2"),
        ({"ranking_strategy": {"metadata_cols": []}}, "metadata_cols"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SemanticDeduplicationStage(**options)


def test_a_column_without_lists_is_refused() -> None:
    with pytest.raises(GristmillError, match=r"needs lists of numbers in column 'embeddings', which holds string"):
        kept(SemanticDeduplicationStage(), ["a", "b"])


def test_a_cell_larger_than_memory() -> None:
    """Rows that others are compared with lie on disk; the links are the same."""
    rows = planted(5, 3000, 2, 8, 0.02)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = []
    for most in (2**30, 0):
        cell = CellLinks(0, 0.995, True, most)
        cell.add(rows)
        found.append([part.tolist() for part in cell.links()])
    assert found[0] == found[1]
    assert len(found[0][0]) >= 3000


@pytest.mark.parametrize("size", [60, 400])
def test_rows_are_kept_in_order(size: int) -> None:
    """Against the definition, for chains and for anything."""
    rng = np.random.default_rng(size)
    graphs = [np.stack([np.arange(size - 1), np.arange(1, size)], 1), np.sort(rng.integers(size, size=(size * 2, 2)))]
    for links in graphs:
        links = links[links[:, 0] < links[:, 1]]
        wanted: list[int] = []
        for row in range(size):
            if not set(links[links[:, 1] == row, 0].tolist()) & set(wanted):
                wanted.append(row)
        assert np.flatnonzero(kept_in_order(size, links[:, 0], links[:, 1])).tolist() == wanted


def test_the_cluster_table_and_the_counts(tmp_path: Path) -> None:
    lines = [{"name": f"n{number}", "embeddings": vector} for number, vector in enumerate(at(0, 5, 50, 7, 52, 170))]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stage = SemanticDeduplicationStage("name", eps=0.01, ranking_strategy=RankingStrategy(["name"]))
    stages = [JsonlReader(tmp_path / "in.jsonl"), stage, JsonlWriter(tmp_path / "out")]
    result = Pipeline("p", stages=stages).run(LocalExecutor(0), tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "clusters").to_pylist()
    assert [(row["id"], row["cluster"], row["kept"], row["partner"]) for row in table] == [
        ("n0", "n0", True, None),
        ("n1", "n0", False, "n0"),
        ("n3", "n0", False, "n0"),
        ("n2", "n2", True, None),
        ("n4", "n2", False, "n2"),
    ]
    similarity = {row["id"]: row["similarity"] for row in table}
    assert similarity["n1"] == pytest.approx(np.cos(np.radians(5)), abs=1e-6)
    assert similarity["n0"] is None
    counts = result.summary()[stage.name].counts
    assert counts["clusters"] == 2
    assert counts["sample_rows"] == counts["sample_rows_dropped"] == 3
    assert counts["estimated_recall"] == 1


def test_a_run_tells_when_it_misses_pairs() -> None:
    """Rows on a circle, in many clusters that are not compared with each other."""
    rows = at(*np.arange(0, 360, 1.5))
    stage = SemanticDeduplicationStage(eps=0.01, n_clusters=80, n_probe=1, **FIRST)
    with pytest.warns(RuntimeWarning, match=r"about \d+% of the sampled rows within eps=0.01 of a kept row were found"):
        few = kept(stage, rows, 100)
    every = SemanticDeduplicationStage(eps=0.01, n_clusters=80, n_probe=20, border=1.0, **FIRST)
    assert len(few) > len(kept(every, rows, 100))


def test_the_workflow_takes_what_scripts_of_others_give(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b", "c"], "embeddings": at(0, 1, 90)})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    found = SemanticDeduplicationWorkflow(
        str(tmp_path / "in"),
        str(tmp_path / "out"),
        n_clusters=2,
        cache_path=str(tmp_path / "cache"),
        input_filetype="parquet",
        which_to_keep="easy",
        max_iter=300,
        init="k-means||",
        oversampling_factor=2.0,
        pairwise_batch_size=1024,
        verbose=False,
    ).run(LocalExecutor(0))
    assert (found.documents, found.duplicates, found.clusters) == (3, 1, 1)
    assert pq.read_table(tmp_path / "out" / "duplicates").num_rows == 1
    with pytest.raises(TypeError, match="metric"):
        SemanticDeduplicationWorkflow("in", "out", metric="cosine")
