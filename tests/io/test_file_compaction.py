"""Small files of several sources are joined to the target size: the same for every executor, and after every kill."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import traceback
import warnings
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pytest

from gristmill import LocalExecutor, Pipeline, Route, Tee
from gristmill.core.records.run_record_store import RecordStore
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.file_compaction import JoinedFiles
from gristmill.io.write.jsonl_format import JsonlFormat
from gristmill.io.write.manifest import check_manifest
from gristmill.io.write.parquet_format import ParquetFormat
from gristmill.report.why import why
from gristmill.text import JsonlReader, JsonlWriter, ParquetWriter, ScoreFilter, WordCountFilter
from tests.io.fragment_writing import ROWS, Writer

HERE = LocalExecutor(0)
TARGET = 30_000
WRITERS: dict[str, Any] = {
    "jsonl": lambda out: JsonlWriter(out, target_file_size=TARGET),
    "jsonl.gz": lambda out: JsonlWriter(out, target_file_size=TARGET, compression="gzip"),
    "jsonl.zst": lambda out: JsonlWriter(out, target_file_size=TARGET, compression="zstd"),
    "one schema": lambda out: JsonlWriter(out, target_file_size=TARGET, one_schema=True),
    "numbered": lambda out: JsonlWriter(out, target_file_size=TARGET, split="train"),
    "parquet": lambda out: ParquetWriter(out, target_file_size=TARGET),
    "numbered parquet": lambda out: ParquetWriter(out, target_file_size=TARGET, split="train"),
}


def add(folder: Path, name: str, rows: int, **more: Any) -> None:
    rng = random.Random(f"{name}-{rows}")
    texts = [" ".join(f"{rng.random():.9f}" for _ in range(rng.randint(1, 60))) for _ in range(rows)]
    lines = [json.dumps({"id": f"{name}-{number}", "text": text, **more}) for number, text in enumerate(texts)]
    (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(14):
        add(folder, f"s{number:02}", 10 + number * 7 % 30)
    return folder


def pipeline(corpus: Path, writer: Any, blocksize: int | None = 5000) -> Pipeline:
    return Pipeline(
        "joined", stages=[JsonlReader(corpus, blocksize=blocksize), ScoreFilter(WordCountFilter(4)), writer]
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def fresh(corpus: Path, tmp_path: Path, make: Any) -> dict[str, bytes]:
    shutil.rmtree(tmp_path / "fresh", ignore_errors=True)
    shutil.rmtree(tmp_path / "fresh.run", ignore_errors=True)
    pipeline(corpus, make(tmp_path / "fresh")).run(HERE)
    return contents(tmp_path / "fresh")


def problems(out: Path) -> list[str]:
    return check_manifest(OutputDirectory(out))[1]


def ids(folder: Path) -> list[str]:
    kind = "parquet" if next(folder.iterdir()).suffix == ".parquet" else "json"
    table = pads.dataset(folder, format=kind).to_table(use_threads=False)
    return table.column("id").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", WRITERS)
def test_sizes_are_near_the_target_and_bytes_are_the_same_however_it_runs(
    corpus: Path, tmp_path: Path, kind: str
) -> None:
    found = []
    for number, (executor, blocksize) in enumerate([(HERE, None), (HERE, 900), (LocalExecutor(2), 4000)]):
        out = tmp_path / f"out{number}"
        result = pipeline(corpus, WRITERS[kind](out), blocksize).run(executor)
        assert sorted(map(Path, result.files())) == sorted(out.iterdir())
        assert problems(out) == []
        found.append(contents(out))
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert 2 < len(found[0]) < 9
    if not kind.endswith(("gz", "zst")):
        *sizes, _ = map(len, found[0].values())
        assert all(TARGET / 2 <= size <= TARGET * 3 / 2 for size in sizes)
        lines = [json.loads(line) for path in sorted(corpus.iterdir()) for line in path.read_text().splitlines()]
        assert ids(tmp_path / "out0") == [row["id"] for row in lines if len(row["text"].split()) >= 4]


@pytest.mark.parametrize("kind", WRITERS)
def test_after_changes_of_the_input_the_output_is_that_of_a_fresh_run(corpus: Path, tmp_path: Path, kind: str) -> None:
    out, run, make = tmp_path / "out", tmp_path / "run", WRITERS[kind]
    made = pipeline(corpus, make(out))
    made.run(HERE, run_dir=run)
    before = contents(out)
    again = made.run(HERE, run_dir=run)
    assert again.nothing_to_do
    assert contents(out) == before
    assert sorted(map(Path, again.files())) == sorted(out.iterdir())

    def runs_as_fresh(rows_read: int | None) -> None:
        summary = made.run(HERE, run_dir=run).summary(attempt=True)
        assert rows_read is None or summary["read_jsonl"].rows_out == rows_read
        assert contents(out) == fresh(corpus, tmp_path, make)
        assert problems(out) == []

    add(corpus, "s05", 13)
    runs_as_fresh(13)  # the others are taken from the joined file
    (corpus / "s00.jsonl").unlink()
    add(corpus, "s07b", 25)
    runs_as_fresh(25)
    for number in range(2, 14):
        (corpus / f"s{number:02}.jsonl").unlink(missing_ok=True)
    runs_as_fresh(0)
    (corpus / "s07b.jsonl").unlink()
    runs_as_fresh(0)  # the only one that is left has its own name and bytes again
    next(out.iterdir()).unlink()
    runs_as_fresh(None)


def test_all_sources_of_a_joined_file_can_change_at_once(corpus: Path, tmp_path: Path) -> None:
    out, run, make = tmp_path / "out", tmp_path / "run", WRITERS["jsonl"]
    pipeline(corpus, make(out)).run(HERE, run_dir=run)
    for number in range(14):
        add(corpus, f"s{number:02}", 9 + number)
    pipeline(corpus, make(out)).run(HERE, run_dir=run)
    assert contents(out) == fresh(corpus, tmp_path, make)
    assert problems(out) == []


@pytest.mark.parametrize("kind", ["one schema", "parquet", "numbered parquet"])
def test_a_source_with_other_types_changes_the_joined_files(corpus: Path, tmp_path: Path, kind: str) -> None:
    out, run, make = tmp_path / "out", tmp_path / "run", WRITERS[kind]
    add(corpus, "s03", 20, score=3)
    pipeline(corpus, make(out)).run(HERE, run_dir=run)
    add(corpus, "s99", 20, score=0.5, late="x")
    result = pipeline(corpus, make(out)).run(HERE, run_dir=run)
    assert result.summary(attempt=True)["read_jsonl"].rows_out == 20
    assert contents(out) == fresh(corpus, tmp_path, make)
    assert problems(out) == []


def test_large_sources_are_split_and_their_rest_is_joined(corpus: Path, tmp_path: Path) -> None:
    add(corpus, "s04", 400)
    for kind in ("jsonl", "parquet"):
        out = tmp_path / kind
        pipeline(corpus, WRITERS[kind](out)).run(HERE, run_dir=tmp_path / f"{kind}.records")
        *sizes, _ = (path.stat().st_size for path in sorted(out.iterdir()))
        assert all(TARGET / 2 <= size <= TARGET * 3 / 2 for size in sizes)
        manifest = check_manifest(OutputDirectory(out))[0]
        assert sum(file["rows"] for file in manifest["files"]) == manifest["rows"] == len(ids(out))
        assert ids(out) == [one for one in ids_read(corpus) if one in set(ids(out))]


def ids_read(corpus: Path) -> list[str]:
    return [json.loads(line)["id"] for path in sorted(corpus.iterdir()) for line in path.read_text().splitlines()]


def test_why_names_the_joined_file_and_the_row_in_it(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pipeline(corpus, WRITERS["jsonl"](tmp_path / "out")).run(HERE, run_dir=run, scores=True)
    for path in (tmp_path / "out").iterdir():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if number % 20 == 0:
                [found] = why(str(run), json.loads(line)["id"])
                assert (found.fate, found.outputs, found.line) == ("kept", [str(path)], number)


# -- kills ---------------------------------------------------------------------------------------------------


def run_and_kill(made: Pipeline, run: Path, steps: int) -> bool:
    """Run in a process that kills itself after some steps of the last part of the run. False if it came to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, on forks of processes with threads
        child = os.fork()
    if not child:
        try:
            kill_after(steps)
            made.run(HERE, run_dir=run)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def kill_after(steps: int) -> None:
    """Kill this process at one of the calls that change files, from the first call of `JoinedFiles.join` on."""
    calls, joining = iter(range(10**6)), []

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def method(*args: Any, **options: Any) -> Any:
            if owner is JoinedFiles:
                joining.append(True)
            elif joining and next(calls) == steps:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **options)

        setattr(owner, name, method)

    counted(JoinedFiles, "join")
    for name in ("replace", "remove", "move"):
        counted(OutputDirectory, name)
    counted(RecordStore, "write")
    counted(RecordStore, "write_lines")
    counted(JsonlFormat, "join_files")
    counted(ParquetFormat, "join_files")


@pytest.mark.parametrize(("kind", "again"), [("jsonl", True), ("numbered", True), ("parquet", False)])
def test_a_run_that_is_killed_while_it_joins_files_is_completed_by_the_next(
    corpus: Path, tmp_path: Path, kind: str, again: bool
) -> None:
    """With `again`, files are joined already, and input has changed. Some runs find other input after the kill."""
    base, made = tmp_path / "base", pipeline(corpus, WRITERS[kind](tmp_path / "out"))
    run = tmp_path / "run"
    names = ("out", "out.run", "run")
    if again:
        made.run(HERE, run_dir=run)
        add(corpus, "s05", 13)
        (corpus / "s01.jsonl").unlink()
    base.mkdir()
    for name in names:
        if (tmp_path / name).exists():
            shutil.copytree(tmp_path / name, base / name)
    killed, step = True, 0
    while killed:
        for name in names:
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            if (base / name).exists():
                shutil.copytree(base / name, tmp_path / name)
        killed = run_and_kill(made, run, step)
        changes = step % 3 == 1
        if changes:
            add(corpus, "s06", 11 + step)
            add(corpus, "s09", 12 + step)
        result = made.run(HERE, run_dir=run)
        assert changes or result.summary(attempt=True)["read_jsonl"].rows_out == 0, step
        assert contents(tmp_path / "out") == fresh(corpus, tmp_path, WRITERS[kind]), step
        assert problems(tmp_path / "out") == [], step
        assert not list((tmp_path / "out.run").glob("_tmp/*")), step
        step += 1
    assert step > 10


# -- other places --------------------------------------------------------------------------------------------


def test_another_run_replaces_joined_files_of_the_same_input_only(corpus: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    for number in range(4):
        add(other, f"o{number}", 20)
    pipeline(other, WRITERS["jsonl"](out)).run(HERE)
    kept = contents(out)
    pipeline(corpus, WRITERS["jsonl"](out)).run(HERE)
    (corpus / "s00.jsonl").unlink()
    for target in (50_000, 20_000, None):
        pipeline(corpus, JsonlWriter(out, target_file_size=target)).run(HERE)
        pipeline(corpus, JsonlWriter(tmp_path / f"new{target}", target_file_size=target)).run(HERE)
        now = contents(out)
        if target is None:  # output of a source that is alone in its file is kept under the name that it has
            assert sorted(ids(out)) == sorted({*ids(tmp_path / "newNone"), *ids_read(other)} & set(ids(out)))
            assert len(set(ids(out))) == len(ids(out))
        else:
            assert now == {**kept, **contents(tmp_path / f"new{target}")}
        assert problems(out) == []


def test_appended_files_are_joined_with_each_other(corpus: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    pipeline(corpus, WRITERS["jsonl"](out)).run(HERE)
    first = contents(out)
    made = pipeline(corpus, JsonlWriter(out, target_file_size=TARGET, mode="append"))
    made.run(HERE, run_dir=run)
    assert {name: data for name, data in contents(out).items() if name in first} == first
    assert sorted(data for name, data in contents(out).items() if name not in first) == sorted(first.values())
    assert made.run(HERE, run_dir=run).nothing_to_do
    made.run(HERE)
    assert len(contents(out)) == 3 * len(first)
    assert problems(out) == []


@pytest.mark.parametrize("kind", [Route, Tee])
def test_each_branch_is_joined_by_itself(corpus: Path, tmp_path: Path, kind: Any) -> None:
    to = {"a": WRITERS["jsonl"](tmp_path / "a"), "b": WRITERS["parquet"](tmp_path / "b")}
    last = Tee(to) if kind is Tee else Route(lambda row: "a" if len(row["text"]) > 300 else "b", to)
    made = pipeline(corpus, last)
    made.run(HERE, run_dir=tmp_path / "run")
    assert made.run(HERE, run_dir=tmp_path / "run").nothing_to_do
    add(corpus, "s05", 13)
    (corpus / "s02.jsonl").unlink()
    assert made.run(HERE, run_dir=tmp_path / "run").summary(attempt=True)["read_jsonl"].rows_out == 13
    got = {name: contents(tmp_path / name) for name in to}
    assert [problems(tmp_path / name) for name in to] == [[], []]
    for name in ("a", "b", "a.run", "b.run"):
        shutil.rmtree(tmp_path / name)
    made.run(HERE)
    assert got == {name: contents(tmp_path / name) for name in to}
    assert all(0 < len(files) < 10 for files in got.values())


def test_files_are_joined_in_an_object_store(corpus: Path, tmp_path: Path, s3: dict[str, Any]) -> None:
    import s3fs

    system = s3fs.S3FileSystem(**s3, use_listings_cache=False)
    system.mkdir("joined")
    made = pipeline(corpus, ParquetWriter("s3://joined/out", target_file_size=TARGET, storage_options=s3))
    made.run(HERE, run_dir=tmp_path / "run")
    add(corpus, "s05", 13)
    assert made.run(HERE, run_dir=tmp_path / "run").summary(attempt=True)["read_jsonl"].rows_out == 13
    found = {path.rpartition("/")[2]: system.cat(path) for path in system.find("joined/out")}
    assert found == fresh(corpus, tmp_path, WRITERS["parquet"])
    system.rm("joined", recursive=True)


@pytest.mark.parametrize(
    "form",
    [JsonlFormat(target_file_size=150), JsonlFormat("gzip", target_file_size=150), ParquetFormat(target_file_size=300)],
)
def test_what_a_commit_counts_is_what_its_files_have(tmp_path: Path, form: Any) -> None:
    """A commit that is repeated finds files of an earlier attempt, and counts what is in them."""
    files = Writer(tmp_path, form).run(ROWS, [1, 2]).written
    assert len(files) > 1 or form.name == "parquet"
    for file in files:
        with open(file.path, "rb") as content:
            assert file.part is not None
            assert form.measure(content) == (file.part.rows, file.part.content)
    assert sum(file.part.rows for file in files) == len(ROWS)
