"""AudioToVideoStage: clips again, of rows that stages of audio have worked on."""

from __future__ import annotations

import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.video.batch import CLIP_ID, SOURCE, VideoBatch

_OF_SOUND = ("audio_filepath", "offset", "audio")


class AudioToVideoStage(ProcessingStage[Batch, VideoBatch]):
    """Makes clips of the rows that `VideoToAudioStage` of `gristmill.audio` made recordings of, with what stages of
    audio have added."""

    takes_empty = True

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [SOURCE, CLIP_ID]

    def process(self, task: Batch) -> VideoBatch:
        columns = {name: task.data.column(name) for name in task.data.column_names if name not in _OF_SOUND}
        return VideoBatch(pa.table(columns), dataset_name=task.dataset_name, metadata=dict(task.metadata))
