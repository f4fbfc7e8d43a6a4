"""Decode recordings: from a file or encoded bytes to samples, float32 from -1 to 1, frames by channels.

    wav, flac, mp3, aiff     soundfile
    all others, and videos   PyAV, which takes their first audio stream
    a part of a recording    only that part is decoded, from the nearest place where decoding can begin
    too short                fewer samples than the header promises: refused, since the rest is lost
    NaN, infinity            refused

A recording is opened once and read in windows (`OpenSound.windows`), so a file of ten hours takes no more memory than
one of a minute. `decode` reads a recording, or a segment of it, as a whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.audio.batch import BadAudio
from gristmill.audio.sound.audio_format import (
    FFMPEG_NAMES,
    HEAD_BYTES,
    MP3,
    SOUNDFILE_FORMATS,
    WAV,
    audio_format,
    shown_beginning,
)
from gristmill.audio.sound.declared_size import check_promised_size
from gristmill.audio.sound.encode import read_waveform_bytes
from gristmill.core.errors import InputError, require
from gristmill.io.storage.file_input import file_system

if TYPE_CHECKING:
    import numpy.typing as npt

    Samples = npt.NDArray[np.float32]

MAX_DECODED_BYTES = 512 * 2**20
"""The most memory that one decoded recording, or segment, may take: 2 hours at 16 kHz in mono."""

MAX_CHANNELS = 64
LOST_SECONDS, LOST_SHARE = 0.25, 0.01
"""A recording may be shorter than its header says, or a segment may reach past the end, by the larger of these:
encoders pad, and manifests round."""

WINDOW_FRAMES = 2**20
_JOINED_FRAMES = 2**15
"""FFmpeg gives about a thousand frames at a time; they are handed on in larger blocks."""

_PREROLL_SECONDS = 0.5
"""How long before a segment decoding begins: most codecs need some sound to settle."""


class LongAudio(BadAudio):
    """A recording that takes more memory than it may when it is decoded as a whole."""


class Sound(NamedTuple):
    """Samples, frames by channels, and how many frames there are in a second."""

    samples: Samples
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


class AudioHeader(NamedTuple):
    """What the header of a recording says. `frames` is None where it does not say, or only roughly."""

    format: str
    rate: int
    channels: int
    frames: int | None
    codec: str

    @property
    def seconds(self) -> float | None:
        return None if self.frames is None else self.frames / self.rate


class OpenSound:
    """A recording that is open for reading."""

    header: AudioHeader

    def blocks(self, start: int, frames: int | None) -> Iterator[Samples]:
        """The samples from frame `start` on, `frames` of them or all, in blocks of any size."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""

    def windows(self, offset: float | None = None, duration: float | None = None) -> Iterator[Samples]:
        """Blocks of samples of the recording or of a segment, checked. Raises BadAudio."""
        header = self.header
        start = 0 if offset is None else round(offset * header.rate)
        wanted = None if offset is None or duration is None else round(duration * header.rate)
        if start < 0 or (wanted is not None and wanted <= 0):
            raise BadAudio(f"a segment of {duration} s at {offset} s is none")
        if header.frames is not None and start >= header.frames and start:
            raise BadAudio(f"the segment begins at {offset:g} s, and the recording ends at {header.seconds:.3f} s")
        got = 0
        for block in self.blocks(start, wanted):
            if not np.isfinite(block).all():
                raise BadAudio("samples that are no numbers (NaN or infinity)")
            got += len(block)
            yield block
        self._check_length(start, wanted, got)

    def _check_length(self, start: int, wanted: int | None, got: int) -> None:
        header = self.header
        if not got:
            where = f" at {start / header.rate:g} s, where the recording has ended" if start else ""
            raise BadAudio(f"no samples{where}")
        promised = wanted if wanted is not None else None if header.frames is None else header.frames - start
        if promised is not None and promised - got > max(LOST_SECONDS * header.rate, LOST_SHARE * promised):
            seconds = f"{promised / header.rate:.3f} s, and there are only {got / header.rate:.3f} s"
            who = "the segment has" if wanted is not None else f"cut short: the {header.format} header says"
            raise BadAudio(f"{who} {seconds}")


class _SoundFile(OpenSound):
    """A recording that libsndfile reads."""

    def __init__(self, source: Any, kind: str) -> None:
        soundfile = require("soundfile", "audio", "recordings")
        try:
            self._file = soundfile.SoundFile(source)
        except (soundfile.LibsndfileError, RuntimeError) as error:
            raise BadAudio(f"a {kind} that cannot be read: {_reason(error)}") from error
        self._errors = (soundfile.LibsndfileError, RuntimeError)
        # Otherwise soundfile seeks after each read to where it is, and an mp3 is not the same sound after seeking.
        self._file.seekable = lambda: False
        codec = str(self._file.subtype).lower()
        self.header = AudioHeader(kind, self._file.samplerate, self._file.channels, self._file.frames, codec)

    def blocks(self, start: int, frames: int | None) -> Iterator[Samples]:
        try:
            skipped = min(start, round(_PREROLL_SECONDS * self.header.rate)) if self.header.format == MP3 else 0
            if start:
                self._file.seek(start - skipped)
                self._file.read(skipped)
            there = self._file.frames - start
            left = there if frames is None else min(frames, there)
            size = max(WINDOW_FRAMES // self.header.channels, 1)
            while left > 0 and len(block := self._file.read(min(left, size), "float32", always_2d=True)):
                left -= len(block)
                yield block
        except self._errors as error:
            raise BadAudio(f"a damaged {self.header.format}: {_reason(error)}") from error

    def close(self) -> None:
        self._file.close()


class _Waveform(OpenSound):
    """Samples that a stage has changed."""

    def __init__(self, samples: Samples, rate: int) -> None:
        self._samples = samples
        self.header = AudioHeader(WAV, rate, samples.shape[1], len(samples), "float")

    def blocks(self, start: int, frames: int | None) -> Iterator[Samples]:
        yield self._samples[start : None if frames is None else start + frames]


class _AvFile(OpenSound):
    """A recording, or a video with sound, that FFmpeg reads."""

    def __init__(self, source: Any, kind: str) -> None:
        av = require("av", "audio", "recordings")
        self._errors = (av.error.FFmpegError, ValueError)
        try:
            av.logging.set_level(None)  # its callback may block in workers
            self._container = av.open(source, format=FFMPEG_NAMES[kind], options={"protocol_whitelist": "file,pipe"})
        except self._errors as error:
            raise BadAudio(f"a {kind} that cannot be read: {_reason(error)}") from error
        streams = self._container.streams.audio
        if not streams:
            self.close()
            raise BadAudio(f"a {kind} without sound")
        self._stream = streams[0]
        self._stream.thread_count = 1
        codec = self._stream.codec_context
        rate, channels = int(codec.sample_rate or 0), len(codec.layout.channels) if codec.layout else 0
        if not rate or not channels:
            self.close()
            raise BadAudio(f"a {kind} whose header names no sample rate or no channels")
        self.header = AudioHeader(kind, rate, channels, self._frames(rate), str(codec.name))
        self._resampler = av.AudioResampler(format="fltp", layout=codec.layout, rate=rate)

    def _frames(self, rate: int) -> int | None:
        stream = self._stream
        if stream.duration is not None and stream.time_base is not None:
            return round(float(stream.duration * stream.time_base) * rate)
        return None if self._container.duration is None else round(self._container.duration / 1e6 * rate)

    def blocks(self, start: int, frames: int | None) -> Iterator[Samples]:
        end = 2**62 if frames is None else start + frames
        try:
            for place, block in self._placed_blocks(start):
                first, last = max(start - place, 0), min(end - place, len(block))
                if first < last:
                    yield block[first:last]
                if place + len(block) >= end:
                    return
        except self._errors as error:
            raise BadAudio(f"a damaged {self.header.format}: {_reason(error)}") from error

    def _placed_blocks(self, start: int) -> Iterator[tuple[int, Samples]]:
        """Decoded blocks with the number of their first frame, from before `start` on."""
        rate, base = self.header.rate, self._stream.time_base
        first = self._stream.start_time or 0
        if start > 2 * _PREROLL_SECONDS * rate:
            wanted = (start / rate - _PREROLL_SECONDS) / float(base or 1)
            self._container.seek(first + int(wanted), stream=self._stream, backward=True)
        place, tolerance = -1, 2 * float(base or 0) * rate + 1
        waiting: list[Any] = []
        count = 0
        for frame in self._container.decode(self._stream):
            given = max(place, 0) + count if frame.pts is None else round(float((frame.pts - first) * base) * rate)
            if place < 0 or abs(given - place - count) > tolerance:  # the first, or after one that was left out
                if waiting:
                    yield place, np.concatenate(waiting, axis=1).T
                place, count, waiting = given, 0, []
            same = frame.format.name == "fltp" and frame.sample_rate == rate
            for piece in [frame] if same else self._resampler.resample(frame):
                waiting.append(piece.to_ndarray())
                count += piece.samples
            if count >= _JOINED_FRAMES:
                yield place, np.concatenate(waiting, axis=1).T
                place, count, waiting = place + count, 0, []
        if waiting:
            yield place, np.concatenate(waiting, axis=1).T

    def close(self) -> None:
        self._container.close()


def _reason(error: BaseException) -> str:
    return str(error).rpartition(": ")[2].strip(" .") or type(error).__name__


@contextmanager
def open_sound(source: Any) -> Iterator[OpenSound]:
    """Open a recording: a path, a URL, or encoded bytes. Raises BadAudio."""
    if not isinstance(source, str) and (known := read_waveform_bytes(source)):
        yield _Waveform(*known)
        return
    with _opened(source) as (file, size, content):
        head = file.read(HEAD_BYTES)
        if not head:
            raise BadAudio("an empty file: no bytes")
        kind = audio_format(head)
        if kind is None:
            raise BadAudio(f"not a recording in a format that is known: it begins with {shown_beginning(head)}")
        check_promised_size(file, kind, size)
        file.seek(0)
        sound = (_SoundFile if kind in SOUNDFILE_FORMATS else _AvFile)(content, kind)
        try:
            if not 1 <= sound.header.channels <= MAX_CHANNELS:
                raise BadAudio(f"{sound.header.channels:,} channels, more than {MAX_CHANNELS}")
            yield sound
        finally:
            sound.close()


@contextmanager
def _opened(source: Any) -> Iterator[tuple[Any, int, Any]]:
    """A file object, its size, and what decoders open: a local path, or that object."""
    if not isinstance(source, str):
        file: Any = io.BytesIO(source)
        yield file, file.getbuffer().nbytes, file
        return
    try:
        if source.startswith(("http://", "https://")):
            from gristmill.io.fetch.http_client import check_public_host

            check_public_host(source)
        system, inner = file_system(source, {})
        opened = system.open(inner, "rb")
        size = opened.seek(0, 2)
        opened.seek(0)
    except (OSError, InputError, ValueError) as error:
        raise BadAudio(f"the file cannot be opened: {error}") from error
    local = "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))
    with opened:
        yield opened, size, inner if local else opened


def audio_header(source: Any) -> AudioHeader:
    """Format, sample rate, channels and length, without decoding. Raises BadAudio."""
    with open_sound(source) as sound:
        return sound.header


def decode(
    source: Any,
    offset: float | None = None,
    duration: float | None = None,
    rate: int | None = None,
    mono: bool = False,
    max_bytes: int = MAX_DECODED_BYTES,
) -> Sound:
    """A recording, or the segment of it that begins at `offset` and lasts `duration` seconds; with `rate` and `mono`
    resampled and mixed while it is read. Raises BadAudio."""
    with open_sound(source) as sound:
        blocks, size = [], _expected_bytes(sound.header, duration if offset is not None else None, rate, mono)
        _check_size(size, max_bytes)
        size = 0
        for block in converted(sound.windows(offset, duration), sound.header.rate, rate, mono):
            size += block.nbytes
            _check_size(size, max_bytes)
            blocks.append(block)
        if not blocks:
            raise BadAudio("too short to be resampled")
        samples = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        samples.flags.writeable = False  # stages share it: one that changes it must copy it first
        return Sound(samples, rate or sound.header.rate)


def _expected_bytes(header: AudioHeader, duration: float | None, rate: int | None, mono: bool) -> float:
    """The memory that a recording or a segment takes, as far as its header says."""
    seconds = header.seconds or 0.0 if duration is None else min(duration, header.seconds or duration)
    return seconds * (rate or header.rate) * (1 if mono else header.channels) * 4


def _check_size(size: float, max_bytes: int) -> None:
    if size > max_bytes:
        raise LongAudio(f"decoded, it takes more than {max_bytes >> 20} MiB: cut it with SplitLongAudioStage first")


def converted(blocks: Iterator[Samples], old_rate: int, rate: int | None, mono: bool) -> Iterator[Samples]:
    """Blocks of one recording, mixed to one channel and resampled. They keep their two dimensions."""
    stream = None
    for block in blocks:
        samples = mixed(block)[:, None] if mono else block
        if rate in (None, old_rate):
            yield samples
            continue
        if stream is None:
            soxr = require("soxr", "audio", "resampling")
            stream = soxr.ResampleStream(old_rate, rate, samples.shape[1], dtype="float32", quality="HQ")
        yield stream.resample_chunk(np.ascontiguousarray(samples))
    if stream is not None:
        yield stream.resample_chunk(np.zeros((0, samples.shape[1]), np.float32), last=True)


def mixed(samples: Samples) -> Samples:
    """One channel: the mean of all."""
    channels = samples.shape[1]
    if channels == 1:
        return samples[:, 0]
    total = samples[:, 0] + samples[:, 1]
    for channel in range(2, channels):
        total += samples[:, channel]
    total *= np.float32(1 / channels)
    return total


decode_audio = decode
"""The name in `gristmill.audio`, where `decode` is this module."""
