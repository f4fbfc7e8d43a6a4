"""Rows that wait for a verdict are read again from their files, if they are as they were read; else they are kept."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import KeyedStage, LocalExecutor, Pipeline, ProcessingStage
from gristmill.core.batch import unread_rows
from gristmill.core.errors import StageError
from gristmill.dedup import ExactDeduplicationStage
from gristmill.dedup.exact.exact_stage import KeepOnePerHash
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.manifest import check_manifest
from gristmill.text import JsonlReader, JsonlWriter, ParquetReader

ROWS = [{"id": number, "text": f"grain and grist {number % 30}"} for number in range(40)]
MARK = b"kept as it is, which no compression shortens"
LINES = [json.dumps(row) for row in ROWS]


def ids(result: Any) -> list[int]:
    return [row["id"] for path in result.files() for row in map(json.loads, Path(path).read_text().splitlines())]


def kept_text(run: Path) -> bool:
    """Whether texts were written into the run directory."""
    [raw] = [path.read_bytes() for path in (run / "segments" / "1").glob("*.runs")]
    return MARK in raw


class Drops(ProcessingStage[Any, Any]):
    def process(self, task: Any) -> Any:
        return task.keep(pa.array([row["id"] % 2 == 0 for row in task.to_rows()]))


@pytest.mark.parametrize("kind", ["jsonl", "gz", "parquet", "dropped"])
@pytest.mark.parametrize("blocksize", [700, 10**6])
def test_rows_come_again_in_any_form_and_any_cut(tmp_path: Path, kind: str, blocksize: int) -> None:
    noise = [{**row, "more": MARK.decode()} for row in ROWS]
    lines = "".join(json.dumps(row) + "\n" for row in noise)
    lines = lines.replace('{"id": 7,', '{"id": 7\n{"id": 7,')  # a line that cannot be read
    folder = tmp_path / "in"
    folder.mkdir()
    reader: Any = JsonlReader(str(folder), blocksize=blocksize)
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(noise), folder / "a.parquet", row_group_size=9)
        reader = ParquetReader(str(folder), blocksize=blocksize)
    elif kind == "gz":
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    else:
        (folder / "a.jsonl").write_text(lines)
    between = [Drops()] if kind == "dropped" else []
    stages = [reader, *between, ExactDeduplicationStage(), JsonlWriter(str(tmp_path / "out"))]
    result = Pipeline("p", stages=stages).run(LocalExecutor(0), tmp_path / "run", max_errors=None)
    assert ids(result) == [number for number in range(30) if kind != "dropped" or number % 2 == 0]
    assert len(result.quarantined()) == (kind != "parquet")
    assert kept_text(tmp_path / "run") == (kind in ("gz", "dropped"))


class Meddles(KeepOnePerHash):
    """Changes the input while it is in use."""

    def __init__(self, path: Path) -> None:
        super().__init__("meddles")
        self.path = path

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        with open(self.path, "a") as file:
            file.write('{"id": 99, "text": "late"}\n')
        yield from super().process_sorted(tables)


def test_a_file_that_changes_while_it_is_in_use_stops_the_run(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(LINES) + "\n")

    class Meddled(ExactDeduplicationStage):
        def rounds(self) -> Sequence[KeyedStage]:
            return [Meddles(path)]

    with pytest.raises(StageError, match="has changed since this run first read it"):
        Pipeline("p", stages=[JsonlReader(str(path)), Meddled(), JsonlWriter(str(tmp_path / "out"))]).run(
            LocalExecutor(0)
        )


class Looks(ProcessingStage[Any, Any]):
    """Looks at the rows, and changes nothing."""

    def process(self, task: Any) -> Any:
        assert task.data.column_names[:2] == ["id", "text"]
        return task


@pytest.mark.parametrize("blocksize", [500, 10**6])
@pytest.mark.parametrize("form", ["plain", "spaced", "mixed", "escaped"])
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("piece", [30, 2**18])
def test_lines_that_are_copied_are_those_that_would_be_written(
    tmp_path: Path, blocksize: int, form: str, looks: bool, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.io.read.reread.COPY_CHUNK_BYTES", piece)
    rows = [{"id": number, "text": f'"grain"\n{number % 30} é', "score": number / 4} for number in range(60)]
    plain = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    other = [json.dumps(row, ensure_ascii=form == "escaped") for row in rows]
    lines = {"plain": plain, "mixed": plain[:25] + other[25:]}.get(form, other)
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    between = [Looks()] if looks else []
    stages = [
        JsonlReader(str(tmp_path / "a.jsonl"), blocksize=blocksize),
        ExactDeduplicationStage(),
        *between,
        JsonlWriter(str(tmp_path / "out")),
    ]
    result = Pipeline("p", stages=stages).run(LocalExecutor(0), rejected=str(tmp_path / "gone") if looks else False)
    [path] = result.files()
    assert Path(path).read_text().splitlines() == plain[:30]
    assert result.summary()["ExactDeduplicationStage"].dropped == 30


class Unseen(ProcessingStage[Any, Any]):
    """Goes with the rows only if nobody has looked at them."""

    def process(self, task: Any) -> Any:
        assert unread_rows(task) is not None
        return task


@pytest.mark.parametrize("how", [{}, {"ensure_ascii": False}, {"separators": (",", ":")}])
@pytest.mark.parametrize("report", [False, True])
def test_lines_as_python_writes_them_are_copied(tmp_path: Path, how: dict[str, Any], report: bool) -> None:
    rows = [{**row, "é": ["ü", {"x": None}], "score": 0.5} for row in ROWS]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row, **how) for row in rows))
    writer = JsonlWriter(str(tmp_path / "out"))
    stages = [JsonlReader(str(tmp_path / "a.jsonl")), ExactDeduplicationStage(), Unseen(), writer]
    run = tmp_path / "run" if report else None
    [path] = Pipeline("p", stages=stages).run(LocalExecutor(0), run, on_error="raise").files()
    plain = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows[:30]]
    assert Path(path).read_text().splitlines() == plain
    if run:
        facts = {stage["name"]: stage for stage in json.loads((run / "report.json").read_text())["stages"]}
        assert facts["write_jsonl"]["spread"]["bytes"]["rows"] == 30
        assert all(sample["row"]["id"] >= 30 for sample in facts["ExactDeduplicationStage"]["samples"])


def test_lines_are_copied_only_from_a_file_that_has_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in ROWS))

    class Meddling(ExactDeduplicationStage):
        def rounds(self) -> Sequence[KeyedStage]:
            return [Meddles(path)]

    stages = [JsonlReader(str(path)), Meddling(), JsonlWriter(str(tmp_path / "out"))]
    with pytest.raises(StageError, match="has changed since this run first read it"):
        Pipeline("p", stages=stages).run(LocalExecutor(0))


class Halves(ProcessingStage[Any, Any]):
    """Makes two batches of each."""

    def process(self, task: Any) -> Any:
        return [task.slice(0, 10), task.slice(10)]


@pytest.mark.parametrize(
    ("blocksize", "between", "writer"),
    [
        (10**6, [], {}),
        (700, [], {}),
        (10**6, [Halves()], {}),
        (10**6, [], {"compression": "gzip"}),
        (10**6, [], {"target_file_size": 500}),
    ],
    ids=["whole", "blocks", "halves", "gzip", "cut"],
)
def test_checksums_are_those_of_the_files(
    tmp_path: Path, blocksize: int, between: list[Any], writer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))
    read: list[str] = []
    own = OutputDirectory.checksum

    def noted(target: OutputDirectory, path: str) -> str:
        read.append(path)
        return own(target, path)

    monkeypatch.setattr(OutputDirectory, "checksum", noted)
    reader = JsonlReader(str(tmp_path / "in.jsonl"), blocksize=blocksize)
    stages = [reader, ExactDeduplicationStage(), *between, JsonlWriter(str(tmp_path / "out"), **writer)]
    Pipeline("p", stages=stages).run(LocalExecutor(0))
    again = [path for path in read if "/out/" in path and ".jsonl" in path and "/_tmp/" not in path]
    manifest, problems = check_manifest(OutputDirectory(tmp_path / "out"))
    assert not problems
    assert manifest["rows"] == 30
    assert not again  # they are made while the files are written
