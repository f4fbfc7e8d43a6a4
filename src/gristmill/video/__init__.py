"""Video: readers, splitters, filters and writers for films and clips.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.video.batch import BadVideo as BadVideo
    from gristmill.video.batch import VideoBatch as VideoBatch
    from gristmill.video.captions.caption_windows import CaptionPreparationStage as CaptionPreparationStage
    from gristmill.video.captions.write_captions import CaptionEnhancementStage as CaptionEnhancementStage
    from gristmill.video.captions.write_captions import CaptionGenerationStage as CaptionGenerationStage
    from gristmill.video.clips import ClipSpan as ClipSpan
    from gristmill.video.clips import FixedStrideExtractorStage as FixedStrideExtractorStage
    from gristmill.video.clips import clip_rows as clip_rows
    from gristmill.video.decode import Analysis as Analysis
    from gristmill.video.decode import DecodeLimits as DecodeLimits
    from gristmill.video.decode import analyse_video as analyse_video
    from gristmill.video.embedding.embed import CosmosEmbed1EmbeddingStage as CosmosEmbed1EmbeddingStage
    from gristmill.video.embedding.embed import CosmosEmbed1FrameCreationStage as CosmosEmbed1FrameCreationStage
    from gristmill.video.embedding.embed import VideoEmbeddingStage as VideoEmbeddingStage
    from gristmill.video.embedding.frame_model_filters import ClipAestheticFilterStage as ClipAestheticFilterStage
    from gristmill.video.embedding.frame_model_filters import VideoNSFWFilterStage as VideoNSFWFilterStage
    from gristmill.video.filters import VideoAspectRatioFilter as VideoAspectRatioFilter
    from gristmill.video.filters import VideoBitRateFilter as VideoBitRateFilter
    from gristmill.video.filters import VideoDurationFilter as VideoDurationFilter
    from gristmill.video.filters import VideoFilter as VideoFilter
    from gristmill.video.filters import VideoFrameRateFilter as VideoFrameRateFilter
    from gristmill.video.filters import VideoRangeFilter as VideoRangeFilter
    from gristmill.video.filters import VideoResolutionFilter as VideoResolutionFilter
    from gristmill.video.frame_analyser import FrameAnalyser as FrameAnalyser
    from gristmill.video.frame_analyser import FrameRequest as FrameRequest
    from gristmill.video.frame_analyser import FrameSeries as FrameSeries
    from gristmill.video.frame_stage import FrameStage as FrameStage
    from gristmill.video.frames.clip_frames import ClipFrameExtractionStage as ClipFrameExtractionStage
    from gristmill.video.frames.picture_filters import VideoBlackFilter as VideoBlackFilter
    from gristmill.video.frames.picture_filters import VideoBlurFilter as VideoBlurFilter
    from gristmill.video.frames.picture_filters import VideoBrightnessFilter as VideoBrightnessFilter
    from gristmill.video.frames.picture_filters import VideoFrozenFilter as VideoFrozenFilter
    from gristmill.video.frames.picture_filters import VideoImageFilter as VideoImageFilter
    from gristmill.video.frames.picture_filters import VideoLetterboxFilter as VideoLetterboxFilter
    from gristmill.video.frames.picture_filters import VideoTextFilter as VideoTextFilter
    from gristmill.video.frames.picture_filters import VideoWatermarkFilter as VideoWatermarkFilter
    from gristmill.video.frames.previews import PreviewStage as PreviewStage
    from gristmill.video.frames.video_fingerprint import VideoFingerprintStage as VideoFingerprintStage
    from gristmill.video.frames.video_fingerprint import VideoHashStage as VideoHashStage
    from gristmill.video.from_audio import AudioToVideoStage as AudioToVideoStage
    from gristmill.video.motion.motion_analyser import MotionAnalyser as MotionAnalyser
    from gristmill.video.motion.motion_stages import MotionFilterStage as MotionFilterStage
    from gristmill.video.motion.motion_stages import MotionVectorDecodeStage as MotionVectorDecodeStage
    from gristmill.video.one_pass import Measured as Measured
    from gristmill.video.read import VideoParquetReader as VideoParquetReader
    from gristmill.video.read import VideoReader as VideoReader
    from gristmill.video.read import VideoReaderStage as VideoReaderStage
    from gristmill.video.read import VideoWebDatasetReader as VideoWebDatasetReader
    from gristmill.video.score import VideoScore as VideoScore
    from gristmill.video.score import VideoScoreFilter as VideoScoreFilter
    from gristmill.video.shots.clip_spans import ClipLengths as ClipLengths
    from gristmill.video.shots.content_detector import AdaptiveDetector as AdaptiveDetector
    from gristmill.video.shots.content_detector import ContentDetector as ContentDetector
    from gristmill.video.shots.content_detector import FadeDetector as FadeDetector
    from gristmill.video.shots.extract_shots import ContentClipExtractionStage as ContentClipExtractionStage
    from gristmill.video.shots.extract_shots import TransNetV2ClipExtractionStage as TransNetV2ClipExtractionStage
    from gristmill.video.shots.extract_shots import VideoFrameExtractionStage as VideoFrameExtractionStage
    from gristmill.video.shots.transnet import TransNetDetector as TransNetDetector
    from gristmill.video.stream_info import StreamInfo as StreamInfo
    from gristmill.video.transcode.clip_transcoding import ClipTranscodingStage as ClipTranscodingStage
    from gristmill.video.video_task import Clip as Clip
    from gristmill.video.video_task import Video as Video
    from gristmill.video.video_task import VideoMetadata as VideoMetadata
    from gristmill.video.video_task import VideoTask as VideoTask
    from gristmill.video.write import ClipWriterStage as ClipWriterStage
    from gristmill.video.write import VideoParquetWriter as VideoParquetWriter
    from gristmill.video.write import VideoWebDatasetWriter as VideoWebDatasetWriter
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
