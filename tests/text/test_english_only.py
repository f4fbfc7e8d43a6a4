"""A filter that is made for English and meets other languages says so, once, at the end of the run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import ExactDeduplicationStage
from gristmill.recipes import load_recipe
from gristmill.text import (
    CommonEnglishWordsFilter,
    GopherQualityFilter,
    JsonlReader,
    JsonlWriter,
    ScoreFilter,
    WordCountFilter,
)
from tests.recipes.test_bundled_recipes import CHINESE, ENGLISH, GERMAN

RUSSIAN = "Мельник встал до восхода солнца и пошёл вниз к ручью, где колесо стояло с самой осени. "


def corpus(folder: Path, english: int, *others: str) -> str:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*[ENGLISH] * english, *others]))
    return str(path)


def warned(pipeline: Pipeline, executor: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipeline.run(executor)
    return [str(one.message) for one in caught if "made for English" in str(one.message)]


def test_the_english_recipe_tells_the_share_of_other_languages(tmp_path: Path) -> None:
    source = corpus(tmp_path, 60, *[GERMAN, CHINESE, RUSSIAN, "Short.", ""] * 8)
    recipe = load_recipe("heuristic-english", {"input": source, "output": str(tmp_path / "out")}).build()
    [message] = warned(recipe, LocalExecutor(2))
    assert "stage 'NonAlphaNumericFilter' is made for English, and 24% of its documents" in message
    assert "(24 of 100) are in another language" in message
    assert "heuristic-multilingual" in message


@pytest.mark.parametrize(
    ("tool", "english", "others", "times"),
    [
        (CommonEnglishWordsFilter(), 0, [GERMAN] * 12, 1),
        (CommonEnglishWordsFilter(), 40, [GERMAN] * 9, 0),  # too few to speak of
        (CommonEnglishWordsFilter(), 1500, [GERMAN] * 12, 0),
        (CommonEnglishWordsFilter(), 50, [], 0),
        (GopherQualityFilter(), 10, [RUSSIAN] * 10, 1),
        (GopherQualityFilter(stop_words=["und"]), 0, [GERMAN] * 12, 0),
        (WordCountFilter(), 0, [GERMAN] * 12, 0),
    ],
)
def test_who_warns_and_when(tool: Any, english: int, others: list[str], times: int, tmp_path: Path) -> None:
    stages = [
        JsonlReader(corpus(tmp_path, english, *others), blocksize=3000),
        ScoreFilter(WordCountFilter(1)),
        ScoreFilter([tool, CommonEnglishWordsFilter(0)] if times else tool),
        ScoreFilter(tool),
        JsonlWriter(tmp_path / "out"),
    ]
    assert len(warned(Pipeline("p", stages=stages), LocalExecutor(0))) == times


def test_a_column_with_the_language_is_believed(tmp_path: Path) -> None:
    rows = [{"text": GERMAN, "language": code} for code in ["en", "eng_Latn", None, "de", "DE"] for _ in range(10)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stages = [
        JsonlReader(tmp_path / "in.jsonl"),
        ScoreFilter(CommonEnglishWordsFilter()),
        JsonlWriter(tmp_path / "out"),
    ]
    [message] = warned(Pipeline("p", stages=stages), LocalExecutor(0))
    assert "20 of 50" in message


def test_each_document_counts_once_however_many_filters_ask(tmp_path: Path) -> None:
    stages = [
        JsonlReader(corpus(tmp_path, 10, *[GERMAN] * 30), blocksize=3000),
        ScoreFilter(CommonEnglishWordsFilter(0)),
        ScoreFilter(GopherQualityFilter()),
        JsonlWriter(tmp_path / "out"),
    ]
    with pytest.warns(RuntimeWarning, match="30 of 40"):
        summary = Pipeline("p", stages=stages).run(LocalExecutor(0)).summary()
    assert summary["CommonEnglishWordsFilter"].counts == {"not_english": 30}
    assert summary["GopherQualityFilter"].counts == {}


def test_a_warning_does_not_hide_one_of_another_kind(tmp_path: Path) -> None:
    stages = [
        JsonlReader(corpus(tmp_path, 10, *[f"{GERMAN}{number}" for number in range(30)])),
        ScoreFilter(CommonEnglishWordsFilter(0)),
        ExactDeduplicationStage(keep="highest", score_field="text"),
        JsonlWriter(tmp_path / "out"),
    ]
    with pytest.warns(RuntimeWarning) as caught:
        Pipeline("p", stages=stages).run(LocalExecutor(0))
    messages = [str(one.message) for one in caught]
    assert len(messages) == 2
    assert "made for English" in messages[0]
    assert "'ExactDeduplicationStage'" in messages[1]
    assert "'text'" in messages[1]
