"""Hosts: which addresses may be connected to, and how often and how much at once.

An address is checked and then connected to by number, so that a name which means another machine a moment later
(DNS rebinding) is of no use to anybody. Limits hold for all threads of a process.

What is given up: behind a proxy, names are resolved by the proxy, and only addresses written as numbers are checked.
"""

from __future__ import annotations

import ipaddress
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime

from gristmill.core.errors import DownloadError

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
