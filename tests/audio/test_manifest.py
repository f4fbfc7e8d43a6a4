"""Manifests: read by several workers, written as one file."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gristmill import LocalExecutor, Pipeline, ProcessingStage
from gristmill.audio import AudioBatch, ManifestReader, ManifestWriterStage, WaveformStage
from gristmill.cli.main import app
from tests.audio.sound_fixtures import RATE, read_manifest_file, tone, wav, write_manifest_file


def run(stages: Sequence[ProcessingStage[Any, Any]], workers: int = 0, **settings: Any) -> Any:
    return Pipeline("audio", stages=list(stages)).run(LocalExecutor(num_workers=workers), max_errors=100, **settings)


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"audio_filepath": f"/data/{n}.wav", "duration": n / 7, "text": f"line {n}", "lang": "ü"} for n in range(count)
    ]


def test_what_is_read_is_written_in_the_same_order(tmp_path: Path) -> None:
    for number in range(3):
        write_manifest_file(tmp_path / "in" / f"{number}.jsonl", rows(50 * (number + 1)))
    out = tmp_path / "out" / "all.jsonl"
    run([ManifestReader(str(tmp_path / "in"), blocksize=2000), ManifestWriterStage(out)])
    assert read_manifest_file(out) == rows(50) + rows(100) + rows(150)
    assert sorted(path.name for path in out.parent.iterdir() if not path.name.endswith(".run")) == ["all.jsonl"]


def test_workers_blocks_and_batches_change_no_byte(tmp_path: Path) -> None:
    source = write_manifest_file(tmp_path / "in.jsonl", rows(500))
    found = set()
    for index, (workers, settings) in enumerate(
        [(0, {}), (2, {"blocksize": 3000}), (0, {"task_batch_size": 7}), (0, {"batch_seconds": 9.0})]
    ):
        run([ManifestReader(source, **settings), ManifestWriterStage(tmp_path / f"{index}.jsonl")], workers)
        found.add((tmp_path / f"{index}.jsonl").read_bytes())
    assert len(found) == 1


def test_a_run_that_is_done_is_not_done_again_and_new_files_are_added(tmp_path: Path) -> None:
    write_manifest_file(tmp_path / "in" / "b.jsonl", rows(5))
    out = tmp_path / "out.jsonl"
    stages = [ManifestReader(str(tmp_path / "in")), ManifestWriterStage(out)]
    settings = {"run_dir": str(tmp_path / "run")}
    run(stages, **settings)
    first = out.stat().st_mtime_ns
    run(stages, **settings)
    assert out.stat().st_mtime_ns == first
    write_manifest_file(tmp_path / "in" / "a.jsonl", rows(3))
    run([ManifestReader(str(tmp_path / "in")), ManifestWriterStage(out)], **settings)
    assert sorted(map(json.dumps, read_manifest_file(out))) == sorted(map(json.dumps, rows(5) + rows(3)))


def test_relative_paths_begin_beside_the_manifest(tmp_path: Path) -> None:
    given = [{"audio_filepath": name} for name in ("clips/a.wav", "/data/b.wav", "s3://bucket/c.wav")]
    source = write_manifest_file(tmp_path / "in.jsonl", given)
    run([ManifestReader(source), ManifestWriterStage(tmp_path / "out.jsonl")])
    paths = [row["audio_filepath"] for row in read_manifest_file(tmp_path / "out.jsonl")]
    assert paths == [f"{tmp_path}/clips/a.wav", "/data/b.wav", "s3://bucket/c.wav"]


def test_a_line_without_a_path_goes_to_quarantine(tmp_path: Path) -> None:
    given = [*rows(2), {"duration": 1.0}, {"audio_filepath": ""}, {"audio_filepath": 7}, {"audio_filepath": None}]
    source = write_manifest_file(tmp_path / "in.jsonl", given)
    result = run([ManifestReader(source), ManifestWriterStage(tmp_path / "out.jsonl")])
    assert len(read_manifest_file(tmp_path / "out.jsonl")) == 2
    reasons = [record.error for record in result.quarantined()]
    assert len(reasons) == 4
    assert all("without audio_filepath" in reason for reason in reasons)


class Loudest(WaveformStage):
    """The largest sample, as heard at 16 kHz."""

    piece_seconds = 2.5

    def process_waveforms(self, rows: AudioBatch, waveforms: Sequence[Any]) -> AudioBatch:
        import pyarrow as pa

        assert all(one.ndim == 1 for one in waveforms)
        rows = rows.with_column("peak", pa.array([float(np.abs(one).max()) for one in waveforms]))
        return rows.with_column("heard", pa.array([len(one) / RATE for one in waveforms]))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stage_hears_each_recording_once_and_bad_ones_are_set_aside(tmp_path: Path, workers: int) -> None:
    given = []
    for number in range(6):
        (tmp_path / f"{number}.wav").write_bytes(wav(tone(1.0, 48_000, channels=2, level=0.1 * (number + 1)), 48_000))
        given.append({"audio_filepath": f"{number}.wav"})
    (tmp_path / "3.wav").write_text("no sound")
    given.append({"audio_filepath": "5.wav", "offset": 0.25, "duration": 0.5})
    source = write_manifest_file(tmp_path / "in.jsonl", given)
    result = run([ManifestReader(source), Loudest(), Loudest(), ManifestWriterStage(tmp_path / "out.jsonl")], workers)
    found = read_manifest_file(tmp_path / "out.jsonl")
    assert [Path(row["audio_filepath"]).stem for row in found] == ["0", "1", "2", "4", "5", "5"]
    assert [row["heard"] for row in found] == [1.0] * 5 + [0.5]
    assert [record.error for record in result.quarantined() if "3.wav: not a recording" in record.error]


class SlowFirst(ProcessingStage[AudioBatch, AudioBatch]):
    """The first manifest takes longest, so it is committed last."""

    def process(self, task: AudioBatch) -> AudioBatch:
        time.sleep(1.0 if "0.jsonl" in str(task.metadata.get("file")) else 0.0)
        return task


def test_lines_are_in_the_order_of_the_input_whichever_manifest_is_done_first(tmp_path: Path) -> None:
    for number in range(3):
        lines = [{**row, "text": f"{number} {row['text']}"} for row in rows(5)]
        write_manifest_file(tmp_path / "in" / f"{number}.jsonl", lines)
    out = tmp_path / "all.jsonl"
    run([ManifestReader(str(tmp_path / "in")), SlowFirst(), ManifestWriterStage(out)], workers=2)
    assert [row["text"][0] for row in read_manifest_file(out)] == [*"000001111122222"]


def test_commands_know_an_output_that_is_one_file(tmp_path: Path) -> None:
    source = write_manifest_file(tmp_path / "in.jsonl", [*rows(4), {"text": "no path"}])
    out = tmp_path / "out" / "all.jsonl"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other.jsonl").write_text("of someone else")
    run([ManifestReader(source), ManifestWriterStage(out)], rejected=True)

    def command(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments])

    assert "1 file" in command("verify", str(out)).stdout
    assert "in.jsonl" in command("quarantine", "list", str(out)).stdout
    assert "4 of" in command("card", str(out)).stdout
    for target in (tmp_path / "pushed", tmp_path / "pushed"):
        assert command("push", str(out), str(target)).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "pushed").iterdir()) == ["README.md", "all.jsonl"]
    assert read_manifest_file(tmp_path / "pushed" / "all.jsonl") == rows(4)
    out.write_text(out.read_text()[:-2])
    assert command("verify", str(out)).exit_code == 1
    assert "is not as it was written" in command("push", str(out), str(tmp_path / "pushed")).stderr
