"""Objects: files of an object store, by fsspec. They are fetched to a temporary name and go on where they stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.core.errors import DownloadError, GristmillError
from gristmill.download.interfaces import DocumentDownloader
from gristmill.io.read.file_listing import content_stamp
from gristmill.io.storage.file_input import file_system

PIECE_BYTES = 8 * 2**20


def read_object(
    url: str, storage_options: Mapping[str, Any], start: int | None = None, end: int | None = None
) -> bytes:
    """An object, or a part of it, in memory."""
    system, path = file_system(url, storage_options)
    try:
        content: bytes = system.cat_file(path, start=start, end=end)
    except Exception as error:  # each store has errors of its own
        raise _download_error(url, error) from error
    return content


class ObjectDownloader(DocumentDownloader):
    """Fetches from object stores, as in s3://bucket/name."""

    def __init__(
        self,
        download_dir: str,
        verbose: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        workers: int = 2,
    ) -> None:
        super().__init__(download_dir, verbose)
        self.storage_options, self.workers = dict(storage_options or {}), workers

    def download(self, url: str) -> str:
        path = Path(self.path_of(url))
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._fetch(url, path)
            except GristmillError:
                raise
            except Exception as error:  # each store has errors of its own
                raise _download_error(url, error) from error
        return str(path)

    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
        self._fetch(url, Path(path))
        return True, None

    def _fetch(self, url: str, path: Path) -> None:
        system, inner = file_system(url, self.storage_options)
        info = system.info(inner)
        size, version = int(info["size"]), content_stamp(info)
        part, note = path.with_name(path.name + ".part"), path.with_name(path.name + ".part.version")
        same = bool(version) and note.exists() and note.read_text() == version
        have = part.stat().st_size if same and part.exists() else 0
        note.write_text(version)
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            while have < size:
                piece = system.cat_file(inner, start=have, end=min(have + PIECE_BYTES, size))
                if not piece:
                    break
                file.write(piece)
                have += len(piece)
        if have != size or content_stamp(system.info(inner)) != version:
            part.unlink(missing_ok=True)
            raise DownloadError(url, f"{have:,} bytes came of {size:,}, or it has changed meanwhile", transient=True)
        note.unlink(missing_ok=True)
        part.replace(path)


def _download_error(url: str, error: Exception) -> DownloadError:
    if isinstance(error, FileNotFoundError):
        return DownloadError(url, "there is no such object", 404)
    return DownloadError(url, f"{type(error).__name__}: {error}", transient=True)
