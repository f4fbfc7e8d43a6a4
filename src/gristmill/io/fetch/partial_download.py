"""Partial: a file that is being fetched. It has another name until it is whole and verified.

    NAME.part         what has come so far
    NAME.part.json    which version of which address that is

What is given up: going on with a file of which the server does not say a strong ETag or a date. It is fetched anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from gristmill.core.errors import DownloadError, cannot_write
from gristmill.io.storage.checksum import checksum_of

if TYPE_CHECKING:
    from gristmill.io.fetch.http_client import HttpClient


class PartialDownload:
    """One download. `go_on` is called again after a failure, and takes up what is there."""

    def __init__(
        self, url: str, path: str, checksum: str | None = None, length: int | None = None, max_bytes: int | None = None
    ) -> None:
        self.url, self.path = url, Path(path)
        self.length, self.max_bytes = length, max_bytes
        self.algorithm, _, self.digest = (checksum or "").partition(":")
        if checksum and (not self.digest or self.algorithm not in hashlib.algorithms_available):
            raise ValueError(f"checksum is {checksum!r}, must be like 'sha256:0123abc...'")
        self.part = self.path.with_name(self.path.name + ".part")
        self.note = self.path.with_name(self.path.name + ".part.json")
        self.fetched = 0
        self._checksum_failures = 0

    def complete_size(self) -> int | None:
        """The size of the file, if it is in place and is what it should be."""
        if not self.path.is_file():
            return None
        size = self.path.stat().st_size
        if self.length not in (None, size) or (self.digest and not self._has_digest(self.path)):
            return None
        return size

    def resume(self, client: HttpClient, headers: Mapping[str, str]) -> int:
        """Fetch what is missing, and put the file in place. The size of it."""
        have, version = self._fetched_before()
        asked = dict(headers)
        if have:
            asked |= {"Range": f"bytes={have}-", "If-Range": version}
        with client.open(self.url, asked) as (answer, _):
            if answer.status == 416:
                self._drop()  # it has become shorter, or the server cannot say
                raise DownloadError(self.url, "what was fetched of it before is of no use any more", 416, True)
            start = have if answer.status == 206 else 0
            total = self._total(answer, start, version)
            most = None if self.max_bytes is None else max(self.max_bytes - start, 0)
            self._write(client.pieces(self.url, answer, most), start, _content_version(answer.headers))
        return self._finish(total)

    def _total(self, answer: Any, start: int, version: str) -> int | None:
        """How many bytes the whole file has, if the server says so. Raises if that cannot be right."""
        if answer.status == 206:
            span, _, whole = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            if span.partition("-")[0] != str(start):
                self._drop()
                raise DownloadError(self.url, "the server gave another part than it was asked for", 206, True)
            if _content_version(answer.headers) not in (None, version):  # not all servers know If-Range
                self._drop()
                raise DownloadError(self.url, "it has changed since a part of it was fetched", 206, True)
            total = int(whole) if whole.isdecimal() else None
        else:
            claimed = answer.headers.get("Content-Length", "")
            total = int(claimed) if claimed.isdecimal() else None
        if self.length is not None and total is not None and total != self.length:
            raise DownloadError(self.url, f"it has {total:,} bytes, not the {self.length:,} that it should have")
        if self.max_bytes is not None and total is not None and total > self.max_bytes:
            raise DownloadError(self.url, f"{total:,} bytes, more than the limit of {self.max_bytes:,} (max_bytes)")
        return total

    def _write(self, pieces: Any, start: int, version: str | None) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not start:
                self._drop()
                self.note.write_bytes(orjson.dumps({"url": self.url, "version": version}))
            with self.part.open("r+b" if start else "wb") as file:
                file.seek(start)
                for piece in pieces:
                    file.write(piece)
                    self.fetched += len(piece)
                file.flush()
                os.fsync(file.fileno())
        except DownloadError:
            raise
        except OSError as error:
            raise cannot_write(str(self.part), error) from error

    def _finish(self, total: int | None) -> int:
        size = self.part.stat().st_size
        wanted = self.length if total is None else total
        if wanted is not None and size != wanted:
            if size > wanted:
                self._drop()
            raise DownloadError(self.url, f"{size:,} bytes came of {wanted:,}", transient=True)
        if self.digest and not self._has_digest(self.part):
            self._drop()
            self._checksum_failures += 1
            raise DownloadError(
                self.url,
                f"its {self.algorithm} is not {self.digest}: it is not what was published",
                None,
                self._checksum_failures < 2,
            )
        self.note.unlink(missing_ok=True)
        self.part.replace(self.path)
        return size

    def _fetched_before(self) -> tuple[int, str]:
        """How much has come of a version that the server will know again."""
        try:
            note = orjson.loads(self.note.read_bytes())
            if note["url"] == self.url and note["version"]:
                return self.part.stat().st_size, note["version"]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return 0, ""

    def _drop(self) -> None:
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def _has_digest(self, path: Path) -> bool:
        with path.open("rb") as file:
            return checksum_of(file, self.algorithm) == f"{self.algorithm}:{self.digest.lower()}"


def _content_version(headers: Mapping[str, str]) -> str | None:
    """What names this version of the file: a strong ETag, or when it was changed."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else headers.get("Last-Modified")
