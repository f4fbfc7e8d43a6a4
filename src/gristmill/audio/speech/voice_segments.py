"""VADSegmentationStage: recordings as segments in which people speak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.audio.batch import AUDIO_FILEPATH, DURATION, OFFSET, AudioBatch
from gristmill.audio.decode import Sound
from gristmill.audio.sound_transforms import with_segments
from gristmill.audio.speech.silero import (
    SILERO,
    SpeechLimits,
    speech_probabilities,
    speech_spans,
    streamed_probabilities,
)
from gristmill.audio.waveforms import WaveformStage
from gristmill.audio.write_recordings import ORIGINAL_FILE
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import json_array
from gristmill.core.errors import require
from gristmill.core.stage import Columns

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples
    from gristmill.audio.speech.silero import Probabilities

SEGMENTS, SEGMENT_NUM, START_MS, END_MS = "segments", "segment_num", "start_ms", "end_ms"


class VADSegmentationStage(WaveformStage):
    """Makes a row of each stretch of speech, found with Silero; recordings without speech are left out.

    A row is a segment of its file, by `offset` and `duration`: no sound is copied. `start_ms` and `end_ms` are times in
    the file. With `nested`, rows stay as they are, and the column `segments` lists start, end, duration and number, in
    seconds of the file. Segments are between `min_duration_sec` and `max_duration_sec`, at least `min_interval_ms` of
    silence apart, and padded by `speech_pad_ms`. Long recordings are read window by window.
    """

    streams: ClassVar[bool] = True

    def __init__(
        self,
        min_interval_ms: int = 500,
        min_duration_sec: float = 2.0,
        max_duration_sec: float = 60.0,
        threshold: float = 0.5,
        speech_pad_ms: int = 300,
        nested: bool = False,
    ) -> None:
        super().__init__()
        if not 0 < threshold < 1:
            raise ValueError(f"VADSegmentationStage: threshold is {threshold!r}, must be between 0 and 1")
        if min(min_interval_ms, min_duration_sec, speech_pad_ms) < 0 or max_duration_sec <= min_duration_sec:
            raise ValueError(
                f"VADSegmentationStage: min_interval_ms={min_interval_ms}, min_duration_sec={min_duration_sec} and "
                f"speech_pad_ms={speech_pad_ms} must be 0 or more, and max_duration_sec={max_duration_sec} above "
                "min_duration_sec"
            )
        self.min_interval_ms, self.min_duration_sec = min_interval_ms, min_duration_sec
        self.max_duration_sec, self.threshold = max_duration_sec, threshold
        self.speech_pad_ms, self.nested = speech_pad_ms, nested
        self._limits = SpeechLimits(
            threshold, min_interval_ms / 1000, min_duration_sec, max_duration_sec, speech_pad_ms / 1000
        )

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [SEGMENTS] if self.nested else [OFFSET, DURATION, START_MS, END_MS, SEGMENT_NUM, ORIGINAL_FILE]

    def check(self) -> None:
        require("onnxruntime", "onnx", "voice activity detection")
        SILERO.find()

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        threads = max(int(self.resources.cpus), 1)
        heard = [(speech_probabilities(sound.samples[:, 0], threads), sound.seconds) for sound in sounds]
        return self._cut(rows, heard)

    def process_stream(self, rows: AudioBatch, blocks: Iterator[Samples]) -> AudioBatch:
        channel = (block[:, 0] for block in blocks)
        return self._cut(rows, [streamed_probabilities(channel, max(int(self.resources.cpus), 1))])

    def _cut(self, rows: AudioBatch, heard: Sequence[tuple[Probabilities, float]]) -> AudioBatch:
        """The rows by where people speak, given the probabilities and the length of each."""
        names = rows.get_columns()
        begins = rows.data.column(OFFSET).to_pylist() if OFFSET in names else [None] * rows.num_items
        spans = []
        for (probabilities, seconds), begin in zip(heard, begins, strict=True):
            found = speech_spans(probabilities, seconds, self._limits)
            spans.append([(start + (begin or 0.0), end + (begin or 0.0)) for start, end in found])
        return self._nested(rows, spans) if self.nested else self._segments(rows, spans)

    def _nested(self, rows: AudioBatch, spans: Sequence[Sequence[tuple[float, float]]]) -> AudioBatch:
        def segment(number: int, start: float, end: float) -> dict[str, Any]:
            return {SEGMENT_NUM: number, "start": start, "end": end, DURATION: end - start}

        found = [[segment(number, *span) for number, span in enumerate(own)] for own in spans]
        return rows.with_column(SEGMENTS, json_array(found))

    def _segments(self, rows: AudioBatch, spans: Sequence[Sequence[tuple[float, float]]]) -> AudioBatch:
        origin = [row for row, own in enumerate(spans) for _ in own]
        flat = [span for own in spans for span in own]
        batch = with_segments(rows.take(origin), [span[0] for span in flat], [span[1] - span[0] for span in flat])
        numbers = [number for own in spans for number in range(len(own))]
        for name, values in (
            (START_MS, [int(start * 1000) for start, _ in flat]),
            (END_MS, [int(end * 1000) for _, end in flat]),
            (SEGMENT_NUM, numbers),
        ):
            batch = batch.with_column(name, make_array(values, pa.int64()))
        names = batch.get_columns()
        if AUDIO_FILEPATH in names and ORIGINAL_FILE not in names:
            batch = batch.with_column(ORIGINAL_FILE, batch.data.column(AUDIO_FILEPATH).combine_chunks())
        return batch
