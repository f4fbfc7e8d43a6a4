"""HTTP client: fetch into memory (`fetch`), or into a file that appears only when it is complete (`save`).

    client = HttpClient(Manners(requests_per_second=2))
    client.fetch("https://host/paths.gz").body
    client.save("https://host/big.gz", "downloads/big.gz", checksum="sha256:...")

An interrupted download resumes where it stopped, even in another process days later, if the server can confirm that the
file is unchanged (If-Range). Transient failures are retried with exponential backoff; `Retry-After` is respected by all
threads. Lengths and checksums are verified before a file gets its final name. Redirects are followed one by one. Each
host name is resolved and checked first, and then connected to by address, so that a name which resolves differently a
moment later (DNS rebinding) does not get past the check.

What is given up: cookies, logins and HTTP/2. Limits hold for all threads of a process; each worker process has its own.
Behind a proxy, names are resolved by the proxy, so only what can be known from the name is checked: addresses in any
spelling, and names of private networks.
"""

from __future__ import annotations

import ipaddress
import random
import socket
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from gristmill.core.errors import DownloadError, require
from gristmill.core.fast_dataclass import fast_dataclass

READ_CHUNK_BYTES = 2**18
"""Bytes that are read from a connection at a time."""

MAX_MEMORY_BYTES = 256 * 2**20
"""The default limit of `fetch`. Larger responses belong in a file."""

TRANSIENT_STATUSES = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses after which a request is retried."""

_CACHE_SECONDS = 60.0
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
T = TypeVar("T")


@fast_dataclass(frozen=True)
class Manners:
    """Limits, timeouts and retries. Rate limits hold per worker and host."""

    requests_per_second: float | None = None
    per_host: int = 4
    connect_timeout_s: float = 20.0
    read_timeout_s: float = 60.0
    deadline_s: float | None = None
    """The time limit of one attempt."""
    slowest: int = 128
    """The lowest accepted rate in bytes per second, after the first `read_timeout_s`; 0 for no limit. Without it a
    server could keep a connection open for ever by sending a byte every minute."""
    max_retries: int = 5
    backoff_s: float = 1.0
    max_wait_s: float = 120.0
    """The longest wait between attempts. If a server asks for a longer one, the download fails."""
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
    """A response: the URL after redirects, the status, the headers (names in lower case) and the body."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@fast_dataclass(frozen=True)
class SavedFile:
    """A complete file. `fetched` is the number of bytes that were downloaded: 0 if it existed already."""

    path: str
    size: int
    fetched: int


class HttpClient:
    """Fetches URLs. Threads can share a client; a pickle contains only its `Manners`."""

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
        """Fetch a response into memory. `byte_range` is the first byte and the one after the last."""
        limit = max_bytes or self.manners.max_bytes or MAX_MEMORY_BYTES
        request_headers = dict(headers or {})
        if byte_range is not None:
            start, end = byte_range
            if not 0 <= start < end:
                raise ValueError(f"byte_range is {byte_range!r}, must be (first, after the last), not empty")
            request_headers["Range"] = f"bytes={start}-{end - 1}"
            limit = min(limit, end - start)

        def once() -> FetchedResponse:
            with self.open(url, request_headers, decode=byte_range is None) as (answer, final):
                if byte_range is not None:
                    _check_range(url, answer, byte_range)
                body = b"".join(self.pieces(url, answer, limit))
                if byte_range is not None and len(body) != end - start:
                    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
                    if not (total.isdecimal() and start + len(body) == int(total)):
                        raise DownloadError(
                            url, f"received {len(body):,} of the {end - start:,} bytes requested", transient=True
                        )
                lower = {name.lower(): value for name, value in answer.headers.items()}
                return FetchedResponse(final, answer.status, lower, body)

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
        """Fetch into a file, unless it exists. `checksum` is like "sha256:01ab...", `length` the expected size."""
        from gristmill.io.fetch.partial_download import PartialDownload

        part = PartialDownload(url, path, checksum, length, max_bytes or self.manners.max_bytes)
        size = part.complete_size()
        if size is not None:
            return SavedFile(path, size, 0)
        size = self.with_retries(url, lambda: part.resume(self, headers or {}))
        return SavedFile(path, size, part.fetched)

    # -- one request -----------------------------------------------------------------------------------

    def with_retries(self, url: str, once: Callable[[], T]) -> T:
        """Call `once`, again after transient failures, and return its result."""
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
        """A successful response (2xx, or 416, which only range requests get), and its URL after redirects."""
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
                raise DownloadError(url, f"a redirect loop: it leads back to {where}")
            if len(seen) > self.manners.max_redirects:
                raise DownloadError(url, f"more than {self.manners.max_redirects} redirects, the last one to {where}")
            if seen[-1].startswith("https:") and where.startswith("http:"):
                raise DownloadError(url, f"a redirect from https to http ({where}), which is not followed")

    @contextmanager
    def _answer(self, where: str, url: str, headers: Mapping[str, str], decode: bool) -> Iterator[Any]:
        """One request, without following redirects. The connection is returned to the pool, or closed if unusable."""
        library = self._library()
        parts, host, port = _split_url(where, url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        defaults = {"User-Agent": self.manners.user_agent, "Accept-Encoding": "identity"}
        request_headers = {**defaults, **headers, "Host": _host_header(parts, host)}
        with self._limits.request_slot(f"{host}:{port}"):
            answer = None
            try:
                pool, proxied = self._pool(parts.scheme, host, port, where)
                answer = pool.urlopen(
                    "GET",
                    where if proxied else target,
                    headers=request_headers,
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
            except ValueError as error:  # such as a length of thousands of digits, or a header that is not text
                raise DownloadError(url, f"an invalid response ({error})") from error
            finally:
                if answer is not None:
                    answer.close()
                    answer.release_conn()

    def pieces(self, url: str, answer: Any, limit: int | None) -> Iterator[bytes]:
        """The body in chunks. Raises if there are more than `limit` bytes, or if it takes too long."""
        manners, began = self.manners, time.monotonic()
        claimed = answer.headers.get("Content-Length", "")
        if limit is not None and claimed.isdecimal() and int(claimed) > limit:
            raise DownloadError(url, f"{int(claimed):,} bytes, more than the limit of {limit:,} (max_bytes)")
        total = 0
        while piece := answer.read1(READ_CHUNK_BYTES):
            total += len(piece)
            if limit is not None and total > limit:
                raise DownloadError(url, f"more than the limit of {limit:,} bytes (max_bytes)")
            took = time.monotonic() - began
            if manners.deadline_s is not None and took > manners.deadline_s:
                raise DownloadError(url, f"not complete within {manners.deadline_s:g} s (deadline_s)", transient=True)
            if took > manners.read_timeout_s and total < took * manners.slowest:
                raise DownloadError(
                    url,
                    f"too slow: {total:,} bytes in {took:,.0f} s, below {manners.slowest:,} bytes per second",
                    transient=True,
                )
            yield piece

    def _check_status(self, answer: Any, url: str) -> None:
        status = answer.status
        if 200 <= status < 300 or status == 416:
            return
        wait = retry_after_seconds(answer.headers.get("Retry-After"))
        transient = status in TRANSIENT_STATUSES
        reason = f"the server answers {status} {answer.reason or ''}".rstrip()
        if transient and wait is not None:
            if wait > self.manners.max_wait_s:
                raise DownloadError(
                    url, f"{reason} and asks to wait {wait:,.0f} s (Retry-After): run again later", status
                )
            _, host, port = _split_url(url, url)
            self._limits.pause_host(f"{host}:{port}", wait)
        raise DownloadError(url, reason, status, transient=transient)

    def _library(self) -> Any:
        if self._urllib3 is None:
            self._urllib3 = require("urllib3", "download", "fetching from the web")
        return self._urllib3

    def _pool(self, scheme: str, host: str, port: int, url: str) -> tuple[Any, bool]:
        """The connection pool for one address of a host, and whether it goes through a proxy."""
        proxy = getproxies().get(scheme)
        if proxy and not proxy_bypass(host):
            self._resolver.check_name(host, url)
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
        raise DownloadError(url, f"an invalid URL: {where!r} ({error})") from error
    if parts.scheme not in ("http", "https") or not host:
        raise DownloadError(url, f"only http:// and https:// URLs are fetched, not {where!r}")
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError as error:
            raise DownloadError(url, f"an invalid host name {host!r} ({error})") from error
    return parts, host, port or (443 if parts.scheme == "https" else 80)


def _redirect_url(where: str, target: str, url: str) -> str:
    try:
        return urljoin(where, target)
    except ValueError as error:
        raise DownloadError(url, f"a redirect to an invalid URL: {target!r} ({error})") from error


def _host_header(parts: Any, host: str) -> str:
    """The value of the Host header, without user name and password."""
    name = f"[{host}]" if ":" in host else host
    return name if parts.port is None else f"{name}:{parts.port}"


def _check_range(url: str, answer: Any, byte_range: tuple[int, int]) -> None:
    start, end = byte_range
    if answer.status == 416:
        raise DownloadError(url, f"bytes {start:,} to {end:,} are outside of the file (416)", 416)
    if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        raise DownloadError(url, "the server does not support range requests (it ignores Range)", answer.status)


def _is_transient(library: Any, error: Exception) -> bool:
    """Whether a retry may help: yes, except for invalid certificates and URLs."""
    return not isinstance(error, library.exceptions.SSLError | library.exceptions.LocationValueError)


def _error_text(error: Exception) -> str:
    """The message of an urllib3 error, without the memory address of the connection object."""
    cause = error.__cause__ or error.__context__
    return f"{type(error).__name__}: {cause if cause is not None else error}"


def _with_attempts(reason: str, attempt: int) -> str:
    return f"{reason} (tried {attempt + 1} times)" if attempt else reason


# -- hosts -------------------------------------------------------------------------------------------------


class HostResolver:
    """Resolves host names. Addresses outside of the public internet are refused unless allowed."""

    def __init__(self, allow_private: bool = False) -> None:
        self.allow_private = allow_private
        self._known: dict[tuple[str, int], tuple[float, list[str]]] = {}

    def addresses(self, host: str, port: int, url: str) -> list[str]:
        """The addresses of a host that may be connected to. Raises a DownloadError if there are none."""
        expires, addresses = self._known.get((host, port), (0.0, []))
        if time.monotonic() >= expires:
            addresses = _look_up(host, port, url)
            self._known[host, port] = (time.monotonic() + _CACHE_SECONDS, addresses)
        allowed = addresses if self.allow_private else [address for address in addresses if is_public(address)]
        if not allowed:
            raise DownloadError(
                url,
                f"{host} is {addresses[0]}, an address of a private network, and is not fetched. If you trust the "
                "source of the URLs, pass allow_private=True",
            )
        return allowed

    def mark_failed(self, host: str, port: int) -> None:
        """Move the first address of a host, which does not answer, to the end of its list."""
        expires, addresses = self._known.get((host, port), (0.0, []))
        self._known[host, port] = (expires, [*addresses[1:], *addresses[:1]])

    def check_name(self, host: str, url: str) -> None:
        """Refuse a private address and a name of private networks. For requests through a proxy, which resolves names
        itself."""
        if not self.allow_private and _is_private_name(host):
            raise DownloadError(
                url,
                f"{host} is a host of a private network, and is not fetched. If you trust the source of the URLs, pass "
                "allow_private=True",
            )


def is_public(address: str) -> bool:
    """Whether an address is on the public internet, including IPv4 addresses embedded in IPv6."""
    number = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(number, ipaddress.IPv4Address):
        return number.is_global and not number.is_multicast and number not in _PROTOCOLS_IPV4
    embedded = number.ipv4_mapped or number.sixtofour or (number.teredo or (None, None))[1]
    if embedded is None and number in _NAT64:
        embedded = ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
    if embedded is not None:
        return is_public(str(embedded))
    return number in _GLOBAL_IPV6 and number.is_global


def check_public_host(url: str) -> None:
    """Raise a DownloadError if an address that data names leads to a private network.

    For readers that open addresses with a library of their own. The name is looked up again by that library, so a
    server of names that changes its answer in between is not caught; `HttpClient` does not have that gap.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if not host or not all(map(is_public, _look_up(host, port, url))):
        raise DownloadError(url, f"{host or 'it'} is a host of a private network, and is not fetched for a row")


_PROTOCOLS_IPV4 = ipaddress.ip_network("192.0.0.0/24")
"""Addresses of protocols; some releases of Python take a part of them for global."""

_GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
"""All that has been given out for the internet. Outside are local addresses and several forms of embedded IPv4."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

_PRIVATE_SUFFIXES = (".localhost", ".local", ".localdomain", ".internal", ".intranet", ".lan", ".home.arpa")


def _is_private_name(host: str) -> bool:
    """Whether a host, which is not resolved here, is known to be private: an address in one of the spellings that
    programs accept (127.1, 2130706433, 0x7f.1), a name without a dot, or one that ends as private names do."""
    name = unicodedata.normalize("NFKC", host).replace("\u3002", ".").rstrip(".").lower()
    try:
        return not is_public(name)
    except ValueError:
        pass
    try:
        return not is_public(socket.inet_ntoa(socket.inet_aton(name)))
    except (OSError, UnicodeError, ValueError):
        return "." not in name or name.endswith(_PRIVATE_SUFFIXES)


def _look_up(host: str, port: int, url: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        transient = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        raise DownloadError(url, f"host {host!r} cannot be resolved ({error})", transient=transient) from error
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


class HostLimits:
    """Limits per host: concurrent requests, the interval between requests, and pauses that the host asked for."""

    def __init__(self, parallel: int, per_second: float | None) -> None:
        self.parallel, self.gap = parallel, 1.0 / per_second if per_second else 0.0
        self._lock = threading.Lock()
        self._slots: dict[str, threading.BoundedSemaphore] = {}
        self._next: dict[str, float] = {}

    @contextmanager
    def request_slot(self, host: str) -> Iterator[None]:
        """Wait until a request to the host may begin; the slot is free again when the block ends."""
        with self._lock:
            slots = self._slots.setdefault(host, threading.BoundedSemaphore(self.parallel))
        with slots:
            while (wait := self._wait(host)) > 0:
                time.sleep(wait)
            yield

    def _wait(self, host: str) -> float:
        """0.0 if a request may begin, which reserves this moment; else how long to wait."""
        with self._lock:
            now, due = time.monotonic(), self._next.get(host, 0.0)
            if due > now:
                return due - now
            self._next[host] = now + self.gap
            return 0.0

    def pause_host(self, host: str, seconds: float) -> None:
        """Let no thread begin a request to the host for this long."""
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
    """How long to wait after a failure: twice as long each time, with jitter of one half, so that workers that failed
    together do not retry together."""
    longest = min(most_s, first_s * float(2**attempt))
    return longest / 2 + random.random() * longest / 2  # noqa: S311
