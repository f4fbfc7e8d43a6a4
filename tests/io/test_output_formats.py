"""How formats put fragments together: columns, schemas that differ, bytes and row groups."""

import gzip
import json
import random
from datetime import UTC, date, datetime, time
from decimal import Decimal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.arrow.table_conversion import JSON, MIXED, POSITION, rows_to_table
from gristmill.core.errors import ColumnError
from gristmill.core.task import Lineage
from gristmill.io.write.commit import joint_schema
from gristmill.io.write.jsonl_format import JsonlFormat, encode_lines, equal_blocks
from gristmill.io.write.output_schema import AS_JSON
from gristmill.io.write.parquet_format import ParquetFormat, row_bytes, row_groups
from gristmill.samples.batch import DocumentBatch
from tests.io.fragment_writing import PARTITION, ROWS, Writer, batches, gathered, tree

# -- columns -------------------------------------------------------------------------------------------------


def test_the_frameworks_column_is_never_written_and_similar_ones_are(tmp_path):
    table = pa.table({"a": [1], POSITION: [0], "_position": [3], "__position__2": [4], "b": [2]})
    writer = Writer(tmp_path)
    fragment = writer.write.process(DocumentBatch(table).named(Lineage("s.0", "s")))
    writer.commit.process(gathered([fragment]))
    assert list(tree(tmp_path).values()) == [b'{"a":1,"_position":3,"__position__2":4,"b":2}\n']


def test_columns_of_stages_come_after_those_that_a_reader_finds_late(tmp_path):
    def with_score(batch):
        return batch.with_data(batch.data.append_column("score", pa.array([0.5] * batch.num_items)))

    rows = [{"a": 1}, {"a": 2}, {"late": 3, "a": 4}]
    outputs = []
    for cuts in [(), (1,), (2,), (1, 2)]:
        writer = Writer(tmp_path)
        fragments = [writer.write.process(with_score(batch)) for batch in batches(rows, cuts)]
        writer.commit.process(gathered(fragments))
        outputs.append(tree(tmp_path))
    assert outputs[0] == {
        f"{PARTITION}.jsonl": b'{"a":1,"late":null,"score":0.5}\n'
        b'{"a":2,"late":null,"score":0.5}\n'
        b'{"a":4,"late":3,"score":0.5}\n'
    }
    assert all(output == outputs[0] for output in outputs)


def test_columns_of_a_batch_whose_rows_were_dropped_still_count(tmp_path):
    writer = Writer(tmp_path)
    kept, dropped = batches([{"a": 1}, {"a": 1.5, "b": "x"}], [1])
    fragments = [writer.write.process(kept), writer.write.process(dropped.slice(0, 0))]
    writer.commit.process(gathered(fragments))
    assert list(tree(tmp_path).values()) == [b'{"a":1.0,"b":null}\n']


def test_no_rows_no_file(tmp_path):
    writer = Writer(tmp_path)
    writer.run(ROWS)
    (batch,) = batches(ROWS)
    written = writer.commit.process(gathered([writer.write.process(batch.slice(0, 0))]))
    assert (written.data, written.num_items) == ([], 0)
    assert tree(tmp_path) == {}
    assert writer.commit.process(gathered([])).data == []


def test_fields_select_and_order(tmp_path):
    Writer(tmp_path, fields=["text", "id"]).run(ROWS[:1])
    assert list(tree(tmp_path).values()) == [b'{"text":"row 0","id":0}\n']


def test_a_field_may_appear_late_but_not_never(tmp_path):
    Writer(tmp_path, fields=["late", "id"]).run([{"id": 1}, {"id": 2, "late": 3}], [1])
    assert list(tree(tmp_path).values()) == [b'{"late":null,"id":1}\n{"late":3,"id":2}\n']
    with pytest.raises(ColumnError, match=r"commit_jsonl.*'txet'.*id, text.*Did you mean 'text'"):
        Writer(tmp_path, fields=["id", "txet"]).run(ROWS)


def test_a_table_may_be_encoded_and_carry_metadata(tmp_path):
    words = pa.array(["a", "b", "a"])
    schema = pa.schema([pa.field("w", pa.string(), metadata={"k": "v"})], metadata={"pandas": "x"})
    for index, table in enumerate([pa.table([words], schema=schema), pa.table({"w": words.dictionary_encode()})]):
        writer = Writer(tmp_path / str(index), ParquetFormat())
        fragment = writer.write.process(DocumentBatch(table, metadata={"partition": "p"}).named(Lineage("s.0", "s")))
        writer.commit.process(gathered([fragment]))
    assert tree(tmp_path / "0") == tree(tmp_path / "1")


# -- schemas that differ -------------------------------------------------------------------------------------

MIXES = [
    ([1, 1.5], b"1.0 1.5"),
    ([2**53 + 1, 1.5], b"9007199254740993 1.5"),
    ([2.0, 2**60, 1.5], b"2 1152921504606846976 1.5"),
    ([1, 1.5, "x"], b'1 1.5 "x"'),
    ([1.0, True], b"1 true"),
    ([1, True], b"1 true"),
    ([None, 3, None], b"null 3 null"),
    ([1, 2**70], b"1 1180591620717411303424"),
    ([{"b": 1.0, "a": [2**70]}, 1.0, None], b'{"b":1.0,"a":[1180591620717411303424]} 1 null'),
    ([-0.0, "x"], b'-0.0 "x"'),
    ([float("nan"), 1, "x"], b'null 1 "x"'),
    ([float("inf"), 2], b"null 2.0"),
    (["a", ["b"]], b'"a" ["b"]'),
]


@pytest.mark.parametrize(("values", "expected"), MIXES)
@pytest.mark.parametrize("form", [JsonlFormat(), ParquetFormat()])
def test_values_of_many_types_are_written_as_one_block_would_be(tmp_path, form, values, expected):
    rows = [{"n": index, "v": value} for index, value in enumerate(values)]
    outputs = []
    for cuts in [(), (1,), (2,), (1, 2)]:
        Writer(tmp_path, form).run(rows, [cut for cut in cuts if cut < len(rows)])
        outputs.append(tree(tmp_path))
    assert all(output == outputs[0] for output in outputs)
    if form.name == "jsonl":
        lines = outputs[0][f"{PARTITION}.jsonl"].splitlines()
        assert b" ".join(line.partition(b'"v":')[2][:-1] for line in lines) == expected


def test_text_is_kept_to_the_byte_when_lines_are_built_anew(tmp_path):
    odd = ['{"a": 1.10,  "a":2}', " [1e400 , 123456789012345678901234567890] ", '"\\u00e9"', None, "{\n}", "\t1\n"]
    table = pa.table({"j": pa.ExtensionArray.from_storage(JSON, pa.array(odd)), "n": range(6)})
    writer = Writer(tmp_path)
    first = writer.write.process(DocumentBatch(rows_to_table([{"n": 0.5}])).named(Lineage("s.0", "s")))
    second = writer.write.process(DocumentBatch(table).named(Lineage("s.1", "s")))
    writer.commit.process(gathered([first, second]))
    lines = next(iter(tree(tmp_path).values())).decode().splitlines()
    assert lines[0] == '{"n":0.5,"j":null}'
    assert lines[1:] == [
        f'{{"n":{number}.0,"j":{"null" if text is None else text.replace(chr(10), " ").strip()}}}'
        for number, text in enumerate(odd)
    ]


def test_wide_integers_beside_floats_become_json(tmp_path):
    fragments = Writer(tmp_path).fragments([{"a": 2**60, "b": 2**60}, {"a": 0.5, "b": 1}], [1])
    assert joint_schema(fragments) == pa.schema([("a", MIXED), ("b", pa.int64())])


# -- bytes ---------------------------------------------------------------------------------------------------


def test_values_that_json_has_no_type_for(tmp_path):
    table = pa.table(
        {
            "naive": pa.array([datetime(2024, 1, 2, 3, 4, 5)], pa.timestamp("us")),
            "zoned": pa.array([datetime(2024, 1, 2, 3, 4, 5, 678, UTC)], pa.timestamp("us", "Europe/Paris")),
            "fine": pa.array([1], pa.timestamp("ns")),
            "day": [date(2024, 1, 2)],
            "time": [time(3, 4, 5)],
            "money": [Decimal("1.10")],
            "bytes": [b"\x00\xff"],
            "half": pa.array([0.5], pa.float16()),
            "pair": [{"b": Decimal("2.50"), "a": b"x"}],
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "nan": [float("nan")],
        }
    )
    row = json.loads(b"".join(encode_lines(table)))
    assert row == {
        "naive": "2024-01-02T03:04:05",
        "zoned": "2024-01-02T03:04:05.000678Z",
        "fine": "1970-01-01T00:00:00.000000001",
        "day": "2024-01-02",
        "time": "03:04:05.000000",
        "money": "1.10",
        "bytes": "AP8=",
        "half": 0.5,
        "pair": {"b": "2.50", "a": "eA=="},
        "map": [["k", 1]],
        "nan": None,
    }


def test_blocks_have_one_size():
    chunks = [bytes(size) for size in (1, 3_000_000, 0, 5, 2**20)]
    assert [len(block) for block in equal_blocks(chunks)] == [2**20] * 3 + [sum(map(len, chunks)) - 3 * 2**20]


def test_compressed_bytes_do_not_depend_on_the_fragments(tmp_path):
    rows = [{"id": i, "text": random.Random(i).randbytes(100).hex()} for i in range(15_000)]
    for kind, unpack in [("gzip", gzip.decompress), ("zstd", lambda raw: pa.input_stream(raw, "zstd").read())]:
        outputs = []
        for cuts in [(), (1, 777, 10_000)]:
            Writer(tmp_path / kind, JsonlFormat(kind)).run(rows, cuts)
            outputs.append(tree(tmp_path / kind))
        assert outputs[0] == outputs[1]
        (packed,) = outputs[0].values()
        assert len(packed) > 2**20
        if kind == "gzip":
            assert unpack(packed) == b"".join(orjson.dumps(row) + b"\n" for row in rows)
        else:
            path = next((tmp_path / kind).iterdir())
            assert path.name == f"{PARTITION}.jsonl.zst"
            assert pa.input_stream(path, "zstd").read() == b"".join(orjson.dumps(row) + b"\n" for row in rows)


# -- row groups ----------------------------------------------------------------------------------------------


def test_row_groups_end_with_the_row_that_fills_them():
    table = pa.table({"t": ["x" * size for size in (5, 5, 30, 1, 1, 1, 1)]})
    for step in (1, 2, 3, 7):
        pieces = [table.slice(start, step) for start in range(0, 7, step)]
        assert [group.num_rows for group in row_groups(pieces, 10, 3)] == [2, 1, 3, 1]


def test_bytes_of_rows():
    table = pa.table(
        {
            "s": ["abc", None, "", "é"],
            "n": [1, 2, None, 4],
            "l": [["ab", "c"], None, [], ["defg"]],
            "v": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)),
            "p": [{"x": "abc", "y": 1}] * 4,
            "m": pa.array([[("k", "vv")], [], None, []], pa.map_(pa.string(), pa.string())),
            "j": pa.ExtensionArray.from_storage(JSON, pa.array(["[1]", None, "2", "3"])),
            "w": pa.array(["view", None, "", ""], pa.string_view()),
        }
    )
    fixed = 8 + 16 + 11
    assert row_bytes(table).to_pylist() == [fixed + 3 + 3 + 3 + 3 + 4, fixed, fixed + 1, fixed + 2 + 4 + 1]
    assert row_bytes(table.slice(3)).to_pylist() == [fixed + 7]
    assert row_bytes(table.slice(0, 0)).to_pylist() == []


def test_parquet_row_groups_and_json_type(tmp_path):
    rows = [{"id": i, "meta": {"n": i}} for i in range(250)]
    form = ParquetFormat(row_group_size=100, nested=AS_JSON)
    written = Writer(tmp_path, form).run(rows, [7, 130])
    file = pq.ParquetFile(written.data[0])
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [100, 100, 50]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert "JSON" in str(file.schema)
    assert pq.read_table(written.data[0]).schema.field("meta").type == JSON
    assert pq.read_table(written.data[0]).column("id").to_pylist() == list(range(250))


def test_parquet_files_of_a_target_size(tmp_path):
    rows = [{"text": random.Random(i).randbytes(500).hex()} for i in range(400)]
    outputs = []
    for cuts in [(), (13, 200, 201)]:
        written = Writer(tmp_path, ParquetFormat(target_file_size=50_000)).run(rows, cuts)
        outputs.append(tree(tmp_path))
    assert outputs[0] == outputs[1]
    assert len(written.data) > 2
    assert all(50_000 <= len(content) < 110_000 for content in list(outputs[0].values())[:-1])
    assert sum(pq.read_metadata(path).num_rows for path in written.data) == 400


def test_rows_without_columns(tmp_path):
    Writer(tmp_path).run([{}, {}, {"a": 1}], [1])
    assert list(tree(tmp_path).values()) == [b'{"a":null}\n{"a":null}\n{"a":1}\n']
    Writer(tmp_path).run([{}, {}], [1])
    assert list(tree(tmp_path).values()) == [b"{}\n{}\n"]
    with pytest.raises(ColumnError, match="no columns"):
        Writer(tmp_path, ParquetFormat()).run([{}, {}])
