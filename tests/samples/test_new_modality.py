"""A new modality is one file (`sound.py`): reading, filtering, writing and all records of a run work without code for
it anywhere else."""

import io
import pickle
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError
from gristmill.io.exchange.shuffle_files import batch_class_name, batch_class_named
from gristmill.recipes import load_recipe
from gristmill.recipes.stage_catalogue import kind_of
from gristmill.report.whatif import whatif
from tests.samples.sound_modality import (
    BadSound,
    DurationFilter,
    LoudnessFilter,
    SoundArchiveReader,
    SoundArchiveWriter,
    SoundBatch,
    SoundDirectoryReader,
    SoundDirectoryWriter,
    SoundScore,
    SoundScoreFilter,
    decode,
)

RATE = 8000


def tone(seconds: float, loudness: float = 0.5) -> bytes:
    samples = loudness * np.sin(np.arange(int(RATE * seconds)) / 5)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 2**15).astype("<i2").tobytes())
    return out.getvalue()


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "recordings"
    folder.mkdir()
    files = {"a": tone(2), "b": tone(0.25), "c": tone(1.5), "silent": tone(2, 0.0), "broken": b"RIFF----WAVEjunk"}
    for name, data in files.items():
        (folder / f"{name}.wav").write_bytes(data)
    (folder / "a.txt").write_text("a long tone")
    (folder / "empty.wav").write_bytes(b"")
    return folder


def filters() -> SoundScoreFilter:
    return SoundScoreFilter([DurationFilter(1.0), LoudnessFilter(0.1)], ["seconds", None])


def run(*stages: Any, **settings: Any) -> Any:
    settings = {"max_errors": None, **settings}
    return Pipeline("sound", stages=list(stages)).run(LocalExecutor(num_workers=0), **settings)


def test_recordings_are_read_filtered_and_written(recordings: Path, tmp_path: Path) -> None:
    result = run(
        SoundDirectoryReader(str(recordings)),
        filters(),
        SoundDirectoryWriter(str(tmp_path / "out")),
        run_dir=str(tmp_path / "run"),
        rejected=str(tmp_path / "rejected"),
    )
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*/*")}
    assert written == {"a.wav": tone(2), "a.txt": b"a long tone", "c.wav": tone(1.5)}
    (index,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(index).select(["sound_id", "seconds"]).to_pylist() == [
        {"sound_id": "a", "seconds": 2.0},
        {"sound_id": "c", "seconds": 1.5},
    ]
    errors = {record.stage: record.error for record in result.quarantined()}
    assert errors["read_sound_files"] == "sample 'empty': its sound .wav is empty: no bytes"
    assert "BadSound: not a WAV file that can be read" in errors["DurationFilter, LoudnessFilter"]


def test_rejected_rows_name_the_filter_the_score_and_the_file(recordings: Path, tmp_path: Path) -> None:
    run(
        SoundDirectoryReader(str(recordings)),
        filters(),
        SoundDirectoryWriter(str(tmp_path / "out")),
        rejected=str(tmp_path / "rejected"),
    )
    columns = ["sound_id", "rejected_filter", "rejected_score", "rejected_threshold", "rejected_file"]
    rows = pq.read_table(tmp_path / "rejected").select(columns).to_pylist()
    assert all(row.pop("rejected_file") for row in rows)
    assert rows == [
        {
            "sound_id": "b",
            "rejected_filter": "DurationFilter",
            "rejected_score": 0.25,
            "rejected_threshold": "min_seconds=1.0",
        },
        {
            "sound_id": "silent",
            "rejected_filter": "LoudnessFilter",
            "rejected_score": 0.0,
            "rejected_threshold": "min_loudness=0.1",
        },
    ]


def test_a_preview_shows_the_scores(recordings: Path) -> None:
    (recordings / "broken.wav").unlink()
    preview = Pipeline("sound", stages=[SoundDirectoryReader(str(recordings)), filters()]).preview(10)
    text = str(preview)
    assert "DurationFilter" in text
    assert "0.25" in text


def test_what_if_answers_for_other_thresholds(recordings: Path, tmp_path: Path) -> None:
    stages = [SoundDirectoryReader(str(recordings)), filters(), SoundDirectoryWriter(str(tmp_path / "out"))]
    run(*stages, run_dir=str(tmp_path / "run"), scores=True)
    answer = whatif(str(tmp_path / "run"), {"DurationFilter.min_seconds": 0.1})
    assert answer.after.rows == answer.before.rows + 1


def test_archives_come_back_as_they_were_written(recordings: Path, tmp_path: Path) -> None:
    run(SoundDirectoryReader(str(recordings)), SoundArchiveWriter(str(tmp_path / "tars")))
    result = run(SoundArchiveReader(str(tmp_path / "tars")), SoundScore(LoudnessFilter(), "loudness"))
    rows = {row["sound_id"]: row for batch in result for row in batch.to_rows()}
    assert rows["a"]["sound"] == tone(2)
    assert rows["a"]["caption"] == "a long tone"
    assert rows["silent"]["loudness"] == 0.0
    assert [record.row["sound_id"] for record in result.quarantined()] == ["broken"]


def test_decoded_waveforms_are_not_sent_to_other_processes() -> None:
    batch = SoundBatch({"sound": [tone(1)]}, objects={"waveform": [decode(tone(1))], "speaker": ["x"]})
    assert list(pickle.loads(pickle.dumps(batch)).objects) == ["speaker"]
    bare = batch.with_data({"speaker": ["x"]})
    assert list(pickle.loads(pickle.dumps(bare)).objects) == ["waveform", "speaker"]


def test_shuffle_files_know_the_batch_class() -> None:
    assert batch_class_named(batch_class_name(SoundBatch)) is SoundBatch
    assert batch_class_named("gristmill.core.batch:DocumentBatch").__name__ == "DocumentBatch"


def test_recipes_build_the_stages(recordings: Path, tmp_path: Path) -> None:
    assert [kind_of(one) for one in (SoundDirectoryReader, SoundScoreFilter, DurationFilter, SoundDirectoryWriter)] == [
        "reader",
        "stage",
        "filter",
        "writer",
    ]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"""
stages:
  - tests.samples.sound_modality:SoundDirectoryReader: {{file_paths: {recordings}}}
  - tests.samples.sound_modality:SoundScoreFilter:
      filter_obj: {{tests.samples.sound_modality:DurationFilter: {{min_seconds: 1.8}}}}
"""
    )
    result = load_recipe(str(recipe)).build().run(LocalExecutor(num_workers=0), max_errors=None)
    assert [row["sound_id"] for batch in result for row in batch.to_rows()] == ["a", "silent"]


def test_a_filter_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="SoundScoreFilter takes one SoundFilter, or a list of them: write Duration"):
        SoundScoreFilter(DurationFilter)
    with pytest.raises(ValueError, match="min_seconds is -1"):
        DurationFilter(-1)
    with pytest.raises(BadSound, match="not a WAV file"):
        decode(b"nothing")
    with pytest.raises(GristmillError, match="no file that ends in .wav, .wave"):
        run(SoundDirectoryReader(str(Path(__file__).parent)))
