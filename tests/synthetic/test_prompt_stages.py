"""Stages that fill a prompt for each document: what comes out, and that no row is lost."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gristmill import LocalExecutor
from gristmill.core.errors import ColumnError, PlanError
from gristmill.recipes import load_recipe
from gristmill.synthetic import (
    DistillStage,
    DiverseQAPostProcessingStage,
    DiverseQAStage,
    ExtractKnowledgeStage,
    GenerationConfig,
    KnowledgeListPostProcessingStage,
    KnowledgeListStage,
    PromptStage,
    QAMultilingualSyntheticStage,
    RewriteStage,
    WikipediaParaphrasingStage,
)
from gristmill.synthetic.answer_checks import problem_with, strip_opening
from gristmill.synthetic.nemotron_cc_cleaning import question_answer_pairs

WHEAT = "Wheat is a grass that people grow for its seed, a cereal grain that is a staple food around the world."
ROWS = [{"id": "a", "text": WHEAT, "title": "Wheat", "bucket": "low"}, {"id": "b", "text": " ", "bucket": "low"}]
ROWS += [{"id": "c", "text": WHEAT + " It is old.", "title": "Old", "bucket": "high"}]


def test_a_prompt_is_filled_with_columns(asked: Any, run: Any) -> None:
    stage = PromptStage("Say more about {{ title }}: {{ document }}", **asked)
    first, blank, second = run(stage, ROWS)
    assert first["generated"] != second["generated"]
    assert blank["generated"] is None
    assert blank["synthetic_model"] is None
    assert first["synthetic_source"] == "a"
    assert first["synthetic_model"] == "smollm2"
    assert first["synthetic_prompt"] == f"prompt-{stage.prompt_version}"
    assert (first["synthetic_seed"], first["synthetic_finish"]) == (0, "length")
    assert "synthetic_seed" not in run(PromptStage("{{ document }}", lineage=None, **asked), ROWS)[0]


def test_a_variable_must_be_a_column(asked: Any, run: Any) -> None:
    with pytest.raises((ColumnError, PlanError), match="author"):
        run(PromptStage("{{ author }}: {{ document }}", **asked), ROWS)
    with pytest.raises(PlanError, match="does not contain"):
        run(PromptStage("Hello", **asked), ROWS)


@pytest.mark.parametrize(
    ("stage", "field"),
    [
        (WikipediaParaphrasingStage, "rephrased"),
        (DiverseQAStage, "diverse_qa"),
        (DistillStage, "distill"),
        (ExtractKnowledgeStage, "extract_knowledge"),
        (KnowledgeListStage, "knowledge_list"),
    ],
)
def test_the_steps_of_nemotron_cc(asked: Any, run: Any, stage: Any, field: str) -> None:
    [row] = run(stage(**asked), ROWS[:1])
    assert len(row[field]) > 5
    assert row["synthetic_prompt"].startswith(stage._prompt_name)
    assert stage(**asked).outputs()[1][0] == field


def test_a_prompt_of_another_tool(asked: Any, run: Any) -> None:
    [row] = run(DistillStage("Be brief.", "Shorten {document}", "text", "short", **asked), ROWS[:1])
    assert row["short"]


# -- rewriting ---------------------------------------------------------------------------------------------


def test_rewriting_replaces_only_what_is_chosen(asked: Any, run: Any) -> None:
    stage = RewriteStage(**asked, select={"bucket": ["low"]}, min_length_ratio=None, keep_cut=True)
    first, blank, high = run(stage, ROWS)
    assert first["text"] != WHEAT
    assert first["original_text"] == WHEAT
    assert (blank["text"], blank["original_text"], blank["rewrite_problem"]) == (" ", None, None)
    assert high["text"] == ROWS[2]["text"]
    assert high["synthetic_model"] is None


def test_what_is_no_use_is_not_taken_and_nothing_is_lost(asked: Any, run: Any) -> None:
    rows = run(RewriteStage(**asked, min_length_ratio=0.9), ROWS)
    assert [row["text"] for row in rows] == [row["text"] for row in ROWS]
    assert "of the source's length, less than 0.9" in rows[0]["rewrite_problem"]
    assert rows[0]["synthetic_model"] is None
    assert run(RewriteStage(**asked, min_length_ratio=None), ROWS)[0]["rewrite_problem"] == "it was cut at max_tokens"
    failing = {**asked, "client": FailingClient()}
    rows = run(RewriteStage(**failing), ROWS)
    assert [row["text"] for row in rows] == [row["text"] for row in ROWS]
    assert rows[0]["rewrite_problem"] == "ValueError: not today"


class FailingClient:
    def query_model(self, **_: Any) -> list[str]:
        raise ValueError("not today")


def test_rewriting_can_add_rows(asked: Any, run: Any) -> None:
    rows = run(RewriteStage(**asked, output="append", min_length_ratio=None, keep_cut=True), ROWS)
    assert [row["id"] for row in rows] == ["a", "a", "b", "c", "c"]
    assert rows[0]["text"] == WHEAT
    assert rows[1]["text"] != WHEAT
    assert [row["synthetic_source"] for row in rows] == [None, "a", None, None, "c"]
    [one, *_] = run(RewriteStage(**asked, output="column", min_length_ratio=None, keep_cut=True), ROWS)
    assert one["text"] == WHEAT
    assert one["rewritten"]


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("Sure! Here is the rewritten text:\n\nWheat.", "Wheat."),
        ("Here's a better version: Wheat.", "Wheat."),
        ('"Wheat."', "Wheat."),
        ('"Wheat" is "grass"', '"Wheat" is "grass"'),
        ("Here is the house that Jack built.", "Here is the house that Jack built."),
        ("Surely wheat: a grass", "Surely wheat: a grass"),
    ],
)
def test_opening_phrases_are_taken_off(text: str, stripped: str) -> None:
    assert strip_opening(text) == stripped


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (WHEAT, None),
        ("  ", "it is empty"),
        ("I'm sorry, but I cannot help with that request, which is about wheat and bread.", "the model refuses"),
        ("Wheat.", "less than 0.2"),
        (WHEAT * 5, "more than 4"),
        ("the same four words " * 18, "it repeats itself"),
    ],
)
def test_problems_are_found(text: str, problem: str | None) -> None:
    found = problem_with(text, WHEAT, 0.2, 4.0)
    assert (found is None) if problem is None else (found is not None and problem in found)


# -- questions and answers ---------------------------------------------------------------------------------

ANSWER = """Here are the questions and answers based on the provided text:
- Question: What is wheat?
- Answer: A grass.
  It is grown for its seed.
2. **Question:** Is it old?
**Answer:** Yes
- Question: And this one?
"""
PAIRS = [("What is wheat?", "A grass.\nIt is grown for its seed."), ("Is it old?", "Yes")]


def test_pairs_are_read() -> None:
    assert question_answer_pairs(ANSWER) == PAIRS
    assert question_answer_pairs("Q: a\nA: b") == [("a", "b")]
    assert question_answer_pairs("no pairs here") == []


def test_pairs_are_drawn_and_appended(run: Any) -> None:
    rows = [{"text": "word " * 300, "diverse_qa": ANSWER}, {"text": "x", "diverse_qa": "Question: a\nAnswer: b"}]
    rows += [{"text": "y", "diverse_qa": None}, {"text": "short", "diverse_qa": ANSWER}]
    first, short = run(DiverseQAPostProcessingStage(), rows)
    assert first["diverse_qa"].startswith("word word")
    assert first["diverse_qa"].count("Question:") in (1, 2)
    assert short["diverse_qa"].count("Question:") == 1
    assert run(DiverseQAPostProcessingStage(), rows) == [first, short]
    assert any(run(DiverseQAPostProcessingStage(seed=seed), rows)[1] != short for seed in range(1, 9))


def test_facts_are_bare_lines(run: Any) -> None:
    text = "Here are the facts:\n\n- Wheat is a grass.\n* It has **seeds**.\n3) Bread is made of it.\n"
    [row] = run(KnowledgeListPostProcessingStage(), [{"knowledge_list": text}])
    assert row["knowledge_list"] == "Wheat is a grass.\nIt has **seeds**.\nBread is made of it."


def test_texts_in_several_languages(asked: Any, run: Any) -> None:
    asked["generation_config"] = {"max_tokens": 8, "temperature": 1.0}
    stage = QAMultilingualSyntheticStage("Ask a question in {language}.", ["English", "French"], num_samples=5, **asked)
    rows = run(stage)
    assert [row["synthetic_seed"] for row in rows] == [0, 1, 2, 3, 4]
    assert {row["language"] for row in rows} == {"English", "French"}
    assert len({row["text"] for row in rows}) > 2
    fewer = QAMultilingualSyntheticStage("Ask a question in {language}.", ["English", "French"], num_samples=2, **asked)
    same = ("language", "synthetic_seed", "synthetic_prompt")
    assert [[row[name] for name in same] for row in run(fewer)] == [[row[name] for name in same] for row in rows[:2]]
    with pytest.raises(ValueError, match="languages"):
        QAMultilingualSyntheticStage("{language}", "English", **asked)


RECIPE = """
name: rewrite
stages:
  - JsonlReader: {file_paths: in}
  - RewriteStage:
      client: {base_url: "http://localhost:1/v1", api_key: "${env:SOME_TOKEN}", max_concurrent_requests: 64}
      model_name: m
      generation_config: {temperature: 0.5}
      select: {bucket: [low]}
      budget: {max_tokens_total: 1000, prices: {m: {input: 1, output: 2}}}
  - JsonlWriter: {path: out}
"""


def test_a_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("SOME_TOKEN", "sk-do-not-tell")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "a", "bucket": "low"}\n')
    recipe = load_recipe("recipe.yaml")
    stage = recipe.build().stages[1]
    assert isinstance(stage, RewriteStage)
    assert str.__str__(stage._client.api_key) == "sk-do-not-tell"
    from gristmill.recipes.pipeline_to_recipe import recipe_of

    written = recipe_of(recipe.build()).to_yaml()
    assert "sk-do-not-tell" not in written
    assert "${env:SOME_TOKEN}" in written
    (tmp_path / "again.yaml").write_text(written)
    again = load_recipe("again.yaml").build().stages[1]
    assert isinstance(again, RewriteStage)
    assert (again._config, again._client.max_concurrent_requests) == (GenerationConfig(temperature=0.5), 64)


def test_the_bundled_recipe(tmp_path: Any, llm_server: str) -> None:
    (tmp_path / "in.jsonl").write_text("".join(orjson.dumps(row).decode() + "\n" for row in ROWS))
    variables = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "out"), "url": llm_server}
    recipe = load_recipe("rewrite", {**variables, "model": "smollm2", "max_tokens": 8})
    recipe.build().run(LocalExecutor(num_workers=0))
    [file] = (tmp_path / "out").glob("*.jsonl")
    rows = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert [row["text"] for row in rows] == [row["text"] for row in ROWS]
    assert rows[0]["rewrite_problem"], "8 tokens are not enough"
    assert rows[2]["rewrite_problem"] is None
