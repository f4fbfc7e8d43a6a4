"""HTTP server of `gristmill view`, for this machine only.

It listens on the loopback address. The address of each page holds a secret that is drawn anew at each start, so other
users and web pages cannot ask for anything; and the name of the host must be this machine's, so that a web site which
points its own name here gets nothing. Pages may load nothing from elsewhere and run no script but the one of this
package. There is nothing to change through it: it only answers GET and HEAD.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import secrets
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gristmill.core.errors import GristmillError, InputError
from gristmill.view.data.media_in_rows import MediaContent
from gristmill.view.data.row_sets import RunOrDataset
from gristmill.view.routes import TEXT, HttpReply, PageNotFound, PageRoutes

HOST = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class View:
    """A page for a run or a dataset, served until it is closed.

    >>> with View("out/run") as view:      # doctest: +SKIP
    ...     print(view.url)
    """

    def __init__(
        self,
        url: str,
        port: int = 0,
        text_field: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        follow_paths: bool = False,
    ) -> None:
        self.routes = PageRoutes(RunOrDataset(url, storage_options or {}, follow_paths), text_field, follow_paths)
        self.token = secrets.token_urlsafe(24)
        try:
            self._server = _Server((HOST, port), _Handler)
        except OSError as error:
            raise InputError(f"cannot use port {port}: {error.strerror}. Choose another, or 0 for any") from error
        self._server.view = self
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    def serve(self) -> None:
        """Answer until interrupted."""
        with contextlib.closing(self):
            self._server.serve_forever(poll_interval=0.2)

    def start(self) -> View:
        """Answer in a thread of its own."""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="view")
        self._thread.start()
        return self

    def close(self) -> None:
        if self._thread:
            self._server.shutdown()
            self._thread.join()
        self.routes.scans.stop()
        self._server.server_close()

    def __enter__(self) -> View:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    view: View

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a browser that has gone is no error
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gristmill", ""
    timeout = 60

    def do_GET(self) -> None:
        self._send(self._reply())

    do_HEAD = do_GET  # noqa: N815

    def _reply(self) -> HttpReply:
        view = self.server.view
        if self.headers.get("Host", "") not in (f"{HOST}:{view.port}", f"localhost:{view.port}"):
            return HttpReply(b"This page is for this machine only.\n", TEXT, 403)
        try:
            address = urlsplit(self.path)
            given = dict(parse_qsl(address.query, keep_blank_values=True, max_num_fields=50))
        except ValueError:
            return HttpReply(b"Malformed address.\n", TEXT, 400)
        token, _, name = address.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), view.token.encode()):
            return HttpReply(b"Open the address printed by `gristmill view`; it contains the key.\n", TEXT, 403)
        return self._answer(view, name, given)

    @staticmethod
    def _answer(view: View, name: str, given: Mapping[str, str]) -> HttpReply:
        try:
            return view.routes.answer(name, given)
        except PageNotFound as error:
            return view.routes.failure(404, str(error))
        except GristmillError as error:
            return view.routes.failure(500, str(error))
        except Exception as error:  # noqa: BLE001  data of any kind may be here
            return view.routes.failure(500, f"This cannot be shown: {type(error).__name__}: {error}")

    def _send(self, reply: HttpReply) -> None:
        medium = reply.medium or MediaContent(reply.kind, reply.body)
        options = self.server.view.routes.data.storage_options
        size, status = medium.length(options), reply.status
        start, end = 0, size
        headers = {**HEADERS, **reply.headers, "Content-Type": reply.kind}
        if reply.kind.startswith(("audio/", "video/")):
            headers["Accept-Ranges"] = "bytes"
            if part := _range(self.headers.get("Range"), size):
                start, end = part
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
                status = 206
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(end - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for piece in medium.pieces(options, start, end):
                self.wfile.write(piece)

    def log_message(self, *_: object) -> None:
        """Addresses hold the secret, and what was searched for: they are not printed."""


def _range(wanted: str | None, size: int) -> tuple[int, int] | None:
    """The bytes that a player asks for: from, and up to but without."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
    if not found:
        return None
    start, end = int(found[1]), int(found[2]) + 1 if found[2] else size
    return (start, min(end, size)) if start < min(end, size) else None
