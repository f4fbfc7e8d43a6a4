"""What-if where filters have several rules, follow one another, or cannot be known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, Route
from gristmill.core.row_sampling import Sample
from gristmill.report.run_records import Records
from gristmill.report.score_reuse import with_recorded_scores
from gristmill.report.whatif import WhatIf, whatif
from gristmill.report.why import why
from gristmill.text import (
    C4QualityFilter,
    DocumentFilter,
    Filter,
    FineWebQualityFilter,
    GopherQualityFilter,
    JsonlReader,
    JsonlWriter,
    Modify,
    NonAlphaNumericFilter,
    RepeatingTopNGramsFilter,
    ScoreFilter,
    UrlRemover,
    WordCountFilter,
)

pytestmark = pytest.mark.filterwarnings("ignore:stage .* is made for English")
HERE = LocalExecutor(0)


class Choosy(DocumentFilter):
    """A filter of a user, with a decision of its own and no score for some."""

    def __init__(self, least: int = 5, most: int = 100, unknown: bool = True, unit: int = 1) -> None:
        self.least, self.most, self.unknown, self.unit = least, most, unknown, unit

    def score_document(self, text: str) -> int | None:
        return len(text.split()) // self.unit if "{" not in text else None

    def keep_document(self, score: Any) -> bool:
        return self.unknown if score is None else self.least <= score <= self.most


class Dynamic(Choosy):
    def score_document(self, text: str) -> int | None:
        return len(text.split()) // int(vars(self)["unit"])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    sentence = "The mill of the village is old, and people have to walk there with their grain. "
    parts = [
        (sentence * (n % 13), "A { is on this line.\n" * (n % 4 == 0), "# " * (n % 7), "grist\n" * (n % 5))
        for n in range(80)
    ]
    texts = ["\n".join(part) for part in parts]
    rows = [{"id": n, "text": text, "language": ("en", "de")[n % 2]} for n, text in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def kept(place: Path, stages: Sequence[Any]) -> int:
    result = Pipeline("again", stages=[JsonlReader(place / "in.jsonl"), *stages]).run(HERE)
    return sum(task.num_items for task in result)


def asked(place: Path, stages: Sequence[Any], setting: str, value: Any) -> WhatIf:
    pipeline = Pipeline("one", stages=[JsonlReader(place / "in.jsonl"), *stages])
    pipeline.run(HERE, place / "run", scores=True)
    return whatif(str(place / "run"), {setting: value})


CHAINS: list[tuple[list[Any], str, Any, list[Any]]] = [
    (
        [ScoreFilter(GopherQualityFilter())],
        "GopherQualityFilter.min_doc_words",
        120,
        [ScoreFilter(GopherQualityFilter(120))],
    ),
    (
        [ScoreFilter([GopherQualityFilter(), FineWebQualityFilter()])],
        "FineWebQualityFilter.line_punct_thr",
        0.5,
        [ScoreFilter([GopherQualityFilter(), FineWebQualityFilter(0.5)])],
    ),
    (
        [ScoreFilter(C4QualityFilter()), ScoreFilter(GopherQualityFilter())],
        "C4QualityFilter.filter_curly_bracket",
        False,
        [ScoreFilter(C4QualityFilter(filter_curly_bracket=False)), ScoreFilter(GopherQualityFilter())],
    ),
    (
        [ScoreFilter(GopherQualityFilter(), invert=True)],
        "GopherQualityFilter.min_doc_words",
        20,
        [ScoreFilter(GopherQualityFilter(20), invert=True)],
    ),
    (
        [ScoreFilter(GopherQualityFilter())],
        "ScoreFilter.invert",
        True,
        [ScoreFilter(GopherQualityFilter(), invert=True)],
    ),
    (
        [ScoreFilter(WordCountFilter(60), score_field="n"), Filter(WordCountFilter(0, 120), "n")],
        "WordCountFilter#1.min_words",
        10,
        [ScoreFilter(WordCountFilter(10), score_field="n"), Filter(WordCountFilter(0, 120), "n")],
    ),
    (
        [ScoreFilter(WordCountFilter(60), score_field="n"), Filter(lambda n: n < 130, "n")],
        "WordCountFilter.min_words",
        90,
        [ScoreFilter(WordCountFilter(90), score_field="n"), Filter(lambda n: n < 130, "n")],
    ),
    ([ScoreFilter(Choosy())], "Choosy.least", 50, [ScoreFilter(Choosy(50))]),
    ([ScoreFilter(Choosy(8, 60))], "Choosy.unknown", False, [ScoreFilter(Choosy(8, 60, unknown=False))]),
    ([ScoreFilter(Dynamic())], "Dynamic.least", 50, [ScoreFilter(Dynamic(50))]),
    ([Sample(0.5)], "Sample.fraction", 0.2, [Sample(0.2)]),
]


@pytest.mark.parametrize(
    ("stages", "setting", "value", "again"), CHAINS, ids=lambda one: one if type(one) is str else ""
)
def test_whatif_is_exact(place: Path, stages: list[Any], setting: str, value: Any, again: list[Any]) -> None:
    found = asked(place, stages, setting, value)
    known = "Dynamic" not in setting
    truth = kept(place, again)
    if known:
        assert (found.exact, found.after.rows) == (True, truth)
    assert found.before.rows != truth
    assert found.after.rows <= truth <= found.after.rows + found.unknown.rows


@pytest.mark.parametrize(
    ("stages", "setting", "value"),
    [
        ([ScoreFilter(Choosy())], "Choosy.unit", 7),
        ([ScoreFilter(Dynamic())], "Dynamic.unit", 7),
        ([ScoreFilter(WordCountFilter(60, 120))], "ScoreFilter.text_field", "language"),
        ([ScoreFilter(NonAlphaNumericFilter()), ScoreFilter(WordCountFilter(60))], "WordCountFilter.lang", "ja"),
        ([Sample(0.5)], "Sample.seed", 9),
    ],
)
def test_a_parameter_that_scores_depend_on_is_not_known(
    place: Path, stages: list[Any], setting: str, value: Any
) -> None:
    found = asked(place, stages, setting, value)
    assert not found.exact
    assert found.unknown.rows
    assert any("not known" in note or "may be kept" in note for note in found.notes)


def test_a_filter_of_scores_that_would_be_different_is_not_known(place: Path) -> None:
    stages = [ScoreFilter(WordCountFilter(1), score_field="n"), Filter(lambda n: n > 60, "n")]
    found = asked(place, stages, "WordCountFilter.lang", "ja")
    assert (found.exact, found.after.rows) == (False, 0)
    assert found.unknown.rows > found.before.rows  # also rows that the second filter has dropped


def test_rows_that_later_filters_have_not_met_are_counted_apart(place: Path) -> None:
    stages = [ScoreFilter(GopherQualityFilter()), Modify(UrlRemover()), ScoreFilter(WordCountFilter(1, 100))]
    found = asked(place, stages, "GopherQualityFilter.min_doc_words", 20)
    again = [ScoreFilter(GopherQualityFilter(20)), *stages[1:]]
    assert not found.exact
    assert found.after.rows < kept(place, again) <= found.after.rows + found.unknown.rows


def test_a_branch_says_nothing_of_rows_that_were_dropped_before_it(place: Path) -> None:
    branches = {
        "en": [ScoreFilter(WordCountFilter(1, 100)), JsonlWriter(place / "en")],
        "de": [ScoreFilter(WordCountFilter(20)), JsonlWriter(place / "de")],
    }
    found = asked(
        place,
        [ScoreFilter(GopherQualityFilter()), Route("language", branches)],
        "GopherQualityFilter.min_doc_words",
        20,
    )
    branches = {
        "en": [ScoreFilter(WordCountFilter(1, 100)), JsonlWriter(place / "en2")],
        "de": [ScoreFilter(WordCountFilter(20)), JsonlWriter(place / "de2")],
    }
    pipeline = [JsonlReader(place / "in.jsonl"), ScoreFilter(GopherQualityFilter(20)), Route("language", branches)]
    Pipeline("again", stages=pipeline).run(HERE)
    truth = sum(
        len(path.read_text().splitlines()) for name in ("en2", "de2") for path in (place / name).glob("*.jsonl")
    )
    assert found.before.rows < truth
    assert found.after.rows <= truth <= found.after.rows + found.unknown.rows


@pytest.mark.parametrize("kind", ["scores", "rejected"])
def test_why_names_the_rule_its_number_and_its_limit(place: Path, kind: str) -> None:
    stages = [JsonlReader(place / "in.jsonl"), ScoreFilter(GopherQualityFilter()), JsonlWriter(place / "out")]
    Pipeline("one", stages=stages).run(HERE, place / "run", scores=kind == "scores", rejected=kind == "rejected")
    [story] = why(str(place / "run"), "1")
    assert (story.dropped_by, story.reason) == ("GopherQualityFilter", "17 words, fewer than min_doc_words=50")


def test_each_rule_of_a_changed_stage_is_counted(place: Path) -> None:
    first = [ScoreFilter([WordCountFilter(10), GopherQualityFilter(min_doc_words=40)])]
    then = [ScoreFilter([WordCountFilter(10), GopherQualityFilter(min_doc_words=90)])]
    answer = asked(place, first, "GopherQualityFilter.min_doc_words", 90)
    pipeline = Pipeline("two", stages=[JsonlReader(place / "in.jsonl"), *then])
    pipeline.run(HERE, place / "again")
    (stage,) = answer.stages
    counts = [
        {
            f"{stage}/GopherQualityFilter/{one['rule']}": one["dropped"]
            for line in json.loads((run / "report.json").read_text())["stages"]
            for one in line.get("rules", ())
            if one["rule"]
        }
        for run in (place / "run", place / "again")
    ]
    assert answer.rules == {name: (counts[0][name], counts[1][name]) for name in counts[0]}
    assert answer.rules[f"{stage}/GopherQualityFilter/words"][0] < answer.rules[f"{stage}/GopherQualityFilter/words"][1]


@pytest.mark.parametrize(
    ("stages", "setting", "value", "again"),
    [
        *CHAINS,
        (
            [ScoreFilter(FineWebQualityFilter(), score_field="rule")],
            "FineWebQualityFilter.short_line_length",
            90,
            [ScoreFilter(FineWebQualityFilter(short_line_length=90), score_field="rule")],
        ),
        (
            [ScoreFilter(RepeatingTopNGramsFilter(2, 0.3), score_field="share")],
            "RepeatingTopNGramsFilter.n",
            3,
            [ScoreFilter(RepeatingTopNGramsFilter(3, 0.3), score_field="share")],
        ),
        (
            [ScoreFilter(FineWebQualityFilter(), score_field="rule", invert=True)],
            "FineWebQualityFilter.line_punct_thr",
            0.5,
            [ScoreFilter(FineWebQualityFilter(0.5), score_field="rule", invert=True)],
        ),
    ],
    ids=lambda one: one if type(one) is str else "",
)
def test_a_run_with_recorded_scores_is_the_run_without_them(
    place: Path, stages: list[Any], setting: str, value: Any, again: list[Any]
) -> None:
    read = JsonlReader(place / "in.jsonl")
    Pipeline("one", stages=[read, *stages]).run(HERE, place / "run", scores=True)
    whole = Pipeline("again", stages=[read, *again])
    reusing, _ = with_recorded_scores(whole, Records(str(place / "run")), {setting: value})
    runs = [
        ([row for task in result for row in task.to_rows()], stage_drops(place / name))
        for name, pipeline in (("whole", whole), ("reusing", reusing))
        for result in [pipeline.run(HERE, place / name)]
    ]
    assert runs[0] == runs[1]


def stage_drops(run: Path) -> list[Any]:
    stages = json.loads((run / "report.json").read_text())["stages"]
    return [(line["dropped"], [one for one in line.get("rules", ()) if one["dropped"]]) for line in stages]


def test_rules_are_judged_by_recorded_numbers_without_measuring_again(place: Path) -> None:
    read = JsonlReader(place / "in.jsonl")
    Pipeline("one", stages=[read, ScoreFilter(GopherQualityFilter())]).run(HERE, place / "run", scores=True)
    whole = Pipeline("again", stages=[read, ScoreFilter(GopherQualityFilter(120))])
    reusing, count = with_recorded_scores(
        whole, Records(str(place / "run")), {"GopherQualityFilter.min_doc_words": 120}
    )
    assert count == 1
    assert reusing.run(HERE).summary().stages[2].counts["scores_recalled"] == 80


def test_rows_that_change_are_shown_with_the_number_that_decides(place: Path) -> None:
    answer = asked(place, [ScoreFilter(GopherQualityFilter())], "GopherQualityFilter.min_doc_words", 120)
    assert answer.lost
    assert all(50 <= row["scores"].pop("GopherQualityFilter/words") < 120 for row in answer.lost)
    assert not any(row["scores"] for row in answer.lost)
    answer = asked(place, [ScoreFilter(WordCountFilter(10))], "WordCountFilter.min_words", 60)
    assert {*answer.lost[0]["scores"]} == {"WordCountFilter"}


def test_rules_of_other_stages_and_inverted_ones_are_not_counted(place: Path) -> None:
    chain = [ScoreFilter(C4QualityFilter()), ScoreFilter(GopherQualityFilter())]
    assert {name.partition("/")[0] for name in asked(place, chain, "C4QualityFilter.min_num_sentences", 2).rules} == {
        "C4QualityFilter"
    }
    inverted = [ScoreFilter(GopherQualityFilter(), invert=True)]
    assert asked(place, inverted, "GopherQualityFilter.min_doc_words", 20).rules == {}


def test_why_names_the_filter_of_several_and_the_rule_with_its_kind_of_limit(place: Path) -> None:
    stages = [
        ScoreFilter([WordCountFilter(10), FineWebQualityFilter(line_punct_thr=0.9, line_punct_exclude_zero=True)])
    ]
    pipeline = Pipeline("one", stages=[JsonlReader(place / "in.jsonl"), *stages])
    pipeline.run(HERE, place / "run", scores=True, rejected=True)
    reasons: dict[str, set[str]] = {}
    for rows in Records(str(place / "run")).rejected or ():
        for row in rows.to_table().to_pylist():
            (by_records,) = why(str(place / "run"), str(row["id"]))
            assert by_records.fate == "dropped"
            assert (row["rejected_rule"] or "words").replace("_", " ") in by_records.reason or "min_words" in (
                by_records.reason
            )
            assert f"{row['rejected_score']:g}" in by_records.reason
            reasons.setdefault(row["rejected_filter"], set()).add(by_records.reason)
    assert set(reasons) == {"WordCountFilter", "FineWebQualityFilter"}
    assert not any(" 0, below line_punct_thr" in reason for reason in reasons["FineWebQualityFilter"])
