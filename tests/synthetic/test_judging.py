"""Judges, filters by judges, labels and the best of several answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import InputError
from gristmill.samples.batch import DocumentBatch
from gristmill.synthetic import AnnotateStage, LLMFilter, LLMJudgeStage, RejectionSamplingStage, Rubric

RUBRIC = {"criteria": {"accuracy": "What it says is true.", "clarity": "It is easy to read."}, "scale": [1, 5]}
ROWS = [{"text": "Wheat is a grass."}, {"text": "xx yy zz"}, {"text": "Bread is made of flour."}]


class Scripted:
    """A client that answers by a function of model, text and seed, for what a small model would not say reliably."""

    def __init__(self, answer: Callable[[str, str, int], Any]) -> None:
        self.answer = answer

    def query_model(self, *, messages: Any, model: str, generation_config: Any = None) -> list[str]:
        asked = next(message["content"] for message in messages if message["role"] == "user")
        said = self.answer(model, asked, generation_config.seed)
        return [said if isinstance(said, str) else orjson.dumps(said).decode()]


def judging(model: str, text: str, seed: int) -> Any:
    if "xx" in text:
        return "I cannot say"
    strict = model == "strict"
    return {"accuracy": 2 if strict else 4, "clarity": 5 if "Bread" in text else 3}


def test_a_real_model_judges(asked: Any, run: Any) -> None:
    asked["generation_config"] = {"max_tokens": 30}
    rows = run(LLMJudgeStage(RUBRIC, **asked), ROWS[:1])
    assert len(rows) + len(run.result.quarantined()) == 1
    for row in rows:
        assert row["judge_accuracy"] in range(1, 6)
        assert row["judge_agreement"] is None
        assert row["judge_score"] == (row["judge_accuracy"] + row["judge_clarity"]) / 2


def test_several_judges_and_their_agreement(run: Any) -> None:
    stage = LLMJudgeStage(RUBRIC, Scripted(judging), judges=["strict", "mild"])
    wheat, bread = run(stage, ROWS)
    assert wheat["judge_accuracy"] == 3
    assert wheat["judge_clarity"] == 3
    assert wheat["judge_score"] == 3
    assert wheat["judge_agreement"] == 1 - (2 / 4 + 0) / 2
    assert bread["judge_score"] == 4
    [record] = run.result.quarantined()
    assert record.row["text"] == "xx yy zz"
    assert record.row["raw_answer"] == "I cannot say"
    assert "the answer is not of the schema: it is not JSON" in record.error


def test_a_filter_has_scores_thresholds_and_reasons(tmp_path: Path) -> None:
    stage = LLMFilter(RUBRIC, 4.0, Scripted(judging), "mild", score_field="quality")
    result = Pipeline("p", stages=[stage]).run(
        LocalExecutor(num_workers=0), [DocumentBatch(ROWS)], max_errors=None, run_dir=tmp_path / "run", rejected=True
    )
    assert [row["text"] for task in result for row in task.to_rows()] == ["Bread is made of flour."]
    assert [record.row["text"] for record in result.quarantined()] == ["xx yy zz"]
    [file] = result.rejected()
    import pyarrow.parquet as pq

    [dropped] = pq.read_table(file).to_pylist()
    assert dropped["text"] == "Wheat is a grass."
    assert "min_score=4" in str(dropped)


def test_a_conversation_is_judged_as_text(run: Any) -> None:
    seen: list[str] = []

    def answer(model: str, text: str, seed: int) -> Any:
        seen.append(text)
        return {"quality": 5}

    rows = [{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}]
    [row] = run(LLMJudgeStage("It is kind.", Scripted(answer), "m", input_field="messages"), rows)
    assert "user: Why?\n\nassistant: So." in seen[0]
    assert "- quality: It is kind." in seen[0]
    assert row["messages"] == rows[0]["messages"]


def test_rubrics_from_files(tmp_path: Path) -> None:
    file = tmp_path / "rubric.yaml"
    file.write_text("name: kindness\nscale: [0, 1]\ncriteria:\n  kind: It is kind.\n")
    assert Rubric.of(str(file)).schema()["properties"]["kind"]["enum"] == [0, 1]
    for content, problem in (("criteria: {}", "names"), ("scale: [1, 5]", "criteria must"), ("x: 1", "no 'x'")):
        file.write_text(content)
        with pytest.raises(ValueError, match=problem):
            Rubric.of(file)
    with pytest.raises(InputError, match="cannot be read"):
        Rubric.of("none.yaml")


def test_labels_by_vote(asked: Any, run: Any) -> None:
    def answer(model: str, text: str, seed: int) -> Any:
        return {"label": "food" if "read" in text else ["food", "plant", "plant"][seed]}

    labels = {"plant": "It grows.", "food": "It is eaten."}
    rows = run(AnnotateStage(labels, Scripted(answer), "m", votes=3), [ROWS[0], ROWS[2]])
    assert [(row["label"], round(row["label_agreement"], 2)) for row in rows] == [("plant", 0.67), ("food", 1.0)]
    asked["generation_config"] = {"max_tokens": 20}
    rows = run(AnnotateStage(["plant", "animal"], **asked), ROWS[:1])
    assert [row["label"] in ("plant", "animal") for row in rows] == [True] * len(rows)


def test_the_best_of_several_answers_is_kept(run: Any) -> None:
    def answer(model: str, text: str, seed: int) -> Any:
        if model == "judge":
            return {"quality": 1 + text.count("!")}
        return "no" if "xx" in text else "yes" + "!" * [1, 3, 3, 0][seed]

    stage = RejectionSamplingStage(client=Scripted(answer), model_name="m", judge_model="judge", min_score=2)
    wheat, bread = run(stage, ROWS)
    assert (wheat["answer"], wheat["answer_score"], wheat["synthetic_seed"]) == ("yes!!!", 4.0, 1)
    assert bread["text"] == "Bread is made of flour."
