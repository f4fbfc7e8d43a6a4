"""A server on this machine that plays a host of files, with the faults of real ones."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gristmill import LocalExecutor, Pipeline
from gristmill.core.arrow.table_conversion import POSITION


class Shelf:
    """Files by path. `faults[path]` are answered first, one for each request: a status, or "cut" for half a body."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.faults: dict[str, list[int | str]] = {}
        self.asked: Counter[str] = Counter()
        self.url = ""


@contextmanager
def open_shelf() -> Iterator[Shelf]:
    shelf = Shelf()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            shelf.asked[path] += 1
            faults = shelf.faults.get(path)
            fault = faults.pop(0) if faults else None
            body = shelf.files.get(path)
            if isinstance(fault, int) or body is None:
                self.send_response(fault if isinstance(fault, int) else 404)
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start, end = 0, len(body)
            wanted = self.headers.get("Range", "")
            if wanted.startswith("bytes="):
                first, _, last = wanted[6:].partition("-")
                start, end = int(first), min(int(last or end) + 1, end)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(end - start))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Type", shelf.types.get(path, "application/octet-stream"))
            self.send_header("ETag", '"one"')
            self.end_headers()
            if fault == "cut":
                self.wfile.write(body[start : start + (end - start) // 2])
                self.close_connection = True
                return
            if self.command != "HEAD":
                self.wfile.write(body[start:end])

        do_HEAD = do_GET  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    shelf.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield shelf
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def rows_of(*stages: Any, **settings: Any) -> tuple[list[dict[str, Any]], Any]:
    """The rows that a pipeline of the stages gives, run in this process, and its result."""
    result = Pipeline("download", stages=list(stages)).run(LocalExecutor(0), max_errors=None, **settings)
    rows = [row for task in result for row in task.to_rows()]
    return [{name: value for name, value in row.items() if name != POSITION} for row in rows], result
