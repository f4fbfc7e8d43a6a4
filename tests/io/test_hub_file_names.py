"""Files named as on the Hugging Face hub: the same for every executor, and after every interruption."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pytest

from gristmill import LocalExecutor, Pipeline, Route
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.manifest import check_manifest
from gristmill.text import JsonlReader, JsonlWriter, ParquetWriter, ScoreFilter, WordCountFilter

HERE = LocalExecutor(0)
WRITERS: dict[str, Any] = {
    "jsonl": lambda out: JsonlWriter(out, split="train"),
    "jsonl.gz": lambda out: JsonlWriter(out, split="train", compression="gzip"),
    "parquet": lambda out: ParquetWriter(out, split="train"),
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(5):
        add(folder, number)
    return folder


def add(folder: Path, number: int, rows: int = 30) -> None:
    lines = [json.dumps({"id": f"{number}-{row}", "text": f"text {number} " * row}) for row in range(rows)]
    (folder / f"{number}.jsonl").write_text("".join(line + "\n" for line in lines))


def pipeline(corpus: Path, writer: Any, blocksize: int | None = 1000) -> Pipeline:
    return Pipeline("named", stages=[JsonlReader(corpus, blocksize=blocksize), ScoreFilter(WordCountFilter(4)), writer])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def numbered(count: int, extension: str) -> list[str]:
    return [f"train-{number:05}-of-{count:05}.{extension}" for number in range(count)]


@pytest.mark.parametrize("kind", WRITERS)
def test_files_are_numbered_in_the_order_of_the_input(corpus: Path, tmp_path: Path, kind: str) -> None:
    found = []
    for number, (executor, blocksize) in enumerate([(HERE, None), (HERE, 200), (LocalExecutor(2), 700)]):
        out = tmp_path / f"out{number}"
        result = pipeline(corpus, WRITERS[kind](out), blocksize).run(executor)
        assert sorted(map(Path, result.files())) == sorted(out.iterdir())
        assert check_manifest(OutputDirectory(out))[1] == []
        assert list(contents(out)) == numbered(5, kind)
        found.append(contents(out))
    assert found[1] == found[0]
    assert found[2] == found[0]
    if kind != "jsonl.gz":
        table = pads.dataset(tmp_path / "out0", format="json" if kind == "jsonl" else "parquet").to_table()
        assert table.column("id").to_pylist() == [f"{n}-{row}" for n in range(5) for row in range(2, 30)]


def test_files_of_a_target_size_and_sources_without_rows_are_numbered_too(corpus: Path, tmp_path: Path) -> None:
    add(corpus, 2, rows=1)
    out = tmp_path / "out"
    pipeline(corpus, JsonlWriter(out, split="train", target_file_size="3KB")).run(HERE)
    names = list(contents(out))
    assert len(names) > 4
    assert names == numbered(len(names), "jsonl")
    rows = [json.loads(line)["id"] for raw in contents(out).values() for line in raw.splitlines()]
    assert rows == [f"{n}-{row}" for n in (0, 1, 3, 4) for row in range(2, 30)]


def test_a_finished_run_is_not_done_again_and_a_changed_input_is(corpus: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    made = pipeline(corpus, JsonlWriter(out, split="train"))
    made.run(HERE, run_dir=run)
    before = contents(out)
    assert made.run(HERE, run_dir=run).summary(attempt=True)["read_jsonl"].rows_out == 0
    assert contents(out) == before
    add(corpus, 3, rows=20)
    add(corpus, 7)
    (corpus / "0.jsonl").rename(corpus / "8.jsonl")
    (out / "train-00000-of-00005.jsonl").unlink()
    assert made.run(HERE, run_dir=run).summary(attempt=True)["read_jsonl"].rows_out == 80
    pipeline(corpus, JsonlWriter(tmp_path / "new", split="train")).run(HERE)
    assert contents(out) == contents(tmp_path / "new")
    assert check_manifest(OutputDirectory(out))[1] == []


def test_only_the_file_that_was_written_is_removed_not_another_one_that_has_its_name(
    corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    writer = JsonlWriter(out, split="train")
    [written, *_] = [file for task in pipeline(corpus, writer).run(HERE) for file in task.written]
    commit: Any = writer.decompose()[-1]
    before = contents(out)
    for wrong in (replace(written, size=written.size + 1), replace(written, checksum=f"{written.checksum[:-3]}123")):
        commit.discard_files([wrong])
        assert contents(out) == before
    commit.discard_files([written])
    assert len(contents(out)) == len(before) - 1


class Killed(BaseException):
    """Stands for a kill: nothing is cleaned up."""


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("steps", range(12))
def test_a_run_that_stops_between_renames_is_completed_by_the_next(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, again: bool
) -> None:
    """With `again`, the files have such names already, and each one gets the name of another."""
    out, run = tmp_path / "out", tmp_path / "run"
    made = pipeline(corpus, JsonlWriter(out, split="train"))
    if again:
        made.run(HERE, run_dir=run)
        (corpus / "4.jsonl").unlink()
        add(corpus, 9)
        (corpus / "9.jsonl").rename(corpus / "0-first.jsonl")
    calls = iter(range(100))
    move = OutputDirectory.move

    def stop(self: OutputDirectory, path: str, other: str) -> None:
        if next(calls) >= steps:
            raise Killed
        move(self, path, other)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(OutputDirectory, "move", stop)
        made.run(HERE, run_dir=run)
    assert made.run(HERE, run_dir=run).summary(attempt=True)["read_jsonl"].rows_out == 0
    pipeline(corpus, JsonlWriter(tmp_path / "new", split="train")).run(HERE)
    assert contents(out) == contents(tmp_path / "new")
    assert check_manifest(OutputDirectory(out))[1] == []
    assert not list((tmp_path / "out.run").glob("_renamed/*"))


def test_another_run_replaces_the_files_of_the_one_before(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pipeline(corpus, JsonlWriter(out, split="train")).run(HERE)
    (corpus / "4.jsonl").unlink()
    pipeline(corpus, JsonlWriter(out, split="train")).run(HERE)
    assert list(contents(out)) == numbered(4, "jsonl")
    pipeline(corpus, JsonlWriter(out, split="test")).run(HERE)
    assert len(contents(out)) == 8  # one folder may hold several splits
    assert check_manifest(OutputDirectory(out))[1] == []


def test_branches_have_numbers_of_their_own(corpus: Path, tmp_path: Path) -> None:
    to = {name: JsonlWriter(tmp_path / name, split=name) for name in ("short", "long")}
    route = Route(lambda row: "long" if len(row["text"]) > 100 else "short", to)
    pipeline(corpus, route).run(HERE, run_dir=tmp_path / "run")
    for name in to:
        expected = [f"{name}-{number:05}-of-00005.jsonl" for number in range(5)]
        assert list(contents(tmp_path / name)) == expected
        assert check_manifest(OutputDirectory(tmp_path / name))[1] == []


def test_an_object_store_copies_what_it_cannot_rename(corpus: Path, tmp_path: Path, s3: dict[str, Any]) -> None:
    import s3fs

    system = s3fs.S3FileSystem(**s3, use_listings_cache=False)
    system.mkdir("named")
    writer = JsonlWriter("s3://named/out", split="train", storage_options=s3)
    pipeline(corpus, writer).run(HERE)
    pipeline(corpus, JsonlWriter(tmp_path / "out", split="train")).run(HERE)
    assert {path.rpartition("/")[2]: system.cat(path) for path in system.find("named/out")} == contents(
        tmp_path / "out"
    )
    system.rm("named", recursive=True)


@pytest.mark.parametrize("split", ["", "a-b", "a/b", 3])
def test_names_that_the_hub_does_not_take_are_refused(split: Any) -> None:
    with pytest.raises(ValueError, match="must be a name of letters, digits and _"):
        ParquetWriter("out", split=split)


def test_nothing_can_be_appended_to_numbered_files() -> None:
    with pytest.raises(ValueError, match=r"append.*how many files"):
        JsonlWriter("out", split="train", mode="append")
