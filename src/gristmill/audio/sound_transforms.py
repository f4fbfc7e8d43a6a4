"""Stages that change sound: to one channel, to another rate, to a loudness, without silence at its ends.

    MonoConversionStage        one channel, the mean of all
    ResampleAudioStage         another sample rate, in memory or as files
    NormalizeLoudnessStage     a loudness by EBU R 128
    TrimSilenceStage           without the silence at both ends

What they make is the recording of the row from then on, in `audio`, as 32-bit floats: later stages hear it, and writers
encode it. `TrimSilenceStage` changes nothing but offset and duration. `original_file` and `original_offset` say
where the sound comes from.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import (
    AUDIO,
    AUDIO_FILEPATH,
    DURATION,
    NUM_CHANNELS,
    OFFSET,
    SAMPLE_RATE,
    AudioBatch,
    BadAudio,
)
from gristmill.audio.decode import Sound, converted
from gristmill.audio.sound.encode import waveform_bytes
from gristmill.audio.sound.loudness import QUIETEST_LUFS, loudness
from gristmill.audio.waveforms import WaveformStage, set_aside_row
from gristmill.audio.write_recordings import ORIGINAL_FILE, ORIGINAL_OFFSET, SegmentExtractionStage, original_offsets
from gristmill.core.arrow.array_building import make_array
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.samples.decode import without_decoded


def with_sounds(rows: AudioBatch, changed: Sequence[Sound]) -> AudioBatch:
    """The rows with other sound, which stands in place of their files or segments."""
    table, names = rows.data, rows.get_columns()
    columns = {name: table.column(name) for name in names if name not in (AUDIO, OFFSET)}
    if ORIGINAL_FILE not in names and AUDIO_FILEPATH in names:
        columns[ORIGINAL_FILE] = table.column(AUDIO_FILEPATH)
    columns[ORIGINAL_OFFSET] = original_offsets(table)
    columns[DURATION] = make_array([sound.seconds for sound in changed], pa.float64())
    columns[SAMPLE_RATE] = make_array([sound.rate for sound in changed], pa.int64())
    columns[NUM_CHANNELS] = make_array([sound.samples.shape[1] for sound in changed], pa.int64())
    encoded = [waveform_bytes(sound.samples, sound.rate) for sound in changed]
    columns[AUDIO] = make_array(encoded, pa.large_binary())
    batch = AudioBatch(
        pa.table(columns), objects=without_decoded(rows), dataset_name=rows.dataset_name, metadata=dict(rows.metadata)
    )
    batch.lineage = rows.lineage
    return batch


class SoundChangingStage(WaveformStage):
    """Base of the stages that change sound. Write `change`."""

    takes_empty = True

    rate, mono = None, False

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [AUDIO, DURATION, SAMPLE_RATE, NUM_CHANNELS, ORIGINAL_FILE, ORIGINAL_OFFSET]

    def change(self, sound: Sound) -> Sound:
        """The new sound. Raises BadAudio for one that is to be set aside."""
        raise NotImplementedError

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        made: list[Any] = []
        for row, sound in enumerate(sounds):
            try:
                made.append(self.change(sound))
            except BadAudio as error:
                set_aside_row(rows, row, error, self)
                made.append(None)
        good = [row for row, sound in enumerate(made) if sound is not None]
        kept = rows if len(good) == len(made) else rows.take(good)
        return with_sounds(kept, [made[row] for row in good])


class MonoConversionStage(SoundChangingStage):
    """Mixes all channels to one. With `strict_sample_rate` a recording with another rate than `output_sample_rate` goes
    to quarantine; without, it is resampled."""

    def __init__(self, output_sample_rate: int = 48_000, strict_sample_rate: bool = True) -> None:
        super().__init__()
        check_rate("MonoConversionStage: output_sample_rate", output_sample_rate)
        self.output_sample_rate, self.strict_sample_rate = output_sample_rate, strict_sample_rate

    def change(self, sound: Sound) -> Sound:
        if self.strict_sample_rate and sound.rate != self.output_sample_rate:
            raise BadAudio(
                f"it has {sound.rate:,} samples per second, not output_sample_rate={self.output_sample_rate:,}: to "
                "resample it, use strict_sample_rate=False"
            )
        return converted_sound(sound, self.output_sample_rate, mono=True)


class ResampledSound(SoundChangingStage):
    """Gives recordings another rate and number of channels, in memory."""

    name = "resample_audio"

    def __init__(self, target_sample_rate: int, target_nchannels: int | None) -> None:
        super().__init__()
        self.target_sample_rate, self.target_nchannels = target_sample_rate, target_nchannels

    def change(self, sound: Sound) -> Sound:
        channels = sound.samples.shape[1]
        wanted = self.target_nchannels or channels
        if wanted not in (1, channels):
            raise BadAudio(f"it has {channels} channels, of which {wanted} cannot be made: only 1 can")
        return converted_sound(sound, self.target_sample_rate, mono=wanted == 1)


class ResampleAudioStage(CompositeStage[AudioBatch, AudioBatch]):
    """Resamples recordings to `target_sample_rate` (soxr, high quality), and mixes them to `target_nchannels`.

    With `resampled_audio_dir` they become files there, in `target_format`; without it they stay in memory, for the
    stages after this one. `input_format` changes nothing: formats are known by content.
    """

    def __init__(
        self,
        resampled_audio_dir: str | os.PathLike[str] | None = None,
        input_format: str = "wav",
        target_sample_rate: int = 16_000,
        target_format: str = "wav",
        target_nchannels: int | None = 1,
    ) -> None:
        check_rate("ResampleAudioStage: target_sample_rate", target_sample_rate)
        self.resampled_audio_dir, self.input_format = resampled_audio_dir, input_format
        self.target_sample_rate, self.target_format = target_sample_rate, target_format
        self.target_nchannels = target_nchannels
        self.decompose()  # raises for wrong parameters

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        resample = ResampledSound(self.target_sample_rate, self.target_nchannels)
        if self.resampled_audio_dir is None:
            return [resample]
        return [resample, SegmentExtractionStage(self.resampled_audio_dir, self.target_format)]


class NormalizeLoudnessStage(SoundChangingStage):
    """Gives recordings the loudness `target_lufs` (EBU R 128), as far as their peaks stay below `max_peak_db`.

    Silence is left as it is.
    """

    def __init__(self, target_lufs: float = -23.0, max_peak_db: float = -1.0) -> None:
        super().__init__()
        if not -70 < target_lufs < 0 or max_peak_db > 0:
            raise ValueError(
                f"NormalizeLoudnessStage: target_lufs={target_lufs} must be between -70 and 0, and "
                f"max_peak_db={max_peak_db} 0 or less"
            )
        self.target_lufs, self.max_peak_db = target_lufs, max_peak_db

    def change(self, sound: Sound) -> Sound:
        found = loudness([sound.samples], sound.rate, sound.samples.shape[1])
        peak = float(np.abs(sound.samples).max())
        if found <= QUIETEST_LUFS or not peak:
            return sound
        gain = min(10 ** ((self.target_lufs - found) / 20), 10 ** (self.max_peak_db / 20) / peak)
        return Sound(sound.samples * np.float32(gain), sound.rate)


class TrimSilenceStage(WaveformStage):
    """Cuts the silence off both ends of recordings: stretches of 10 ms that are quieter than `silence_db`, but for
    `keep_seconds` of it. Only offset and duration change. A recording without anything louder goes to quarantine."""

    rate, mono = None, True

    def __init__(self, silence_db: float = -45.0, keep_seconds: float = 0.1) -> None:
        super().__init__()
        if silence_db >= 0 or keep_seconds < 0:
            raise ValueError(
                f"TrimSilenceStage: silence_db={silence_db} must be below 0, keep_seconds={keep_seconds} 0 or more"
            )
        self.silence_db, self.keep_seconds = silence_db, keep_seconds

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [OFFSET, DURATION]

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        names = rows.get_columns()
        before = rows.data.column(OFFSET).to_pylist() if OFFSET in names else [None] * len(sounds)
        spans: list[tuple[float, float]] = []
        good: list[int] = []
        for row, sound in enumerate(sounds):
            span = self._loud_span(sound)
            if span is None:
                set_aside_row(rows, row, BadAudio(f"nothing in it is louder than silence_db={self.silence_db:g}"), self)
                continue
            good.append(row)
            spans.append((float(before[row] or 0.0) + span[0], span[1] - span[0]))
        kept = rows if len(good) == len(sounds) else rows.take(good)
        return with_segments(kept, [start for start, _ in spans], [length for _, length in spans])

    def _loud_span(self, sound: Sound) -> tuple[float, float] | None:
        """Where the sound begins and ends, in seconds."""
        samples = sound.samples[:, 0]
        size = max(round(0.01 * sound.rate), 1)
        padded = np.pad(samples, (0, -len(samples) % size)).reshape(-1, size)
        power = np.einsum("ij,ij->i", padded, padded) / size
        loud = np.flatnonzero(power > 10 ** (self.silence_db / 10))
        if not len(loud):
            return None
        keep = round(self.keep_seconds * sound.rate)
        start, end = max(int(loud[0]) * size - keep, 0), min(int(loud[-1] + 1) * size + keep, len(samples))
        return start / sound.rate, end / sound.rate


def with_segments(rows: AudioBatch, offsets: Sequence[float], durations: Sequence[float]) -> AudioBatch:
    """The rows as segments of what they are made of."""
    table = rows.data
    for name, values in ((OFFSET, offsets), (DURATION, durations)):
        column = make_array(list(values), pa.float64())
        at = table.column_names.index(name) if name in table.column_names else -1
        table = table.set_column(at, name, column) if at >= 0 else table.append_column(name, column)
    batch = AudioBatch(table, objects=without_decoded(rows), dataset_name=rows.dataset_name, metadata=rows.metadata)
    batch.lineage = rows.lineage
    return batch


def converted_sound(sound: Sound, rate: int, mono: bool) -> Sound:
    """A sound at another rate, mixed to one channel if `mono`."""
    blocks = list(converted(iter([sound.samples]), sound.rate, rate, mono))
    samples = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    return Sound(samples, rate)


def check_rate(what: str, rate: Any) -> None:
    """For constructors."""
    if not isinstance(rate, int) or isinstance(rate, bool) or not 1_000 <= rate <= 768_000:
        raise ValueError(f"{what} is {rate!r}, must be a whole number of samples per second from 1,000 to 768,000")
