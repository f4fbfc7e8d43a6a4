"""Datasets of the Hugging Face hub, or a directory with such files: Parquet or JSON lines.

    HuggingFaceDownloadExtractStage("roneneldan/TinyStories", split="train", revision="f54c09f")

A revision is looked up once, and files are those of its commit, verified by their checksums where the hub has them. The
endpoint is that of the hub, what HF_ENDPOINT says, or `endpoint`.

It gives up datasets that one must log in for: fetch them with the hub's own tools, and give the directory. And it gives
up loading scripts, which are programs.
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
from gristmill.download.checksum_urls import ChecksumDownloader, manners_for_host, with_checksum, without_fragment
from gristmill.download.download_stages import FILE_NAME, DocumentDownloadStage, URLGenerationStage, check_limit
from gristmill.download.interfaces import URLGenerator, file_name
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


class HubUrlGenerator(URLGenerator):
    """The data files of a dataset at one commit."""

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
            raise ValueError(f"dataset is {dataset!r}, must be like 'owner/name', or a directory that there is")
        self.dataset, self.revision, self.split, self.files, self.endpoint = dataset, revision, split, files, endpoint
        self.manners = manners_for_host(self.base, HUB, manners)

    @property
    def base(self) -> str:
        return (self.endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")

    def generate_urls(self) -> list[str]:
        client = HttpClient(self.manners)
        about = f"{self.base}/api/datasets/{self.dataset}/revision/{quote(self.revision, safe='')}"
        commit = str(_json(client, about)[0].get("sha") or self.revision)
        tree: str | None = f"{self.base}/api/datasets/{self.dataset}/tree/{commit}?recursive=true"
        entries: list[dict[str, Any]] = []
        while tree:
            found, tree = _json(client, tree)
            entries += [entry for entry in found if entry.get("type") == "file"]
        chosen = choose_files({entry["path"]: entry for entry in entries}, self.split, self.files)
        if not chosen:
            raise DownloadError(
                about, f"no Parquet or JSON lines for split={self.split!r}, files={self.files!r} in {commit}"
            )
        root = f"{self.base}/datasets/{self.dataset}/resolve/{commit}"
        return [
            with_checksum(f"{root}/{quote(path)}", "sha256", (entry.get("lfs") or {}).get("oid"))
            for path, entry in sorted(chosen.items())
        ]


def _json(client: HttpClient, url: str) -> tuple[Any, str | None]:
    answer = client.fetch(url)
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise DownloadError(url, f"not what a hub answers: {error}") from error
    following = _NEXT.search(answer.headers.get("link", ""))
    return value, urljoin(url, following[1]) if following else None


def choose_files(files: dict[str, Any], split: str | None, pattern: str | None) -> dict[str, Any]:
    """The files of a split, or those that fit a pattern; Parquet if there is any, else JSON lines."""
    if pattern is not None:
        return {
            path: facts for path, facts in files.items() if fnmatch(path, pattern) and path.endswith((*PARQUET, *JSONL))
        }
    if split is not None:
        word = re.compile(rf"(?:^|[/_.-]){re.escape(split)}(?:[/_.-]|$)")
        files = {path: facts for path, facts in files.items() if word.search(path)}
    for kind in (PARQUET, JSONL):
        chosen = {path: facts for path, facts in files.items() if path.endswith(kind) and "/." not in f"/{path}"}
        chosen = {
            path: facts
            for path, facts in chosen.items()
            if not path.endswith(("dataset_infos.json", "dataset_info.json"))
        }
        if chosen:
            return chosen
    return {}


class HubDownloader(ChecksumDownloader):
    def _get_output_filename(self, url: str) -> str:
        """The commit and the path in the dataset."""
        return file_name(f"file:///{without_fragment(url).partition('/resolve/')[2]}")


class HubReadStage(ProcessingStage[FileGroupTask, DocumentBatch]):
    """Reads Parquet and JSON lines, by the names of the files."""

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
            source = FileInput(part, task.storage_options, on_bad=partial(self._bad, name))
            tables = (
                read_parquet(source, self.fields) if part.path.endswith(PARQUET) else read_jsonl(source, self.fields)
            )
            for table in self._limited(tables):
                empty = False
                yield self._batch(task, self._with_name(table, name), name)
        if empty:
            yield self._batch(task, pa.table({POSITION: make_array([], pa.int64())}), "")

    def _limited(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        left = self.record_limit
        for table in tables:
            yield table if left is None else table.slice(0, left)
            if left is not None:
                left -= min(left, table.num_rows)
                if left == 0:
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

    def _bad(self, name: str, record: BadRecord) -> None:
        self.set_aside(
            record.reason, content=record.content, file=name, position=record.position, records=record.records
        )


@dataclass(eq=False, repr=False)
class HuggingFaceDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """The rows of a dataset at the hub, or of a directory. `files` is a pattern such as "data/*.parquet"."""

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
        found = {
            os.path.relpath(os.path.join(folder, name), self.dataset).replace(os.sep, "/"): None  # noqa: PTH118
            for folder, _, names in os.walk(self.dataset)
            for name in names
        }
        chosen = sorted(choose_files(found, self.split, self.files))
        if not chosen:
            raise ValueError(
                f"{self.dataset} has no Parquet or JSON lines for split={self.split!r}, files={self.files!r}"
            )
        return [f"{self.dataset}/{path}" for path in chosen]
