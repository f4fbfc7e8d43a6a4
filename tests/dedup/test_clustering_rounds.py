"""Clusters that do not fit into memory are made in rounds, and are those that one worker would have made."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.arrow.hash_partitioning import LAYOUT_VERSION
from gristmill.core.errors import AccountingError
from gristmill.core.plan.planner import Plan
from gristmill.core.records.stage_identity import describe_plan, describe_stage
from gristmill.core.records.value_identity import identity_hash
from gristmill.dedup import FuzzyDeduplicationStage
from gristmill.dedup.columns.arrow_numpy import from_numbers
from gristmill.dedup.fuzzy import cluster_verdicts, clustering_rounds
from gristmill.dedup.fuzzy.cluster_verdicts import ClusterVerdicts
from gristmill.dedup.fuzzy.clustering_rounds import ClusteringRounds
from gristmill.dedup.fuzzy.exchange_rows import (
    LINK,
    NODE,
    ORDER,
    RANK,
    TEXT,
    TRUTH,
    make_rows,
    pack_links,
    select_kind,
    unpack,
)
from gristmill.dedup.signatures.document_sketch import buckets_of
from gristmill.io.exchange import exchange as exchanges
from gristmill.text import JsonlReader, JsonlWriter

# -- any graph -----------------------------------------------------------------------------------------------

numbers = st.integers(-12, 12) | st.integers(-(2**63), 2**63 - 1)
graphs = st.lists(st.tuples(numbers, numbers, st.sampled_from([0.8, 0.9, 1.0])), max_size=30)
PATH = [(number, number + 1, 0.8) for number in range(-20, 20)]
STAR = [(0, number, 0.9) for number in range(1, 60)]


def tables(edges: list[tuple[int, int, float]], size: int) -> list[DocumentBatch]:
    """Rows and links as `Compare` gives them, in batches."""
    pairs = {(min(u, v), max(u, v)): s for u, v, s in edges if u != v}
    nodes = np.array(sorted({node for pair in pairs for node in pair}), np.int64)
    count = len(nodes)
    about: dict[str, Any] = {
        NODE: from_numbers(nodes),
        RANK: pa.array([[None, 1.0, 2.0][int(node) % 3] for node in nodes], pa.float64()),
        ORDER: pa.array([int(node) % 2 for node in nodes], pa.int64()),
        "id": pa.array([f"row {node}" for node in nodes], pa.string()),
        "__task__": pa.array([f"a{int(node) % 2}.{int(node) % 13}" for node in nodes], pa.string()),
        "__row__": pa.array(range(count), pa.int64()),
    }
    u, v = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    scores = np.array(list(pairs.values()), np.float64)
    rows = pa.concat_tables(
        [
            make_rows(TEXT, buckets_of(nodes), **about),
            pack_links(LINK, u, v, scores),
            pack_links(TRUTH, np.append(u, 1), np.append(v, 99), np.append(scores, 0.85)),
        ]
    )
    return [DocumentBatch(rows.slice(start, size)) for start in range(0, rows.num_rows, size)]


def judged(tasks: list[DocumentBatch], held: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    stage = ClusterVerdicts("exact", 0.8, 20, 9)
    stage.name, stage.num_partitions = "clusters", 2
    with patch.object(clustering_rounds, "HELD_BYTES", held):
        result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=tasks)
    found = [row for task in result for row in task.to_rows()]
    for row in found:
        row.pop("__position__", None)
    return sorted(found, key=lambda row: row["id"]), result.summary()["clusters"].counts


@settings(max_examples=6, deadline=None)
@given(graphs, st.integers(1, 40))
@example([], 5)
@example(PATH, 7)
@example(STAR, 100)
def test_rounds_give_the_verdicts_of_one_worker(edges: list[tuple[int, int, float]], size: int) -> None:
    tasks = tables(edges, size)
    wanted, counts = judged(tasks, 10**9)
    found, result = judged(tasks, 0)
    assert found == wanted
    assert result == pytest.approx(counts)


def plainly(edges: list[tuple[int, int, float]]) -> dict[str, tuple[bool, str, str | None, float | None]]:
    """By definition: whether each row of `tables` is kept, its cluster, its partner, and their similarity."""
    scores = {pair: s for u, v, s in edges if u != v for pair in ((u, v), (v, u))}
    nodes = sorted({node for pair in scores for node in pair})
    root = {node: node for node in nodes}
    for _ in nodes:
        for u, v in scores:
            root[u] = root[v] = min(root[u], root[v])
    rows = {node: row for row, node in enumerate(nodes)}

    def place(node: int) -> tuple[float, int, int, int]:
        return -[-np.inf, 1.0, 2.0][node % 3], node % 2, node % 13, rows[node]

    found: dict[str, tuple[bool, str, str | None, float | None]] = {}
    for node in nodes:
        keeper = min((other for other in nodes if root[other] == root[node]), key=place)
        near = [(other != keeper, -score, other) for (one, other), score in scores.items() if one == node]
        _, score, partner = min(near)
        result = (True, f"row {keeper}", None, None)
        found[f"row {node}"] = result if keeper == node else (False, f"row {keeper}", f"row {partner}", -score)
    return found


@settings(max_examples=12, deadline=None)
@given(graphs, st.integers(1, 9), st.integers(1, 9), st.integers(1, 40))
@example(PATH, 1, 3, 7)
@example(STAR, 2, 1, 10)
@example([(u, v, 0.8 + (u + v) % 3 / 10) for u in range(12) for v in range(u)], 7, 5, 4)
def test_pairs_that_are_read_bit_by_bit_give_the_same(
    edges: list[tuple[int, int, float]], links: int, rows: int, size: int
) -> None:
    edges = list({(min(u, v), max(u, v)): (u, v, s) for u, v, s in edges}.values())
    tasks = tables(edges, size)
    with patch.object(cluster_verdicts, "LINKS_AT_ONCE", links), patch.object(cluster_verdicts, "ROWS_AT_ONCE", rows):
        found, result = judged(tasks, 10**9)
    names = ("keep", "cluster", "partner", "similarity")
    assert {row["id"]: tuple(row[name] for name in names) for row in found} == plainly(edges)
    wanted, counts = judged(tasks, 10**9)
    assert found == wanted
    assert result == counts


@pytest.mark.parametrize("links", [1, 7, 30, 31, 100])
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_no_more_pairs_are_looked_at_together_than_may_be(
    links: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = select_kind(tables(PATH[:15], 1000)[0].data, LINK)
    pieces = [rows.slice(start, size) for start in range(0, rows.num_rows, size)]
    nodes = np.arange(-20, -4)
    monkeypatch.setattr(cluster_verdicts, "LINKS_AT_ONCE", links)
    found = list(cluster_verdicts._links(pieces, nodes))
    assert [len(one) for one, _, _ in found] == [links] * (30 // links) + [30 % links] * (30 % links > 0)
    one, other = (np.concatenate(side) for side in list(zip(*found, strict=True))[:2])
    assert np.stack([nodes[one], nodes[other]], axis=1).tolist() == unpack(rows, 3)[:, :2].tolist()


def test_links_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = [(u, v, 0.9) for u in range(60) for v in range(u)]
    rows = tables(edges, 1000)[0].data
    tasks = [DocumentBatch(pa.concat_tables([select_kind(rows, kind) for kind in (TEXT, LINK)]))]
    monkeypatch.setattr(clustering_rounds.SmallStar, "star", lambda *_: pytest.fail("a round was made"))
    assert len(judged(tasks, 10_000)[0]) == 60  # which have 1,770 links, of 48 bytes


def test_a_partition_is_not_read_for_rows_that_a_step_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Any, piece: pa.Table) -> pa.Table:
        return pytest.fail(f"{type(self).__name__} has none")

    wanted = judged(tables(PATH, 1000), 0)[0]
    monkeypatch.setattr(clustering_rounds.SortedRound, "rows_to_pass_on", never)
    assert judged(tables(PATH, 1000), 0)[0] == wanted


def test_rounds_have_partitions_for_what_they_pass_on() -> None:
    made = ClusteringRounds("clusters", None, 0.5)
    for exchange in (made.links, made.stars, made.keepers):
        exchange.set_input_bytes(2**33)
        assert exchange.partitions == 32
        exchange.set_input_bytes(None)
        assert exchange.partitions == 16


def test_blocks_may_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tables([*PATH[:12], *STAR[:15], *[(-40 - n, -41 - n, 0.9) for n in range(4)]], 1000)
    wanted = judged(tasks, 10**9)
    cut = clustering_rounds.tables_of_size
    monkeypatch.setattr(clustering_rounds, "tables_of_size", lambda pieces: cut(pieces, 200))
    found, result = judged(tasks, 0)
    assert found == wanted[0]
    assert result == pytest.approx(wanted[1])


# -- in a run ------------------------------------------------------------------------------------------------


def write(folder: Path) -> Path:
    """Chains of texts, of which each is like the next one, and copies; in two files."""
    rng = random.Random(5)
    chains = [[f"w{rng.randrange(10**6)}" for _ in range(150)] for _ in range(6)]
    texts = [" ".join(words[start : start + 100]) for start in range(0, 50, 2) for words in chains]
    texts += texts[:20] + [f"only once {number}" for number in range(10)]
    (folder / "in").mkdir()
    for part in range(2):
        rows = [{"id": n, "text": text, "score": n % 7} for n, text in enumerate(texts) if n // 6 % 2 == part]
        (folder / "in" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "in"


def run(
    source: Path, out: Path, run_dir: Path | None = None, **options: Any
) -> tuple[Any, list[Any], dict[str, float]]:
    stage = FuzzyDeduplicationStage(word_ngrams=3, threshold=0.8, id_field="id", num_partitions=3, **options)
    pipeline = Pipeline("p", stages=[JsonlReader(source), stage, JsonlWriter(out)])
    counts = pipeline.run(LocalExecutor(0), run_dir).summary()["FuzzyDeduplicationStage"].counts
    clusters = pq.read_table((run_dir or out.with_suffix(".run")) / "clusters").sort_by("id").to_pylist()
    return {path.name: path.read_bytes() for path in out.glob("*.jsonl")}, clusters, counts


@pytest.mark.parametrize(
    ("keep", "memory_gb"), [pytest.param("first", 1e-5, marks=pytest.mark.slow), ("highest", 1e-4)]
)
def test_the_same_bytes_with_little_memory(tmp_path: Path, keep: str, memory_gb: float) -> None:
    source = write(tmp_path)
    options: dict[str, Any] = {"keep": keep, "score_field": "score" if keep == "highest" else None}
    files, clusters, counts = run(source, tmp_path / "one", **options)
    assert counts["clusters"] == 6
    assert counts["largest_cluster"] > 25  # longer than what was compared reaches
    few = run(source, tmp_path / "two", tmp_path / "run", memory_gb=memory_gb, **options)
    assert list((tmp_path / "run" / "segments" / "6").iterdir())  # rounds were needed
    assert few[:2] == (files, clusters)
    assert few[2] == pytest.approx(counts)


def test_a_run_that_stops_between_rounds_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path)
    wanted = run(source, tmp_path / "one")
    calls = {"now": 0, "last": 5}
    star = clustering_rounds.SmallStar.star

    def counted(self: Any, pairs: pa.Table) -> Any:
        calls["now"] += 1
        if calls["now"] > calls["last"]:
            raise KeyboardInterrupt
        return star(self, pairs)

    monkeypatch.setattr(clustering_rounds.SmallStar, "star", counted)
    monkeypatch.setattr(clustering_rounds, "HELD_BYTES", 0)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(source, tmp_path / "two", tmp_path / "run")
        calls["now"] = 0
    calls["last"] = 10**9
    assert run(source, tmp_path / "two", tmp_path / "run")[:2] == wanted[:2]
    assert (tmp_path / "run" / "segments" / "6").exists()


def test_rows_of_an_index_are_partners_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path)
    options: dict[str, Any] = {"word_ngrams": 3, "id_field": "id", "num_partitions": 2}
    old = FuzzyDeduplicationStage(**options, extend=str(tmp_path / "index"))
    Pipeline("p", stages=[JsonlReader(source / "0.jsonl"), old, JsonlWriter(tmp_path / "old")]).run(LocalExecutor(0))
    found = []
    for name, held in (("one", 10**9), ("two", 0)):
        monkeypatch.setattr(clustering_rounds, "HELD_BYTES", held)
        new = FuzzyDeduplicationStage(**options, against=[str(tmp_path / "index")])
        reader = JsonlReader(source / "1.jsonl")
        Pipeline("p", stages=[reader, new, JsonlWriter(tmp_path / name)]).run(LocalExecutor(0))
        table = pq.read_table(tmp_path / f"{name}.run" / "clusters").sort_by("id")
        found.append((table.to_pylist(), [path.read_bytes() for path in (tmp_path / name).glob("*.jsonl")]))
    assert found[0] == found[1]
    assert any(row["snapshot"] for row in found[0][0])


def test_of_several_known_rows_in_one_cluster_the_same_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known rows that are not alike, and a new one between each two of them."""
    words = [[f"{group}-{word}" for word in range(40)] for group in range(12)]
    old = [{"id": f"old {n}{s}", "text": " ".join(one[s : s + 30])} for n, one in enumerate(words) for s in (0, 10)]
    new = [{"id": f"new {n}", "text": " ".join(one[5:35])} for n, one in enumerate(words)]
    for name, rows in (("old", old), ("new", new)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(name: str, out: str, **options: Any) -> list[dict[str, Any]]:
        stage = FuzzyDeduplicationStage(word_ngrams=1, threshold=0.6, id_field="id", **options)
        stages = [JsonlReader(tmp_path / f"{name}.jsonl"), stage, JsonlWriter(tmp_path / out)]
        Pipeline("p", stages=stages).run(LocalExecutor(0))
        return pq.read_table(tmp_path / f"{out}.run" / "clusters").sort_by("id").to_pylist()

    index = str(tmp_path / "index")
    assert run("old", "first", extend=index) == []
    wanted = run("new", "at once", against=[index])
    assert len(wanted) == len(new)
    monkeypatch.setattr(clustering_rounds, "HELD_BYTES", 0)
    for partitions in (1, 4):
        assert run("new", f"in rounds {partitions}", against=[index], num_partitions=partitions) == wanted


# -- what another version has left ---------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [False, True])
def test_every_segment_depends_on_where_rows_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    source = write(tmp_path)

    def plan() -> Plan:
        stage = FuzzyDeduplicationStage(extend=str(tmp_path / "index") if indexed else None)
        return Pipeline("p", stages=[JsonlReader(source), stage, JsonlWriter(tmp_path / "out")]).plan()

    def identities() -> list[str]:
        return [identity_hash(describe_plan(segment)) for segment in plan().segments]

    writers = [stage for stage in plan().all_stages if isinstance(stage, exchanges.WriteShuffleFiles)]
    assert {"SpoolExchange", "SpoolSizedExchange", "LinkExchange", "ReducedExchange", "StarExchange"} <= {
        type(stage.exchange).__name__ for stage in writers
    }
    assert {describe_stage(stage)["exchange"]["layout"] for stage in writers} == {LAYOUT_VERSION}
    before = identities()
    assert identities() == before
    monkeypatch.setattr(exchanges, "LAYOUT_VERSION", LAYOUT_VERSION + 1)
    assert not set(before) & set(identities())


def test_links_of_rows_that_are_not_there_are_an_error() -> None:
    rows = tables([(1, 2, 0.9), (2, 3, 0.9), (7, 8, 0.9)], 1000)[0].data
    texts, links = select_kind(rows, TEXT), select_kind(rows, LINK)
    stage = ClusterVerdicts("exact", 0.8, 20, 9)
    assert sum(map(len, stage.verdicts_in_memory([[texts]], lambda: [links]))) == 5
    for known in (texts.slice(0, 4), texts.slice(1), texts.slice(0, 0)):
        with pytest.raises(AccountingError, match="similar pairs name a row that was not sent"):
            list(stage.verdicts_in_memory([[known]], lambda: [links]))
    with pytest.raises(AccountingError, match="6 of 6 similar pairs name .* number [12378]; 0 rows were sent"):
        list(stage.verdicts_in_memory([], lambda: [links]))
    assert not list(stage.verdicts_in_memory([], list))
