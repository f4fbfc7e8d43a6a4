"""Decode a video once, for all analysers.

`analyse_video` opens the file, decodes its frames in order with one thread, and gives each analyser the frames that it
asked for (`frame_analyser.py`). Frames are converted once for each distinct request, and never kept: memory does not
grow with the length of a film. If only key frames are wanted, other packets are dropped before they are decoded;
between spans that lie far apart the decoder seeks.

A packet that cannot be decoded is noted with its time, and decoding goes on behind it: what is good of a damaged film
is used. Files are decoded in parallel by running several workers.
"""

from __future__ import annotations

import gc
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.core.errors import require
from gristmill.video.batch import BadVideo
from gristmill.video.container.video_format import AVI, MKV, MP4
from gristmill.video.frame_analyser import MOTION_VECTORS, FrameAnalyser, FrameRequest, FrameSeries
from gristmill.video.frame_conversion import FrameConverter
from gristmill.video.stream_info import OpenVideo, StreamInfo, open_video, reason_of

if TYPE_CHECKING:
    import numpy.typing as npt

BLOCK_FRAMES, BLOCK_BYTES = 32, 16 * 2**20
"""Frames are handed to analysers in blocks of so many, or fewer if they are large."""

AHEAD_BYTES = 96 * 2**20
"""How much of what is measured for later stages is kept of a film. What takes more is left for another pass."""

MAX_NOTED_DAMAGE = 10_000
LOST_SECONDS, LOST_SHARE = 0.5, 0.01
"""A video may be shorter than its header says by the larger of these."""

_SEEK_SECONDS = 4.0
"""The decoder seeks over a gap between spans that is longer than this: groups of pictures are usually shorter."""

_PIXELS_PER_COLLECTION = 600_000_000
"""How many pixels are decoded between two collections of garbage, where motion vectors are looked at."""

_SEEKABLE = frozenset({MP4, MKV, AVI})


@dataclass(frozen=True)
class DecodeLimits:
    """What a video may ask for. One that asks for more is refused."""

    max_pixels: int = 8192 * 4608
    """Of a picture: 8K passes."""
    max_frames: int = 20_000_000
    max_seconds: float = 48 * 3600.0


class Damage(NamedTuple):
    """A place in a video that could not be decoded."""

    pts: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class Analysis:
    """What one pass over a video has found."""

    info: StreamInfo
    results: list[FrameSeries]
    """Of each analyser."""
    ahead: list[FrameSeries | None]
    """Of each of those for later stages; None for one that was left out."""
    num_frames: int
    """Decoded frames."""
    pts: npt.NDArray[np.int64] | None
    """The time stamps of all frames, or of those within the spans; None if only key frames were decoded."""
    end_pts: int
    """Where the last frame ends."""
    damage: tuple[Damage, ...]


def analyse_video(
    source: Any,
    analysers: Sequence[FrameAnalyser],
    *,
    ahead: Sequence[FrameAnalyser] = (),
    byte_range: tuple[int, int] | None = None,
    spans: Sequence[tuple[int, int]] | None = None,
    start_pts: int | None = None,
    limits: DecodeLimits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Analysis:
    """Decode a video, or `spans` of it (start and end in time stamps), and return what the analysers found. Those in
    `ahead` look on if that costs no more decoding, and little memory. With spans, `start_pts` is the time stamp of the
    first frame of the video, from which time is counted. Raises BadVideo if there is nothing to decode."""
    limits = limits or DecodeLimits()
    with open_video(source, byte_range, storage_options) as opened:
        check_limits(opened.info, limits)
        if start_pts is not None:
            opened.info = replace(opened.info, start_pts=start_pts)
        requests = [analyser.request(opened.info) for analyser in analysers]
        keyframes = bool(analysers) and all(request.keyframes for request in requests)
        also = _looking_on(ahead, opened.info, spans, keyframes)
        requests += [analyser.request(opened.info) for analyser in also]
        if any(request.pixels == MOTION_VECTORS for request in requests):
            opened.stream.codec_context.options = {"flags2": "+export_mvs"}
        found = _Pass(opened, [*analysers, *also], limits).run(spans, keyframes)
        rest = {id(one): series for one, series in zip(also, found.results[len(analysers) :], strict=True)}
        return replace(found, results=found.results[: len(analysers)], ahead=[rest.get(id(one)) for one in ahead])


def _looking_on(
    ahead: Sequence[FrameAnalyser], info: StreamInfo, spans: Sequence[tuple[int, int]] | None, keyframes: bool
) -> list[FrameAnalyser]:
    """Those of the analysers for later stages that may take part in a pass."""
    if spans is None:
        seconds = float("inf") if info.duration is None else info.duration
    else:
        seconds = sum(float((end - start) * info.time_base) for start, end in _merged(spans))
    rate = float(info.fps or 30)
    chosen: list[FrameAnalyser] = []
    free = float(AHEAD_BYTES)
    for analyser in ahead:
        request = analyser.request(info)
        size = seconds * min(request.fps or rate, rate) * analyser.bytes_per_frame(info)
        if size <= free and (request.keyframes or not keyframes):
            chosen.append(analyser)
            free -= size
    return chosen


def check_limits(info: StreamInfo, limits: DecodeLimits) -> None:
    """Raise BadVideo for a video that asks for more than the limits allow."""
    if info.width * info.height > limits.max_pixels:
        raise BadVideo(
            f"pictures of {info.width:,} x {info.height:,} pixels, more than max_pixels={limits.max_pixels:,}"
        )
    if info.duration is not None and info.duration > limits.max_seconds:
        raise BadVideo(f"{info.duration:,.0f} seconds, more than max_seconds={limits.max_seconds:,.0f}")
    if info.num_frames is not None and info.num_frames > limits.max_frames:
        raise BadVideo(f"{info.num_frames:,} frames, more than max_frames={limits.max_frames:,}")


class FrameStream:
    """The frames of an open video in order, with time stamps; it notes what could not be decoded."""

    def __init__(self, opened: OpenVideo, keyframes: bool = False) -> None:
        self.opened, self.keyframes = opened, keyframes
        self.damage: list[Damage] = []
        self.num_frames, self.num_damaged = 0, 0
        self.end_pts = opened.info.start_pts
        self._last_pts: int | None = None
        self._av = require("av", "video", "videos")
        info = opened.info
        self._frame_pts = max(round(1 / (info.fps * info.time_base)), 1) if info.fps else 1

    def frames(self, spans: Sequence[tuple[int, int]] | None = None) -> Iterator[tuple[Any, int]]:
        """Frames with their time stamps; of `spans`, those within."""
        for frame, pts, inside in self.marked_frames(spans):
            if inside:
                yield frame, pts

    def marked_frames(self, spans: Sequence[tuple[int, int]] | None = None) -> Iterator[tuple[Any, int, bool]]:
        """Frames with their time stamps, and whether they are within the spans. Unless a span begins with the film, at
        least one frame before it is among them: which frames are sampled depends on the one before."""
        if spans is None:
            for frame, pts in self._decoded():
                yield frame, pts, True
            self._check_length()
            return
        waiting = self._decoded()
        held: tuple[Any, int] | None = None
        for start, end in _merged(spans):
            behind = self._last_pts if self._last_pts is not None else self.opened.info.start_pts
            if self._is_far(behind, start):
                waiting = self._from(start)
                held = None
            while (item := held or next(waiting, None)) is not None:
                held = None
                if item[1] >= end:
                    held = item
                    break
                yield *item, item[1] >= start

    def _is_far(self, behind: int, start: int) -> bool:
        info = self.opened.info
        return (start - behind) * info.time_base > _SEEK_SECONDS and info.format in _SEEKABLE

    def _from(self, start: int) -> Iterator[tuple[Any, int]]:
        """Frames from a key frame on that is before `start`."""
        place, noted = (self._last_pts, self.end_pts), len(self.damage)
        for target in (start - 1, self.opened.info.start_pts):
            self._last_pts, self.end_pts = place
            del self.damage[noted:]
            self.opened.container.seek(target, stream=self.opened.stream, backward=True)
            frames = self._decoded()
            first = next(frames, None)
            if first is not None and first[1] < start:
                return chain([first], frames)
        return frames if first is None else chain([first], frames)  # an index that lies

    def _decoded(self) -> Iterator[tuple[Any, int]]:
        for packet in self.packets():
            if self.keyframes and not packet.is_keyframe and packet.size:
                continue
            try:
                decoded = packet.decode()
            except self._av.error.FFmpegError as error:
                self._note(packet.pts if packet.pts is not None else packet.dts, reason_of(error))
                continue
            for frame in decoded:
                pts = self._time_stamp(frame)
                if pts is None:
                    continue
                if frame.is_corrupt:
                    self._note(pts, "a damaged picture")
                self.num_frames += 1
                yield frame, pts

    def packets(self) -> Iterator[Any]:
        """Encoded pictures in the order of the file."""
        try:
            yield from self.opened.container.demux(self.opened.stream)
        except (self._av.error.FFmpegError, OSError) as error:
            self._note(self.end_pts, f"the file cannot be read further: {reason_of(error)}")

    def _time_stamp(self, frame: Any) -> int | None:
        """The time stamp of a frame, or one made up for it. None for a frame that comes too late: time only goes on."""
        pts = frame.pts if frame.pts is not None else frame.dts
        if pts is None:
            pts = self.end_pts
        if self._last_pts is not None and pts <= self._last_pts:
            return None
        self._last_pts = pts
        self.end_pts = pts + (int(frame.duration or 0) or self._frame_pts)
        return int(pts)

    def _note(self, pts: int | None, reason: str) -> None:
        self.num_damaged += 1
        place = self.end_pts if pts is None else pts
        if len(self.damage) < MAX_NOTED_DAMAGE:
            self.damage.append(Damage(place, self.opened.info.seconds(place), reason))

    def _check_length(self) -> None:
        """Note the end of a video that is shorter than its header says."""
        info = self.opened.info
        if not self.num_frames or info.duration is None or info.end_pts is None:
            return
        lost = float((info.end_pts - self.end_pts) * info.time_base)
        if lost > max(LOST_SECONDS, LOST_SHARE * info.duration):
            got = info.seconds(self.end_pts)
            self._note(
                self.end_pts, f"cut short: the header says {info.duration:.3f} s, and there are only {got:.3f} s"
            )


class _Pass:
    """One pass over an open video."""

    def __init__(self, opened: OpenVideo, analysers: Sequence[FrameAnalyser], limits: DecodeLimits) -> None:
        self.opened, self.analysers, self.limits = opened, analysers, limits
        self.feeds: list[_Feed] = []

    def run(self, spans: Sequence[tuple[int, int]] | None, keyframes: bool) -> Analysis:
        stream = FrameStream(self.opened, keyframes)
        info = self.opened.info
        started = False
        pts_seen = array("q")
        for frame, pts, inside in stream.marked_frames(spans):
            if not started:
                started = True
                info = completed_info(info, frame, pts if spans is None else None)
                self._start(info)
            self._check(stream.num_frames, frame)
            if inside:
                pts_seen.append(pts)
            for feed in self.feeds:
                feed.offer(frame, pts, inside)
        if not stream.num_frames and (spans is None or stream.damage):
            why = f": {stream.damage[0].reason}" if stream.damage else ""
            raise BadVideo(f"no frame could be decoded{why}")
        if not started:
            self._start(info)
        for feed in self.feeds:
            feed.flush()
        results = [analyser.finish() for analyser in self.analysers]
        times = None if keyframes else np.frombuffer(pts_seen, np.int64)
        return Analysis(info, results, [], stream.num_frames, times, stream.end_pts, tuple(stream.damage))

    def _check(self, count: int, frame: Any) -> None:
        """Hold the limits, and free the memory of frames that have gone by."""
        size = max(frame.width * frame.height, 1)
        frames = max(_PIXELS_PER_COLLECTION // size, 64)
        if count % frames == 0 and any(feed.request.pixels == MOTION_VECTORS for feed in self.feeds):
            gc.collect()  # a frame and its motion vectors refer to each other
        if count > self.limits.max_frames:
            raise BadVideo(f"more frames than max_frames={self.limits.max_frames:,}")
        if frame.width * frame.height > self.limits.max_pixels:
            raise BadVideo(
                f"a picture of {frame.width:,} x {frame.height:,} pixels in mid-stream: more than max_pixels"
            )

    def _start(self, info: StreamInfo) -> None:
        by_request: dict[FrameRequest, list[FrameAnalyser]] = {}
        for analyser in self.analysers:
            analyser.start(info)
            by_request.setdefault(analyser.request(info), []).append(analyser)
        self.feeds = [_Feed(request, analysers, info) for request, analysers in by_request.items()]


class _Feed:
    """Gives the frames of one request to the analysers that made it."""

    def __init__(self, request: FrameRequest, analysers: Sequence[FrameAnalyser], info: StreamInfo) -> None:
        self.request, self.analysers = request, analysers
        self._info = info
        self._converter = FrameConverter(request, info)
        self._last_point = -1
        self._frames: list[Any] = []
        self._block: Any = None
        self._pts: list[int] = []
        self._early = 0.5 * float(1 / info.fps) if info.fps else 0.0

    def offer(self, frame: Any, pts: int, inside: bool) -> None:
        """Take the frame if it is one of those that were asked for, and inside of a span."""
        if (self.request.keyframes and not frame.key_frame) or not self._is_due(pts) or not inside:
            return
        if self.request.pixels == MOTION_VECTORS:
            self._frames, self._pts = [partial(motion_vectors, frame)], [pts]
            self.flush()
            return
        picture = self._converter.convert(frame)
        if self._block is not None and self._block.shape[1:] != picture.shape:
            self.flush()
            self._block = None
        if self._block is None:
            count = max(min(BLOCK_FRAMES, BLOCK_BYTES // max(picture.nbytes, 1)), 1)
            self._block = np.empty((count, *picture.shape), np.uint8)
        self._block[len(self._pts)] = picture
        self._pts.append(pts)
        if len(self._pts) == len(self._block):
            self.flush()

    def _is_due(self, pts: int) -> bool:
        """Whether this is the first frame at or after a point in time; half a frame early counts. It depends on this
        frame and the one before, so that it makes no difference where decoding began."""
        if self.request.fps is None:
            return True
        seconds = self._info.seconds(pts) + min(self._early, 0.5 / self.request.fps)
        last, self._last_point = self._last_point, math.floor(seconds * self.request.fps)
        return self._last_point > last

    def flush(self) -> None:
        """Hand on the frames that are waiting."""
        if not self._pts:
            return
        pts = np.array(self._pts, np.int64)
        frames = self._frames if self._block is None else self._block[: len(self._pts)]
        for analyser in self.analysers:
            analyser.add(frames, pts)
        self._frames, self._pts = [], []


def motion_vectors(frame: Any) -> Any:
    """The motion vectors of a frame; None if it has none."""
    vectors = frame.side_data.get("MOTION_VECTORS")
    return None if vectors is None else vectors.to_ndarray().copy()


def completed_info(info: StreamInfo, frame: Any, first_pts: int | None) -> StreamInfo:
    """The header with what only the first frame tells."""
    rotation = round((frame.rotation or 0) / 90) * 90 % 360
    start = info.start_pts if first_pts is None else first_pts
    return replace(
        info,
        rotation=rotation,
        interlaced=bool(frame.interlaced_frame),
        width=int(frame.width),
        height=int(frame.height),
        pixel_format=str(frame.format.name),
        start_pts=start,
    )


def probe_video(
    source: Any,
    byte_range: tuple[int, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    limits: DecodeLimits | None = None,
) -> StreamInfo:
    """The header of a video, and what its first frame tells. If the header does not say how long it is, its packets are
    read to the end. Raises BadVideo."""
    with open_video(source, byte_range, storage_options) as opened:
        check_limits(opened.info, limits or DecodeLimits())
        stream = FrameStream(opened)
        for frame, pts in stream.frames():
            info = completed_info(opened.info, frame, pts)
            return info if info.duration_pts is not None else _with_length(info, opened, stream.end_pts)
        why = f": {stream.damage[0].reason}" if stream.damage else ""
        raise BadVideo(f"no frame could be decoded{why}")


def _with_length(info: StreamInfo, opened: OpenVideo, end: int) -> StreamInfo:
    """The header with the time at which the last packet ends."""
    rate = info.fps
    usual = max(round(1 / (rate * info.time_base)), 1) if rate else 1
    stream = FrameStream(opened)
    for packet in stream.packets():
        if packet.pts is not None:
            end = max(end, packet.pts + (int(packet.duration or 0) or usual))
    return replace(info, duration_pts=end - info.start_pts)


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, those that overlap or touch as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
