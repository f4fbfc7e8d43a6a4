"""A real HTTP server on this machine whose files can be told to fail in the ways that servers do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[["Handler", bytes], bool]
"""Answers a request in its own way, or returns False to leave it to the server."""


@dataclass
class Web:
    """What the server has, what goes wrong with it (a request uses up the first fault of its path), what was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    most_at_once: int = 0
    now: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def times(self, path: str) -> int:
        return sum(asked == path for asked, _ in self.asked)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        web = self.web
        with web.lock:
            web.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            web.now += 1
            web.most_at_once = max(web.most_at_once, web.now)
            faults = web.faults.get(self.path, [])
            fault = faults.pop(0) if faults else None
        try:
            body = web.files.get(self.path)
            if fault is not None and fault(self, body or b""):
                return
            self.answer(404, b"nothing here") if body is None else self.give(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with web.lock:
                web.now -= 1

    def give(self, body: bytes) -> None:
        """The file, or the part of it that is asked for, if it is still the same."""
        etag = self.web.etags.get(self.path, '"1"')
        wanted = self.headers.get("Range")
        if wanted and self.headers.get("If-Range", etag) == etag:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else len(body), len(body))
            if start >= len(body):
                self.answer(416, b"", {"Content-Range": f"bytes */{len(body)}"})
                return
            span = f"bytes {start}-{end - 1}/{len(body)}"
            self.answer(206, body[start:end], {"Content-Range": span, "ETag": etag})
            return
        self.answer(200, body, {"ETag": etag})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        sent_headers = {"Content-Length": str(len(body)), **(headers or {})}
        for name, value in sent_headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def status(code: int, **headers: str) -> Fault:
    def fault(handler: Handler, body: bytes) -> bool:
        handler.answer(code, b"no", {name.replace("_", "-"): value for name, value in headers.items()})
        return True

    return fault


def cut(after: int, etag: str = '"1"') -> Fault:
    """The connection ends after so many bytes of the file."""

    def fault(handler: Handler, body: bytes) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("ETag", etag)
        handler.end_headers()
        handler.wfile.write(body[:after])
        handler.close_connection = True
        return True

    return fault


def redirect(to: str) -> Fault:
    return status(302, Location=to)


@contextmanager
def serve() -> Iterator[Web]:
    web = Web()
    kind = type("Bound", (Handler,), {"web": web})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    web.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
