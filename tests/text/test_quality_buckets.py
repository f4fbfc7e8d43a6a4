"""Buckets of quality: by rank over the corpus, the same whatever the workers, joined from several scores."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import PlanError
from gristmill.text import JsonlReader, JsonlWriter, QualityBuckets, Resample


def write_scores(folder: Path, rows: list[dict]) -> None:
    folder.mkdir()
    for number in range(3):
        lines = [json.dumps(row) for row in rows[number::3]]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")


def run(folder: Path, out: Path, *stages: object, workers: int = 0, blocksize: int | None = None) -> list[dict]:
    reader = JsonlReader(str(folder), blocksize=blocksize)
    Pipeline("buckets", stages=[reader, *stages, JsonlWriter(str(out))]).run(LocalExecutor(num_workers=workers))
    return [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    rows = [{"id": n, "a": float(draw.random() ** 3), "b": float(draw.normal())} for n in range(630)]
    write_scores(tmp_path / "in", rows)
    return tmp_path / "in"


def test_buckets_have_equal_shares_and_rise_with_the_score(scores: Path, tmp_path: Path) -> None:
    rows = run(scores, tmp_path / "out", QualityBuckets("a"))
    counts = Counter(row["quality_bucket"] for row in rows)
    assert sorted(counts) == list(range(21))
    assert set(counts.values()) == {30}
    ordered = [row["quality_bucket"] for row in sorted(rows, key=lambda row: row["a"])]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize(
    ("ensemble", "join"), [("max", max), ("min", min), ("mean", lambda two: int(sum(two) / 2 + 0.5))]
)
def test_an_ensemble_joins_the_numbers_of_models(ensemble: str, join, scores: Path, tmp_path: Path) -> None:
    alone = [run(scores, tmp_path / name, QualityBuckets(name)) for name in ("a", "b")]
    both = run(scores, tmp_path / "both", QualityBuckets(["a", "b"], ensemble=ensemble))
    for first, second, row in zip(*alone, both, strict=True):
        assert row["quality_bucket"] == join([first["quality_bucket"], second["quality_bucket"]])


def test_workers_and_blocks_change_nothing(scores: Path, tmp_path: Path) -> None:
    stage = QualityBuckets(["a", "b"], label_field="quality", num_partitions=4)
    found = [
        run(scores, tmp_path / str(number), stage, workers=workers, blocksize=blocksize)
        for number, (workers, blocksize) in enumerate([(0, None), (2, 2000), (1, 900)])
    ]
    assert found[0] == found[1] == found[2]
    assert {row["quality"] for row in found[0]} == {"low", "medium", "high"}


def test_labels_and_values(tmp_path: Path) -> None:
    write_scores(tmp_path / "in", [{"s": value} for value in (0.0, 0.24, 0.25, 0.5, 0.99, 1.0, 7.0, -3.0, None)])
    stage = QualityBuckets("s", buckets=4, by="value", label_field="name", labels={"bad": 0, "good": 2})
    rows = run(tmp_path / "in", tmp_path / "out", stage)
    found = {row["s"]: (row["quality_bucket"], row["name"]) for row in rows}
    assert found == {
        0.0: (0, "bad"), 0.24: (0, "bad"), 0.25: (1, "bad"), 0.5: (2, "good"), 0.99: (3, "good"), 1.0: (4, "good"),
        7.0: (4, "good"), -3.0: (0, "bad"), None: (None, None),
    }  # fmt: skip


def test_rows_are_resampled_by_bucket(scores: Path, tmp_path: Path) -> None:
    factors = Resample("quality", {"low": 0, "medium": 1, "high": 2})
    rows = run(scores, tmp_path / "out", QualityBuckets("a", label_field="quality"), factors)
    counts = Counter(row["quality"] for row in rows)
    assert counts == {"medium": 7 * 30, "high": 2 * 7 * 30}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buckets": 0}, "buckets is 0"),
        ({"ensemble": "sum"}, "ensemble is 'sum'"),
        ({"low": 1.0}, "low=1.0 must be below"),
    ],
)
def test_wrong_parameters_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises((ValueError, PlanError), match=message):
        QualityBuckets("a", **arguments)
