"""Language identification with the model that ships in a package, words of scripts without spaces, alphabets."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.errors import InputError, MissingDependencyError, PlanError
from gristmill.core.stage import WorkerMetadata
from gristmill.models.fasttext_model import FastTextModel
from gristmill.recipes import recipe_of
from gristmill.text import (
    FastTextLangId,
    FastTextQualityFilter,
    Filter,
    HistogramFilter,
    IdentifyLanguage,
    JsonlReader,
    JsonlWriter,
    Score,
    ScoreFilter,
    split_words,
)

TEXTS = {
    "en": "All human beings are born free and equal in dignity and rights.\nThey are endowed with reason.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "ru": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "ja": "すべての人間は、生まれながらにして自由であり、尊厳と権利について平等である。",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
}


@pytest.fixture(scope="module")
def batch() -> DocumentBatch:
    return DocumentBatch([{"text": text} for text in [*TEXTS.values(), " \n", None, ""]])


def test_languages_are_told(batch: DocumentBatch) -> None:
    out = IdentifyLanguage().process(batch).to_rows()
    assert [row["language"] for row in out] == [*TEXTS, "und", "und", "und"]
    assert all(0.5 < row["language_score"] <= 1 for row in out[:7])
    assert [row["language_score"] for row in out[7:]] == [0, 0, 0]


def test_what_has_no_letters_is_in_no_language_and_capitals_are_read() -> None:
    shout = "THE COMMISSION SHALL ADOPT THE MEASURES THAT ARE NECESSARY FOR THE MEMBER STATES"
    texts = ["😀😀😀", "12345 67890", "\x00\x01\x02", "- * -", None, shout, "DIE KOMMISSION ERLÄSST DIE MASSNAHMEN"]
    stage = IdentifyLanguage()
    out = stage.process(DocumentBatch([{"text": text} for text in texts])).to_rows()
    assert [row["language"] for row in out] == ["und"] * 5 + ["en", "de"]
    assert [row["language_score"] for row in out[:5]] == [0.0] * 5
    assert [row["text"] for row in out] == texts
    kept = IdentifyLanguage(languages=["en"]).process(DocumentBatch([{"text": text} for text in texts])).to_rows()
    assert [row["text"] for row in kept] == [shout]


def test_a_language_that_the_model_does_not_tell_is_refused() -> None:
    for stage in (
        IdentifyLanguage(languages=["english"]),
        IdentifyLanguage(min_scores={"english": 0.5}),
        ScoreFilter(FastTextLangId(lang="english")),
        ScoreFilter(FastTextLangId(lang=["en", "english"])),
    ):
        with pytest.raises(PlanError, match="does not know the language 'english'.* en,"):
            stage.check()
    for languages in (None, [], ["EN", "und", "zh"]):
        IdentifyLanguage(languages=languages).check()
    given = FastTextModel(None, "x").file()
    with pytest.raises(PlanError, match="'xx'"):
        IdentifyLanguage(languages=["xx"], model_path=str(given)).setup(WorkerMetadata())


def test_languages_and_thresholds_drop(batch: DocumentBatch) -> None:
    def left(**options) -> list[str]:
        return [row["language"] for row in IdentifyLanguage(**options).process(batch).to_rows()]

    assert left(languages=["DE", "ja"]) == ["de", "ja"]
    assert left(min_score=0.01) == list(TEXTS)
    assert left(min_score=0.01, min_scores={"de": 1.0}) == [name for name in TEXTS if name != "de"]
    assert left(languages=["und", "xx"]) == ["und"] * 3
    assert IdentifyLanguage(languages=["de"], min_scores={"de": 0.5}).thresholds() == {
        "language": "languages=de",
        "language_score": "min_score=0.0, {'de': 0.5}",
    }


def test_white_space_of_any_kind_around_a_document_does_not_count() -> None:
    plain, wide = (FastTextLangId().score_document(text) for text in (TEXTS["de"], f"\u3000\x85{TEXTS['de']}\u2028"))
    assert plain == wide


def test_the_beginning_may_be_enough() -> None:
    text = TEXTS["de"] + TEXTS["ru"] * 20
    batch = DocumentBatch([{"text": text}, {"text": None}])
    assert IdentifyLanguage().process(batch).to_rows()[0]["language"] == "ru"
    begun = IdentifyLanguage(max_characters=len(TEXTS["de"])).process(batch).to_rows()
    assert [row["language"] for row in begun] == ["de", "und"]
    alone = IdentifyLanguage().process(DocumentBatch([{"text": TEXTS["de"]}])).to_rows()
    assert begun[0]["language_score"] == alone[0]["language_score"]


def test_the_filter_scores_language_and_probability() -> None:
    one = FastTextLangId()
    score = one.score_document(TEXTS["fr"])
    assert score["language"] == "fr"
    assert one.keep_document(score)
    assert not FastTextLangId(min_langid_score=1.0).keep_document({"score": 0.99, "language": "fr"})
    assert one.score_document(" ") == {"score": 0.0, "language": "und"}
    column = one.score_batch(pa.array([*TEXTS.values(), None]))
    assert column.type == FastTextLangId.score_type
    assert column.to_pylist() == [one.score_document(text) for text in [*TEXTS.values(), ""]]
    assert FastTextLangId(lang="FR").keep_batch(column).to_pylist() == [name == "fr" for name in [*TEXTS, ""]]
    assert not one.keep_document(None)


@pytest.mark.parametrize(
    ("lang", "code", "kept"),
    [(None, "fr", True), ("fr", "fr", True), ("FR", "fr", True), ("eng", "eng_Latn", True),
     ("eng_latn", "eng_Latn", True),
     ("eng_Cyrl", "eng_Latn", False), ("en", "eng_Latn", False), (["de", "fr"], "fr", True), (["de"], "fr", False)],
)  # fmt: skip
def test_codes_match_with_and_without_script(lang, code: str, kept: bool) -> None:
    assert FastTextLangId(lang=lang).keep_document({"score": 0.9, "language": code}) is kept


def test_in_a_pipeline_language_and_score_are_columns(tmp_path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "{TEXTS[name]}"}}\n' for name in ("de", "fr")))
    stages = [
        JsonlReader(str(tmp_path / "in.jsonl")),
        ScoreFilter(FastTextLangId(lang="de"), score_field="found"),
        IdentifyLanguage(),
        JsonlWriter(str(tmp_path / "out"), fields=["language", "found"]),
    ]
    Pipeline("p", stages=stages).run(LocalExecutor(num_workers=0))
    [written] = (tmp_path / "out").glob("*.jsonl")
    assert written.read_text().startswith('{"language":"de","found":{"score":0.9')
    assert len(written.read_text().splitlines()) == 1


def test_scores_without_rows_are_drawn_by_seed_and_score() -> None:
    path = str(FastTextModel(None, "a test").file())
    one = FastTextQualityFilter(path, label="__label__de")
    column = pa.array([*TEXTS.values(), "", None])
    scores = one.score_batch(column)
    assert scores.to_pylist() == [one.score_document(text) for text in [*TEXTS.values(), "", ""]]
    assert scores[1].as_py() > 0.9
    assert scores[2].as_py() < 0.1
    many = pa.array([number / 20_000 for number in range(20_001)])
    keep = one.keep_batch(many)
    assert keep.to_pylist()[::100] == [one.keep_document(score) for score in many.to_pylist()[::100]]
    assert keep.equals(pickle.loads(pickle.dumps(one)).keep_batch(many))
    assert not keep.equals(FastTextQualityFilter(path, seed=43).keep_batch(many))
    assert keep[-1].as_py() is True  # 1 - score is 0, and every draw lies above
    for low in (0, 5_000, 15_000):  # P(keep) = (2 - score) ** -3
        share = keep.slice(low, 1_000).true_count / 1_000
        assert abs(share - (2 - (low + 500) / 20_000) ** -3) < 0.05
    assert one.threshold() == "alpha=3, seed=42"


def kept_ids(tmp_path: Path, blocksize: int, stages: list[Any]) -> set[int]:
    out = tmp_path / "out"
    stages = [JsonlReader(str(tmp_path / "in.jsonl"), blocksize=blocksize), *stages, JsonlWriter(str(out))]
    Pipeline("p", stages=stages).run(LocalExecutor(num_workers=0))
    return {json.loads(line)["id"] for path in out.glob("*.jsonl") for line in path.read_text().splitlines()}


def test_quality_is_drawn_by_the_row_and_not_by_its_score(tmp_path: Path) -> None:
    rows = [{"id": number, "text": TEXTS["de"]} for number in range(400)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    one = FastTextQualityFilter(str(FastTextModel(None, "a test").file()), label="__label__fr")
    kept = kept_ids(tmp_path, 10**6, [ScoreFilter(one)])
    assert 20 < len(kept) < 100  # P(keep) is 1/8 for a score of 0; one lot for all would keep all or none
    assert kept_ids(tmp_path, 700, [ScoreFilter(one)]) == kept
    assert kept_ids(tmp_path, 700, [Score(one, "quality"), Filter(one, "quality")]) == kept
    other = FastTextQualityFilter(one.model_path, label="__label__fr", seed=43)
    assert kept_ids(tmp_path, 700, [ScoreFilter(other)]) != kept


class PickyQuality(FastTextQualityFilter):
    """The same scores, kept by a rule of its own."""

    def keep_document(self, score: float) -> bool:
        return score > 0.5


def test_a_subclass_with_verdicts_of_its_own_draws_no_lots(tmp_path: Path) -> None:
    rows = [{"id": number, "text": TEXTS[name]} for number, name in enumerate(["de", "fr", "de", "fr"])]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    picky = PickyQuality(str(FastTextModel(None, "a test").file()), label="__label__fr")
    assert kept_ids(tmp_path, 10**6, [ScoreFilter(picky)]) == {1, 3}


@pytest.mark.parametrize("one", [FastTextLangId(), IdentifyLanguage(), FastTextLangId("/no/such/model.bin")])
def test_missing_libraries_and_models_are_told_by_the_planner(one, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(one, "model_path", None):
        with pytest.raises(InputError, match="no model /no/such/model.bin"):
            one.check()
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'gristmill\[lang\]'"):
        one.check()


def test_models_are_not_pickled() -> None:
    one, stage = FastTextLangId(), IdentifyLanguage()
    one.setup()
    stage.setup(WorkerMetadata())
    assert len(pickle.dumps(one)) < 2000
    assert len(pickle.dumps(stage)) < 2000
    assert pickle.loads(pickle.dumps(one)).score_document(TEXTS["en"])["language"] == "en"


@pytest.mark.parametrize(
    ("text", "lang", "words"),
    [
        ("", None, []),
        (" \n", None, []),
        ("two words - here", None, ["two", "words", "-", "here"]),
        ("größe naïve", None, ["größe", "naïve"]),
        ("人人生而自由。", None, ["人", "人", "生", "而", "自", "由"]),
        ("用Python写的 代码", None, ["用", "Python", "写", "的", "代", "码"]),
        ("私は東京タワーに行った", None, ["私", "は", "東京", "タワー", "に", "行", "った"]),
        ("日本", "ja", ["日本"]),
        ("日本", "zh", ["日", "本"]),
        ("มนุษย์ ดี", None, ["ม", "นุ", "ษ", "ย์", "ดี"]),
        ("ເດັກ", None, ["ເດັ", "ກ"]),
        ("ខ្ញុំទៅ", None, ["ខ្ញុំ", "ទៅ"]),
        ("မြန်မာစာ", None, ["မြန်", "မာ", "စာ"]),
        ("한국어 단어", None, ["한국어", "단어"]),
    ],
)
def test_words(text: str, lang: str | None, words: list[str]) -> None:
    assert split_words(text, lang) == words


@pytest.mark.parametrize(
    ("one", "text", "score", "kept"),
    [
        (HistogramFilter(), "", 0.0, False),
        (HistogramFilter(), " \n", 0.0, False),
        (HistogramFilter(), " Plain English, 2024. ", 1.0, True),
        (HistogramFilter(), "abcд", 0.75, False),
        (HistogramFilter(threshold=0.7), "abcд", 0.75, True),
        (HistogramFilter("de"), "Größe", 1.0, True),
        (HistogramFilter("ru"), "Мир — это", 1.0, True),
        (HistogramFilter("ja"), "私は行った。", 1.0, True),
        (HistogramFilter("ja"), "Привет", 0.0, False),
    ],
)
def test_characters_of_a_language(one: HistogramFilter, text: str, score: float, kept: bool) -> None:
    assert one.score_document(text) == score
    assert one.score_batch(pa.array([text, None])).to_pylist() == [score, 0.0]
    assert one.keep_document(score) is kept


def test_histograms_of_ones_own(tmp_path) -> None:
    (tmp_path / "xx").write_text("a\t10\nb\t5\n]\t1\nc\t1\n", encoding="utf-8")
    one = HistogramFilter("xx", cache_dir=str(tmp_path))
    assert one.score_document("abcc") == 0.5
    assert HistogramFilter("xx", cache_dir=str(tmp_path), threshold_char="?").score_document("abcc") == 1.0
    assert pickle.loads(pickle.dumps(one)).threshold == 0.8
    assert ScoreFilter(one).thresholds() == {"HistogramFilter": "threshold=0.8"}
    recipe = recipe_of(Pipeline("p", stages=[ScoreFilter(HistogramFilter("de", 0.5))])).to_yaml()
    assert "threshold: 0.5" in recipe
    with pytest.raises(InputError, match="does not exist"):
        HistogramFilter("yy", cache_dir=str(tmp_path)).check()
    with pytest.raises(ValueError, match="cache_dir"):
        HistogramFilter("yy")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IdentifyLanguage(languages="en"), "must be a list"),
        (lambda: IdentifyLanguage(min_scores={"en": 2}), "en is 2"),
        (lambda: IdentifyLanguage(score_field="language"), "two columns"),
        (lambda: IdentifyLanguage(max_characters=0), "1 or more"),
        (lambda: FastTextLangId(min_langid_score=2), "min_langid_score is 2"),
        (lambda: FastTextQualityFilter("m", alpha=0), "above 0"),
    ],
)
def test_bad_parameters_are_refused(make, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_turkish_has_a_capital_of_its_own() -> None:
    assert HistogramFilter("tr").score_document("İSTANBUL") == 1.0
