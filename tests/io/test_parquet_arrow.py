"""Parquet and Arrow: rows, positions, damage."""

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from gristmill.core.arrow.table_conversion import JSON, POSITION, json_array
from gristmill.core.errors import InputError
from gristmill.core.task import FileSlice
from gristmill.io.formats import table_validation
from gristmill.io.formats.arrow import peek_arrow, read_arrow
from gristmill.io.formats.parquet import peek_parquet, read_parquet
from gristmill.io.storage.file_input import FileInput
from tests.io.read_file import rows_of

TABLE = pa.table(
    {
        "id": range(1000),
        "text": [None if n % 100 == 7 else f"text {n} " * 10 for n in range(1000)],
        "tags": [[str(n), None] for n in range(1000)],
        "meta": json_array([{"n": n} for n in range(1000)]),
    }
)


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
    assert peek_parquet(FileInput(FileSlice(str(parquet))), ["id", "nothing"]).names == ["id", "nothing", POSITION]
    only, _, _ = rows_of(read_parquet, parquet, fields=["nothing"])
    assert (only.num_rows, only.column_names) == (1000, ["nothing", POSITION])


def test_parquet_peek(parquet, tmp_path):
    schema = peek_parquet(FileInput(FileSlice(str(parquet))))
    assert schema.names == ["id", "text", "tags", "meta", POSITION]
    (tmp_path / "empty.parquet").touch()
    assert peek_parquet(FileInput(FileSlice(f"{tmp_path}/empty.parquet"))) is None
    (tmp_path / "lies.parquet").write_text('{"a": 1}\n')
    with pytest.raises(InputError, match=r"lies.parquet is not Parquet; it looks like JSON lines: use JsonlReader"):
        peek_parquet(FileInput(FileSlice(f"{tmp_path}/lies.parquet")))
    for damaged in (parquet.read_bytes()[:-30], bytes(500), b"what is this"):
        (tmp_path / "cut.parquet").write_bytes(damaged)  # by its name or its first bytes it is Parquet
        assert peek_parquet(FileInput(FileSlice(f"{tmp_path}/cut.parquet"))) is None
    (tmp_path / "what.dat").write_bytes(b"what is this")
    with pytest.raises(InputError, match=r"what.dat cannot be read as Parquet"):
        peek_parquet(FileInput(FileSlice(f"{tmp_path}/what.dat")))


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
    monkeypatch.setattr("gristmill.io.formats.parquet.DEFAULT_BLOCK_BYTES", 2000)  # several steps to a row group
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


def test_a_parquet_file_without_footer_is_told(parquet):
    parquet.write_bytes(parquet.read_bytes()[:-30])
    _, tables, bad = rows_of(read_parquet, parquet)
    assert tables == []
    assert "unreadable Parquet file" in bad[0].reason


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
    assert peek_arrow(FileInput(FileSlice(str(path)))).names == [*TABLE.column_names, POSITION]
    narrow, _, _ = rows_of(read_arrow, path, blocksize, fields=["id"])
    assert narrow.column_names == ["id", POSITION]


def test_arrow_troubles(tmp_path):
    path = tmp_path / "a.arrow"
    path.touch()
    assert rows_of(read_arrow, path) == (None, [], [])
    assert peek_arrow(FileInput(FileSlice(str(path)))) is None
    path.write_text("hello, world\nyes, you\n")
    assert len(rows_of(read_arrow, path)[2]) == 1
    path.write_bytes(b"\xff\xff\xff\xff cut")
    assert peek_arrow(FileInput(FileSlice(str(path)))) is None
    path.write_text("hello, world\nyes, you\n")
    with pytest.raises(InputError, match=r"a.arrow is not an Arrow file; it looks like CSV: use CsvReader"):
        peek_arrow(FileInput(FileSlice(str(path))))


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


# -- both ------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_text_that_is_too_long_is_set_aside(tmp_path, monkeypatch, form, kind):
    monkeypatch.setattr(table_validation, "MAX_LINE_BYTES", 5000)
    texts = ["x" * 5001 if n in (0, 40) else None if n == 7 else "x" * 5000 if n == 8 else "short" for n in range(60)]
    table = pa.table({"id": range(60), "text": pa.array(texts, pa.string()).cast(kind)})
    if form == "parquet":
        pq.write_table(table, tmp_path / "a", row_group_size=30)
    else:
        feather.write_feather(table, tmp_path / "a", chunksize=30, compression="uncompressed")
    found, _, bad = rows_of(read_parquet if form == "parquet" else read_arrow, tmp_path / "a")
    assert found.column("id").to_pylist() == [n for n in range(60) if n not in (0, 40)]
    assert [record.position for record in bad] == [0, 40]
    assert "column 'text' has a text of more than 5,000 bytes" in bad[0].reason


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_name_that_is_not_utf8_is_damage(tmp_path, kind):
    path, table = tmp_path / f"x.{kind}", pa.table({"damaged": ["a"]})
    if kind == "parquet":
        pq.write_table(table, path, store_schema=False)
    else:
        feather.write_feather(table, path, compression="uncompressed")
    path.write_bytes(path.read_bytes().replace(b"damaged", b"\xffamaged"))
    peek, read = (peek_parquet, read_parquet) if kind == "parquet" else (peek_arrow, read_arrow)
    assert peek(FileInput(FileSlice(str(path)))) is None
    _, tables, bad = rows_of(read, path)
    assert (tables, len(bad)) == ([], 1)


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
    source = FileInput(FileSlice(str(path)))
    with pytest.raises(InputError, match=rf"x\.{kind} has .*{reason}.*fields="):
        peek(source)
    with pytest.raises(InputError, match=reason):
        list(read(source))
    [only] = read(source, ["b"])
    assert only.to_pydict() == {"b": [3], POSITION: [0]}
    assert peek(source, ["b"]).names == ["b", POSITION]
