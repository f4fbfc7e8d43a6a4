"""Input that cannot be read goes to quarantine, with its file and place, and changes nothing else.

Each case is a corpus with some damage, and the same corpus as it would be had the damaged records never been there.
What is written must be the same for both, and what is in quarantine must be what is missing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, processing_stage
from gristmill.core.errors import ErrorBudgetError, InputError, StageError
from gristmill.io.storage.file_input import MAX_RAW_BYTES
from gristmill.text import (
    ArrowReader,
    CsvReader,
    JsonlReader,
    JsonlWriter,
    ParquetReader,
    TextReader,
)
from tests.promises.unreadable_inputs import (
    CASES,
    ROWS,
    Case,
    lines_of,
    parquet,
)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def lay_out(files: dict[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


def reader_line(result: Any) -> Any:
    return next(line for line in result.summary().stages if line.name.startswith("read_"))


def check_quarantine(result: Any, case: Case) -> None:
    records = sorted(result.quarantined(), key=lambda record: (record.file, record.position))
    assert [(record.file, record.position, record.records) for record in records] == [
        (lost.file, lost.position, lost.records) for lost in case.lost
    ]
    for record, lost in zip(records, case.lost, strict=True):
        assert (record.kind, record.stage, record.row) == ("unreadable", reader_line(result).name, None)
        assert lost.words in record.error
        if lost.content is not None:
            assert record.content == lost.content.decode(errors="backslashreplace")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_rest_is_as_if_it_had_never_been_there(case: Case, workers: int, tmp_path: Path) -> None:
    damaged, clean = lay_out(case.damaged, tmp_path / "damaged"), lay_out(case.clean, tmp_path / "clean")
    good = case.pipeline(clean, tmp_path / "want").run(LocalExecutor(0), on_error="raise")
    result = case.pipeline(damaged, tmp_path / "out").run(LocalExecutor(workers), tmp_path / "run")
    assert written(tmp_path / "out") == written(tmp_path / "want")
    check_quarantine(result, case)
    lost = sum(lost.records for lost in case.lost)
    assert (reader_line(result).rows_out, reader_line(result).quarantined) == (reader_line(good).rows_out, lost)
    assert result.summary().quarantined == lost
    assert {path.suffix for path in (tmp_path / "run" / "quarantine").iterdir()} == {".jsonl"}


def test_blocks_change_neither_output_nor_quarantine(case: Case, tmp_path: Path) -> None:
    damaged = lay_out(case.damaged, tmp_path / "damaged")
    found = []
    for blocksize in (None, 30_000, 100_001):
        out = tmp_path / f"out-{blocksize}"
        result = case.pipeline(damaged, out, blocksize=blocksize).run(LocalExecutor(0))
        check_quarantine(result, case)
        found.append((written(out), {record.id for record in result.quarantined()}))
    assert found[0] == found[1] == found[2]


def test_it_can_be_left_out_or_stop_the_run(case: Case, tmp_path: Path) -> None:
    damaged, clean = lay_out(case.damaged, tmp_path / "damaged"), lay_out(case.clean, tmp_path / "clean")
    case.pipeline(clean, tmp_path / "want").run(LocalExecutor(0), on_error="raise")
    result = case.pipeline(damaged, tmp_path / "out", on_bad_record="skip").run(LocalExecutor(0))
    assert written(tmp_path / "out") == written(tmp_path / "want")
    assert result.quarantined() == []
    assert reader_line(result).counts["bad_records"] == sum(lost.records for lost in case.lost)
    reasons = set()
    for option, on_error in (("raise", "quarantine"), ("quarantine", "raise")):
        with pytest.raises(StageError) as raised:
            case.pipeline(damaged, tmp_path / "no", on_bad_record=option).run(LocalExecutor(0), on_error=on_error)
        reasons.add(raised.value.reason)
    [reason] = reasons
    assert f"{damaged}/{case.lost[0].file}, " in reason
    assert case.lost[0].words in reason
    assert reason.endswith('use on_bad_record="skip"')
    assert 'on_error="quarantine"' in reason


@pytest.mark.parametrize("name", ["bad JSON", "bad UTF-8 in JSON", "text by line", "a very long bad line"])
def test_the_place_is_that_of_the_line(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    folder = lay_out(case.damaged, tmp_path / "in")
    [record] = case.pipeline(folder, tmp_path / "out").run(LocalExecutor(0)).quarantined()
    assert record.file is not None
    assert record.position is not None
    with (folder / record.file).open("rb") as file:
        file.seek(record.position)
        line = file.readline().removesuffix(b"\n")
    assert record.content == line[:MAX_RAW_BYTES].decode(errors="backslashreplace")


# -- many, and only, bad records -------------------------------------------------------------------------


def jsonl(folder: Path, files: dict[str, bytes], **options: Any) -> Pipeline:
    reader = JsonlReader(str(lay_out(files, folder / "in")), **options)
    return Pipeline("p", stages=[reader, JsonlWriter(str(folder / "out"))])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_of_only_bad_lines_stops_the_run(workers: int, tmp_path: Path) -> None:
    good = b"".join(line + b"\n" for line in lines_of(ROWS[:200]))
    pipeline = jsonl(tmp_path, {"a.jsonl": good, "b.jsonl": b"{'id': 1}\n" * 500_000})
    began = time.perf_counter()
    with pytest.raises(ErrorBudgetError) as raised:
        pipeline.run(LocalExecutor(workers))
    assert time.perf_counter() - began < 20
    assert "more than max_errors=1% allows" in str(raised.value)
    assert "stage 'read_jsonl': not JSON" in str(raised.value)


def test_two_bad_files_among_300_good_ones(tmp_path: Path) -> None:
    files = {
        f"part-{n:03}.jsonl": b"".join(line + b"\n" for line in lines_of(ROWS[n * 40 : n * 40 + 40]))
        for n in range(300)
    }
    files |= {"part-000x.jsonl": b'{"broken\n' * 30, "part-200x.jsonl": bytes(3000)}
    result = jsonl(tmp_path, files).run(LocalExecutor(2))
    assert reader_line(result).rows_out == 12_000
    found = sorted((record.file, record.position) for record in result.quarantined())
    assert found == [*(("part-000x.jsonl", 9 * n) for n in range(30)), ("part-200x.jsonl", 0)]


@pytest.mark.parametrize("first", ['{"broken', "\0\0\0\0"])
def test_damage_to_the_first_file_does_not_stop_the_plan(first: str, tmp_path: Path) -> None:
    files = {"a.jsonl": first.encode(), "b.jsonl": b"".join(line + b"\n" for line in lines_of(ROWS[:1000]))}
    [record] = jsonl(tmp_path, files).run(LocalExecutor(0)).quarantined()
    assert (record.file, record.position) == ("a.jsonl", 0)


@pytest.mark.parametrize(
    ("reader", "content", "words"),
    [
        (JsonlReader, b"just some words\n" * 1000, "is not JSON lines: none of its first"),
        (JsonlReader, parquet(ROWS[:10]), "it looks like Parquet: use ParquetReader"),
        (ParquetReader, b'{"a": 1}\n', "it looks like JSON lines: use JsonlReader"),
        (CsvReader, b'{"a": 1}\n', "it looks like JSON lines: use JsonlReader"),
        (ArrowReader, parquet(ROWS[:10]), "it looks like Parquet: use ParquetReader"),
        (TextReader, parquet(ROWS[:10]), "it looks like Parquet: use ParquetReader"),
    ],
)
def test_another_format_fails_in_the_plan(reader: Any, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.data").write_bytes(content)
    with pytest.raises(InputError, match=words):
        Pipeline("p", stages=[reader(str(tmp_path / "a.data"))]).run(LocalExecutor(0))


# -- files that cannot be opened, or are gone ------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["a.jsonl.gz", "m.jsonl.gz"])
def test_a_file_that_gives_read_errors_is_set_aside_whole(name: str, workers: int, tmp_path: Path) -> None:
    files = {f"f{n}.jsonl": b"".join(line + b"\n" for line in lines_of(ROWS[n * 50 : n * 50 + 50])) for n in range(10)}
    pipeline = jsonl(tmp_path, files)
    (tmp_path / "in" / name).symlink_to("/proc/self/mem")  # a real input/output error
    result = pipeline.run(LocalExecutor(workers))
    assert reader_line(result).rows_out == 500
    [record] = result.quarantined()
    assert (record.kind, record.files, record.attempts) == ("raised", (f"{tmp_path}/in/{name}",), 3)
    assert f"/in/{name}" in str(record.content)
    assert "Input/output error" in record.error
    with pytest.raises(StageError, match=f"in/{name}: OSError: .*Input/output error"):
        pipeline.run(LocalExecutor(workers), on_error="raise")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
@pytest.mark.parametrize("name", ["a.jsonl", "m.jsonl"])
def test_a_file_that_may_not_be_read_is_set_aside_whole(name: str, tmp_path: Path) -> None:
    data = b"".join(line + b"\n" for line in lines_of(ROWS[:1000]))
    pipeline = jsonl(tmp_path, {"f.jsonl": data, name: data}, blocksize=10_000)
    (tmp_path / "in" / name).chmod(0)
    [record] = pipeline.run(LocalExecutor(0)).quarantined()
    assert record.files == (f"{tmp_path}/in/{name}",)
    assert "Permission denied" in record.error


def test_a_file_that_has_gone_stops_the_run(tmp_path: Path) -> None:
    @processing_stage(name="remove")
    def remove(task: Any) -> Any:
        (tmp_path / "b.jsonl").unlink(missing_ok=True)
        return task

    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(b'{"text": "a"}\n')
    with pytest.raises(StageError, match="b.jsonl was deleted after it was listed: start the run again"):
        Pipeline("p", stages=[JsonlReader(str(tmp_path)), remove]).run(LocalExecutor(0))


# -- previews --------------------------------------------------------------------------------------------


def test_a_preview_goes_on_and_says_so(tmp_path: Path) -> None:
    lines = [b"oh", *lines_of(ROWS[:3]), b"no", *lines_of(ROWS[3:6])]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    preview = Pipeline("p", stages=[JsonlReader(str(tmp_path))]).preview(5)
    assert [row.data["id"] for row in preview] == [0, 1, 2, 3, 4]
    assert preview.notes[0].startswith("a.jsonl, at 0: not JSON")
    assert str(preview).splitlines()[-1].startswith("could not be used: a.jsonl, at 0: not JSON: ")
    assert str(preview).endswith(" (and 1 more)")
    with pytest.raises(StageError, match="line 1"):
        Pipeline("p", stages=[JsonlReader(str(tmp_path), on_bad_record="raise")]).preview(5)
