"""Stages that make films and clips comparable: by what their pictures look like in time, or by their bytes.

    VideoFingerprintStage   codes that survive other codecs, sizes and cutting, for FingerprintDeduplicationStage
    VideoHashStage          a hash of the encoded pictures, for ExactDeduplicationStage

A code stands for 1/24 of a second, whatever the film's rate: 32 bits, each of which says whether one of the lowest
frequencies of the brightness is above zero. 0 stands for a picture of one colour.

What is given up: copies that are mirrored, turned, or cropped in the picture have other codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.arrow.array_building import make_array
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.video.batch import BadVideo, VideoBatch
from gristmill.video.frame_analyser import GRAY, SAMPLED, FrameAnalyser, FrameRequest, FrameSeries
from gristmill.video.frame_stage import FrameStage, set_aside_row
from gristmill.video.one_pass import FilmSource, Measured, Span, sources_of, spans_of
from gristmill.video.stream_info import open_video

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.video.stream_info import StreamInfo

VIDEO_FINGERPRINT, VIDEO_HASH = "fingerprint", "video_hash"
CODE = "code"
CODES_PER_SECOND = 24

_SIDE, _CELLS = 160, 32
_FLAT = 3.0
"""Pictures whose means differ by no more have no code."""

_FREQUENCIES = tuple((y, x) for total in range(1, 8) for y in range(total + 1) for x in (total - y,))[:32]
"""The lowest frequencies, down and across, without the mean."""

_COSINES = np.cos(np.pi * np.arange(8)[:, None] * (2 * np.arange(_CELLS) + 1) / (2 * _CELLS))


class PictureCodes(FrameAnalyser):
    """A code of 32 bits for each frame: 0 for a picture of one colour."""

    def request(self, info: StreamInfo) -> FrameRequest:
        return FrameRequest(GRAY, max_side=_SIDE, scaling=SAMPLED)

    def start(self, info: StreamInfo) -> None:
        self._pts: list[npt.NDArray[np.int64]] = []
        self._codes: list[npt.NDArray[np.uint32]] = []

    def add(self, frames: Any, pts: npt.NDArray[np.int64]) -> None:
        self._pts.append(pts)
        self._codes.append(picture_codes(frames))

    def finish(self) -> FrameSeries:
        pts = np.concatenate([np.zeros(0, np.int64), *self._pts])
        codes = np.concatenate([np.zeros(0, np.uint32), *self._codes])
        self._pts, self._codes = [], []
        return FrameSeries(pts, {CODE: codes})


def picture_codes(frames: Any) -> npt.NDArray[np.uint32]:
    """The codes of grey pictures of one size."""
    small = _means(_means(frames, 1), 2)
    flat = small.max(axis=(1, 2)) - small.min(axis=(1, 2)) <= _FLAT
    waves = _COSINES @ small @ _COSINES.T
    bits = np.stack([waves[:, y, x] > 0 for y, x in _FREQUENCIES], axis=1)
    codes: npt.NDArray[np.uint32] = np.packbits(bits, axis=1, bitorder="little").view("<u4")[:, 0].copy()
    return np.where(flat, np.uint32(0), np.maximum(codes, np.uint32(1)))


def _means(pictures: Any, axis: int) -> Any:
    """The pictures with 32 pixels along an axis: means of as many as each covers."""
    edges = np.arange(_CELLS + 1) * pictures.shape[axis] / _CELLS
    sums = np.cumsum(pictures, axis=axis, dtype=np.float64)
    sums = np.concatenate([np.zeros_like(sums.take([0], axis=axis)), sums], axis=axis)
    low = np.floor(edges).astype(int)
    high = np.minimum(low + 1, pictures.shape[axis])
    shape = [-1 if at == axis else 1 for at in range(pictures.ndim)]
    share = (edges - low).reshape(shape)
    at_edges = sums.take(low, axis=axis) * (1 - share) + sums.take(high, axis=axis) * share
    return np.diff(at_edges, axis=axis) * (_CELLS / pictures.shape[axis])


class VideoFingerprintStage(FrameStage):
    """Adds the fingerprint of each video or clip, for `FingerprintDeduplicationStage`: 24 codes of 32 bits a second.

    Copies in another codec, size or rate, cut shorter, or as part of a longer film have the same codes, but for a few
    bits. A clip must be two seconds long to be found by them.
    """

    def __init__(self, fingerprint_field: str = VIDEO_FINGERPRINT) -> None:
        super().__init__()
        self.fingerprint_field = fingerprint_field

    def analysers(self) -> Sequence[FrameAnalyser]:
        return [PictureCodes()]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.fingerprint_field]

    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        values = [codes_in_time(one).astype("<u4").tobytes() for one in measured]
        return rows.with_column(self.fingerprint_field, make_array(values, pa.binary()))


def codes_in_time(video: Measured) -> Any:
    """The code of the picture that is shown at each 1/24 of a second."""
    series, info = video.series[0], video.info
    if not len(series.pts):
        return np.zeros(0, np.uint32)
    times = (series.pts - series.pts[0]).astype(np.float64) * float(info.time_base)
    usual = float(np.median(np.diff(times))) if len(times) > 1 else 1 / CODES_PER_SECOND
    ticks = np.arange(int((times[-1] + usual) * CODES_PER_SECOND + 1e-6)) / CODES_PER_SECOND
    return series.columns[CODE][np.searchsorted(times, ticks + 1e-6, side="right") - 1]


class VideoHashStage(ProcessingStage[VideoBatch, VideoBatch]):
    """Adds a hash of the encoded pictures of each video or clip: equal for copies of the same bytes, whatever the name,
    the container and its metadata. Nothing is decoded. `ExactDeduplicationStage(text_field="video_hash")` drops copies.
    """

    takes_empty = True
    max_retries = 0

    def __init__(self, hash_field: str = VIDEO_HASH) -> None:
        super().__init__()
        self.hash_field = hash_field

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.hash_field]

    def process(self, task: VideoBatch) -> VideoBatch:
        found: list[str | None] = []
        for row, (source, span) in enumerate(zip(sources_of(task), spans_of(task), strict=True)):
            try:
                found.append(packet_hash(source, span))
            except BadVideo as error:
                set_aside_row(task, row, error, self)
                found.append(None)
        kept = [row for row, value in enumerate(found) if value is not None]
        rows = task if len(kept) == len(found) else task.take(kept)
        return rows.with_column(self.hash_field, make_array([found[row] for row in kept], pa.string()))


def packet_hash(source: FilmSource, span: Span | None) -> str:
    """The XXH3 of the packets of the video, in their order; of those that are shown within the span."""
    digest = xxhash.xxh3_128()
    with open_video(source.source, source.byte_range) as opened:
        for packet in opened.container.demux(opened.stream):
            if packet.size and (span is None or (packet.pts is not None and span[0] <= packet.pts < span[1])):
                digest.update(memoryview(packet))
    return digest.hexdigest()
