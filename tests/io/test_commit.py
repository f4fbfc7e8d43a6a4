"""Fragments and commits: names, modes, retries, crashes; and how formats put fragments together."""

import errno
import gzip
import json
import os
import pickle
import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.batch import DocumentBatch
from gristmill.core.errors import ColumnError, InputError, PlanError
from gristmill.core.table import JSON, POSITION, rows_to_table
from gristmill.core.task import GatherTask, Lineage
from gristmill.io.commit import CommitFiles, Fragment, WriteFragments, joint_schema, next_generation, safe
from gristmill.io.target import Target
from gristmill.io.write_jsonl import JsonlFormat, blocks, encode
from gristmill.io.write_parquet import ParquetFormat, row_bytes, row_groups

PARTITION = "web-0123abcd"


def batches(rows, cuts=(), partition=PARTITION, source="s"):
    """The rows as a reader would give them, cut into blocks at `cuts`."""
    edges = [0, *sorted(cuts), len(rows)]
    for index, (start, end) in enumerate(pairwise(edges)):
        if start < end:
            table = rows_to_table(rows[start:end])
            positions = pa.array(range(start, end), pa.int64())
            table = table.append_column(POSITION, positions) if table.num_columns else pa.table({POSITION: positions})
            metadata = {"partition": partition} if partition else {}
            batch = DocumentBatch(table, metadata=metadata, dataset_name="web")
            yield batch.named(Lineage(f"{source}.{index}", source))


def gathered(fragments, source="s"):
    return GatherTask(list(fragments)).named(Lineage(source, source))


class Writer:
    """The two stages of a writer, driven by hand."""

    def __init__(self, path, form=None, fields=None, mode="ignore", prepare=True):
        self.write = WriteFragments(Target(path), form or JsonlFormat(), fields, mode)
        self.commit = CommitFiles(Target(path), form or JsonlFormat(), fields, mode)
        for stage in (self.write, self.commit) if prepare else ():
            stage.check()
            stage.prepare({})

    def fragments(self, rows, cuts=(), partition=PARTITION, source="s"):
        found = []
        for batch in batches(rows, cuts, partition, source):
            found.append(self.write.process(batch).named(batch.lineage))
        return found

    def run(self, rows, cuts=(), partition=PARTITION, source="s"):
        return self.commit.process(gathered(self.fragments(rows, cuts, partition, source), source))


def tree(path):
    """Every file below a directory and what it holds."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(Path(path).rglob("*")) if p.is_file()}


ROWS = [{"id": i, "text": f"row {i}"} for i in range(10)]
LINES = b"".join(orjson.dumps(row) + b"\n" for row in ROWS)


# -- names ---------------------------------------------------------------------------------------------------


def test_the_partition_names_the_file_and_rows_are_counted(tmp_path):
    written = Writer(tmp_path).run(ROWS, [3, 7])
    assert written.data == [f"{tmp_path}/{PARTITION}.jsonl"]
    assert written.num_items == 10
    assert written.dataset_name == "web"
    assert tree(tmp_path) == {f"{PARTITION}.jsonl": LINES}
    assert not (tmp_path / "_tmp").exists()


def test_a_source_without_partition_is_named_by_its_id(tmp_path):
    written = Writer(tmp_path).run(ROWS, partition=None, source="0.12")
    assert Path(written.data[0]).name == "task-0.12.jsonl"


@pytest.mark.parametrize("name", ["../up", "a/b", "héllo", "", ".hidden", "x" * 500, "a b"])
def test_names_are_safe_and_stay_apart(name):
    clean = safe(name)
    assert "/" not in clean
    assert not clean.startswith((".", "_", "-"))
    assert len(clean) < 200
    assert clean == safe(name)
    assert safe(name + "?") != safe(name + "!")


def test_a_fragment_crosses_processes(tmp_path):
    (fragment,) = Writer(tmp_path).fragments([{"a": {"b": 1}}])
    again = pickle.loads(pickle.dumps(fragment))
    assert again.schema.equals(pa.schema([("a", JSON)]))
    assert again.num_items == 1
    assert isinstance(again, Fragment)


def test_stages_cross_processes(tmp_path):
    writer = Writer(tmp_path)
    writer.write, writer.commit = pickle.loads(pickle.dumps((writer.write, writer.commit)))
    writer.run(ROWS, [5])
    assert tree(tmp_path) == {f"{PARTITION}.jsonl": LINES}


# -- target size ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 23, 24, 25, 47, 48, 100, 239, 240, 10_000])
@pytest.mark.parametrize("cuts", [(), (1,), (5,), (2, 4, 9)])
def test_files_are_cut_at_rows_by_their_bytes(tmp_path, most, cuts):
    written = Writer(tmp_path, JsonlFormat(target_file_size=most)).run(ROWS, cuts)
    assert [Path(path).name for path in written.data] == [f"{PARTITION}-{i:05}.jsonl" for i in range(len(written.data))]
    contents = [Path(path).read_bytes() for path in written.data]
    assert b"".join(contents) == LINES
    for content, following in pairwise(contents):
        assert len(content) <= most or content.count(b"\n") == 1
        assert len(content) + following.index(b"\n") + 1 > most
    assert len(tree(tmp_path)) == len(contents)


def test_a_row_larger_than_the_read_window(tmp_path):
    rows = [{"t": "a"}, {"t": "b" * 3_000_000}, {"t": "c"}]
    written = Writer(tmp_path, JsonlFormat(target_file_size=100)).run(rows, [2])
    assert [len(Path(path).read_bytes()) for path in written.data] == [10, 3_000_009, 10]


# -- modes ---------------------------------------------------------------------------------------------------


def test_making_a_writer_touches_nothing(tmp_path):
    Writer(tmp_path / "out", mode="overwrite", prepare=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("ignore", {"notes.txt", "old.jsonl", "old.jsonl.gz", "sub/deep.jsonl"}),
        ("overwrite", {"notes.txt", "sub/deep.jsonl"}),
        ("append", {"notes.txt", "old.jsonl", "old.jsonl.gz", "sub/deep.jsonl"}),
    ],
)
def test_modes_and_files_of_others(tmp_path, mode, left):
    for name in ("notes.txt", "old.jsonl", "old.jsonl.gz", "sub/deep.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    written = Writer(tmp_path, mode=mode).run(ROWS)
    assert set(tree(tmp_path)) == left | {Path(written.data[0]).name}
    assert all(tree(tmp_path)[name] == b"old" for name in left)


def test_ignore_replaces_its_own_files(tmp_path):
    Writer(tmp_path).run(ROWS)
    Writer(tmp_path).run(ROWS[:1])
    assert tree(tmp_path) == {f"{PARTITION}.jsonl": LINES[:24]}


def test_ignore_leaves_no_stale_part_of_an_earlier_run(tmp_path):
    small, large = JsonlFormat(target_file_size=50), JsonlFormat(target_file_size=150)
    assert len(Writer(tmp_path, small).run(ROWS).data) == 5
    written = Writer(tmp_path, large).run(ROWS)
    assert set(tree(tmp_path)) == {Path(path).name for path in written.data}
    Writer(tmp_path).run(ROWS)
    assert tree(tmp_path) == {f"{PARTITION}.jsonl": LINES}
    Writer(tmp_path, large).run(ROWS)
    assert b"".join(tree(tmp_path).values()) == LINES


def test_append_never_replaces(tmp_path):
    names = [Path(Writer(tmp_path, mode="append").run(ROWS).data[0]).name for _ in range(3)]
    assert names == [f"{PARTITION}.jsonl", f"{PARTITION}-g2.jsonl", f"{PARTITION}-g3.jsonl"]
    parts = Writer(tmp_path, JsonlFormat(target_file_size=150), mode="append").run(ROWS).data
    assert [Path(path).name for path in parts] == [f"{PARTITION}-g4-00000.jsonl", f"{PARTITION}-g4-00001.jsonl"]
    assert len(tree(tmp_path)) == 5


@pytest.mark.parametrize(
    ("names", "suffix"),
    [([], ""), (["a.jsonl"], "-g2"), (["a-g9.jsonl.gz", "b-g10-00001.jsonl"], "-g11"), (["a-g2x.jsonl"], "-g2")],
)
def test_generations(names, suffix):
    assert next_generation(names) == suffix


def test_error_refuses_a_directory_with_data(tmp_path):
    Writer(tmp_path, mode="error").run(ROWS)
    with pytest.raises(InputError, match=r"write_jsonl.*web-0123abcd\.jsonl.*overwrite"):
        Writer(tmp_path, mode="error")
    Writer(tmp_path, ParquetFormat(), mode="error").run(ROWS)  # files of another format do not count


def test_an_output_that_is_a_file_is_a_plan_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(PlanError, match="is a file"):
            Writer(tmp_path / path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_without_permission_is_a_plan_error(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PlanError, match="permission"):
        Writer(tmp_path / "locked" / "out")


def test_relative_paths_are_resolved_where_the_stage_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = Writer("out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert writer.run(ROWS).data == [f"{tmp_path}/out/{PARTITION}.jsonl"]


# -- retries and crashes -------------------------------------------------------------------------------------


def test_a_fragment_may_be_written_twice(tmp_path):
    writer = Writer(tmp_path)
    writer.fragments(ROWS, [5])
    writer.run(ROWS, [5])
    assert tree(tmp_path) == {f"{PARTITION}.jsonl": LINES}


@pytest.mark.parametrize("cuts", [(), (5,)])
@pytest.mark.parametrize("form", [JsonlFormat(), JsonlFormat(target_file_size=50), ParquetFormat()])
def test_a_commit_may_be_repeated_after_it_was_done(tmp_path, form, cuts):
    writer = Writer(tmp_path, form)
    task = gathered(writer.fragments(ROWS, cuts))
    first = writer.commit.process(task)
    before = tree(tmp_path)
    assert writer.commit.process(task) == first
    assert tree(tmp_path) == before
    assert not (tmp_path / "_tmp").exists()


@pytest.mark.parametrize(
    "form", [JsonlFormat(), JsonlFormat(target_file_size=50), JsonlFormat("gzip"), ParquetFormat()]
)
@pytest.mark.parametrize("steps", range(12))
def test_a_commit_that_stops_anywhere_is_completed_by_the_next(tmp_path, monkeypatch, form, steps):
    rows = [*ROWS, {"id": 1.5, "late": True}]
    expected = tree(Path(Writer(tmp_path / "whole", form).run(rows, [4, 8]).data[0]).parent)
    writer = Writer(tmp_path / "out", form)
    task = gathered(writer.fragments(rows, [4, 8]))
    calls = iter(range(100))

    def stop(method):
        def call(*args, **kwargs):
            if next(calls) >= steps:  # from here on nothing is done any more, not even cleaning up
                raise KeyboardInterrupt
            return method(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop(Path.replace))
        patch.setattr(Path, "unlink", stop(Path.unlink))
        try:
            writer.commit.process(task)
        except KeyboardInterrupt:
            for name in tree(tmp_path / "out"):
                assert name.startswith("_tmp/") or expected[name] == tree(tmp_path / "out")[name]
    assert writer.commit.process(task).num_items == 11
    assert tree(tmp_path / "out") == expected
    assert not (tmp_path / "out" / "_tmp").exists()


def test_fragments_that_vanished_are_an_error_and_not_an_empty_file(tmp_path):
    writer = Writer(tmp_path)
    task = gathered(writer.fragments(ROWS))
    Path(task.data[0].data).unlink()
    with pytest.raises(OSError, match=r"commit_jsonl.*deleted"):
        writer.commit.process(task)


def test_a_new_run_sweeps_what_a_killed_one_left(tmp_path):
    pid = os.fork()
    if pid == 0:
        Writer(tmp_path).fragments(ROWS, [5])
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(tree(tmp_path)) == 2
    running = Writer(tmp_path)
    pending = running.fragments(ROWS, source="other", partition="other-00000000")
    Writer(tmp_path).run(ROWS)
    assert len(tree(tmp_path)) == 2  # the new file, and the fragment of the run that still goes on
    running.commit.process(gathered(pending, "other"))
    assert set(tree(tmp_path)) == {f"{PARTITION}.jsonl", "other-00000000.jsonl"}


def test_overwrite_sweeps_all_temporary_files(tmp_path):
    (tmp_path / "_tmp" / "elsewhere-1-abcd").mkdir(parents=True)
    (tmp_path / "_tmp" / "elsewhere-1-abcd" / "x").write_text("half")
    (tmp_path / "_tmp" / "stray").write_text("half")
    Writer(tmp_path, mode="overwrite").run(ROWS)
    assert tree(tmp_path) == {f"{PARTITION}.jsonl": LINES}


class FullDisk(JsonlFormat):
    def write_fragment(self, table, file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    def _fill(self, file, spans, target):
        self.write_fragment(None, file)


def test_a_full_disk_names_stage_and_path_and_leaves_no_file(tmp_path):
    with pytest.raises(OSError, match=r"write_jsonl.*No space left.*_tmp.*Make room") as caught:
        Writer(tmp_path, FullDisk()).run(ROWS)
    assert caught.value.errno == errno.ENOSPC
    assert tree(tmp_path) == {}
    writer = Writer(tmp_path)
    task = gathered(writer.fragments(ROWS, [5]))
    with pytest.raises(OSError, match=r"commit_jsonl.*No space left.*web-0123abcd"):
        CommitFiles(Target(tmp_path), FullDisk()).process(task)
    assert all(name.startswith("_tmp/") for name in tree(tmp_path))
    writer.commit.process(task)
    assert tree(tmp_path) == {f"{PARTITION}.jsonl": LINES}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_pyarrow_errors_name_the_path_too(tmp_path, monkeypatch):
    monkeypatch.setattr("gristmill.io.target._open_new", lambda path: Path.open(Path("/dev/full"), "wb"))
    with pytest.raises(OSError, match=r"write_parquet.*No space left"):
        Writer(tmp_path, ParquetFormat()).run([{"t": random.randbytes(50_000).hex()}])


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
    assert joint_schema(fragments) == pa.schema([("a", JSON), ("b", pa.int64())])


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
    row = json.loads(b"".join(encode(table)))
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
    assert [len(block) for block in blocks(chunks)] == [2**20] * 3 + [sum(map(len, chunks)) - 3 * 2**20]


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
    form = ParquetFormat(row_group_size=100)
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
