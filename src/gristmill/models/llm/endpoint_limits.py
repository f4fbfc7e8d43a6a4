"""Limits of an endpoint: requests at once, requests and tokens per minute, and pauses that it asks for.

The number of requests at once is halved when the endpoint refuses one, and grows again by one for each round that
succeeds. Limits per minute are kept as a steady flow with a small burst, not as a full minute's load at its start.

Limits hold for one worker. A stage with several workers gives each its part (`share`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_BURST_S = 2.0
"""How many seconds' worth of a limit per minute may be used at once."""
_HALVE_EVERY_S = 1.0
"""Refusals of requests that were sent together halve the limit once."""


class _Flow:
    """At most so many units per minute."""

    def __init__(self, per_minute: float) -> None:
        self.seconds_per_unit = 60.0 / per_minute
        self._next = time.monotonic() - _BURST_S

    def delay(self, units: float) -> float:
        """Take units, and return how long to wait before they may be used."""
        now = time.monotonic()
        self._next = max(self._next, now - _BURST_S)
        wait = max(self._next - now, 0.0)
        self._next += units * self.seconds_per_unit
        return wait

    def correct(self, units: float) -> None:
        """The last use took so many units more than was said, or fewer."""
        self._next += units * self.seconds_per_unit


class EndpointLimits:
    """The limits of one endpoint in one event loop."""

    def __init__(
        self,
        max_concurrent_requests: int,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
    ) -> None:
        self.most = max_concurrent_requests
        self.limit = float(max_concurrent_requests)
        self.in_flight = 0
        self._requests = _Flow(requests_per_minute) if requests_per_minute else None
        self._tokens = _Flow(tokens_per_minute) if tokens_per_minute else None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._paused_until = self._halved = 0.0

    @asynccontextmanager
    async def slot(self, tokens: int) -> AsyncIterator[None]:
        """Wait until one more request may be sent, expected to take so many tokens."""
        while self.in_flight >= max(int(self.limit), 1):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self.in_flight += 1
        try:
            await self._wait_for_rates(tokens)
            yield
        finally:
            self.in_flight -= 1
            self._wake()

    async def _wait_for_rates(self, tokens: int) -> None:
        wait = max(
            self._requests.delay(1) if self._requests else 0.0, self._tokens.delay(tokens) if self._tokens else 0.0
        )
        while wait > 0 or (wait := self._paused_until - time.monotonic()) > 0:
            await asyncio.sleep(wait)
            wait = 0.0

    def succeeded(self, expected_tokens: int, tokens: int | None) -> None:
        """A request was answered."""
        if self.limit < self.most:
            self.limit = min(self.limit + 1 / self.limit, float(self.most))
            self._wake()
        if self._tokens and tokens is not None:
            self._tokens.correct(tokens - expected_tokens)

    def refused(self, pause_s: float) -> None:
        """The endpoint has refused a request because there are too many; it gets none for a while."""
        now = time.monotonic()
        self._paused_until = max(self._paused_until, now + pause_s)
        if now - self._halved > _HALVE_EVERY_S:
            self._halved = now
            self.limit = max(self.limit / 2, 1.0)

    def _wake(self) -> None:
        free = max(int(self.limit), 1) - self.in_flight
        while free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
