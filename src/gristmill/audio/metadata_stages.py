"""Stages that work on the columns of recordings, and decode nothing.

GetAudioDurationStage   the length of each recording, from its header
PreserveByValueStage    keeps rows by the value of a column
AudioToDocumentStage    recordings as documents, for stages and writers of text
"""

from __future__ import annotations

import operator as operators
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from gristmill.audio.batch import AUDIO_FILEPATH, DURATION, AudioBatch, BadAudio
from gristmill.audio.filters import LENGTH
from gristmill.audio.score import measured_rows
from gristmill.audio.waveforms import column_of, set_aside_row
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import column_values
from gristmill.core.deciding_stage import DecidingStage, Decision
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.samples.batch import DocumentBatch
from gristmill.samples.to_documents import ConvertToDocumentsStage

_OPERATORS: Mapping[str, tuple[Callable[[Any, Any], Any], str]] = {
    "eq": (operators.eq, "equal"),
    "ne": (operators.ne, "not_equal"),
    "lt": (operators.lt, "less"),
    "le": (operators.le, "less_equal"),
    "gt": (operators.gt, "greater"),
    "ge": (operators.ge, "greater_equal"),
}


class GetAudioDurationStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Adds the seconds of each recording, from its header, without decoding it; of a segment what there is of it.

    A recording that cannot be opened goes to quarantine.
    """

    takes_empty = True

    def __init__(self, audio_filepath_key: str = AUDIO_FILEPATH, duration_key: str = DURATION) -> None:
        super().__init__()
        self.audio_filepath_key, self.duration_key = audio_filepath_key, duration_key

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.duration_key]

    def process(self, task: AudioBatch) -> AudioBatch:
        asked = task
        if self.audio_filepath_key != AUDIO_FILEPATH:
            column = column_of(self.name, task, self.audio_filepath_key)
            asked = AudioBatch(pa.table({AUDIO_FILEPATH: column}))
        lengths = measured_rows(asked, LENGTH)
        good = [row for row, length in enumerate(lengths) if not isinstance(length, BadAudio)]
        for row, length in enumerate(lengths):
            if isinstance(length, BadAudio):
                set_aside_row(task, row, length, self)
        kept = task if len(good) == len(lengths) else task.take(good)
        return kept.with_column(self.duration_key, make_array([lengths[row] for row in good], pa.float64()))


class PreserveByValueStage(DecidingStage[AudioBatch]):
    """Keeps rows whose value in `input_value_key` compares to `target_value` as `operator` says: eq, ne, lt, le, gt or
    ge. Rows without a value are dropped."""

    def __init__(self, input_value_key: str, target_value: int | float | str, operator: str = "eq") -> None:
        super().__init__()
        if operator not in _OPERATORS:
            raise ValueError(f"PreserveByValueStage: operator is {operator!r}, must be one of {', '.join(_OPERATORS)}")
        self.input_value_key, self.target_value, self.operator = input_value_key, target_value, operator

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.input_value_key]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def decide(self, batch: AudioBatch) -> Decision:
        column = column_of(self.name, batch, self.input_value_key)
        compare, kernel = _OPERATORS[self.operator]
        numbers = isinstance(self.target_value, int | float) and not isinstance(self.target_value, bool)
        numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        if numbers and numeric:
            keep = pc.call_function(kernel, [column, pa.scalar(self.target_value)]).fill_null(False)
            return Decision(keep, {self.input_value_key: column.cast(pa.float64(), safe=False)})
        return Decision(make_array([self._compared(compare, value) for value in column_values(column)], pa.bool_()))

    def _compared(self, compare: Callable[[Any, Any], Any], value: Any) -> bool:
        try:
            return value is not None and bool(compare(value, self.target_value))
        except TypeError as error:
            raise ValueError(f"{self.input_value_key} is {value!r}, and target_value {self.target_value!r}") from error

    def apply(self, batch: AudioBatch, decision: Decision) -> AudioBatch:
        return batch.keep(decision.keep)

    def thresholds(self) -> dict[str, str]:
        return {self.input_value_key: f"{self.operator} {self.target_value!r}"}


class AudioToDocumentStage(ConvertToDocumentsStage[AudioBatch, DocumentBatch]):
    """Makes documents of the `fields` of recordings; by default of all but their bytes."""

    def __init__(self, fields: Sequence[str] | None = None) -> None:
        super().__init__(fields)
