"""Download the pictures whose addresses items have. Nothing else here calls the web."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.stage import Columns
from gristmill.image.batch import ImageBatch
from gristmill.interleaved.batch import InterleavedBatch, as_interleaved
from gristmill.interleaved.item_bytes import (
    DROP_ROW,
    ON_ERROR,
    WARN,
    documents_with,
    is_web_address,
    without_documents,
)
from gristmill.interleaved.item_columns import IMAGE, item_field, keep_items, of_kind, with_fields
from gristmill.interleaved.placeholders import ITEMS_COLUMN, TEXT_COLUMN
from gristmill.samples.argument_checks import check_choice
from gristmill.samples.batch import BadSample, DocumentBatch, usual_extension
from gristmill.samples.download import OPT_OUT, UrlDownloadStage


class InterleavedDownloadStage(UrlDownloadStage[Any, Any]):
    """Fetches the pictures of documents whose references are addresses of the web. Items with bytes keep them.

    `on_download_error` says what becomes of one that cannot be had: "drop_row" drops the item, "warn" keeps its
    address, "error" and "drop_sample" put the document into quarantine; all count it. Limits and refusals are those of
    ImageDownloadStage: hosts of private networks are not called, unless `allow_private=True`.
    """

    name = "download_interleaved"
    kind = ImageBatch
    accept = "image/*"
    opt_out = OPT_OUT | {"noimageai", "noimageindex"}
    not_identity = ("num_threads", "timeout", "retries", "per_host", "requests_per_second", "documents_per_batch")

    def __init__(
        self,
        on_download_error: str = DROP_ROW,
        num_threads: int = 32,
        timeout: float = 10.0,
        retries: int = 2,
        max_bytes: int = 64 * 2**20,
        respect_opt_out: bool = True,
        allow_private: bool = False,
        per_host: int = 4,
        requests_per_second: float | None = None,
        user_agent: str | None = None,
        documents_per_batch: int = 50,
    ) -> None:
        check_choice(self.name, "on_download_error", on_download_error, ON_ERROR)
        limits = (num_threads, timeout, retries, max_bytes, respect_opt_out, allow_private, per_host)
        super().__init__("", *limits, requests_per_second, user_agent, documents_per_batch)
        self.on_download_error, self.documents_per_batch = on_download_error, documents_per_batch

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [ITEMS_COLUMN]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [TEXT_COLUMN, ITEMS_COLUMN]

    def process(self, task: DocumentBatch) -> Iterator[InterleavedBatch]:
        batch = as_interleaved(task)
        for offset in range(0, max(batch.num_items, 1), self.documents_per_batch):
            yield self._with_pictures(batch.slice(offset, self.documents_per_batch))

    def _with_pictures(self, batch: InterleavedBatch) -> InterleavedBatch:
        items = batch.items()
        paths = pc.struct_field(item_field(items, "ref"), "path").to_pylist()
        missing = pc.and_(of_kind(items, IMAGE), item_field(items, "bytes").is_null()).to_pylist()
        wanted = [
            at for at, (path, flag) in enumerate(zip(paths, missing, strict=True)) if flag and is_web_address(path)
        ]
        if not wanted:
            return batch
        urls = list(dict.fromkeys(paths[at] for at in wanted))
        with ThreadPoolExecutor(min(self.num_threads, len(urls))) as pool:
            answers = dict(zip(urls, pool.map(lambda url: self._attempt(url, None), urls), strict=True))
        good = {at: answers[paths[at]] for at in wanted if not isinstance(answers[paths[at]], BadSample)}
        mask = make_array([at in good for at in range(len(paths))], pa.bool_())
        data = make_array([good[at] for at in sorted(good)], pa.large_binary())
        mimes = make_array([_mime(good[at]) for at in sorted(good)], pa.string())
        items = with_fields(
            items,
            bytes=pc.replace_with_mask(item_field(items, "bytes"), mask, data),
            mime=pc.replace_with_mask(item_field(items, "mime"), mask, mimes),
        )
        bad = {at: answers[paths[at]] for at in wanted if at not in good}
        return self._without_bad(batch.with_items(items), bad)

    def _without_bad(self, batch: InterleavedBatch, bad: dict[int, Any]) -> InterleavedBatch:
        if not bad:
            return batch
        self.count("failed_downloads", len(bad))
        items = batch.items()
        if self.on_download_error == WARN:
            return batch
        if self.on_download_error == DROP_ROW:
            mask = [at not in bad for at in range(len(items.flatten()))]
            return batch.with_items(keep_items(items, make_array(mask, pa.bool_())))
        return without_documents(self, batch, documents_with(items, bad))


def _mime(data: Any) -> str | None:
    extension = usual_extension(ImageBatch, data)
    return None if extension is None else f"image/{'jpeg' if extension == 'jpg' else extension}"
