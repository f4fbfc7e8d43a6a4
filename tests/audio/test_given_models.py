"""Stages whose models users give: ratings, sound events, recognisers. The models here are tiny, and do something
known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from gristmill.audio import (
    ASRStage,
    AudioBatch,
    AudioDataFilterStage,
    AudioScore,
    BandFilterStage,
    OnnxCTCASR,
    SEDInferenceStage,
    SEDPostprocessingStage,
    SIGMOSFilter,
    SIGMOSFilterStage,
    TorchSquimQualityMetricsStage,
    UTMOSFilter,
    UTMOSFilterStage,
)
from gristmill.audio.speech.rating_filters import sigmos_features
from gristmill.core.errors import ColumnError, InputError
from tests.audio.sound_fixtures import RATE, noise, wav
from tests.audio.tiny_models import blocks_of_samples, loudest_sample, mean_power


def processed(stage: Any, batch: Any) -> list[dict[str, Any]]:
    for part in stage.decompose() if hasattr(stage, "decompose") else [stage]:
        part.check()
        part.setup()
        found = part.process(batch)
        batch = AudioBatch.concat(list(found)) if not isinstance(found, AudioBatch) else found
    rows: list[dict[str, Any]] = batch.to_rows()
    return rows


def level(seconds: float, loudness: float) -> Any:
    sound = np.zeros((int(seconds * RATE), 1), np.float32)
    sound[::100] = loudness
    return sound


def test_a_rating_is_the_mean_of_windows(tmp_path: Path) -> None:
    sound = np.concatenate([level(10, 0.2), level(10, 0.6), level(0.5, 0.9)])
    path = loudest_sample(tmp_path / "utmos.onnx")
    [row] = AudioScore(UTMOSFilter(path), "mos").process(AudioBatch([{"audio": wav(sound)}])).to_rows()
    assert row["mos"] == pytest.approx(0.4, abs=1e-3)
    batch = AudioBatch([{"audio": wav(level(2, loud)), "n": loud} for loud in (0.2, 0.7)])
    [kept] = processed(UTMOSFilterStage(0.5, model_path=path), batch)
    assert (kept["n"], kept["utmos_mos"]) == (0.7, pytest.approx(0.7, abs=1e-3))
    assert len(processed(UTMOSFilterStage(None, model_path=path), batch)) == 2


def test_sigmos_sees_compressed_spectra(tmp_path: Path) -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(48_000) / 48_000).astype(np.float32)
    planes = sigmos_features(tone)[0]
    assert planes.shape == (3, 101, 481)
    assert planes[0, 50].argmax() == 20
    assert planes[1] ** 2 + planes[2] ** 2 == pytest.approx(planes[0] ** 2, rel=1e-3, abs=1e-3)
    path = mean_power(tmp_path / "sigmos.onnx")
    batch = AudioBatch([{"audio": wav(np.tile(tone, 2)[:, None], 48_000)}])
    stage = SIGMOSFilterStage(model_dir=str(tmp_path), noise_threshold=0.1, ovrl_threshold=None)
    [row] = processed(stage, batch)
    names = ["col", "disc", "loud", "noise", "reverb", "sig", "ovrl"]
    ratings = [row[f"sigmos_{name}"] for name in names]
    assert ratings == pytest.approx(np.arange(1, 8) * ratings[0], rel=1e-3)
    [again] = AudioScore(SIGMOSFilter(path, "sig"), "sig").process(batch).to_rows()
    assert again["sig"] == pytest.approx(ratings[5])
    assert processed(SIGMOSFilterStage(model_path=path, noise_threshold=99.0), batch) == []


def test_squim_metrics_are_named(tmp_path: Path) -> None:
    path = loudest_sample(tmp_path / "squim.onnx", outputs=3)
    [row] = processed(TorchSquimQualityMetricsStage(path), AudioBatch([{"audio": wav(level(2, 0.5)), "metrics": None}]))
    expected = {"stoi_squim": 0.5, "pesq_squim": 1.0, "sisdr_squim": 1.5}
    assert row["metrics"] == {name: pytest.approx(value, abs=1e-3) for name, value in expected.items()}


def test_bands_are_told_by_what_is_heard() -> None:
    wide, narrow = noise(1.0, 48_000), noise(1.0, 8000)
    batch = AudioBatch([{"audio": wav(wide, 48_000), "n": 1}, {"audio": wav(narrow, 8000), "n": 2}])
    assert [row["n"] for row in processed(BandFilterStage(), batch)] == [1]
    assert [row["n"] for row in processed(BandFilterStage(band_value="narrow_band"), batch)] == [2]


def test_sounds_become_events(tmp_path: Path) -> None:
    """A model with four classes, whose scores are the samples: four thousand moments in a second."""
    moments = np.zeros((2 * RATE // 4, 4), np.float32)
    moments[1000:5000, 2] = 0.9
    moments[5100:6100, 2] = 0.9
    moments[3000:3100, 0] = 0.8
    moments[0:2000, 1] = 0.3
    batch = AudioBatch([{"audio": wav(moments.reshape(-1, 1))}])
    heard = SEDInferenceStage(blocks_of_samples(tmp_path / "sed.onnx", 4), sample_rate=RATE)
    labels = ["dog", "rain", "music", "speech"]

    def events(**settings: Any) -> list[Any]:
        [row] = processed(SEDPostprocessingStage(labels=labels, **settings), AudioBatch(processed(heard, batch)))
        assert "_sed_framewise" not in row
        return [(one["class"], one["start_time"], one["end_time"]) for one in row["sed_events"]]

    assert events() == [("music", 0.25, 1.25)]
    assert events(merge_gap_sec=0.03) == [("music", 0.25, 1.525)]
    assert events(min_duration_sec=0.02)[:2] == [("music", 0.25, 1.25), ("dog", 0.75, 0.775)]
    assert events(hysteresis_low=0.2, hysteresis_high=0.25)[0] == ("rain", 0.0, 0.5)
    assert events(smoothing_window_sec=0.1) == [("music", 0.25, 1.525)]
    joined = events(emit_superclasses=True, superclasses={"any": [0, 1, 2]}, agg_mode="max", merge_gap_sec=0.03)
    assert joined == [("any", 0.25, 1.525)]
    with pytest.raises(ColumnError, match="use SEDInferenceStage"):
        SEDPostprocessingStage().process(batch)
    with pytest.raises(ValueError, match="given together"):
        SEDPostprocessingStage(hysteresis_low=0.1)


def test_characters_become_words_with_times(tmp_path: Path) -> None:
    pieces = ["", "|", "h", "i", "y", "o"]
    said = [0, 2, 2, 3, 0, 1, 4, 5, 0, 5, 1]
    scores = np.zeros((RATE // 8, 6), np.float32)
    for number, piece in enumerate(said):
        scores[number * 2000 // len(said) : (number + 1) * 2000 // len(said), piece] = 0.9
    sound = wav(scores.reshape(-1, 1)[: RATE * 6 // 8])
    (tmp_path / "pieces.txt").write_text("\n".join(pieces))
    adapter = OnnxCTCASR(blocks_of_samples(tmp_path / "ctc.onnx", 6), tmp_path / "pieces.txt", normalise=False)
    [row] = processed(ASRStage(adapter, extras_key="asr"), AudioBatch([{"audio": sound}]))
    assert row["pred_text"] == "hi yoo"
    first, second = row["asr"]["words"]
    assert (first["start"], first["end"]) == (pytest.approx(0.068, abs=0.01), pytest.approx(0.273, abs=0.01))
    assert second["start"] > first["end"]
    with pytest.raises(InputError, match="there is no such file"):
        OnnxCTCASR("nowhere.onnx", pieces).check()


def test_the_filter_of_all_needs_models_or_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"utmos needs a model.*'enable': False"):
        AudioDataFilterStage().decompose()
    with pytest.raises(ValueError, match=r"'vda' is no section.*Did you mean 'vad'"):
        AudioDataFilterStage(config={"vda": {}})
    (tmp_path / "config.yaml").write_text(
        "utmos: {enable: false}\nsigmos: {enable: false}\nspeaker_separation: {enable: false}\nvad: {cpus: 2.0}\n"
    )
    clip = Path(__file__).parents[2] / "examples/audio/speech/austen_0870.flac"
    samples, rate = soundfile.read(clip, dtype="float32", always_2d=True)
    soundfile.write(tmp_path / "a.wav", np.concatenate([samples * 0, samples]), rate)
    mono = {"output_sample_rate": RATE}
    stage = AudioDataFilterStage(tmp_path / "config.yaml", {"mono_conversion": mono, "band_filter": {"enable": False}})
    rows = processed(stage, AudioBatch([{"audio_filepath": str(tmp_path / "a.wav"), "id": 7}]))
    assert [row["id"] for row in rows] == [7] * len(rows)
    assert rows[0]["original_file"] == str(tmp_path / "a.wav")
    assert rows[0]["original_start"] == pytest.approx(len(samples) / rate + 0.7, abs=0.8)
    assert "audio" not in rows[0]
