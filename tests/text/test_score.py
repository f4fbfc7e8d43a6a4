from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gristmill.text
from gristmill import DocumentBatch, Pipeline
from gristmill.core.decide import Decides
from gristmill.core.errors import ColumnError, ContractError, StageError
from gristmill.core.table import JSON, json_array
from gristmill.core.worker import Worker
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

TEXTS = ["one two three.", "one", None, "four five six", ""]


def docs(texts: Any = TEXTS, **columns: Any) -> DocumentBatch:
    text = texts if isinstance(texts, pa.Array | pa.ChunkedArray) else pa.array(texts, pa.string())
    return DocumentBatch({"text": text, **columns})


def texts(batch: Any, field: str = "text") -> list[Any]:
    values: list[Any] = batch.data.column(field).to_pylist()
    return values


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


def shout(text: str) -> str:
    return text.upper()


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
    assert stage.inputs() == (["data"], {"text": "string"})


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


# -- columns at run time ----------------------------------------------------------------------------------

STAGES: list[Any] = [
    ScoreFilter(WordCountFilter(0), score_field="n"),
    Score(WordCountFilter(), "n"),
    Modify(UrlRemover()),
    Modify(shout, output_fields="n"),
]
PLAIN = ["a www.b", None, ""]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "column",
    [
        pa.array(PLAIN, pa.large_string()),
        pa.array(PLAIN, pa.string_view()),
        pa.array(PLAIN).dictionary_encode(),
        pa.array(PLAIN, pa.large_string()).dictionary_encode(),
        json_array(PLAIN),
        pa.chunked_array([PLAIN[:1], PLAIN[1:]], pa.string()),
    ],
    ids=lambda column: str(column.type),
)
def test_text_of_any_storage_gives_the_same(stage: Any, column: Any) -> None:
    assert stage.process(docs(column)).to_rows() == stage.process(docs(PLAIN)).to_rows()


@pytest.mark.parametrize("stage", STAGES)
def test_a_column_of_nulls_is_text_without_text(stage: Any) -> None:
    nulls = pa.nulls(2)
    assert stage.process(docs(nulls)).to_rows() == stage.process(docs([None, None])).to_rows()
    encoded = pa.DictionaryArray.from_arrays(pa.nulls(2, pa.int32()), pa.nulls(0))
    assert stage.process(docs(encoded)).to_rows() == stage.process(docs([None, None])).to_rows()


def test_text_in_a_mixed_column_is_text_and_the_rest_json() -> None:
    batch = docs(json_array(['say "hi"', 5, {"k": [1]}, None]))
    assert batch.data.schema.field("text").type == JSON
    assert texts(Modify(shout).process(batch)) == ['SAY "HI"', "5", '{"K":[1]}', None]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "column", [pa.array([1]), pa.array([b"x"]), pa.array([["x"]]), pa.array([1]).dictionary_encode()]
)
def test_a_column_without_text_is_refused(stage: Any, column: Any) -> None:
    with pytest.raises(ColumnError, match=f"{stage.name}' needs text in column 'text', which holds"):
        stage.process(docs(column))


@pytest.mark.parametrize("stage", [*STAGES, Filter(bool, "text"), Modify(lambda text, tex: text, ["text", "tex"], "x")])
def test_a_missing_column_is_named_with_what_is_there(stage: Any) -> None:
    with pytest.raises(ColumnError) as caught:
        stage.process(DocumentBatch({"tex": ["a"], "id": [1], "__position__": [0]}))
    assert str(caught.value).startswith(
        f"stage {stage.name!r} needs column 'text'. There are: tex, id. Did you mean 'tex'?"
    )


@pytest.mark.parametrize("stage", [*STAGES, Filter(bool, "text")])
def test_no_rows_are_no_problem(stage: Any) -> None:
    assert stage.process(docs([])).num_items == 0
    assert stage.process(DocumentBatch([])).num_items == 0


# -- contracts --------------------------------------------------------------------------------------------


def test_filters_can_be_asked_for_their_decision() -> None:
    assert isinstance(ScoreFilter(WordCountFilter()), Decides)
    assert isinstance(Filter(bool, "n"), Decides)
    assert not isinstance(Score(len, "n"), Decides)
    stage = ScoreFilter(WordCountFilter(3), score_field="n")
    batch = docs()
    assert stage.apply(batch, stage.decide(batch)).data.equals(stage.process(batch).data)
    assert batch.get_columns() == ["text"]


@pytest.mark.parametrize("answer", [[1, 2], pa.array([1]), None])
def test_a_batch_form_must_give_one_value_per_row(answer: Any) -> None:
    class Wrong(WordCountFilter):
        def score_batch(self, texts: Any) -> Any:
            return answer

    with pytest.raises(ContractError, match=r"Wrong\.score_batch got 2 rows and returned"):
        ScoreFilter(Wrong()).process(docs(["a", "b"]))


def test_hooks_reach_filters_and_modifiers() -> None:
    class Model(WordCountFilter):
        ready = False

        def check(self) -> None:
            raise ColumnError("checked")

        def setup(self) -> None:
            self.ready = True

    model = Model()
    stage = ScoreFilter([WordCountFilter(), model])
    with pytest.raises(ColumnError, match="checked"):
        stage.check()
    worker = Worker([stage, Modify(shout)])
    worker.setup()
    assert model.ready


def test_a_worker_counts_rows_and_names_the_stage_that_failed() -> None:
    out: list[Any] = []
    worker = Worker([ScoreFilter(WordCountFilter(3)), Modify(shout)])
    worker.run([docs()], lambda task, position: out.append(task))
    assert [(stats.rows_in, stats.rows_out) for stats in worker.take_stats()] == [(5, 2), (2, 2)]
    assert texts(out[0]) == ["ONE TWO THREE.", "FOUR FIVE SIX"]
    with pytest.raises(StageError, match=r"stage 'WordCountFilter' failed .*needs column 'text'"):
        worker.run([DocumentBatch({"body": ["a"]})], lambda task, position: None)


def test_the_planner_checks_columns_and_previews_show_scores() -> None:
    pipeline = Pipeline(name="p", stages=[Modify(shout), ScoreFilter(WordCountFilter(3))])
    with pytest.raises(ColumnError, match="Did you mean 'texts'"):
        pipeline.plan(initial_tasks=[DocumentBatch({"texts": ["a"]})])
    preview = pipeline.preview(5, initial_tasks=[docs()])
    assert [row.scores["WordCountFilter"] for row in preview] == [3, 1, 0, 3, 0]
    assert [row.dropped_by for row in preview] == [None, "WordCountFilter", "WordCountFilter", None, "WordCountFilter"]


def test_the_package_exports_lazily() -> None:
    for name in ("ScoreFilter", "WordCountFilter", "UnicodeReformatter"):
        assert name in dir(gristmill.text)
    assert sorted(gristmill.text._HOME) == gristmill.text.__all__
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        gristmill.text.Nothing
    code = "import sys, gristmill.text; sys.exit('ftfy' in sys.modules or 'gristmill.text.score' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_column_errors_do_not_pass_on_control_characters() -> None:
    stage = ScoreFilter(WordCountFilter())
    with pytest.raises(ColumnError) as caught:
        stage.process(DocumentBatch({"tex\x1b[31mt": ["a"], "b": ["b"]}))
    assert "\x1b" not in str(caught.value)
    with pytest.raises(ColumnError) as caught:
        stage.process(DocumentBatch(pa.table({"text": [{"\x1b[31m": 1}]})))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScoreFilter(WordCountFilter(), text_field=5), "text_field is 5, must be the name of a column"),
        (lambda: ScoreFilter(WordCountFilter(), text_field=None), "text_field is None"),
        (lambda: ScoreFilter(WordCountFilter(), invert="no"), "invert is 'no', must be True or False"),
        (lambda: Filter(bool, 3), "filter_field is 3"),
        (lambda: Score(len, "n", text_field=""), "text_field is ''"),
    ],
)
def test_arguments_of_another_type_are_refused(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_verbose_is_taken_and_changes_nothing() -> None:
    assert texts(ScoreFilter(WordCountFilter(3), verbose=True).process(docs())) == ["one two three.", "four five six"]
    assert Filter(lambda text: text == "x", "text", verbose=True).process(docs(["x", "y"])).num_items == 1


def test_a_function_that_returns_bytes_is_refused() -> None:
    for stage in (Modify(str.encode), Modify(lambda text, n: b"x", ["text", "n"], "out")):
        with pytest.raises(ContractError, match="returned bytes: return text"):
            stage.process(DocumentBatch([{"text": "a", "n": 1}]))
