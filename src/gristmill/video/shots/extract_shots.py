"""Stages that cut films into clips where the picture changes. Nothing is encoded: a clip is a span of its film.

ContentClipExtractionStage     by the change of colours, and by fades: fast, no model
TransNetV2ClipExtractionStage  by TransNetV2, which finds dissolves too
VideoFrameExtractionStage      is there for pipelines that have it before TransNetV2: frames are decoded when shots
                               are looked for, and shared with all that is measured of the clips
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gristmill.core.resources import Resources
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.samples.argument_checks import check_choice
from gristmill.video.batch import CLIP_ID, END, END_PTS, START, START_PTS, VideoBatch
from gristmill.video.clips import ClipSpan, clip_rows
from gristmill.video.frame_analyser import SHOT, FrameAnalyser, FrameSeries
from gristmill.video.frame_stage import FrameStage
from gristmill.video.one_pass import Measured
from gristmill.video.shots.clip_spans import STRIDE, ClipLengths, shot_spans
from gristmill.video.shots.content_detector import AdaptiveDetector, ContentDetector, FadeDetector
from gristmill.video.shots.transnet import TRANSNET, TransNetDetector
from gristmill.video.shots.transnet_graph import HEIGHT, WIDTH
from gristmill.video.stream_columns import DURATION

if TYPE_CHECKING:
    from gristmill.core.stage import NodeInfo, WorkerMetadata

CONTENT, ADAPTIVE = METHODS = ("content", "adaptive")
DECODERS = ("pynvc", "ffmpeg_gpu", "ffmpeg_cpu")


class ShotClipStage(FrameStage):
    """Base of the stages that make clips of shots. A subclass names its detectors; a cut of any of them is a cut."""

    min_length_s: float | None
    max_length_s: float | None
    max_length_mode: str
    crop_s: float | None
    entire_scene_as_clip: bool
    limit_clips: int

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [CLIP_ID, START, END, START_PTS, END_PTS, DURATION]

    @abstractmethod
    def analysers(self) -> Sequence[FrameAnalyser]:
        """The detectors of shots."""

    def _lengths(self) -> ClipLengths:
        return ClipLengths(
            self.min_length_s, self.max_length_s, self.max_length_mode, self.crop_s, self.entire_scene_as_clip,
            self.limit_clips,
        )  # fmt: skip

    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        lengths = self._lengths()
        clips = []
        for row, film in enumerate(measured):
            shots = shot_spans(joined_shots(film.series), film_end(film))
            self.count("shots", len(shots))
            clips += [ClipSpan(row, *span) for span in lengths.clips(shots, film.info.time_base)]
        return clip_rows(rows, [film.info for film in measured], clips, decoded=True)


def joined_shots(series: Sequence[FrameSeries]) -> FrameSeries:
    """The shots of several detectors, which have seen the same frames, as one: each cut of one is a cut."""
    numbers = np.stack([one.columns[SHOT] for one in series])
    if len(numbers) == 1 or not numbers.shape[1]:
        return series[0]
    starts = np.concatenate([[False], (np.diff(numbers, axis=1) != 0).any(axis=0)])
    between = (numbers < 0).any(axis=0)
    return FrameSeries(series[0].pts, {SHOT: np.where(between, -1, np.cumsum(starts))})


def film_end(film: Measured) -> int:
    """Where the last frame of a film, or of a clip, ends."""
    if film.span is not None:
        return film.span[1]
    pts, info = film.series[0].pts, film.info
    if not len(pts):
        return info.start_pts
    usual = int(np.median(np.diff(pts))) if len(pts) > 1 else round(1 / ((info.fps or 25) * info.time_base))
    end = int(pts[-1]) + max(usual, 1)
    told = info.end_pts
    return told if told is not None and int(pts[-1]) < told < end + usual else end


class ContentClipExtractionStage(ShotClipStage):
    """Cuts films into clips where the picture changes: by the change of colours from frame to frame, and at fades.

    `method` is "content", for changes of `threshold` (27) or more, or "adaptive", for changes that are `threshold` (3)
    times those around them; both as PySceneDetect has them, and so `min_scene_len` in frames. With `fades`, shots that
    fade to black and back are parted at the middle. How shots become clips is said in `ClipLengths`.
    """

    def __init__(
        self,
        method: str = CONTENT,
        threshold: float | None = None,
        min_scene_len: int = 15,
        fades: bool = True,
        min_length_s: float | None = 2.0,
        max_length_s: float | None = 10.0,
        max_length_mode: str = STRIDE,
        crop_s: float | None = 0.0,
        entire_scene_as_clip: bool = True,
        limit_clips: int = -1,
    ) -> None:
        super().__init__()
        check_choice("ContentClipExtractionStage", "method", method, METHODS)
        self.method, self.threshold, self.min_scene_len, self.fades = method, threshold, min_scene_len, fades
        self.min_length_s, self.max_length_s, self.max_length_mode = min_length_s, max_length_s, max_length_mode
        self.crop_s, self.entire_scene_as_clip, self.limit_clips = crop_s, entire_scene_as_clip, limit_clips
        self._lengths()

    def analysers(self) -> Sequence[FrameAnalyser]:
        limit, least = self.threshold, self.min_scene_len
        found: list[FrameAnalyser] = [
            ContentDetector(27.0 if limit is None else limit, least)
            if self.method == CONTENT
            else AdaptiveDetector(3.0 if limit is None else limit, least)
        ]
        return [*found, FadeDetector(min_scene_len=least)] if self.fades else found


class TransNetV2ClipExtractionStage(ShotClipStage):
    """Cuts films into clips at the cuts, fades and dissolves that TransNetV2 finds: a probability above `threshold`.

    It runs on the CPU in ONNX Runtime, with as many threads as the stage has cores. `model_dir` is the file of the
    weights, if it is not the one that `gristmill[shots]` installs. How shots become clips is said in `ClipLengths`:
    cropping never eats into a shot that was cut for its length, and the last frame of a film is not lost.
    `gpu_memory_gb` changes nothing.
    """

    not_identity: ClassVar[tuple[str, ...]] = ("gpu_memory_gb",)

    def __init__(
        self,
        threshold: float = 0.4,
        min_length_s: float | None = 2.0,
        max_length_s: float | None = 10.0,
        max_length_mode: str = STRIDE,
        crop_s: float | None = 0.5,
        entire_scene_as_clip: bool = True,
        gpu_memory_gb: float = 10,
        limit_clips: int = -1,
        model_dir: str = TRANSNET,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.verbose = verbose
        self.threshold, self.gpu_memory_gb, self.model_dir = threshold, gpu_memory_gb, model_dir
        self.min_length_s, self.max_length_s, self.max_length_mode = min_length_s, max_length_s, max_length_mode
        self.crop_s, self.entire_scene_as_clip, self.limit_clips = crop_s, entire_scene_as_clip, limit_clips
        self.resources = Resources(cpus=1.0)
        self._lengths()
        self._detector = TransNetDetector(threshold, model_dir)

    def analysers(self) -> Sequence[FrameAnalyser]:
        return [self._detector]

    def check(self) -> None:
        self._detector.wanted().check()

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        self._detector.wanted().check()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._detector.load(max(1, int(self.resources.cpus)))

    def teardown(self) -> None:
        self._detector.unload()


class VideoFrameExtractionStage(ProcessingStage[VideoBatch, VideoBatch]):
    """Does nothing: the stage that looks for shots decodes the frames, once for all that looks at the film.

    Its parameters are checked and change nothing: TransNetV2 is given pictures of 27 x 48 pixels.
    """

    takes_empty = True
    not_identity: ClassVar[tuple[str, ...]] = ("output_hw", "pyncv_batch_size", "decoder_mode", "ray_data_num_cpus")

    def __init__(
        self,
        output_hw: tuple[int, int] = (HEIGHT, WIDTH),
        pyncv_batch_size: int = 64,
        decoder_mode: str = "ffmpeg_cpu",
        verbose: bool = False,
        ray_data_num_cpus: Any = None,
    ) -> None:
        super().__init__()
        check_choice("VideoFrameExtractionStage", "decoder_mode", decoder_mode, DECODERS)
        self.output_hw, self.pyncv_batch_size, self.decoder_mode = output_hw, pyncv_batch_size, decoder_mode
        self.verbose, self.ray_data_num_cpus = verbose, ray_data_num_cpus

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def process(self, task: VideoBatch) -> VideoBatch:
        return task
