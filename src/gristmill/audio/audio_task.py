"""AudioTask: one recording as a task, for stages that work on recordings one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import AUDIO, AUDIO_FILEPATH, DURATION, OFFSET, SAMPLE_RATE, AudioBatch, BadAudio
from gristmill.audio.decode import decode
from gristmill.audio.sound.encode import waveform_bytes
from gristmill.audio.waveforms import row_of
from gristmill.core.batch import Batch
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.plan.single_row_task import RowTask

WAVEFORM_KEY = "waveform"


class AudioRow(dict[str, Any]):
    """The columns of a recording. `row["waveform"]`, channels by samples, is decoded when it is asked for."""

    def __missing__(self, key: str) -> Any:
        if key != WAVEFORM_KEY:
            raise KeyError(key)
        source = self.get(AUDIO) or self.get(AUDIO_FILEPATH)
        sound = row_of((source, self.get(OFFSET), self.get(DURATION)), decode)
        if isinstance(sound, BadAudio):
            raise sound
        self[SAMPLE_RATE] = sound.rate
        self[WAVEFORM_KEY] = waveform = sound.samples.T.copy()
        return waveform


@fast_dataclass
class AudioTask(RowTask):
    """One recording: `data` is a dict with the columns of its row, and `data["waveform"]` its samples.

    A stage declared as `ProcessingStage[AudioTask, AudioTask]` works row by row in a pipeline of batches. A waveform
    that it sets becomes the recording of the row, with the rate in `data["sample_rate"]`.
    """

    data: dict[str, Any]

    batch_class: ClassVar[type[Batch]] = AudioBatch

    @classmethod
    def from_batch(cls, batch: Batch) -> list[Any]:
        tasks = super().from_batch(batch)
        for task in tasks:
            task.data = AudioRow(task.data)
        return tasks

    @classmethod
    def to_table(cls, tasks: Sequence[Any]) -> pa.Table:
        return super().to_table([cls(_stored(task.data)) for task in tasks])


def _stored(row: dict[str, Any]) -> dict[str, Any]:
    """The row as columns hold it: a waveform as bytes, in place of the file or segment that it was made of."""
    row = {key: value for key, value in row.items() if value is not None or key != AUDIO}
    if WAVEFORM_KEY not in row:
        return row
    samples, rate = np.asarray(row.pop(WAVEFORM_KEY), np.float32), row.get(SAMPLE_RATE)
    if not isinstance(rate, int) or rate < 1:
        raise ValueError(f"the row has a waveform, and sample_rate is {rate!r}: set it to the samples per second")
    samples = samples[None] if samples.ndim == 1 else samples
    row[AUDIO] = waveform_bytes(samples.T, rate)
    if row.get(OFFSET) is not None:
        row[OFFSET] = 0.0
    return row
