"""Filters, modifiers and stages written for NeMo Curator, used as they are."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.errors import ColumnError, ContractError, MissingDependencyError
from gristmill.text import (
    DocumentFilter,
    DocumentModifier,
    FastTextLangId,
    Filter,
    JsonlReader,
    Modify,
    Score,
    ScoreFilter,
    UrlRemover,
    WordCountFilter,
)
from gristmill.text.statistics import word_segmentation

HERE = LocalExecutor(0)


class LetterCount(DocumentFilter):
    def __init__(self, letter: str = "a") -> None:
        self.letter = letter

    def score_document(self, text: str) -> int:
        return text.count(self.letter)

    def keep_document(self, score: int) -> bool:
        return score >= 2


class Half(DocumentFilter):
    def score_document(self, text: str) -> float:
        return len(text) / 2 if len(text) % 2 else 0

    def keep_document(self, score: float) -> bool:
        return True


class Unannotated(DocumentFilter):
    def score_document(self, text):  # type: ignore[no-untyped-def]
        return len(text)

    def keep_document(self, score: Any) -> bool:
        return True


class TypeMatters(LetterCount):
    score_type = pa.float64()

    def score_document(self, text: str) -> int:
        return 1


def texts(*values: Any) -> DocumentBatch:
    return DocumentBatch({"text": list(values)})


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (LetterCount(), pa.int64()),
        (Half(), pa.float64()),
        (Unannotated(), pa.float64()),
        (TypeMatters(), pa.float64()),
        (LetterCount().score_document, pa.int64()),
        (len, pa.float64()),
    ],
    ids=repr,
)
def test_scores_have_the_type_that_the_function_declares(one: Any, kind: pa.DataType) -> None:
    assert Score(one, "score").process(texts("aa", "a", None)).data.schema.field("score").type == kind
    if isinstance(one, DocumentFilter):
        assert ScoreFilter(one, score_field="score").process(texts("aaa", None)).data.schema.field("score").type == kind


def test_an_int_stays_an_int_in_every_batch(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "aa"}\n{"text": "aaa"}\n')
    stages = [JsonlReader(str(tmp_path / "in.jsonl")), ScoreFilter(LetterCount(), score_field="n")]
    [batch] = Pipeline("p", stages=stages).run(HERE)
    assert [repr(row["n"]) for row in batch.to_rows()] == ["2", "3"]


def test_a_score_of_another_type_than_declared_is_an_error() -> None:
    class Wrong(LetterCount):
        def score_document(self, text: str) -> int:
            return 0.5  # type: ignore[return-value]

    with pytest.raises(ContractError, match=r"declared to return int64 and returned float.*-> float"):
        Score(Wrong(), "score").process(texts("a"))


class Doubled(DocumentModifier):
    def modify_document(self, value: int) -> int:  # type: ignore[override]
        return 2 * value


class Length(DocumentModifier):
    def modify_document(self, text: str) -> int:
        return len(text)


class Large(DocumentFilter):
    def score_document(self, value: Any) -> Any:
        return value

    def keep_document(self, score: Any) -> bool:
        return score is not None and score > 1


NUMBERS = [{"n": 1, "tags": ["a"]}, {"n": 2, "tags": ["b", "c"]}, {"n": None, "tags": []}]


def test_modifiers_may_return_numbers() -> None:
    result = Modify(Length(), output_fields="size").process(texts("abc", None, ""))
    assert result.to_rows() == [
        {"text": "abc", "size": 3}, {"text": None, "size": None}, {"text": "", "size": 0}
    ]  # fmt: skip


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize(
    ("stage", "wanted"),
    [
        (Modify(Doubled(), input_fields="n"), {"n": [2, 4, None]}),
        (Modify(lambda n: n + 0.5, input_fields="n", output_fields="m"), {"m": [1.5, 2.5, None]}),
        (Modify(len, input_fields="tags", output_fields="m"), {"m": [1, 2, 0]}),
        (ScoreFilter(Large(), text_field="n"), {"n": [2]}),
        (Score(lambda n: n or 0, "score", text_field="n"), {"score": [1.0, 2.0, 0.0]}),
        (Filter(lambda n: n == 1, "n"), {"n": [1]}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_columns_that_are_not_text(stage: Any, wanted: dict[str, list[Any]], planned: bool) -> None:
    batch = DocumentBatch(pa.Table.from_pylist(NUMBERS))
    if planned:
        [result] = Pipeline("p", stages=[stage]).run(HERE, [batch])
    else:
        result = stage.process(batch)
    assert {name: result.data[name].to_pylist() for name in wanted} == wanted


@pytest.mark.parametrize("stage", [Modify(UrlRemover(), input_fields="n"), ScoreFilter(LetterCount(), text_field="n")])
def test_tools_for_text_still_refuse_numbers_before_a_run(stage: Any) -> None:
    with pytest.raises(ColumnError, match="needs text in column 'n'"):
        Pipeline("p", stages=[stage]).run(HERE, [DocumentBatch([{"n": 1}])])


@pytest.mark.parametrize("workers", [0, 2])
def test_values_do_not_depend_on_the_block(workers: int, tmp_path: Path) -> None:
    """A column that is text in the input is text for the function, also where a block holds only numbers."""
    lines = ['{"v": "abc"}', *['{"v": 7}'] * 50]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    stage = Modify(lambda value: type(value).__name__, input_fields="v")
    for blocksize in (40, 10_000):
        result = Pipeline("p", stages=[JsonlReader(str(tmp_path / "in.jsonl"), blocksize=blocksize), stage]).run(
            LocalExecutor(workers)
        )
        assert [row["v"] for task in result for row in task.to_rows()] == ["str"] * 51


def test_none_among_output_fields_is_the_input() -> None:
    def joined(text: str, z: str) -> str:
        return text + z

    stage = Modify([str.upper, joined], input_fields=[["text"], ["text", "z"]], output_fields=[None, "z"])
    result = stage.process(DocumentBatch([{"text": "a", "z": "b"}]))
    assert result.to_rows() == [{"text": "A", "z": "Ab"}]
    assert Modify([str.upper, str.strip], output_fields=[None]).process(texts(" a ")).to_rows() == [{"text": "A"}]
    with pytest.raises(ValueError, match="instead of None"):
        Modify([joined, str.upper], input_fields=[["text", "z"], ["z"]], output_fields=[None, "z"])


@pytest.mark.parametrize(
    ("score", "kept"),
    [
        ("[0.9, 'EN']", True),
        ('[0.2, "EN"]', False),
        ([0.9, "DE"], False),
        ({"score": 0.9, "language": "en"}, True),
        (None, False),
    ],
)
def test_language_scores_of_curator_are_understood(score: Any, kept: bool) -> None:
    assert FastTextLangId(lang="EN").keep_document(score) is kept


@pytest.mark.parametrize("score", ["__import__('os')", "0.5", [1]])
def test_language_scores_are_not_executed(score: str | Sequence[Any]) -> None:
    with pytest.raises(ValueError, match="is no score"):
        FastTextLangId().keep_document(score)


def test_chinese_words_need_their_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "jieba":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    word_segmentation._jieba.cache_clear()
    monkeypatch.setattr("importlib.import_module", missing)
    message = r"pip install 'gristmill\[zh\]', or write lang='zho'"
    with pytest.raises(MissingDependencyError, match=message):
        Pipeline("p", stages=[ScoreFilter(WordCountFilter(lang="zh"))]).plan([texts("我")])
    assert WordCountFilter(lang="zho").score_document("我喜欢学习中文。") == 7
