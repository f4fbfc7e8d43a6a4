"""AudioDataFilterStage: clean speech of single speakers, by a configuration.

    speech is cut out (VAD), mixed to one channel, filtered by bandwidth and ratings; with `speaker_separation` the
    segments of a recording are joined, separated by speaker, cut and filtered again; times map back to the file

Ratings and voices need models, which the configuration names (`model_path`): nothing is downloaded. A section without
one is an error before the run, unless it says `enable: false`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import yaml

from gristmill.audio.batch import AudioBatch
from gristmill.audio.join_segments import SegmentConcatenationStage, TimestampMapperStage
from gristmill.audio.sound_transforms import MonoConversionStage
from gristmill.audio.speakers.speaker_stages import SpeakerSeparationStage
from gristmill.audio.speech.rating_filters import BandFilterStage, SIGMOSFilterStage, UTMOSFilterStage
from gristmill.audio.speech.voice_segments import VADSegmentationStage
from gristmill.core.errors import InputError, did_you_mean
from gristmill.core.stage import CompositeStage, ProcessingStage

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mono_conversion": {"output_sample_rate": 48_000, "strict_sample_rate": True},
    "vad": {
        "enable": True, "min_duration_sec": 2.0, "max_duration_sec": 60.0, "threshold": 0.5, "min_interval_ms": 500,
        "speech_pad_ms": 300,
    },
    "band_filter": {"enable": True, "band_value": "full_band"},
    "utmos": {"enable": True, "mos_threshold": 3.4, "model_path": None},
    "sigmos": {
        "enable": True, "noise_threshold": 4.0, "ovrl_threshold": 3.5, "sig_threshold": None, "col_threshold": None,
        "disc_threshold": None, "loud_threshold": None, "reverb_threshold": None, "model_path": None,
    },
    "concatenation": {"silence_duration_sec": 0.5},
    "speaker_separation": {
        "enable": True, "exclude_overlaps": True, "min_duration": 0.8, "gap_threshold": 0.1, "buffer_time": 0.5,
        "model_path": None,
    },
    "timestamp_mapper": {"passthrough_keys": None},
}  # fmt: skip
_RESOURCES = ("cpus", "gpus")


class AudioDataFilterStage(CompositeStage[AudioBatch, AudioBatch]):
    """Keeps clean speech, of single speakers if models of voices are given, with the times in the original files.

    `config_path` is a YAML file and `config` a mapping that goes before it, both in sections: mono_conversion, vad,
    band_filter, utmos, sigmos, concatenation, speaker_separation, timestamp_mapper. Sections with `enable: false` are
    left out; utmos, sigmos and speaker_separation need a `model_path`. `cpus` and `gpus` in sections change nothing.
    """

    def __init__(
        self,
        config_path: str | os.PathLike[str] | None = None,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.config_path, self.config = config_path, config
        self._sections = _merged(_merged(deepcopy(dict(DEFAULTS)), _read(config_path)), config or {})

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        stages: list[ProcessingStage[Any, Any]] = []
        if self._is_on("vad"):
            stages.append(VADSegmentationStage(**self._settings("vad")))
        stages.append(MonoConversionStage(**self._settings("mono_conversion")))
        stages += self._quality()
        if self._is_on("speaker_separation"):
            if self._is_on("vad"):
                stages.append(SegmentConcatenationStage(**self._settings("concatenation")))
            stages.append(SpeakerSeparationStage(**self._settings("speaker_separation", model=True)))
            stages += [VADSegmentationStage(**self._settings("vad"))] if self._is_on("vad") else []
            stages += self._quality()
        return [*stages, TimestampMapperStage(**self._settings("timestamp_mapper"))]

    def _quality(self) -> list[ProcessingStage[Any, Any]]:
        found: list[ProcessingStage[Any, Any]] = []
        if self._is_on("band_filter"):
            found.append(BandFilterStage(**self._settings("band_filter")))
        if self._is_on("utmos"):
            found.append(UTMOSFilterStage(**self._settings("utmos", model=True)))
        if self._is_on("sigmos"):
            found.append(SIGMOSFilterStage(**self._settings("sigmos", model=True)))
        return found

    def _is_on(self, section: str) -> bool:
        return bool(self._sections[section].get("enable", True))

    def _settings(self, section: str, model: bool = False) -> dict[str, Any]:
        given = {name: value for name, value in self._sections[section].items() if name not in ("enable", *_RESOURCES)}
        if model and not given.get("model_path"):
            raise InputError(
                f"AudioDataFilterStage: {section} needs a model: config={{{section!r}: {{'model_path': 'x.onnx'}}}}, "
                "or 'enable': False"
            )
        return given


def _read(path: str | os.PathLike[str] | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            loaded = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{os.fspath(path)}: the configuration cannot be read: {error}") from error
    return loaded or {}


def _merged(sections: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    for section, settings in more.items():
        if section not in DEFAULTS or not isinstance(settings, Mapping):
            hint = did_you_mean(str(section), DEFAULTS)
            raise ValueError(f"AudioDataFilterStage: {section!r} is no section: {', '.join(DEFAULTS)}.{hint}")
        sections[section] = {**sections[section], **settings}
    return sections
