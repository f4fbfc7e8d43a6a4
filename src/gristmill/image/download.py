"""Download images whose URLs are in a column (`samples/download.py`)."""

from __future__ import annotations

from gristmill.image.batch import ImageBatch
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.download import OPT_OUT, UrlDownloadStage
from gristmill.samples.read_tables import URL


class ImageDownloadStage(UrlDownloadStage[ImageBatch, ImageBatch]):
    """Fetches the images whose addresses are in `url_field`. Rows that have an image already keep it.

    `num_threads` fetch at a time, at most `per_host` from one host; each has `timeout` seconds to answer and
    `retries` more attempts. Images larger than `max_bytes` are refused, as are private addresses, unless
    `allow_private=True`. `respect_opt_out=False` does not look at X-Robots-Tag.
    """

    name = "download_images"
    kind = ImageBatch
    accept = "image/*"
    opt_out = OPT_OUT | {"noimageai", "noimageindex"}
    not_identity = ("num_threads", "timeout", "retries", "per_host", "requests_per_second", "images_per_batch")

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
        check_positive(self.name, "images_per_batch", images_per_batch)
        self.images_per_batch = images_per_batch
        super().__init__(
            url_field,
            num_threads,
            timeout,
            retries,
            max_bytes,
            respect_opt_out,
            allow_private,
            per_host,
            requests_per_second,
            user_agent,
            images_per_batch,
        )
