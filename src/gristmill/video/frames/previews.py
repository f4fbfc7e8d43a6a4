"""PreviewStage: an animated picture of each clip, in a column, for people who look at clips."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import require
from gristmill.core.stage import Columns
from gristmill.samples.argument_checks import check_count, check_number, check_positive
from gristmill.video.batch import PREVIEW, VideoBatch
from gristmill.video.frame_analyser import RGB, CollectedFrames, FrameAnalyser, FrameRequest
from gristmill.video.frame_stage import FrameStage
from gristmill.video.one_pass import Measured
from gristmill.video.stream_info import StreamInfo

PIECE_SECONDS = 120.0


@dataclass
class FramesOfHeight(CollectedFrames):
    """Keeps frames of a height; nothing is enlarged."""

    wanted: FrameRequest
    height: int = 240

    def request(self, info: StreamInfo) -> FrameRequest:
        width, height = info.display_size
        made = min(self.height, height)
        shown = width * float(info.pixel_aspect if info.rotation in (0, 180) else 1 / info.pixel_aspect)
        size = max(round(shown * made / height), 1), made
        return FrameRequest(self.wanted.pixels, size=size, fps=self.wanted.fps)

    def bytes_per_frame(self, info: StreamInfo) -> int:
        width, height = self.request(info).size or (0, 0)
        return 3 * width * height


class PreviewStage(FrameStage):
    """Adds an animated WebP of each clip in the column `preview`: `target_fps` frames a second, `target_height` pixels
    high. A clip in which no such frame falls has its null."""

    piece_seconds = PIECE_SECONDS
    not_identity = ("num_cpus_per_worker", "verbose")

    def __init__(
        self,
        target_fps: float = 1.0,
        target_height: int = 240,
        num_cpus_per_worker: float = 4.0,
        compression_level: int = 6,
        quality: int = 50,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_number(name, "target_fps", target_fps)
        if target_fps <= 0:
            raise ValueError(f"{name}: target_fps is {target_fps!r}, must be above 0")
        check_positive(name, "target_height", target_height)
        check_count(name, "compression_level", compression_level)
        check_count(name, "quality", quality)
        self.target_fps, self.target_height, self.num_cpus_per_worker = target_fps, target_height, num_cpus_per_worker
        self.compression_level, self.quality, self.verbose = compression_level, quality, verbose

    def analysers(self) -> Sequence[FrameAnalyser]:
        return [FramesOfHeight(FrameRequest(RGB, fps=self.target_fps), self.target_height)]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [PREVIEW]

    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        made = [self._preview(one.series[0].columns["frames"]) for one in measured]
        return rows.with_column(PREVIEW, make_array(made, pa.large_binary()))

    def _preview(self, frames: Any) -> bytes | None:
        if not len(frames):
            return None
        image = require("PIL.Image", "video", "previews")
        pictures = [image.fromarray(frame) for frame in frames]
        data = io.BytesIO()
        pictures[0].save(
            data, "WEBP", save_all=True, append_images=pictures[1:], duration=round(1000 / self.target_fps), loop=0,
            quality=self.quality, method=min(self.compression_level, 6),
        )  # fmt: skip
        return data.getvalue()
