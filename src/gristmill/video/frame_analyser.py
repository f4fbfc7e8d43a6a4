"""What an analyser of frames is: it says which frames it wants, is given them in blocks, and returns what it found.

A video is decoded once for all analysers (`decode.py`). Each says what it wants in a `FrameRequest`: as few frames, and
as small ones, as will do. Analysers with equal requests are given the same arrays.

    start(info)         before the first frame of a video
    add(frames, pts)    a block of frames
    finish()            after the last one: a `FrameSeries`

An analyser measures frames, not clips: the score of a clip is made of the measurements within its span
(`FrameSeries.within`). So one pass over a film serves all clips that are cut from it, wherever they are cut.

A film may be decoded as a whole, or only in the spans that are left of it, and both must give the same scores. So what
is measured of a frame may depend on that frame and on the one before it in the series, and on nothing else; and a score
that is made of differences leaves out the first frame of the clip, whose forerunner is not in it. An analyser that
needs more than that, such as a shot detector, says `whole_film`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.video.stream_info import StreamInfo

GRAY, RGB, YUV, MOTION_VECTORS = PIXELS = ("gray", "rgb", "yuv", "motion_vectors")

AREA, BILINEAR, BICUBIC, SAMPLED = SCALINGS = ("area", "bilinear", "bicubic", "sampled")

SHOT = "shot"
"""The column of a `FrameSeries` that a shot detector fills: the number of the shot that each frame belongs to, from 0;
-1 for a frame between shots, such as one of a fade."""


@dataclass(frozen=True)
class FrameRequest:
    """The frames that an analyser is given.

    `pixels`     "gray": frames by height by width. "rgb" and "yuv": the same by 3. All uint8; "yuv" has the values of
                 the bitstream, usually 16 to 235. "motion_vectors": no pixels but, for each frame, a function that
                 gives the array of motion vectors that the codec stored (PyAV has the names of its fields), or None
                 for a frame that has none: call it only for frames that are measured, and keep no function.
    `size`       (width, height) to scale to, whatever the shape of the picture; None: as `max_side` says.
    `max_side`   the largest width or height; the shape is kept, and nothing is enlarged. None: as it was recorded.
    `min_side`   the shorter side; the shape is kept, and nothing is enlarged. None: as it was recorded.
    `scaling`    "area", "bilinear", "bicubic"; or "sampled": every n-th pixel of every n-th row, where n is the largest
                 that still gives the size that was asked for. It costs next to nothing, and is right for statistics of
                 colours. The size is then that of the arrays: usually a little more than what was asked for.
    `fps`        at most so many frames a second: the first at or after each 1/fps of the time since the beginning of
                 the video. None: all frames.
    `keyframes`  only frames that can be decoded on their own. If all analysers want those, the others are not decoded.

    Pictures are turned upright as the file says; motion vectors are as the bitstream has them.
    """

    pixels: str = GRAY
    size: tuple[int, int] | None = None
    max_side: int | None = None
    min_side: int | None = None
    scaling: str = AREA
    fps: float | None = None
    keyframes: bool = False

    def __post_init__(self) -> None:
        if self.pixels not in PIXELS:
            raise ValueError(f"pixels is {self.pixels!r}, must be one of {', '.join(PIXELS)}")
        if self.scaling not in SCALINGS:
            raise ValueError(f"scaling is {self.scaling!r}, must be one of {', '.join(SCALINGS)}")
        if self.fps is not None and not self.fps > 0:
            raise ValueError(f"fps is {self.fps!r}, must be above 0, or None")


def scaled_size(request: FrameRequest, width: int, height: int) -> tuple[int, int]:
    """The width and height that a picture of this size is scaled to."""
    if request.size is not None:
        return request.size
    scale = 1.0
    if request.max_side is not None:
        scale = min(scale, request.max_side / max(width, height))
    if request.min_side is not None:
        scale = min(scale, request.min_side / min(width, height))
    return max(round(width * scale), 1), max(round(height * scale), 1)


class FrameSeries(NamedTuple):
    """Measurements of the frames of a video, in the order of time: for each column one value, or one row, per frame."""

    pts: npt.NDArray[np.int64]
    columns: Mapping[str, npt.NDArray[Any]]

    def within(self, start_pts: int, end_pts: int) -> FrameSeries:
        """The measurements of frames from `start_pts` up to, and without, `end_pts`."""
        first, last = np.searchsorted(self.pts, (start_pts, end_pts))
        return FrameSeries(self.pts[first:last], {name: values[first:last] for name, values in self.columns.items()})

    @classmethod
    def joined(cls, parts: Sequence[FrameSeries]) -> FrameSeries:
        """The series of consecutive stretches of one video as one."""
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        return cls(np.concatenate([part.pts for part in parts]), columns)


class FrameAnalyser(ABC):
    """Base of the analysers of frames. Write `request`, `add` and `finish`; constructors have no side effects.

    One analyser works on many videos, one after the other: `start` must forget the last one. `request` is asked more
    than once for a video: first to learn what to decode, when rotation is not yet known.

    Constructor arguments are kept as attributes of the same name, and all else in attributes that begin with `_`:
    analysers of one class with equal arguments are the same to stages, and only one of them looks at a film.
    """

    whole_film: ClassVar[bool] = False
    """Whether it must see all of a film, and not only some spans."""

    def key(self) -> Hashable:
        """Equal for analysers that find the same."""
        own = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return type(self).__module__, type(self).__qualname__, repr(sorted(own.items()))

    def bytes_per_frame(self, info: StreamInfo) -> int:
        """The memory that what is found of one frame takes: say so if it is more than some numbers, as for pixels."""
        return 64

    @abstractmethod
    def request(self, info: StreamInfo) -> FrameRequest:
        """The frames to be given, of a video with this header."""

    def start(self, info: StreamInfo) -> None:  # noqa: B027  most have something to forget, some do not
        """Called before the first frame of each video."""

    @abstractmethod
    def add(self, frames: Any, pts: npt.NDArray[np.int64]) -> None:
        """A block of frames, one or more, in the order of time, and their time stamps in units of `info.time_base`. The
        array is used again for the next block: copy what is kept. For "motion_vectors" it is a list of functions."""

    @abstractmethod
    def finish(self) -> FrameSeries:
        """What was measured; called once after the last frame. Without any frame it is empty, with the same columns."""


@dataclass
class CollectedFrames(FrameAnalyser):
    """Keeps the frames themselves: `finish` gives them in the column `frames`."""

    wanted: FrameRequest
    _blocks: list[tuple[Any, npt.NDArray[np.int64]]] = field(default_factory=list, init=False, repr=False)

    def request(self, info: StreamInfo) -> FrameRequest:
        return self.wanted

    def start(self, info: StreamInfo) -> None:
        self._blocks = []

    def bytes_per_frame(self, info: StreamInfo) -> int:
        width, height = scaled_size(self.wanted, *info.display_size)
        return width * height * (1 if self.wanted.pixels == GRAY else 3)

    def add(self, frames: Any, pts: npt.NDArray[np.int64]) -> None:
        self._blocks.append((frames.copy(), pts))

    def finish(self) -> FrameSeries:
        blocks, self._blocks = self._blocks, []
        if not blocks:
            return FrameSeries(np.zeros(0, np.int64), {"frames": np.zeros((0, 0, 0), np.uint8)})
        return FrameSeries(
            np.concatenate([pts for _, pts in blocks]), {"frames": np.concatenate([frames for frames, _ in blocks])}
        )
