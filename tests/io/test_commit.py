"""Fragments and commits: names, modes, retries and crashes."""

import errno
import os
import pickle
import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.core.arrow.table_conversion import JSON
from gristmill.core.errors import InputError, PlanError
from gristmill.io.storage.output_directory import WRITE_CHUNK_BYTES, OutputDirectory, reserve_space
from gristmill.io.write.commit import CommitFiles, Fragment, next_generation, safe_file_name
from gristmill.io.write.jsonl_format import JsonlFormat
from gristmill.io.write.parquet_format import ParquetFormat
from tests.io.fragment_writing import LINES, PARTITION, ROWS, Writer, gathered, tree

# -- names ---------------------------------------------------------------------------------------------------


def test_the_partition_names_the_file_and_rows_are_counted(tmp_path):
    written = Writer(tmp_path).run(ROWS, [3, 7])
    assert written.data == [f"{tmp_path}/{PARTITION}.jsonl"]
    assert written.num_items == 10
    assert written.dataset_name == "web"
    assert tree(tmp_path) == {f"{PARTITION}.jsonl": LINES}
    assert not tmp_path.with_name(f"{tmp_path.name}.run").exists()


def test_a_source_without_partition_is_named_by_its_id(tmp_path):
    written = Writer(tmp_path).run(ROWS, partition=None, source="0.12")
    assert Path(written.data[0]).name == "task-0.12.jsonl"


@pytest.mark.parametrize("name", ["../up", "a/b", "héllo", "", ".hidden", "x" * 500, "a b"])
def test_names_are_safe_and_stay_apart(name):
    clean = safe_file_name(name)
    assert "/" not in clean
    assert not clean.startswith((".", "_", "-"))
    assert len(clean) < 200
    assert clean == safe_file_name(name)
    assert safe_file_name(name + "?") != safe_file_name(name + "!")


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
    assert not tmp_path.with_name(f"{tmp_path.name}.run").exists()


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
                assert expected[name] == tree(tmp_path / "out")[name]
    assert writer.commit.process(task).num_items == 11
    assert tree(tmp_path / "out") == expected
    writer.commit.target.end_run()
    assert not (tmp_path / "out.run" / "_tmp").exists()


def test_fragments_that_vanished_are_an_error_and_not_an_empty_file(tmp_path):
    writer = Writer(tmp_path)
    task = gathered(writer.fragments(ROWS))
    Path(task.data[0].data).unlink()
    with pytest.raises(OSError, match=r"commit_jsonl.*deleted"):
        writer.commit.process(task)


def test_a_new_run_sweeps_what_a_killed_one_left(tmp_path):
    out, beside = tmp_path / "out", tmp_path / "out.run"
    pid = os.fork()
    if pid == 0:
        Writer(out).fragments(ROWS, [5])
        os._exit(0)
    os.waitpid(pid, 0)
    assert (len(tree(out)), len(tree(beside))) == (0, 2)
    running = Writer(out)
    pending = running.fragments(ROWS, source="other", partition="other-00000000")
    Writer(out).run(ROWS)
    assert (len(tree(out)), len(tree(beside))) == (1, 1)  # and the fragment of the run that still goes on
    running.commit.process(gathered(pending, "other"))
    assert set(tree(out)) == {f"{PARTITION}.jsonl", "other-00000000.jsonl"}
    assert not beside.exists()


def test_overwrite_sweeps_all_temporary_files(tmp_path):
    temporary = tmp_path / "out.run" / "_tmp"
    (temporary / "elsewhere-1-abcd").mkdir(parents=True)
    (temporary / "elsewhere-1-abcd" / "x").write_text("half")
    (temporary / "stray").write_text("half")
    Writer(tmp_path / "out", mode="overwrite").run(ROWS)
    assert tree(tmp_path) == {f"out/{PARTITION}.jsonl": LINES}


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
        CommitFiles(OutputDirectory(tmp_path), FullDisk()).process(task)
    assert all(name.startswith("_tmp/") for name in tree(tmp_path))
    writer.commit.process(task)
    assert tree(tmp_path) == {f"{PARTITION}.jsonl": LINES}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_pyarrow_errors_name_the_path_too(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "gristmill.io.storage.output_directory._open_new", lambda path: Path.open(Path("/dev/full"), "wb")
    )
    with pytest.raises(OSError, match=r"write_parquet.*No space left"):
        Writer(tmp_path, ParquetFormat()).run([{"t": random.randbytes(50_000).hex()}])


# -- room ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, WRITE_CHUNK_BYTES, 10 * WRITE_CHUNK_BYTES])
def test_room_that_is_reserved_is_no_part_of_the_file(tmp_path, room):
    target, lines = OutputDirectory(tmp_path), b"x" * (3 * WRITE_CHUNK_BYTES + 5)
    with target.create(target.file("a")) as file:
        reserve_space(file, room)
        file.write(lines)
    assert (tmp_path / "a").read_bytes() == lines
    assert (tmp_path / "a").stat().st_blocks * 512 < 5 * WRITE_CHUNK_BYTES


def test_room_that_there_is_not_is_no_error(tmp_path):
    target = OutputDirectory(tmp_path)
    with target.create(target.file("a")) as file:
        reserve_space(file, 2**60)
        file.write(b"text")
    assert (tmp_path / "a").read_bytes() == b"text"
