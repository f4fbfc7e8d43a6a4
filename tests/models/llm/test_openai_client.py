"""The client against a real server, and against a proxy that does what servers do on bad days."""

from __future__ import annotations

import asyncio
import pickle
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gristmill.core.errors import EndpointError
from gristmill.models.llm import (
    Answer,
    AsyncOpenAIClient,
    FailedRequest,
    GenerationConfig,
    LLMRequest,
    OpenAIClient,
    image_part,
    text_part,
)
from gristmill.models.llm.openai_client import retry_after_seconds
from tests.llm_server import MODEL, FaultProxy

SHORT = GenerationConfig(max_tokens=8)
WHEAT = [{"role": "user", "content": "What is wheat?"}]


def ask(client: AsyncOpenAIClient, *requests: LLMRequest) -> list[Any]:
    async def all_at_once() -> list[Any]:
        try:
            return await asyncio.gather(*map(client.ask, requests))
        finally:
            client.close()

    return asyncio.run(all_at_once())


def question(number: int, **config: Any) -> LLMRequest:
    messages = [{"role": "user", "content": f"What comes after {number}?"}]
    return LLMRequest(MODEL, messages, GenerationConfig(**{"max_tokens": 8, **config}))


def test_both_clients_answer_alike(llm_server: str) -> None:
    arguments: dict[str, Any] = {"messages": WHEAT, "model": MODEL, "generation_config": SHORT}
    [answer] = ask(AsyncOpenAIClient(base_url=llm_server), LLMRequest(MODEL, WHEAT, SHORT))
    one = [answer.text]
    assert one == OpenAIClient(base_url=llm_server).query_model(**arguments)
    assert "heat" in one[0]
    arguments["generation_config"] = GenerationConfig(max_tokens=8, n=3, temperature=1.5)
    several = OpenAIClient(base_url=llm_server).query_model(**arguments)
    assert len(set(several)) == 3, "each answer has its own seed"


def test_an_answer_says_why_it_ended_and_what_it_took(llm_server: str) -> None:
    [cut, whole, failed] = ask(
        AsyncOpenAIClient(base_url=llm_server),
        question(1),
        question(1, max_tokens=64, stop=["."]),
        LLMRequest(MODEL, [{"role": "user", "content": "x " * 3000}], SHORT),
    )
    assert isinstance(cut, Answer)
    assert cut.is_cut
    assert cut.answer_tokens == 8
    assert cut.prompt_tokens > 10
    assert isinstance(whole, Answer)
    assert whole.finish_reason == "stop"
    assert isinstance(failed, FailedRequest)
    assert failed.status == 400
    assert "exceeds the available context" in failed.reason
    assert "n_prompt_tokens" in str(failed.raw)


def test_models(llm_server: str) -> None:
    async def listed() -> list[str]:
        client = AsyncOpenAIClient(base_url=llm_server)
        try:
            return await client.models()
        finally:
            client.close()

    assert any("SmolLM2" in name for name in asyncio.run(listed()))


@pytest.mark.parametrize("fault", ["429", "500", "cut", "html", "slow"])
def test_what_passes_is_tried_again(llm_server: str, fault: str) -> None:
    proxy = FaultProxy(llm_server, lambda number, body: fault if number == 0 else None)
    with proxy.running() as url:
        client = AsyncOpenAIClient(base_url=url, base_delay=0.01, timeout=1.0 if fault == "slow" else 60.0)
        [answer] = ask(client, question(1))
    assert isinstance(answer, Answer)
    assert len(proxy.bodies) == 2
    waited = proxy.times[1] - proxy.times[0]
    assert waited >= (0.3 if fault == "429" else 0), "Retry-After is respected"
    assert client.take_counts() == {"retries": 1}


@pytest.mark.parametrize(("fault", "reason"), [("500", "status 500: no"), ("cut", "cut after"), ("html", "not JSON")])
def test_after_its_retries_only_the_request_fails(llm_server: str, fault: str, reason: str) -> None:
    proxy = FaultProxy(llm_server, lambda number, body: fault if "after 1?" in str(body) else None)
    with proxy.running() as url:
        bad, good = ask(AsyncOpenAIClient(base_url=url, base_delay=0.01, max_retries=2), question(1), question(2))
    assert isinstance(good, Answer)
    assert isinstance(bad, FailedRequest)
    assert reason in bad.reason
    assert "(tried 3 times)" in bad.reason


def test_a_refusal_is_no_failure_but_ends_with_max_wait(llm_server: str) -> None:
    proxy = FaultProxy(llm_server, lambda number, body: "429")
    proxy.retry_after = "0.1"
    with proxy.running() as url:
        [bad] = ask(AsyncOpenAIClient(base_url=url, base_delay=0.01, max_retries=1, max_wait_s=0.5), question(1))
    assert isinstance(bad, FailedRequest)
    assert bad.status == 429
    assert len(proxy.bodies) > 2


def test_a_refusal_halves_what_is_in_flight(llm_server: str) -> None:
    proxy = FaultProxy(llm_server, lambda number, body: "429" if number < 8 else None)
    proxy.retry_after = "0.2"
    with proxy.running() as url:
        client = AsyncOpenAIClient(base_url=url, base_delay=0.01, max_concurrent_requests=8)
        answers = ask(client, *[question(number) for number in range(16)])
    assert all(isinstance(answer, Answer) for answer in answers)
    assert proxy.most_in_flight <= 8
    assert all(second - proxy.times[7] > 0.15 for second in proxy.times[8:]), "all requests wait, not only the refused"


def test_no_more_in_flight_than_may_be(llm_server: str) -> None:
    proxy = FaultProxy(llm_server)
    with proxy.running() as url:
        client = AsyncOpenAIClient(base_url=url, max_concurrent_requests=6)
        client.share(2)
        ask(client, *[question(number) for number in range(9)])
    assert proxy.most_in_flight == 3


@pytest.mark.parametrize("limit", [{"requests_per_minute": 300}, {"tokens_per_minute": 3600}])
def test_limits_per_minute(llm_server: str, limit: dict[str, float]) -> None:
    proxy = FaultProxy(llm_server)
    with proxy.running() as url:
        client = AsyncOpenAIClient(base_url=url, max_concurrent_requests=30, **limit)
        began = time.monotonic()
        ask(client, *[question(1, max_tokens=4) for _ in range(20)])
    assert time.monotonic() - began > 1.5, "10 of the 20 are a burst, the others 0.2 s apart"


def test_an_endpoint_that_refuses_everything_ends_the_run(llm_server: str) -> None:
    with FaultProxy(llm_server, lambda number, body: "401").running() as url:
        client = AsyncOpenAIClient(base_url=url, api_key="sk-very-secret")
        with pytest.raises(EndpointError, match="status 401.*Check api_key") as caught:
            ask(client, question(1))
        assert "very-secret" not in repr(client.__dict__) + str(caught.value)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match=r"\(tried 2 times\)\. Is the server running\? .*same run_dir"):
            ask(AsyncOpenAIClient(base_url=url, base_delay=0.01, max_retries=1), question(1))
        with pytest.raises(EndpointError, match=r"Is the server running\?$"):  # what the doctor says
            asyncio.run(AsyncOpenAIClient(base_url=url).models())


def test_a_connection_that_the_server_closed_meanwhile_is_made_anew(llm_server: str) -> None:
    async def twice(url: str) -> list[Any]:
        client = AsyncOpenAIClient(base_url=url, max_retries=0)
        first = await client.ask(question(1))
        [(_, pool, _)] = client._live.values()
        for connection in pool._idle:
            connection.transport.abort()
        second = await client.ask(question(1))
        client.close()
        return [first, second]

    first, second = asyncio.run(twice(llm_server))
    assert first.text == second.text


@contextmanager
def one_answer(raw: bytes) -> Iterator[str]:
    """A server that answers the first request with these bytes, and closes the connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            for at in range(0, len(raw), 7):  # in many pieces
                connection.sendall(raw[at : at + 7])
                time.sleep(0.0005)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    thread.join(5)
    server.close()


BODY = b'{"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}'
CHUNKS = b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in (BODY[:10], BODY[10:]))


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
        b"HTTP/1.0 200 OK\r\n\r\n" + BODY,
    ],
)
def test_the_forms_of_http(raw: bytes) -> None:
    with one_answer(raw) as url:
        [answer] = ask(AsyncOpenAIClient(base_url=url, max_retries=0), question(1))
    assert isinstance(answer, Answer)
    assert answer.text == "yes"


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"choices": []}',
        b"",
    ],
)
def test_what_is_no_answer_is_a_failed_request(raw: bytes) -> None:
    with one_answer(raw) as url:
        [failed] = ask(AsyncOpenAIClient(base_url=url, max_retries=0), question(1))
    assert isinstance(failed, FailedRequest), failed


def test_a_client_travels_without_its_connections(llm_server: str) -> None:
    client = AsyncOpenAIClient(base_url=llm_server, api_key="sk-secret")
    ask(client, question(1))
    other = pickle.loads(pickle.dumps(client))
    assert str.__str__(other.api_key) == "sk-secret"
    assert ask(other, question(1))[0].text == ask(client, question(1))[0].text


def test_the_key_depends_on_all_that_is_asked_and_on_nothing_else() -> None:
    same = {question(1).key, question(1).key, LLMRequest(MODEL, question(1).messages, SHORT).key}
    assert len(same) == 1
    picture = [{"role": "user", "content": [text_part("What is this?"), image_part(b"\x89PNG\r\n\x1a\n....")]}]
    assert "data:image/png;base64," in LLMRequest(MODEL, picture).payload.decode()
    others = [
        question(2),
        question(1, temperature=0.5),
        question(1, seed=1),
        LLMRequest("other", question(1).messages, SHORT),
        LLMRequest(MODEL, question(1).messages, SHORT, schema={"type": "object"}),
        LLMRequest(MODEL, question(1).messages, SHORT, sample=1),
        LLMRequest(MODEL, question(1).messages, GenerationConfig(max_tokens=8, extra_kwargs={"min_p": 0.1})),
        LLMRequest(MODEL, picture),
    ]
    assert len({request.key for request in others} | same) == len(others) + 1


@pytest.mark.parametrize(
    ("value", "seconds"), [("3", 3), ("0.5", 0.5), (None, 0), ("soon", 0), ("-1", 0), ("nan", 0), ("1e999", 0)]
)
def test_retry_after(value: str | None, seconds: float) -> None:
    assert retry_after_seconds(value) == seconds


def test_parameters_are_checked() -> None:
    for wrong in ({"base_url": "localhost:8000"}, {"base_url": "ftp://x/v1"}, {"base_url": "http://a:b@x/v1"}):
        with pytest.raises(ValueError, match="base_url"):
            AsyncOpenAIClient(**wrong)
    with pytest.raises(ValueError, match="max_concurrent_requests"):
        AsyncOpenAIClient(0)
    with pytest.raises(ValueError, match="max_tokens"):
        GenerationConfig(max_tokens=0)


# -- TLS and proxies ---------------------------------------------------------------------------------------


@contextmanager
def tls_server(folder: Path) -> Iterator[tuple[int, str]]:
    """The port of a server with a certificate of its own, and the file with that."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200 if self.headers["Authorization"] == "Bearer sk-1" else 401)
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server.server_address[1], str(certificate)
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def connect_proxy(seen: list[bytes]) -> Iterator[int]:
    """The port of a proxy that opens tunnels."""
    server = socket.create_server(("127.0.0.1", 0))

    def relay(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        client, _ = server.accept()
        head = client.recv(65536)
        seen.append(head)
        port = int(head.split()[1].rpartition(b":")[2])
        with client, socket.create_connection(("127.0.0.1", port)) as target:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            other = threading.Thread(target=relay, args=(target, client), daemon=True)
            other.start()
            relay(client, target)
            other.join(5)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    thread.join(5)
    server.close()


def test_tls_with_and_without_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tls_server(tmp_path) as (port, certificate):
        url = f"https://localhost:{port}/v1"
        settings: dict[str, Any] = {"base_url": url, "api_key": "sk-1", "max_retries": 0, "base_delay": 0.01}
        with pytest.raises(EndpointError, match="CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            ask(AsyncOpenAIClient(**settings), question(1))
        direct = ask(AsyncOpenAIClient(**settings, ca_file=certificate), question(1), question(2))
        assert [answer.text for answer in direct] == ["yes", "yes"]
        seen: list[bytes] = []
        with connect_proxy(seen) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:pass@127.0.0.1:{proxy}")
            monkeypatch.setenv("https_proxy", f"http://me:pass@127.0.0.1:{proxy}")
            monkeypatch.setenv("no_proxy", "")
            monkeypatch.setenv("NO_PROXY", "")
            [tunnelled] = ask(AsyncOpenAIClient(**settings, ca_file=certificate), question(1))
        assert tunnelled.text == "yes"
        assert seen[0].startswith(b"CONNECT localhost:%d " % port)
        assert b"Basic bWU6cGFzcw==" in seen[0]
        assert b"sk-1" not in seen[0]
