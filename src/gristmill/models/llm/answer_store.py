"""AnswerStore: every answer that was paid for, by the key of its request, in a directory on any fsspec URL.

    answers/1763588000-8f3a90c1.jsonl      one segment for each worker and attempt: a line for each answer

On a local or mounted disk an answer is appended as soon as it is there, so that not even `kill -9` loses it; elsewhere
answers are written as an object every few seconds, and before the rows that they belong to go on. Segments are only
ever added, and each has one writer, so any number of workers and runs can share a directory without locks. A line that
was cut off is ignored.

What is given up: two workers that ask the same at the same moment both pay. The power failing may lose the last lines.
A worker reads all segments once to find its keys, and keeps some 200 bytes per answer in memory.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from gristmill.core.errors import cannot_write
from gristmill.core.records.remote_storage import open_file_system
from gristmill.core.records.run_location import directory_url
from gristmill.core.records.run_record_store import make_private_directory, refuse_login, without_listing_cache
from gristmill.models.llm.llm_request import Answer

_PREFIX, _KEY_CHARS = b'{"key":"', 32
_FLUSH_S = 5.0
_SUFFIX = ".jsonl"
_OFFSET_BITS, _LENGTH_BITS = 44, 32


class AnswerStore:
    """Answers by the key of their request. `run` marks those that are paid for by a run."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None, run: str = "") -> None:
        self.url, self.run = directory_url(url), run
        refuse_login(self.url)
        self._place = _Bucket(self.url, storage_options or {}) if "://" in self.url else _Folder(self.url)
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._read: dict[str, int] = {}
        """Segments, and how many bytes of each are known."""
        self._index: dict[bytes, int] = {}
        """By key, the number of the segment, the offset and the length of the line, in one integer."""
        self._fresh: dict[bytes, Answer] = {}
        """Answers that are not written yet."""
        self._lines: list[bytes] = []
        self._flushed = time.monotonic()
        self._base = f"{int(time.time())}-{os.urandom(4).hex()}"
        self._written = 0

    def __len__(self) -> int:
        return len(self._index) + len(self._fresh)

    def refresh(self) -> None:
        """Take in what other workers have written since."""
        sizes = self._place.sizes()
        for name in sorted(sizes):
            known = self._read.get(name, 0)
            if sizes[name] > known:
                self._take_in(name, known, self._place.read(name, known, sizes[name]))

    def _take_in(self, name: str, offset: int, data: bytes) -> None:
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        number, at = self._numbers[name], 0
        while (end := data.find(b"\n", at)) >= 0:
            if data.startswith(_PREFIX, at):
                start = at + len(_PREFIX)
                try:
                    key = bytes.fromhex(data[start : start + _KEY_CHARS].decode("ascii", "replace"))
                except ValueError:
                    key = b""
                place = number << (_OFFSET_BITS + _LENGTH_BITS) | (offset + at) << _LENGTH_BITS | (end - at)
                if key:
                    self._index.setdefault(key, place)
            at = end + 1
        self._read[name] = offset + at

    def get_many(self, keys: Iterable[str]) -> dict[str, Answer]:
        """The answers that are there, of those with these keys."""
        found: dict[str, Answer] = {}
        places: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for key in keys:
            raw = bytes.fromhex(key)
            if raw in self._fresh:
                found[key] = self._fresh[raw]
            elif (packed := self._index.get(raw)) is not None:
                length, rest = packed & (2**_LENGTH_BITS - 1), packed >> _LENGTH_BITS
                offset, number = rest & (2**_OFFSET_BITS - 1), rest >> _OFFSET_BITS
                places[self._names[number]].append((offset, length, key))
        for name, wanted in places.items():
            wanted.sort()
            lines = self._place.read_lines(name, [(offset, length) for offset, length, _ in wanted])
            for (_, _, key), line in zip(wanted, lines, strict=True):
                answer = _answer_of_line(line)
                if answer is not None and answer.key == key:
                    found[key] = answer
        return found

    def add(self, answer: Answer, **notes: Any) -> None:
        """Keep an answer. It is safe when this returns, or on object storage after `flush`."""
        fields = {
            "key": answer.key,
            "model": answer.model,
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "prompt_tokens": answer.prompt_tokens,
            "answer_tokens": answer.answer_tokens,
            "seconds": round(answer.seconds, 3),
            **({"run": self.run} if self.run else {}),
            **notes,
        }
        line = orjson.dumps(fields) + b"\n"
        if self._place.appends:
            name = self._base + _SUFFIX
            self._place.append(name, line)
            self._take_in(name, self._written, line)
            self._written += len(line)
            return
        self._fresh[bytes.fromhex(answer.key)] = answer
        self._lines.append(line)
        if time.monotonic() - self._flushed > _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet."""
        self._flushed = time.monotonic()
        if not self._lines:
            return
        self._written += 1
        name, data = f"{self._base}-{self._written:06}{_SUFFIX}", b"".join(self._lines)
        self._place.put(name, data)
        self._take_in(name, 0, data)
        self._lines, self._fresh = [], {}

    def close(self) -> None:
        self.flush()
        self._place.close()

    def lines(self) -> Iterator[dict[str, Any]]:
        """All that is kept of each answer, in the order of the segments."""
        for name in sorted(self._place.sizes()):
            for line in self._place.all_lines(name):
                try:
                    fields = orjson.loads(line)
                except ValueError:
                    continue
                if isinstance(fields, dict) and "key" in fields:
                    yield fields


def _answer_of_line(line: bytes) -> Answer | None:
    try:
        fields = orjson.loads(line)
        return Answer(
            fields["key"],
            fields["model"],
            fields["text"],
            fields.get("finish_reason") or "",
            fields.get("prompt_tokens"),
            fields.get("answer_tokens"),
            fields.get("seconds") or 0.0,
            cached=True,
        )
    except (ValueError, KeyError, TypeError):
        return None


class _Folder:
    """Segments on a disk."""

    appends = True

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._file: int | None = None
        self._name = ""

    def sizes(self) -> dict[str, int]:
        try:
            with os.scandir(self.path) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(_SUFFIX)}
        except FileNotFoundError:
            return {}

    def read(self, name: str, start: int, stop: int) -> bytes:
        with (self.path / name).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def read_lines(self, name: str, places: list[tuple[int, int]]) -> list[bytes]:
        with (self.path / name).open("rb") as file:
            return [os.pread(file.fileno(), length, offset) for offset, length in places]

    def all_lines(self, name: str) -> Iterator[bytes]:
        with (self.path / name).open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))

    def append(self, name: str, line: bytes) -> None:
        try:
            if self._file is None or self._name != name:
                self.close()
                make_private_directory(self.path)
                # Answers may contain rows: the directory is private, unless the user made it for others too.
                self._file = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                self._name = name
            left = memoryview(line)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            raise cannot_write(str(self.path / name), error) from error

    def put(self, name: str, data: bytes) -> None:
        self.append(name, data)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _Bucket:
    """Segments as objects, which cannot be appended to."""

    appends = False

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self.system, self.root = open_file_system(url, storage_options)

    def sizes(self) -> dict[str, int]:
        with without_listing_cache(self.system):
            try:
                entries = self.system.ls(self.root, detail=True)
            except FileNotFoundError:
                return {}
        files = {entry["name"].rpartition("/")[2]: entry["size"] for entry in entries if entry["type"] == "file"}
        return {name: size for name, size in files.items() if name.endswith(_SUFFIX)}

    def read(self, name: str, start: int, stop: int) -> bytes:
        return bytes(self.system.cat_file(f"{self.root}/{name}", start=start, end=stop))

    def read_lines(self, name: str, places: list[tuple[int, int]]) -> list[bytes]:
        paths = [f"{self.root}/{name}"] * len(places)
        starts, ends = [offset for offset, _ in places], [offset + length for offset, length in places]
        return [bytes(part) for part in self.system.cat_ranges(paths, starts, ends)]

    def all_lines(self, name: str) -> Iterator[bytes]:
        yield from bytes(self.system.cat_file(f"{self.root}/{name}")).split(b"\n")[:-1]

    def append(self, name: str, line: bytes) -> None:
        raise NotImplementedError("objects are written whole")

    def put(self, name: str, data: bytes) -> None:
        self.system.makedirs(self.root, exist_ok=True)
        self.system.pipe_file(f"{self.root}/{name}", data)

    def close(self) -> None:
        return None
