"""Download: from a column of URLs to a column of encoded bytes, many at a time, within limits for each host.

A URL that cannot be fetched, that leads to a private network, whose bytes are of no known format, or whose owner has
opted out (`X-Robots-Tag`) goes to quarantine with the reason; the others go on. `io/fetch/http_client.py` has the
limits for hosts, and how a host name is kept from changing its address between the check and the request.

What is given up: the same result in every run, since the web changes. A resumed run does not fetch again what is
committed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.errors import DownloadError
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.io.fetch.http_client import HttpClient, Manners
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.batch import BadSample, SampleBatch, usual_extension
from gristmill.samples.decode import set_aside_bad_samples
from gristmill.samples.sample_files import EXTENSION

if TYPE_CHECKING:
    from gristmill.core.stage import WorkerMetadata

AGENT = "gristmill"
OPT_OUT = frozenset({"noai", "noindex", "none"})
"""Directives of X-Robots-Tag that opt out, in every modality."""

_NAMED = re.compile(r"\s*([\w*.-]+)\s*:(.*)")
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
"""Directives that have a value, and are no names of robots."""

In = TypeVar("In", bound=SampleBatch)
Out = TypeVar("Out", bound=SampleBatch)


class UrlDownloadStage(ProcessingStage[In, Out]):
    """Fetches the objects whose URLs are in `url_field`. A modality sets `kind`, `accept` and `opt_out`."""

    kind: ClassVar[type[SampleBatch]]
    accept: ClassVar[str]
    """The header Accept of requests."""
    opt_out: ClassVar[Collection[str]] = OPT_OUT

    def __init__(
        self,
        url_field: str,
        num_threads: int,
        timeout: float,
        retries: int,
        max_bytes: int,
        respect_opt_out: bool,
        allow_private: bool,
        per_host: int,
        requests_per_second: float | None,
        user_agent: str | None,
        samples_per_batch: int,
    ) -> None:
        super().__init__()
        for what, number in (("num_threads", num_threads), ("max_bytes", max_bytes)):
            check_positive(self.name, what, number)
        self.url_field, self.num_threads, self.timeout, self.retries = url_field, num_threads, timeout, retries
        self.max_bytes, self.respect_opt_out, self.allow_private = max_bytes, respect_opt_out, allow_private
        self.per_host, self.requests_per_second, self.user_agent = per_host, requests_per_second, user_agent
        self._samples_per_batch = samples_per_batch
        self._manners()  # raises for wrong parameters
        self._client: HttpClient | None = None

    def inputs(self) -> tuple[list[str], Columns]:
        return [], {self.url_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [self.kind.encoded_column, EXTENSION]

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._client = HttpClient(self._manners())

    def teardown(self) -> None:
        if self._client is not None:
            self._client.close()

    def process(self, task: In) -> Iterator[Any]:
        """Smaller batches than the input: URLs are small, and what they lead to is not."""
        for offset in range(0, task.num_items, self._samples_per_batch):
            yield self._fetched(task.slice(offset, self._samples_per_batch))

    def _fetched(self, batch: In) -> In:
        column = self.kind.encoded_column
        urls: list[str | None] = as_one_array(batch.data.column(self.url_field)).to_pylist()
        known = batch.data.column(column).to_pylist() if column in batch.get_columns() else [None] * len(urls)
        with ThreadPoolExecutor(min(self.num_threads, len(urls))) as pool:
            results = list(pool.map(self._attempt, urls, known))
        fetched: list[bytes | None] = set_aside_bad_samples(batch, results, self)
        good = [index for index, data in enumerate(fetched) if data is not None]
        kept = batch.take(good)
        encoded = [fetched[index] for index in good]
        kept = kept.with_column(column, make_array(encoded, pa.large_binary()))
        extensions = [usual_extension(self.kind, data) for data in encoded]
        kept = kept.with_column(EXTENSION, make_array(extensions, pa.string()))
        if self.kind.id_column not in kept.get_columns():
            kept = kept.with_column(self.kind.id_column, make_array([urls[index] for index in good], pa.string()))
        return kept

    def _attempt(self, url: str | None, known: bytes | None) -> bytes | BadSample:
        if known is not None:
            return known
        if not url:
            return BadSample("no URL")
        try:
            return self._fetch(url)
        except DownloadError as error:
            return BadSample(str(error))
        except BadSample as error:
            return BadSample(f"{url}: {error}")

    def _fetch(self, url: str) -> bytes:
        client = self._client
        assert client is not None, "opened by setup"

        def once() -> tuple[bytes, Mapping[str, str]]:
            with client.open(url, {"Accept": self.accept}) as (answer, final):
                tags = answer.headers.getlist("X-Robots-Tag") if self.respect_opt_out else []
                if directive := opts_out(tags, self.opt_out):
                    raise DownloadError(url, f"its owner does not want it to be used (X-Robots-Tag: {directive})")
                return b"".join(client.pieces(final, answer, self.max_bytes)), answer.headers

        data, headers = client.with_retries(url, once)
        if self.kind.format_of(data) is None:
            content_type = headers.get("Content-Type", "something else")
            raise BadSample(f"no {self.kind.sample_name}, but {content_type} of {len(data):,} bytes")
        self.count("bytes_read", len(data))
        return data

    def _manners(self) -> Manners:
        named: dict[str, Any] = {} if self.user_agent is None else {"user_agent": self.user_agent}
        return Manners(
            requests_per_second=self.requests_per_second,
            per_host=self.per_host,
            connect_timeout_s=self.timeout,
            read_timeout_s=self.timeout,
            deadline_s=10 * self.timeout,
            max_retries=self.retries,
            allow_private=self.allow_private,
            **named,
        )


def opts_out(values: list[str], directives: Collection[str] = OPT_OUT) -> str | None:
    """The directive by which a server opts out, in any of its X-Robots-Tag headers; None if there is none.

    A directive may be for one robot, as may those after it (`otherbot: noindex, noai`): it counts if it is for all
    robots, or for this one.
    """
    for value in values:
        robot = "*"
        for part in value.lower().split(","):
            named = _NAMED.fullmatch(part)
            if named and named[1] not in _VALUED:
                robot = named[1]
            directive = (named[2] if named else part).strip()
            if directive in directives and robot in ("*", AGENT):
                return directive
    return None
