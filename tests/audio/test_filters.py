"""Filters of recordings: what they score, what they drop, and that nothing is decoded twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.audio import (
    AudioBandwidthFilter,
    AudioBatch,
    AudioChannelCorrelationFilter,
    AudioChannelsFilter,
    AudioClippingFilter,
    AudioDCOffsetFilter,
    AudioDurationFilter,
    AudioFilter,
    AudioLoudnessFilter,
    AudioSampleRateFilter,
    AudioScore,
    AudioScoreFilter,
    AudioSilenceFilter,
    AudioSNRFilter,
    AudioToDocumentStage,
    GetAudioDurationStage,
    ManifestReader,
    ManifestWriterStage,
    PreserveByValueStage,
)
from gristmill.audio.sound.loudness import loudness
from gristmill.text import JsonlWriter
from tests.audio.sound_fixtures import RATE, noise, read_manifest_file, tone, wav, write_manifest_file
from tests.audio.test_manifest import rows, run

STEREO = tone(1.0, channels=2)
PAUSES = np.concatenate([tone(1.0), tone(1.0) * 0]) + noise(2.0, level=1e-3)
LOW = tone(1.0, hertz=500) + noise(1.0, level=1e-5)
HALF_SILENT = np.concatenate([tone(1.0), np.zeros((RATE, 1), np.float32)])

TABLE: list[tuple[AudioFilter, Any, float, bool]] = [
    (AudioDurationFilter(1.5, 3), HALF_SILENT, 2.0, True),
    (AudioDurationFilter(1.5, 3), tone(1.0), 1.0, False),
    (AudioDurationFilter(1.5, 3), tone(4.0), 4.0, False),
    (AudioSampleRateFilter(16_000), tone(1.0), 16_000, True),
    (AudioSampleRateFilter(22_050), tone(1.0), 16_000, False),
    (AudioChannelsFilter(1, 1), STEREO, 2, False),
    (AudioBandwidthFilter(4000), noise(1.0), 8000.0, True),
    (AudioBandwidthFilter(4000), LOW, 550.0, False),
    (AudioClippingFilter(0.1), tone(1.0), 0.0, True),
    (AudioClippingFilter(0.1), np.clip(tone(1.0, level=2.0), -1, 1), 0.67, False),
    (AudioSilenceFilter(0.4), tone(1.0), 0.0, True),
    (AudioSilenceFilter(0.4), HALF_SILENT, 0.5, False),
    (AudioSNRFilter(10), PAUSES, 46.5, True),
    (AudioSNRFilter(10), noise(2.0), 0.0, False),
    (AudioLoudnessFilter(-30, -10), tone(2.0, hertz=997), -13.5, True),
    (AudioLoudnessFilter(-30, -10), tone(2.0, hertz=997, level=0.003), -53.5, False),
    (AudioLoudnessFilter(-30, -10), tone(1.0) * 0, -70.0, False),
    (AudioDCOffsetFilter(0.02), tone(1.0), 0.0, True),
    (AudioDCOffsetFilter(0.02), tone(1.0) + 0.1, 0.1, False),
    (AudioChannelCorrelationFilter(0.9), STEREO, 0.0, True),
    (AudioChannelCorrelationFilter(0.9), tone(1.0), 0.0, True),
    (AudioChannelCorrelationFilter(0.9), np.repeat(noise(1.0), 2, axis=1), 1.0, False),
    (AudioChannelCorrelationFilter(0.9), np.concatenate([tone(1.0), 0 * tone(1.0)], axis=1), 0.0, True),
]
TOLERANCE = {"AudioSNRFilter": 2.5, "AudioBandwidthFilter": 60, "AudioLoudnessFilter": 0.15}


@pytest.mark.parametrize(("tool", "samples", "score", "kept"), TABLE)
def test_a_filter_scores_and_decides(tool: AudioFilter, samples: Any, score: float, kept: bool) -> None:
    batch = AudioBatch([{"audio": wav(samples, subtype="FLOAT")}])
    [found] = AudioScore(tool, "score").process(batch).to_rows()
    assert found["score"] == pytest.approx(score, abs=TOLERANCE.get(tool.name, 0.01))
    assert AudioScoreFilter(tool).process(batch).num_items == int(kept)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (AudioDurationFilter, {"min_seconds": 5, "max_seconds": 1}, "leaves nothing"),
        (AudioClippingFilter, {"max_clipped": -1}, "0 or more"),
        (AudioBandwidthFilter, {"frequency_threshold": 3.0}, "negative number of decibels"),
        (AudioBandwidthFilter, {"frequency_threshold": float("nan")}, "negative number of decibels"),
        (AudioBandwidthFilter, {"frequency_threshold": -(10**400)}, "negative number of decibels"),
        (AudioLoudnessFilter, {"min_lufs": -5, "max_lufs": -20}, "above max_lufs"),
        (PreserveByValueStage, {"input_value_key": "x", "target_value": 1, "operator": "is"}, "must be one of"),
    ],
)
def test_wrong_parameters_are_refused(kind: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**arguments)


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000, 96_000])
def test_loudness_is_that_of_the_standard(rate: int) -> None:
    """Signals of EBU Tech 3341: stereo sines of 1 kHz at -23 and -33 dBFS, and one with pauses."""

    def sine(decibels: float, seconds: float) -> Any:
        one = tone(seconds, rate, hertz=1000.0, level=10 ** (decibels / 20))
        return np.repeat(one, 2, axis=1)

    assert loudness([sine(-23, 20)], rate, 2) == pytest.approx(-23.0, abs=0.1)
    assert loudness([sine(-33, 20)], rate, 2) == pytest.approx(-33.0, abs=0.1)
    third = [sine(-36, 10), sine(-23, 60), sine(-36, 10)]
    assert loudness(third, rate, 2) == pytest.approx(-23.0, abs=0.1)


def test_loudness_does_not_depend_on_blocks() -> None:
    samples = noise(30.0)
    whole = loudness([samples], RATE, 1)
    for size in (1000, 77_777, 200_000):
        parts = [samples[at : at + size] for at in range(0, len(samples), size)]
        assert loudness(parts, RATE, 1) == pytest.approx(whole, abs=1e-5)


def test_filters_share_one_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gristmill.audio.waveforms as waveforms

    decoded = []

    def counted(source: Any, *arguments: Any, **settings: Any) -> Any:
        decoded.append(source)
        return decode(source, *arguments, **settings)

    decode = waveforms.decode
    monkeypatch.setattr(waveforms, "decode", counted)
    for number in range(3):
        (tmp_path / f"{number}.wav").write_bytes(wav(PAUSES))
    source = write_manifest_file(tmp_path / "in.jsonl", [{"audio_filepath": f"{n}.wav"} for n in range(3)])
    chain = [
        AudioScoreFilter(
            [AudioDurationFilter(), AudioSNRFilter(), AudioClippingFilter()], ["seconds", "snr", "clipped"]
        ),
        AudioScoreFilter(AudioLoudnessFilter(), "lufs"),
        AudioScore(AudioBandwidthFilter(), "hertz"),
    ]
    run([ManifestReader(source), *chain, ManifestWriterStage(tmp_path / "out.jsonl")])
    found = read_manifest_file(tmp_path / "out.jsonl")
    assert len(found) == 3
    assert list(found[0]) == ["audio_filepath", "seconds", "snr", "clipped", "lufs", "hertz"]
    assert len(decoded) == 3


def test_long_recordings_are_measured_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    import gristmill.audio.score as score

    batch = [{"audio": wav(PAUSES)}, {"audio": wav(HALF_SILENT), "offset": 0.5, "duration": 1.0}]
    tools = [AudioSNRFilter(None), AudioLoudnessFilter(None, None), AudioBandwidthFilter(None), AudioSilenceFilter(1)]
    names = [tool.name for tool in tools]
    whole = AudioScore(tools, names).process(AudioBatch(batch)).to_rows()
    monkeypatch.setattr(score, "STREAMED_BYTES", 100)
    again = AudioScore(tools, names).process(AudioBatch(batch)).to_rows()
    for one, other in zip(whole, again, strict=True):
        assert [other[name] for name in names] == pytest.approx([one[name] for name in names])


def test_recordings_that_cannot_be_decoded_go_to_quarantine_alone(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.wav").write_bytes(wav(PAUSES) if number % 4 else b"nothing")
    source = write_manifest_file(tmp_path / "in.jsonl", [{"audio_filepath": f"{n}.wav"} for n in range(9)])
    for stage in (
        AudioScoreFilter(AudioSNRFilter(), "snr"),
        AudioScore(AudioSNRFilter(), "snr"),
        GetAudioDurationStage(),
    ):
        result = run([ManifestReader(source), stage, ManifestWriterStage(tmp_path / f"{stage.name}.jsonl")])
        assert len(read_manifest_file(tmp_path / f"{stage.name}.jsonl")) == 6
        reasons = [record.error for record in result.quarantined()]
        assert len(reasons) == 3
        assert all(".wav: not a recording" in reason for reason in reasons)


def test_durations_come_from_headers(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(tone(2.0)))
    given = [{"audio_filepath": "a.wav"}, {"audio_filepath": "a.wav", "offset": 0.5}]
    given.append({"audio_filepath": "a.wav", "offset": 0.5, "duration": 1.0})
    source = write_manifest_file(tmp_path / "in.jsonl", given)
    run([ManifestReader(source), GetAudioDurationStage(), ManifestWriterStage(tmp_path / "out.jsonl")])
    assert [row["duration"] for row in read_manifest_file(tmp_path / "out.jsonl")] == [2.0, 1.5, 1.0]


@pytest.mark.parametrize(
    ("operator", "target", "left"),
    [("eq", 1.0, [7]), ("ne", 1.0, 19), ("lt", 1, 7), ("le", 1, 8), ("gt", 1, 12), ("ge", 1, 13)],
)
def test_rows_are_kept_by_value(tmp_path: Path, operator: str, target: float, left: Any) -> None:
    source = write_manifest_file(tmp_path / "in.jsonl", [*rows(20), {"audio_filepath": "/x.wav"}])
    stage = PreserveByValueStage("duration", target, operator)
    run([ManifestReader(source), stage, ManifestWriterStage(tmp_path / "out.jsonl")])
    assert len(read_manifest_file(tmp_path / "out.jsonl")) == (len(left) if isinstance(left, list) else left)


def test_rows_are_kept_by_text(tmp_path: Path) -> None:
    source = write_manifest_file(tmp_path / "in.jsonl", rows(20))
    stages = [PreserveByValueStage("text", "line 7"), AudioToDocumentStage(), JsonlWriter(tmp_path / "out")]
    run([ManifestReader(source), *stages])
    [file] = (tmp_path / "out").glob("*.jsonl")
    assert [row["text"] for row in read_manifest_file(file)] == ["line 7"]
