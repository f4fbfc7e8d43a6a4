"""JSON lines read and written in C: the same tables and the same bytes as in Python, for any content."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import POSITION, json_array, rows_to_table
from gristmill.core.errors import InputError
from gristmill.core.task import FileSlice
from gristmill.io.formats import jsonl
from gristmill.io.formats.jsonl import AS_WRITTEN, UNTIDY
from gristmill.io.storage.file_input import BadRecord, FileInput
from gristmill.io.write import jsonl_format


@pytest.fixture(scope="module", params=["64 bytes at a time", "16 bytes at a time"], autouse=True)
def _as_other_processors(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is read on processors with AVX-512 is what all others read."""
    if kernels is None:
        yield
        return
    wide = request.param.startswith("64")
    was = kernels.json_wide(wide)
    if kernels.json_wide(wide) is not wide:
        pytest.skip("this processor has no AVX-512")
    yield
    kernels.json_wide(was)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    [
        "",
        '"',
        "\\",
        "\b\f\n\r\t",
        "\0\x1f\x7f",
        "é\u2028",
        "😀",
        "\ud7ff\ue000\uffff\U0010ffff",
        "x" * 40,
        "a" * 15 + '"',
        "b" * 63 + '"' + "é" * 64 + "\n",
    ]
)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | text
nested = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3))
columns = st.sampled_from([text, st.none() | text, st.integers(), st.none() | st.booleans(), st.none(), nested])


@st.composite
def same_keys(draw: st.DrawFn) -> list[dict[str, Any]]:
    keys = draw(st.lists(st.sampled_from(["a", "b", "text", "é", 'q"', ""]), min_size=1, max_size=3, unique=True))
    kinds = [draw(columns) for _ in keys]
    return [{key: draw(kind) for key, kind in zip(keys, kinds, strict=True)} for _ in range(draw(st.integers(1, 5)))]


@st.composite
def some_keys(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows that lack some keys, and have others in another order."""
    return [
        {key: row[key] for key in draw(st.permutations(list(row)))[: draw(st.integers(0, len(row)))]}
        for row in draw(same_keys())
    ]


def line_of(row: Any, form: int) -> bytes:
    styles: list[dict[str, Any]] = [
        {},
        {"ensure_ascii": False},
        {"separators": (",", ":")},
        {"separators": (" ,\t", " : ")},
        {"separators": (",", ":"), "ensure_ascii": False},
    ]
    return json.dumps(row, **styles[form % 5]).encode() + (b" \r" if form > 4 else b"")


def slowly(block: bytes, fields: list[str] | None) -> Any:
    rows, positions, bad, _ = jsonl.parse_lines(iter(block.split(b"\n")), 7)
    return None if bad else jsonl.table_from_rows(rows, positions, fields)


def check_reading(block: bytes, fields: list[str] | None = None) -> bool:
    """Whether it was read in C; then as Python reads it."""
    table, plain = jsonl.parse_block_natively(block, 7, fields)
    if table is None:
        return False
    if plain and (form := plain()):
        lines = bytearray(block if block.endswith(b"\n") else block + b"\n")
        size = len(lines) if form == jsonl.AS_WRITTEN else kernels.tidy_json(lines)
        assert b"".join(jsonl_format.encode_lines(table.drop_columns([POSITION]))) == lines[:size]
    wanted = slowly(block, fields)
    assert wanted is not None, "C reads what Python refuses"
    assert table.schema == wanted.schema
    assert table.equals(wanted)
    table.validate(full=True)
    return True


@given(same_keys() | some_keys(), st.integers(0, 9), st.sampled_from([None, ["text"], ["b", "a", "zz"]]))
@example([{"a": None}, {"a": "x"}, {"a": None}], 0, None)
@example([{"a": "x"}, {}, {"b": 1}, {"b": 2, "a": "y"}, {}], 0, None)
@example([{"a": None}, {"a": None}], 0, None)
def test_what_c_reads_is_what_python_reads(rows: list[dict[str, Any]], form: int, fields: list[str] | None) -> None:
    check_reading(b"\n".join(line_of(row, form) for row in rows), fields)


def in_bytes(found: Any) -> Any:
    """What `json_columns` gives, so that it can be compared."""
    if isinstance(found, tuple | list):
        return [in_bytes(one) for one in found]
    return found if found is None or isinstance(found, int | str) else bytes(found)


@pytest.mark.parametrize("seed", range(12))
def test_a_file_is_read_as_its_bytes_are(tmp_path: Path, seed: int) -> None:
    """It is read in pieces of 256 KiB: lines begin in one and end in the next, or fill several."""
    random = Random(seed)
    sizes = [random.choice([0, 3, 500, 70_000, 2**18 - 30, 600_000]) for _ in range(random.randrange(1, 25))]
    rows = [{"text": "é" * (size // 2), "n": size, f"k{size % 3}": "x"} for size in sizes]
    lines = [line_of(row, random.randrange(10)) + random.choice([b"\n", b"\n\n", b"\r\n"]) for row in rows]
    block = b"".join(lines)[: random.choice([None, -1, -2])]
    (path := tmp_path / "a.jsonl").write_bytes(block)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    with path.open("rb") as file:
        for start in starts[:3]:
            whole = kernels.json_columns_of(file.fileno(), start, len(block) - start, True)
            beyond = kernels.json_columns_of(file.fileno(), start, len(block) + 9, False)
            wanted = kernels.json_columns(block[start:])
            assert in_bytes(whole) == in_bytes(beyond) == (wanted and [in_bytes(wanted), len(block) - start])
            for size in (100, 2**18, 400_000):
                part = block[start : start + size]
                if size < len(block) - start:
                    part = part[: part.rfind(b"\n") + 1]
                    wanted = kernels.json_columns(part)
                    found = kernels.json_columns_of(file.fileno(), start, size, False)
                    assert in_bytes(found) == (wanted and [in_bytes(wanted), len(part)])
        assert kernels.json_columns_of(file.fileno(), 0, len(block) + 1, True) is None, "the file is shorter"


@pytest.mark.parametrize(
    "odd",
    [
        b"{nothing",
        b'{"id":2,"text":"\xff"}',
        b'{"id":"two","text":7}',
        b'{"id":%d,"text":"b"}' % 2**80,
        b'{"id":2.5e80,"text":"b"}',
        b'{"id":[[%s]],"text":"b"}' % (b"[" * 200 + b"]" * 200),
        b"",
    ],
)
@pytest.mark.parametrize("place", [0, 30, 99])
def test_a_file_with_an_odd_line_is_read_as_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: bytes, place: int
) -> None:
    """Blocks before it are parsed as they are read; it, and those after it, once they were."""
    lines = [b'{"id":%d,"text":"%s"}' % (number, b"x" * 50) for number in range(100)]
    lines[place] = odd
    (path := tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    found = []
    for native in (kernels, None):
        monkeypatch.setattr(jsonl, "kernels", native)
        bad: list[BadRecord] = []
        read: list[int] = []
        source = FileInput(FileSlice(str(path)), blocksize=1000, on_bad=bad.append, on_bytes=read.append)
        tables = [(table.schema, table.to_pylist()) for table in jsonl.read_jsonl(source)]
        found.append((tables, bad, read))
    assert found[0] == found[1]
    assert len(found[0][0]) > 1


@pytest.mark.parametrize(("line", "left"), [(b'{"id":%d}\n' % 2**80, b"{}" * 400), (b'{"id":nothing}\n', b"")])
def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path, line: bytes, left: bytes) -> None:
    """Integers beyond 64 bits, and values that are no JSON, make it read a second time."""
    (path := tmp_path / "a.jsonl").write_bytes(line * 3)
    source = FileInput(FileSlice(str(path)), on_bytes=lambda _: (path.write_bytes(left), None)[1])
    with pytest.raises(InputError, match=f"{path} changed while it was read: start the run again"):
        list(jsonl.read_jsonl(source))


@given(st.lists(text | st.none(), min_size=1), st.integers(0, 9))
def test_strings_are_read_in_c(texts: list[str | None], form: int) -> None:
    rows = [{"id": number, "text": text, "x": 1.5, "meta": {"k": [text]}} for number, text in enumerate(texts)]
    assert check_reading(b"\n\n \n".join(line_of(row, form) for row in rows) + b"\n")


@given(same_keys() | some_keys(), st.integers(0, 9), st.data())
def test_damaged_lines_are_left_to_python(rows: list[dict[str, Any]], form: int, data: st.DataObject) -> None:
    block = bytearray(b"\n".join(line_of(row, form) for row in rows))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(block)))
        block[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2)
            | st.sampled_from([b'"', b"\\", b"\\u", b"{", b"}", b"]", b",", b":", b"\n", b"NaN", b"\xed\xa0\x80"])
        )
    check_reading(bytes(block))


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":"\\ud800"}', b'{"a":"\\udc00\\ud800"}', b'{"a":"\\ud800\\u0041"}', b'{"a":"\\x"}', b'{"a":"\\u12g4"}',
        b'{"a":"\x01"}', b'{"a":"\xff"}', b'{"a":"\xc0\x80"}', b'{"a":"\xe0\x80\x80"}', b'{"a":"\xf4\x90\x80\x80"}',
        b'{"a":"x"', b'{"a":"x"}}', b'{"a":"x"} x', b'{"a":}', b'{"a" "x"}', b"{}", b'{"a":"x",}', b'{"a":"x","a":"y"}',
        b'["a"]', b'"a"', b"null", b'{"a":01}', b'{"a":tru}', b'{"a":[1}', b'{"a":[1,}', b'{"a":1 2}', b'{"a":NaN}',
        b'{"a":"x"}\n{"a":1}', b'{"a":1}\n{"a":"x"}', b'{"a":"x"}\n{"b":"x","a":"y","b":1}', b'{"a":"x"}\n{}x',
        b"{}\n{}", b'{"a":"x"}\n\x0b', b"", b"\n\n", b'{"__position__":"x"}', b'{"a":"', b'{"a', b"{", b"{ ",
        b'{"a\\ud800":1}', b'{"a\xff":1}', b'{"a\\":1}', b'{"a\\u00e9":1,"a\xc3\xa9":2}', b'{"a":1}\n{"a":1,}',
        b'{"a":1}\n{,"a":1}', b'{"a":1}\n{"a"}', b'{"a":1}\n{"ab:1}',
        b'{"a":["\\\n"]}\n{"a":[1]}', b'{"a":["x\n"]}', b'{"a":[1,\n2]}', b'{"a":1\n}', b'{"a"\n:1}', b'{\n"a":1}',
        b'{"a":"x\ny"}', b'{"a":{"b":"\\',
    ],
)  # fmt: skip
def test_what_is_unlike_the_rest_is_left_to_python(line: bytes) -> None:
    assert not check_reading(line)


@pytest.mark.skipif(kernels is None, reason="needs the C extension")
@pytest.mark.parametrize("value", [b'["\\\n"]', b'{"b":"x\ny"}', b"[1,\n2]", b"1\n", b'"x\ny"', b'["\\'])
def test_no_value_goes_on_after_its_line(value: bytes) -> None:
    assert kernels.json_columns(b'{"a":' + value + b'}\n{"a":[1]}') is None


@pytest.mark.parametrize(
    "lines",
    [
        b'{"a":"x"}\n{"b":"x"}', b'{"a":"x"}\n{"a":"x","b":1}', b'{"a":"x","b":1}\n{"a":"x"}', b'{"a":1}\n{}\n{ }',
        b'{}\n{"a":"x"}', b'{"a":1,"b":2}\n{"b":3,"a":4}', b'{"\xc3\xa9":"x"}\n{"\\u00e9":"y"}', b'{"a\\"b":"x"}',
        b'{"":1}\n{"a":2}\n{"":3}', b'{"a":null}\n{"b":null}\n{"a":"x"}', b'{"ab":1}\n{"a":2}\n{"abc":3,"a":4}',
        b"{" + b",".join(b'"k%d":%d' % (number, number) for number in range(256)) + b"}\n{\"k255\":0}",
        "\n".join(f'{{"id":{n},"text":"t"' + (f',"ü{n % 3}":"x"' if n % 2 else "") + "}" for n in range(99)).encode(),
    ],
)  # fmt: skip
def test_keys_may_be_missing_in_any_order_and_of_any_script(lines: bytes) -> None:
    assert check_reading(lines)
    assert check_reading(lines, ["a", "zz"])


@given(same_keys())
def test_what_c_writes_is_what_python_writes(rows: list[dict[str, Any]]) -> None:
    check_writing(rows_to_table(rows))


def check_writing(table: pa.Table) -> None:
    for sort_keys in (False, True):
        table = table.select(sorted(table.column_names)) if sort_keys else table
        fast = b"".join(jsonl_format.encode_lines(table, sort_keys))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jsonl_format, "kernels", None)
            assert fast == b"".join(jsonl_format.encode_lines(table, sort_keys))


def test_all_types_are_written_the_same() -> None:
    now = dt.datetime(2024, 2, 29, 12, 30, 15, 120000, tzinfo=dt.UTC)
    columns = {
        "text": pa.array(["a", None, 'q"\\\n\x01é']),
        "large": pa.array(["a", None, ""], pa.large_string()),
        "small": pa.array([1, None, -128], pa.int8()),
        "unsigned": pa.array([1, None, 2**64 - 1], pa.uint64()),
        "flag": pa.array([True, None, False]),
        "nothing": pa.nulls(3),
        "half": pa.array([1.5, None, 2.0], pa.float16()),
        "float": pa.array([0.1, float("nan"), float("inf")]),
        "single": pa.array([0.1, None, 1e20], pa.float32()),
        "time": pa.array([now, None, now], pa.timestamp("us", "UTC")),
        "date": pa.array([now.date(), None, now.date()]),
        "bytes": pa.array([b"\xff", None, b""]),
        "decimal": pa.array([decimal.Decimal("1.10"), None, None]),
        "list": pa.array([[1, 2], None, []]),
        "struct": pa.array([{"b": 1, "a": "x"}, None, {"b": None, "a": None}]),
        "json": json_array([{"b": 1, "a": [1.0]}, None, "x"]),
    }
    table = pa.table(columns)
    check_writing(table)
    check_writing(table.slice(1))
    check_writing(pa.concat_tables([table.slice(2), table.slice(0, 1)] * 40))


@pytest.mark.parametrize(
    ("block", "form"),
    [
        (b'{"a":"x"}\n', AS_WRITTEN),
        (b'{"a":"x"}', AS_WRITTEN),  # but for the newline
        (b'{"a":"x"}\r\n', UNTIDY),
        (b'{"a":"x"}\n\n', 0),
        (b'{"a": "x"}\n', UNTIDY),
        (b'{"a":"x","b":"y"}\n{"a":"x","b":null}\n', AS_WRITTEN),
        (b'{"a":"x","b":"y"}\n{"b":"x","a":"y"}\n', 0),
        (b'{"a":"x","b":"y"}\n{"a":"x"}\n', 0),
        (b'{"a":"x"}\n{"a":"x","b":"y"}\n', 0),
        (b'{"a":"\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u000b\\u001f\x7f"}\n', AS_WRITTEN),
        (b'{"a":"\\/"}\n', UNTIDY),
        (b'{"a":"\\u001F"}\n', UNTIDY),
        (b'{"a":"\\u000a"}\n', UNTIDY),
        (b'{"a":"\\u0020"}\n', UNTIDY),
        (b'{"\\u00e9":"x"}\n', UNTIDY),
        ('{"é":"ü"}\n'.encode(), AS_WRITTEN),
        (b'{"a":1,"b":1.5,"c":true,"d":null,"e":{"x":[1,2]}}\n', AS_WRITTEN),
        (b'{"a":1}\n{"a":1.5}\n', 0),
        (b'{"a":1e3}\n', 0),
        (b'{"a":-0}\n', 0),
        (b'{"a":9007199254740993}\n', 0),  # beside floats of other blocks it would be JSON
        (b'{"a":{"x": 1}}\n', UNTIDY),
        (b'{"a": {"x": 1, "y": "\\u00e9 \\""}}\n', UNTIDY),
        (b'{"a":{"x": 1,"x":2}}\n', 0),
        (b'{"a": "\\ud83d\\ude00"}\r\n', UNTIDY),
        (b'{"a": "x"}\n\n', 0),
        (b'{"a": "x"}', UNTIDY),
    ],
)
def test_lines_that_would_be_written_just_so_are_known(block: bytes, form: int) -> None:
    table, found = jsonl.parse_block_natively(block, 0)
    assert table is not None
    assert (found() if found else 0) == form
    check_reading(block)


def test_positions_are_those_of_the_lines() -> None:
    block = b'\n{"a":"x"}\n\n {"a":"y"}\n'
    table, _ = jsonl.parse_block_natively(block, 100, None)
    assert table is not None
    assert table.column(POSITION).to_pylist() == [101, 112]
    assert orjson.loads(block[12:].split(b"\n")[0]) == {"a": "y"}


@given(st.lists(text | st.none(), min_size=1), st.integers(0, 9))
def test_lines_as_python_writes_them_need_only_be_tidied(texts: list[str | None], form: int) -> None:
    rows = [{"id": number, "text": text, 'q"é': "x", "meta": {"k": [text, {}]}} for number, text in enumerate(texts)]
    block = b"".join(line_of(row, form) + b"\n" for row in rows)
    _, found = jsonl.parse_block_natively(block, 0)
    assert found
    assert found()
    check_reading(block)


@given(st.binary(max_size=40) | text.map(lambda some: json.dumps(some)[:-1].encode()))
def test_what_is_no_json_is_never_longer_when_it_is_tidied(raw: bytes) -> None:
    assert -1 <= kernels.tidy_json(bytearray(raw)) <= len(raw)
    assert kernels.tidy_json(bytearray(b'"' + raw.replace(b'"', b""))) == -1


@given(st.lists(st.tuples(st.binary(max_size=6).map(lambda raw: raw.replace(b"\n", b" ")), st.booleans())), st.data())
def test_lines_are_kept_in_any_pieces(lines: list[tuple[bytes, bool]], data: st.DataObject) -> None:
    bits = pa.array([kept for _, kept in lines], pa.bool_()).buffers()[1]
    bits, rows, row, found = bits or pa.py_buffer(b""), len(lines), 0, b""
    while row < rows:
        upto = data.draw(st.integers(row + 1, rows))
        block = bytearray(b"".join(line + b"\n" for line, _ in lines[row:upto]))
        size, row = kernels.keep_lines(block, bits, rows, row)
        assert row == upto
        found += block[:size]
    assert found == b"".join(line + b"\n" for line, kept in lines if kept)
    assert kernels.keep_lines(bytearray(b"\n"), bits, rows, rows)[0] == -1
    assert kernels.keep_lines(bytearray(b"x"), None, rows + 1, rows)[0] == -1


WRONG = ["80", "c0 80", "c1 bf", "c2", "e0 9f bf", "e1 80", "ed a0 80", "f0 8f bf bf", "f1 80 80", "f4 90 80 80"]
WRONG += ["f5 80 80 80", "ff", "c2 80 80", "e1 80 80 80", "ef bf c2 80"]
RIGHT = ["7f", "c2 80", "df bf", "e0 a0 80", "ed 9f bf", "ee 80 80", "ef bf bf", "f0 90 80 80", "f4 8f bf bf"]


@pytest.mark.skipif(kernels is None, reason="needs the C extension")
@pytest.mark.parametrize("sound", [True, False])
def test_text_that_is_not_utf8_is_found_wherever_it_stands(sound: bool) -> None:
    for piece in map(bytes.fromhex, RIGHT if sound else WRONG):
        for before in range(140):
            for after in (b"", b" ", "é".encode() * 70):
                raw = "é".encode() + b"x" * before + piece + after
                found = kernels.json_columns(b'{"a":"' + raw + b'"}')
                assert (found and bytes(found[0][0][2])) == (raw if sound else None), raw
