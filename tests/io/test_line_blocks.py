"""Blocks of whole lines: every line exactly once, at its offset, however the file is cut."""

import gzip
import sys
import zlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import BadRecordError, InputError
from gristmill.core.task import FileSlice
from gristmill.io.formats import line_blocks
from gristmill.io.formats.line_blocks import line_number, read_head, read_line_blocks
from gristmill.io.storage.file_input import FileInput, block_bytes, parse_size

PIECE = st.sampled_from([b"a", b"\n", b"\n\n", b"\r\n", b"long line", b"\xff", b"\xef\xbb\xbf", b"x" * 50])
CONTENT = st.lists(PIECE, max_size=40).map(b"".join)


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def expected(content: bytes) -> list[tuple[int, bytes]]:
    """The lines of a file, read in the plainest way."""
    offset, found = 0, []
    for line in content.splitlines(keepends=True) if b"\r" not in content else _split(content):
        found.append((offset, line))
        offset += len(line)
    if found and found[0][1].startswith(b"\xef\xbb\xbf"):
        found[0] = (3, found[0][1][3:])
    return [(offset, line) for offset, line in found if line]


def _split(content: bytes) -> list[bytes]:
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def in_lines(blocks) -> list[tuple[int, bytes]]:
    found = []
    for start, block in blocks:
        offset = start
        for line in _split(block):
            found.append((offset, line))
            offset += len(line)
    return found


def collect(path, blocksize=16, part=None, limit=line_blocks.MAX_LINE_BYTES):
    bad = []
    source = FileInput(part or FileSlice(str(path)), blocksize=blocksize, on_bad=bad.append)
    return in_lines(read_line_blocks(source, limit)), bad


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("lines")


@settings(deadline=None)
@given(content=CONTENT, cut=st.integers(1, 80), blocksize=st.integers(1, 80))
def test_slices_give_each_line_once(place, content, cut, blocksize):
    path = place / "any.jsonl"
    path.write_bytes(content)
    found = []
    for start in range(0, len(content), cut):
        part = FileSlice(str(path), start, min(start + cut, len(content)))
        some, bad = collect(path, blocksize, part)
        assert not bad
        found += some
    assert found == expected(content)


@settings(deadline=None)
@given(content=CONTENT, blocksize=st.integers(1, 80))
def test_a_stream_gives_each_line_once(place, content, blocksize):
    half = len(content) // 2
    for name, data in {
        "plain.jsonl": content,
        "one.jsonl.gz": gzip.compress(content),
        "two.jsonl.gz": gzip.compress(content[:half]) + gzip.compress(content[half:]),
        "padded.jsonl.gz": gzip.compress(content) + bytes(5),
        "one.jsonl.zst": zstd(content),
        "two.jsonl.zst": zstd(content[:half]) + zstd(content[half:]),
        "really-gzip.jsonl": gzip.compress(content),
        "really-zstd.jsonl": zstd(content),
    }.items():
        path = place / name
        path.write_bytes(data)
        assert collect(path, blocksize) == (expected(content), []), name


def test_a_slice_is_one_block(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(1000)))
    size = path.stat().st_size
    for start in range(0, size, 1000):
        part = FileSlice(str(path), start, min(start + 1000, size))
        assert len(list(read_line_blocks(FileInput(part, blocksize=1000)))) == 1


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstd)])
def test_a_block_is_held_by_its_reader_alone(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(b"a line of some length\n" * 10_000))
    blocks = read_line_blocks(FileInput(FileSlice(str(path)), blocksize=50_000))
    held = [sys.getrefcount(block) - sys.getrefcount(object()) for _, block in blocks]
    assert len(held) > 1
    assert set(held) == {1}


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_nothing_to_read(tmp_path, content):
    for name in ("a.jsonl", "a.jsonl.gz"):
        path = tmp_path / name
        path.write_bytes(content)
        assert b"".join(line for _, line in collect(path)[0]) == b""


def test_a_text_named_gz_is_read_as_it_is(tmp_path):
    path = tmp_path / "unpacked-on-the-way.jsonl.gz"
    path.write_bytes(b"one\ntwo\n")
    assert collect(path) == ([(0, b"one\n"), (4, b"two\n")], [])


NUMBERED = b"".join(
    b"line %06d %s\n" % (n, zlib.crc32(b"%d" % n).to_bytes(4, "big").hex().encode()) for n in range(20000)
)


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gz", "zst"])
@pytest.mark.parametrize("keep", [0.0001, 0.3, 0.5, 0.9, -1])
def test_a_stream_that_is_cut_short_gives_its_whole_lines(tmp_path, pack, keep):
    packed = pack(NUMBERED)
    path = tmp_path / ("a.jsonl.gz" if pack is gzip.compress else "a.jsonl.zst")
    path.write_bytes(packed[: max(int(len(packed) * keep), 12)] if keep > 0 else packed[:-1])
    found, bad = collect(path, 4096)
    text = b"".join(line for _, line in found)
    assert NUMBERED.startswith(text)
    assert text == b"" or text.endswith(b"\n")
    assert len(text) >= len(NUMBERED) * keep * 0.6 - 2**17
    assert [record.position for record in bad] == [len(text)]
    assert "truncated" in bad[0].reason


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gz", "zst"])
def test_a_damaged_stream_gives_the_lines_before_the_damage(tmp_path, pack):
    packed = bytearray(pack(NUMBERED[: len(NUMBERED) // 2]) + pack(NUMBERED[len(NUMBERED) // 2 :]))
    second = len(pack(NUMBERED[: len(NUMBERED) // 2]))
    packed[second : second + 4] = b"????"
    path = tmp_path / ("a.jsonl.gz" if pack is gzip.compress else "a.jsonl.zst")
    path.write_bytes(packed)
    found, bad = collect(path, 4096)
    whole = NUMBERED[: len(NUMBERED) // 2].rpartition(b"\n")[0] + b"\n"
    assert b"".join(line for _, line in found) == whole
    assert len(bad) == 1
    assert "cannot be read" in bad[0].reason


def test_a_wrong_checksum_loses_no_line(tmp_path):
    packed = bytearray(gzip.compress(NUMBERED))
    packed[-5] ^= 1
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed)
    found, bad = collect(path, 4096)
    assert b"".join(line for _, line in found) == NUMBERED
    assert len(bad) == 1


def test_what_is_not_compressed_at_all(tmp_path):
    for name in ("a.jsonl.gz", "a.jsonl.zst"):
        path = tmp_path / name
        path.write_bytes(b"\x00\x01\x02 nothing of the kind \xff\xfe")
        found, bad = collect(path)
        assert found == []
        assert [record.position for record in bad] == [0]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12), blocksize=st.integers(1, 200))
def test_lines_beyond_the_limit_are_told_and_left_out(place, sizes, blocksize):
    content = b"".join(b"x" * size + b"\n" for size in sizes)
    path = place / "long.jsonl"
    path.write_bytes(content)
    found, bad = collect(path, blocksize, limit=30)
    lines_there = expected(content)
    assert found == [(offset, line) for offset, line in lines_there if len(line) <= 31]
    assert [record.position for record in bad] == [offset for offset, line in lines_there if len(line) > 31]


def test_a_long_last_line_without_newline_is_told(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"ok\n" + b"y" * 100)
    found, bad = collect(path, limit=30)
    assert found == [(0, b"ok\n")]
    assert [(record.position, record.raw[:3]) for record in bad] == [(3, b"yyy")]


def test_a_huge_line_is_read_in_linear_time(tmp_path):
    path = tmp_path / "huge.jsonl"
    path.write_bytes(b"x" * 40_000_000 + b"\nlast\n")
    found, _ = collect(path, 2**20)
    assert [(offset, len(line)) for offset, line in found] == [(0, 40_000_001), (40_000_001, 5)]


def test_bad_records_raise_unless_told_otherwise(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(NUMBERED)[:-20])
    with pytest.raises(BadRecordError, match="truncated"):
        list(read_line_blocks(FileInput(FileSlice(str(path)))))


def test_head_and_line_numbers(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(NUMBERED)
    packed = tmp_path / "b.jsonl.zst"
    packed.write_bytes(zstd(NUMBERED))
    for one in (path, packed):
        assert read_head(FileInput(FileSlice(str(one))), 100_000) == NUMBERED[:100_000]
    assert line_number(FileInput(FileSlice(str(path))), 0) == 1
    assert line_number(FileInput(FileSlice(str(path))), NUMBERED.index(b"line 000041")) == 42
    assert line_number(FileInput(FileSlice(str(packed))), 0) is None


class Flaky:
    """A file system whose reads fail, as networks do."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position, self.closed = data, 0, False

    def read(self, size=-1):
        if self.position > 20_000:
            raise OSError("connection reset")
        piece = self.data[self.position : self.position + min(size, 8192)]
        self.position += len(piece)
        return piece

    def seek(self, offset, whence=0):
        self.position = offset
        return offset

    def tell(self):
        return self.position

    def close(self):
        self.closed = True


@pytest.mark.parametrize("pack", [gzip.compress, zstd, bytes], ids=["gz", "zst", "plain"])
def test_a_failing_network_is_no_bad_record(monkeypatch, pack):
    data = pack(NUMBERED)

    class System:
        def open(self, *args, **kwargs):
            return Flaky(data)

    monkeypatch.setattr("gristmill.io.storage.file_input.file_system", lambda path, options: (System(), path))
    bad = []
    with pytest.raises(OSError, match="connection reset"):
        list(read_line_blocks(FileInput(FileSlice("far/away.jsonl"), on_bad=bad.append)))
    assert bad == []


@pytest.mark.parametrize(
    ("size", "bytes_"),
    [(1, 1), ("16MB", 16_000_000), ("128MiB", 2**27), ("1.5 KiB", 1536), ("2g", 2 * 10**9), ("100", 100), ("1b", 1)],
)
def test_sizes(size, bytes_):
    assert parse_size(size) == bytes_


@pytest.mark.parametrize("size", [0, -1, "", "0MB", "many", "16XB", 1.5, True])
def test_sizes_that_are_none(size):
    with pytest.raises(ValueError, match="size"):
        parse_size(size)


def test_blocks_stay_below_what_arrow_holds():
    assert block_bytes("100GB") == 512 * 2**20
    assert block_bytes(None) == 16 * 2**20


@pytest.mark.parametrize("keep", [0, 5, 40, 79])
def test_a_file_that_has_become_shorter_is_an_error(tmp_path, keep):
    path = tmp_path / "a.txt"
    path.write_bytes(b"123456789\n" * 8)
    parts = [FileSlice(str(path), start, start + 20) for start in range(0, 80, 20)]
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="shorter than when it was listed: start the run again"):
        [list(read_line_blocks(FileInput(part))) for part in parts]


def test_a_file_that_has_gone_is_an_error(tmp_path):
    with pytest.raises(InputError, match="was deleted after it was listed: start the run again"):
        list(read_line_blocks(FileInput(FileSlice(str(tmp_path / "a.txt"), 0, 20))))


@pytest.mark.parametrize("size", [1, 4096, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("there", [10, 65_535, 65_536, 100_000])
def test_the_head_is_as_long_as_asked_for(tmp_path, size, there):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * there)
    assert len(read_head(FileInput(FileSlice(str(path))), size)) == min(size, there)
