"""Stages that ask a model: one answer per row, each paid for once, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError
from gristmill.models.llm import Answer, AnswerStore, AsyncOpenAIClient, FailedRequest, GenerationConfig, LLMStage
from gristmill.samples.batch import DocumentBatch
from gristmill.text import JsonlReader, JsonlWriter
from tests.llm_server import MODEL, FaultProxy

CONFIG = GenerationConfig(max_tokens=4)
FILES, ROWS = 3, 4
ALL = FILES * ROWS


class Ask(LLMStage[DocumentBatch, DocumentBatch]):
    """Adds what the model says of each text."""

    name = "ask"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        texts = task.data.column("text").to_pylist()
        outcomes = self.ask([self.request([{"role": "user", "content": text}]) for text in texts])
        for row, outcome in zip(task.to_rows(), outcomes, strict=True):
            if isinstance(outcome, FailedRequest):
                self.set_aside(outcome.reason, row={**row, "answer": outcome.raw})
        kept = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Answer)]
        said = pa.array([outcome.text for outcome in outcomes if isinstance(outcome, Answer)], pa.string())
        return task.take(kept).with_column("said", said)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for file in range(FILES):
        lines = [json.dumps({"text": f"What is {file * ROWS + row} plus one?"}) for row in range(ROWS)]
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def run(corpus: Path, stage: LLMStage[Any, Any], name: str, workers: int = 0, **settings: Any) -> Any:
    out = corpus.parent / name
    stages = [JsonlReader(str(corpus)), stage, JsonlWriter(str(out))]
    return Pipeline("p", stages=stages).run(LocalExecutor(num_workers=workers), **settings)


def output(corpus: Path, name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((corpus.parent / name).iterdir())}


def counts(result: Any) -> dict[str, float]:
    [stage] = [one for one in result.summary().stages if one.name in ("ask", "judge")]
    return dict(stage.counts)


def asked_in_all(result: Any) -> float:
    """Under a name that says so, if this attempt has not asked for all."""
    found = counts(result)
    return found.get("requests_in_all_attempts", found.get("requests", 0))


def client(url: str, **settings: Any) -> AsyncOpenAIClient:
    return AsyncOpenAIClient(base_url=url, base_delay=0.01, max_concurrent_requests=4, **settings)


@pytest.fixture
def proxied(llm_server: str) -> Iterator[Callable[..., Any]]:
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(fault: Any = lambda number, body: None) -> tuple[FaultProxy, str]:
            proxy = FaultProxy(llm_server, fault)
            return proxy, stack.enter_context(proxy.running())

        yield start


def test_a_second_run_pays_nothing_and_gives_the_same_bytes(corpus: Path, proxied: Any) -> None:
    proxy, url = proxied()
    result = run(corpus, Ask(client(url), MODEL, CONFIG), "one", 2)
    assert counts(result)["requests"] == ALL
    assert counts(result)["answer_tokens"] == ALL * 4
    first = output(corpus, "one")
    same_place = corpus.parent / "one.run" / "answers"
    again = run(corpus, Ask(client(url), MODEL, CONFIG, cache=str(same_place)), "two")
    assert len(proxy.bodies) == ALL
    assert counts(again) == {"cached_answers": ALL, "cut_answers": ALL}
    assert output(corpus, "two") == first
    replay = Ask(client("http://127.0.0.1:9/v1"), MODEL, CONFIG, cache=str(same_place))
    replay.cache_only = True
    run(corpus, replay, "three")
    assert output(corpus, "three") == first


def test_cache_only_does_not_ask(corpus: Path, proxied: Any, tmp_path: Path) -> None:
    proxy, url = proxied()
    with pytest.raises(GristmillError, match="is not in the store, and cache_only"):
        run(corpus, Ask(client(url), MODEL, CONFIG, cache=str(tmp_path / "answers"), cache_only=True), "out")
    assert not proxy.bodies


@pytest.mark.parametrize("workers", [2, pytest.param(7, marks=pytest.mark.slow)])
def test_equal_bytes_with_any_number_of_workers(corpus: Path, proxied: Any, workers: int) -> None:
    _, url = proxied(lambda number, body: ["429", None, "500", None, None][number % 5])
    run(corpus, Ask(client(url), MODEL, CONFIG), "alone")
    run(corpus, Ask(client(url), MODEL, CONFIG).with_(num_workers=workers), "many", workers)
    assert output(corpus, "many") == output(corpus, "alone")


def test_a_request_that_fails_loses_only_its_row(corpus: Path, proxied: Any) -> None:
    _, url = proxied(lambda number, body: "400" if "What is 8 " in str(body) else None)
    result = run(corpus, Ask(client(url), MODEL, CONFIG), "out", max_errors=None)
    rows = [json.loads(line) for data in output(corpus, "out").values() for line in data.splitlines()]
    assert len(rows) == ALL - 1
    [record] = result.quarantined()
    assert record.row["text"] == "What is 8 plus one?"
    assert record.error == "status 400: no"
    assert "no" in record.row["answer"]


SCRIPT = """
import sys
from pathlib import Path
from tests.models.llm.test_llm_stage import *
corpus, url, workers = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
run(corpus, Ask(client(url), MODEL, CONFIG).with_(num_workers=1), "killed", workers, run_dir=corpus.parent / "run")
"""


def kill_when(corpus: Path, url: str, workers: int, ready: Callable[[], bool]) -> None:
    """Start the run in a process group of its own, and kill all of it with -9."""
    command = [sys.executable, "-c", SCRIPT, str(corpus), url, str(workers)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        while not ready() and process.poll() is None:
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "after",
    [5, *(pytest.param(after, marks=pytest.mark.slow) for after in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11))],
)
def test_after_kill_9_only_what_was_in_flight_is_asked_again(corpus: Path, proxied: Any, after: int) -> None:
    proxy, url = proxied()
    kill_when(corpus, url, after % 3, lambda: sum(proxy.answered.values()) >= after)
    time.sleep(0.1)
    [store] = list(corpus.parent.glob("run/answers"))
    kept = len(list(AnswerStore(str(store)).lines()))
    assert kept >= after - 4
    sent = len(proxy.bodies)
    stage = Ask(client(url), MODEL, CONFIG).with_(num_workers=1)
    result = run(corpus, stage, "killed", 2, run_dir=corpus.parent / "run")
    assert asked_in_all(result) == ALL, "those of the attempt that was killed count too"
    assert len(proxy.bodies) - sent == ALL - kept
    assert sum(count - 1 for count in proxy.answered.values()) <= 4, "those that were in flight"
    run(corpus, Ask(client(url), MODEL, CONFIG), "whole")
    assert output(corpus, "killed") == output(corpus, "whole")


def test_the_budget_of_a_run(corpus: Path, proxied: Any) -> None:
    proxy, url = proxied()
    place = corpus.parent / "run"

    def attempt(tokens: int) -> Any:
        stage = Ask(client(url), MODEL, CONFIG, budget={"max_tokens_total": tokens}).with_(num_workers=2)
        return run(corpus, stage, "out", 2, run_dir=place)

    def spent() -> int:
        lines = AnswerStore(str(place / "answers")).lines()
        return sum(line["prompt_tokens"] + line["answer_tokens"] for line in lines)

    with pytest.raises(GristmillError, match="the budget of 200 tokens is spent.*start again with the same run_dir"):
        attempt(200)
    in_flight = 4 * 45
    assert 100 < spent() <= 200 + in_flight
    sent = len(proxy.bodies)
    with pytest.raises(GristmillError, match="the budget of 200 tokens is spent"):
        attempt(200)
    assert len(proxy.bodies) <= sent + 4, "what was spent is not forgotten"
    attempt(10_000)
    assert len(proxy.bodies) <= ALL + 4, "only what was in flight in another worker is paid for twice"
    assert not list((place / "quarantine").glob("*"))


class Judge(Ask):
    """Wants JSON."""

    name = "judge"
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}  # noqa: RUF012


def test_answers_of_a_schema(corpus: Path, proxied: Any) -> None:
    proxy, url = proxied()
    for file in ("1.jsonl", "2.jsonl"):
        (corpus / file).unlink()
    config = GenerationConfig(max_tokens=16)
    result = run(corpus, Judge(client(url), MODEL, config), "out", max_errors=None)
    rows = [json.loads(line) for data in output(corpus, "out").values() for line in data.splitlines()]
    assert all(isinstance(json.loads(row["said"])["sum"], int) for row in rows)
    bad = result.quarantined()
    assert len(rows) + len(bad) == ROWS
    repaired = [body for body in proxy.bodies if len(body["messages"]) == 3]
    assert counts(result).get("repairs", 0) == len(repaired)
    assert len(repaired) >= len(bad)
    assert all("the answer is not of the schema" in record.error for record in bad)
    assert all(record.row["answer"] for record in bad)


class Echo:
    """A client of another make."""

    def query_model(self, *, messages: Any, model: str, generation_config: Any = None) -> list[str]:
        if "7 " in messages[0]["content"]:
            raise ValueError("I do not like 7")
        return [f"{model}: {messages[0]['content']}"]


def test_a_client_of_another_make(corpus: Path) -> None:
    result = run(corpus, Ask(Echo(), "echo"), "out", max_errors=None)
    rows = [json.loads(line) for data in output(corpus, "out").values() for line in data.splitlines()]
    assert rows[0]["said"] == "echo: What is 0 plus one?"
    assert [record.error for record in result.quarantined()] == ["ValueError: I do not like 7"]
    assert len(rows) == ALL - 1


def test_records_of_a_run_in_object_storage(corpus: Path, proxied: Any) -> None:
    proxy, url = proxied()
    place = f"memory://{corpus.parent.name}/run"
    stage = Ask(client(url), MODEL, CONFIG, budget={"max_tokens_total": 200})
    with pytest.raises(GristmillError, match="budget of 200 tokens"):
        run(corpus, stage, "out", run_dir=place)
    sent = len(proxy.bodies)
    assert 0 < sent < ALL
    result = run(corpus, Ask(client(url), MODEL, CONFIG, budget={"max_tokens_total": 9999}), "out", run_dir=place)
    assert len(proxy.bodies) == ALL
    assert counts(result)["requests_in_all_attempts"] == ALL
    assert "requests" not in counts(result)
    assert f"{ALL} requests in all attempts" in str(result.summary())


def test_parameters_are_checked() -> None:
    with pytest.raises(TypeError, match="client must be given"):
        Ask()
    with pytest.raises(TypeError, match="must have query_model"):
        Ask(object(), "m")
    with pytest.raises(ValueError, match="model_name must be given"):
        Ask(Echo())
