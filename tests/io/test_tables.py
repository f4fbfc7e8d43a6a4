"""Parquet, Arrow, CSV and plain text: rows, positions, damage."""

import gzip

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import BadRecordError, InputError
from gristmill.core.table import JSON, POSITION, json_array
from gristmill.core.task import FileSlice
from gristmill.io.arrow import peek_arrow, read_arrow
from gristmill.io.csv import CsvFormat, peek_csv, read_csv
from gristmill.io.input import Input
from gristmill.io.parquet import peek_parquet, read_parquet
from gristmill.io.plain import peek_text, read_text_file, read_text_lines
from tests.io.test_lines import zstd

TABLE = pa.table(
    {
        "id": range(1000),
        "text": [None if n % 100 == 7 else f"text {n} " * 10 for n in range(1000)],
        "tags": [[str(n), None] for n in range(1000)],
        "meta": json_array([{"n": n} for n in range(1000)]),
    }
)


def rows_of(read, path, blocksize=16 * 2**20, part=None, **settings):
    bad = []
    source = Input(part or FileSlice(str(path)), blocksize=blocksize, on_bad=bad.append)
    tables = list(read(source, **settings))
    return pa.concat_tables(tables) if tables else None, tables, bad


# -- Parquet ---------------------------------------------------------------------------------------------


@pytest.fixture
def parquet(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=300)
    return tmp_path / "a.parquet"


@pytest.mark.parametrize("blocksize", [1, 1000, 16 * 2**20])
def test_parquet_in_blocks(parquet, blocksize):
    table, tables, bad = rows_of(read_parquet, parquet, blocksize)
    assert table.equals(TABLE.append_column(POSITION, pa.array(range(1000), pa.int64())))
    assert table.schema.field("meta").type == JSON
    assert bad == []
    assert len(tables) >= {1: 1000, 1000: 50, 16 * 2**20: 4}[blocksize]


def test_parquet_row_groups_know_their_rows(parquet):
    table, _, _ = rows_of(read_parquet, parquet, part=FileSlice(str(parquet), row_groups=(1, 3)))
    assert table.column(POSITION).to_pylist() == [*range(300, 600), *range(900, 1000)]
    assert table.column("id").to_pylist() == [*range(300, 600), *range(900, 1000)]


def test_parquet_fields(parquet):
    table, _, _ = rows_of(read_parquet, parquet, fields=["text", "nothing", "id"])
    assert table.column_names == ["text", "nothing", "id", POSITION]
    assert table.column("nothing").null_count == 1000
    assert peek_parquet(Input(FileSlice(str(parquet))), ["id", "nothing"]).names == ["id", "nothing", POSITION]
    only, _, _ = rows_of(read_parquet, parquet, fields=["nothing"])
    assert (only.num_rows, only.column_names) == (1000, ["nothing", POSITION])


def test_parquet_peek(parquet, tmp_path):
    schema = peek_parquet(Input(FileSlice(str(parquet))))
    assert schema.names == ["id", "text", "tags", "meta", POSITION]
    (tmp_path / "empty.parquet").touch()
    assert peek_parquet(Input(FileSlice(f"{tmp_path}/empty.parquet"))) is None
    (tmp_path / "lies.parquet").write_text('{"a": 1}\n')
    with pytest.raises(InputError, match=r"lies.parquet is not Parquet; it looks like JSON lines: use JsonlReader"):
        peek_parquet(Input(FileSlice(f"{tmp_path}/lies.parquet")))
    for damaged in (parquet.read_bytes()[:-30], bytes(500), b"what is this"):
        (tmp_path / "cut.parquet").write_bytes(damaged)  # by its name or its first bytes it is Parquet
        assert peek_parquet(Input(FileSlice(f"{tmp_path}/cut.parquet"))) is None
    (tmp_path / "what.dat").write_bytes(b"what is this")
    with pytest.raises(InputError, match=r"what.dat is not Parquet that can be read"):
        peek_parquet(Input(FileSlice(f"{tmp_path}/what.dat")))


def test_a_damaged_row_group_does_not_take_the_others_with_it(tmp_path):
    path = tmp_path / "a.parquet"
    table = TABLE.select(["id", "text"])
    pq.write_table(table, path, row_group_size=250, compression="zstd")
    data = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(1).column(1)
    start = column.dictionary_page_offset or column.data_page_offset
    for place in range(start, start + column.total_compressed_size):
        data[place] ^= 0x5A
    path.write_bytes(data)
    good, _, bad = rows_of(read_parquet, path)
    assert good.column("id").to_pylist() == [*range(250), *range(500, 1000)]
    assert sum(record.records for record in bad) == 250
    assert "row group 1" in bad[0].reason


@pytest.mark.parametrize("blocksize", [100, 5000, 2**20, 64 * 2**20])
def test_what_is_lost_to_damage_does_not_depend_on_blocks(tmp_path, blocksize, monkeypatch):
    monkeypatch.setattr("gristmill.io.parquet.BLOCK", 2000)  # several steps to a row group
    path = tmp_path / "a.parquet"
    small = {"use_dictionary": False, "data_page_size": 1000, "write_batch_size": 20}
    pq.write_table(TABLE.select(["id", "text"]), path, row_group_size=500, compression="zstd", **small)
    data = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 100] = bytes(100)
    path.write_bytes(data)
    good, _, [bad] = rows_of(read_parquet, path, blocksize)
    kept = good.column("id").to_pylist()
    assert 0 < bad.position < 500
    assert kept == good.column(POSITION).to_pylist() == [*range(bad.position), *range(500, 1000)]
    assert bad == rows_of(read_parquet, path)[2][0]
    assert bad.records == 500 - bad.position


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_text_that_is_not_utf8_in_a_table(tmp_path, kind):
    text = pa.array([b"good", b"b\xe4d", None, b"good"], pa.binary()).view(pa.string())
    tags = pa.ListArray.from_arrays(
        [0, 1, 2, 3, 4], pa.array([b"a", b"b", b"\xff", b"d"], pa.binary()).view(pa.string())
    )
    path = tmp_path / f"a.{kind}"
    table = pa.table({"text": text, "tags": tags})
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, str(path))
    read = read_parquet if kind == "parquet" else read_arrow
    good, _, bad = rows_of(read, path)
    assert good.to_pylist() == [
        {"text": "good", "tags": ["a"], POSITION: 0},
        {"text": "good", "tags": ["d"], POSITION: 3},
    ]
    assert bad == [
        (1, "column 'text' is not valid UTF-8", b"b\xe4d", 1),
        (2, "column 'tags' is not valid UTF-8", b"", 1),
    ]
    assert rows_of(read, path, fields=["text"])[0].num_rows == (3 if kind == "parquet" else 2)


def test_a_parquet_file_without_footer_is_told(parquet):
    parquet.write_bytes(parquet.read_bytes()[:-30])
    _, tables, bad = rows_of(read_parquet, parquet)
    assert tables == []
    assert "not a Parquet file" in bad[0].reason


# -- Arrow -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "stream", "feather"])
@pytest.mark.parametrize("blocksize", [1000, 16 * 2**20])
def test_arrow(tmp_path, kind, blocksize):
    path = tmp_path / f"a.{kind}"
    if kind == "feather":
        feather.write_feather(TABLE, str(path), chunksize=300)
    else:
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with make(str(path), TABLE.schema) as writer:
            writer.write_table(TABLE, max_chunksize=300)
    table, tables, bad = rows_of(read_arrow, path, blocksize)
    assert table.equals(TABLE.append_column(POSITION, pa.array(range(1000), pa.int64())))
    assert bad == []
    assert len(tables) >= 4
    assert peek_arrow(Input(FileSlice(str(path)))).names == [*TABLE.column_names, POSITION]
    narrow, _, _ = rows_of(read_arrow, path, blocksize, fields=["id"])
    assert narrow.column_names == ["id", POSITION]


def test_arrow_troubles(tmp_path):
    path = tmp_path / "a.arrow"
    path.touch()
    assert rows_of(read_arrow, path) == (None, [], [])
    assert peek_arrow(Input(FileSlice(str(path)))) is None
    path.write_text("hello, world\nyes, you\n")
    assert len(rows_of(read_arrow, path)[2]) == 1
    path.write_bytes(b"\xff\xff\xff\xff cut")
    assert peek_arrow(Input(FileSlice(str(path)))) is None
    path.write_text("hello, world\nyes, you\n")
    with pytest.raises(InputError, match=r"a.arrow is not an Arrow file; it looks like CSV: use CsvReader"):
        peek_arrow(Input(FileSlice(str(path))))


def test_a_stream_that_is_cut_short_gives_its_whole_batches(tmp_path):
    path = tmp_path / "a.arrows"
    with pa.ipc.new_stream(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=300)
    path.write_bytes(path.read_bytes()[:-20_000])
    table, _, bad = rows_of(read_arrow, path)
    assert table.column("id").to_pylist() == list(range(table.num_rows))
    assert table.num_rows >= 600
    assert len(bad) == 1


def test_a_batch_that_makes_no_sense_is_left_out_before_it_ends_the_process(tmp_path):
    path = tmp_path / "a.arrow"
    with pa.ipc.new_file(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE.combine_chunks(), max_chunksize=250)
    data = bytearray(path.read_bytes())
    offsets = pa.array(range(0, 502, 2), pa.int32()).buffers()[1].to_pybytes()  # of the lists
    second = data.index(offsets, data.index(offsets) + 1)
    data[second + 100 : second + 500] = b"\x7f" * 400
    path.write_bytes(data)
    good, _, bad = rows_of(read_arrow, path)
    assert good.column("id").to_pylist() == [*range(250), *range(500, 1000)]
    assert [(record.position, record.records) for record in bad] == [(250, 250)]
    assert "a damaged batch" in bad[0].reason


# -- CSV -------------------------------------------------------------------------------------------------


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
        (1, "a row of 1 values where 2 are expected", b"3", 1),
        (2, "a row of 3 values where 2 are expected", b"\xff,5,6", 1),
        (3, "the value of column 'a' is not valid UTF-8", b"\xff,8", 1),
        (5, "a row of 1 values where 2 are expected", b"11", 1),
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
    monkeypatch.setattr("gristmill.io.csv.HOPELESS", 100)
    rows, [bad] = csv_rows(tmp_path, b"a,b\n1,2\n" + b"x\n" * 1000)
    assert (rows, bad.position) == (None, 0)
    assert "not CSV that can be read, from here on" in bad.reason
    assert len(csv_rows(tmp_path, b"a,b\n1,2\n" + b"x\n" * 100)[1]) == 100


def test_csv_rows_are_numbered_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("gristmill.io.csv.BLOCK", 1000)
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
    assert "cut short (at byte " in bad[0].reason
    quoted = b"id,text\n" + b"".join(b'%d,"text\n%d"\n' % (n, n * 7919) for n in range(50_000))
    for cut in range(5000, 5020):
        rows, bad = csv_rows(tmp_path, gzip.compress(quoted)[:-cut], "a.csv.gz")
        assert [row["text"] for row in rows] == [f"text\n{n * 7919}" for n in range(len(rows))]
        assert [record.position for record in bad] == [len(rows)]


def test_csv_bad_record_raises_here_not_in_a_thread(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1\n")
    with pytest.raises(BadRecordError, match="a row of 1 values where 2 are expected"):
        list(read_csv(Input(FileSlice(str(path)))))


def test_csv_that_is_empty(tmp_path):
    for content in (b"", b"\n\n", b"a,b\n"):
        rows, bad = csv_rows(tmp_path, content)
        assert not rows
        assert bad == []


def test_csv_peek(tmp_path):
    path = tmp_path / "a.csv"

    def peek(content, fields=None, **form):
        path.write_bytes(content)
        return peek_csv(Input(FileSlice(str(path))), fields, CsvFormat(**form))

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


# -- plain text ------------------------------------------------------------------------------------------


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
        read_text_file(Input(FileSlice(str(path))))
    path.write_bytes(b"good\n" + b"\xff\n" * 2500 + b"good\n")
    table, tables, bad = rows_of(read_text_lines, path)
    assert table.column(POSITION).to_pylist() == [0, 5005]
    assert [record.position for record in bad] == list(range(5, 5005, 2))
    assert len(tables) > 2


def test_text_by_file(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("\ufeffall\nof it\n".encode()))
    assert read_text_file(Input(FileSlice(str(path)))) == "all\nof it\n"
    bad = []
    assert read_text_file(Input(FileSlice(str(path)), on_bad=bad.append), max_bytes=5) is None
    path.write_bytes(path.read_bytes()[:-6])
    assert read_text_file(Input(FileSlice(str(path)), on_bad=bad.append)) is None  # not half of it
    path.write_bytes(bytes(100))
    assert read_text_file(Input(FileSlice(f"{path}"), on_bad=bad.append)) is None
    (tmp_path / "a.txt").write_bytes(bytes(100))
    assert read_text_file(Input(FileSlice(f"{tmp_path}/a.txt"), on_bad=bad.append)) is None
    assert [record.position for record in bad] == [0, 0, 0, 0]
    assert [record.reason.partition(":")[0] for record in bad] == [
        "a file of more than 5 bytes (the limit is max_line_bytes)",
        "the gzip stream ends too early",
        "the gzip stream is damaged here, the rest cannot be read (Error -3 while decompressing data",
        "binary data, not text",
    ]


def test_text_peek(tmp_path):
    path = tmp_path / "a.txt"
    for content in (b"words\n", b"<p>a document</p>", b"{braces}", b"a, b\nc, d\n"):
        path.write_bytes(content)
        assert peek_text(Input(FileSlice(str(path))), per_file=False).names == ["text", POSITION]
    path.write_bytes(b"PAR1 and so on")
    with pytest.raises(InputError, match="is not text; it looks like Parquet"):
        peek_text(Input(FileSlice(str(path))), per_file=True)
    path.write_bytes(b"")
    assert peek_text(Input(FileSlice(str(path))), per_file=True) is None


@pytest.mark.parametrize(("name", "reason"), [("a", "two columns 'a'"), (POSITION, "column '__position__'.*reserved")])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_of_one_name_or_of_the_reserved_name(tmp_path, kind, name, reason):
    path = tmp_path / f"x.{kind}"
    table = pa.table([[1], [2], [3]], names=["a", name, "b"])
    if kind == "parquet":
        pq.write_table(table, path)
        read, peek = read_parquet, peek_parquet
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        read, peek = read_arrow, peek_arrow
    source = Input(FileSlice(str(path)))
    with pytest.raises(InputError, match=rf"x\.{kind} has .*{reason}.*fields="):
        peek(source)
    with pytest.raises(InputError, match=reason):
        list(read(source))
    [only] = read(source, ["b"])
    assert only.to_pydict() == {"b": [3], POSITION: [0]}
    assert peek(source, ["b"]).names == ["b", POSITION]


def test_csv_with_a_column_of_the_reserved_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"_position,__position__\n1,2\n")
    source = Input(FileSlice(str(path)))
    with pytest.raises(InputError, match=r"a\.csv has a column '__position__'"):
        peek_csv(source)
    with pytest.raises(InputError, match="reserved"):
        list(read_csv(source))
    [table] = read_csv(source, ["_position"])
    assert table.to_pylist() == [{"_position": "1", POSITION: 0}]
