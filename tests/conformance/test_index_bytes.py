"""An index is the same whoever adds to it, and is read on every executor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import DedupIndex, ExactDeduplicationStage, FuzzyDeduplicationStage
from gristmill.text import JsonlReader, JsonlWriter
from tests.conformance.executor_params import CLUSTER, EXECUTORS

WORKERS = [
    pytest.param("local-2", marks=pytest.mark.slow),
    *(pytest.param(name, marks=pytest.mark.ray) for name in CLUSTER),
]


def texts(letter: str, first: int) -> str:
    rows = [
        {"id": f"{letter}{n}", "text": " ".join(f"{word}{n % 50 + first}" for word in "abcdefgh")} for n in range(70)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def snapshots(folder: Path, kind: str, executor: Any) -> tuple[dict[str, bytes], list[str]]:
    """What there is after two snapshots: the files of the index, and the rows of the second that are kept."""
    stage: Any = {"exact": ExactDeduplicationStage, "fuzzy": FuzzyDeduplicationStage}[kind]
    options = {"word_ngrams": 2} if kind == "fuzzy" else {}
    for name, place in (("old", LocalExecutor(0)), ("new", executor)):
        dedup = stage(id_field="id", num_partitions=3, extend=str(folder / "index"), **options)
        reader = JsonlReader(str(folder.parent / f"{name}.jsonl"), blocksize=3_000)
        result = Pipeline("p", stages=[reader, dedup, JsonlWriter(str(folder / name))]).run(place)
    index = folder / "index"
    files = {str(path.relative_to(index)): path.read_bytes() for path in index.rglob("*") if path.is_file()}
    return files, [json.loads(line)["id"] for path in result.files() for line in Path(path).read_text().splitlines()]


@pytest.mark.parametrize("kind", ["exact", "fuzzy"])
@pytest.mark.parametrize("name", WORKERS)
def test_the_same_index_on_every_executor(tmp_path: Path, request: pytest.FixtureRequest, name: str, kind: str) -> None:
    if name == "xenna":
        pytest.importorskip("cosmos_xenna")
    if name in CLUSTER:
        request.getfixturevalue("cluster")
    (tmp_path / "old.jsonl").write_text(texts("a", 0))
    (tmp_path / "new.jsonl").write_text(texts("b", 20))
    here = snapshots(tmp_path / "here", kind, LocalExecutor(0))
    assert here[1] == [f"b{n}" for n in range(30, 50)]
    assert snapshots(tmp_path / "there", kind, {**EXECUTORS, **CLUSTER}[name]()) == here
    assert len(DedupIndex(tmp_path / "there" / "index")) == 70
