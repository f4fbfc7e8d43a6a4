"""JsonlWriter and ParquetWriter: the same bytes for every way to cut the input, options, round trips."""

import json
import math
import re
import shutil
import tempfile
from pathlib import Path

import fsspec
import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.core.arrow.table_conversion import rows_to_table, table_to_rows
from gristmill.core.plan.planner import decompose
from gristmill.core.stage_roles import CommitStage, RunStateRole, WriterRole
from gristmill.core.task import Lineage, WrittenFiles
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.samples.batch import DocumentBatch
from gristmill.text.write import JsonlWriter, ParquetWriter
from tests.io.fragment_writing import PARTITION, ROWS, batches, gathered, tree


def write(writer, rows, cuts=(), source="s"):
    """Run a writer's stages by hand on rows that were read in blocks."""
    fragments, commit = decompose([writer])
    for stage in (fragments, commit):
        stage.check()
        if isinstance(stage, RunStateRole):
            stage.prepare_run({})
    parts = [fragments.process(batch).named(batch.lineage) for batch in batches(rows, cuts, source=source)]
    return commit.process(gathered(parts, source))


def rows_of(path):
    return [orjson.loads(line) for line in Path(path).read_bytes().splitlines()]


# -- the promise ---------------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30]),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, 2.0**53, 1e16, 1e300]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["a", "b", "c", 'q"\\', "é\n", ""])
ROW = st.dictionaries(NAMES, VALUES, max_size=5)
NUMBER_ROW = st.dictionaries(st.sampled_from(["a", "b"]), st.one_of(st.none(), NUMBERS), max_size=2)
WRITERS = [
    JsonlWriter,
    lambda path: JsonlWriter(path, target_file_size=60),
    lambda path: JsonlWriter(path, compression="gzip"),
    lambda path: JsonlWriter(path, write_kwargs={"sort_keys": True}),
    lambda path: JsonlWriter(path, fields=["b", "z", "a"]),
    lambda path: JsonlWriter(path, one_schema=True),
    ParquetWriter,
    lambda path: ParquetWriter(path, nested="json"),
    lambda path: ParquetWriter(path, target_file_size=700, write_kwargs={"row_group_size": 3}),
]


@pytest.mark.parametrize("make", WRITERS)
@given(
    rows=st.lists(ROW, min_size=1, max_size=12) | st.lists(NUMBER_ROW, min_size=1, max_size=8),
    cuts=st.sets(st.integers(1, 11)),
)
@example(rows=[{"a": 1, "b": "x"}, {"a": 1.5}, {"b": {"k": 2**70}, "c": True}], cuts={1, 2})
@example(rows=[{"": math.inf}, {"": []}], cuts={1})
@settings(max_examples=40, deadline=None)
def test_the_bytes_do_not_depend_on_the_cuts(make, rows, cuts):
    rows = [{"z": index, **row} for index, row in enumerate(rows)]
    rows[-1] |= {"a": rows[-1].get("a"), "b": rows[-1].get("b")}
    folder = Path(tempfile.mkdtemp())
    try:
        outputs = []
        for some in [(), [cut for cut in cuts if cut < len(rows)], range(1, len(rows))]:
            written = write(make(str(folder / "out")), rows, some)
            outputs.append(tree(folder / "out"))
            assert written.num_items == len(rows)
            assert len(outputs[-1]) == len(written.data)
            shutil.rmtree(folder / "out")
        assert outputs[1] == outputs[0]
        assert outputs[2] == outputs[0]
    finally:
        shutil.rmtree(folder)


@given(rows=st.lists(ROW.filter(bool), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_jsonl_read_and_written_again_is_the_same(rows):
    folder = Path(tempfile.mkdtemp())
    try:
        first = Path(write(JsonlWriter(folder / "1"), rows, range(1, len(rows))).data[0])
        again = [json.loads(line) for line in first.read_bytes().split(b"\n")[:-1]]
        second = Path(write(JsonlWriter(folder / "2"), again).data[0])
        assert second.read_bytes() == first.read_bytes()
    finally:
        shutil.rmtree(folder)


def test_nested_objects_big_integers_and_key_order_survive(tmp_path):
    rows = [
        {"id": 2**63 - 1, "meta": {"z": [1, {"y": None, "x": 1.0}], "a": {}}, "big": 2**100},
        {"id": -(2**63), "meta": [], "big": 5},
    ]
    path = write(JsonlWriter(tmp_path), rows, [1]).data[0]
    assert Path(path).read_bytes().splitlines() == [
        b'{"id":9223372036854775807,"meta":{"z":[1,{"y":null,"x":1.0}],"a":{}},"big":1267650600228229401496703205376}',
        b'{"id":-9223372036854775808,"meta":[],"big":5}',
    ]


def test_parquet_round_trip(tmp_path):
    rows = [{"id": 1, "meta": {"z": 1, "a": [2**70]}, "mix": 1}, {"id": 2, "meta": None, "mix": "x"}]
    path = write(ParquetWriter(tmp_path, nested="json"), rows, [1]).data[0]
    assert table_to_rows(pq.read_table(path)) == rows


# -- the stages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writer", "names"),
    [(JsonlWriter, ["write_jsonl", "commit_jsonl"]), (ParquetWriter, ["write_parquet", "commit_parquet"])],
)
def test_a_writer_is_two_stages(tmp_path, writer, names):
    fragments, commit = decompose([writer(str(tmp_path))])
    assert [fragments.name, commit.name] == names
    assert isinstance(fragments, WriterRole)
    assert isinstance(commit, CommitStage)


def test_settings_reach_the_stages(tmp_path):
    writer = JsonlWriter(tmp_path).with_({"write_jsonl": {"num_workers": 3}})
    assert [stage.num_workers for stage in decompose([writer])] == [3, None]


def test_arguments_are_kept_and_nothing_happens_yet(tmp_path):
    writer = ParquetWriter(str(tmp_path / "x"), ["a"], {"version": "2.6"}, "overwrite", "1MB", "snappy", {"k": 1})
    assert vars(writer) == {
        "path": str(tmp_path / "x"),
        "fields": ["a"],
        "write_kwargs": {"version": "2.6"},
        "mode": "overwrite",
        "target_file_size": "1MB",
        "compression": "snappy",
        "storage_options": {"k": 1},
        "schema": None,
        "nested": "structs",
        "file_extension": None,
        "split": None,
    }
    decompose([writer])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("writer", "arguments", "message"),
    [
        (
            JsonlWriter,
            {"mode": "overwritten"},
            "JsonlWriter: mode is 'overwritten', must be one of: ",
        ),
        (JsonlWriter, {"compression": "gz"}, "compression is 'gz'"),
        (JsonlWriter, {"compression": "zst"}, "Did you mean 'zstd'"),
        (JsonlWriter, {"write_kwargs": {"sort_key": True}}, "Did you mean 'sort_keys'"),
        (JsonlWriter, {"write_kwargs": {"orient": "split"}}, "can only be 'records'"),
        (JsonlWriter, {"write_kwargs": {"compression_level": 3}}, "gzip"),
        (JsonlWriter, {"target_file_size": "big"}, "size"),
        (JsonlWriter, {"target_file_size": 0}, "size"),
        (ParquetWriter, {"write_kwargs": {"use_dictionnary": False}}, "Did you mean 'use_dictionary'"),
        (ParquetWriter, {"write_kwargs": {"row_group_size": 0}}, "row_group_size"),
        (ParquetWriter, {"compression": "zstdd"}, "Did you mean 'zstd'"),
    ],
)
def test_wrong_arguments(tmp_path, writer, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        writer(tmp_path, **arguments)


def test_fields_are_a_list(tmp_path):
    with pytest.raises(TypeError, match="list of names"):
        JsonlWriter(tmp_path, fields="text")


def test_pandas_habits_are_taken(tmp_path):
    write(JsonlWriter(tmp_path, write_kwargs={"lines": True, "orient": "records", "force_ascii": False}), [{"t": "é"}])
    assert next(iter(tree(tmp_path).values())) == '{"t":"é"}\n'.encode()
    path = write(ParquetWriter(tmp_path, write_kwargs={"index": False, "compression": "snappy"}), ROWS).data[0]
    assert pq.read_metadata(path).row_group(0).column(0).compression == "SNAPPY"


@pytest.mark.parametrize(("kind", "extension"), [(None, ""), ("gzip", ".gz"), ("zstd", ".zst")])
def test_compression_is_in_the_name(tmp_path, kind, extension):
    path = write(JsonlWriter(tmp_path, compression=kind), ROWS).data[0]
    assert path.endswith(f"{PARTITION}.jsonl{extension}")
    with fsspec.open(path, "rb", compression="gzip" if kind == "gzip" else None) as file:
        assert kind == "zstd" or [orjson.loads(line) for line in file] == ROWS


def test_keys_are_sorted_if_asked(tmp_path):
    path = write(JsonlWriter(tmp_path, write_kwargs={"sort_keys": True}), [{"b": 1, "a": 2}, {"0": 3}], [1]).data[0]
    assert Path(path).read_bytes() == b'{"0":null,"a":2,"b":1}\n{"0":3,"a":null,"b":null}\n'


def test_what_is_written_can_be_read_as_input(tmp_path):
    written = write(JsonlWriter(tmp_path, storage_options={"auto_mkdir": True}), ROWS, [2])
    assert isinstance(written, WrittenFiles)
    assert written.files() == (f"{tmp_path}/{PARTITION}.jsonl",)
    assert rows_of(written.data[0]) == ROWS


# -- other file systems ----------------------------------------------------------------------------------------


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.mark.parametrize("make", WRITERS)
def test_an_object_store_gets_the_same_bytes(tmp_path, memory, make):
    rows = [{"a": 1, "b": "x"}, {"a": 1.5}, {"b": {"k": 1}, "z": True}] * 5
    local = write(make(f"file://{tmp_path}"), rows, [1, 5])
    remote = write(make("memory://bucket/out"), rows, [1, 5])
    assert [path.rpartition("/")[2] for path in remote.data] == [path.rpartition("/")[2] for path in local.data]
    assert remote.data[0].startswith("memory://bucket/out/")
    assert [memory.cat(path) for path in remote.data] == [Path(path).read_bytes() for path in local.data]
    assert len(memory.find("/bucket")) == len(remote.data)


def test_modes_on_an_object_store(memory):
    write(JsonlWriter("memory://out"), ROWS)
    with pytest.raises(Exception, match="already has"):
        write(JsonlWriter("memory://out", mode="error"), ROWS)
    assert write(JsonlWriter("memory://out", mode="append"), ROWS).data == [f"memory://out/{PARTITION}-g2.jsonl"]
    memory.pipe("/out/notes.txt", b"mine")
    write(JsonlWriter("memory://out", mode="overwrite"), ROWS)
    assert memory.find("/out") == ["/out/notes.txt", f"/out/{PARTITION}.jsonl"]
    with pytest.raises(Exception, match="is a file"):
        write(JsonlWriter(f"memory://out/{PARTITION}.jsonl"), ROWS)


def test_an_upload_that_fails_leaves_nothing(memory):
    def half(file):
        file.write(b"half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"), OutputDirectory("memory://out").create("memory://out/half") as file:
        half(file)
    assert memory.find("/out") == []


def test_a_batch_without_partition_or_position(tmp_path):
    fragments, commit = decompose([JsonlWriter(tmp_path)])
    batch = DocumentBatch(rows_to_table(ROWS)).named(Lineage("0", "0"))
    written = commit.process(gathered([fragments.process(batch)], "0"))
    assert written.data == [f"{tmp_path}/task-0.jsonl"]


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_an_empty_path(writer):
    with pytest.raises(ValueError, match="path is empty"):
        writer("")
