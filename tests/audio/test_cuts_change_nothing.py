"""Stages that join rows give the same whatever blocks, batches and workers the input is cut into."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.audio import (
    AudioDurationFilter,
    AudioScoreFilter,
    JoinSplitAudioMetadataStage,
    ManifestReader,
    ManifestWriterStage,
    SegmentConcatenationStage,
    SegmentExtractionStage,
    SplitLongAudioStage,
    TimestampMapperStage,
)
from gristmill.audio import join_segments as joins
from tests.audio.sound_fixtures import noise, read_manifest_file, wav, write_manifest_file
from tests.audio.test_manifest import run


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Segments of five recordings; one comes twice, and one row in six is of a file that is not there."""
    root = tmp_path_factory.mktemp("recordings")
    for number in range(5):
        (root / f"{number}.wav").write_bytes(wav(noise(4.0, 8000, seed=number), 8000))
    recordings = [0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 3, 4, 4, 0, 0]
    rows = [
        {"audio_filepath": f"{one}.wav", "offset": 0.25 * index, "duration": 0.125, "text": f"word {index}"}
        for index, one in enumerate(recordings)
    ]
    rows.insert(6, {"audio_filepath": "gone.wav", "offset": 0.0, "duration": 1.0, "text": "nothing"})
    return write_manifest_file(root / "in.jsonl", rows)


CHAINS: dict[str, Any] = {
    "joined": lambda: [SegmentConcatenationStage(0.1)],
    "mapped": lambda: [SegmentConcatenationStage(0.1), TimestampMapperStage()],
    "split": lambda: [SplitLongAudioStage(0.05, 0.01)],
    "split and joined": lambda: [
        SplitLongAudioStage(0.05, 0.01), AudioScoreFilter(AudioDurationFilter(0.02)), JoinSplitAudioMetadataStage(),
    ],
}  # fmt: skip


def outcome(manifest: str, chain: str, blocksize: int | None, rows: int, workers: int = 0) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        stages = [ManifestReader(manifest, blocksize=blocksize, task_batch_size=rows), *CHAINS[chain]()]
        run([*stages, ManifestWriterStage(out)], workers)
        return out.read_bytes()


@pytest.mark.parametrize("chain", CHAINS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocksize=st.integers(80, 1500), rows=st.integers(1, 20))
def test_blocks_and_batches_change_no_byte(manifest: str, chain: str, blocksize: int, rows: int) -> None:
    assert outcome(manifest, chain, blocksize, rows) == outcome(manifest, chain, None, 4000)


def test_workers_change_no_byte(manifest: str) -> None:
    assert outcome(manifest, "joined", 300, 2, workers=2) == outcome(manifest, "joined", None, 4000)


def test_neighbours_of_one_recording_become_one_sound(manifest: str, tmp_path: Path) -> None:
    stages = [ManifestReader(manifest, task_batch_size=2), SegmentConcatenationStage(0.0)]
    run([*stages, SegmentExtractionStage(tmp_path / "wavs"), ManifestWriterStage(tmp_path / "out.jsonl")])
    rows = read_manifest_file(tmp_path / "out.jsonl")
    assert [Path(row["original_file"]).stem for row in rows] == ["0", "1", "2", "2", "3", "4", "0"]
    assert [len(row["segment_mapping"]) for row in rows] == [3, 1, 2, 4, 1, 2, 2]
    assert len({row["audio_filepath"] for row in rows}) == 7


def test_a_joined_sound_that_is_too_long_is_set_aside(
    manifest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "MAX_DECODED_BYTES", 3 * 1000 * 4)  # three segments
    out = tmp_path / "out.jsonl"
    result = run(
        [ManifestReader(manifest, task_batch_size=2), SegmentConcatenationStage(0.0), ManifestWriterStage(out)]
    )
    assert [len(row["segment_mapping"]) for row in read_manifest_file(out)] == [3, 1, 2, 1, 2, 2]
    errors = [record.error for record in result.quarantined() if "joined, take more than" in record.error]
    assert len(errors) == 4
