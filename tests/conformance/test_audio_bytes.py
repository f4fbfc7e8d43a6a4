"""An audio pipeline writes the same bytes on every executor: decoded, filtered, cut, joined, and in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import (
    AudioDurationFilter,
    AudioLoudnessFilter,
    AudioScoreFilter,
    GetAudioDurationStage,
    ManifestReader,
    ManifestWriterStage,
    ResampleAudioStage,
    SegmentConcatenationStage,
    SplitLongAudioStage,
    TarredManifestWriter,
)
from tests.audio.sound_fixtures import noise, wav, write_manifest_file
from tests.conformance.executor_params import make, params


@pytest.fixture
def executor(request: pytest.FixtureRequest) -> Any:
    return make(request)


def curated(root: Path, out: Path, executor: Any, blocksize: int | None) -> dict[str, bytes]:
    for name, writer in (("m", ManifestWriterStage(out / "m.jsonl")), ("t", TarredManifestWriter(out / "t", 4))):
        stages = [
            ManifestReader(str(root / "in"), blocksize=blocksize, task_batch_size=3 if blocksize else 4000),
            GetAudioDurationStage(),
            AudioScoreFilter([AudioDurationFilter(0.5), AudioLoudnessFilter(-60, 0)], [None, "lufs"]),
            SplitLongAudioStage(0.7, 0.1),
            ResampleAudioStage(target_sample_rate=16_000),
            SegmentConcatenationStage(0.1),
            writer,
        ]
        Pipeline(name, stages=stages).run(executor, max_errors=20)
    files = [out / "m.jsonl", *(path for path in (out / "t").rglob("*") if path.is_file())]
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.parametrize("executor", params("local-2"), indirect=True)
def test_the_same_bytes_on_every_executor(tmp_path: Path, executor: Any) -> None:
    for number in range(8):
        sound = noise(0.2 if number == 5 else 1.0 + number / 10, 8000, level=0 if number == 7 else 0.1, seed=number)
        (tmp_path / f"{number}.wav").write_bytes(b"no sound" if number == 4 else wav(sound, 8000))
    for part in range(2):
        rows = [{"audio_filepath": f"../{n}.wav", "text": f"{part} {n}"} for n in range(8)]
        write_manifest_file(tmp_path / "in" / f"{part}.jsonl", rows)
    here = curated(tmp_path, tmp_path / "here", LocalExecutor(num_workers=0), None)
    assert len(here["m.jsonl"].splitlines()) == 10
    assert curated(tmp_path, tmp_path / "there", executor, 200) == here
