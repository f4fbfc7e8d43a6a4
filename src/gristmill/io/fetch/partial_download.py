"""PartialDownload: a file that is being downloaded. It gets its final name when it is complete and verified.

    NAME.part         the bytes received so far
    NAME.part.json    their URL, and the version of the file

What is given up: a download cannot be resumed if the server sends neither a strong ETag nor a date. It starts again.
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
    """One download. Call `resume` to start it, and again after a failure to continue."""

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
        """The size of the file, if it exists and has the expected length and checksum. An empty file must be expected:
        otherwise it is what an interrupted download of another program has left."""
        if not self.path.is_file():
            return None
        size = self.path.stat().st_size
        if not size and self.length is None and not self.digest:
            return None
        if self.length not in (None, size) or (self.digest and not self._has_digest(self.path)):
            return None
        return size

    def resume(self, client: HttpClient, headers: Mapping[str, str]) -> int:
        """Fetch the missing bytes, and move the file into place. Returns its size."""
        received, version = self._fetched_before()
        request_headers = dict(headers)
        if received:
            request_headers |= {"Range": f"bytes={received}-", "If-Range": version}
        with client.open(self.url, request_headers) as (answer, _):
            if answer.status == 416:
                self._drop()  # the file is now shorter, or the server cannot tell
                raise DownloadError(self.url, "the part fetched before cannot be continued", 416, True)
            start = received if answer.status == 206 else 0
            total = self._total(answer, start, version)
            limit = None if self.max_bytes is None else max(self.max_bytes - start, 0)
            self._write(client.pieces(self.url, answer, limit), start, _content_version(answer.headers))
        return self._finish(total)

    def _total(self, answer: Any, start: int, version: str) -> int | None:
        """The size of the complete file, if the server sends it. Raises if it is not the expected one."""
        if answer.status == 206:
            span, _, size = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            if span.partition("-")[0] != str(start):
                self._drop()
                raise DownloadError(self.url, "the server sent another range than requested", 206, True)
            if _content_version(answer.headers) not in (None, version):  # not all servers support If-Range
                self._drop()
                raise DownloadError(self.url, "the file has changed since a part of it was fetched", 206, True)
            total = int(size) if size.isdecimal() else None
        else:
            claimed = answer.headers.get("Content-Length", "")
            total = int(claimed) if claimed.isdecimal() else None
        if self.length is not None and total is not None and total != self.length:
            raise DownloadError(self.url, f"{total:,} bytes instead of the expected {self.length:,}")
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
        expected = self.length if total is None else total
        if expected is not None and size != expected:
            if size > expected:
                self._drop()
            raise DownloadError(self.url, f"received {size:,} of {expected:,} bytes", transient=True)
        if self.digest and not self._has_digest(self.part):
            self._drop()
            self._checksum_failures += 1
            raise DownloadError(
                self.url,
                f"its {self.algorithm} is not {self.digest}: the file is damaged, or not the published one",
                None,
                self._checksum_failures < 2,
            )
        self.note.unlink(missing_ok=True)
        self.part.replace(self.path)
        return size

    def _fetched_before(self) -> tuple[int, str]:
        """The bytes received before and the version they belong to; 0 if they cannot be continued."""
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
    """What identifies this version of the file: a strong ETag, or the time of its last change."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else headers.get("Last-Modified")
