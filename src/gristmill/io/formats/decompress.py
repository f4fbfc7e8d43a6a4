"""Decompress gzip and zstd streams. If a stream is damaged, everything before the damage is still returned."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from gristmill.io.formats.format_detection import GZIP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.io.storage.file_input import OpenFile

FIRST_READ_BYTES = 64 * 2**10


class DamagedStreamError(Exception):
    """A compressed stream cannot be read any further."""


def decompress(file: OpenFile, kind: str, size: int) -> Iterator[bytes]:
    """The decompressed bytes in pieces of at most `size`; raises `DamagedStreamError` after the last good byte."""
    return _gunzip(file, size) if kind == GZIP else _unzstd(file, size)


def _gunzip(file: OpenFile, size: int) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)
    while data := file.read(FIRST_READ_BYTES):
        while data:
            if stream.eof:  # several members in one file; some tools pad between them with zeros
                data = data.lstrip(b"\0")
                if not data:
                    break
                stream = zlib.decompressobj(wbits=31)
            before = stream.copy()
            try:
                piece = stream.decompress(data, size)
            except zlib.error as error:
                yield from _salvage(before, data)
                raise DamagedStreamError(
                    f"the gzip stream is damaged here, and the rest cannot be read ({error})"
                ) from error
            data = stream.unconsumed_tail or stream.unused_data
            if piece:
                yield piece
    if not stream.eof:
        rest = stream.flush()
        if rest:
            yield rest
    if not stream.eof:
        raise DamagedStreamError("the gzip stream is truncated")


def _salvage(stream: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """The bytes that can be decompressed before the one at which decompression fails."""
    try:
        for index in range(len(data)):
            piece = stream.decompress(data[index : index + 1])
            if piece:
                yield piece
    except zlib.error:
        return


def _unzstd(file: OpenFile, size: int) -> Iterator[bytes]:
    import pyarrow as pa

    size = min(size, FIRST_READ_BYTES)
    done = 0
    try:
        stream = _zstd_stream(file)
        while piece := stream.read(size):
            done += len(piece)
            yield piece
    except (OSError, pa.ArrowInvalid) as error:
        if file.failure:
            raise
        reason = str(error)
    else:
        return
    yield from _salvage_zstd(file, done, size)
    truncated = "Truncated" in reason
    raise DamagedStreamError(
        "the zstd stream is truncated"
        if truncated
        else f"the zstd stream is damaged here, and the rest cannot be read ({reason})"
    )


def _salvage_zstd(file: OpenFile, done: int, size: int) -> Iterator[bytes]:
    """The bytes that were decompressed in the failed read: read up to there again, then byte by byte."""
    import pyarrow as pa

    file.seek(0)
    try:
        stream = _zstd_stream(file)
        while done > 0:
            done -= len(stream.read(min(size, done)))
        while byte := stream.read(1):
            yield byte
    except (OSError, pa.ArrowInvalid):
        if file.failure:
            raise


def _zstd_stream(file: OpenFile) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
