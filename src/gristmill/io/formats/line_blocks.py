"""Lines: a file, or a part of it, as blocks of whole lines, in bounded memory.

A byte range owns every line that starts in it, so that ranges which cover a file give each line exactly
once. A compressed file is one stream; when that is cut short or damaged, every line before the damage is
still given, and the damage is reported as a bad record.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gristmill.core.errors import InputError
from gristmill.io.formats.decompress import FIRST_READ_BYTES, DamagedStreamError, decompress
from gristmill.io.formats.format_detection import detect_compression
from gristmill.io.storage.file_input import MAX_RAW_BYTES, BadRecord, largest_block_bytes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from gristmill.core.task import FileSlice
    from gristmill.io.storage.file_input import FileInput, OpenFile

MAX_LINE_BYTES = 256 * 2**20
HEAD_BYTES = 256 * 2**10

_CHUNK_BYTES = 2**20
_MAX_COUNTED_BYTES = 64 * 2**20


class ScannedBlock(NamedTuple):
    """What was found in a block of lines as it was read, which was not kept: it can be read again."""

    found: Any
    size: int
    read: Callable[[], bytes]


BlockScanner = Callable[[int, int, int, bool], tuple[Any, int] | None]
"""Finds something in lines of an open file, and tells how many bytes these are: `kernels.json_columns_of`."""


def read_line_blocks(source: FileInput, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines, each with its byte offset in the (decompressed) file."""
    return cast("Iterator[tuple[int, bytes]]", scan_line_blocks(source, max_line_bytes, None))


def scan_line_blocks(
    source: FileInput, max_line_bytes: int, look: BlockScanner | None
) -> Iterator[tuple[int, bytes | ScannedBlock]]:
    """The same; of blocks in which `look` finds something, just that, where reading them again costs little."""
    # A line longer than the limit must span two chunks: that is where it is noticed.
    size = min(_CHUNK_BYTES, source.blocksize, max_line_bytes)
    part = source.part
    if part.end is not None and part.end <= part.start:
        return
    with source.open() as file:
        kind = detect_compression(part.path, file.read(FIRST_READ_BYTES)) if part.start == 0 else None
        file.seek(0)
        offset = 0 if kind else _first_line(file, part)
        if offset is None:
            return
        # Nothing here holds on to a block that others have: it is large, and they let it go as soon as they can.
        yield from map(
            partial(_without_byte_order_mark, source), _blocks(source, file, kind, offset, size, max_line_bytes, look)
        )


def _without_byte_order_mark(
    source: FileInput, found: tuple[int, bytes | ScannedBlock]
) -> tuple[int, bytes | ScannedBlock]:
    """A block that was read, without the mark of its byte order."""
    start, block = found
    if isinstance(block, ScannedBlock):
        source.on_bytes(block.size)
        return found
    source.on_bytes(len(block))
    return (3, block[3:]) if start == 0 and block.startswith(codecs.BOM_UTF8) else found


def _blocks(
    source: FileInput,
    file: OpenFile,
    kind: str | None,
    offset: int | None,
    size: int,
    max_line: int,
    look: BlockScanner | None,
) -> Iterator[tuple[int, bytes | ScannedBlock]]:
    most = largest_block_bytes(source.blocksize)
    if file.local and not kind and offset is not None and max_line >= most:
        offset = yield from _blocks_in_place(file, offset, source.part, most, look)
    if offset is not None:
        chunks = decompress(file, kind, size) if kind else _range(file, offset, source.part, size)
        yield from cut_whole_lines(chunks, offset, source.blocksize, max_line, source.on_bad)


def read_head(source: FileInput, size: int = HEAD_BYTES) -> bytes:
    """The first bytes of the (decompressed) file."""
    with source.open() as file:
        head = file.read(FIRST_READ_BYTES)
        kind = detect_compression(source.path, head)
        if not kind:
            more = size - len(head) if len(head) == FIRST_READ_BYTES else 0
            return (head + file.read(max(more, 0)))[:size]
        file.seek(0)
        pieces: list[bytes] = []
        try:
            for piece in decompress(file, kind, FIRST_READ_BYTES):
                pieces.append(piece)
                if sum(map(len, pieces)) >= size:
                    break
        except DamagedStreamError:
            pass  # told when the file is read
        return b"".join(pieces)[:size]


def line_number(source: FileInput, offset: int) -> int | None:
    """The number of the line at an offset, counted from 1; None when counting would take long."""
    if offset > _MAX_COUNTED_BYTES:
        return None
    with source.open() as file:
        if detect_compression(source.path, file.read(FIRST_READ_BYTES)):
            return None
        file.seek(0)
        return file.read(offset).count(b"\n") + 1


# -- chunks ----------------------------------------------------------------------------------------------


def _first_line(file: OpenFile, part: FileSlice) -> int | None:
    """Where the first line begins that starts in the range; None if there is none."""
    start, end = part.start, part.end
    if start == 0:
        return 0
    position = start - 1
    file.seek(position)
    while end is None or position < end - 1:
        chunk = file.read(FIRST_READ_BYTES if end is None else min(FIRST_READ_BYTES, end - 1 - position))
        if not chunk:
            _check_end(part)
            return None
        found = chunk.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(chunk)
    return None


def _range(file: OpenFile, position: int, part: FileSlice, size: int) -> Iterator[bytes]:
    """The bytes from a position to the end, and on to the end of the line that is open there."""
    end = part.end
    file.seek(position)
    chunk = b"\n"
    while end is None or position < end:
        chunk = file.read(size if end is None else min(size, end - position))
        if not chunk:
            _check_end(part)
            return
        position += len(chunk)
        yield chunk
    if chunk.endswith(b"\n"):
        return
    while chunk := file.read(min(size, FIRST_READ_BYTES)):
        found = chunk.find(b"\n")
        if found >= 0:
            yield chunk[: found + 1]
            return
        yield chunk


def _blocks_in_place(
    file: OpenFile, position: int, part: FileSlice, most: int, look: BlockScanner | None
) -> Generator[tuple[int, bytes | ScannedBlock], None, int | None]:
    """Blocks of whole lines that need not be put together. The answer is where a line begins that may be too long for
    that; None at the end."""
    stop = None if part.end is None else _last_line_end(file, part, most)
    if part.end is not None and stop is None:
        return position
    found: list[tuple[int, bytes | ScannedBlock]]
    while stop is None or position < stop:
        room = most if stop is None else min(stop - position, most)
        if look and (seen := look(file.fileno(), position, room, position + room == stop)):
            found = [(position, ScannedBlock(*seen, partial(_read_again, file, part.path, position, seen[1])))]
            position += seen[1]
            del seen
            yield found.pop()
            continue
        look = None  # other blocks of the file will have what this one has that cannot be looked through
        block = _read_at(file, position, room)
        if len(block) < room and stop is not None:
            _check_end(part)
        if len(block) == room and position + room != stop:
            block = block[: block.rfind(b"\n") + 1]
            if not block:
                return position
        if not block:
            break
        found = [(position, block)]
        position += len(block)
        del block
        yield found.pop()
    return None


def _read_at(file: OpenFile, position: int, size: int) -> bytes:
    file.seek(position)
    return file.read(size)


def _read_again(file: OpenFile, path: str, position: int, size: int) -> bytes:
    block = _read_at(file, position, size)
    if len(block) < size:
        raise changed_file_error(path)
    return block


def changed_file_error(path: str) -> InputError:
    return InputError(f"{path} has changed while it was read: start the run again")


def _last_line_end(file: OpenFile, part: FileSlice, most: int) -> int | None:
    """Where the last line ends that starts in the range; None if it is long."""
    assert part.end is not None
    position = part.end - 1
    file.seek(position)
    while position < part.end + most:
        chunk = file.read(FIRST_READ_BYTES)
        if not chunk and position < part.end:
            _check_end(part)
        found = chunk.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(chunk)
        if len(chunk) < FIRST_READ_BYTES:
            return position
    return None


def _check_end(part: FileSlice) -> None:
    """The file is over: that is wrong if its part goes on."""
    if part.end is not None:
        raise InputError(f"{part.path} is shorter than when it was listed: start the run again")


# -- whole lines -----------------------------------------------------------------------------------------


def cut_whole_lines(
    chunks: Iterable[bytes], offset: int, blocksize: int, max_line: int, on_bad: Callable[[BadRecord], None]
) -> Iterator[tuple[int, bytes]]:
    """Cut a stream of bytes, none of them longer than `max_line`, into blocks of whole lines."""
    cutter = _LineCutter(offset, max_line, on_bad)
    try:
        for chunk in chunks:
            cutter.add(chunk)
            if cutter.ready_bytes >= blocksize:
                cutter.seal()
            yield from cutter.take()
    except DamagedStreamError as damage:
        cutter.seal()
        yield from cutter.take()
        on_bad(BadRecord(cutter.line_start, str(damage), cutter.head()))
        return
    cutter.finish()
    yield from cutter.take()


class _LineCutter:
    """Collects whole lines (`ready`) and the line that is still open. Each byte is searched once."""

    def __init__(self, offset: int, max_line: int, on_bad: Callable[[BadRecord], None]) -> None:
        self.max_line, self.on_bad = max_line, on_bad
        self.start = offset
        self.ready: list[bytes] = []
        self.ready_bytes = 0
        self.open: list[bytes] = []
        self.open_bytes = 0
        self.skipping = False
        self.blocks: list[tuple[int, bytes]] = []

    @property
    def line_start(self) -> int:
        return self.start + self.ready_bytes

    def head(self) -> bytes:
        """The open line, or its beginning."""
        pieces: list[bytes] = []
        room = MAX_RAW_BYTES
        for piece in self.open:
            pieces.append(piece[:room])
            room -= len(pieces[-1])
            if not room:
                break
        return b"".join(pieces)

    def add(self, chunk: bytes) -> None:
        first = chunk.find(b"\n")
        if first < 0:
            self._grow(chunk)
            return
        last = chunk.rfind(b"\n") + 1
        if self.open_bytes:
            self._grow(chunk[:first])
            self._close()
            first += 1
        else:
            first = 0
        self._add_ready(chunk[first:last])
        self._grow(chunk[last:])

    def seal(self) -> None:
        """What is ready becomes a block."""
        if self.ready:
            self.blocks.append((self.start, b"".join(self.ready)))
        self.start, self.ready, self.ready_bytes = self.line_start, [], 0

    def take(self) -> Iterator[tuple[int, bytes]]:
        while self.blocks:
            yield self.blocks.pop(0)

    def finish(self) -> None:
        """The file is over: its last line may lack a newline."""
        if self.open_bytes and not self.skipping:
            self._add_ready(b"".join(self.open))
        self.seal()

    def _add_ready(self, piece: bytes) -> None:
        if piece:
            self.ready.append(piece)
            self.ready_bytes += len(piece)

    def _grow(self, piece: bytes) -> None:
        self.open_bytes += len(piece)
        if not piece or self.skipping:
            return
        self.open.append(piece)
        if self.open_bytes > self.max_line:
            reason = f"a line of more than {self.max_line:,} bytes (the limit is max_line_bytes)"
            self.on_bad(BadRecord(self.line_start, reason, self.head()[: self.max_line]))
            self.skipping = True
            self.open.clear()

    def _close(self) -> None:
        """The open line has ended."""
        if self.skipping:
            after = self.line_start + self.open_bytes + 1
            self.seal()
            self.start = after
        else:
            self._add_ready(b"".join([*self.open, b"\n"]))
        self.open, self.open_bytes, self.skipping = [], 0, False
