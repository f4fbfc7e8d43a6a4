"""Rejected duplicates: which row they are like, how much, and what of it rows, reports and `why` tell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill import Pipeline
from gristmill.core.errors import InputError
from gristmill.dedup import (
    ExactDeduplicationStage,
    FuzzyDeduplicationStage,
    SemanticDeduplicationStage,
    SimHashDeduplicationStage,
)
from gristmill.report.run_records import row_id
from gristmill.report.whatif import whatif
from gristmill.report.why import why
from gristmill.text import (
    JsonlReader,
    JsonlWriter,
    Modify,
    ScoreFilter,
    UrlRemover,
    WordCountFilter,
)
from tests.report.test_recorded_scores import HERE, pipeline, written


@pytest.fixture
def alike(tmp_path: Path) -> Path:
    """Texts of 60 words: d1 and d2 are the same, and d0 nearly; d3 is like no other."""
    folder = tmp_path / "alike"
    folder.mkdir()
    words = " ".join(f"word{n}" for n in range(60))
    texts = [words, f"{words} more", f"{words} more", "quite another text"]
    rows = [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def two_passes(**settings: Any) -> list[Any]:
    return [ExactDeduplicationStage(**settings), FuzzyDeduplicationStage(word_ngrams=5, threshold=0.75, **settings)]


@pytest.mark.parametrize("kept", [{}, {"rejected": True}, {"scores": True}, {"rejected": True, "scores": True}])
def test_why_names_the_partner_the_similarity_and_the_threshold(
    alike: Path, tmp_path: Path, kept: dict[str, bool]
) -> None:
    run = tmp_path / "run"
    pipeline(alike, tmp_path / "out", two_passes(id_field="id")).run(HERE, run_dir=run, **kept)
    [near], [same], [survivor] = (why(str(run), name) for name in ("d1", "d2", "d0"))
    assert (near.fate, near.dropped_by) == ("dropped", "FuzzyDeduplicationStage")
    assert near.reason == "similarity 0.98 to d0 is above the threshold of 0.75"
    assert (same.fate, same.dropped_by) == ("dropped", "ExactDeduplicationStage")
    assert same.reason == "equal to d1"
    assert (survivor.fate, survivor.reason) == ("kept", "")
    if kept:
        assert [(one.filter, one.threshold, one.kept) for one in near.scores] == [
            ("similarity", "threshold=0.75", False)
        ]
        assert near.scores[0].score == pytest.approx(56 / 57)


def test_tables_whose_stage_is_not_recorded_stay_apart(alike: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pipeline(alike, tmp_path / "out", two_passes(id_field="id")).run(HERE, run_dir=run)
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "memories": [{} for _ in plan["memories"]]}))
    for name, survivor in (("d1", "d0"), ("d2", "d1")):
        [story] = why(str(run), name)
        assert re.match(rf"similarity [\d.]+ to {survivor}\b|equal to {survivor}$", story.reason)
        assert story.cluster is not None
        assert (story.cluster["survivor"], story.cluster["size"]) == (survivor, 2)


@pytest.mark.parametrize("before", [[], [Modify(UrlRemover())]], ids=["copied", "spooled"])
def test_rejected_duplicates_have_a_score_and_a_partner(alike: Path, tmp_path: Path, before: list[Any]) -> None:
    stages = [*before, *two_passes(id_field="id")]
    result = pipeline(alike, tmp_path / "out", stages).run(HERE, run_dir=tmp_path / "run", rejected=True)
    rejected = {row["id"]: row for path in result.rejected() for row in pq.read_table(path).to_pylist()}
    near, same = rejected["d1"], rejected["d2"]
    outcome = [f"rejected_{name}" for name in ("by", "filter", "score", "threshold")]
    assert [same[name] for name in outcome] == ["ExactDeduplicationStage", "similarity", 1.0, "threshold=1"]
    assert [near[name] for name in outcome[:2]] == ["FuzzyDeduplicationStage", "similarity"]
    assert [near[name] for name in outcome[2:]] == [pytest.approx(56 / 57), "threshold=0.75"]
    found = [near[f"rejected_{name}"] for name in ("id", "cluster", "partner", "similarity")]
    assert found == ["d1", "d0", "d0", pytest.approx(56 / 57)]
    assert list(near)[:3] == ["id", "text", "rejected_id"]


OWN = {"partner": "Ann", "cluster": 7, "similarity": 0.123, "rejected_partner": True}
"""Columns of the user's with the names of ours."""


@pytest.mark.parametrize("before", [[], [Modify(UrlRemover())]], ids=["copied", "spooled"])
@pytest.mark.parametrize("own", [{**OWN, "similarity": "high"}, OWN], ids=["text", "number"])
def test_what_is_said_of_rejected_rows_depends_on_no_block(
    tmp_path: Path, before: list[Any], own: dict[str, Any]
) -> None:
    rows: list[dict[str, Any]] = [{"id": n, "text": "the same" if n % 2 else f"text {n}"} for n in range(40)]
    rows += [{"id": 40 + n, "text": f"text {n % 4}", **own} for n in range(8)]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    found, kept = [], []
    for number, size in enumerate([None, 1500, 600, 100]):
        out, run = tmp_path / f"out{number}", tmp_path / f"run{number}"
        stages = [JsonlReader(file, blocksize=size), *before, ExactDeduplicationStage(), JsonlWriter(out)]
        [path] = Pipeline("p", stages=stages).run(HERE, run_dir=run, rejected=True).rejected()
        found.append(pq.read_table(path))
        kept.append(written(out))
    assert all(table.equals(found[0]) for table in found)
    assert all(texts == kept[0] for texts in kept)
    first, last = found[0].slice(0, 1).to_pylist()[0], found[0].to_pylist()[-1]
    assert (first["similarity"], first["rejected_similarity"], first["rejected_id"]) == (
        None,
        1.0,
        row_id("in.jsonl", first["rejected_position"]),
    )
    assert [last[name] for name in list(OWN)[:3]] == [own[name] for name in list(OWN)[:3]]
    assert last["rejected_partner"] == last["rejected_cluster"] != first["rejected_cluster"]


def test_columns_of_the_users_that_have_the_names_of_ours_are_kept(tmp_path: Path) -> None:
    rows = [{"id": n, "text": f"text {n // 2}", **OWN} for n in range(4)]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline(file, tmp_path / "out", [Modify(UrlRemover()), ExactDeduplicationStage()]).run(HERE)
    kept = [json.loads(line) for text in written(tmp_path / "out").values() for line in text.splitlines()]
    assert kept == [rows[0], rows[2]]


@pytest.mark.parametrize("column", ["id", "cluster", "other"])
@pytest.mark.parametrize("values", [(3, None), (3, "three"), ({"a": 1}, "three"), ([1], 0.5), (3, ["x", 1])])
def test_columns_may_have_other_types_in_other_files(tmp_path: Path, column: str, values: tuple[Any, Any]) -> None:
    folder, run = tmp_path / "in", tmp_path / "run"
    folder.mkdir()
    for name, value in zip("ab", values, strict=True):
        row = {"text": "the same"} if value is None else {"text": "the same", column: value}
        (folder / f"{name}.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    made = pipeline(folder, tmp_path / "out", [ExactDeduplicationStage()])
    made.run(HERE, run_dir=run, rejected=True, scores=True)
    facts = json.loads((run / "report.json").read_text())["duplicates"]
    assert [member["text"] for member in facts["examples"][0]["members"]] == ["the same"] * 3
    [story] = why(str(run), "b.jsonl:0")
    survivor = row_id("a.jsonl", 0)
    assert story.reason == f"equal to {survivor}"
    if column == "id" and isinstance(values[0], int):
        stories = why(str(run), str(values[0]))
        assert {story.file for story in stories} == {"a.jsonl"}


@pytest.mark.parametrize(
    ("stage", "threshold", "limit", "ending"),
    [
        (
            SimHashDeduplicationStage(radius=6, word_ngrams=2),
            "radius=6, at least 0.90625",
            0.90625,
            " is above the threshold of 0.90625",
        ),
        (
            SemanticDeduplicationStage(eps=0.1, n_clusters=1),
            "eps=0.1, at least 0.9",
            0.9,
            " is above the threshold of 0.90",
        ),
        (ExactDeduplicationStage("kind"), "threshold=1", 1.0, "_0"),
    ],
    ids=["simhash", "semantic", "exact"],
)
def test_a_limit_is_told_in_one_way(tmp_path: Path, stage: Any, threshold: str, limit: float, ending: str) -> None:
    words = " ".join(f"word{n}" for n in range(300))
    rows = [{"text": f"{words}{' x' * n}", "embeddings": [1.0, n / 100], "kind": "one"} for n in range(2)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run"
    pipeline(tmp_path / "in.jsonl", tmp_path / "out", [stage]).run(HERE, run_dir=run, rejected=True)
    [row] = pq.read_table(run / "rejected").to_pylist()
    [story] = why(str(run), row["rejected_id"])
    assert row["rejected_threshold"] == story.scores[0].threshold == threshold
    assert story.reason.endswith(ending)
    facts = json.loads((run / "report.json").read_text())["stages"]
    assert [one["limits"] for one in facts if one["dropped"]] == [{"similarity": [limit]}]


def test_what_if_takes_from_the_run_what_is_like_another(alike: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    stages = [ScoreFilter(WordCountFilter(min_words=2)), *two_passes()]
    pipeline(alike, tmp_path / "out", stages).run(HERE, run_dir=run, scores=True)
    found = whatif(str(run), {"WordCountFilter.min_words": 10})
    assert (found.before.rows, found.after.rows) == (2, 1)
    assert "not known: what ExactDeduplicationStage, FuzzyDeduplicationStage would drop" in found.notes[-1]
    assert not found.exact
    with pytest.raises(InputError, match="cannot be re-evaluated from recorded scores"):
        whatif(str(run), {"FuzzyDeduplicationStage.threshold": 0.9})
