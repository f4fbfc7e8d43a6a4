"""VideoToAudioStage: the sound of clips as recordings, without copying it.

A clip is a span of a film, and its sound is that span of the film's sound track: `audio_filepath` is the film, `offset`
and `duration` are those of the clip. Stages of audio work on it, and add their columns; `AudioToVideoStage` of
`gristmill.video` makes clips of the rows again.

Clips of films without sound go to quarantine, as stages of audio cannot hear them: route them past these stages by
their column `audio_codec` where they are to be kept.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gristmill.audio.batch import AUDIO, AUDIO_FILEPATH, DURATION, OFFSET, AudioBatch
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.batch import Batch
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.io.storage.file_input import file_system

_FILM, _START, _END, _BYTES = "source", "start", "end", "video"
_BYTE_OFFSET, _BYTE_SIZE = "byte_offset", "byte_size"


class VideoToAudioStage(ProcessingStage[Batch, AudioBatch]):
    """Makes recordings of clips: each row is the sound of its clip. All columns are kept."""

    takes_empty = True

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [_FILM, _START, _END]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [AUDIO_FILEPATH, OFFSET, DURATION]

    def process(self, task: Batch) -> AudioBatch:
        table = task.data
        starts, ends = (table.column(name).to_pylist() for name in (_START, _END))
        lengths = [None if end is None else end - (start or 0.0) for start, end in zip(starts, ends, strict=True)]
        columns: dict[str, Any] = {name: table.column(name) for name in table.column_names if name != POSITION}
        columns[AUDIO_FILEPATH] = table.column(_FILM)
        columns[OFFSET] = make_array([start or 0.0 for start in starts], pa.float64())
        columns[DURATION] = make_array(lengths, pa.float64())
        if (encoded := self._encoded(task)) is not None:
            columns[AUDIO] = encoded
        if POSITION in table.column_names:
            columns[POSITION] = table.column(POSITION)
        return AudioBatch(pa.table(columns), dataset_name=task.dataset_name, metadata=dict(task.metadata))

    def _encoded(self, task: Batch) -> Any:
        """The bytes of films that are no files of their own; None if there are none."""
        table = task.data
        if _BYTES in table.column_names:
            return table.column(_BYTES)
        if _BYTE_SIZE not in table.column_names or table.column(_BYTE_SIZE).null_count == table.num_rows:
            return None
        places = zip(*(table.column(name).to_pylist() for name in (_FILM, _BYTE_OFFSET, _BYTE_SIZE)), strict=True)
        options = task.metadata.get("storage_options") or {}
        found: list[bytes | None] = []
        for path, offset, size in places:
            if size is None:
                found.append(None)
                continue
            system, inner = file_system(path, options)
            with system.open(inner, "rb") as file:
                file.seek(offset or 0)
                found.append(file.read(size))
        return make_array(found, pa.large_binary())
