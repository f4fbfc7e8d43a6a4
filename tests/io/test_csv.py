"""CSV: values, types, rows that are bad, and files that are no CSV at all."""

import gzip
import time

import pyarrow as pa
import pytest

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import BadRecordError, InputError
from gristmill.core.task import FileSlice
from gristmill.io.formats.csv import CsvFormat, peek_csv, read_csv
from gristmill.io.storage.file_input import FileInput
from tests.io.read_file import rows_of
from tests.io.test_line_blocks import zstd


def csv_rows(tmp_path, content, name="a.csv", blocksize=16 * 2**20, **form):
    path = tmp_path / name
    path.write_bytes(content)
    table, _, bad = rows_of(read_csv, path, blocksize, form=CsvFormat(**form))
    return (None if table is None else table.to_pylist()), bad


def test_csv_values_are_text(tmp_path):
    content = b'id,text\n007,"line one\nline ""two"""\n,\n1.5,"a,b"\n'
    rows, bad = csv_rows(tmp_path, content)
    assert rows == [
        {"id": "007", "text": 'line one\nline "two"', POSITION: 0},
        {"id": "", "text": "", POSITION: 1},
        {"id": "1.5", "text": "a,b", POSITION: 2},
    ]
    assert bad == []
    for name, data in {"a.csv.gz": gzip.compress(content), "a.csv.zst": zstd(content), "b.csv": content[:-1]}.items():
        assert csv_rows(tmp_path, data, name) == (rows, [])
    assert csv_rows(tmp_path, b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))[0][1]["id"] == ""


def test_tsv_and_other_marks(tmp_path):
    assert csv_rows(tmp_path, b"a\tb\n1\t2\n", "a.tsv")[0] == [{"a": "1", "b": "2", POSITION: 0}]
    assert csv_rows(tmp_path, b"a;b\n1;2\n", delimiter=";")[0] == [{"a": "1", "b": "2", POSITION: 0}]
    assert csv_rows(tmp_path, b'a,b\n"1,2\n', quote_char=None)[0] == [{"a": '"1', "b": "2", POSITION: 0}]
    assert csv_rows(tmp_path, b"1,2\n", column_names=["a", "b"])[0] == [{"a": "1", "b": "2", POSITION: 0}]


def test_csv_types_that_are_asked_for(tmp_path):
    rows, bad = csv_rows(tmp_path, b"a,b\n1,x\n,y\nno,z\n4,w\n", column_types={"a": "int64"})
    assert rows == [
        {"a": 1, "b": "x", POSITION: 0},
        {"a": None, "b": "y", POSITION: 1},
        {"a": 4, "b": "w", POSITION: 3},
    ]
    assert [(record.position, record.raw) for record in bad] == [(2, b"no,z")]
    with pytest.raises(InputError, match="Did you mean 'score'"):
        csv_rows(tmp_path, b"score,b\n1,x\n", column_types={"scores": "int64"})


def test_bad_rows_of_csv_are_told_and_their_neighbours_are_read(tmp_path):
    rows, bad = csv_rows(tmp_path, b"a,b\n1,2\n3\n\xff,5,6\n\xff,8\n9,10\n11\n")
    assert [(row["a"], row[POSITION]) for row in rows] == [("1", 0), ("9", 4)]
    assert bad == [
        (1, "a row of 1 values instead of 2", b"3", 1),
        (2, "a row of 3 values instead of 2", b"\xff,5,6", 1),
        (3, "the value of column 'a' is not valid UTF-8", b"\xff,8", 1),
        (5, "a row of 1 values instead of 2", b"11", 1),
    ]
    rows, bad = csv_rows(tmp_path, b"1,2\n\n3\n4,5", column_names=["a", "b"])
    assert [(row["a"], row[POSITION]) for row in rows] == [("1", 0), ("4", 2)]
    assert [(record.position, record.raw) for record in bad] == [(1, b"3")]


@pytest.mark.parametrize(
    ("content", "raw"),
    [
        (b'a,b\n1,2\n3,"4\n5,6\n7,8\n', b"3,4\n5,6\n7,8\n"),
        (b'a,b\n1,2\n3,"4\n5,6\n7,8', b"3,4\n5,6\n7,8"),
        (b'a,b\n1,2\n3,4,"5\n6', b'3,4,"5\n6'),
        (b'a\n1\n"2\n3\n', b"2\n3\n"),
    ],
)
def test_a_quoted_value_without_end_does_not_pass_for_a_row(tmp_path, content, raw):
    rows, bad = csv_rows(tmp_path, content)
    assert [row["a"] for row in rows] == ["1"]
    assert [(record.position, record.raw) for record in bad] == [(1, raw)]


def test_csv_that_is_not_csv_at_all(tmp_path, monkeypatch):
    rows, [bad] = csv_rows(tmp_path, bytes(1000))
    assert (rows, bad.position, bad.reason) == (None, 0, "not CSV: binary data")
    monkeypatch.setattr("gristmill.io.formats.csv.MAX_BAD_ROWS_IN_SEQUENCE", 100)
    rows, [bad] = csv_rows(tmp_path, b"a,b\n1,2\n" + b"x\n" * 1000)
    assert (rows, bad.position) == (None, 0)
    assert "CSV is unreadable from here on" in bad.reason
    assert len(csv_rows(tmp_path, b"a,b\n1,2\n" + b"x\n" * 100)[1]) == 100


def test_csv_rows_are_numbered_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("gristmill.io.formats.csv.DEFAULT_BLOCK_BYTES", 1000)
    content = b"id,text\n" + b"".join(b"%d\n" % n if n % 7 == 3 else b'%d,"a\nb"\n' % n for n in range(5000))
    rows, bad = csv_rows(tmp_path, content, blocksize=1000)
    assert [int(row["id"]) for row in rows] == [row[POSITION] for row in rows] == [n for n in range(5000) if n % 7 != 3]
    assert [int(record.raw) for record in bad] == [record.position for record in bad] == list(range(3, 5000, 7))


def test_csv_cut_short_in_compression(tmp_path):
    content = b"id,text\n" + b"".join(b"%d,text %d\n" % (n, n * 7919) for n in range(50_000))
    rows, bad = csv_rows(tmp_path, gzip.compress(content)[:-5000], "a.csv.gz")
    assert len(rows) > 30_000
    assert [row["text"] for row in rows] == [f"text {n * 7919}" for n in range(len(rows))]
    assert [record.position for record in bad] == [len(rows)]
    assert "truncated (at byte " in bad[0].reason
    quoted = b"id,text\n" + b"".join(b'%d,"text\n%d"\n' % (n, n * 7919) for n in range(50_000))
    for cut in range(5000, 5020):
        rows, bad = csv_rows(tmp_path, gzip.compress(quoted)[:-cut], "a.csv.gz")
        assert [row["text"] for row in rows] == [f"text\n{n * 7919}" for n in range(len(rows))]
        assert [record.position for record in bad] == [len(rows)]


def test_csv_bad_record_raises_here_not_in_a_thread(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1\n")
    with pytest.raises(BadRecordError, match="a row of 1 values instead of 2"):
        list(read_csv(FileInput(FileSlice(str(path)))))


def test_csv_that_is_empty(tmp_path):
    for content in (b"", b"\n\n", b"a,b\n"):
        rows, bad = csv_rows(tmp_path, content)
        assert not rows
        assert bad == []


def test_csv_peek(tmp_path):
    path = tmp_path / "a.csv"

    def peek(content, fields=None, **form):
        path.write_bytes(content)
        return peek_csv(FileInput(FileSlice(str(path))), fields, CsvFormat(**form))

    assert peek(b"") is None
    assert peek(b'\xef\xbb\xbfid,"the text"\n1,2\n').names == ["id", "the text", POSITION]
    assert peek(b"id,n\n1,2\n", column_types={"n": "int64"}).field("n").type == pa.int64()
    assert peek(b"id,n\n1,2\n", ["n", "x"]).names == ["n", "x", POSITION]
    with pytest.raises(InputError, match="two columns 'id'"):
        peek(b"id,id\n1,2\n")
    with pytest.raises(InputError, match=r"is not CSV; it looks like JSON lines: use JsonlReader"):
        peek(b'{"a": 1}\n')
    with pytest.raises(InputError, match=r"it looks like Parquet: use ParquetReader"):
        peek(b"PAR1....")


def test_csv_with_a_column_of_the_reserved_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"_position,__position__\n1,2\n")
    source = FileInput(FileSlice(str(path)))
    with pytest.raises(InputError, match=r"a\.csv has a column '__position__'"):
        peek_csv(source)
    with pytest.raises(InputError, match="reserved"):
        list(read_csv(source))
    [table] = read_csv(source, ["_position"])
    assert table.to_pylist() == [{"_position": "1", POSITION: 0}]


def seconds_to_read(folder, columns):
    path = folder / f"{columns}.csv"
    path.write_text(",".join(f"c{number}" for number in range(columns)) + "\n" + ",".join("x" * columns) + "\n")
    source, names = FileInput(FileSlice(str(path))), [f"c{number}" for number in range(columns)]
    found = []
    for _ in range(3):
        began = time.process_time()
        [table] = read_csv(source, names)
        assert peek_csv(source).names == table.column_names == [*names, POSITION]
        found.append(time.process_time() - began)
    return min(found)


def test_thousands_of_columns_take_in_proportion_longer(tmp_path):
    assert seconds_to_read(tmp_path, 16_000) < 64 * seconds_to_read(tmp_path, 1000)
