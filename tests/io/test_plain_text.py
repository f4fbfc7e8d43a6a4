"""Plain text, by lines and by file: positions, damage."""

import gzip

import pytest

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import BadRecordError, InputError
from gristmill.core.task import FileSlice
from gristmill.io.formats.plain_text import peek_text, read_text_file, read_text_lines
from gristmill.io.storage.file_input import FileInput
from tests.io.read_file import rows_of


def test_text_by_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\n  \nzwölf\nlast".encode())
    for blocksize in (1, 16 * 2**20):
        table, _, bad = rows_of(read_text_lines, path, blocksize)
        assert table.to_pylist() == [
            {"text": "one", POSITION: 3},
            {"text": "zwölf", POSITION: 12},
            {"text": "last", POSITION: 19},
        ]
        assert bad == []


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nb\xe4d\ngood\n")
    table, _, bad = rows_of(read_text_lines, path)
    assert table.column(POSITION).to_pylist() == [0, 9]
    assert [record.position for record in bad] == [5]
    with pytest.raises(BadRecordError, match="byte 6"):
        read_text_file(FileInput(FileSlice(str(path))))
    path.write_bytes(b"good\n" + b"\xff\n" * 2500 + b"good\n")
    table, tables, bad = rows_of(read_text_lines, path)
    assert table.column(POSITION).to_pylist() == [0, 5005]
    assert [record.position for record in bad] == list(range(5, 5005, 2))
    assert len(tables) > 2


def test_text_by_file(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("\ufeffall\nof it\n".encode()))
    assert read_text_file(FileInput(FileSlice(str(path)))) == "all\nof it\n"
    bad = []
    assert read_text_file(FileInput(FileSlice(str(path)), on_bad=bad.append), max_bytes=5) is None
    path.write_bytes(path.read_bytes()[:-6])
    assert read_text_file(FileInput(FileSlice(str(path)), on_bad=bad.append)) is None  # not half of it
    path.write_bytes(bytes(100))
    assert read_text_file(FileInput(FileSlice(f"{path}"), on_bad=bad.append)) is None
    (tmp_path / "a.txt").write_bytes(bytes(100))
    assert read_text_file(FileInput(FileSlice(f"{tmp_path}/a.txt"), on_bad=bad.append)) is None
    assert [record.position for record in bad] == [0, 0, 0, 0]
    assert [record.reason.partition(":")[0] for record in bad] == [
        "a file of more than 5 bytes, the limit set by max_line_bytes",
        "the gzip stream is truncated",
        "the gzip stream is damaged here, and the rest cannot be read (Error -3 while decompressing data",
        "binary data, not text",
    ]


def test_text_peek(tmp_path):
    path = tmp_path / "a.txt"
    for content in (b"words\n", b"<p>a document</p>", b"{braces}", b"a, b\nc, d\n"):
        path.write_bytes(content)
        assert peek_text(FileInput(FileSlice(str(path))), per_file=False).names == ["text", POSITION]
    path.write_bytes(b"PAR1 and so on")
    with pytest.raises(InputError, match="is not text; it looks like Parquet"):
        peek_text(FileInput(FileSlice(str(path))), per_file=True)
    path.write_bytes(b"")
    assert peek_text(FileInput(FileSlice(str(path))), per_file=True) is None
