"""FasterWhisperASR: Whisper as CTranslate2 runs it, on a CPU, from a local directory.

Whisper hears windows of 30 seconds, and most of its time goes into hearing silence behind a short clip. So a clip is
heard in a window that is as long as the clip and `_SILENCE_SECONDS` of silence. A text that looks wrong, because it
repeats itself or the model doubts it, is heard again in a whole window. Each clip is heard on its own: what it says
does not depend on the clips beside it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.audio.batch import BadAudio
from gristmill.audio.speech.package_weights import RATE
from gristmill.audio.speech.recognisers import ASRAdapter, Transcription, Word
from gristmill.core.errors import InputError, require

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

WINDOW_SECONDS = 30.0
_SILENCE_SECONDS, _FRAMES_PER_SECOND, _LONGEST_SHORT = 5.0, 100, 24.0
_REPETITIVE, _DOUBTFUL = 2.4, -1.0
"""The compression ratio and the mean log probability beyond which a text looks wrong, as Whisper's authors set them."""

_MAX_TOKENS = 224


class HeardLanguage(NamedTuple):
    """A language code, and how probable it is."""

    language: str
    probability: float


class FasterWhisperASR(ASRAdapter):
    """Whisper as faster-whisper runs it. `model_id` is the directory of a converted model; nothing is downloaded.

    Clips of up to 24 seconds whose language is known are heard in `short_windows`, unless times of words are asked for.
    Recordings of more than 30 seconds are cut by `vad_filter` and recognised `batch_size` windows at once.
    `cpu_compute_type`, if given, goes before `compute_type`. Decoding is greedy or by beam search, and never at random.
    """

    def __init__(
        self,
        model_id: str,
        compute_type: str = "int8",
        beam_size: int = 5,
        vad_filter: bool = True,
        word_timestamps: bool = False,
        short_windows: bool = True,
        batch_size: int = 8,
        cpu_compute_type: str | None = None,
    ) -> None:
        self.model_id, self.compute_type = str(model_id), cpu_compute_type or compute_type
        self.beam_size, self.vad_filter, self.word_timestamps = beam_size, vad_filter, word_timestamps
        self.short_windows, self.batch_size = short_windows, batch_size
        self._model: Any = None
        self._tokenizers: dict[str, Any] = {}

    def check(self) -> None:
        require("faster_whisper", "asr", "recognising speech with Whisper")
        if not (Path(self.model_id) / "model.bin").is_file():
            raise InputError(
                f"{self.model_id}: there is no model.bin: give the directory of a Whisper model that was converted for "
                "CTranslate2"
            )

    def setup(self, threads: int) -> None:
        self.check()
        whisper = require("faster_whisper", "asr", "recognising speech with Whisper")
        self._model = whisper.WhisperModel(
            self.model_id, device="cpu", compute_type=self.compute_type, cpu_threads=threads, local_files_only=True
        )

    def teardown(self) -> None:
        self._model, self._tokenizers = None, {}

    def transcribe(
        self, clips: Sequence[Samples], languages: Sequence[str | None]
    ) -> Sequence[Transcription | BadAudio]:
        return [self._heard(clip, self._language(code)) for clip, code in zip(clips, languages, strict=True)]

    def _language(self, code: str | None) -> str | None:
        """The language that a clip is said to be in. A model of English only knows no other."""
        return code if self._model.model.is_multilingual else "en"

    def _heard(self, clip: Samples, language: str | None) -> Transcription:
        short = self.short_windows and not self.word_timestamps and len(clip) <= _LONGEST_SHORT * RATE
        if short and language:
            text = self._heard_shortly(clip, language)
            if text is not None:
                return Transcription(text, language)
        return self._heard_whole(clip, language)

    def _heard_shortly(self, clip: Samples, language: str) -> str | None:
        """What is said, heard in a short window; None if that looks wrong."""
        ctranslate2 = require("ctranslate2", "asr", "recognising speech with Whisper")
        seconds = np.ceil(len(clip) / RATE + _SILENCE_SECONDS)
        padded = np.zeros(int(seconds) * RATE, np.float32)
        padded[: len(clip)] = clip
        frames = int(seconds) * _FRAMES_PER_SECOND
        features = self._model.feature_extractor(padded, padding=0)[None, :, :frames]
        tokenizer = self._tokenizer(language)
        [found] = self._model.model.generate(
            ctranslate2.StorageView.from_array(np.ascontiguousarray(features)),
            [[*tokenizer.sot_sequence, tokenizer.no_timestamps]],
            beam_size=self.beam_size,
            max_length=_MAX_TOKENS,
            suppress_blank=True,
            return_scores=True,
        )
        tokens = found.sequences_ids[0]
        text = tokenizer.decode([token for token in tokens if token < tokenizer.eot]).strip()
        if len(tokens) >= _MAX_TOKENS - 8 or found.scores[0] < _DOUBTFUL or _repetition(text) > _REPETITIVE:
            return None
        return str(text)

    def _tokenizer(self, language: str) -> Any:
        if language not in self._tokenizers:
            tokenizer = require("faster_whisper.tokenizer", "asr", "recognising speech with Whisper").Tokenizer
            multilingual = self._model.model.is_multilingual
            made = tokenizer(self._model.hf_tokenizer, multilingual, task="transcribe", language=language)
            self._tokenizers[language] = made
        return self._tokenizers[language]

    def _heard_whole(self, clip: Samples, language: str | None) -> Transcription:
        words = self.word_timestamps
        settings: dict[str, Any] = {
            "language": language,
            "beam_size": self.beam_size,
            "temperature": 0.0,
            "word_timestamps": words,
            "without_timestamps": not words,
        }
        if len(clip) > WINDOW_SECONDS * RATE:
            pipeline = require("faster_whisper", "asr", "Whisper").BatchedInferencePipeline(self._model)
            spans = None if self.vad_filter else _even_spans(len(clip) / RATE)
            segments, info = pipeline.transcribe(
                clip, batch_size=self.batch_size, vad_filter=self.vad_filter, clip_timestamps=spans, **settings
            )
        else:
            segments, info = self._model.transcribe(clip, condition_on_previous_text=False, **settings)
        parts = list(segments)
        timed = [word for part in parts for word in part.words or ()]
        said = [Word(float(one.start), float(one.end), one.word.strip(), float(one.probability)) for one in timed]
        return Transcription(" ".join(part.text.strip() for part in parts).strip(), info.language, said)

    def languages(self, clips: Sequence[Samples]) -> list[HeardLanguage]:
        """Which language each clip is in, by its first 30 seconds. The model must know several."""
        if not self._model.model.is_multilingual:
            raise InputError(f"{self.model_id}: this model knows only English: languages are told by one of several")
        found = []
        for clip in clips:
            language, probability, _ = self._model.detect_language(clip[: int(WINDOW_SECONDS) * RATE])
            found.append(HeardLanguage(str(language), float(probability)))
        return found


def _repetition(text: str) -> float:
    """How much shorter a text becomes when it is compressed: much, if it repeats itself."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def _even_spans(seconds: float) -> list[dict[str, float]]:
    count = int(-(-seconds // WINDOW_SECONDS))
    return [{"start": at * seconds / count, "end": (at + 1) * seconds / count} for at in range(count)]
