"""Audio: readers, writers, filters and stages for recordings.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.audio.audio_task import AudioTask as AudioTask
    from gristmill.audio.batch import AudioBatch as AudioBatch
    from gristmill.audio.batch import BadAudio as BadAudio
    from gristmill.audio.clean_sound import MonoConversionStage as MonoConversionStage
    from gristmill.audio.clean_sound import NormalizeLoudnessStage as NormalizeLoudnessStage
    from gristmill.audio.clean_sound import ResampleAudioStage as ResampleAudioStage
    from gristmill.audio.clean_sound import TrimSilenceStage as TrimSilenceStage
    from gristmill.audio.columns import AudioToDocumentStage as AudioToDocumentStage
    from gristmill.audio.columns import GetAudioDurationStage as GetAudioDurationStage
    from gristmill.audio.columns import PreserveByValueStage as PreserveByValueStage
    from gristmill.audio.cut_segments import SplitLongAudioStage as SplitLongAudioStage
    from gristmill.audio.decode import AudioHeader as AudioHeader
    from gristmill.audio.decode import Sound as Sound
    from gristmill.audio.decode import audio_header as audio_header
    from gristmill.audio.decode import decode_audio as decode_audio
    from gristmill.audio.filters import AudioBandwidthFilter as AudioBandwidthFilter
    from gristmill.audio.filters import AudioChannelCorrelationFilter as AudioChannelCorrelationFilter
    from gristmill.audio.filters import AudioChannelsFilter as AudioChannelsFilter
    from gristmill.audio.filters import AudioClippingFilter as AudioClippingFilter
    from gristmill.audio.filters import AudioDCOffsetFilter as AudioDCOffsetFilter
    from gristmill.audio.filters import AudioDurationFilter as AudioDurationFilter
    from gristmill.audio.filters import AudioFilter as AudioFilter
    from gristmill.audio.filters import AudioLoudnessFilter as AudioLoudnessFilter
    from gristmill.audio.filters import AudioRangeFilter as AudioRangeFilter
    from gristmill.audio.filters import AudioSampleRateFilter as AudioSampleRateFilter
    from gristmill.audio.filters import AudioSilenceFilter as AudioSilenceFilter
    from gristmill.audio.filters import AudioSNRFilter as AudioSNRFilter
    from gristmill.audio.join_segments import JoinSplitAudioMetadataStage as JoinSplitAudioMetadataStage
    from gristmill.audio.join_segments import SegmentConcatenationStage as SegmentConcatenationStage
    from gristmill.audio.join_segments import TimestampMapperStage as TimestampMapperStage
    from gristmill.audio.layouts.read_archives import AudioParquetReader as AudioParquetReader
    from gristmill.audio.layouts.read_archives import AudioWebDatasetReader as AudioWebDatasetReader
    from gristmill.audio.layouts.read_archives import TarredManifestReader as TarredManifestReader
    from gristmill.audio.layouts.speech_lists import CommonVoiceReader as CommonVoiceReader
    from gristmill.audio.layouts.speech_lists import (
        CreateInitialManifestFleursStage as CreateInitialManifestFleursStage,
    )
    from gristmill.audio.layouts.speech_lists import KaldiReader as KaldiReader
    from gristmill.audio.layouts.speech_lists import LhotseCutsReader as LhotseCutsReader
    from gristmill.audio.layouts.speech_lists import LibriSpeechReader as LibriSpeechReader
    from gristmill.audio.layouts.speech_lists import LJSpeechReader as LJSpeechReader
    from gristmill.audio.read import AudioDirectoryReader as AudioDirectoryReader
    from gristmill.audio.read import ManifestReader as ManifestReader
    from gristmill.audio.read import ManifestReaderStage as ManifestReaderStage
    from gristmill.audio.score import AudioScore as AudioScore
    from gristmill.audio.score import AudioScoreFilter as AudioScoreFilter
    from gristmill.audio.sound.measures import Measures as Measures
    from gristmill.audio.waveforms import WaveformStage as WaveformStage
    from gristmill.audio.waveforms import sounds as sounds
    from gristmill.audio.write import ManifestWriterStage as ManifestWriterStage
    from gristmill.audio.write_recordings import AudioDirectoryWriter as AudioDirectoryWriter
    from gristmill.audio.write_recordings import AudioParquetWriter as AudioParquetWriter
    from gristmill.audio.write_recordings import AudioWebDatasetWriter as AudioWebDatasetWriter
    from gristmill.audio.write_recordings import SegmentExtractionStage as SegmentExtractionStage
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
