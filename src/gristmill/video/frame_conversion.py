"""FrameConverter: from a decoded frame to the pixels of a request, upright and scaled.

Scaling is done by swscale, except for "sampled", which takes every n-th pixel of the planes of the frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import require
from gristmill.video.frame_analyser import GRAY, MOTION_VECTORS, SAMPLED, YUV, scaled_size

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.video.frame_analyser import FrameRequest
    from gristmill.video.stream_info import StreamInfo

    Pixels = npt.NDArray[np.uint8]

_FFMPEG_PIXELS = {"gray": "gray", "rgb": "rgb24", "yuv": "yuv444p"}

_CHROMA_STEPS = {
    "yuv420p": (2, 2), "yuvj420p": (2, 2), "yuv422p": (2, 1), "yuvj422p": (2, 1), "yuv444p": (1, 1), "yuvj444p": (1, 1),
}  # fmt: skip
"""Formats of 8 bits in three planes: by how much chroma is smaller, in width and in height."""

_FULL_RANGE = np.clip((np.arange(256) - 16) * (255 / 219) + 0.5, 0, 255).astype(np.uint8)


class FrameConverter:
    """Converts frames of one video for one request."""

    def __init__(self, request: FrameRequest, info: StreamInfo) -> None:
        self.request, self.rotation = request, info.rotation
        self.size = scaled_size(request, *info.display_size)
        self._turned = info.rotation in (90, 270)
        self._full_range = info.color_range == "pc"
        self._reformatter: Any = None
        if request.pixels != MOTION_VECTORS:
            self._reformatter = require("av", "video", "videos").video.reformatter.VideoReformatter()

    def convert(self, frame: Any) -> Pixels:
        """Height by width, or height by width by 3."""
        picture = self._sampled(frame) if self.request.scaling == SAMPLED else None
        if picture is None:
            picture = self._reformatted(frame)
        return np.rot90(picture, self.rotation // 90) if self.rotation else picture

    def _reformatted(self, frame: Any) -> Pixels:
        width, height = self.size[::-1] if self._turned else self.size
        way = "AREA" if self.request.scaling == SAMPLED else self.request.scaling.upper()
        same = (frame.width, frame.height) == (width, height)
        form = _FFMPEG_PIXELS[self.request.pixels]
        made = self._reformatter.reformat(frame, width, height, form, interpolation="POINT" if same else way)
        planes = [_plane(plane, width * (3 if form == "rgb24" else 1)) for plane in made.planes]
        if form == "rgb24":
            return planes[0].reshape(height, width, 3)
        return planes[0] if form == "gray" else np.stack(planes, axis=-1)

    def _sampled(self, frame: Any) -> Pixels | None:
        """Every n-th pixel; None for formats and colours that this cannot give."""
        steps = _CHROMA_STEPS.get(frame.format.name)
        if self.request.pixels not in (GRAY, YUV) or steps is None:
            return None
        width, height = self.size[::-1] if self._turned else self.size
        step = max(min(frame.width // max(width, 1), frame.height // max(height, 1)), 1)
        if self.request.pixels == GRAY:
            luma = _plane(frame.planes[0], frame.width)[::step, ::step]
            full = self._full_range or frame.format.name.startswith("yuvj")
            return luma if full else _FULL_RANGE[luma]
        step = max(step - step % 2, 2)
        planes = [_plane(frame.planes[0], frame.width)[: frame.height // 2 * 2 : step, : frame.width // 2 * 2 : step]]
        for plane in frame.planes[1:]:
            chroma = _plane(plane, plane.width)[:: step // steps[1], :: step // steps[0]]
            planes.append(chroma[: planes[0].shape[0], : planes[0].shape[1]])
        return np.stack(planes, axis=-1)


def _plane(plane: Any, width: int) -> Pixels:
    """The rows of a plane, without a copy."""
    return np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, :width]
