"""The framework of sources: four things that a source says, each with one method to write.

    URLGenerator         generate_urls()              what there is to fetch
    DocumentDownloader   _download_to_path(url, path) how one of them is fetched
    DocumentIterator     iterate(file_path)           the records of a file
    DocumentExtractor    extract(record)              what is wanted of a record

`DocumentDownloadExtractStage` makes stages of them (`download_stages.py`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from gristmill.core.errors import DownloadError
from gristmill.core.task import digest
from gristmill.io.storage.file_input import BadRecord

if TYPE_CHECKING:
    from gristmill.io.fetch.http_client import HttpClient, Manners

_MAX_NAME_BYTES = 200


class URLGenerator(ABC):
    """Says what there is to fetch."""

    @abstractmethod
    def generate_urls(self) -> Iterable[str]:
        """All addresses, in an order that stays the same."""


class DocumentDownloader(ABC):
    """Fetches files into a directory, which all workers must see."""

    workers: int = 2
    """How many download at once, each in a process of its own, beside those that work on what came."""

    def __init__(self, download_dir: str, verbose: bool = False) -> None:
        """`verbose` changes nothing: scripts for NeMo Curator give it, and a run tells its progress by itself."""
        if "://" in str(download_dir):
            raise ValueError(f"download_dir is {download_dir!r}: give a directory of the file system, not an address")
        self.download_dir, self.verbose = str(download_dir), verbose

    @abstractmethod
    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None] | None:
        """Fetch into the file `path`. A failure is raised, or told as (False, "why")."""

    def _get_output_filename(self, url: str) -> str:
        """The name of the file in the directory: one for each address, and the same in every run."""
        return file_name(url)

    def path_of(self, url: str) -> str:
        return str(Path(self.download_dir).expanduser() / self._get_output_filename(url))

    def download(self, url: str) -> str:
        """The path of the file, fetched unless it is there. Raises a DownloadError."""
        path = Path(self.path_of(url))
        if path.exists():
            return str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.tmp")
        done = self._download_to_path(url, str(draft))
        if done is not None and not done[0]:
            raise DownloadError(url, done[1] or "it could not be fetched")
        if not draft.exists():
            raise DownloadError(url, f"{type(self).__name__} wrote nothing")
        draft.replace(path)
        return str(path)


class HttpDownloader(DocumentDownloader):
    """Fetches with the manners of `io/fetch/http_client.py`: goes on where it stopped, verifies, waits when it is asked to."""

    def __init__(
        self, download_dir: str, verbose: bool = False, manners: Manners | None = None, workers: int = 2
    ) -> None:
        super().__init__(download_dir, verbose)
        self.manners, self.workers = manners, workers
        self._client: HttpClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_client": None}

    @property
    def client(self) -> HttpClient:
        if self._client is None:
            from gristmill.io.fetch.http_client import HttpClient  # who reads files has no need of it

            self._client = HttpClient(self.manners)
        return self._client

    def checksum(self, url: str) -> str | None:
        """What was published of a file, as in "sha256:0123...", if anything was."""
        return None

    def download(self, url: str) -> str:
        return self.client.save(url, self.path_of(url), checksum=self.checksum(url)).path

    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
        self.client.save(url, path, checksum=self.checksum(url))
        return True, None


class DocumentIterator(ABC):
    """Gives the records of a file, one by one. Memory must not grow with the file."""

    @abstractmethod
    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | BadRecord]:
        """The records. One with the key `__position__` (`core.table.POSITION`) says its own place in the file, which
        must go up; else its place is its number. A `BadRecord` (`io.input`) instead of a record is set aside."""

    def output_columns(self) -> list[str]:
        """What records have, if that is known."""
        return []

    def parts(self, file_path: str) -> Sequence[tuple[int, int]]:
        """Where a file can be cut, so that several workers share it: first byte and the one after the last. None: not
        at all."""
        return ()

    def iterate_part(self, file_path: str, start: int, end: int) -> Iterator[dict[str, Any] | BadRecord]:
        """The records of one of the `parts`."""
        raise NotImplementedError(f"{type(self).__name__}.iterate_part({file_path!r}, {start}, {end})")


class DocumentExtractor(ABC):
    """Makes of a record what is wanted of it."""

    @abstractmethod
    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The columns of the row; None to drop it. What it raises sets the record aside. Say with `count` why a record
        is dropped, and it is told in the summary of the run."""

    def input_columns(self) -> list[str]:
        return []

    def output_columns(self) -> list[str]:
        """What `extract` gives, if that is known."""
        return []

    def setup(self) -> None:  # noqa: B027  most have nothing to load
        """Once per worker: import and load what is heavy."""

    def count(self, name: str, value: int = 1) -> None:
        self.__dict__.setdefault("_counts", Counter())[name] += value

    def take_counts(self) -> dict[str, int]:
        """The counts since the last call. For the stage."""
        return dict(self.__dict__.pop("_counts", {}))


def file_name(url: str) -> str:
    """A name for the file at an address: its path, and something of its host and query if there is one."""
    parts = urlsplit(url)
    path = unquote(parts.path).strip("/") or parts.hostname or "file"
    safe = re.sub(r"[^\w.\-]+", "-", path).strip("-.") or "file"
    if parts.query or len(safe.encode()) > _MAX_NAME_BYTES:
        safe = f"{digest([url])}-{safe.encode()[-_MAX_NAME_BYTES:].decode(errors='ignore')}"
    return safe
