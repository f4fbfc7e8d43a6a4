"""A modality in one file: WAV files, read with the standard library, filtered by their length and written again.

It is the code that "Add a modality" in CONTRIBUTING.md describes, complete.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from gristmill.core.task import FileGroupTask
from gristmill.samples.batch import BadSample, SampleBatch
from gristmill.samples.decode import Decoder
from gristmill.samples.filters import RangeFilter, SampleFilter
from gristmill.samples.read import ArchiveReader, ArchiveReaderStage, DirectoryReader, DirectoryReaderStage
from gristmill.samples.score import SampleScore, SampleScoreFilter, ScoresSamples
from gristmill.samples.shard_formats import WebDatasetFormat
from gristmill.samples.write import SampleDirectoryWriter, SampleWriter

HEADER, WAVEFORM = "header", "waveform"


class SoundBatch(SampleBatch):
    """Recordings, one per row, as they were encoded."""

    sample_name, id_column, encoded_column = "sound", "sound_id", "sound"
    decoded_objects = (WAVEFORM, HEADER)
    formats: ClassVar[Mapping[str, tuple[str, ...]]] = {"wav": ("wav", "wave")}

    @staticmethod
    def format_of(data: Any) -> str | None:
        head = bytes(data[:12])
        return "wav" if head[:4] == b"RIFF" and head[8:] == b"WAVE" else None


class BadSound(BadSample):
    """Bytes that cannot be decoded as sound, and why."""


def header(data: Any) -> Any:
    """Channels, rate and frames, without decoding."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            return file.getparams()
    except (wave.Error, EOFError) as error:
        raise BadSound(f"not a WAV file that can be read: {error}") from error


def decode(data: Any) -> Any:
    """The waveform, from -1 to 1, as an array of frames and channels."""
    known = header(data)
    with wave.open(io.BytesIO(data)) as file:
        frames = np.frombuffer(file.readframes(known.nframes), "<i2")
    return frames.reshape(-1, known.nchannels) / 2**15


class SoundFilter(SampleFilter):
    """One score per recording. `score_sample` is given the waveform unless `looks_at` says otherwise."""

    looks_at = WAVEFORM


class DurationFilter(RangeFilter, SoundFilter):
    """Keeps recordings of at least `min_seconds`."""

    looks_at = HEADER

    def __init__(self, min_seconds: float = 1.0) -> None:
        self.min_seconds = min_seconds
        self._check_bounds()

    def score_sample(self, sample: Any) -> float:
        return float(sample.nframes / sample.framerate)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_seconds, None


class LoudnessFilter(RangeFilter, SoundFilter):
    """Keeps recordings with a root mean square of at least `min_loudness`, of 1 at most."""

    def __init__(self, min_loudness: float = 0.01) -> None:
        self.min_loudness = min_loudness
        self._check_bounds()

    def score_sample(self, sample: Any) -> float:
        return float(np.sqrt((sample**2).mean()))

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_loudness, None


class _ScoresSound(ScoresSamples):
    kind, filter_class = SoundBatch, SoundFilter

    def decoder(self, looks_at: str) -> Decoder:
        return Decoder(looks_at, header if looks_at == HEADER else decode)


class SoundScoreFilter(_ScoresSound, SampleScoreFilter[SoundBatch]):
    """Scores recordings and drops some by their score."""


class SoundScore(_ScoresSound, SampleScore[SoundBatch]):
    """Adds the score of each recording as a column."""


class SoundFilesReaderStage(DirectoryReaderStage[FileGroupTask, SoundBatch]):
    name, kind = "read_sound_files", SoundBatch


class SoundDirectoryReader(DirectoryReader[SoundBatch]):
    """Reads recordings from directories."""

    stage_class = SoundFilesReaderStage


class SoundArchiveReaderStage(ArchiveReaderStage[FileGroupTask, SoundBatch]):
    kind = SoundBatch


class SoundArchiveReader(ArchiveReader[SoundBatch]):
    """Reads recordings from WebDataset archives."""

    stage_class = SoundArchiveReaderStage


class SoundDirectoryWriter(SampleDirectoryWriter[SoundBatch]):
    """Writes recordings as files in directories."""

    kind = SoundBatch


class SoundArchiveWriter(SampleWriter[SoundBatch]):
    """Writes recordings as WebDataset archives."""

    kind = SoundBatch

    def _format(self) -> WebDatasetFormat:
        return WebDatasetFormat(SoundBatch, 10)
