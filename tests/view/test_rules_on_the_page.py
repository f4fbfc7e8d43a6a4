"""Rules of filters on the page: rows by rule, why a row was dropped, and limits that are moved."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import ExactDeduplicationStage, FuzzyDeduplicationStage
from gristmill.report.run_records import Records
from gristmill.report.whatif import whatif
from gristmill.text import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    JsonlReader,
    JsonlWriter,
    ScoreFilter,
    WordCountFilter,
)
from gristmill.view.server import View
from tests.view.test_server import counted, look, status

pytestmark = pytest.mark.filterwarnings("ignore:stage .* is made for English")
NOUNS = ("mill", "village", "river", "farmer", "grain", "miller", "wheel", "stone", "flour", "baker")
SEVERAL = "WordCountFilter, GopherQualityFilter"


def make(place: Path, stages: list[Any]) -> Path:
    rng = random.Random(7)
    rows = []
    for n in range(200):
        lines = [
            f"The {rng.choice(NOUNS)} of the {rng.choice(NOUNS)} number {rng.randrange(999)} have to walk with that "
            f"and the {rng.choice(NOUNS)}{rng.choice('.....!, ')}"
            for _ in range(rng.choice((0, 1, 2, 3, 6, 9)))
        ]
        lines += rng.choices((lines[-1:] or ["grist"])[0:1], k=rng.choice((0, 0, 0, 1)))
        lines += rng.choice(
            ([], [], [], ["A { is here."], ["# # # #"], ["short", "lines"], ["Donaudampfschifffahrt " * 30])
        )
        rows.append({"id": f"{n}", "text": "\n".join(lines), "language": ("en", "de")[n % 2]})
    (place / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline = Pipeline("rules", stages=[JsonlReader(place / "in.jsonl"), *stages, JsonlWriter(place / "out")])
    pipeline.run(LocalExecutor(0), place / "run", rejected=True, scores=True)
    return place / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stages = [
        ScoreFilter([WordCountFilter(10), GopherQualityFilter(min_doc_words=40)]),
        ScoreFilter(C4QualityFilter(min_num_sentences=2)),
        ScoreFilter(FineWebQualityFilter()),
    ]
    return make(tmp_path_factory.mktemp("rules"), stages)


@pytest.fixture(scope="module")
def view(run: Path) -> Iterator[View]:
    with View(str(run)) as served:
        yield served


def rejected(run: Path) -> list[dict[str, Any]]:
    return [row for rows in Records(str(run)).rejected or () for row in rows.to_table().to_pylist()]


def test_rows_are_found_by_rule(run: Path, view: View) -> None:
    rules = Counter((row["rejected_by"], row["rejected_rule"]) for row in rejected(run))
    page = look(view, "rows", **{"in": "dropped"})
    assert ("select", "rule") in [(tag, result.get("name")) for tag, result in page.elements]
    seen = 0
    for (stage, rule), rows in rules.items():
        if rule is None:
            continue
        seen += rows
        found = look(view, "rows", rule=rule, stage=stage, **{"in": "dropped"})
        assert status(found).endswith(f"of {rows} rows" if rows > 1 else "of 1 row")
        assert f"{rule} ({rows})" in found.text
    assert seen > 40
    assert len({rule for _, rule in rules}) > 4
    kept = look(view, "rows", **{"in": "kept"})
    assert ("select", "rule") not in [(tag, result.get("name")) for tag, result in kept.elements]


def test_a_rule_that_is_asked_for_stays_with_language_and_search(run: Path, view: View) -> None:
    rows = [row for row in rejected(run) if row["rejected_rule"] == "word_length" and row["language"] == "de"]
    found = look(view, "rows", rule="word_length", language="de", search="mill", **{"in": "dropped"})
    assert status(found).endswith(f"of {sum('mill' in row['text'] for row in rows)} rows")
    assert any("rule=word_length" in link and "language=de" in link for link in found.links("row?"))


def test_a_row_names_filter_rule_number_and_limit(run: Path, view: View) -> None:
    (row, *_) = (one for one in rejected(run) if one["rejected_rule"] == "words")
    sentence = f"{row['rejected_score']:g} words, fewer than min_doc_words=40"
    page = look(view, "row", rule="words", n=0, **{"in": "dropped"})
    assert f"Dropped by {SEVERAL}: GopherQualityFilter: {sentence}." in page.text
    assert page.text.count("dropped this row") == 1
    assert re.search(r"GopherQualityFilter: words\s+\d+\s+at least 40.*dropped this row", page.text, re.DOTALL)
    assert f"GopherQualityFilter: {sentence}" in look(view, "rows", rule="words", **{"in": "dropped"}).text


def test_the_filter_of_several_that_dropped_a_row_is_named(view: View) -> None:
    page = look(view, "row", score="rejected_score", most=9, stage=SEVERAL, n=0, **{"in": "dropped"})
    first = re.search(r"WordCountFilter\s+\d+\s+min_words=10, max_words=100000(.*?)\n", page.text, re.DOTALL)
    assert first
    assert "dropped this row" in first[1]
    assert page.text.count("dropped this row") == 1


MOVES: list[tuple[str, float | None, float | None, str, Any]] = [
    (f"{SEVERAL}/GopherQualityFilter/words", 100, 100_000, "GopherQualityFilter.min_doc_words", 100),
    (f"{SEVERAL}/GopherQualityFilter/words", 20, 100_000, "GopherQualityFilter.min_doc_words", 20),
    (f"{SEVERAL}/GopherQualityFilter/word_length", 3, 4.1, "GopherQualityFilter.max_avg_word_length", 4.1),
    (f"{SEVERAL}/GopherQualityFilter/letters", 0.9, None, "GopherQualityFilter.max_non_alpha_words_ratio", 0.9),
    (f"{SEVERAL}/WordCountFilter", 90, 100_000, "WordCountFilter.min_words", 90),
    ("C4QualityFilter/sentences", 5, None, "C4QualityFilter.min_num_sentences", 5),
    ("C4QualityFilter/curly_brackets", None, None, "C4QualityFilter.filter_curly_bracket", False),
    ("FineWebQualityFilter/line_punctuation", 0.9, None, "FineWebQualityFilter.line_punct_thr", 0.9),
    ("FineWebQualityFilter/repeated_lines", None, 0.5, "FineWebQualityFilter.char_duplicates_ratio", 0.5),
]


@pytest.mark.parametrize(("column", "low", "high", "setting", "value"), MOVES)
def test_moving_the_limit_of_a_rule_counts_what_the_command_counts(
    run: Path, view: View, column: str, low: Any, high: Any, setting: str, value: Any
) -> None:
    given = {"low": "" if low is None else low, "high": "" if high is None else high}
    text = look(view, "counts", column=column, **given).text
    answer = whatif(str(run), {setting: value}, 0)
    assert answer.after.rows != answer.before.rows
    assert counted(text) == [answer.after.rows, answer.unknown.rows]
    if column.endswith(("WordCountFilter", "words")):
        assert "No row would change" not in text


def test_moved_limits_change_what_the_rule_drops(run: Path, view: View) -> None:
    words = Counter(row["rejected_rule"] for row in rejected(run))["words"]
    text = look(view, "counts", column=f"{SEVERAL}/GopherQualityFilter/words", low=41, high=100_000).text
    assert f"in the run {words}" in text.partition("dropped by this rule")[2] or f"{words}dropped by this rule" in text
    stricter = look(view, "counts", column=f"{SEVERAL}/GopherQualityFilter/words", low=90, high=100_000).text
    assert int(re.search(r"(\d+)dropped by this rule", stricter)[1]) > words  # type: ignore[index]


@pytest.mark.parametrize(
    "column", ["GopherQualityFilter", "FineWebQualityFilter", "C4QualityFilter", "WordCountFilter"]
)
def test_no_filter_of_rules_is_said_to_have_no_numbers(view: View, column: str) -> None:
    page = look(view, "whatif", column=column if column != "WordCountFilter" else f"{SEVERAL}/WordCountFilter")
    assert "no numbers" not in page.text
    assert "numeric" not in page.text
    assert [found["type"] for tag, found in page.elements if tag == "input"].count("range") == 2


def test_each_rule_has_its_page(view: View) -> None:
    page = look(view, "whatif")
    links = page.links("whatif?column=")
    assert sum("GopherQualityFilter%2F" in link for link in links) >= 8
    for link in links:
        found = look(view, "whatif", column=parse_qs(link)["whatif?column"][0])
        assert "No row would change" in found.text
        assert re.search(r"(\d+)dropped by this (rule|filter)", found.text)


def test_duplicates_are_told_with_partner_and_threshold(tmp_path: Path) -> None:
    stages = [ExactDeduplicationStage(id_field="id"), FuzzyDeduplicationStage(threshold=0.7, id_field="id")]
    words = [f"word{n}" for n in range(300)]
    rows = [
        {"id": "a", "text": " ".join(words)},
        {"id": "b", "text": " ".join([*words, "more"])},
        {"id": "c", "text": " ".join(words)},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline = Pipeline("doubles", stages=[JsonlReader(tmp_path / "in.jsonl"), *stages, JsonlWriter(tmp_path / "out")])
    pipeline.run(LocalExecutor(0), tmp_path / "run", rejected=True)
    with View(str(tmp_path / "run")) as view:
        text = look(view, "rows", **{"in": "dropped"}).text
        row = look(view, "row", stage="FuzzyDeduplicationStage", n=0, **{"in": "dropped"}).text
    assert "equal to a" in text
    assert re.search(r"similarity (0\.99|1\.00) to a is above the threshold of 0\.70", text)
    assert re.search(r"Dropped by FuzzyDeduplicationStage: similarity \S+ to a is above the threshold of 0\.70\.", row)


def test_a_duplicate_without_a_similarity_names_its_partner(tmp_path: Path) -> None:
    words = " ".join(f"word{n}" for n in range(300))
    rows = [{"id": "a", "text": words}, {"id": "b", "text": f"{words} more"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = FuzzyDeduplicationStage(id_field="id", verify="none")
    pipeline = Pipeline("doubles", stages=[JsonlReader(tmp_path / "in.jsonl"), stage, JsonlWriter(tmp_path / "out")])
    pipeline.run(LocalExecutor(0), tmp_path / "run", rejected=True)
    with View(str(tmp_path / "run")) as view:
        row = look(view, "row", n=0, **{"in": "dropped"}).text
    assert "Dropped by FuzzyDeduplicationStage: a duplicate of a." in row
