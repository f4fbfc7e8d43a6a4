"""Video: readers, splitters, filters and writers for films and clips.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.video.batch import BadVideo as BadVideo
    from gristmill.video.batch import VideoBatch as VideoBatch
    from gristmill.video.decode import Analysis as Analysis
    from gristmill.video.decode import DecodeLimits as DecodeLimits
    from gristmill.video.decode import analyse_video as analyse_video
    from gristmill.video.frame_analysis import FrameAnalyser as FrameAnalyser
    from gristmill.video.frame_analysis import FrameRequest as FrameRequest
    from gristmill.video.frame_analysis import FrameSeries as FrameSeries
    from gristmill.video.shots.clip_spans import ClipLengths as ClipLengths
    from gristmill.video.shots.content_detector import AdaptiveDetector as AdaptiveDetector
    from gristmill.video.shots.content_detector import ContentDetector as ContentDetector
    from gristmill.video.shots.content_detector import FadeDetector as FadeDetector
    from gristmill.video.shots.transnet import TransNetDetector as TransNetDetector
    from gristmill.video.stream_info import StreamInfo as StreamInfo
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
