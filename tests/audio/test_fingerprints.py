"""Recordings that sound the same, or are the same, in spite of codecs, volume and cutting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import AudioBatch, AudioFingerprintStage, AudioHashStage, ManifestReader, ManifestWriterStage
from gristmill.audio.fingerprint import fingerprint
from gristmill.core.errors import ColumnError
from gristmill.dedup import ExactDeduplicationStage, FingerprintDeduplicationStage
from tests.audio.sound_fixtures import RATE, encoded, read_manifest_file, tone, wav, write_manifest_file

CLIPS = sorted((Path(__file__).parents[2] / "examples/audio/speech").glob("*.flac"))
SPEECH = [soundfile.read(clip, dtype="float32")[0][:, None] for clip in CLIPS]


def melody(seed: int, seconds: float = 6.0) -> Any:
    """Random notes with overtones, one each 150 ms, over a little noise."""
    random = np.random.default_rng(seed)
    notes = []
    for pitch in random.uniform(120, 900, round(seconds / 0.15)):
        time = np.arange(round(0.15 * RATE)) / RATE
        parts = [np.sin(2 * np.pi * pitch * k * time) * random.uniform(0.2, 1) / k for k in range(1, 8)]
        notes.append(0.15 * np.sum(parts, axis=0) * np.exp(-4 * time))
    sound = np.concatenate(notes)
    return (sound + random.standard_normal(len(sound)) * 1e-3).astype(np.float32)[:, None]


def copies(samples: Any) -> dict[str, bytes]:
    return {
        "mp3": encoded(samples, RATE, "mp3", "libmp3lame", 64_000),
        "opus": encoded(samples, RATE, "ogg", "libopus", 32_000),
        "quiet": wav(samples * np.float32(0.2)),
        "cut": wav(samples[round(1.234 * RATE) :]),
    }


def clusters(folder: Path, sounds: dict[str, bytes], **settings: Any) -> tuple[list[str], Any]:
    """The names that are kept, and the run."""
    folder.mkdir(exist_ok=True)
    for name, data in sounds.items():
        (folder / name).write_bytes(data)
    manifest = write_manifest_file(folder / "in.jsonl", [{"audio_filepath": str(folder / name)} for name in sounds])
    stages = [
        ManifestReader(manifest),
        AudioFingerprintStage(),
        FingerprintDeduplicationStage(id_field="audio_filepath", **settings),
        ManifestWriterStage(str(folder / "out.jsonl")),
    ]
    result = Pipeline("fingerprints", stages=stages).run(LocalExecutor(num_workers=0), rejected=True)
    kept = [Path(row["audio_filepath"]).name for row in read_manifest_file(folder / "out.jsonl")]
    return kept, result


def test_copies_are_found_and_nothing_else(tmp_path: Path) -> None:
    originals = [*SPEECH, *(melody(seed) for seed in range(7))]
    sounds: dict[str, bytes] = {}
    for number, samples in enumerate(originals):
        sounds[f"{number}.wav"] = wav(samples)
    for number, samples in enumerate(originals):
        sounds |= {f"{number}.{kind}": data for kind, data in copies(samples).items()}
    kept, _ = clusters(tmp_path / "all", sounds)
    assert [name for name in kept if name.endswith(".wav")] == [f"{number}.wav" for number in range(len(originals))]
    found = 1 - (len(kept) - len(originals)) / (4 * len(originals))
    assert found >= 0.95, kept


def test_a_rejected_row_names_its_partner_and_the_similarity(tmp_path: Path) -> None:
    sounds = {"a.wav": wav(SPEECH[0]), "b.mp3": copies(SPEECH[0])["mp3"], "c.wav": wav(SPEECH[1])}
    kept, result = clusters(tmp_path / "some", sounds)
    assert kept == ["a.wav", "c.wav"]
    [rejected] = [row for path in result.rejected() for row in _rows(path)]
    assert Path(rejected["rejected_partner"]).name == "a.wav"
    assert 0.9 < rejected["rejected_similarity"] < 1


def _rows(path: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist() if path.endswith(".parquet") else read_manifest_file(Path(path))


def test_a_short_jingle_in_common_is_no_copy(tmp_path: Path) -> None:
    jingle = melody(99, 2.0)
    sounds = {f"{n}.wav": wav(np.concatenate([jingle, melody(n, 8.0)])) for n in range(2)}
    assert clusters(tmp_path / "jingles", sounds)[0] == ["0.wav", "1.wav"]
    assert clusters(tmp_path / "loose", sounds, min_overlap=0.1)[0] == ["0.wav"]


def test_a_clip_of_a_long_recording_is_found_at_any_place(tmp_path: Path) -> None:
    long = np.concatenate([melody(1, 20.0), *SPEECH, melody(2, 20.0)])
    sounds = {"long.wav": wav(long), "clip.wav": wav(SPEECH[2])}
    assert clusters(tmp_path / "long", sounds)[0] == ["long.wav"]


def test_silence_and_short_sounds_have_no_copies(tmp_path: Path) -> None:
    silence = np.zeros((5 * RATE, 1), np.float32)
    sounds = {"a.wav": wav(silence), "b.wav": wav(silence), "c.wav": wav(tone(0.2)), "d.wav": wav(tone(0.2))}
    assert len(clusters(tmp_path / "silent", sounds)[0]) == 4
    assert not fingerprint(silence[:, 0]).any()
    pauses = {f"{n}.wav": wav(np.concatenate([silence, melody(n, 2.0), silence])) for n in range(3)}
    assert len(clusters(tmp_path / "pauses", pauses)[0]) == 3


def test_of_many_copies_one_is_kept(tmp_path: Path) -> None:
    sound = melody(5, 3.0)
    sounds = {f"{n}.wav": wav(sound * np.float32(1 - n / 80)) for n in range(60)}
    assert clusters(tmp_path / "many", sounds)[0] == ["0.wav"]


@pytest.mark.parametrize("arguments", [{"max_error": 0.5}, {"min_overlap": 0.0}, {"max_error": -0.1}])
def test_wrong_parameters_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="max_error=.*min_overlap="):
        FingerprintDeduplicationStage(**arguments)


def test_a_column_without_fingerprints_is_named() -> None:
    batch = AudioBatch(pa.table({"fingerprint": [1, 2]}))
    with pytest.raises(ColumnError, match="AudioFingerprintStage"):
        FingerprintDeduplicationStage().keys(batch)


def test_the_same_samples_have_the_same_hash() -> None:
    x, other = SPEECH[1], SPEECH[2]
    data = [
        wav(x),
        wav(x, form="FLAC"),
        wav(x, subtype="FLOAT"),
        wav(x, rate=8000),
        wav(other),
        wav(np.repeat(x, 2, 1)),
    ]
    [found] = AudioHashStage().process(AudioBatch([{"audio": one} for one in data]))
    hashes = [row["audio_hash"] for row in found.to_rows()]
    assert hashes[0] == hashes[1] == hashes[2]
    assert len(set(hashes)) == 4


def test_exact_copies_are_dropped(tmp_path: Path) -> None:
    for name, form in (("a.wav", "WAV"), ("b.flac", "FLAC"), ("c.wav", "WAV")):
        (tmp_path / name).write_bytes(wav(SPEECH[1 if name != "c.wav" else 2], form=form))
    rows = [{"audio_filepath": str(tmp_path / name)} for name in ("a.wav", "b.flac", "c.wav")]
    stages = [
        ManifestReader(write_manifest_file(tmp_path / "in.jsonl", rows)),
        AudioHashStage(),
        ExactDeduplicationStage("audio_hash"),
        ManifestWriterStage(str(tmp_path / "out.jsonl")),
    ]
    Pipeline("exact", stages=stages).run(LocalExecutor(num_workers=0))
    assert [Path(row["audio_filepath"]).name for row in read_manifest_file(tmp_path / "out.jsonl")] == [
        "a.wav",
        "c.wav",
    ]
