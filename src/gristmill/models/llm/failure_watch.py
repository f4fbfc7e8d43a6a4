"""FailureWatch: stops a run of which the endpoint refuses every request, before all rows were asked about in vain."""

from __future__ import annotations

from gristmill.core.errors import EndpointError
from gristmill.models.llm.llm_request import Answer, FailedRequest

FIRST_REQUESTS = 20
"""So many requests of a worker must fail before a run is stopped."""


class FailureWatch:
    """Looks at the first requests of a worker, until one has another end than a refusal."""

    def __init__(self, endpoint: str, way_out: str) -> None:
        self.endpoint, self.way_out = endpoint, way_out
        self._refused: int | None = 0

    def saw(self, outcome: Answer | FailedRequest) -> None:
        """Raises an EndpointError if this is the last of the first requests, and all of them were refused."""
        if self._refused is None:
            return
        if not isinstance(outcome, FailedRequest) or not outcome.final:
            self._refused = None
            return
        self._refused += 1
        if self._refused >= FIRST_REQUESTS:
            raise refused_error(self.endpoint, f"the first {self._refused} requests", outcome.reason, self.way_out)


def refused_error(endpoint: str, which: str, reason: str, way_out: str, stage: str = "") -> EndpointError:
    """The error for requests that all failed, and that would fail again."""
    where = f"stage {stage!r}: " if stage else ""
    return EndpointError(f"{where}{endpoint} has refused {which}: {reason}. {way_out}")
