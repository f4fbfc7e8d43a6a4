from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import DocumentBatch
from gristmill.core.arrow.table_conversion import json_array
from gristmill.text import (
    DocumentFilter,
    DocumentModifier,
    Filter,
    IncompleteStoryFilter,
    Modify,
    QuotationUnifier,
    Score,
    ScoreFilter,
    SubstringFilter,
    UrlRemover,
    UrlsFilter,
    WordCountFilter,
)
from tests.text.document_batches import TEXTS, docs, shout, texts

# -- ScoreFilter ------------------------------------------------------------------------------------------


def test_score_filter_keeps_by_score_and_writes_none() -> None:
    result = ScoreFilter(WordCountFilter(min_words=3)).process(docs())
    assert result.get_columns() == ["text"]
    assert texts(result) == ["one two three.", "four five six"]


def test_score_field_adds_or_replaces_the_column() -> None:
    stage = ScoreFilter(WordCountFilter(min_words=0), score_field="words")
    assert texts(stage.process(docs()), "words") == [3, 1, 0, 3, 0]
    replaced = stage.process(docs(words=["x"] * 5, other=[1] * 5))
    assert replaced.get_columns() == ["text", "words", "other"]
    assert texts(replaced, "words") == [3, 1, 0, 3, 0]


def test_invert_keeps_the_others() -> None:
    assert texts(ScoreFilter(WordCountFilter(min_words=3), invert=True).process(docs())) == ["one", None, ""]


def test_a_later_filter_does_not_score_what_an_earlier_one_dropped() -> None:
    seen: list[str] = []

    class Spy(DocumentFilter):
        def score_document(self, text: str) -> float:
            seen.append(text)
            return len(text)

        def keep_document(self, score: float) -> bool:
            return score > 13

    stage = ScoreFilter([WordCountFilter(min_words=3), Spy()], score_field=[None, "length"])
    decision = stage.decide(docs())
    assert seen == ["one two three.", "four five six"]
    assert decision.keep.to_pylist() == [True, False, False, False, False]
    assert {name: scores.to_pylist() for name, scores in decision.scores.items()} == {
        "WordCountFilter": [3, 1, 0, 3, 0],
        "Spy": [14.0, None, None, 13.0, None],
    }
    result = stage.process(docs())
    assert result.to_rows() == [{"text": "one two three.", "length": 14.0}]


@pytest.mark.parametrize("field", ["body", ["body"], ("body",)])
@pytest.mark.parametrize("filters", [WordCountFilter(3), [WordCountFilter(3)], [WordCountFilter(3), UrlsFilter()]])
def test_a_list_of_one_field_is_that_field(filters: Any, field: Any) -> None:
    batch = DocumentBatch([{"body": "a b c"}, {"body": "a"}])
    stage = ScoreFilter(filters, text_field=field)
    assert texts(stage.process(batch), "body") == ["a b c"]
    assert stage.inputs() == (["data"], {"body": "string"})
    assert stage.outputs() == (["data"], [])


def test_each_filter_of_a_list_may_have_its_own_columns() -> None:
    batch = DocumentBatch([{"title": "A b", "text": "c."}, {"title": "A", "text": "c."}, {"title": "A b", "text": "c"}])
    stage = ScoreFilter(
        [WordCountFilter(2), IncompleteStoryFilter()], ["title", "text"], ["words", "whole"], invert=[False, True]
    )
    assert stage.process(batch).to_rows() == [{"title": "A b", "text": "c", "words": 2, "whole": 0}]
    assert stage.outputs() == (["data"], ["words", "whole"])


def test_filters_of_one_class_have_scores_of_their_own() -> None:
    stage = ScoreFilter([SubstringFilter("o", "prefix"), SubstringFilter("e", "suffix")], score_field=["a", "b"])
    assert list(stage.decide(docs()).scores) == ["SubstringFilter", "SubstringFilter 2"]
    assert stage.process(docs()).to_rows() == [{"text": "one", "a": 1, "b": 1}]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="text_field has 2 values for 1"):
        ScoreFilter(WordCountFilter(), text_field=["a", "b"])
    with pytest.raises(ValueError, match="more than once"):
        ScoreFilter([WordCountFilter(), UrlsFilter()], score_field="score")
    with pytest.raises(ValueError, match="empty list"):
        ScoreFilter([])
    with pytest.raises(TypeError, match=r"write WordCountFilter\(\.\.\.\)"):
        ScoreFilter(WordCountFilter)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Score, Filter"):
        ScoreFilter(len)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"write UrlRemover\(\.\.\.\)"):
        Modify(UrlRemover)
    with pytest.raises(TypeError, match="DocumentModifier"):
        Modify(WordCountFilter())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="DocumentFilter"):
        Score("len", "n")  # type: ignore[arg-type]


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))), st.integers(0, 3), st.integers(0, 3))
def test_a_chain_in_one_stage_equals_stages_in_a_row(rows: list[str | None], first: int, second: int) -> None:
    filters = [WordCountFilter(first), SubstringFilter("a", "any"), WordCountFilter(0, second)]
    apart: Any = docs(rows)
    for one in filters:
        apart = ScoreFilter(one).process(apart)
    assert ScoreFilter(filters).process(docs(rows)).data.equals(apart.data)


@pytest.mark.parametrize("invert", [False, True])
def test_each_row_is_kept_by_a_filter_or_its_inverse(invert: bool) -> None:
    class Unsure(WordCountFilter):
        def keep_batch(self, scores: Any) -> Any:
            return pa.array([1, 0, None, 1, None])

    kept = ScoreFilter(Unsure(), invert=invert).decide(docs()).keep.to_pylist()
    assert kept == [flag is not invert for flag in (True, False, False, True, False)]


# -- names, lineage, objects ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        (ScoreFilter(WordCountFilter()), "WordCountFilter"),
        (ScoreFilter([WordCountFilter(), UrlsFilter()]), "WordCountFilter, UrlsFilter"),
        (Score(WordCountFilter(), "n"), "WordCountFilter"),
        (Score(len, "n"), "len"),
        (Filter(lambda n: n > 1, "n"), "Filter"),
        (Filter(bool, "n"), "bool"),
        (Modify(QuotationUnifier()), "QuotationUnifier"),
        (Modify(shout), "shout"),
        (Modify(lambda text: text), "Modify"),
        (ScoreFilter(WordCountFilter()).with_(name="long enough"), "long enough"),
    ],
)
def test_stages_are_named_after_what_they_run(stage: Any, name: str) -> None:
    assert stage.name == name


def test_a_subclass_may_have_its_own_name() -> None:
    class Long(ScoreFilter):
        name = "long"

    assert Long(WordCountFilter()).name == "long"


def test_arguments_are_attributes() -> None:
    one = WordCountFilter()
    stage = ScoreFilter(one, "body", "words", True)
    assert (stage.filter_obj, stage.text_field, stage.score_field, stage.invert) == (one, "body", "words", True)
    modify = Modify(shout, ["a"], "b")
    assert (modify.modifier_fn, modify.input_fields, modify.output_fields) == (shout, ["a"], "b")


def test_objects_and_metadata_stay_with_their_rows() -> None:
    batch = DocumentBatch({"text": ["a b", "a"]}, objects={"frame": ["first", "second"]}, metadata={"k": 1})
    result = ScoreFilter(WordCountFilter(2), score_field="n").process(batch)
    assert (result.objects, result.metadata, result.num_items) == ({"frame": ["first"]}, {"k": 1}, 1)
    assert Modify(shout).process(batch).objects == batch.objects


# -- Score and Filter -------------------------------------------------------------------------------------


def test_score_only_adds_a_column() -> None:
    result = Score(WordCountFilter(), "n").process(docs())
    assert texts(result, "n") == [3, 1, 0, 3, 0]
    assert texts(result) == TEXTS


def test_score_takes_functions_and_lists() -> None:
    stage = Score([len, WordCountFilter(), str.upper], ["length", "words", "loud"], ["text"])
    result = stage.process(docs(["a b", None]))
    assert result.to_rows() == [
        {"text": "a b", "length": 3.0, "words": 2, "loud": "A B"},
        {"text": None, "length": 0.0, "words": 0, "loud": ""},
    ]
    assert stage.inputs() == (["data"], {"text": "string"})
    assert stage.outputs() == (["data"], ["length", "words", "loud"])


def test_score_may_read_what_it_made() -> None:
    stage = Score([str.upper, len], ["loud", "n"], ["text", "loud"])
    assert texts(stage.process(docs(["ab"])), "n") == [2.0]
    assert stage.inputs() == (["data"], {"text": "any"})


def test_filter_by_function_gets_values_and_none() -> None:
    batch = docs(n=pa.array([1, None, 3, 4, 5]))
    stage = Filter(lambda n: n is not None and n > 2, "n")
    assert texts(stage.process(batch), "n") == [3, 4, 5]
    assert {name: scores.to_pylist() for name, scores in stage.decide(batch).scores.items()} == {
        "n": [1, None, 3, 4, 5]
    }
    assert stage.inputs() == (["data"], ["n"])
    assert texts(Filter(lambda n: n is not None and n > 2, ["n"], invert=True).process(batch), "n") == [1, None]


def test_filter_by_document_filter_and_by_a_list() -> None:
    batch = docs(n=pa.array([1, None, 3, 4, 5]), quality=["a", "b", "a", "b", "a"])
    assert texts(Filter(WordCountFilter(3), "n").process(batch), "n") == [3, 4, 5]
    both = Filter([WordCountFilter(3), lambda quality: quality == "a"], ["n", "quality"])
    assert texts(both.process(batch), "n") == [3, 5]
    assert both.decide(batch).scores["quality"].to_pylist() == [None, None, "a", "b", "a"]


def test_filter_gives_functions_the_objects_of_a_json_column() -> None:
    batch = docs(["a", "b", "c"], meta=json_array([{"ok": True}, {"ok": False}, None]))
    assert texts(Filter([bool, lambda meta: meta["ok"]], "meta").process(batch)) == ["a"]


def test_scores_of_score_can_be_filtered_like_score_filter() -> None:
    class Language(DocumentFilter):
        def score_document(self, text: str) -> list[Any]:
            return [len(text) / 10, "en"]

        def keep_document(self, score: list[Any]) -> bool:
            return bool(score[0] > 0.1)

    split = Filter(Language(), "lang").process(Score(Language(), "lang").process(docs()))
    assert split.data.equals(ScoreFilter(Language(), score_field="lang").process(docs()).data)


# -- Modify -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["text", ["text"], [["text"]]])
@pytest.mark.parametrize("modifier", [QuotationUnifier(), [QuotationUnifier()], lambda text: text.replace("“", '"')])
def test_modify_in_place(modifier: Any, field: Any) -> None:
    result = Modify(modifier, field).process(docs(["“a", None], other=[1, 2]))
    assert result.to_rows() == [{"text": '"a', "other": 1}, {"text": None, "other": 2}]


def test_modify_into_another_column() -> None:
    result = Modify(shout, "text", "loud").process(docs(["a", None]))
    assert result.to_rows() == [{"text": "a", "loud": "A"}, {"text": None, "loud": None}]


def test_modifiers_in_a_list_go_on_from_each_other() -> None:
    batch = docs(["“a” www.b"])
    assert texts(Modify([QuotationUnifier(), UrlRemover(), shout]).process(batch)) == ['"A" ']
    stage = Modify([QuotationUnifier(), UrlRemover()], "text", "clean")
    assert stage.process(batch).to_rows() == [{"text": "“a” www.b", "clean": '"a" '}]
    assert stage.inputs() == (["data"], {"text": "string"})
    assert stage.outputs() == (["data"], {"clean": "string"})


def test_each_modifier_may_have_its_own_columns() -> None:
    batch = DocumentBatch([{"a": "x", "b": "y"}])
    assert Modify([shout, str.title], ["a", "b"]).process(batch).to_rows() == [{"a": "X", "b": "Y"}]
    stage = Modify([shout, lambda c, b: c + b], ["a", ["c", "b"]], ["c", "d"])
    assert stage.process(batch).to_rows() == [{"a": "x", "b": "y", "c": "X", "d": "Xy"}]
    assert stage.inputs() == (["data"], {"a": "string", "b": "any"})
    assert stage.outputs() == (["data"], ["c", "d"])


def test_several_columns_become_keywords() -> None:
    class Join(DocumentModifier):
        def modify_document(self, title: str, n: int, meta: Any) -> str:  # type: ignore[override]
            return f"{title}:{n}:{meta}"

    batch = DocumentBatch([{"title": "t", "n": 1, "meta": {"k": 2}}, {"title": None, "n": None, "meta": None}])
    result = Modify(Join(), ["title", "n", "meta"], "all").process(batch)
    assert texts(result, "all") == ["t:1:{'k': 2}", "None:None:None"]
    added = Modify(lambda n, title: n, ["n", "title"], ["copy"]).process(batch)
    assert texts(added, "copy") == [1, None]
    with pytest.raises(ValueError, match="output_fields"):
        Modify(Join(), ["title", "n", "meta"])
