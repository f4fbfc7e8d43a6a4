"""JSON lines: rows and positions, whatever the lines hold and however the file is cut."""

import gzip
import json
import math
import tracemalloc

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import JSON, MIXED, POSITION, rows_to_table, table_to_rows
from gristmill.core.errors import InputError
from gristmill.core.task import FileSlice
from gristmill.io.formats.jsonl import parse_lines, peek_jsonl, read_jsonl, split_lines, table_from_rows
from gristmill.io.storage.file_input import MAX_BAD_RECORDS, MAX_RAW_BYTES, FileInput
from tests.io.test_line_blocks import zstd

SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
ROWS = st.lists(st.dictionaries(st.sampled_from(["id", "text", "score", "meta"]), VALUE, max_size=4), max_size=12)
LINE = st.sampled_from([b"", b"  ", b"{broken", b'"text"', b"\xff\xfe", b"[1]", b"null"])


def lost_types(value):
    """Integers and floats of one column share a type: compare numbers by value."""
    return json.loads(json.dumps(value), parse_int=float)


def read(path, blocksize=16 * 2**20, part=None, **settings):
    bad = []
    source = FileInput(part or FileSlice(str(path)), blocksize=blocksize, on_bad=bad.append)
    tables = list(read_jsonl(source, **settings))
    rows = [row for table in tables for row in table_to_rows(table)]
    return rows, bad


def parse(block, offset):
    rows, positions, bad, after = parse_lines(iter(split_lines(block)), offset)
    assert after is None
    return rows, positions, bad


def content_of(path):
    """(position, fields that are not null) of each row."""
    rows, bad = path
    return (
        [
            (row[POSITION], lost_types({k: v for k, v in row.items() if k != POSITION and v is not None}))
            for row in rows
        ],
        [record.position for record in bad],
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("jsonl")


@settings(deadline=None)
@given(rows=ROWS, extra=st.lists(st.tuples(st.integers(0, 12), LINE), max_size=4), blocksize=st.integers(1, 300))
def test_rows_and_positions_do_not_depend_on_blocks(place, rows, extra, blocksize):
    lines = [orjson.dumps(row) for row in rows]
    for index, line in extra:
        lines.insert(min(index, len(lines)), line)
    data = b"\n".join(lines)
    path, packed, framed = place / "a.jsonl", place / "a.jsonl.gz", place / "a.jsonl.zst"
    path.write_bytes(data)
    packed.write_bytes(gzip.compress(data))
    framed.write_bytes(zstd(data))
    whole = content_of(read(path))
    assert [row for _, row in whole[0]] == [lost_types({k: v for k, v in row.items() if v is not None}) for row in rows]
    for one in (path, packed, framed):
        assert content_of(read(one, blocksize)) == whole
    parts = [
        content_of(read(path, part=FileSlice(str(path), start, min(start + blocksize, len(data)))))
        for start in range(0, len(data), blocksize)
    ]
    assert ([row for part in parts for row in part[0]], [place for part in parts for place in part[1]]) == whole


@settings(deadline=None)
@given(rows=ROWS)
def test_tables_are_those_of_the_core(rows):
    table = table_from_rows(rows, range(len(rows)))
    plain = rows_to_table(rows)
    assert table.drop_columns([POSITION]).schema == plain.schema
    if plain.num_columns:
        assert table.drop_columns([POSITION]).equals(plain)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b'{"a": 1} trailing', "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": "\xff"}', "not valid UTF-8 at byte 7"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"[1, 2]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"17", "not a JSON object"),
        (b"NaN", "not a JSON object"),
        (b'{"a": NaN, "b": "\\ud800"}', "not JSON"),
        (b"\x00\x00", "not JSON"),
        (b"{" * 2000, "not JSON"),
    ],
)
def test_a_bad_line_is_told_and_its_neighbours_are_read(line, reason):
    rows, positions, bad = parse(b'{"n": 1}\n' + line + b'\n{"n": 2}\n', 100)
    assert rows == [{"n": 1}, {"n": 2}]
    assert positions == [100, 110 + len(line)]
    assert [(record.position, record.raw) for record in bad] == [(109, line)]
    assert reason in bad[0].reason


def test_blank_lines_carriage_returns_and_a_missing_newline():
    rows, positions, bad = parse(b'\n  \n{"n": 1}\r\n\r\n{"n": 2}', 0)
    assert (rows, positions, bad) == ([{"n": 1}, {"n": 2}], [4, 16], [])


def test_nan_and_infinity_as_python_writes_them():
    rows, _, bad = parse(b'{"a": NaN, "b": [-Infinity]}', 0)
    assert math.isnan(rows[0]["a"])
    assert rows[0]["b"] == [-math.inf]
    assert bad == []


def test_a_late_column_a_change_of_type_null_and_nested_values(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"text": "one", "n": 1},
        {"text": None, "n": "two", "meta": {"tags": ["x", {"y": None}]}},
        {"n": 3.5, "late": True},
        {},
    ]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    table = pa.concat_tables(read_jsonl(FileInput(FileSlice(str(path)))))
    assert table.column_names == ["text", "n", "meta", "late", POSITION]
    assert table.schema.field("n").type == MIXED
    assert table.schema.field("meta").type == JSON
    assert table.schema.field("late").type == pa.bool_()
    kept = [{k: v for k, v in row.items() if k != POSITION and v is not None} for row in table_to_rows(table)]
    assert kept == [{k: v for k, v in row.items() if v is not None} for row in rows]


def test_fields_narrow_and_fill(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n')
    [table] = read_jsonl(FileInput(FileSlice(str(path))), fields=["b", "nothing"])
    assert table.column_names == ["b", "nothing", POSITION]
    assert table.column("nothing").null_count == 2
    [empty] = read_jsonl(FileInput(FileSlice(str(path))), fields=[])
    assert (empty.column_names, empty.num_rows) == ([POSITION], 2)


def test_a_column_of_nearly_the_reserved_name_is_the_users(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "_position": "mine", "__position__x": 2}\n')
    [table] = read_jsonl(FileInput(FileSlice(str(path))))
    assert table.to_pydict() == {"a": [1], "_position": ["mine"], "__position__x": [2], POSITION: [0]}


def test_a_line_with_the_reserved_name_is_a_bad_record(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 1, "__position__": "mine"}\n')
    bad = []
    source = FileInput(FileSlice(str(path)), on_bad=bad.append)
    for fields in (None, ["a", POSITION]):
        [table] = read_jsonl(source, fields)
        assert table.to_pydict() == {"a": [1], POSITION: [0]}
        assert [(record.position, "reserved" in record.reason) for record in bad] == [(9, True)]
        bad.clear()
        with pytest.raises(InputError, match=r"a\.jsonl has a column '__position__'.*fields=\[\.\.\.\]"):
            peek_jsonl(source, fields)
    [table] = read_jsonl(source, ["a"])
    assert table.to_pydict() == {"a": [1, 1], POSITION: [0, 9]}
    assert bad == []


@pytest.mark.parametrize(("levels", "good"), [(300, True), (350, True), (351, False), (600, False), (10_000, False)])
@pytest.mark.parametrize("fields", [None, ["a"]])
def test_a_line_that_is_nested_too_deeply_is_a_bad_record(tmp_path, levels, good, fields):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": ' + "[" * levels + "]" * levels + '}\nworse\n{"a": 2}\n')
    bad = []
    source = FileInput(FileSlice(str(path)), on_bad=bad.append)
    [table] = read_jsonl(source, fields)
    assert table.column(POSITION).to_pylist()[1:-1] == ([9] if good else [])
    assert [record.position for record in bad][:-1] == ([] if good else [9])
    assert peek_jsonl(source, fields).names == ["a", POSITION]


def test_deep_values_of_columns_that_are_not_wanted_do_no_harm(tmp_path):
    path = tmp_path / "a.jsonl"
    deep = "[" * 600 + "]" * 600
    path.write_text(f'{{"a": 1, "b": {deep}}}\n{{"a": {deep}}}\n')
    bad = []
    [table] = read_jsonl(FileInput(FileSlice(str(path)), on_bad=bad.append), ["a"])
    assert table.to_pydict() == {"a": [1], POSITION: [0]}
    assert "350 levels" in bad[0].reason


def test_of_a_long_bad_line_the_beginning_is_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * (MAX_RAW_BYTES + 1) + b"\n" + b"y" * MAX_RAW_BYTES + b"\n")
    assert [record.raw for record in read(path)[1]] == [b"x" * MAX_RAW_BYTES, b"y" * MAX_RAW_BYTES]


def test_bad_lines_do_not_pile_up(tmp_path):
    """Between two tables they are taken away: there must be a table for every so many of them."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n' + b"x\n" * (10 * MAX_BAD_RECORDS) + b'{"n": 2}\n')
    bad = []
    waiting = []
    rows = []
    for table in read_jsonl(FileInput(FileSlice(str(path)), on_bad=waiting.append)):
        assert len(waiting) <= MAX_BAD_RECORDS
        bad += waiting
        waiting.clear()
        rows += table_to_rows(table)
    assert [record.position for record in bad] == list(range(9, 9 + 20 * MAX_BAD_RECORDS, 2))
    assert [(row["n"], row[POSITION]) for row in rows] == [(1, 0), (2, 9 + 20 * MAX_BAD_RECORDS)]


# -- peek ------------------------------------------------------------------------------------------------


def peek(tmp_path, content, name="x.jsonl", **settings):
    path = tmp_path / name
    path.write_bytes(content)
    return peek_jsonl(FileInput(FileSlice(str(path))), **settings)


def test_peek_sees_the_columns(tmp_path):
    for name, pack in (("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstd)):
        schema = peek(tmp_path, pack(b'{"text": "a", "n": 1}\n' * 50_000), name)
        assert dict(zip(schema.names, schema.types, strict=True)) == {
            "text": pa.string(),
            "n": pa.int64(),
            POSITION: pa.int64(),
        }


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b"\xef\xbb\xbf"])
def test_peek_of_nothing(tmp_path, content):
    assert peek(tmp_path, content) is None


def test_peek_forgives_bad_first_lines(tmp_path):
    assert peek(tmp_path, b'[1]\n{bad\nworse\n{"text": "fine"}\n').names == ["text", POSITION]


def test_peek_cannot_tell_from_a_line_that_has_no_end(tmp_path):
    assert peek(tmp_path, b'{"text": "' + b"x" * 300_000 + b'"}\n', strict=False) is None


def test_peek_reads_only_the_beginning(tmp_path):
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000)[:-10])
    assert peek_jsonl(FileInput(FileSlice(str(path)))).names == ["text", POSITION]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PAR1\x15\x04rest", "it looks like Parquet: use ParquetReader"),
        (b"ARROW1\0\0rest", "an Arrow file: use ArrowReader"),
        (b"<!DOCTYPE html>\n<html>\n", "HTML or XML"),
        (b"id,text\n1,a\n2,b\n", "CSV: use CsvReader"),
        (b"id\ttext\n1\ta\n2\tb\n", "CSV: use CsvReader"),
        (b"PK\x03\x04....", "zip archive"),
        (b"BZh91AY&SY", "bzip2"),
        (b'\xff\xfe{\0"\0a\0', "UTF-16"),
        (b'[{"text": "a"}, {"text": "b"}]', "one JSON array"),
        (b'[\n  {"text": "a"},\n  {"text": "b"}\n]\n', "one JSON array"),
        (b'{\n  "text": "a"\n}\n', "one JSON object over several lines"),
        (b"just some words\nand more\n", "none of its first 2 lines is a JSON object"),
        (gzip.compress(b"PAR1 inside", mtime=0), "it looks like Parquet"),
    ],
)
def test_peek_names_another_format(tmp_path, content, words):
    with pytest.raises(InputError, match=r"x\.jsonl is ") as raised:
        peek(tmp_path, content)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "content", [b'{"text": "cut sh', b"{broken\n" * 3, b"{'a': 1}\n", bytes(1000), b"\xff\xff broken"]
)
def test_peek_takes_damage_for_no_other_format(tmp_path, content):
    assert peek(tmp_path, content) is None


def test_peek_leaves_bad_lines_to_those_who_skip_them(tmp_path):
    assert peek(tmp_path, b"just some words\n", strict=False) is None


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_long_and_short_lines_are_read_alike(size):
    lines = [orjson.dumps({"n": n, "text": "x" * size}) for n in range(200)]
    lines[50:50] = [b"", b"broken " * size]
    rows, positions, bad = parse(b"\n".join(lines), 7)
    starts = [7 + sum(len(line) + 1 for line in lines[:index]) for index in range(len(lines))]
    assert [row["n"] for row in rows] == list(range(200))
    assert positions == starts[:50] + starts[52:]
    assert [(record.position, record.raw) for record in bad] == [(starts[51], b"broken " * size)]


@pytest.mark.parametrize("other", ["false", '"x"', "[1]", "2"])
@pytest.mark.parametrize("where", ["%s", "[%s]", '{"a":{"b":%s}}'])
def test_integers_beyond_64_bits_keep_their_digits_beside_anything(tmp_path, where, other):
    wide = 12345678901234567890123
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"v":{where % wide}}}\n{{"v":{other}}}\n')
    [table] = read_jsonl(FileInput(FileSlice(str(path))))
    assert str(wide) in table.column("v").chunk(0).storage[0].as_py()


@pytest.mark.skipif(kernels is None, reason="columns would be made of Python's own memory")
def test_lines_are_let_go_when_they_are_a_table(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes((orjson.dumps({"text": "x" * 10_000}) + b"\n") * 1000)
    tracemalloc.start()
    try:
        tables = read_jsonl(FileInput(FileSlice(str(path))))
        assert next(tables).num_rows == 1000
        assert tracemalloc.get_traced_memory()[0] < path.stat().st_size // 2
    finally:
        tracemalloc.stop()
