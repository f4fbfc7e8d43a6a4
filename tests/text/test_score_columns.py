"""Score, filter and modify stages: what columns they take, and what they promise."""

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import gristmill.text
from gristmill import DocumentBatch, Pipeline
from gristmill.core.arrow.table_conversion import JSON, json_array
from gristmill.core.deciding_stage import DecidingStage
from gristmill.core.errors import ColumnError, ContractError, StageError
from gristmill.core.run.worker import Worker
from gristmill.text import (
    Filter,
    Modify,
    Score,
    ScoreFilter,
    UrlRemover,
    WordCountFilter,
)
from tests.text.document_batches import docs, shout, texts

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
    assert isinstance(ScoreFilter(WordCountFilter()), DecidingStage)
    assert isinstance(Filter(bool, "n"), DecidingStage)
    assert not isinstance(Score(len, "n"), DecidingStage)
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
        with pytest.raises(ContractError, match="returned bytes: return a string"):
            stage.process(DocumentBatch([{"text": "a", "n": 1}]))
