"""Stages that take recordings one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gristmill import EmptyTask, ProcessingStage
from gristmill.audio import AudioTask, ManifestReader, ManifestWriterStage, decode_audio
from tests.audio.sound_fixtures import RATE, read_manifest_file, tone, wav, write_manifest_file
from tests.audio.test_manifest import Loudest, rows, run


class Shout(ProcessingStage[AudioTask, AudioTask]):
    """Changes each third row, drops each fifth, doubles each seventh."""

    def process(self, task: AudioTask) -> Any:
        number = int(task.data["text"].split()[1])
        if number % 3 == 0:
            task.data["text"] = task.data["text"].upper()
        task.data["length"] = len(task.data["text"])
        if number % 5 == 0:
            return None
        return [task, AudioTask({**task.data, "twin": True})] if number % 7 == 0 else task


class Invent(ProcessingStage[EmptyTask, AudioTask]):
    """Gives rows of its own."""

    def process(self, task: EmptyTask) -> list[AudioTask]:
        return [AudioTask(data=row) for row in rows(30)]


class Fail(Shout):
    """Fails on one row."""

    def process(self, task: AudioTask) -> Any:
        if task.data["text"] == "line 4":
            raise RuntimeError("not this one")
        return task


class Halve(ProcessingStage[AudioTask, AudioTask]):
    """Halves the loudness."""

    def process(self, task: AudioTask) -> AudioTask:
        task.data["waveform"] = task.data["waveform"] / 2
        return task


def test_a_row_is_a_dict_and_the_other_columns_stay(tmp_path: Path) -> None:
    source = write_manifest_file(tmp_path / "in.jsonl", rows(40))
    run([ManifestReader(source, task_batch_size=11), Shout(), ManifestWriterStage(tmp_path / "out.jsonl")], workers=2)
    expected = []
    for number, row in enumerate(rows(40)):
        text = row["text"].upper() if number % 3 == 0 else row["text"]
        if number % 5:
            new = {**row, "text": text, "length": len(text)}
            expected += [{**new, "twin": None}, {**new, "twin": True}] if number % 7 == 0 else [{**new, "twin": None}]
    found = read_manifest_file(tmp_path / "out.jsonl")
    assert [{"twin": None, **row} for row in found] == [{"twin": row["twin"], **row} for row in expected]


def test_a_stage_may_give_the_first_rows(tmp_path: Path) -> None:
    run([Invent(), Shout(), ManifestWriterStage(tmp_path / "out.jsonl")])
    assert len(read_manifest_file(tmp_path / "out.jsonl")) == 30 - 6 + 4


def test_a_row_that_fails_is_set_aside_alone(tmp_path: Path) -> None:
    source = write_manifest_file(tmp_path / "in.jsonl", rows(20))
    result = run([ManifestReader(source), Fail(), ManifestWriterStage(tmp_path / "out.jsonl")])
    assert len(read_manifest_file(tmp_path / "out.jsonl")) == 19
    assert ["not this one" in record.error for record in result.quarantined()] == [True]


def test_a_waveform_is_decoded_when_asked_for_and_kept_when_set(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(tone(1.0, level=0.8)))
    source = write_manifest_file(tmp_path / "in.jsonl", [{"audio_filepath": "a.wav", "offset": 0.5, "duration": 0.25}])
    run([ManifestReader(source), Halve(), Halve(), Loudest(), ManifestWriterStage(tmp_path / "out.jsonl")])
    [row] = read_manifest_file(tmp_path / "out.jsonl")
    assert (row["heard"], row["sample_rate"], row["offset"]) == (0.25, RATE, 0.0)
    assert np.isclose(row["peak"], np.abs(decode_audio(str(tmp_path / "a.wav")).samples).max() / 4, atol=1e-3)
