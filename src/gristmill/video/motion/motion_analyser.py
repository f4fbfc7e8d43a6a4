"""How much moves in a film: from the motion vectors of its codec, or by block matching where it stores none.

    vectors   H.264 and the family of MPEG: what the encoder has found, at nearly no cost (`vector_grid.py`)
    blocks    all others, such as HEVC, VP9 and AV1: small grey pictures some frames apart are compared (`block_motion`)

Both measure the same: by which part of its width and height, added up, the picture moves from frame to frame.

What is given up by block matching: what moves by more than 7 of 320 pixels in about a sixth of a second is only known
to move fast.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.core.arrow.native_kernels import kernels
from gristmill.video.frame_analyser import (
    GRAY,
    MOTION_VECTORS,
    SAMPLED,
    FrameAnalyser,
    FrameRequest,
    FrameSeries,
)
from gristmill.video.motion import kernel_reference as reference
from gristmill.video.motion.vector_grid import VECTOR_CODECS, PictureGrid, vector_field

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.video.stream_info import StreamInfo

AUTO, VECTORS, BLOCKS = MOTION_SOURCES = ("auto", "vectors", "blocks")

MOTION, MOTION_PATCHES, MOTION_SINCE = "motion", "motion_patches", "motion_since"
"""Columns of a `FrameSeries`: the mean of a frame, those of its patches, and the time stamp of the first frame that was
looked at for it."""

PICTURE_SIDE, REACH, PER_STEP = 320, 7, 16
"""Of block matching: the longer side of the pictures, how far is searched, and what a step away costs."""

_GAP_SECONDS = Fraction(1, 6)
MIN_FRAMES = 10
"""At least so many frames of a clip are looked at."""

block_motion = getattr(kernels, "block_motion", reference.block_motion)


class ClipMotion(NamedTuple):
    """How much moves in a clip."""

    global_mean: float
    per_patch_min_256: float
    num_frames: int


def exports_vectors(codec: str) -> bool:
    """Whether FFmpeg gives the motion vectors of films in this codec."""
    return codec in VECTOR_CODECS


class MotionAnalyser(FrameAnalyser):
    """Measures how much moves, `target_fps` times a second. `source` is "auto", "vectors" or "blocks"."""

    def __init__(self, target_fps: float = 2.0, source: str = AUTO) -> None:
        self.target_fps, self.source = target_fps, source
        if source not in MOTION_SOURCES:
            raise ValueError(f"MotionAnalyser: source is {source!r}, must be one of {', '.join(MOTION_SOURCES)}")
        if not target_fps > 0:
            raise ValueError(f"MotionAnalyser: target_fps is {target_fps!r}, must be above 0")

    def source_of(self, info: StreamInfo) -> str:
        """What is used for a film: "vectors" or "blocks"."""
        if self.source != AUTO:
            return self.source
        return VECTORS if exports_vectors(info.codec) else BLOCKS

    def request(self, info: StreamInfo) -> FrameRequest:
        if self.source_of(info) == VECTORS:
            return FrameRequest(MOTION_VECTORS)
        return FrameRequest(GRAY, max_side=PICTURE_SIDE, scaling=SAMPLED)

    def start(self, info: StreamInfo) -> None:
        self._by_vectors = self.source_of(info) == VECTORS
        self._found: list[tuple[int, int, float, npt.NDArray[np.float64]]] = []
        self._info = info
        self._grid = PictureGrid.of_vectors(info.width, info.height)
        self._gap = max(min(round((info.fps or 25) * _GAP_SECONDS), round(float(info.fps or 25) / self.target_fps)), 1)
        self._last_pts: int | None = None
        self._since: int | None = None
        """The time stamp before a frame that should have been measured, and had no vectors."""
        self._earlier: list[_Earlier] = []

    def add(self, frames: Any, pts: npt.NDArray[np.int64]) -> None:
        look = self._look_at_vectors if self._by_vectors else self._look_at_picture
        for frame, time in zip(frames, pts.tolist(), strict=True):
            look(frame, time, self._due_since(time))
            self._last_pts = time

    def _due_since(self, pts: int) -> int | None:
        """The time stamp of the frame before, if this is the first at or after a point in time; else None."""
        if self._last_pts is None:
            return pts if pts == self._info.start_pts else None
        points = [math.floor(self._info.seconds(one) * self.target_fps + 1e-9) for one in (self._last_pts, pts)]
        return self._last_pts if points[0] < points[1] else None

    def _look_at_vectors(self, vectors_of_frame: Any, pts: int, due_since: int | None) -> None:
        """Measure a frame that is due; if it stands alone and has no vectors, the one behind it in its place."""
        since, self._since = self._since if due_since is None else due_since, None
        if since is None:
            return
        vectors = vectors_of_frame()
        if vectors is not None:
            self._note(pts, since, vector_field(vectors, self._grid), self._grid)
        elif due_since is not None:
            self._since = since

    def _look_at_picture(self, picture: Any, pts: int, due_since: int | None) -> None:
        """Compare a picture with one that was due some frames earlier."""
        waiting: list[_Earlier] = []
        for since, distance, before in self._earlier:
            if before.shape != picture.shape:  # a stream may change its size
                continue
            if distance + 1 < self._gap:
                waiting.append(_Earlier(since, distance + 1, before))
            else:
                self._compare(before, picture, pts, since)
        if due_since is not None:
            waiting.append(_Earlier(due_since, 0, picture.copy()))
        self._earlier = waiting

    def _compare(self, before: Any, picture: Any, pts: int, since: int) -> None:
        height, width = picture.shape
        columns, rows = width // reference.BLOCK, height // reference.BLOCK
        if not columns or not rows:
            return
        found = block_motion(before, np.ascontiguousarray(picture), width, height, REACH, PER_STEP)
        steps = np.frombuffer(found, np.int8).reshape(rows, columns, 2).astype(np.float64)
        field = np.hypot(steps[..., 0], steps[..., 1]) / (self._gap * (width + height))
        self._note(pts, since, field, PictureGrid.of_blocks(*self._info.display_size, columns, rows))

    def _note(self, pts: int, since: int, field: npt.NDArray[np.float64], grid: PictureGrid) -> None:
        self._found.append((pts, since, grid.mean(field), grid.patches(field)))

    def finish(self) -> FrameSeries:
        found, self._found, self._earlier = self._found, [], []
        patches = len(found[0][3]) if found else 1
        columns = {
            MOTION_SINCE: np.array([since for _, since, _, _ in found], np.int64),
            MOTION: np.array([mean for *_, mean, _ in found], np.float64),
            MOTION_PATCHES: np.array([one[3] for one in found], np.float64).reshape(len(found), patches),
        }
        return FrameSeries(np.array([one[0] for one in found], np.int64), columns)


class _Earlier(NamedTuple):
    """A picture that a later one is compared with."""

    since: int
    distance: int
    """How many frames ago it was."""
    picture: Any


def clip_motion(
    series: FrameSeries, start_pts: int, end_pts: int, target_duration_ratio: float = 0.5
) -> ClipMotion | None:
    """How much moves in a clip; None if it has no frame with motion vectors.

    Of the frames that were measured, the share `target_duration_ratio` is used, spread over the clip evenly, and at
    least ten.
    """
    inside = series.within(start_pts, end_pts)
    measured = np.flatnonzero(inside.columns[MOTION_SINCE] >= start_pts)
    wanted = min(max(MIN_FRAMES, round(len(measured) * target_duration_ratio)), len(measured))
    if not wanted:
        return None
    chosen = measured[(np.arange(wanted) * len(measured)) // wanted]
    patches = inside.columns[MOTION_PATCHES][chosen].mean(axis=0)
    return ClipMotion(float(inside.columns[MOTION][chosen].mean()), float(patches.min()), wanted)
