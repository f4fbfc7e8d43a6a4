"""Estimates: rows, bytes and disk of the whole come from a sample, and nothing of the user's is touched."""

from __future__ import annotations

import functools
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill import LocalExecutor, Pipeline, ProcessingStage, Route
from gristmill.cli.main import app
from gristmill.cli.print_estimate import format_bytes, format_duration
from gristmill.core.errors import PlanError
from gristmill.dedup import ExactDeduplicationStage
from gristmill.observe.estimate import Estimate, estimate
from gristmill.observe.pipeline_on_sample import InputSample
from gristmill.text import (
    JsonlReader,
    JsonlWriter,
    ParquetReader,
    ParquetWriter,
    ScoreFilter,
    TrainTestSplit,
    WordCountFilter,
)
from tests.recipes.user_stages import MakeDocuments

FILES, ROWS = 4, 3500


def rows(file: int) -> list[dict[str, Any]]:
    """Half of the documents have less than 20 words."""
    draw = random.Random(file)
    words = ["".join(draw.choices("abcdefghij", k=6)) for _ in range(500)]
    return [{"id": n, "text": " ".join(draw.choices(words, k=draw.choice([10, 30])))} for n in range(ROWS)]


@pytest.fixture(scope="module")
def made_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, Path]]:
    """A corpus in a format."""

    def make(kind: str) -> tuple[str, Path]:
        folder = tmp_path_factory.mktemp(kind)
        for file in range(FILES):
            if kind == "parquet":
                pq.write_table(pa.Table.from_pylist(rows(file)), folder / f"{file}.parquet", row_group_size=500)
                continue
            text = "".join(json.dumps(row) + "\n" for row in rows(file)).encode()
            name = f"{file}.jsonl" if kind == "jsonl" else f"{file}.jsonl.gz"
            (folder / name).write_bytes(text if kind == "jsonl" else gzip.compress(text, 1))
        return kind, folder

    return functools.cache(make)


def pipeline(corpus: tuple[str, Path], out: Path, *more: ProcessingStage[Any, Any]) -> Pipeline:
    kind, folder = corpus
    reader = (ParquetReader if kind == "parquet" else JsonlReader)(str(folder))
    writer = (ParquetWriter if kind == "parquet" else JsonlWriter)(str(out))
    return Pipeline("estimated", stages=[reader, ScoreFilter(WordCountFilter(min_words=20)), *more, writer])


def estimated(made: Pipeline, workers: int = 2, seconds: float = 0.02) -> Estimate:
    return estimate(made, LocalExecutor(num_workers=workers), LocalExecutor(num_workers=0), seconds)


@pytest.mark.parametrize("kind", ["jsonl", "gz", "parquet"])
def test_a_sample_tells_rows_and_disk_of_the_whole(
    kind: str, made_of: Callable[[str], tuple[str, Path]], tmp_path: Path
) -> None:
    corpus = made_of(kind)
    before = {path: path.stat().st_mtime_ns for path in corpus[1].iterdir()}
    made = pipeline(corpus, tmp_path / "out")
    estimated_run = estimated(made)
    assert not (tmp_path / "out").exists(), "nothing is written where the output will be"
    assert {path: path.stat().st_mtime_ns for path in corpus[1].iterdir()} == before
    assert estimated_run.sampled_share < 0.9
    result = made.run(LocalExecutor(num_workers=0))
    written = sum(Path(file).stat().st_size for file in result.files())
    assert estimated_run.rows_in == pytest.approx(FILES * ROWS, rel=0.15)
    assert estimated_run.rows_out == pytest.approx(result.summary().rows_out, rel=0.15)
    assert estimated_run.output_bytes == pytest.approx(written, rel=0.3)
    assert estimated_run.input_bytes == sum(path.stat().st_size for path in before)
    assert estimated_run.temporary_bytes == 0
    assert [stage.name for stage in estimated_run.stages] == [line.name for line in result.summary().stages]
    assert estimated_run.memory_bytes > estimated_run.workers * estimated_run.worker_bytes > 0
    assert 0 < estimated_run.seconds < estimated_run.cpu_seconds + 5


def test_a_pipeline_with_exchanges_needs_room_for_what_passes_through_them(
    made_of: Callable[[str], tuple[str, Path]], tmp_path: Path
) -> None:
    made = pipeline(made_of("jsonl"), tmp_path / "out", ExactDeduplicationStage())
    estimated_run = estimated(made, workers=0)
    assert estimated_run.workers == 1
    result = made.run(LocalExecutor(num_workers=0), tmp_path / "run")
    kept = sum(path.stat().st_size for path in (tmp_path / "run" / "segments").rglob("*") if path.is_file())
    assert estimated_run.rows_out == pytest.approx(result.summary().rows_out, rel=0.15)
    assert estimated_run.temporary_bytes == pytest.approx(kept, rel=0.4)
    assert [stage.name for stage in estimated_run.stages] == [line.name for line in result.summary().stages]
    assert any("fewer duplicates" in note for note in estimated_run.notes)


def test_rows_and_bytes_of_several_branches_are_those_of_a_run(
    made_of: Callable[[str], tuple[str, Path]], tmp_path: Path
) -> None:
    branches = {name: JsonlWriter(tmp_path / "out" / name) for name in ("train", "test")}
    made = pipeline(made_of("jsonl"), tmp_path / "unused")
    stages = [*made.stages[:-1], TrainTestSplit({"train": 0.7, "test": 0.3}), Route("split", branches)]
    found = estimated(Pipeline("routed", stages=stages))
    result = Pipeline("routed", stages=stages).run(LocalExecutor(num_workers=0))
    written = {name: sum(path.stat().st_size for path in (tmp_path / "out" / name).iterdir()) for name in branches}
    assert found.rows_in == pytest.approx(FILES * ROWS, rel=0.15)
    assert found.rows_out == pytest.approx(result.summary().rows_out, rel=0.15)
    assert found.output_bytes == pytest.approx(sum(written.values()), rel=0.3)
    rows_of = {line.name: line.rows_out for line in result.summary().stages}
    for stage in found.stages:
        assert stage.kept == pytest.approx(rows_of[stage.name], rel=0.3), stage.name


def test_an_input_of_unknown_size_is_refused() -> None:
    with pytest.raises(PlanError, match="needs a pipeline that starts with a reader of files"):
        estimated(Pipeline("own", stages=[MakeDocuments()]))


def test_the_command_says_it_and_a_run_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(1)))
    settings = ["quickstart", "--set", f"input={tmp_path / 'in'}", "--set", f"output={tmp_path / 'out'}"]
    planned = CliRunner().invoke(app, ["plan", *settings, "--workers", "1", "--estimate"])
    assert planned.exit_code == 0, planned.output
    assert "with 1 worker\n" in planned.stdout
    assert "memory: about" in planned.stdout
    run = ["run", *settings, "--workers", "0", "--run-dir", str(tmp_path / "run"), "--estimate", "--json"]
    done = CliRunner().invoke(app, run)
    assert done.exit_code == 0, done.output
    first, *_, finish = (json.loads(line) for line in done.stdout.splitlines())
    kept = json.loads((tmp_path / "run" / "estimate.json").read_text())
    assert first.items() >= {"event": "estimate", **kept}.items()
    assert kept["rows_in"] == finish["rows_in"] == ROWS
    assert {"seconds", "memory_bytes", "output_bytes", "temporary_bytes", "stages"} <= kept.keys()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (12.4, "12 s"), (200, "3 min 20 s"), (3600 * 5 + 600, "5 h 10 min"), (59.7, "1 min 0 s")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0 bytes"), (1200, "1.2 kB"), (34e6, "34 MB"), (1.25e13, "12 TB")])
def test_sizes_read_well(nbytes: float, text: str) -> None:
    assert format_bytes(nbytes) == text


def test_only_compressed_files_grow_when_they_are_read(tmp_path: Path) -> None:
    lines = b"".join(b'{"text": "grist for the mill %d"}\n' % row for row in range(2000))
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    sip = InputSample(Pipeline("mixed", stages=[JsonlReader(tmp_path), JsonlWriter(tmp_path / "out")]))
    assert sip.total_amount() == pytest.approx(2 * len(lines), rel=0.01)
