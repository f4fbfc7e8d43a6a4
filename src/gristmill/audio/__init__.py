"""Audio: readers, writers, filters and stages for recordings.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.audio.audio_task import AudioTask as AudioTask
    from gristmill.audio.batch import AudioBatch as AudioBatch
    from gristmill.audio.batch import BadAudio as BadAudio
    from gristmill.audio.decode import AudioHeader as AudioHeader
    from gristmill.audio.decode import Sound as Sound
    from gristmill.audio.decode import audio_header as audio_header
    from gristmill.audio.decode import decode_audio as decode_audio
    from gristmill.audio.estimate_bandwidth import BandwidthEstimationStage as BandwidthEstimationStage
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
    from gristmill.audio.fingerprint import AudioFingerprintStage as AudioFingerprintStage
    from gristmill.audio.fingerprint import AudioHashStage as AudioHashStage
    from gristmill.audio.join_segments import JoinSplitAudioMetadataStage as JoinSplitAudioMetadataStage
    from gristmill.audio.join_segments import SegmentConcatenationStage as SegmentConcatenationStage
    from gristmill.audio.join_segments import TimestampMapperStage as TimestampMapperStage
    from gristmill.audio.layouts.read_archives import AudioParquetReader as AudioParquetReader
    from gristmill.audio.layouts.read_archives import AudioWebDatasetReader as AudioWebDatasetReader
    from gristmill.audio.layouts.read_archives import LhotseSharReader as LhotseSharReader
    from gristmill.audio.layouts.read_archives import TarredManifestReader as TarredManifestReader
    from gristmill.audio.layouts.speech_lists import CommonVoiceReader as CommonVoiceReader
    from gristmill.audio.layouts.speech_lists import (
        CreateInitialManifestFleursStage as CreateInitialManifestFleursStage,
    )
    from gristmill.audio.layouts.speech_lists import KaldiReader as KaldiReader
    from gristmill.audio.layouts.speech_lists import LhotseCutsReader as LhotseCutsReader
    from gristmill.audio.layouts.speech_lists import LibriSpeechReader as LibriSpeechReader
    from gristmill.audio.layouts.speech_lists import LJSpeechReader as LJSpeechReader
    from gristmill.audio.layouts.video_sound import VideoToAudioStage as VideoToAudioStage
    from gristmill.audio.layouts.write_shards import LhotseSharWriter as LhotseSharWriter
    from gristmill.audio.layouts.write_shards import TarredManifestWriter as TarredManifestWriter
    from gristmill.audio.metadata_stages import AudioToDocumentStage as AudioToDocumentStage
    from gristmill.audio.metadata_stages import GetAudioDurationStage as GetAudioDurationStage
    from gristmill.audio.metadata_stages import PreserveByValueStage as PreserveByValueStage
    from gristmill.audio.read import AudioDirectoryReader as AudioDirectoryReader
    from gristmill.audio.read import CreateInitialManifestReadSpeechStage as CreateInitialManifestReadSpeechStage
    from gristmill.audio.read import ManifestReader as ManifestReader
    from gristmill.audio.read import ManifestReaderStage as ManifestReaderStage
    from gristmill.audio.score import AudioScore as AudioScore
    from gristmill.audio.score import AudioScoreFilter as AudioScoreFilter
    from gristmill.audio.sound.measures import Measures as Measures
    from gristmill.audio.sound_transforms import MonoConversionStage as MonoConversionStage
    from gristmill.audio.sound_transforms import NormalizeLoudnessStage as NormalizeLoudnessStage
    from gristmill.audio.sound_transforms import ResampleAudioStage as ResampleAudioStage
    from gristmill.audio.sound_transforms import TrimSilenceStage as TrimSilenceStage
    from gristmill.audio.speakers.audio_data_filter import AudioDataFilterStage as AudioDataFilterStage
    from gristmill.audio.speakers.speaker_stages import InferenceSortformerStage as InferenceSortformerStage
    from gristmill.audio.speakers.speaker_stages import PyAnnoteDiarizationStage as PyAnnoteDiarizationStage
    from gristmill.audio.speakers.speaker_stages import SpeakerDiarizationStage as SpeakerDiarizationStage
    from gristmill.audio.speakers.speaker_stages import SpeakerEmbeddingStage as SpeakerEmbeddingStage
    from gristmill.audio.speakers.speaker_stages import SpeakerSeparationStage as SpeakerSeparationStage
    from gristmill.audio.speech.align import NeMoASRAlignerStage as NeMoASRAlignerStage
    from gristmill.audio.speech.align import SplitASRAlignJoinStage as SplitASRAlignJoinStage
    from gristmill.audio.speech.asr import ASRStage as ASRStage
    from gristmill.audio.speech.asr import AudioLanguageStage as AudioLanguageStage
    from gristmill.audio.speech.asr import InferenceAsrNemoStage as InferenceAsrNemoStage
    from gristmill.audio.speech.ctc import OnnxCTCASR as OnnxCTCASR
    from gristmill.audio.speech.rating_filters import BandFilterStage as BandFilterStage
    from gristmill.audio.speech.rating_filters import SIGMOSFilter as SIGMOSFilter
    from gristmill.audio.speech.rating_filters import SIGMOSFilterStage as SIGMOSFilterStage
    from gristmill.audio.speech.rating_filters import TorchSquimQualityMetricsStage as TorchSquimQualityMetricsStage
    from gristmill.audio.speech.rating_filters import UTMOSFilter as UTMOSFilter
    from gristmill.audio.speech.rating_filters import UTMOSFilterStage as UTMOSFilterStage
    from gristmill.audio.speech.recognisers import ASRAdapter as ASRAdapter
    from gristmill.audio.speech.recognisers import NeMoASRAdapter as NeMoASRAdapter
    from gristmill.audio.speech.recognisers import Transcription as Transcription
    from gristmill.audio.speech.recognisers import TransformersASR as TransformersASR
    from gristmill.audio.speech.recognisers import Word as Word
    from gristmill.audio.speech.sound_events import SEDInferenceStage as SEDInferenceStage
    from gristmill.audio.speech.sound_events import SEDPostprocessingStage as SEDPostprocessingStage
    from gristmill.audio.speech.speech_filters import DNSMOSFilter as DNSMOSFilter
    from gristmill.audio.speech.speech_filters import SpeechModelFilter as SpeechModelFilter
    from gristmill.audio.speech.speech_filters import SpeechShareFilter as SpeechShareFilter
    from gristmill.audio.speech.transcription_service import OpenAITranscription as OpenAITranscription
    from gristmill.audio.speech.voice_segments import VADSegmentationStage as VADSegmentationStage
    from gristmill.audio.speech.whisper import FasterWhisperASR as FasterWhisperASR
    from gristmill.audio.split_at_silence import SplitLongAudioStage as SplitLongAudioStage
    from gristmill.audio.transcripts.align_words import AlignTranscriptStage as AlignTranscriptStage
    from gristmill.audio.transcripts.clean_transcripts import NormaliseTranscriptStage as NormaliseTranscriptStage
    from gristmill.audio.transcripts.clean_transcripts import RegexSubstitutionStage as RegexSubstitutionStage
    from gristmill.audio.transcripts.clean_transcripts import WhisperHallucinationStage as WhisperHallucinationStage
    from gristmill.audio.transcripts.compare_transcripts import ComputeWERStage as ComputeWERStage
    from gristmill.audio.transcripts.compare_transcripts import GetPairwiseWerStage as GetPairwiseWerStage
    from gristmill.audio.transcripts.compare_transcripts import SelectBestPredictionStage as SelectBestPredictionStage
    from gristmill.audio.transcripts.transcript_filters import TranscriptAlphabetFilter as TranscriptAlphabetFilter
    from gristmill.audio.transcripts.transcript_filters import TranscriptCERFilter as TranscriptCERFilter
    from gristmill.audio.transcripts.transcript_filters import TranscriptCharRateFilter as TranscriptCharRateFilter
    from gristmill.audio.transcripts.transcript_filters import TranscriptEdgeErrorFilter as TranscriptEdgeErrorFilter
    from gristmill.audio.transcripts.transcript_filters import TranscriptFilter as TranscriptFilter
    from gristmill.audio.transcripts.transcript_filters import (
        TranscriptHallucinationFilter as TranscriptHallucinationFilter,
    )
    from gristmill.audio.transcripts.transcript_filters import TranscriptRepetitionFilter as TranscriptRepetitionFilter
    from gristmill.audio.transcripts.transcript_filters import TranscriptWERFilter as TranscriptWERFilter
    from gristmill.audio.transcripts.transcript_filters import TranscriptWordMatchFilter as TranscriptWordMatchFilter
    from gristmill.audio.transcripts.transcript_filters import TranscriptWordRateFilter as TranscriptWordRateFilter
    from gristmill.audio.transcripts.written_forms import AbbreviationConcatStage as AbbreviationConcatStage
    from gristmill.audio.transcripts.written_forms import ChineseConversionStage as ChineseConversionStage
    from gristmill.audio.transcripts.written_forms import InverseTextNormalizationStage as InverseTextNormalizationStage
    from gristmill.audio.waveforms import WaveformStage as WaveformStage
    from gristmill.audio.waveforms import sounds as sounds
    from gristmill.audio.windows.module_segments import MergeAlignmentDiarizationStage as MergeAlignmentDiarizationStage
    from gristmill.audio.windows.module_segments import PrepareModuleSegmentsStage as PrepareModuleSegmentsStage
    from gristmill.audio.windows.snippets import OverlapFilterStage as OverlapFilterStage
    from gristmill.audio.windows.snippets import ReadLongFormManifestStage as ReadLongFormManifestStage
    from gristmill.audio.windows.snippets import SnippetCutPlannerStage as SnippetCutPlannerStage
    from gristmill.audio.windows.snippets import SnippetExtractionStage as SnippetExtractionStage
    from gristmill.audio.windows.snippets import SnippetRepetitionFilterStage as SnippetRepetitionFilterStage
    from gristmill.audio.windows.snippets import build_audio_pretrain_pipeline as build_audio_pretrain_pipeline
    from gristmill.audio.windows.training_windows import ALMDataBuilderStage as ALMDataBuilderStage
    from gristmill.audio.windows.training_windows import ALMDataOverlapStage as ALMDataOverlapStage
    from gristmill.audio.write_manifest import ManifestWriterStage as ManifestWriterStage
    from gristmill.audio.write_recordings import AudioDirectoryWriter as AudioDirectoryWriter
    from gristmill.audio.write_recordings import AudioParquetWriter as AudioParquetWriter
    from gristmill.audio.write_recordings import AudioWebDatasetWriter as AudioWebDatasetWriter
    from gristmill.audio.write_recordings import SegmentExtractionStage as SegmentExtractionStage
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
