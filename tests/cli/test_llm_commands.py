"""Commands around language models: prompts without asking, estimates, batch files, and whether a server answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from gristmill.cli.main import app
from gristmill.models.llm import AnswerStore
from tests.llm_server import MODEL

RECIPE = """
name: rewrite
vars: {{url: "http://127.0.0.1:9/v1", cache: null}}
stages:
  - JsonlReader: {{file_paths: {folder}/in}}
  - RewriteStage:
      client: {{base_url: "${{url}}", max_concurrent_requests: 4, base_delay: 0.01, max_retries: 0}}
      model_name: {model}
      generation_config: {{max_tokens: 8}}
      min_length_ratio: null
      keep_cut: true
      cache: {folder}/answers
      budget: {{prices: {{{model}: {{input: 1000, output: 2000}}}}}}
  - LLMFilter:
      rubric: It is good.
      min_score: 1
      client: {{base_url: "${{url}}"}}
      model_name: {model}
  - JsonlWriter: {{path: {folder}/out}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "in").mkdir()
    rows = [{"text": f"Number {number} is a number of some importance."} for number in range(12)]
    (tmp_path / "in" / "a.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE.format(folder=tmp_path, model=MODEL).replace("cache: null", 'other: ""'))
    return str(file)


def gristmill(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_prompts_are_shown_without_asking(recipe: str) -> None:
    shown = gristmill("llm", "prompts", recipe, "-n", "3")
    assert shown.count("--- RewriteStage, prompt") == 3
    assert shown.count("--- LLMFilter, prompt") == 3
    assert "Text:\nNumber 2 is a number of some importance." in shown
    assert "[system]\nYou are a careful editor." in shown


def test_a_recipe_that_asks_nobody(tmp_path: Path, recipe: str) -> None:
    file = tmp_path / "plain.yaml"
    file.write_text("stages:\n  - JsonlReader: {file_paths: in}\n")
    assert "asks a language model" in gristmill("llm", "prompts", str(file), code=2)


def test_an_estimate_asks_nobody(recipe: str) -> None:
    shown = " ".join(gristmill("plan", recipe, "--estimate").split())
    assert "RewriteStage: 12 requests to smollm2" in shown
    assert "at most 96 out; cost at most " in shown
    assert "time not known before there are answers" in shown
    assert "without the time of answers, which is not known" in shown
    assert "LLMFilter: 12 requests to smollm2" in shown
    assert "cost not known (no price of the model)" in shown


def test_files_for_a_batch_api(recipe: str, tmp_path: Path, llm_server: str) -> None:
    assert "12 requests in 1 file" in gristmill("llm", "export", recipe, str(tmp_path / "batch"))
    [file] = (tmp_path / "batch").iterdir()
    requests = [json.loads(line) for line in file.read_text().splitlines()]
    assert [request["body"]["max_tokens"] for request in requests] == [8] * 12
    assert gristmill("llm", "export", recipe, str(tmp_path / "batch"), code=1).count("is there already") == 1
    results = [
        {"custom_id": request["custom_id"], "response": {"status_code": 200, "body": body(number)}}
        for number, request in enumerate(requests)
    ]
    results[3] = {"custom_id": requests[3]["custom_id"], "error": {"message": "expired"}}
    results.reverse()
    done = tmp_path / "done.jsonl"
    done.write_text("".join(json.dumps(result) + "\n" for result in results) + "junk\n")
    said = gristmill("llm", "import", str(done), "--answers", str(tmp_path / "answers"), code=1)
    assert "11 answers" in said
    assert "expired" in said
    assert "2 lines without an answer" in said
    assert "1 request in 1 file" in gristmill("llm", "export", recipe, str(tmp_path / "rest"))
    shown = " ".join(gristmill("plan", recipe, "--estimate").split())
    assert "RewriteStage: 1 requests to smollm2, " in shown
    assert "answer 4" not in shown
    text = Path(recipe).read_text()
    Path(recipe).write_text(text[: text.index("  - LLMFilter")] + text[text.index("  - JsonlWriter") :])
    gristmill("run", recipe, "--set", f"url={llm_server}", "-q")
    rows = [json.loads(line) for line in next((tmp_path / "out").iterdir()).read_text().splitlines()]
    assert [row["text"] for row in rows if row["text"].startswith("answer")][:3] == ["answer 0", "answer 1", "answer 2"]
    assert len(list(AnswerStore(str(tmp_path / "answers")).lines())) == 12


def body(number: int) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": f"answer {number}"}, "finish_reason": "stop"}
    return {"model": MODEL, "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}


def test_doctor_asks_the_endpoint(llm_server: str, recipe: str) -> None:
    found = json.loads(gristmill("doctor", "--endpoint", llm_server, "--json"))["findings"]
    [endpoint] = [finding for finding in found if finding["area"] == "endpoint"]
    assert endpoint["state"] == "ok"
    assert "SmolLM2" in endpoint["text"]
    found = json.loads(gristmill("doctor", recipe, "--json", code=1))["findings"]
    assert [finding["name"] for finding in found if finding["state"] == "problem"] == ["RewriteStage", "LLMFilter"]
    found = json.loads(gristmill("doctor", recipe, "--set", f"url={llm_server}", "--json"))["findings"]
    [first, _] = [finding for finding in found if finding["area"] == "endpoint"]
    assert first["state"] == "note"
    assert "it lists no 'smollm2'" in first["text"]
