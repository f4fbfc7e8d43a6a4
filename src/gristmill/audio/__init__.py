"""Audio: readers, writers, filters and stages for recordings.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.audio.batch import AudioBatch as AudioBatch
    from gristmill.audio.batch import BadAudio as BadAudio
    from gristmill.audio.decode import AudioHeader as AudioHeader
    from gristmill.audio.decode import Sound as Sound
    from gristmill.audio.decode import audio_header as audio_header
    from gristmill.audio.decode import decode_audio as decode_audio
    from gristmill.audio.read import ManifestReader as ManifestReader
    from gristmill.audio.read import ManifestReaderStage as ManifestReaderStage
    from gristmill.audio.waveforms import WaveformStage as WaveformStage
    from gristmill.audio.waveforms import sounds as sounds
    from gristmill.audio.write import ManifestWriterStage as ManifestWriterStage
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
