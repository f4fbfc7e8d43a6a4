"""TinyStories: short stories for small models, from the hub.

    TinyStoriesDownloadExtractStage("raw", split="valid")

Stories are in one text file for each split, divided by `<|endoftext|>`. Their endpoint is that of the hub, or what
HF_ENDPOINT says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask
from gristmill.download.checksum_urls import ChecksumDownloader, manners_for_host
from gristmill.download.download_stages import DocumentDownloadExtractStage
from gristmill.download.interfaces import DocumentIterator, URLGenerator
from gristmill.io.fetch.http_client import Manners
from gristmill.io.storage.file_input import BadRecord
from gristmill.samples.batch import DocumentBatch

HUB = "https://huggingface.co"
SPLITS = {
    "train": "TinyStories-train.txt",
    "valid": "TinyStories-valid.txt",
    "train-v2": "TinyStoriesV2-GPT4-train.txt",
    "valid-v2": "TinyStoriesV2-GPT4-valid.txt",
}
END = b"<|endoftext|>"
_PIECE = 2**20
_LONGEST = 16 * 2**20


class TinyStoriesUrlGenerator(URLGenerator):
    def __init__(self, split: str = "valid", revision: str = "main", endpoint: str | None = None) -> None:
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}, must be one of {', '.join(SPLITS)}")
        self.split, self.revision, self.endpoint = split, revision, endpoint

    @property
    def base(self) -> str:
        return (self.endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")

    def generate_urls(self) -> list[str]:
        return [f"{self.base}/datasets/roneneldan/TinyStories/resolve/{self.revision}/{SPLITS[self.split]}"]


class TinyStoriesIterator(DocumentIterator):
    """The stories of a file, with their places."""

    def __init__(self, split: str = "valid") -> None:
        self.split = split

    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | BadRecord]:
        number = 0
        with open(file_path, "rb") as opened:
            for place, raw in _stories(opened):
                try:
                    text = raw.decode().strip()
                except UnicodeDecodeError as error:
                    yield BadRecord(place, f"not valid UTF-8 at byte {error.start} of the story", raw)
                    continue
                if text:
                    yield {"text": text, "id": f"tinystories-{self.split}-{number}", POSITION: place}
                    number += 1

    def output_columns(self) -> list[str]:
        return ["text", "id"]


def _stories(opened: Any) -> Iterator[tuple[int, bytes]]:
    held, place = b"", 0
    while piece := opened.read(_PIECE):
        held += piece
        *whole, held = held.split(END)
        for story in whole:
            yield place, story
            place += len(story) + len(END)
        if len(held) > _LONGEST:
            raise ValueError(f"no {END.decode()} within {_LONGEST:,} bytes: this is no file of stories")
    yield place, held


@dataclass(eq=False, repr=False)
class TinyStoriesDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """Stories of one split: text, id and file_name."""

    raw_dir: str
    split: str = "valid"
    url_limit: int | None = None
    record_limit: int | None = None
    add_filename_column: bool | str = True
    revision: str = "main"
    endpoint: str | None = None
    manners: Manners | None = None

    def __post_init__(self) -> None:
        self.raw_dir = str(self.raw_dir)
        self.decompose()

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        urls = TinyStoriesUrlGenerator(self.split, self.revision, self.endpoint)
        return DocumentDownloadExtractStage(
            url_generator=urls,
            downloader=ChecksumDownloader(self.raw_dir, manners=manners_for_host(urls.base, HUB, self.manners)),
            iterator=TinyStoriesIterator(self.split),
            url_limit=self.url_limit,
            record_limit=self.record_limit,
            add_filename_column=self.add_filename_column,
        ).decompose()
