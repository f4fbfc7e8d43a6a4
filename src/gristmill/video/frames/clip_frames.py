"""ClipFrameExtractionStage: frames of clips, kept in memory beside their rows, for stages of users.

Filters and models of this package need none of this: each asks for the frames that it wants, in its own size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.core.stage import Columns
from gristmill.samples.argument_checks import check_choice, check_number
from gristmill.video.batch import BadVideo, VideoBatch
from gristmill.video.decode import DecodeLimits, FrameStream, check_limits, completed_info
from gristmill.video.frame_analyser import RGB, CollectedFrames, FrameAnalyser, FrameRequest
from gristmill.video.frame_conversion import FrameConverter
from gristmill.video.frame_stage import FrameStage, set_aside_row
from gristmill.video.one_pass import Measured, Opening, opening_of, sources_of
from gristmill.video.stream_info import open_video

CLIP_FRAMES = "decoded_clip_frames"
"""The name of the objects of a batch that hold the frames: for each row a dict of arrays, frames by height by width by
3, by policy and rate: "sequence-2000" for two frames a second."""

FIRST, MIDDLE, LAST, SEQUENCE = POLICIES = ("first", "middle", "last", "sequence")

PIECE_SECONDS = 20.0


def signature(policy: str, fps: float) -> str:
    """The key of frames."""
    return f"{policy}-{round(fps * 1000)}"


class ClipFrameExtractionStage(FrameStage):
    """Extracts frames of each clip: the first, middle or last one, or a sequence of `target_fps` frames a second, for
    each of several rates. `target_res` is (height, width); None: as they were recorded.

    Frames stay in memory, as `batch.objects["decoded_clip_frames"]` and `clip.extracted_frames`, for the stages of the
    same worker. Sequences are taken in the pass that other stages share; single frames are decoded for this stage.
    """

    piece_seconds = PIECE_SECONDS

    def __init__(
        self,
        extraction_policies: Sequence[str] = (SEQUENCE,),
        extract_purposes: Sequence[str] | None = None,
        target_res: tuple[int, int] | None = None,
        num_cpus: float = 3,
        target_fps: float | Sequence[float] | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for policy in extraction_policies:
            check_choice(name, "extraction_policies", getattr(policy, "name", policy), POLICIES)
        rates = [2.0] if target_fps is None else [target_fps] if isinstance(target_fps, int | float) else target_fps
        for rate in rates:
            check_number(name, "target_fps", rate)
            if rate <= 0:
                raise ValueError(f"{name}: target_fps is {rate!r}, must be above 0")
        self.extraction_policies, self.extract_purposes = extraction_policies, extract_purposes
        self.target_res, self.num_cpus, self.target_fps, self.verbose = target_res, num_cpus, target_fps, verbose
        self._rates = list(rates)

    def analysers(self) -> Sequence[FrameAnalyser]:
        if SEQUENCE not in self.extraction_policies:
            return [CollectedFrames(FrameRequest(max_side=16, keyframes=True))]  # to know whether it can be decoded
        return [CollectedFrames(self._request(fps)) for fps in self._rates]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def _request(self, fps: float | None = None) -> FrameRequest:
        given = self.target_res
        size = None if given is None or min(given) < 1 else (given[1], given[0])
        return FrameRequest(RGB, size=size, fps=fps)

    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        found: list[dict[str, Any]] = [{} for _ in measured]
        if SEQUENCE in self.extraction_policies:
            for frames, one in zip(found, measured, strict=True):
                for fps, series in zip(self._rates, one.series, strict=True):
                    frames[signature(SEQUENCE, fps)] = series.columns["frames"]
        singles = [policy for policy in self.extraction_policies if policy != SEQUENCE]
        good = list(range(len(measured)))
        if singles:
            good = self._add_singles(rows, measured, found, singles)
        kept = rows if len(good) == rows.num_items else rows.take(good)
        kept.objects[CLIP_FRAMES] = [found[row] for row in good]
        return kept

    def _add_singles(
        self, rows: VideoBatch, measured: Sequence[Measured], found: list[dict[str, Any]], policies: Sequence[str]
    ) -> list[int]:
        """Add single frames of each clip. Returns the rows that have them."""
        opening, sources, good = opening_of(rows), sources_of(rows), []
        for row, one in enumerate(measured):
            try:
                frames = single_frames(sources[row], one, policies, self._request(), opening)
            except BadVideo as error:
                set_aside_row(rows, row, error, self)
                continue
            for policy, frame in frames.items():
                for fps in self._rates:
                    found[row][signature(policy, fps)] = frame[None]
            good.append(row)
        return good


def single_frames(
    source: Any, clip: Measured, policies: Sequence[str], request: FrameRequest, opening: Opening
) -> Mapping[str, Any]:
    """The first, middle and last frame of a clip, as far as they are asked for. The middle one is the first that is
    shown in its second half. Raises BadVideo."""
    found: dict[str, Any] = {}
    with open_video(source.source, source.byte_range, opening["storage_options"]) as opened:
        check_limits(opened.info, opening["limits"] or DecodeLimits())
        converter: FrameConverter | None = None
        last: Any = None
        for frame, pts in _frames(FrameStream(opened), clip):
            if converter is None:
                converter = FrameConverter(request, completed_info(opened.info, frame, None))
                found[FIRST] = converter.convert(frame).copy()
            if MIDDLE not in found and MIDDLE in policies and pts >= _middle(clip):
                found[MIDDLE] = converter.convert(frame).copy()
            last = frame
            if LAST not in policies and all(policy in found for policy in policies):
                break
        if converter is None:
            raise BadVideo("no frame of the clip could be decoded")
        if LAST in policies:
            found[LAST] = converter.convert(last).copy()
    found.setdefault(MIDDLE, found[FIRST])
    return {policy: np.ascontiguousarray(found[policy]) for policy in policies}


def _frames(stream: FrameStream, clip: Measured) -> Iterator[tuple[Any, int]]:
    return stream.frames(None if clip.span is None else [clip.span])


def _middle(clip: Measured) -> float:
    if clip.span is not None:
        return (clip.span[0] + clip.span[1]) / 2
    return clip.info.start_pts + (clip.info.duration_pts or 0) / 2
