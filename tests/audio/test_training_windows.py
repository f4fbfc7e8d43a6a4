"""Windows for audio language models, and what they are made of: bandwidth, and the recordings of a challenge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.audio import (
    ALMDataBuilderStage,
    ALMDataOverlapStage,
    AudioTask,
    BandwidthEstimationStage,
    CreateInitialManifestReadSpeechStage,
    ManifestReader,
    ManifestWriterStage,
)
from gristmill.core.errors import GristmillError
from tests.audio.sound_fixtures import noise, read_manifest_file, tone, wav, write_manifest_file
from tests.audio.test_manifest import run


def segment(start: float, end: float, speaker: str = "a", bandwidth: int = 12_000) -> dict[str, Any]:
    words = [{"word": f"w{index}", "end": start + index + 1.0} for index in range(int(end - start))]
    return {"start": start, "end": end, "speaker": speaker, "words": words, "metrics": {"bandwidth": bandwidth}}


def built(segments: list[dict[str, Any]], rate: int = 16_000, **settings: Any) -> dict[str, Any]:
    row = {"audio_filepath": "x.wav", "audio_sample_rate": rate, "segments": segments}
    return ALMDataBuilderStage(target_window_duration=10.0, **settings).process(AudioTask(row)).data


A, B = segment(0, 5), segment(5, 10, "b")
NEXT = segment(10, 15, "a")


@pytest.mark.parametrize(
    ("segments", "settings", "spans", "lost"),
    [
        ([A, B], {}, [(0, 10)], {"win": 1}),
        ([A, B, NEXT], {}, [(0, 11), (5, 15)], {"win": 1}),
        ([A, segment(5, 30, "b")], {}, [(0, 11)], {"win": 1}),
        ([A, segment(5, 30, "b")], {"truncation": False}, [], {"win": 2}),
        ([A, B], {"rate": 8000}, [], {"sr": 2}),
        ([A, segment(5, 10, "b", 4000)], {}, [], {"bw": 1, "win": 1, "next_seg_bm": 1}),
        ([A, segment(5, 10, "a")], {}, [], {"spk": 1, "win": 1}),
        ([A, segment(5, 10, "no-speaker")], {}, [], {"win": 2, "no_spkr": 2}),
        ([A, B], {"min_speakers": 1, "max_speakers": 1}, [], {"win": 2}),
        ([segment(0, 10)], {"min_speakers": 1}, [], {"win": 1}),
        ([], {}, [], {}),
    ],
)
def test_windows_of_segments(
    segments: list[dict[str, Any]], settings: dict[str, Any], spans: list[tuple[float, float]], lost: dict[str, int]
) -> None:
    row = built(segments, **settings)
    found = [(one["segments"][0]["start"], one["segments"][-1]["end"]) for one in row["windows"]]
    assert found == spans
    counted = {name[5:]: number for name, number in row["stats"].items() if name.startswith("lost_") and number}
    assert counted == lost
    assert "segments" not in row
    assert all("words" not in one for window in row["windows"] for one in window["segments"])


@pytest.mark.parametrize(
    ("percentage", "spans", "kept"),
    [
        (0, [(0, 10), (5, 15), (15, 25)], [(0, 10), (15, 25)]),
        (50, [(0, 10), (5, 15)], [(0, 10)]),
        (60, [(0, 10), (5, 15)], [(0, 10), (5, 15)]),
        (0, [(0, 8), (1, 11)], [(1, 11)]),
        (0, [(0, 9), (1, 12)], [(1, 12)]),
        (0, [], []),
    ],
)
def test_of_windows_that_overlap_one_stays(percentage: int, spans: list[Any], kept: list[Any]) -> None:
    windows = [{"segments": [{"start": start, "end": end}]} for start, end in spans]
    stage = ALMDataOverlapStage(overlap_percentage=percentage, target_duration=10.5)
    row = stage.process(AudioTask({"windows": windows})).data
    found = [(one["segments"][0]["start"], one["segments"][-1]["end"]) for one in row["filtered_windows"]]
    assert found == kept
    assert row["filtered_dur"] == sum(end - start for start, end in kept)


def test_bandwidth_of_recordings_and_of_their_segments(tmp_path: Path) -> None:
    (tmp_path / "full.wav").write_bytes(wav(noise(2.0, 16_000)))
    low = tone(2.0, hertz=1000)
    (tmp_path / "low.wav").write_bytes(wav(np.concatenate([low, noise(2.0, 16_000)])))
    segments = [
        {"start": 0.0, "end": 2.0, "text": "low"}, {"start": 2.0, "end": 4.0, "text": "full"},
        {"start": 0.0, "end": 1.0, "speaker": "no-speaker"}, {"start": 9.0, "end": 10.0, "text": "nothing"},
    ]  # fmt: skip
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    source = write_manifest_file(tmp_path / "1.jsonl", [{"audio_filepath": "full.wav"}])
    run([ManifestReader(source), BandwidthEstimationStage(), ManifestWriterStage(whole)])
    assert read_manifest_file(whole)[0]["metrics"] == {"bandwidth": 8000}
    source = write_manifest_file(tmp_path / "2.jsonl", [{"audio_filepath": "low.wav", "segments": segments}])
    run([ManifestReader(source), BandwidthEstimationStage(), ManifestWriterStage(parts)])
    found = [one.get("metrics") for one in read_manifest_file(parts)[0]["segments"]]
    assert 1000 <= found[0]["bandwidth"] < 1500
    assert found[1:] == [{"bandwidth": 8000}, None, {"metric_skip_reason": "no sound from 9.0 to 10.0 s"}]


def test_read_speech_is_listed_with_book_and_reader(tmp_path: Path) -> None:
    folder = tmp_path / "raw" / "mnt" / "read_speech"
    folder.mkdir(parents=True)
    for name in ("book_00000_chp_0009_reader_06709_0_seg_1", "book_00002_chp_0001_reader_00012_1_seg_2", "other"):
        (folder / f"{name}.wav").write_bytes(b"")
    out = tmp_path / "out.jsonl"
    run([CreateInitialManifestReadSpeechStage(str(tmp_path / "raw"), max_samples=2), ManifestWriterStage(out)])
    rows = read_manifest_file(out)
    assert [(row["book_id"], row["reader_id"], row["text"]) for row in rows] == [
        ("00000", "06709", ""), ("00002", "00012", ""),
    ]  # fmt: skip
    run([CreateInitialManifestReadSpeechStage(str(tmp_path / "raw"), max_samples=-1), ManifestWriterStage(out)])
    assert len(read_manifest_file(out)) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(GristmillError, match="auto_download downloads nothing"):
        run([CreateInitialManifestReadSpeechStage(str(tmp_path / "empty")), ManifestWriterStage(tmp_path / "2.jsonl")])
