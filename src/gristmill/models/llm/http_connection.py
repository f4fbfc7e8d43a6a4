"""HTTP/1.1 for JSON over asyncio: one POST or GET after the other on connections that stay open.

Some 0.1 ms of CPU per request, which is why this is not done with a general library. It keeps connections alive, speaks
TLS with the certificates of the system, and goes through the proxies of the environment (HTTPS_PROXY, NO_PROXY).

What is given up: redirects, cookies, compression, HTTP/2, and answers that are streamed.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping
from typing import NamedTuple, cast
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

MAX_HEAD_BYTES = 64 * 2**10
MAX_BODY_BYTES = 256 * 2**20
_NO_BODY = (204, 304)
_END = b"\r\n\r\n"


class HttpAnswer(NamedTuple):
    """A complete answer; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class CutAnswerError(ConnectionError):
    """The connection ended, or made no sense, before the answer was complete."""


class StaleConnectionError(CutAnswerError):
    """A connection that was kept open had been closed by the server, before it got the request."""


class _Exchange(asyncio.Protocol):
    """One connection: what comes in belongs to the one request that waits."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.reusable, self.closed = True, False
        self._used = self._bodiless = False
        self._received = 0
        self._buffer = bytearray()
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        self._head: tuple[int, dict[str, str]] | None = None
        self._length: int | None = None
        self._chunks: bytearray | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    async def send(self, request: bytes, bodiless: bool = False) -> HttpAnswer:
        """Send a request, and wait for its answer; that to CONNECT is `bodiless`."""
        assert self.transport is not None, "connected"
        if self.closed:
            raise StaleConnectionError("the server closed the connection")
        self._waiter = asyncio.get_running_loop().create_future()
        self._head, self._length, self._chunks, self._received = None, None, None, 0
        self._bodiless = bodiless
        self.transport.write(request)
        try:
            answer = await self._waiter
        except BaseException:
            self.close()
            raise
        self._used = True
        return answer

    def close(self) -> None:
        self.reusable = False
        self.closed = True
        if self.transport is not None:
            self.transport.abort()  # a polite end of TLS would take longer than event loops live

    # -- what comes in ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._waiter is None or self._waiter.done():
            self.close()  # an answer that nobody has asked for
            return
        try:
            self._advance(self._waiter)
        except (ValueError, CutAnswerError) as error:
            self._waiter.set_exception(CutAnswerError(f"the answer is not HTTP that can be read: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed, self.reusable = True, False
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._head is not None and self._length is None and self._chunks is None and exc is None:
            self._finish(waiter, bytes(self._buffer))  # without a length, a body ends with the connection
        elif self._used and self._head is None and not self._buffer:
            waiter.set_exception(StaleConnectionError("the server closed the connection"))
        else:
            received = len(self._buffer) + self._received
            why = f" ({exc})" if exc else ""
            waiter.set_exception(CutAnswerError(f"the connection was cut after {received:,} bytes of the answer{why}"))

    def _advance(self, waiter: asyncio.Future[HttpAnswer]) -> None:
        if self._head is None and not self._read_head():
            return
        if self._chunks is not None:
            if self._read_chunks(self._chunks):
                self._finish(waiter, bytes(self._chunks))
        elif self._length is not None and len(self._buffer) >= self._length:
            body = bytes(self._buffer[: self._length])
            self.reusable = self.reusable and len(self._buffer) == self._length
            self._finish(waiter, body)
        elif len(self._buffer) > MAX_BODY_BYTES:
            raise CutAnswerError(f"more than {MAX_BODY_BYTES:,} bytes")

    def _read_head(self) -> bool:
        end = self._buffer.find(_END)
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise CutAnswerError("its headers do not end")
            return False
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1."):
            raise CutAnswerError(f"it begins with {lines[0][:40]!r}")
        status = int(rest[:3])
        if status < 200:
            return self._read_head()
        named = (line.partition(":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in named}
        self._head = status, headers
        self.reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        if status in _NO_BODY or self._bodiless:
            self._length = 0
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._chunks = bytearray()  # not a list: chunks may be of one byte each
        elif (length := headers.get("content-length")) is not None:
            self._length = int(length)
            if not 0 <= self._length <= MAX_BODY_BYTES:
                raise CutAnswerError(f"a length of {length[:40]}")
        return True

    def _read_chunks(self, chunks: bytearray) -> bool:
        """Take the complete chunks out of the buffer. True after the last one."""
        at = 0
        try:
            while True:
                line_end = self._buffer.find(b"\r\n", at)
                if line_end < 0:
                    if len(self._buffer) - at > MAX_HEAD_BYTES:
                        raise CutAnswerError("the length of a chunk does not end")
                    return False
                size = int(bytes(self._buffer[at:line_end]).partition(b";")[0], 16)
                if size < 0 or size + self._received > MAX_BODY_BYTES:
                    raise CutAnswerError(f"more than {MAX_BODY_BYTES:,} bytes")
                if size == 0:
                    return self._read_trailers(line_end)
                if len(self._buffer) < line_end + 2 + size + 2:
                    return False
                chunks += self._buffer[line_end + 2 : line_end + 2 + size]
                self._received += size
                at = line_end + 2 + size + 2
        finally:
            del self._buffer[:at]

    def _read_trailers(self, line_end: int) -> bool:
        end = self._buffer.find(_END, line_end)
        if end < 0:
            if len(self._buffer) - line_end > MAX_HEAD_BYTES:
                raise CutAnswerError("what follows its body does not end")
            return False
        self.reusable = self.reusable and len(self._buffer) == end + 4
        return True

    def _finish(self, waiter: asyncio.Future[HttpAnswer], body: bytes) -> None:
        assert self._head is not None, "read before the body"
        self._buffer.clear()
        waiter.set_result(HttpAnswer(*self._head, body))


class HttpPool:
    """Connections to one server, for the tasks of one event loop."""

    def __init__(
        self, base_url: str, headers: bytes = b"", ca_file: str | None = None, connect_timeout_s: float = 20.0
    ) -> None:
        """`headers` are whole lines, sent with each request."""
        self.parts = split_base_url(base_url)
        self.connect_timeout_s, self._headers = connect_timeout_s, headers
        self._secure = self.parts.scheme == "https"
        self._tls = ssl.create_default_context(cafile=ca_file) if self._secure else None
        self._host, self._port = self.parts.hostname or "", self.parts.port or (443 if self._secure else 80)
        self._proxy = _proxy_for(self.parts)
        self._idle: list[_Exchange] = []
        self._prefix = self.parts.path.rstrip("/")

    async def request(self, method: str, path: str, body: bytes = b"") -> HttpAnswer:
        """Send a request, and wait for its answer."""
        connection = await self._connection()
        try:
            answer = await connection.send(self._message(method, path, body))
        except StaleConnectionError:
            connection = await self._connect()
            answer = await connection.send(self._message(method, path, body))
        if connection.reusable and not connection.closed:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _message(self, method: str, path: str, body: bytes) -> bytes:
        target, headers = self._prefix + path, self._headers
        if self._proxy and not self._secure:
            target = f"http://{_host_header(self.parts)}{target}"
            headers = headers + _proxy_login(self._proxy)
        start = f"{method} {target} HTTP/1.1\r\nHost: {_host_header(self.parts)}\r\n".encode()
        return b"%bContent-Length: %d\r\nAccept-Encoding: identity\r\n%b\r\n%b" % (start, len(body), headers, body)

    async def _connection(self) -> _Exchange:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return await self._connect()

    async def _connect(self) -> _Exchange:
        async with asyncio.timeout(self.connect_timeout_s):
            if self._proxy is None:
                return await self._open(self._host, self._port, self._tls, self._host)
            port = self._proxy.port or 80
            connection = await self._open(self._proxy.hostname or "", port, None, "")
            if self._tls is not None:
                await self._tunnel(connection, self._proxy, self._tls)
            return connection

    async def _open(self, host: str, port: int, tls: ssl.SSLContext | None, name: str) -> _Exchange:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Exchange, host, port, ssl=tls, server_hostname=name if tls is not None else None
        )
        return connection

    async def _tunnel(self, connection: _Exchange, proxy: SplitResult, tls: ssl.SSLContext) -> None:
        place = f"{self._host}:{self._port}"
        opening = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n".encode()
        answer = await connection.send(opening + _proxy_login(proxy) + b"\r\n", bodiless=True)
        if answer.status != 200:
            connection.close()
            raise ConnectionError(f"the proxy {proxy.hostname} answers {answer.status}")
        assert connection.transport is not None, "connected"
        loop = asyncio.get_running_loop()
        connection.transport = await loop.start_tls(connection.transport, connection, tls, server_hostname=self._host)
        connection._used, connection.reusable = False, True


def split_base_url(base_url: str) -> SplitResult:
    """The parts of the address of a server. Raises a ValueError if it is none."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"base_url is {base_url!r}, must be like 'http://localhost:8000/v1'")
    if parts.username or parts.password:
        raise ValueError("base_url contains a login: give it as api_key instead")
    return parts


def _host_header(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _proxy_for(parts: SplitResult) -> SplitResult | None:
    """The proxy for a server, by the environment. Those that speak TLS themselves are not used."""
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    found = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if found.scheme != "http":
        raise ValueError(f"a proxy of the kind {found.scheme}:// cannot be used: http:// can")
    return found


def _proxy_login(proxy: SplitResult) -> bytes:
    if not proxy.username:
        return b""
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return b"Proxy-Authorization: Basic %b\r\n" % base64.b64encode(login)
