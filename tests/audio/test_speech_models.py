"""Voice activity and ratings of speech: real models on real speech, LibriVox clips from examples/audio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import (
    AudioBatch,
    AudioScore,
    AudioScoreFilter,
    DNSMOSFilter,
    ManifestReader,
    ManifestWriterStage,
    SpeechShareFilter,
    VADSegmentationStage,
    score,
    waveforms,
)
from gristmill.audio.speech.dnsmos import _FITTED, PRIMARY, WINDOW, dnsmos
from gristmill.audio.speech.package_weights import PackageFile, session
from gristmill.audio.speech.silero import SILERO, SpeechLimits, speech_probabilities, speech_spans
from gristmill.core.errors import InputError, MissingDependencyError
from gristmill.models.onnx_parts import model_part
from tests.audio.sound_fixtures import RATE, noise, read_manifest_file, wav, write_manifest_file

CLIPS = sorted((Path(__file__).parents[2] / "examples/audio/speech").glob("*.flac"))
SPEECH = [soundfile.read(clip, dtype="float32")[0] for clip in CLIPS]


def with_pauses(seconds: float) -> Any:
    """The clips, with as much silence before, between and after them."""
    pause = np.zeros(round(seconds * RATE), np.float32)
    return np.concatenate([pause, *(part for clip in SPEECH for part in (clip, pause))])


def test_probabilities_are_those_of_the_model_frame_by_frame() -> None:
    """As the wrapper of the package calls it: one call for each frame, with the state and the end of the last."""
    samples = SPEECH[1]
    model = session(str(SILERO.find().with_name("silero_vad.onnx")))
    state, context, expected = np.zeros((2, 1, 128), np.float32), np.zeros((1, 64), np.float32), []
    for at in range(0, len(samples), 512):
        frame = np.pad(samples[at : at + 512], (0, max(0, at + 512 - len(samples))))[None]
        given = {"input": np.concatenate([context, frame], axis=1), "state": state, "sr": np.array(16000)}
        answer = model(given)
        state, context = answer["stateN"], frame[:, -64:]
        expected.append(answer["output"][0, 0])
    assert speech_probabilities(samples) == pytest.approx(np.array(expected), abs=1e-6)


def test_long_recordings_are_one_stream() -> None:
    long = np.tile(SPEECH[0], 12)
    found = speech_probabilities(long)
    assert len(found) > 2048
    assert np.mean(found[2048:] >= 0.5) > 0.8


def test_recordings_that_are_streamed_are_heard_as_if_they_were_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "book.wav", with_pauses(1.5), RATE)
    filters = [SpeechShareFilter(0.0), DNSMOSFilter(1.0)]

    def heard() -> list[Any]:
        batch = AudioBatch([{"audio_filepath": str(tmp_path / "book.wav")}])
        [scored] = AudioScore(filters, ["share", "mos"]).process(batch).to_rows()
        segments = [row for part in VADSegmentationStage(min_duration_sec=1.0).process(batch) for row in part.to_rows()]
        return [scored["share"], scored["mos"], *((row["offset"], row["duration"]) for row in segments)]

    whole = heard()
    monkeypatch.setattr("gristmill.audio.decode.WINDOW_FRAMES", 10_007)
    for module in (waveforms, score):
        monkeypatch.setattr(module, "STREAMED_BYTES", 1000)
    assert heard() == whole
    assert len(whole) == 7


def test_windows_are_rated_as_by_the_whole_model() -> None:
    """The model is run in parts, and what a window has in common with the one before is computed once."""
    samples = np.concatenate(SPEECH)[: 24 * RATE]
    model = session(str(PRIMARY.find()))
    counted = [at for at in range(15) if int((at + 9.01) * RATE) - at * RATE >= WINDOW]
    assert len(counted) < 15
    windows = [samples[None, at * RATE : at * RATE + WINDOW] for at in counted]
    raw = np.concatenate([model({"input_1": window})["Identity:0"] for window in windows])
    expected = np.mean(np.polyval(_FITTED["ovrl"], raw[:, 2]))
    assert dnsmos(samples, p808=False)["ovrl"] == pytest.approx(expected, abs=1e-5)
    # speechmos 0.0.1.1 says of these 24 seconds:
    assert dnsmos(samples, p808=False)["ovrl"] == pytest.approx(3.09346, abs=1e-3)
    assert dnsmos(samples, p808=True)["p808"] == pytest.approx(3.80433, abs=1e-3)


def test_a_model_that_is_another_one_is_refused() -> None:
    with pytest.raises(InputError, match="the model has no values nothing"):
        model_part(SILERO.find().read_bytes(), {"input": 2}, ["nothing"])
    with pytest.raises(InputError, match="is no ONNX model"):
        model_part(b"\xff" * 20, {}, ["x"])


@pytest.mark.parametrize(
    ("probabilities", "limits", "frames"),
    [
        ([], SpeechLimits(), []),
        ([0.1] * 100, SpeechLimits(), []),
        ([0.9] * 100, SpeechLimits(pad=0), [(0, 100)]),
        ([0.1] * 20 + [0.9] * 100 + [0.1] * 20, SpeechLimits(pad=0), [(20, 120)]),
        ([0.9] * 100 + [0.1] * 5 + [0.9] * 100, SpeechLimits(pad=0), [(0, 205)]),
        ([0.9] * 100 + [0.4] * 50 + [0.9] * 100, SpeechLimits(pad=0), [(0, 250)]),
        ([0.9] * 100 + [0.1] * 40 + [0.9] * 100, SpeechLimits(pad=0), [(0, 100), (140, 240)]),
        ([0.9] * 100 + [0.1] * 40 + [0.9] * 10 + [0.1] * 40, SpeechLimits(pad=0), [(0, 100)]),
        ([0.9] * 100 + [0.1] * 20 + [0.9] * 100, SpeechLimits(pad=1.0, min_silence=0.5), [(0, 110), (110, 220)]),
        ([0.9] * 100 + [0.1] * 6 + [0.9] * 100, SpeechLimits(max_speech=4.0, pad=0), [(0, 100), (106, 206)]),
    ],
)
def test_spans_of_speech(probabilities: list[float], limits: SpeechLimits, frames: list[tuple[int, int]]) -> None:
    seconds = len(probabilities) * 0.032
    found = speech_spans(np.array(probabilities, np.float32), seconds, limits)
    assert found == [pytest.approx((start * 0.032, end * 0.032)) for start, end in frames]


def test_speech_that_never_pauses_is_cut() -> None:
    spans = speech_spans(np.full(1000, 0.9, np.float32), 32.0, SpeechLimits(max_speech=10.0))
    assert max(end - start for start, end in spans) <= 10.0
    assert (spans[0][0], spans[-1][1]) == (0.0, 32.0)


def test_speech_becomes_segments_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "book.wav"
    soundfile.write(path, with_pauses(3.0), RATE)
    rows = [
        {"audio_filepath": str(path), "speaker": "a"},
        {"audio_filepath": str(path), "offset": 12.0, "duration": 8.0},
    ]
    manifest = write_manifest_file(tmp_path / "in.jsonl", rows)
    stages = [ManifestReader(manifest), VADSegmentationStage(), ManifestWriterStage(str(tmp_path / "out.jsonl"))]
    Pipeline("vad", stages=stages).run(LocalExecutor(num_workers=0))
    found = read_manifest_file(tmp_path / "out.jsonl")
    whole, segments = found[:5], found[5:]
    assert [row["segment_num"] for row in whole] == [0, 1, 2, 3, 4]
    assert {row["speaker"] for row in whole} == {"a"}
    start = 3.0
    for row, clip in zip(whole, SPEECH, strict=True):
        seconds = len(clip) / RATE
        assert row["offset"] == pytest.approx(start, abs=0.7)
        assert row["offset"] + row["duration"] == pytest.approx(start + seconds, abs=0.7)
        assert row["start_ms"] == int(row["offset"] * 1000)
        assert (row["audio_filepath"], row["original_file"]) == (str(path), str(path))
        start += seconds + 3.0
    assert [row["segment_num"] for row in segments] == [0]
    assert segments[0]["offset"] == pytest.approx(whole[1]["offset"], abs=0.2)


def test_nested_segments_and_recordings_without_speech() -> None:
    batch = AudioBatch([{"audio": wav(with_pauses(2.0)[:, None])}, {"audio": wav(noise(4.0))}])
    [nested] = VADSegmentationStage(nested=True).process(batch)
    first, second = (row["segments"] for row in nested.to_rows())
    assert [one["segment_num"] for one in first] == [0, 1, 2, 3, 4]
    assert first[1]["duration"] == pytest.approx(first[1]["end"] - first[1]["start"])
    assert second == []
    [segments] = VADSegmentationStage().process(batch.slice(1))
    assert segments.num_items == 0


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (VADSegmentationStage, {"threshold": 0}, "threshold is 0"),
        (VADSegmentationStage, {"min_duration_sec": 9, "max_duration_sec": 3}, "above min_duration_sec"),
        (VADSegmentationStage, {"speech_pad_ms": -1}, "speech_pad_ms=-1"),
        (DNSMOSFilter, {"quality": "oval"}, "quality is 'oval'"),
        (SpeechShareFilter, {"min_share": -1}, "0 or more"),
    ],
)
def test_wrong_parameters_are_refused(kind: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**arguments)


def test_the_share_of_speech() -> None:
    batch = AudioBatch([{"audio": wav(SPEECH[0][:, None])}, {"audio": wav(with_pauses(20.0)[:, None])}])
    first, second = (row["share"] for row in AudioScore(SpeechShareFilter(), "share").process(batch).to_rows())
    assert first > 0.85
    assert second < 0.25
    assert AudioScoreFilter(SpeechShareFilter(0.5)).process(batch).num_items == 1


# ovrl, sig, bak and p808 of speechmos 0.0.1.1 for the clips: `speechmos.dnsmos.run(samples, 16000)`
RATED = [(0, (3.2424, 3.6023, 3.9238, 3.7551)), (1, (3.0156, 3.561, 3.5529, 3.3065))]


@pytest.mark.parametrize(("clip", "ratings"), RATED)
def test_ratings_are_those_of_speechmos(clip: int, ratings: tuple[float, ...]) -> None:
    batch = AudioBatch([{"audio": CLIPS[clip].read_bytes()}])
    tools = [DNSMOSFilter(1.0, quality) for quality in ("ovrl", "sig", "bak", "p808")]
    names = [tool.quality for tool in tools]
    [row] = AudioScore(tools, names).process(batch).to_rows()
    assert [row[name] for name in names] == pytest.approx(ratings, abs=1e-3)


def test_noise_lowers_the_rating() -> None:
    clean = SPEECH[0][:, None]
    batch = AudioBatch([{"audio": wav(clean)}, {"audio": wav(clean + noise(len(clean) / RATE, level=0.05))}])
    [kept] = AudioScoreFilter(DNSMOSFilter(2.8), "mos").process(batch).to_rows()
    assert kept["audio"] == wav(clean)


def test_filters_of_one_model_hear_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []
    hear = SpeechShareFilter.hear

    def counted(self: SpeechShareFilter, samples: Any) -> Any:
        heard.append(len(samples))
        return hear(self, samples)

    monkeypatch.setattr(SpeechShareFilter, "hear", counted)
    batch = AudioBatch([{"audio": wav(SPEECH[1][:, None])}])
    AudioScoreFilter([SpeechShareFilter(0.2), SpeechShareFilter(0.3, probability=0.9)]).process(batch)
    assert len(heard) == 1


def test_weights_that_are_missing_are_named_with_the_way_out() -> None:
    with pytest.raises(MissingDependencyError, match=r"'no_such_package' is not installed.*pip install it"):
        PackageFile("no_such_package", "a.onnx", "pip install it").find()
    with pytest.raises(MissingDependencyError, match=r"has no file data/none.onnx.*--no-deps 'silero-vad"):
        SILERO._replace(path="data/none.onnx").find()
    with pytest.raises(InputError, match=r"none.onnx: there is no such file"):
        session("none.onnx")
