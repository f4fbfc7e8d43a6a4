"""Writers of recordings: what is written is what was heard, whatever the workers."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gristmill.audio import (
    AudioDirectoryWriter,
    AudioParquetReader,
    AudioParquetWriter,
    AudioWebDatasetReader,
    AudioWebDatasetWriter,
    ManifestReader,
    ManifestWriterStage,
    SegmentExtractionStage,
    decode_audio,
)
from tests.audio.sound_fixtures import RATE, read_manifest_file, tone, wav, write_manifest_file
from tests.audio.test_manifest import Loudest, run


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    rows: list[dict[str, Any]] = []
    for number in range(8):
        (tmp_path / f"{number}.wav").write_bytes(wav(tone(2.0, hertz=200 + 100 * number)))
        rows.append({"audio_filepath": f"{number}.wav", "offset": None, "duration": 2.0, "text": f"number {number}"})
    rows.append({"audio_filepath": "7.wav", "offset": 0.5, "duration": 1.0, "text": "a part"})
    rows.append({"audio_filepath": "gone.wav", "text": "not there"})
    return write_manifest_file(tmp_path / "in.jsonl", rows)


def test_shards_hold_files_as_they_were_and_segments_encoded(tmp_path: Path, manifest: str) -> None:
    result = run([ManifestReader(manifest), AudioWebDatasetWriter(tmp_path / "out", samples_per_tar=5)])
    [record] = result.quarantined()
    assert "gone.wav: the file cannot be opened" in record.error
    first, second = sorted((tmp_path / "out").glob("*.tar"))
    with tarfile.open(first) as file:
        names = file.getnames()
        assert names[:3] == ["0.wav", "0.txt", "0.json"]
        assert file.extractfile("3.wav").read() == (tmp_path / "3.wav").read_bytes()  # type: ignore[union-attr]
        assert json.loads(file.extractfile("3.json").read())["text"] == "number 3"  # type: ignore[union-attr]
    with tarfile.open(second) as file:
        part = decode_audio(file.extractfile("7_500_1500.flac").read())  # type: ignore[union-attr]
    assert np.abs(part.samples - decode_audio(str(tmp_path / "7.wav"), 0.5, 1.0).samples).max() < 1e-4
    run([AudioWebDatasetReader(str(tmp_path / "out")), Loudest(), ManifestWriterStage(tmp_path / "again.jsonl")])
    again = read_manifest_file(tmp_path / "again.jsonl")
    assert [row["text"] for row in again] == [*(f"number {n}" for n in range(8)), "a part"]
    assert [row["heard"] for row in again] == [2.0] * 8 + [1.0]


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "ogg", "opus"])
def test_recordings_are_written_in_any_format(tmp_path: Path, manifest: str, kind: str) -> None:
    run([ManifestReader(manifest), AudioDirectoryWriter(tmp_path / "out", audio_format=kind)])
    files = sorted((tmp_path / "out").rglob(f"*.{kind}"))
    assert len(files) == 9
    for file in files:
        sound = decode_audio(str(file))
        assert sound.seconds == pytest.approx(1.0 if "500" in file.name else 2.0, abs=0.06)
        assert np.abs(sound.samples).max() == pytest.approx(0.3, abs=0.1)
    assert (files[0].with_suffix(".txt")).read_text().startswith("number")


def test_parquet_is_read_back(tmp_path: Path, manifest: str) -> None:
    run([ManifestReader(manifest), AudioParquetWriter(tmp_path / "out")])
    [file] = (tmp_path / "out").glob("*.parquet")
    table = pq.read_table(file)
    assert table.column("audio")[0].as_py() == (tmp_path / "0.wav").read_bytes()
    assert table.column("original_offset").to_pylist() == [None] * 8 + [0.5]
    run([AudioParquetReader(str(tmp_path / "out")), Loudest(), ManifestWriterStage(tmp_path / "again.jsonl")])
    assert [row["heard"] for row in read_manifest_file(tmp_path / "again.jsonl")] == [2.0] * 8 + [1.0]


@pytest.mark.parametrize("kind", ["wav", "opus"])
def test_workers_and_blocks_change_no_byte(tmp_path: Path, manifest: str, kind: str) -> None:
    found = set()
    for index, (workers, rows) in enumerate([(0, 100), (2, 3), (0, 1)]):
        out = tmp_path / str(index)
        reader = ManifestReader(manifest, task_batch_size=rows)
        run([reader, AudioWebDatasetWriter(out, 4, audio_format=kind)], workers)
        hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.glob("*.tar"))]
        assert len(hashes) == 3
        found.add(tuple(hashes))
    assert len(found) == 1


def test_segments_become_files(tmp_path: Path, manifest: str) -> None:
    out = tmp_path / "out.jsonl"
    stages = [ManifestReader(manifest), SegmentExtractionStage(tmp_path / "parts"), ManifestWriterStage(out)]
    for _ in range(2):
        run(stages)
        rows = read_manifest_file(out)
        assert len(rows) == 9
        assert len(list((tmp_path / "parts").iterdir())) == 9
        last = rows[-1]
        assert "offset" not in last
        assert (last["original_offset"], last["duration"], last["sample_rate"]) == (0.5, 1.0, RATE)
        assert last["original_file"] == str(tmp_path / "7.wav")
        expected = decode_audio(last["original_file"], 0.5, 1.0).samples
        assert np.array_equal(decode_audio(last["audio_filepath"]).samples, expected)


def test_encoding_keeps_what_16_bits_hold() -> None:
    from gristmill.audio.sound.encode import encode, read_waveform_bytes, waveform_bytes

    samples = decode_audio(wav(tone(1.0, channels=2))).samples
    for kind in ("wav", "flac"):
        assert np.array_equal(decode_audio(encode(samples, RATE, kind)).samples, samples)
    read = read_waveform_bytes(waveform_bytes(samples, RATE))
    assert read is not None
    assert read[1] == RATE
    assert np.array_equal(read[0], samples)
    import soundfile

    assert np.array_equal(soundfile.read(io.BytesIO(waveform_bytes(samples, RATE)), dtype="float32")[0], samples)


@pytest.mark.parametrize(
    "make",
    [lambda: AudioWebDatasetWriter("x", 0), lambda: AudioParquetWriter("x", "mp4"), lambda: SegmentExtractionStage("")],
)
def test_wrong_parameters_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="must be|is empty"):
        make()
