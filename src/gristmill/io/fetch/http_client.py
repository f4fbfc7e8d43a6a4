"""HTTP: fetching with manners. Into memory (`fetch`), or into a file that is there whole or not at all (`save`).

    client = HttpClient(Manners(requests_per_second=2))
    client.fetch("https://host/paths.gz").body
    client.save("https://host/big.gz", "downloads/big.gz", checksum="sha256:...")

A download that breaks off goes on where it stopped, also in another process and days later, if the server can say that
the file is the same (If-Range). What is broken for a moment is tried again, with longer and longer waits; `Retry-After`
is obeyed, by all threads. Lengths and checksums are verified before a file gets its name. Redirects are followed one by
one, and each address is checked: see `host_limits.py`.

What is given up: cookies, logins, HTTP/2, and sharing one limit among processes: each worker has its own.
"""

from __future__ import annotations

import ipaddress
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from gristmill.core.errors import DownloadError, require
from gristmill.core.fast_dataclass import fast_dataclass

_CACHE_SECONDS = 60.0


class HostResolver:
    """Turns names into addresses, without those that are not of the public internet unless they are allowed."""

    def __init__(self, allow_private: bool = False) -> None:
        self.allow_private = allow_private
        self._known: dict[tuple[str, int], tuple[float, list[str]]] = {}

    def addresses(self, host: str, port: int, url: str) -> list[str]:
        """The addresses of a host that may be connected to. Raises a DownloadError if there are none."""
        until, found = self._known.get((host, port), (0.0, []))
        if time.monotonic() >= until:
            found = _look_up(host, port, url)
            self._known[host, port] = (time.monotonic() + _CACHE_SECONDS, found)
        allowed = found if self.allow_private else [one for one in found if is_public(one)]
        if not allowed:
            raise DownloadError(
                url,
                f"{host} is {found[0]}, an address of a private network: it is not fetched. Say allow_private=True if "
                "the addresses come from people you trust",
            )
        return allowed

    def mark_failed(self, host: str, port: int) -> None:
        """The first address of a host does not answer: the next attempt goes to another one, if there is one."""
        until, found = self._known.get((host, port), (0.0, []))
        self._known[host, port] = (until, [*found[1:], *found[:1]])

    def check_literal_address(self, host: str, url: str) -> None:
        """For a host that somebody else will look up: one that is written as an address."""
        try:
            number = ipaddress.ip_address(host)
        except ValueError:
            return
        if not self.allow_private and not is_public(str(number)):
            raise DownloadError(url, f"{host} is an address of a private network: it is not fetched")


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet, also as IPv4 within IPv6."""
    number = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(number, ipaddress.IPv6Address):
        inner = number.ipv4_mapped or number.sixtofour or (number.teredo or (None, None))[1]
        if inner is None and number in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return number.is_global and not number.is_multicast


def _look_up(host: str, port: int, url: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        passing = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        raise DownloadError(url, f"there is no host {host!r} ({error})", transient=passing) from error
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


class HostLimits:
    """How many requests to a host run at once, how far apart they begin, and how long a host wants to be left alone."""

    def __init__(self, parallel: int, per_second: float | None) -> None:
        self.parallel, self.gap = parallel, 1.0 / per_second if per_second else 0.0
        self._lock = threading.Lock()
        self._turns: dict[str, threading.BoundedSemaphore] = {}
        self._next: dict[str, float] = {}

    @contextmanager
    def request_slot(self, host: str) -> Iterator[None]:
        """Wait for a place among the requests to a host, and for the time to begin."""
        with self._lock:
            turns = self._turns.setdefault(host, threading.BoundedSemaphore(self.parallel))
        with turns:
            while (wait := self._wait(host)) > 0:
                time.sleep(wait)
            yield

    def _wait(self, host: str) -> float:
        """0.0 if a request may begin, which takes the moment; else how long to wait."""
        with self._lock:
            now, due = time.monotonic(), self._next.get(host, 0.0)
            if due > now:
                return due - now
            self._next[host] = now + self.gap
            return 0.0

    def pause_host(self, host: str, seconds: float) -> None:
        """No thread begins a request to the host for so long."""
        with self._lock:
            self._next[host] = max(self._next.get(host, 0.0), time.monotonic() + seconds)


def retry_after_seconds(value: str | None) -> float | None:
    """Seconds from a Retry-After header: a number, or a date."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        when: float = parsedate_to_datetime(value).timestamp()
        return max(0.0, when - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def backoff_seconds(attempt: int, first_s: float, most_s: float) -> float:
    """How long to wait after a failure: twice as long each time, of which half is left to chance, so that workers which
    failed together do not come back together."""
    longest = min(most_s, first_s * float(2**attempt))
    return longest / 2 + random.random() * longest / 2  # noqa: S311


READ_CHUNK_BYTES = 2**18
"""Bytes that are taken from a connection at a time."""

MAX_MEMORY_BYTES = 256 * 2**20
"""The most that `fetch` takes, unless told otherwise: what is larger belongs into a file."""

TRANSIENT_STATUSES = frozenset((408, 425, 429, 500, 502, 503, 504))
"""What a server answers when it may be better later."""

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
T = TypeVar("T")


@fast_dataclass(frozen=True)
class Manners:
    """How to behave: limits are those of one worker, and of one host."""

    requests_per_second: float | None = None
    per_host: int = 4
    connect_timeout_s: float = 20.0
    read_timeout_s: float = 60.0
    deadline_s: float | None = None
    """For one attempt as a whole."""
    slowest: int = 128
    """Bytes a second, after the first `read_timeout_s`: a server may send a byte each minute for ever. 0 waits."""
    max_retries: int = 5
    backoff_s: float = 1.0
    max_wait_s: float = 120.0
    """The longest wait, also when a server asks for a longer one: then the download fails, and says so."""
    max_redirects: int = 10
    max_bytes: int | None = None
    allow_private: bool = False
    user_agent: str = "gristmill (data curation; +https://pypi.org/project/gristmill)"

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "read_timeout_s", "backoff_s", "max_wait_s", "per_host"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be above 0")
        if self.requests_per_second is not None and self.requests_per_second <= 0:
            raise ValueError(f"requests_per_second is {self.requests_per_second!r}, must be above 0, or None")
        if self.max_retries < 0 or self.max_redirects < 0:
            raise ValueError("max_retries and max_redirects must be 0 or more")


@fast_dataclass(frozen=True)
class FetchedResponse:
    """An answer: its status, the address that it came from after redirects, its headers (names in lower case), its
    body."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@fast_dataclass(frozen=True)
class SavedFile:
    """A file that is in place. `fetched` is how many bytes came over the net for it: 0 if it was there already."""

    path: str
    size: int
    fetched: int


class HttpClient:
    """Fetches addresses. Threads may share one; a pickle holds only the manners."""

    def __init__(self, manners: Manners | None = None) -> None:
        self.manners = manners or Manners()
        self._urllib3: Any = None
        self._pools: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.Lock()
        self._resolver = HostResolver(self.manners.allow_private)
        self._limits = HostLimits(self.manners.per_host, self.manners.requests_per_second)

    def __reduce__(self) -> tuple[Any, ...]:
        return HttpClient, (self.manners,)

    def close(self) -> None:
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            (pool.clear if hasattr(pool, "clear") else pool.close)()

    def fetch(
        self,
        url: str,
        *,
        byte_range: tuple[int, int] | None = None,
        max_bytes: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> FetchedResponse:
        """The answer, in memory. `byte_range` is the first byte and the one after the last."""
        most = max_bytes or self.manners.max_bytes or MAX_MEMORY_BYTES
        asked = dict(headers or {})
        if byte_range is not None:
            start, end = byte_range
            if not 0 <= start < end:
                raise ValueError(f"byte_range is {byte_range!r}, must be (first, after the last), not empty")
            asked["Range"] = f"bytes={start}-{end - 1}"
            most = min(most, end - start)

        def once() -> FetchedResponse:
            with self.open(url, asked, decode=byte_range is None) as (answer, final):
                if byte_range is not None:
                    _check_range(url, answer, byte_range)
                body = b"".join(self.pieces(url, answer, most))
                if byte_range is not None and len(body) != end - start:
                    whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
                    if not (whole.isdecimal() and start + len(body) == int(whole)):
                        raise DownloadError(
                            url, f"{len(body):,} bytes came of the {end - start:,} asked for", transient=True
                        )
                told = {name.lower(): value for name, value in answer.headers.items()}
                return FetchedResponse(final, answer.status, told, body)

        return self.with_retries(url, once)

    def save(
        self,
        url: str,
        path: str,
        *,
        checksum: str | None = None,
        length: int | None = None,
        max_bytes: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> SavedFile:
        """Fetch into a file, unless it is there. `checksum` is like "sha256:01ab...", `length` what it must have."""
        from gristmill.io.fetch.partial_download import PartialDownload

        part = PartialDownload(url, path, checksum, length, max_bytes or self.manners.max_bytes)
        size = part.complete_size()
        if size is not None:
            return SavedFile(path, size, 0)
        size = self.with_retries(url, lambda: part.resume(self, headers or {}))
        return SavedFile(path, size, part.fetched)

    # -- one request -----------------------------------------------------------------------------------

    def with_retries(self, url: str, once: Callable[[], T]) -> T:
        """What `once` gives, which is called again after failures that may pass."""
        attempt = 0
        while True:
            try:
                return once()
            except DownloadError as error:
                if not error.transient or attempt >= self.manners.max_retries:
                    raise DownloadError(
                        url, _with_attempts(error.reason, attempt), error.status, error.transient
                    ) from error
            time.sleep(backoff_seconds(attempt, self.manners.backoff_s, self.manners.max_wait_s))
            attempt += 1

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str], decode: bool = False) -> Iterator[tuple[Any, str]]:
        """An answer that is good (2xx, or 416, which only those get who asked for a range), and its final address."""
        seen: list[str] = []
        where = url
        while True:
            with self._answer(where, url, headers, decode) as answer:
                target = answer.headers.get("Location") if answer.status in _REDIRECTS else None
                if target is None:
                    self._check_status(answer, where)
                    yield answer, where
                    return
            seen.append(where)
            where = _redirect_url(where, target, url)
            if where in seen:
                raise DownloadError(url, f"a circle of redirects: it leads back to {where}")
            if len(seen) > self.manners.max_redirects:
                raise DownloadError(url, f"more than {self.manners.max_redirects} redirects, the last one to {where}")
            if seen[-1].startswith("https:") and where.startswith("http:"):
                raise DownloadError(url, f"a redirect from https to http ({where}): it is not followed")

    @contextmanager
    def _answer(self, where: str, url: str, headers: Mapping[str, str], decode: bool) -> Iterator[Any]:
        """One request, without following anything. The connection is given back, or closed if it is of no use."""
        library = self._library()
        parts, host, port = _split_url(where, url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        usual = {"User-Agent": self.manners.user_agent, "Accept-Encoding": "identity"}
        asked = {**usual, **headers, "Host": _host_header(parts, host)}
        with self._limits.request_slot(f"{host}:{port}"):
            answer = None
            try:
                pool, proxied = self._pool(parts.scheme, host, port, where)
                answer = pool.urlopen(
                    "GET",
                    where if proxied else target,
                    headers=asked,
                    retries=False,
                    redirect=False,
                    assert_same_host=False,
                    preload_content=False,
                    decode_content=decode,
                )
                yield answer
            except library.exceptions.HTTPError as error:
                if answer is None:
                    self._resolver.mark_failed(host, port)
                raise DownloadError(url, _error_text(error), transient=_is_transient(library, error)) from error
            except ValueError as error:  # a length of thousands of digits, a header that is no text
                raise DownloadError(url, f"an answer that cannot be understood ({error})") from error
            finally:
                if answer is not None:
                    answer.close()
                    answer.release_conn()

    def pieces(self, url: str, answer: Any, most: int | None) -> Iterator[bytes]:
        """The body, piece by piece. Raises when there is more than `most`, or when it takes too long."""
        manners, began = self.manners, time.monotonic()
        claimed = answer.headers.get("Content-Length", "")
        if most is not None and claimed.isdecimal() and int(claimed) > most:
            raise DownloadError(url, f"{int(claimed):,} bytes, more than the limit of {most:,} (max_bytes)")
        total = 0
        while piece := answer.read1(READ_CHUNK_BYTES):
            total += len(piece)
            if most is not None and total > most:
                raise DownloadError(url, f"more than the limit of {most:,} bytes (max_bytes)")
            took = time.monotonic() - began
            if manners.deadline_s is not None and took > manners.deadline_s:
                raise DownloadError(
                    url, f"not all of it came within {manners.deadline_s:g} s (deadline_s)", transient=True
                )
            if took > manners.read_timeout_s and total < took * manners.slowest:
                raise DownloadError(url, f"{total:,} bytes came in {took:,.0f} s, which is too slow", transient=True)
            yield piece

    def _check_status(self, answer: Any, url: str) -> None:
        status = answer.status
        if 200 <= status < 300 or status == 416:
            return
        wanted = retry_after_seconds(answer.headers.get("Retry-After"))
        passing = status in TRANSIENT_STATUSES
        said = f"the server answers {status} {answer.reason or ''}".rstrip()
        if passing and wanted is not None:
            if wanted > self.manners.max_wait_s:
                raise DownloadError(
                    url, f"{said}, and wants to be left alone for {wanted:,.0f} s: run again later", status
                )
            _, host, port = _split_url(url, url)
            self._limits.pause_host(f"{host}:{port}", wanted)
        raise DownloadError(url, said, status, transient=passing)

    def _library(self) -> Any:
        if self._urllib3 is None:
            self._urllib3 = require("urllib3", "download", "fetching from the web")
        return self._urllib3

    def _pool(self, scheme: str, host: str, port: int, url: str) -> tuple[Any, bool]:
        """Connections to one address of a host, and whether they go by way of a proxy."""
        proxy = getproxies().get(scheme)
        if proxy and not proxy_bypass(host):
            self._resolver.check_literal_address(host, url)
            return self._cached_pool(
                ("proxy", proxy), lambda: self._library().ProxyManager(proxy, **self._settings())
            ), True
        address = self._resolver.addresses(host, port, url)[0]
        settings = self._settings()
        if scheme == "https":
            settings |= {"server_hostname": host, "assert_hostname": host}
        kind = "HTTPSConnectionPool" if scheme == "https" else "HTTPConnectionPool"
        key = (scheme, host, port, address)
        return self._cached_pool(key, lambda: getattr(self._library(), kind)(address, port, **settings)), False

    def _settings(self) -> dict[str, Any]:
        timeout = self._library().Timeout(connect=self.manners.connect_timeout_s, read=self.manners.read_timeout_s)
        return {"timeout": timeout, "maxsize": self.manners.per_host, "retries": False}

    def _cached_pool(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._pools:
                self._pools[key] = make()
            return self._pools[key]


def _split_url(where: str, url: str) -> tuple[Any, str, int]:
    try:
        parts = urlsplit(where)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise DownloadError(url, f"no address that can be read: {where!r} ({error})") from error
    if parts.scheme not in ("http", "https") or not host:
        raise DownloadError(url, f"only http:// and https:// addresses are fetched, not {where!r}")
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError as error:
            raise DownloadError(url, f"there is no host {host!r} ({error})") from error
    return parts, host, port or (443 if parts.scheme == "https" else 80)


def _redirect_url(where: str, target: str, url: str) -> str:
    try:
        return urljoin(where, target)
    except ValueError as error:
        raise DownloadError(url, f"a redirect to no address that can be read: {target!r} ({error})") from error


def _host_header(parts: Any, host: str) -> str:
    """What goes into the Host header: no user name, no password."""
    name = f"[{host}]" if ":" in host else host
    return name if parts.port is None else f"{name}:{parts.port}"


def _check_range(url: str, answer: Any, byte_range: tuple[int, int]) -> None:
    start, end = byte_range
    if answer.status == 416:
        raise DownloadError(url, f"has no bytes {start:,} to {end:,} (416)", 416)
    if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        raise DownloadError(url, "the server does not give parts of a file (it ignores Range)", answer.status)


def _is_transient(library: Any, error: Exception) -> bool:
    """A certificate that is wrong stays wrong; most else may be better in a moment."""
    return not isinstance(error, library.exceptions.SSLError | library.exceptions.LocationValueError)


def _error_text(error: Exception) -> str:
    """What urllib3 says, without the address of the object that it says it of."""
    cause = error.__cause__ or error.__context__
    return f"{type(error).__name__}: {cause if cause is not None else error}"


def _with_attempts(reason: str, attempt: int) -> str:
    return f"{reason} (tried {attempt + 1} times)" if attempt else reason
