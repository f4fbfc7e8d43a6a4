"""Inputs that cannot be read, whole or in part: what is lost of each, and what is told."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill import Pipeline
from gristmill.io.storage.file_input import MAX_RAW_BYTES
from gristmill.text import (
    ArrowReader,
    CsvReader,
    JsonlReader,
    JsonlWriter,
    ParquetReader,
    ScoreFilter,
    TextReader,
    WordCountFilter,
)
from tests.io.test_line_blocks import zstd

RNG = random.Random(7)
WORDS = [f"word{number}" for number in range(500)]
TEXTS = [" ".join(RNG.choices(WORDS, k=RNG.randrange(1, 12))) for _ in range(12_000)]
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
THIRD = len(ROWS) // 3
BAD = 6_500
"""The number of the record that is damaged; it is in the second of three files."""


@dataclass
class Lost:
    """What must be in quarantine: where, and something that is told about it."""

    file: str
    position: int
    words: str
    content: bytes | None = None
    records: int = 1


@dataclass
class Case:
    """A corpus with damage, the same without what is damaged, and what must be in quarantine."""

    reader: Callable[..., Any]
    damaged: dict[str, bytes]
    clean: dict[str, bytes]
    lost: list[Lost]
    options: dict[str, Any] = field(default_factory=dict)

    def pipeline(self, folder: Path, out: Path, **options: Any) -> Pipeline:
        stages = [
            self.reader(str(folder), **{**self.options, **options}),
            ScoreFilter(WordCountFilter(min_words=3)),
            JsonlWriter(str(out)),
        ]
        return Pipeline("unreadable", stages=stages)


def lines_of(rows: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def thirds(items: list[Any]) -> list[list[Any]]:
    return [items[start : start + THIRD] for start in range(0, len(items), THIRD)]


def in_lines(suffix: str, lines: list[list[bytes]], pack: Callable[[bytes], bytes] = bytes) -> dict[str, bytes]:
    return {f"part-{n}{suffix}": pack(b"".join(line + b"\n" for line in some)) for n, some in enumerate(lines)}


def one_bad_line(reader: Any, suffix: str, lines: list[bytes], bad: bytes, words: str, pack: Any = bytes) -> Case:
    """One line is another one. The place of it is that in the file, or in what the file is when it is unpacked."""
    clean, damaged = thirds(lines), thirds(lines)
    number = BAD - THIRD
    damaged[1][number] = bad
    place = sum(len(line) + 1 for line in damaged[1][:number])
    del clean[1][number]
    lost = Lost(f"part-1{suffix}", place, words, bad)
    return Case(reader, in_lines(suffix, damaged, pack), in_lines(suffix, clean, pack), [lost])


def bad_json(suffix: str = ".jsonl", pack: Any = bytes) -> Case:
    return one_bad_line(JsonlReader, suffix, lines_of(ROWS), b'{"id": 6500, "text": "brok', "not JSON", pack)


def bad_utf8() -> Case:
    return one_bad_line(JsonlReader, ".jsonl", lines_of(ROWS), b'{"id": 1, "text": "br\xffken"}', "not valid UTF-8")


def no_object() -> Case:
    return one_bad_line(JsonlReader, ".jsonl", lines_of(ROWS), b'["id", 6500]', "not a JSON object")


def huge_number_beside_a_bad_line() -> Case:
    lines = lines_of(ROWS)
    lines[BAD + 1] = b'{"id": 123456789012345678901234567890, "text": "a b c"}'
    return one_bad_line(JsonlReader, ".jsonl", lines, b"oh", "not JSON")


def over_long_line() -> Case:
    long = b'{"id": 6500, "text": "' + b"x" * 3000 + b'"}'
    case = one_bad_line(JsonlReader, ".jsonl", lines_of(ROWS), long, "a line of more than 2,000 bytes")
    case.options = {"read_kwargs": {"max_line_bytes": 2000}}
    case.lost[0].content = long[:2000]
    return case


def very_long_bad_line() -> Case:
    long = b'{"text": "' + b"x" * 200_000
    case = one_bad_line(JsonlReader, ".jsonl", lines_of(ROWS), long, "not JSON")
    case.lost[0].content = long[:MAX_RAW_BYTES]
    return case


def text_by_line() -> Case:
    case = one_bad_line(TextReader, ".txt", [text.encode() for text in TEXTS], b"b\xe4d words", "not valid UTF-8")
    case.options = {"per": "line"}
    return case


def cut_short(suffix: str, pack: Callable[[bytes], bytes]) -> Case:
    """The last of the files ends half-way. What can be unpacked up to there is what is kept."""
    clean = thirds(lines_of(ROWS))
    damaged = in_lines(suffix, clean, pack)
    name = f"part-2{suffix}"
    damaged[name] = damaged[name][: len(damaged[name]) * 2 // 3]
    whole = b"".join(line + b"\n" for line in clean[2])
    kept = unpacked(suffix, damaged[name])
    assert whole.startswith(kept)
    place = kept.rfind(b"\n") + 1
    assert 10_000 < place < len(whole)
    clean[2] = kept[:place].splitlines()
    lost = Lost(name, place, "stream is truncated", kept[place:])
    return Case(JsonlReader, damaged, in_lines(suffix, clean, pack), [lost])


def unpacked(suffix: str, data: bytes) -> bytes:
    """What can be had of a compressed file that is cut short, byte by byte."""
    stream: Any = (
        gzip.GzipFile(fileobj=io.BytesIO(data))
        if suffix.endswith(".gz")
        else pa.CompressedInputStream(pa.BufferReader(data), "zstd")
    )
    kept = bytearray()
    try:
        while byte := stream.read(1):
            kept += byte
    except (EOFError, OSError):
        pass
    return bytes(kept)


def damaged_gzip() -> Case:
    """Two gzip members, the second of which is garbage from its first byte on."""
    clean = thirds(lines_of(ROWS))
    first, second = (b"".join(line + b"\n" for line in some) for some in (clean[1][:3500], clean[1][3500:]))
    data = bytearray(gzip.compress(first) + gzip.compress(second))
    start = len(gzip.compress(first))
    data[start : start + 4] = b"????"
    damaged = in_lines(".jsonl.gz", clean, gzip.compress) | {"part-1.jsonl.gz": bytes(data)}
    clean[1] = clean[1][:3500]
    lost = Lost("part-1.jsonl.gz", len(first), "the gzip stream is damaged here")
    return Case(JsonlReader, damaged, in_lines(".jsonl.gz", clean, gzip.compress), [lost])


# -- tables ----------------------------------------------------------------------------------------------


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=50, compression="zstd")
    return sink.getvalue()


def broken_row_group() -> Case:
    clean = thirds(ROWS)
    data = bytearray(parquet(clean[1]))
    group = (BAD - THIRD) // 50
    column = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(group).column(1)
    start = column.dictionary_page_offset or column.data_page_offset
    for place in range(start, start + column.total_compressed_size):
        data[place] ^= 0x5A
    damaged = {f"part-{n}.parquet": parquet(rows) for n, rows in enumerate(clean)} | {"part-1.parquet": bytes(data)}
    del clean[1][group * 50 : group * 50 + 50]
    lost = Lost("part-1.parquet", group * 50, f"row group {group} cannot be read", None, 50)
    return Case(ParquetReader, damaged, {f"part-{n}.parquet": parquet(rows) for n, rows in enumerate(clean)}, [lost])


def broken_footers() -> Case:
    """Of 300 files the first, another one and the last: one cut short, one with a wrong footer, one all zeros."""
    clean = {f"part-{n:03}.parquet": parquet(ROWS[n * 40 : n * 40 + 40]) for n in range(300)}
    damaged = dict(clean)
    damaged["part-000.parquet"] = damaged["part-000.parquet"][:-100]
    data = damaged["part-150.parquet"]
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    damaged["part-150.parquet"] = data[:footer] + bytes(50) + data[footer + 50 :]
    damaged["part-299.parquet"] = bytes(5000)
    names = ("part-000.parquet", "part-150.parquet", "part-299.parquet")
    lost = [Lost(name, 0, "unreadable Parquet file") for name in names]
    return Case(ParquetReader, damaged, {n: data for n, data in clean.items() if n not in names}, lost)


def parquet_utf8() -> Case:
    clean = thirds(ROWS)
    column = pa.array([row["text"].encode() for row in clean[1]], pa.binary()).to_pylist()
    number = BAD - THIRD
    column[number] = b"br\xffken text here"
    table = pa.table({"id": [row["id"] for row in clean[1]], "text": pa.array(column, pa.binary()).view(pa.string())})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=1000)
    damaged = {f"part-{n}.parquet": parquet(rows) for n, rows in enumerate(clean)} | {"part-1.parquet": sink.getvalue()}
    del clean[1][number]
    lost = Lost("part-1.parquet", number, "column 'text' is not valid UTF-8", b"br\xffken text here")
    return Case(ParquetReader, damaged, {f"part-{n}.parquet": parquet(rows) for n, rows in enumerate(clean)}, [lost])


def csv(rows: list[dict[str, Any]]) -> list[bytes]:
    return [b"id,text", *(f'{row["id"]},"{row["text"]}\nand more"'.encode() for row in rows)]


def bad_csv_row(bad: bytes, words: str, **options: Any) -> Case:
    damaged, clean = [csv(rows) for rows in thirds(ROWS)], [csv(rows) for rows in thirds(ROWS)]
    number = BAD - THIRD
    damaged[1][number + 1] = bad
    del clean[1][number + 1]
    lost = Lost("part-1.csv", number, words, bad)
    return Case(CsvReader, in_lines(".csv", damaged), in_lines(".csv", clean), [lost], options)


def csv_cut_short() -> Case:
    clean = [csv(rows) for rows in thirds(ROWS)]
    damaged = in_lines(".csv.gz", clean, gzip.compress)
    damaged["part-2.csv.gz"] = damaged["part-2.csv.gz"][: len(damaged["part-2.csv.gz"]) // 2]
    kept = unpacked(".csv.gz", damaged["part-2.csv.gz"])
    rows = kept[: kept.rfind(b'"\n')].count(b'"\n')
    clean[2] = clean[2][: rows + 2]
    lost = Lost("part-2.csv.gz", rows + 1, "stream is truncated (at byte ")
    return Case(CsvReader, damaged, in_lines(".csv.gz", clean, gzip.compress), [lost])


def arrow(rows: list[dict[str, Any]], make: Any = pa.ipc.new_stream) -> bytes:
    table, sink = pa.Table.from_pylist(rows), io.BytesIO()
    with make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    return sink.getvalue()


def arrow_cut_short() -> Case:
    clean = thirds(ROWS)
    damaged = {f"part-{n}.arrows": arrow(rows) for n, rows in enumerate(clean)}
    data = damaged["part-2.arrows"]
    damaged["part-2.arrows"] = data[: len(arrow(clean[2][:3000])) - 1000]
    clean[2] = clean[2][:2950]
    lost = Lost("part-2.arrows", 2950, "Arrow data is unreadable from here on")
    return Case(ArrowReader, damaged, {f"part-{n}.arrows": arrow(rows) for n, rows in enumerate(clean)}, [lost])


def damaged_arrow_batch() -> Case:
    clean = thirds(ROWS)
    damaged = {f"part-{n}.arrow": arrow(rows, pa.ipc.new_file) for n, rows in enumerate(clean)}
    data = bytearray(damaged["part-1.arrow"])
    texts = [row["text"] for row in clean[1][1000:1050]]
    offsets = pa.array(texts).buffers()[1].to_pybytes()[: 4 * 51]
    start = data.index(offsets)
    data[start + 40 : start + 80] = b"\x7f" * 40
    damaged["part-1.arrow"] = bytes(data)
    del clean[1][1000:1050]
    lost = Lost("part-1.arrow", 1000, "a damaged batch", None, 50)
    files = {f"part-{n}.arrow": arrow(rows, pa.ipc.new_file) for n, rows in enumerate(clean)}
    return Case(ArrowReader, damaged, files, [lost])


def bad_text_files() -> Case:
    """Of 300 documents: one that is not UTF-8, and one of which only half is there."""
    clean = {f"docs/{n:03}.txt": "\n".join(TEXTS[n * 40 : n * 40 + 40]).encode() for n in range(299)}
    clean["docs/299.txt.gz"] = gzip.compress(b"not to be had whole\n" * 1000)
    damaged = dict(clean)
    damaged["docs/299.txt.gz"] = damaged["docs/299.txt.gz"][:-20]
    damaged["docs/100.txt"] = b"three words and b\xffd"
    for name in ("docs/100.txt", "docs/299.txt.gz"):
        del clean[name]
    lost = [
        Lost("docs/100.txt", 0, "not valid UTF-8 at byte 17", b"three words and b\xffd"),
        Lost("docs/299.txt.gz", 0, "stream is truncated"),
    ]
    return Case(TextReader, damaged, clean, lost)


CASES: dict[str, Callable[[], Case]] = {
    "bad JSON": bad_json,
    "bad JSON in gzip": lambda: bad_json(".jsonl.gz", gzip.compress),
    "bad JSON in zstd": lambda: bad_json(".jsonl.zst", zstd),
    "bad UTF-8 in JSON": bad_utf8,
    "JSON that is no object": no_object,
    "a bad line beside a huge number": huge_number_beside_a_bad_line,
    "a line beyond the limit": over_long_line,
    "a very long bad line": very_long_bad_line,
    "gzip cut short": lambda: cut_short(".jsonl.gz", gzip.compress),
    "zstd cut short": lambda: cut_short(".jsonl.zst", zstd),
    "gzip damaged": damaged_gzip,
    "Parquet row group": broken_row_group,
    "Parquet footers": broken_footers,
    "Parquet UTF-8": parquet_utf8,
    "CSV row": lambda: bad_csv_row(b"6500", "a row of 1 values instead of 2"),
    "CSV UTF-8": lambda: bad_csv_row(b"6500,br\xffken", "the value of column 'text' is not valid UTF-8"),
    "CSV type": lambda: bad_csv_row(
        b"many,some text",
        "the value of column 'id' is not of type int64",
        read_kwargs={"column_types": {"id": "int64"}},
    ),
    "CSV cut short": csv_cut_short,
    "Arrow cut short": arrow_cut_short,
    "Arrow batch": damaged_arrow_batch,
    "text by line": text_by_line,
    "text by file": bad_text_files,
}
