"""StreamInfo: what a file says about its video, and how to open it.

The video of a file is its first video stream that is no cover picture. Time stamps are those of FFmpeg, which has
applied the edit list of the file; the first frame may have any time stamp, also a negative one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gristmill.core.errors import InputError, require
from gristmill.io.storage.file_input import file_system
from gristmill.video.batch import BadVideo
from gristmill.video.container.byte_range_file import ByteRange
from gristmill.video.container.video_format import FFMPEG_NAMES, HEAD_BYTES, MKV, shown_beginning, video_format

REMOTE_BLOCK_BYTES = 2**20
"""Remote files are read in ranges of this size, as far as they are needed."""

MAX_STREAMS = 64


@dataclass(frozen=True, kw_only=True)
class StreamInfo:
    """What the header of a file, and its first frame, say about its video."""

    format: str
    codec: str
    profile: str | None
    pixel_format: str
    width: int
    height: int
    """As encoded: before rotation, in pixels that need not be square."""
    rotation: int
    """By how many degrees pictures must be turned counter-clockwise: 0, 90, 180 or 270."""
    pixel_aspect: Fraction
    """The width of a pixel divided by its height."""
    time_base: Fraction
    """Seconds in a unit of time stamps."""
    start_pts: int
    """The time stamp of the first frame."""
    duration_pts: int | None
    """How long the video is; None where the header does not say."""
    fps: Fraction | None
    """Frames per second, on average."""
    variable_rate: bool
    """Whether the header shows that frames last differently long."""
    num_frames: int | None
    """As far as the header says. It is exact for mp4 and mov, and null for most others."""
    bit_rate: int | None
    """Bits per second of the video alone, else of the file."""
    interlaced: bool
    color_range: str | None
    color_transfer: str | None
    audio_codec: str | None
    audio_rate: int | None
    audio_channels: int | None
    size: int
    """Bytes of the file."""

    @property
    def display_size(self) -> tuple[int, int]:
        """Width and height of the upright picture, as stored: pixels need not be square."""
        upright = self.rotation in (0, 180)
        return (self.width, self.height) if upright else (self.height, self.width)

    @property
    def end_pts(self) -> int | None:
        return None if self.duration_pts is None else self.start_pts + self.duration_pts

    @property
    def duration(self) -> float | None:
        """In seconds."""
        return None if self.duration_pts is None else float(self.duration_pts * self.time_base)

    def seconds(self, pts: int) -> float:
        """From a time stamp to seconds since the first frame."""
        return float((pts - self.start_pts) * self.time_base)

    def pts(self, seconds: float | Fraction) -> int:
        """The time stamp that is nearest to so many seconds since the first frame."""
        return self.start_pts + round(Fraction(seconds) / self.time_base)


@dataclass
class OpenVideo:
    """A file that is open for reading, its video stream, and what is known of it."""

    container: Any
    stream: Any
    info: StreamInfo


@contextmanager
def open_video(
    source: Any,
    byte_range: tuple[int, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    codec_options: Mapping[str, str] | None = None,
) -> Iterator[OpenVideo]:
    """Open a video: a path, a URL, or encoded bytes; `byte_range` is offset and size of one within a file. A remote
    file is read in ranges, as far as it is needed. Raises BadVideo."""
    av = require("av", "video", "videos")
    with _opened(source, byte_range, storage_options or {}) as (file, size, content):
        head = file.read(HEAD_BYTES)
        file.seek(0)
        if not head:
            raise BadVideo("an empty file: no bytes")
        kind = video_format(head)
        if kind is None:
            raise BadVideo(f"not a video in a format that is known: it begins with {shown_beginning(head)}")
        av.logging.set_level(None)  # its callback may block in workers
        try:
            options = {"protocol_whitelist": "file,pipe"}
            container = av.open(content, format=FFMPEG_NAMES[kind], options=options, metadata_errors="replace")
        except (av.error.FFmpegError, ValueError) as error:
            raise BadVideo(f"a {kind} that cannot be opened: {reason_of(error)}") from error
        try:
            stream = _video_stream(container, kind)
            stream.thread_count = 1
            if codec_options:
                stream.codec_context.options = dict(codec_options)
            yield OpenVideo(container, stream, _stream_info(container, stream, kind, size))
        finally:
            container.close()


def reason_of(error: BaseException) -> str:
    """What FFmpeg says, without its error number and the name of the file."""
    return (getattr(error, "strerror", None) or str(error)).strip(" .") or type(error).__name__


@contextmanager
def _opened(
    source: Any, byte_range: tuple[int, int] | None, options: Mapping[str, Any]
) -> Iterator[tuple[Any, int, Any]]:
    """A file object, its size, and what FFmpeg opens: a local path, or that object."""
    if not isinstance(source, str):
        file: Any = io.BytesIO(source)
        yield file, file.getbuffer().nbytes, file
        return
    try:
        if source.startswith(("http://", "https://")):
            from gristmill.io.fetch.http_client import check_public_host

            check_public_host(source)
        system, inner = file_system(source, options)
        opened = system.open(inner, "rb", block_size=REMOTE_BLOCK_BYTES, cache_type="background")
    except (OSError, InputError, ValueError) as error:
        raise BadVideo(f"the file cannot be opened: {error}") from error
    local = "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))
    with opened:
        size = opened.seek(0, 2)
        opened.seek(0)
        if byte_range is not None:
            part = ByteRange(opened, *byte_range)
            yield part, byte_range[1], part
        else:
            yield opened, size, inner if local else opened


def _video_stream(container: Any, kind: str) -> Any:
    """The first video stream that is no cover picture."""
    av = require("av", "video", "videos")
    if len(container.streams) > MAX_STREAMS:
        raise BadVideo(f"{len(container.streams):,} streams, more than {MAX_STREAMS}")
    not_film = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
    streams = [stream for stream in container.streams.video if not stream.disposition & not_film]
    if not streams:
        others = " (only a cover picture)" if container.streams.video else ""
        raise BadVideo(f"a {kind} without a video stream{others}")
    stream = streams[0]
    if stream.codec_context is None:
        raise BadVideo(f"a {kind} whose video has a codec that is not known")
    return stream


def _stream_info(container: Any, stream: Any, kind: str, size: int) -> StreamInfo:
    codec = stream.codec_context
    width, height, base = int(codec.width or 0), int(codec.height or 0), stream.time_base
    if not width or not height or not base:
        raise BadVideo(f"a {kind} whose header does not say how large its pictures are")
    average, nominal = stream.average_rate, stream.base_rate
    audio = container.streams.audio[0] if container.streams.audio else None
    sound = audio.codec_context if audio is not None else None
    return StreamInfo(
        format=kind,
        codec=str(codec.name),
        profile=codec.profile or None,
        pixel_format=str(codec.pix_fmt or ""),
        width=width,
        height=height,
        rotation=0,
        pixel_aspect=stream.sample_aspect_ratio or Fraction(1),
        time_base=base,
        start_pts=int(stream.start_time or 0),
        duration_pts=_duration(container, stream, kind),
        fps=average or None,
        variable_rate=bool(average and nominal and abs(average / nominal - 1) > Fraction(1, 100)),
        num_frames=int(stream.frames) or None,
        bit_rate=stream.bit_rate or container.bit_rate or None,
        interlaced=False,
        color_range={1: "tv", 2: "pc"}.get(int(codec.color_range)),
        color_transfer={16: "pq", 18: "hlg"}.get(int(codec.color_trc)),
        audio_codec=str(sound.name) if sound is not None else None,
        audio_rate=int(sound.sample_rate or 0) or None if sound is not None else None,
        audio_channels=len(sound.layout.channels) if sound is not None and sound.layout else None,
        size=size,
    )


def _duration(container: Any, stream: Any, kind: str) -> int | None:
    if stream.duration is not None and stream.duration > 0:
        return int(stream.duration)
    if container.duration is None or container.duration <= 0:
        return None
    before = 0 if kind == MKV else max(container.start_time or 0, 0)  # Matroska counts from 0
    end = Fraction(container.duration + before, 1_000_000) / stream.time_base
    return max(round(end) - max(int(stream.start_time or 0), 0), 0) or None
