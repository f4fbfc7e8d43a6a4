"""Datasets of the Hugging Face hub, as Parquet or JSON lines, from the hub or a local directory; and TinyStories.

    HuggingFaceDownloadExtractStage("roneneldan/TinyStories", split="train", revision="f54c09f")
    TinyStoriesDownloadExtractStage("raw", split="valid")

A revision is resolved to a commit once; files are those of the commit, verified by their checksums where the hub has
them. The endpoint is `endpoint`, the environment variable HF_ENDPOINT, or the hub.

Gives up: gated datasets, which need a login (download them with the hub's own tools and pass the directory), and
loading scripts, which are programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from typing import Any
from urllib.parse import quote, urljoin

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import DownloadError
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask, FileGroupTask
from gristmill.download.download_stages import (
    FILE_NAME,
    DocumentDownloadExtractStage,
    DocumentDownloadStage,
    URLGenerationStage,
    check_limit,
)
from gristmill.download.downloaders import (
    ChecksumDownloader,
    file_name,
    manners_for_host,
    with_checksum,
    without_fragment,
)
from gristmill.download.source_interfaces import DocumentIterator, URLGenerator
from gristmill.io.fetch.http_client import HttpClient, Manners
from gristmill.io.formats.jsonl import read_jsonl
from gristmill.io.formats.parquet import read_parquet
from gristmill.io.read.file_partitions import FilePartition, FilePartitioningStage
from gristmill.io.storage.file_input import BadRecord, FileInput
from gristmill.samples.batch import DocumentBatch

HUB = "https://huggingface.co"
PARQUET = (".parquet",)
JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".json", ".json.gz")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?")

TINY_STORIES = {
    "train": "TinyStories-train.txt",
    "valid": "TinyStories-valid.txt",
    "train-v2": "TinyStoriesV2-GPT4-train.txt",
    "valid-v2": "TinyStoriesV2-GPT4-valid.txt",
}
"""The file of each split: stories divided by `<|endoftext|>`."""

_STORY_END = b"<|endoftext|>"
_READ_BYTES = 2**20
_MAX_STORY_BYTES = 16 * 2**20


def hub_endpoint(endpoint: str | None) -> str:
    return (endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")


class HubUrlGenerator(URLGenerator):
    """Lists the data files of a dataset at one commit."""

    def __init__(
        self,
        dataset: str,
        revision: str = "main",
        split: str | None = None,
        files: str | None = None,
        endpoint: str | None = None,
        manners: Manners | None = None,
    ) -> None:
        if not _NAME.fullmatch(dataset):
            raise ValueError(f"dataset is {dataset!r}, must be 'owner/name' or an existing directory")
        self.dataset, self.revision, self.split, self.files, self.endpoint = dataset, revision, split, files, endpoint
        self.manners = manners_for_host(self.base, HUB, manners)

    @property
    def base(self) -> str:
        return hub_endpoint(self.endpoint)

    def generate_urls(self) -> list[str]:
        client = HttpClient(self.manners)
        about = f"{self.base}/api/datasets/{self.dataset}/revision/{quote(self.revision, safe='')}"
        commit = str(_json(client, about)[0].get("sha") or self.revision)
        tree: str | None = f"{self.base}/api/datasets/{self.dataset}/tree/{commit}?recursive=true"
        entries: list[dict[str, Any]] = []
        while tree:
            page, tree = _json(client, tree)
            entries += [entry for entry in page if entry.get("type") == "file"]
        chosen = choose_files({entry["path"]: entry for entry in entries}, self.split, self.files)
        if not chosen:
            raise DownloadError(
                about,
                f"no Parquet or JSON lines files for split={self.split!r}, files={self.files!r} in commit {commit}",
            )
        root = f"{self.base}/datasets/{self.dataset}/resolve/{commit}"
        return [
            with_checksum(f"{root}/{quote(path)}", "sha256", (entry.get("lfs") or {}).get("oid"))
            for path, entry in sorted(chosen.items())
        ]


def _json(client: HttpClient, url: str) -> tuple[Any, str | None]:
    """The answer of the hub's API, and the URL of its next page if there is one."""
    answer = client.fetch(url)
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise DownloadError(url, f"the answer is not JSON: {error}") from error
    next_page = _NEXT.search(answer.headers.get("link", ""))
    return value, urljoin(url, next_page[1]) if next_page else None


def choose_files(files: dict[str, Any], split: str | None, pattern: str | None) -> dict[str, Any]:
    """The files that match the pattern, or else those of the split: Parquet if there is any, else JSON lines."""
    if pattern is not None:
        return {
            path: entry for path, entry in files.items() if fnmatch(path, pattern) and path.endswith((*PARQUET, *JSONL))
        }
    if split is not None:
        word = re.compile(rf"(?:^|[/_.-]){re.escape(split)}(?:[/_.-]|$)")
        files = {path: entry for path, entry in files.items() if word.search(path)}
    metadata = ("dataset_infos.json", "dataset_info.json")
    for extensions in (PARQUET, JSONL):
        chosen = {
            path: entry
            for path, entry in files.items()
            if path.endswith(extensions) and not path.endswith(metadata) and "/." not in f"/{path}"
        }
        if chosen:
            return chosen
    return {}


class HubDownloader(ChecksumDownloader):
    def _get_output_filename(self, url: str) -> str:
        """The commit and the path in the dataset, so that revisions do not mix."""
        return file_name(f"file:///{without_fragment(url).partition('/resolve/')[2]}")


class HubReadStage(ProcessingStage[FileGroupTask, DocumentBatch]):
    """Reads Parquet and JSON lines files, told apart by their extensions."""

    name = "read_dataset"

    def __init__(
        self,
        fields: Sequence[str] | None = None,
        record_limit: int | None = None,
        add_filename_column: bool | str = True,
    ) -> None:
        super().__init__()
        self.fields = None if fields is None else list(fields)
        self.record_limit = check_limit("record_limit", record_limit)
        self.add_filename_column = add_filename_column

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self.fields or [])

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        empty = True
        for part in task.parts():
            name = task.name_of(part.path) if isinstance(task, FilePartition) else part.path
            source = FileInput(part, task.storage_options, on_bad=partial(self._set_aside, name))
            tables = (
                read_parquet(source, self.fields) if part.path.endswith(PARQUET) else read_jsonl(source, self.fields)
            )
            for table in self._limited(tables):
                empty = False
                yield self._batch(task, self._with_name(table, name), name)
        if empty:
            yield self._batch(task, pa.table({POSITION: make_array([], pa.int64())}), "")

    def _limited(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        remaining = self.record_limit
        for table in tables:
            yield table if remaining is None else table.slice(0, remaining)
            if remaining is not None:
                remaining -= min(remaining, table.num_rows)
                if remaining == 0:
                    return

    def _with_name(self, table: pa.Table, name: str) -> pa.Table:
        if not self.add_filename_column:
            return table
        column = self.add_filename_column if isinstance(self.add_filename_column, str) else FILE_NAME
        if column in table.column_names:
            return table
        return table.append_column(column, make_array([name] * table.num_rows, pa.string()))

    def _batch(self, task: FileGroupTask, table: pa.Table, name: str) -> DocumentBatch:
        return DocumentBatch(table, dataset_name=task.dataset_name, metadata={**task.metadata, SOURCE_FILE: name})

    def _set_aside(self, name: str, record: BadRecord) -> None:
        self.set_aside(
            record.reason, content=record.content, file=name, position=record.position, records=record.records
        )


@dataclass(eq=False, repr=False)
class HuggingFaceDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """The rows of a dataset on the hub or in a directory. `files` is a pattern such as "data/*.parquet"."""

    dataset: str
    split: str | None = None
    download_dir: str = "./hub_downloads"
    revision: str = "main"
    files: str | None = None
    fields: Sequence[str] | None = None
    url_limit: int | None = None
    record_limit: int | None = None
    add_filename_column: bool | str = True
    endpoint: str | None = None
    manners: Manners | None = None

    def __post_init__(self) -> None:
        self.dataset = str(self.dataset)
        self.decompose()

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        read = HubReadStage(self.fields, self.record_limit, self.add_filename_column)
        if os.path.isdir(self.dataset):  # noqa: PTH112
            return [FilePartitioningStage(self._local(), limit=self.url_limit), read]
        urls = HubUrlGenerator(self.dataset, self.revision, self.split, self.files, self.endpoint, self.manners)
        downloader = HubDownloader(self.download_dir, manners=urls.manners)
        return [URLGenerationStage(urls, self.url_limit, downloader), DocumentDownloadStage(downloader), read]

    def _local(self) -> list[str]:
        """The data files of a directory."""
        paths = {
            os.path.relpath(os.path.join(folder, name), self.dataset).replace(os.sep, "/"): None  # noqa: PTH118
            for folder, _, names in os.walk(self.dataset)
            for name in names
        }
        chosen = sorted(choose_files(paths, self.split, self.files))
        if not chosen:
            raise ValueError(
                f"{self.dataset} has no Parquet or JSON lines files for split={self.split!r}, files={self.files!r}"
            )
        return [f"{self.dataset}/{path}" for path in chosen]


class TinyStoriesUrlGenerator(URLGenerator):
    """The one file of a split of TinyStories."""

    def __init__(self, split: str = "valid", revision: str = "main", endpoint: str | None = None) -> None:
        if split not in TINY_STORIES:
            raise ValueError(f"split is {split!r}, must be one of {', '.join(TINY_STORIES)}")
        self.split, self.revision, self.endpoint = split, revision, endpoint

    @property
    def base(self) -> str:
        return hub_endpoint(self.endpoint)

    def generate_urls(self) -> list[str]:
        return [f"{self.base}/datasets/roneneldan/TinyStories/resolve/{self.revision}/{TINY_STORIES[self.split]}"]


class TinyStoriesIterator(DocumentIterator):
    """Yields the stories of a file, with their byte positions."""

    def __init__(self, split: str = "valid") -> None:
        self.split = split

    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | BadRecord]:
        number = 0
        with open(file_path, "rb") as opened:
            for position, raw in _stories(opened):
                try:
                    text = raw.decode().strip()
                except UnicodeDecodeError as error:
                    yield BadRecord(position, f"not valid UTF-8 at byte {error.start} of the story", raw)
                    continue
                if text:
                    yield {"text": text, "id": f"tinystories-{self.split}-{number}", POSITION: position}
                    number += 1

    def output_columns(self) -> list[str]:
        return ["text", "id"]


def _stories(opened: Any) -> Iterator[tuple[int, bytes]]:
    rest, position = b"", 0
    while piece := opened.read(_READ_BYTES):
        *complete, rest = (rest + piece).split(_STORY_END)
        for story in complete:
            yield position, story
            position += len(story) + len(_STORY_END)
        if len(rest) > _MAX_STORY_BYTES:
            raise ValueError(
                f"no {_STORY_END.decode()} within {_MAX_STORY_BYTES:,} bytes: this is not a file of TinyStories"
            )
    yield position, rest


@dataclass(eq=False, repr=False)
class TinyStoriesDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """The stories of one split of TinyStories: text, id and file_name."""

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
