"""WARC files: every record, with its place, also of files that are damaged, and the same however they are cut."""

from __future__ import annotations

import gzip
import io
import random
import re
import warnings
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import LocalExecutor, Pipeline
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.download import CommonCrawlWarcIterator, WarcReader
from gristmill.download.web.warc import (
    certain_record_start,
    end_of_head,
    http_response,
    next_record_start,
    read_warc,
    unchunk,
)
from gristmill.io.storage.file_input import BadRecord
from tests.download.warc_fixtures import english, pages_of, write_warc, write_wet

INLINE = LocalExecutor(0)
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # warcio leaves files open


def run(*stages: Any) -> Any:
    return Pipeline("warc", stages=list(stages)).run(INLINE, max_errors=None)


def records(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return list(read_warc(file))


@pytest.mark.parametrize("compressed", [True, False])
def test_the_records_are_those_of_fastwarc(tmp_path: Path, compressed: bool) -> None:
    path = write_warc(tmp_path / "a.warc", pages_of(9), compressed)
    ours = [(one.offset, one.id, one.kind, one.block) for one in records(path)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of itself when it is imported
        from fastwarc.warc import ArchiveIterator
    with path.open("rb") as file:
        theirs = [
            (one.stream_pos, one.record_id[10:-1], one.headers["WARC-Type"], one.reader.read())
            for one in ArchiveIterator(file, parse_http=False)
        ]
    assert len(ours) == 28
    assert ours == theirs


def test_a_reader_without_an_extractor_gives_pages_as_they_came(tmp_path: Path) -> None:
    write_warc(tmp_path / "a.warc.gz", pages_of(3))
    rows = [row for batch in run(WarcReader(str(tmp_path))) for row in batch.to_rows()]
    assert [row["url"] for row in rows] == [f"http://example.org/{number}" for number in range(3)]
    assert [row["content"] for row in rows] == [english(number) for number in range(3)]
    assert {(row["source_id"], row["file_name"], row["content_type"], row["status"]) for row in rows} == {
        ("a.warc.gz", "a.warc.gz", "text/html", 200)
    }
    assert len(rows[0]["warc_id"]) == 36


def test_however_a_file_is_cut_the_rows_are_the_same(tmp_path: Path) -> None:
    noise = random.Random(3).randbytes(30_000)
    pages = [(url, body + noise[: len(url) * 900], kind) for url, body, kind in pages_of(40)]
    path = str(write_warc(tmp_path / "a.warc.gz", pages))
    size = Path(path).stat().st_size
    iterator = CommonCrawlWarcIterator()
    whole = list(iterator.iterate(path))
    for cut in (size // 17, 50_000, size - 1):
        parts = [(start, min(start + cut, size)) for start in range(0, size, cut)]
        assert [row for part in parts for row in iterator.iterate_part(path, *part)] == whole
    assert len(whole) == 40


def test_a_warc_file_inside_of_a_record_is_no_place_to_cut(tmp_path: Path) -> None:
    """In a member that is stored rather than compressed, its bytes lie in the file as they are."""
    inner = write_warc(tmp_path / "inner.warc.gz", pages_of(150)).read_bytes()
    head = f"WARC/1.0\r\nWARC-Type: resource\r\nContent-Length: {len(inner)}\r\n\r\n".encode()
    stored = gzip.compress(head + inner + b"\r\n\r\n", compresslevel=0)
    outer = write_warc(tmp_path / "a.warc.gz", pages_of(3)).read_bytes()
    path = tmp_path / "b.warc.gz"
    path.write_bytes(outer + stored + outer + stored + outer)
    starts = {one.offset for one in records(path)}
    size = path.stat().st_size
    with path.open("rb") as file:
        inside = next_record_start(file, len(outer) + 10, gzip=True)
        found = {certain_record_start(file, at, size) for at in range(1, size, size // 5)}
    assert inside not in starts, "no record of the inner file can be seen: the test shows nothing"
    assert found <= {*starts, size}


def damaged(tmp_path: Path, compressed: bool = True) -> tuple[Path, list[int]]:
    path = write_warc(tmp_path / ("a.warc.gz" if compressed else "a.warc"), pages_of(6), compressed)
    return path, [one.offset for one in records(path) if one.kind == "response"]


def outcome(path: Path) -> tuple[list[str], list[tuple[int, str]]]:
    """The addresses that were read, and the places and reasons of what was not."""
    found = run(WarcReader(str(path)))
    rows = [row for batch in found for row in batch.to_rows()]
    return [row["url"][-1] for row in rows], [(one.position, one.error) for one in found.quarantined()]


def test_a_file_that_ends_early_keeps_what_was_before(tmp_path: Path) -> None:
    path, places = damaged(tmp_path)
    path.write_bytes(path.read_bytes()[: places[4] + 60])
    urls, bad = outcome(path)
    assert urls == ["0", "1", "2", "3"]
    assert [place for place, _ in bad] == [places[4]]
    assert "ends in the middle of a gzip member" in bad[0][1]


def test_a_damaged_member_is_set_aside_and_the_next_one_is_read(tmp_path: Path) -> None:
    path, places = damaged(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[places[2] + 200 : places[2] + 230] = b"\xff" * 30
    path.write_bytes(raw)
    urls, bad = outcome(path)
    assert urls == ["0", "1", "3", "4", "5"]
    assert [place for place, _ in bad] == [places[2]]


def test_a_checksum_that_does_not_fit_is_found(tmp_path: Path) -> None:
    path, places = damaged(tmp_path)
    ends = [one.offset for one in records(path)]
    raw = bytearray(path.read_bytes())
    raw[ends[ends.index(places[2]) + 1] - 8] ^= 1
    path.write_bytes(raw)
    urls, bad = outcome(path)
    assert urls == ["0", "1", "3", "4", "5"]
    assert [place for place, _ in bad] == [places[2]]


@pytest.mark.parametrize("claim", [b"99999", b"2147483648", b"9" * 6000, b"-1", b"many"])
@pytest.mark.parametrize("compressed", [True, False])
def test_a_length_that_is_a_lie_costs_one_record(tmp_path: Path, claim: bytes, compressed: bool) -> None:
    path = write_warc(tmp_path / "a.warc", pages_of(3), gzip=False)
    raw = path.read_bytes()
    kept = [one for one in records(path) if one.kind == "response"]
    at = raw.index(b"Content-Length: ", kept[1].offset) + len(b"Content-Length: ")
    raw = raw[:at] + claim + raw[raw.index(b"\r\n", at) :]
    if compressed:
        path = tmp_path / "a.warc.gz"
        bounds = [*(match.start() for match in _starts(raw)), len(raw)]
        raw = b"".join(gzip.compress(raw[a:b], mtime=0) for a, b in pairwise(bounds))
    path.write_bytes(raw)
    urls, bad = outcome(path)
    assert urls == ["0", "2"]
    assert len(bad) == 1


def _starts(raw: bytes) -> Any:
    return re.finditer(rb"WARC/1\.0\r\n", raw)


def test_rubbish_between_records_is_told_and_passed_over(tmp_path: Path) -> None:
    path, places = damaged(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[: places[3]] + b"rubbish" * 100 + raw[places[3] :])
    urls, bad = outcome(path)
    assert urls == ["0", "1", "2", "3", "4", "5"]
    assert [place for place, _ in bad] == [places[3]]


def test_one_member_of_many_records_is_read_too(tmp_path: Path) -> None:
    plain = write_warc(tmp_path / "a.warc", pages_of(5), gzip=False).read_bytes()
    (tmp_path / "b.warc.gz").write_bytes(gzip.compress(plain))
    found = run(WarcReader(str(tmp_path / "b.warc.gz")))
    rows = [row for batch in found for row in batch.to_rows()]
    assert [row["url"][-1] for row in rows] == ["0", "1", "2", "3", "4"]
    places = [place for batch in found for place in batch.data.column(POSITION).to_pylist()]
    assert len(set(places)) == 5


def test_large_records_are_passed_over_and_told(tmp_path: Path) -> None:
    pages = [*pages_of(1), ("http://x/big", b"x" * 300_000, "text/html"), *pages_of(1)]
    write_warc(tmp_path / "a.warc.gz", pages)
    found = run(WarcReader(str(tmp_path), max_record_bytes=100_000))
    assert found.summary().rows_out == 2
    [record] = found.quarantined()
    assert "max_record_bytes=100,000" in record.error
    assert "http://x/big" in record.content


def test_empty_payloads_and_empty_files(tmp_path: Path) -> None:
    write_warc(tmp_path / "a.warc.gz", [("http://x/empty", b"", "text/html"), *pages_of(1)])
    (tmp_path / "b.warc.gz").write_bytes(b"")
    found = run(WarcReader(str(tmp_path), extractor="resiliparse"))
    assert found.summary().rows_out == 1
    assert not list(found.quarantined())


def test_wet_files_give_their_texts(tmp_path: Path) -> None:
    write_wet(tmp_path / "a.warc.wet.gz", [("http://x/1", "Das ist die Mühle am Fluss, und sie ist sehr alt.")])
    rows = [row for batch in run(WarcReader(str(tmp_path), extractor="justext")) for row in batch.to_rows()]
    assert [(row["url"], row["language"]) for row in rows] == [("http://x/1", "de")]
    assert "Mühle" in rows[0]["text"]


def test_bodies_are_as_they_were_before_they_were_sent() -> None:
    def answer(body: bytes, **headers: str) -> bytes:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        return http_response(f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode() + body).body

    import brotli

    text = b"<p>flour</p>" * 50
    chunked = b"5;x=y\r\n" + text[:5] + b"\r\n" + f"{len(text) - 5:X}".encode() + b"\r\n" + text[5:] + b"\r\n0\r\n\r\n"
    raw_deflate = zlib.compress(text)[2:-4]
    assert answer(chunked, Transfer_Encoding="chunked") == text
    assert answer(text, Transfer_Encoding="chunked") == text, "some archives hold it whole, with the header as it was"
    assert answer(gzip.compress(text), Content_Encoding="gzip") == text
    assert answer(text, Content_Encoding="gzip") == text
    assert answer(zlib.compress(text), Content_Encoding="deflate") == text
    assert answer(raw_deflate, Content_Encoding="deflate") == text
    assert answer(brotli.compress(text), Content_Encoding="br") == text
    assert answer(text, Content_Encoding="br") == text
    with pytest.raises(ValueError, match="incomplete"):
        answer(brotli.compress(random.Random(1).randbytes(9000))[:5000], Content_Encoding="br")
    for broken in (gzip.compress(text)[:-20], gzip.compress(text)[:30] + b"\xff" * 60):
        with pytest.raises(ValueError, match="incomplete|damaged"):
            answer(broken, Content_Encoding="gzip")
    with pytest.raises(ValueError, match="more than 1,000"):
        http_response(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"0" * 10**6), 1000)


@pytest.mark.parametrize("body", [b"5\r\nabc", b"3\r\nabcdefgh", b"FFFFFFFFFF\r\nabc"])
def test_a_broken_chunk_is_told(body: bytes) -> None:
    with pytest.raises(ValueError, match="chunk"):
        unchunk(body)


def test_broken_answers_go_to_quarantine_with_their_place(tmp_path: Path) -> None:
    bad = ("http://x/bad", b"5\r\nabc", "text/html")
    path = write_warc(tmp_path / "a.warc.gz", [bad], extra=[("Transfer-Encoding", "chunked")])
    [place] = [one.offset for one in records(path) if one.kind == "response"]
    _, aside = outcome(path)
    assert aside == [(place, "only 3 bytes of a chunk of 5 (http://x/bad)")]


@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"a", b"\n\r\n"]), max_size=9).map(b"".join), st.sampled_from([3, 5, 99])
)
def test_a_header_ends_at_the_first_blank_line(head: bytes, most: int) -> None:
    found = re.compile(rb"\r?\n\r?\n").search(head, 0, most)
    assert end_of_head(head, most) == (found.span() if found else None)


def test_random_bytes_are_never_more_than_bad_records() -> None:
    source = random.Random(7)
    good = gzip.compress(b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 4\r\n\r\nabcd\r\n\r\n", mtime=0)
    for _ in range(300):
        raw = bytearray(good * 3)
        for _ in range(source.randrange(1, 6)):
            raw[source.randrange(len(raw))] = source.randrange(256)
        for one in read_warc(io.BytesIO(bytes(raw))):
            assert isinstance(one, BadRecord) or one.headers
