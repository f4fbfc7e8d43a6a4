"""Downloaders: files by HTTP and from object stores, saved in a directory that all workers see.

    DocumentDownloader   base class; downloads to a temporary name, then renames
    HttpDownloader       HTTP with retries, rate limits and resumed downloads
    ChecksumDownloader   HTTP, verified by a checksum in the fragment of the URL: https://host/file.bz2#sha1=0123...
    ObjectDownloader     any fsspec URL, such as s3://bucket/name

A file that is already in the directory is not downloaded again, so a change at the same URL goes unnoticed: delete the
file to download it again. A checksum in the URL makes a republished file a new source.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from gristmill.core.errors import DownloadError, GristmillError
from gristmill.core.task import digest
from gristmill.io.read.file_listing import content_stamp
from gristmill.io.storage.file_input import file_system

if TYPE_CHECKING:
    from gristmill.io.fetch.http_client import HttpClient, Manners

PIECE_BYTES = 8 * 2**20
"""Bytes of an object per request."""

_MAX_NAME_BYTES = 200
_CHECKSUMS = ("md5", "sha1", "sha256", "sha512")


class DocumentDownloader(ABC):
    """Downloads files into a directory that all workers see."""

    workers: int = 2
    """How many processes download at the same time, next to those that process the files."""

    def __init__(self, download_dir: str, verbose: bool = False) -> None:
        """`verbose` has no effect; it is accepted for scripts written for NeMo Curator."""
        if "://" in str(download_dir):
            raise ValueError(f"download_dir is {download_dir!r}: must be a directory of the file system, not a URL")
        self.download_dir, self.verbose = str(download_dir), verbose

    @abstractmethod
    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None] | None:
        """Download to the file `path`. On failure raise an exception, or return (False, "reason")."""

    def _get_output_filename(self, url: str) -> str:
        """The name of the file in the directory: different for each URL, and the same in every run."""
        return file_name(url)

    def path_of(self, url: str) -> str:
        return str(Path(self.download_dir).expanduser() / self._get_output_filename(url))

    failure: DownloadError | None = None
    """Why the last `download` returned None."""

    def download(self, url: str) -> str | None:
        """Download a file unless it exists, and return its path; None if that fails, and `failure` says why."""
        self.failure = None
        try:
            return self.fetch(url)
        except DownloadError as error:
            self.failure = error
            return None

    def fetch(self, url: str) -> str:
        """Download a file unless it exists, and return its path. Raises a DownloadError. An empty file does not count:
        it is what an interrupted download may leave."""
        path = Path(self.path_of(url))
        if has_content(path):
            return str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.tmp")
        result = self._download_to_path(url, str(temporary))
        if result is not None and not result[0]:
            raise DownloadError(url, result[1] or "the download failed, for no stated reason")
        if not temporary.exists():
            raise DownloadError(url, f"{type(self).__name__} wrote no file")
        temporary.replace(path)
        return str(path)


class HttpDownloader(DocumentDownloader):
    """Downloads by HTTP (`io/fetch/http_client.py`): resumes, verifies, retries, and respects rate limits."""

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
            from gristmill.io.fetch.http_client import HttpClient  # readers of local files do not need it

            self._client = HttpClient(self.manners)
        return self._client

    def checksum(self, url: str) -> str | None:
        """The published checksum of a file, such as "sha256:0123...", or None."""
        return None

    def fetch(self, url: str) -> str:
        return self.client.save(url, self.path_of(url), checksum=self.checksum(url)).path

    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
        self.client.save(url, path, checksum=self.checksum(url))
        return True, None


class ChecksumDownloader(HttpDownloader):
    """Downloads by HTTP and verifies the checksum in the fragment of the URL."""

    def checksum(self, url: str) -> str | None:
        kind, equals, value = urlsplit(url).fragment.partition("=")
        return f"{kind}:{value}" if equals and kind in _CHECKSUMS else None

    def fetch(self, url: str) -> str:
        return self.client.save(without_fragment(url), self.path_of(url), checksum=self.checksum(url)).path

    def _get_output_filename(self, url: str) -> str:
        return file_name(f"file:///{urlsplit(url).path.rstrip('/').rsplit('/', 1)[-1]}")


class ObjectDownloader(DocumentDownloader):
    """Downloads from object stores by fsspec, and resumes a partial download if the object has not changed."""

    def __init__(
        self,
        download_dir: str,
        verbose: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        workers: int = 2,
    ) -> None:
        super().__init__(download_dir, verbose)
        self.storage_options, self.workers = dict(storage_options or {}), workers

    def fetch(self, url: str) -> str:
        path = Path(self.path_of(url))
        if not has_content(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._fetch_object(url, path)
            except GristmillError:
                raise
            except Exception as error:  # every store raises its own errors
                raise _object_error(url, error) from error
        return str(path)

    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
        self._fetch_object(url, Path(path))
        return True, None

    def _fetch_object(self, url: str, path: Path) -> None:
        system, inner = file_system(url, self.storage_options)
        info = system.info(inner)
        size, version = int(info["size"]), content_stamp(info)
        part, version_file = path.with_name(path.name + ".part"), path.with_name(path.name + ".part.version")
        unchanged = bool(version) and version_file.exists() and version_file.read_text() == version
        received = part.stat().st_size if unchanged and part.exists() else 0
        version_file.write_text(version)
        with part.open("r+b" if received else "wb") as file:
            file.seek(received)
            while received < size:
                piece = system.cat_file(inner, start=received, end=min(received + PIECE_BYTES, size))
                if not piece:
                    break
                file.write(piece)
                received += len(piece)
        if received != size or content_stamp(system.info(inner)) != version:
            part.unlink(missing_ok=True)
            raise DownloadError(
                url, f"received {received:,} of {size:,} bytes, or the object changed meanwhile", transient=True
            )
        version_file.unlink(missing_ok=True)
        part.replace(path)


def has_content(path: Path) -> bool:
    """Whether there is a file that is not empty."""
    return path.is_file() and path.stat().st_size > 0


def read_object(
    url: str, storage_options: Mapping[str, Any], start: int | None = None, end: int | None = None
) -> bytes:
    """The content of an object, or of a byte range of it."""
    system, path = file_system(url, storage_options)
    try:
        content: bytes = system.cat_file(path, start=start, end=end)
    except Exception as error:  # every store raises its own errors
        raise _object_error(url, error) from error
    return content


def _object_error(url: str, error: Exception) -> DownloadError:
    if isinstance(error, FileNotFoundError):
        return DownloadError(url, "there is no such object", 404)
    return DownloadError(url, f"{type(error).__name__}: {error}", transient=True)


def file_name(url: str) -> str:
    """A file name for a URL: its path with unsafe characters replaced, after a hash of the URL if it has a query or a
    very long path."""
    parts = urlsplit(url)
    path = unquote(parts.path).strip("/") or parts.hostname or "file"
    safe = re.sub(r"[^\w.\-]+", "-", path).strip("-.") or "file"
    if parts.query or len(safe.encode()) > _MAX_NAME_BYTES:
        safe = f"{digest([url])}-{safe.encode()[-_MAX_NAME_BYTES:].decode(errors='ignore')}"
    return safe


def with_checksum(url: str, kind: str | None, value: str | None) -> str:
    """The URL as `ChecksumDownloader` expects it."""
    return f"{url}#{kind}={value}" if kind and value else url


def without_fragment(url: str) -> str:
    return url.partition("#")[0]


def manners_for_host(base: str, default: str, manners: Manners | None) -> Manners:
    """The given manners, or defaults. A host other than the default may be a mirror in a private network, so private
    addresses are allowed for it."""
    from gristmill.io.fetch.http_client import Manners

    if manners is not None:
        return manners
    return Manners() if base.rstrip("/") == default.rstrip("/") else replace(Manners(), allow_private=True)
