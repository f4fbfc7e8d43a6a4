"""Filters of recordings that need no model: a score for each, and a decision by the score.

To add one: subclass `AudioFilter`, or `AudioRangeFilter` for one between two bounds, write `score_audio`, and add rows
to the table in `tests/audio/test_filters.py`. `looks_at` says what `score_audio` is given:

    MEASURED   what one pass over the samples has measured (`Measures`); all filters share the pass
    LOUDNESS   the integrated loudness in LUFS
    HEADER     format, sample rate, channels and length (`AudioHeader`), without decoding
    LENGTH     seconds, of the segment or, by its header, of the file
    COLUMNS    columns of the rows, which the filter names (`transcripts/transcript_filters.py`)

The stages that run filters are in `score.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import pyarrow as pa

from gristmill.audio.decode import AudioHeader
from gristmill.audio.sound.measures import Measures
from gristmill.samples.filters import RangeFilter, SampleFilter

MEASURED, LOUDNESS, HEADER, LENGTH, COLUMNS = "measured", "loudness", "header", "length", "columns"


class AudioFilter(SampleFilter):
    """One score per recording, and a decision per score. Constructors have no side effects."""

    looks_at: ClassVar[str] = MEASURED

    @abstractmethod
    def score_audio(self, audio: Any) -> Any:
        """The score of one recording, usually a number."""

    def score_sample(self, sample: Any) -> Any:
        return self.score_audio(sample)


class AudioRangeFilter(RangeFilter, AudioFilter):
    """A filter that keeps scores between two bounds, which are included."""


class AudioDurationFilter(AudioRangeFilter):
    """Keeps recordings of between `min_seconds` and `max_seconds`, without decoding them."""

    looks_at = LENGTH

    def __init__(self, min_seconds: float | None = 1.0, max_seconds: float | None = 60.0) -> None:
        self.min_seconds, self.max_seconds = min_seconds, max_seconds
        self._check_bounds()

    def score_audio(self, audio: float) -> float:
        return audio

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_seconds, self.max_seconds


class AudioSampleRateFilter(AudioRangeFilter):
    """Keeps recordings with between `min_rate` and `max_rate` samples per second, without decoding them."""

    looks_at, score_type = HEADER, pa.int64()

    def __init__(self, min_rate: int | None = 16_000, max_rate: int | None = None) -> None:
        self.min_rate, self.max_rate = min_rate, max_rate
        self._check_bounds()

    def score_audio(self, audio: AudioHeader) -> int:
        return audio.rate

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_rate, self.max_rate


class AudioChannelsFilter(AudioRangeFilter):
    """Keeps recordings of between `min_channels` and `max_channels` channels, without decoding them."""

    looks_at, score_type = HEADER, pa.int64()

    def __init__(self, min_channels: int | None = 1, max_channels: int | None = 2) -> None:
        self.min_channels, self.max_channels = min_channels, max_channels
        self._check_bounds()

    def score_audio(self, audio: AudioHeader) -> int:
        return audio.channels

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_channels, self.max_channels


class AudioBandwidthFilter(AudioRangeFilter):
    """Keeps recordings that reach up to `min_hertz` or more: less is what a telephone or a low bit rate leaves.

    The bandwidth ends at the highest frequency whose mean power is at most `frequency_threshold` decibels, a negative
    number, from that of the strongest.
    """

    def __init__(
        self, min_hertz: float | None = 4000.0, max_hertz: float | None = None, frequency_threshold: float = -50.0
    ) -> None:
        self.min_hertz, self.max_hertz = min_hertz, max_hertz
        self._check_bounds()
        if isinstance(frequency_threshold, bool) or not isinstance(frequency_threshold, int | float):
            raise TypeError(f"{self.name}: frequency_threshold is {frequency_threshold!r}, must be a number")
        if not -1000 <= frequency_threshold < 0:
            raise ValueError(
                f"{self.name}: frequency_threshold is {frequency_threshold!r}, must be a negative number of decibels, "
                "such as -50"
            )
        self.frequency_threshold = frequency_threshold

    def score_audio(self, audio: Measures) -> float:
        return audio.bandwidth(self.frequency_threshold)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_hertz, self.max_hertz


class AudioClippingFilter(AudioRangeFilter):
    """Keeps recordings of which at most a share of `max_clipped` of the samples is at full scale."""

    def __init__(self, max_clipped: float = 0.001) -> None:
        self.max_clipped = max_clipped
        self._check_bounds()

    def score_audio(self, audio: Measures) -> float:
        return audio.clipped_share

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_clipped


class AudioSilenceFilter(AudioRangeFilter):
    """Keeps recordings of which at most a share of `max_silence` is quieter than `silence_db`.

    The levels of stretches of 20 ms are compared.
    """

    def __init__(self, max_silence: float = 0.6, silence_db: float = -50.0) -> None:
        self.max_silence = max_silence
        self._check_bounds()
        self.silence_db = silence_db

    def score_audio(self, audio: Measures) -> float:
        return audio.silence_share(self.silence_db)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_silence


class AudioSNRFilter(AudioRangeFilter):
    """Keeps recordings whose loud stretches are `min_snr` decibels or more above their quiet ones.

    It is an estimate: it takes the quietest tenth of a recording for its noise, so it needs pauses, and music has few.
    """

    def __init__(self, min_snr: float | None = 10.0, max_snr: float | None = None) -> None:
        self.min_snr, self.max_snr = min_snr, max_snr
        self._check_bounds()

    def score_audio(self, audio: Measures) -> float:
        return audio.snr

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_snr, self.max_snr


class AudioLoudnessFilter(AudioRangeFilter):
    """Keeps recordings whose loudness (EBU R 128) is between `min_lufs` and `max_lufs`."""

    looks_at = LOUDNESS

    def __init__(self, min_lufs: float | None = -40.0, max_lufs: float | None = -5.0) -> None:
        if min_lufs is not None and max_lufs is not None and min_lufs > max_lufs:
            raise ValueError(f"{self.name}: min_lufs={min_lufs} is above max_lufs={max_lufs}")
        self.min_lufs, self.max_lufs = min_lufs, max_lufs

    def score_audio(self, audio: float) -> float:
        return audio

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_lufs, self.max_lufs


class AudioDCOffsetFilter(AudioRangeFilter):
    """Keeps recordings whose samples have a mean of at most `max_offset`, of 1: more is a fault of the equipment."""

    def __init__(self, max_offset: float = 0.02) -> None:
        self.max_offset = max_offset
        self._check_bounds()

    def score_audio(self, audio: Measures) -> float:
        return audio.dc_offset

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_offset


class AudioChannelCorrelationFilter(AudioRangeFilter):
    """Keeps recordings in real stereo: the correlation of two channels is at most `max_correlation`.

    Copies of one channel have 1. Recordings of one channel, or with a silent one, have 0, and are kept.
    """

    def __init__(self, max_correlation: float = 0.999) -> None:
        self.max_correlation = max_correlation
        self._check_bounds()

    def score_audio(self, audio: Measures) -> float:
        return audio.channel_correlation or 0.0

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_correlation
