"""Who speaks: a real model of voices on real speech, and on the same speech played faster, which is another voice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import (
    AudioBatch,
    InferenceSortformerStage,
    ManifestReader,
    ManifestWriterStage,
    PyAnnoteDiarizationStage,
    SpeakerDiarizationStage,
    SpeakerEmbeddingStage,
    SpeakerSeparationStage,
    waveforms,
)
from gristmill.audio.sound.mel_spectra import log_fbank, mel_power
from gristmill.audio.speakers import speaker_stages
from gristmill.audio.speakers.diarise import Turn, merged_turns
from gristmill.audio.speakers.voice_clusters import cluster_voices
from gristmill.core.errors import InputError, MissingDependencyError
from tests.audio.sound_fixtures import RATE, read_manifest_file, wav, write_manifest_file
from tests.audio.voice_fixtures import write_voice_model

CLIPS = sorted((Path(__file__).parents[2] / "examples/audio/speech").glob("*.flac"))
SPEECH = [soundfile.read(clip, dtype="float32")[0] for clip in CLIPS]
OTHER = [soxr.resample(clip, 13 * RATE // 10, RATE) for clip in SPEECH]
PAUSE = np.zeros(RATE // 2, np.float32)


@pytest.fixture(scope="session")
def voice_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_voice_model(tmp_path_factory.mktemp("voices") / "ge2e.onnx")


def ready(stage: Any) -> Any:
    stage.check()
    stage.setup()
    return stage


def conversation() -> Any:
    """Two voices in turn, two clips of each."""
    parts = [SPEECH[0], OTHER[2], SPEECH[3], OTHER[4]]
    return np.concatenate([piece for part in parts for piece in (part, PAUSE)])


@pytest.mark.torch
def test_voices_of_one_speaker_are_alike(voice_model: str) -> None:
    batch = AudioBatch([{"audio": wav(one[:, None])} for one in (*SPEECH, *OTHER)])
    [made] = ready(SpeakerEmbeddingStage(voice_model)).process(batch)
    vectors = np.array(made.data.column("speaker_embedding").to_pylist())
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    alike = vectors @ vectors.T
    same = [alike[one, two] for one in range(5) for two in range(one)]
    different = [alike[one, two] for one in range(5) for two in range(5, 10)]
    assert min(same) > max(different)


@pytest.mark.torch
def test_the_turns_of_a_conversation(voice_model: str, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "talk.wav", conversation(), RATE)
    batch = AudioBatch([{"audio_filepath": str(tmp_path / "talk.wav")}, {"audio_filepath": str(CLIPS[0])}])
    stage = SpeakerDiarizationStage(voice_model, gap_threshold=1.0, rttm_out_dir=str(tmp_path / "rttm"))
    talk, alone = (row for part in ready(stage).process(batch) for row in part.to_rows())
    assert [talk["num_speakers"], alone["num_speakers"]] == [2, 1]
    assert [one["speaker"] for one in talk["segments"]] == ["speaker_0", "speaker_1"] * 2
    edges = np.cumsum([len(part) / RATE + 0.5 for part in (SPEECH[0], OTHER[2], SPEECH[3])])
    assert [one["start"] for one in talk["segments"]][1:] == pytest.approx(edges, abs=0.5)
    lines = (tmp_path / "rttm" / "talk.rttm").read_text().splitlines()
    assert len(lines) == 4
    assert lines[0].split()[:3] == ["SPEAKER", "talk", "1"]


@pytest.mark.torch
def test_long_recordings_are_heard_in_parts(voice_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "talk.wav", conversation(), RATE)
    monkeypatch.setattr(waveforms, "STREAMED_BYTES", 1000)
    monkeypatch.setattr(speaker_stages, "_PART_SECONDS", 12.0)
    batch = AudioBatch([{"audio_filepath": str(tmp_path / "talk.wav")}])
    stage = InferenceSortformerStage(model_path=voice_model)
    [row] = (row for part in ready(stage).process(batch) for row in part.to_rows())
    assert {one["speaker"] for one in row["diar_segments"]} == {"speaker_0", "speaker_1"}
    embedded = ready(SpeakerEmbeddingStage(voice_model)).process(batch)
    assert len(next(embedded).to_rows()[0]["speaker_embedding"]) == 256


@pytest.mark.torch
def test_speakers_become_rows(voice_model: str, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "talk.wav", conversation(), RATE)
    manifest = write_manifest_file(tmp_path / "in.jsonl", [{"audio_filepath": str(tmp_path / "talk.wav"), "n": 1}])
    stages = [ManifestReader(manifest), SpeakerSeparationStage(voice_model, gap_threshold=1.0)]
    stages += [ManifestWriterStage(str(tmp_path / "out.jsonl"))]
    Pipeline("speakers", stages=stages).run(LocalExecutor(num_workers=0))
    rows = read_manifest_file(tmp_path / "out.jsonl")
    assert [row["speaker_id"] for row in rows] == ["speaker_0", "speaker_0", "speaker_1", "speaker_1"]
    assert {row["num_speakers"] for row in rows} == {2}
    assert sum(row["duration"] for row in rows) == pytest.approx(len(conversation()) / RATE - 2, abs=2)


@pytest.mark.torch
def test_turns_are_cut_at_the_largest_length(voice_model: str) -> None:
    batch = AudioBatch([{"audio": wav(SPEECH[0][:, None]), "offset": 0.5, "duration": 6.0}])
    stage = PyAnnoteDiarizationStage(voice_model, max_length=2.5)
    [row] = (row for part in ready(stage).process(batch) for row in part.to_rows())
    assert max(one["end"] - one["start"] for one in row["segments"]) <= 2.5
    assert row["segments"][0]["start"] >= 0.5
    assert row["overlap_segments"] == []


def test_models_that_cannot_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match=r"sortformer.*speaker embedding model as ONNX"):
        InferenceSortformerStage().check()
    with pytest.raises(InputError, match="there is no such file"):
        SpeakerEmbeddingStage(str(tmp_path / "x.onnx")).check()
    with pytest.raises(ValueError, match="min_similarity=3"):
        SpeakerDiarizationStage("x.onnx", min_similarity=3)


def test_clusters_are_those_of_all_pairs() -> None:
    """Against the definition, computed anew for each join."""
    draw = np.random.default_rng(0)
    for count in (1, 2, 7, 40):
        centres = draw.standard_normal((4, 16))
        vectors = centres[draw.integers(0, 4, count)] + 0.4 * draw.standard_normal((count, 16))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        groups = [[at] for at in range(count)]
        while len(groups) > 1:
            means = {
                (a, b): np.mean([vectors[i] @ vectors[j] for i in groups[a] for j in groups[b]])
                for a in range(len(groups))
                for b in range(a)
            }
            (a, b), best = max(means.items(), key=lambda pair: pair[1])
            if best < 0.6:
                break
            groups[b] += groups.pop(a)
        found = cluster_voices(vectors, 0.6)
        assert {frozenset(np.flatnonzero(found == label).tolist()) for label in set(found.tolist())} == {
            frozenset(group) for group in groups
        }
        assert cluster_voices(vectors, 0.6, most=1).max() == 0


def test_turns_near_each_other_are_one() -> None:
    turns = [Turn(0, 1, 4), Turn(1.2, 2, 4), Turn(2, 2.1, 3), Turn(3, 5, 7)]
    assert merged_turns(turns, 0.5, 0.3) == [Turn(0, 2, 0), Turn(3, 5, 1)]


def test_mel_bands_are_where_tones_are() -> None:
    for frequency in (300, 1000, 3000):
        tone = np.sin(2 * np.pi * frequency * np.arange(RATE) / RATE).astype(np.float32)
        bands = mel_power(tone, RATE, 40, 400).mean(axis=0)
        low, high = bands[: bands.argmax()].sum(), bands[bands.argmax() + 1 :].sum()
        assert bands.max() > low + high
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    made = log_fbank(noise, RATE, 80)
    assert made.shape == (98, 80)
    assert made.mean(axis=0) == pytest.approx(0, abs=1e-4)
