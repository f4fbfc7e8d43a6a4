"""Download: from a column of addresses to a column of images, many at a time, with manners.

An address that cannot be fetched, that leads to a private network, that holds no image, or whose owner has opted out
(`X-Robots-Tag`: noai, noimageai, noindex, noimageindex, none) goes to quarantine with the reason; the others go on.
How hosts are treated, and why a name cannot be made to mean another machine between two looks at it, is said in
`io/fetch/http_client.py`.

What is given up: determinism, as far as the web has none. A run that is resumed does not fetch again what is committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.batch import ImageBatch
from gristmill.core.errors import DownloadError
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.image.decode import IMAGE, set_aside_bad_images
from gristmill.image.formats import BadImage, image_extension
from gristmill.image.image_samples import EXTENSION, IMAGE_ID
from gristmill.image.read_tables import URL
from gristmill.io.fetch.http_client import HttpClient, Manners

if TYPE_CHECKING:
    from gristmill.core.stage import WorkerMetadata

OPT_OUT = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
AGENT = "gristmill"

_NAMED = re.compile(r"\s*([\w*.-]+)\s*:(.*)")
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
"""Directives that have a value, and are no names of robots."""


class ImageDownloadStage(ProcessingStage[ImageBatch, ImageBatch]):
    """Fetches the images whose addresses are in `url_field`. Rows that have an image already keep it.

    `num_threads` fetch at a time, at most `per_host` from one host; each has `timeout` seconds to answer and
    `retries` more attempts. Images larger than `max_bytes` are refused, as are private addresses, unless
    `allow_private=True`. `respect_opt_out=False` does not look at X-Robots-Tag.
    """

    name = "download_images"

    def __init__(
        self,
        url_field: str = URL,
        num_threads: int = 32,
        timeout: float = 10.0,
        retries: int = 2,
        max_bytes: int = 64 * 2**20,
        respect_opt_out: bool = True,
        allow_private: bool = False,
        per_host: int = 4,
        requests_per_second: float | None = None,
        user_agent: str | None = None,
        images_per_batch: int = 100,
    ) -> None:
        super().__init__()
        counts = (("num_threads", num_threads), ("max_bytes", max_bytes), ("images_per_batch", images_per_batch))
        for what, number in counts:
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(f"{what} is {number!r}, must be a whole number, 1 or more")
        self.url_field, self.num_threads, self.timeout, self.retries = url_field, num_threads, timeout, retries
        self.max_bytes, self.respect_opt_out, self.allow_private = max_bytes, respect_opt_out, allow_private
        self.per_host, self.requests_per_second, self.user_agent = per_host, requests_per_second, user_agent
        self.images_per_batch = images_per_batch
        self._manners()  # wrong parameters are errors here
        self._client: HttpClient | None = None

    not_identity = ("num_threads", "timeout", "retries", "per_host", "requests_per_second", "images_per_batch")

    def inputs(self) -> tuple[list[str], Columns]:
        return [], {self.url_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [IMAGE, EXTENSION]

    def setup(self, worker_metadata: WorkerMetadata) -> None:
        self._client = HttpClient(self._manners())

    def teardown(self) -> None:
        if self._client is not None:
            self._client.close()

    def process(self, task: ImageBatch) -> Iterator[ImageBatch]:
        """Batches of `images_per_batch`: addresses are small, and images are not."""
        for piece in task.pieces(self.images_per_batch):
            yield self._fetched(piece)

    def _fetched(self, batch: ImageBatch) -> ImageBatch:
        urls: list[str | None] = as_one_array(batch.data.column(self.url_field)).to_pylist()
        there = batch.data.column(IMAGE).to_pylist() if IMAGE in batch.get_columns() else [None] * len(urls)
        with ThreadPoolExecutor(min(self.num_threads, len(urls))) as pool:
            images = list(pool.map(self._attempt, urls, there))
        found: list[bytes | None] = set_aside_bad_images(batch, images, self)
        good = [index for index, image in enumerate(found) if image is not None]
        kept = batch.take(good)
        chosen = [found[index] for index in good]
        kept = kept.with_column(IMAGE, make_array(chosen, pa.large_binary()))
        kept = kept.with_column(EXTENSION, make_array([image_extension(image) for image in chosen], pa.string()))
        if IMAGE_ID not in kept.get_columns():
            kept = kept.with_column(IMAGE_ID, make_array([urls[index] for index in good], pa.string()))
        return kept

    def _attempt(self, url: str | None, there: bytes | None) -> bytes | BadImage:
        if there is not None:
            return there
        if not url:
            return BadImage("no address")
        try:
            return self._fetch(url)
        except DownloadError as error:
            return BadImage(str(error))
        except BadImage as error:
            return BadImage(f"{url}: {error}")

    def _fetch(self, url: str) -> bytes:
        client = self._client
        assert client is not None, "setup comes before process"

        def once() -> tuple[bytes, Mapping[str, str]]:
            with client.open(url, {"Accept": "image/*"}) as (answer, final):
                if self.respect_opt_out and (said := opts_out(answer.headers.getlist("X-Robots-Tag"))):
                    raise DownloadError(url, f"its owner does not want it to be used (X-Robots-Tag: {said})")
                return b"".join(client.pieces(final, answer, self.max_bytes)), answer.headers

        data, headers = client.with_retries(url, once)
        if image_extension(data) is None:
            raise BadImage(f"no image, but {headers.get('Content-Type', 'something else')} of {len(data):,} bytes")
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


def opts_out(values: list[str]) -> str | None:
    """The directive by which a server opts out, in any of its X-Robots-Tag headers; None if there is none.

    A directive may be for one robot, as may those after it (`otherbot: noindex, noai`): they count if they are for
    all, or for this one.
    """
    for value in values:
        robot = "*"
        for part in value.lower().split(","):
            named = _NAMED.fullmatch(part)
            if named and named[1] not in _VALUED:
                robot = named[1]
            directive = (named[2] if named else part).strip()
            if directive in OPT_OUT and robot in ("*", AGENT):
                return directive
    return None
