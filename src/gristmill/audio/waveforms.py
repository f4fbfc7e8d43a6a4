"""The waveforms of a batch: decoded once, for all stages of a worker.

`WaveformStage` is the base of stages that look at sound. It says at which rate it wants to hear, and writes
`process_waveforms(rows, waveforms)`: rows that could be decoded, each with its waveform, a float32 array of frames (or
frames by channels with `mono = False`). Rows that cannot be decoded go to quarantine.

A batch of manifest rows may stand for hours of sound. So such a stage passes it on in pieces, each with as much sound
as fits into memory; the stages after it get the pieces, with what was decoded, and decode nothing again.

Stages that only look at rows one after the other, such as filters, use `sounds`. It keeps what it decodes as long as
that is less than `KEPT_BYTES` in a batch; the rest is decoded again if another stage asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import AUDIO, AUDIO_FILEPATH, DURATION, OFFSET, AudioBatch, BadAudio
from gristmill.audio.decode import MAX_DECODED_BYTES, LongAudio, Sound, converted, decode, open_sound
from gristmill.core.arrow.array_building import as_one_array
from gristmill.core.arrow.table_conversion import POSITION, column_values, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import BadRecordError, ColumnError, did_you_mean
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.samples.decode import share_decoded

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

T = TypeVar("T")

_AS_RECORDED = (None, False)

KEPT_BYTES = 192 * 2**20
"""How much decoded sound stays with a batch."""

STREAMED_BYTES = 64 * 2**20
"""Recordings that take more memory than this when they are decoded are read window by window, by stages that can."""

PIECE_SECONDS = 900.0
"""How much sound a `WaveformStage` is given at once, unless a single recording is longer."""


def sources_of(batch: AudioBatch) -> list[tuple[Any, float | None, float | None]]:
    """For each row what `decode` takes: bytes or a path (None if there is neither), offset and duration."""
    names, rows = batch.get_columns(), batch.num_items
    nothing: list[Any] = [None] * rows
    table = batch.data
    paths = table.column(AUDIO_FILEPATH).to_pylist() if AUDIO_FILEPATH in names else nothing
    offsets = column_values(table.column(OFFSET)) if OFFSET in names else nothing
    durations = column_values(table.column(DURATION)) if DURATION in names else nothing
    encoded = nothing
    if AUDIO in names:
        buffers = (value.as_buffer() for chunk in table.column(AUDIO).chunks for value in chunk)
        encoded = [None if buffer is None else memoryview(buffer).cast("B") for buffer in buffers]
    given = zip(encoded, paths, offsets, durations, strict=True)
    return [(path if data is None else data, offset, length) for data, path, offset, length in given]


def row_of(where: tuple[Any, Any, Any], read: Callable[[Any, float | None, float | None], T]) -> T | BadAudio:
    """What is read of one row, from one of `sources_of`, or why it cannot be read."""
    source, offset, duration = where
    if source is None or (isinstance(source, str) and not source):
        return BadAudio(f"neither {AUDIO_FILEPATH} nor {AUDIO}: nothing to decode")
    try:
        return read(source, _number(OFFSET, offset), _number(DURATION, duration))
    except BadAudio as error:
        return error
    except MemoryError:
        return LongAudio("it does not fit into memory: cut it with SplitLongAudioStage first")


def _number(name: str, value: Any) -> float | None:
    if value is not None and not (isinstance(value, int | float) and np.isfinite(value)):
        raise BadAudio(f"{name} is {value!r}, must be a number of seconds")
    return value


def sounds(
    batch: AudioBatch, rate: int | None = None, mono: bool = False, max_bytes: int = MAX_DECODED_BYTES
) -> Iterator[Sound | BadAudio]:
    """The sound of each row, in order, or why there is none: as it was recorded, or at a `rate`, or mixed to `mono`.

    What is decoded stays with the row. At another rate it is made of what the row has, or decoded.
    """
    form = (rate, mono)
    cells = share_decoded(batch)
    sources: list[Any] = []
    free = KEPT_BYTES - sum(one.samples.nbytes for cell in cells for one in cell.values() if isinstance(one, Sound))
    for row, cell in enumerate(cells):
        sound: Any = cell.get(form)
        if sound is None:
            if isinstance(recorded := cell.get(_AS_RECORDED), Sound):
                sound = changed(recorded, rate, mono)
            else:
                sources = sources or sources_of(batch)
                sound = row_of(sources[row], partial(decode, rate=rate, mono=mono, max_bytes=max_bytes))
            size = sound.samples.nbytes if isinstance(sound, Sound) else 0
            if size <= free and not isinstance(sound, LongAudio):
                cell[form] = sound
                free -= size
        yield sound


def changed(sound: Sound, rate: int | None, mono: bool) -> Sound:
    """A sound at another rate, mixed to one channel if `mono`."""
    blocks = list(converted(iter([sound.samples]), sound.rate, rate, mono))
    samples = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    samples.flags.writeable = False
    return Sound(samples, rate or sound.rate)


def streamed(
    source: Any, offset: float | None, duration: float | None, rate: int | None, mono: bool
) -> Iterator[Samples]:
    """The samples of a recording or a segment, in blocks, at a rate and mixed to `mono`. Raises BadAudio."""
    with open_sound(source) as sound:
        yield from converted(sound.windows(offset, duration), sound.header.rate, rate, mono)


def recording_name(batch: AudioBatch, row: int) -> str:
    """What users know a row by: its file, or its id."""
    for name in (AUDIO_FILEPATH, batch.id_column):
        if name in batch.get_columns() and (value := batch.data.column(name)[row].as_py()):
            return str(value)
    return "a recording without a name"


def column_of(user: str, batch: AudioBatch, name: str) -> pa.Array:
    """A column of the rows. `user` is the stage or filter that needs it."""
    names = batch.get_columns()
    if name not in names:
        raise ColumnError(f"{user!r}: there is no column {name!r}.{did_you_mean(name, names)}")
    return as_one_array(batch.data.column(name))


def set_aside_row(batch: AudioBatch, row: int, error: BadAudio, stage: ProcessingStage[Any, Any] | None) -> None:
    """Put a row into quarantine, with its file and the reason; without a stage, raise."""
    values = table_to_rows(batch.data.slice(row, 1))[0]
    position, file = values.pop(POSITION, None), batch.metadata.get(SOURCE_FILE)
    values.pop(AUDIO, None)
    reason = f"{recording_name(batch, row)}: {error}"
    if stage is None:
        raise BadRecordError(f"{file}: {reason}" if file else reason)
    stage.set_aside(reason, row=values, file=file, position=position)


class WaveformStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Base of the stages that look at waveforms. Write `process_waveforms`; set `rate` and `mono`."""

    rate: ClassVar[int | None] = 16_000
    """Samples per second of the waveforms; None: as they were recorded."""

    mono: ClassVar[bool] = True

    piece_seconds: ClassVar[float] = PIECE_SECONDS

    streams: ClassVar[bool] = False
    """Whether long recordings are given to `process_stream`. If not, those that do not fit in memory are set aside."""

    def waveform_rate(self) -> int | None:
        """`rate`, unless a parameter of the stage says otherwise."""
        return self.rate

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def process_waveforms(self, rows: AudioBatch, waveforms: Sequence[Samples]) -> AudioBatch:
        """The rows, each with its waveform, which is read-only. Gives rows with more columns, or other rows."""
        raise NotImplementedError(f"{type(self).__name__} must write process_waveforms or process_sounds")

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        """In place of `process_waveforms`, for stages that must know the rate of each recording."""
        return self.process_waveforms(rows, [one.samples[:, 0] if self.mono else one.samples for one in sounds])

    def process_stream(self, rows: AudioBatch, blocks: Iterator[Samples]) -> AudioBatch:
        """In place of `process_waveforms`, for one row whose recording is long: its samples, in blocks of any size."""
        raise NotImplementedError(f"{type(self).__name__} has streams = True, and must write process_stream")

    def process(self, task: AudioBatch) -> Iterator[AudioBatch]:
        start, seconds = 0, 0.0
        decoded: list[Sound | BadAudio] = []
        limit = STREAMED_BYTES if self.streams else MAX_DECODED_BYTES
        for row, sound in enumerate(sounds(task, self.waveform_rate(), self.mono, limit)):
            if self.streams and isinstance(sound, LongAudio):
                if decoded:
                    yield self._process_piece(task, start, decoded)
                yield self._process_long(task, row)
                start, seconds, decoded = row + 1, 0.0, []
                continue
            decoded.append(sound)
            seconds += 0.0 if isinstance(sound, BadAudio) else sound.seconds
            if seconds >= self.piece_seconds and row + 1 < task.num_items:
                yield self._process_piece(task, start, decoded)
                start, seconds, decoded = row + 1, 0.0, []
        if start < task.num_items or not task.num_items:
            yield self._process_piece(task, start, decoded)

    def _process_long(self, task: AudioBatch, row: int) -> AudioBatch:
        source, offset, duration = sources_of(task.slice(row, 1))[0]
        try:
            return self.process_stream(
                task.slice(row, 1), streamed(source, offset, duration, self.waveform_rate(), self.mono)
            )
        except BadAudio as error:
            set_aside_row(task, row, error, self)
            return self.process_sounds(task.slice(row, 0), [])

    def _process_piece(self, task: AudioBatch, start: int, decoded: Sequence[Sound | BadAudio]) -> AudioBatch:
        for index, one in enumerate(decoded):
            if isinstance(one, BadAudio):
                set_aside_row(task, start + index, one, self)
        good = [(start + index, one) for index, one in enumerate(decoded) if isinstance(one, Sound)]
        rows = task if len(good) == task.num_items else task.take([row for row, _ in good])
        return self.process_sounds(rows, [sound for _, sound in good])
