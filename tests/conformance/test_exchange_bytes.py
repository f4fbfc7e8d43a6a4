"""Exchanges give the same bytes whoever does the work and however the input is cut, and lose and double nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill import CountRows, KeyedStage, LocalExecutor, Pipeline, Repartition, Shuffle, Sort
from gristmill.dedup import ExactDeduplicationStage
from gristmill.text import JsonlReader, JsonlWriter
from tests.conformance.executor_params import CLUSTER

HERE = (LocalExecutor(0, fuse=False), 900)
WORKERS = {
    "shuffle": [(LocalExecutor(2), 2_000)],
    "sort": [(LocalExecutor(3), 2_000)],
    "reduce": [(LocalExecutor(2, fuse=False), 1_500)],
    "dedup": [(LocalExecutor(1), 3_000), (LocalExecutor(3), 1_500)],
}
"""All is tried here, in blocks of two sizes, and some with workers: each segment starts them anew, which takes time."""


class CountDomains(KeyedStage):
    key = "domain"
    num_partitions = 3

    def reduce(self, key: Any, rows: Any) -> dict[str, Any]:
        ids = [row["id"] for row in rows]
        return {"domain": key, "rows": len(ids), "first": ids[0], "last": ids[-1]}


class CountVectorised(KeyedStage):
    key = ("domain", "n")
    num_partitions = 2

    def process_groups(self, table: pa.Table) -> pa.Table:
        return table.group_by(["domain", "n"], use_threads=False).aggregate([([], "count_all"), ("id", "first")])


STAGES: dict[str, Any] = {
    "rows": lambda: Repartition(rows=37),
    "bytes": lambda: Repartition(bytes=600),
    "parts": lambda: Repartition(num_partitions=4),
    "shuffle": lambda: Shuffle(seed=5, num_partitions=3),
    "sort": lambda: Sort("n", num_partitions=3),
    "sort-mixed": lambda: Sort(["mixed", "id"], descending=True, num_partitions=4),
    "count": lambda: CountRows("mixed", num_partitions=2),
    "count-all": CountRows,
    "reduce": CountDomains,
    "groups": CountVectorised,
    "dedup": lambda: ExactDeduplicationStage(num_partitions=3, id_field="id"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exchanged")
    for number, rows in enumerate((120, 1, 60)):
        lines = [json.dumps(_row(number, index)) + "\n" for index in range(rows)]
        (folder / f"part-{number}.jsonl").write_text("".join(lines))
    (folder / "part-3.jsonl").write_text("")
    return folder


def _row(file: int, index: int) -> dict[str, Any]:
    row: dict[str, Any] = {"id": f"{file}-{index}", "text": f"text {index % 50}", "n": index % 9}
    row["domain"] = None if index % 11 == 0 else f"d{index * index % 5}"
    row["mixed"] = index % 4 if index % 2 else f"m{index % 3}"  # a column of two types
    if file == 2:
        row["n"] = row["n"] / 2
        row["late"] = [index]
    return row


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith("_")}


def rows_of(found: dict[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for raw in found.values() for line in raw.splitlines()]


def run(corpus: Path, out: Path, stage: Any, executor: Any, blocksize: int = 10**9) -> Any:
    stages = [JsonlReader(str(corpus), blocksize=blocksize), stage, JsonlWriter(str(out))]
    return Pipeline("exchanged", stages=stages).run(executor)


@pytest.mark.parametrize("name", STAGES)
def test_same_bytes(corpus: Path, tmp_path: Path, name: str) -> None:
    run(corpus, tmp_path / "one", STAGES[name](), LocalExecutor(0))
    one = contents(tmp_path / "one")
    assert not (tmp_path / "one.run" / "_tmp").exists()
    for number, (executor, blocksize) in enumerate([HERE, *WORKERS.get(name, [])]):
        run(corpus, tmp_path / str(number), STAGES[name](), executor, blocksize)
        assert contents(tmp_path / str(number)) == one
    _is_right(name, rows_of(one), one)


def _is_right(name: str, rows: list[dict[str, Any]], files: dict[str, bytes]) -> None:
    given = [_row(file, index) for file, count in enumerate((120, 1, 60)) for index in range(count)]
    ids = [row["id"] for row in given]
    sizes = [raw.count(b"\n") for raw in files.values()]
    if name in ("rows", "bytes", "parts"):
        assert [row["id"] for row in rows] == ids
        assert {"rows": sizes == [37] * 4 + [33], "bytes": 3 < len(sizes) < 20, "parts": sizes == [45, 45, 45, 46]}[
            name
        ]
    elif name == "shuffle":
        assert sorted(row["id"] for row in rows) == sorted(ids)
        assert [row["id"] for row in rows] != ids
    elif name == "sort":
        assert [row["id"] for row in rows] == [row["id"] for row in sorted(given, key=lambda row: row["n"])]
    elif name == "sort-mixed":
        assert len(rows) == len(given)
        keys = [(json.dumps(row["mixed"]), row["id"]) for row in rows]
        assert keys == sorted(keys, reverse=True)
    elif name == "count":
        assert {row["mixed"]: row["count"] for row in rows} == Counter(row["mixed"] for row in given)
    elif name == "count-all":
        assert rows == [{"count": 181}]
    elif name == "reduce":
        counted = Counter(row["domain"] for row in given)
        assert {row["domain"]: row["rows"] for row in rows} == counted
        for row in rows:
            mine = [one["id"] for one in given if one["domain"] == row["domain"]]
            assert (row["first"], row["last"]) == (mine[0], mine[-1])
    elif name == "groups":
        counted = Counter((row["domain"], row["n"]) for row in given)
        assert {(row["domain"], row["n"]): row["count_all"] for row in rows} == counted
    elif name == "dedup":
        seen = dict.fromkeys(row["text"] for row in given)
        assert [row["text"] for row in rows] == list(seen)
        assert [row["id"] for row in rows] == [f"0-{index}" for index in range(50)]


def test_two_exchanges_and_filters_between_are_one_run(corpus: Path, tmp_path: Path) -> None:
    stages = [
        JsonlReader(str(corpus)),
        ExactDeduplicationStage(),
        Shuffle(num_partitions=2),
        CountDomains(),
        JsonlWriter(str(tmp_path / "out")),
    ]
    pipeline = Pipeline("long", stages=stages)
    plan = str(pipeline.plan())
    assert "in 5 segments" in plan
    result = pipeline.run(LocalExecutor(0))
    summary = result.summary()
    assert summary.rows_in == 181
    assert summary["ExactDeduplicationStage"].dropped == 131
    assert summary["Shuffle"].rows_out == summary["CountDomains"].rows_in == 50
    assert sum(row["rows"] for row in rows_of(contents(tmp_path / "out"))) == 50


def test_without_a_writer_the_batches_of_the_last_segment_come_back(corpus: Path) -> None:
    result = Pipeline("p", stages=[JsonlReader(str(corpus)), Sort("n")]).run(LocalExecutor(1))
    values = [row["n"] for task in result for row in task.to_rows()]
    assert len(values) == 181
    assert values == sorted(values)


@pytest.mark.ray
@pytest.mark.parametrize("name", CLUSTER)
def test_same_bytes_on_a_cluster(corpus: Path, tmp_path: Path, cluster: str, name: str) -> None:
    if name == "xenna":
        pytest.importorskip("cosmos_xenna")
    stage = STAGES["dedup"]
    run(corpus, tmp_path / "here", stage(), LocalExecutor(0))
    run(corpus, tmp_path / "there", stage(), CLUSTER[name](), 3_000)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
