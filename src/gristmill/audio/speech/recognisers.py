"""Adapters of ASRStage: models and services that write down what is said.

FasterWhisperASR    Whisper in CTranslate2, on a CPU, from a local directory
OpenAITranscription a service with the interface `/v1/audio/transcriptions`
NeMoASRAdapter      models of NVIDIA NeMo, where that is installed
"""

from __future__ import annotations

import importlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.audio.batch import BadAudio
from gristmill.audio.sound.encode import encode
from gristmill.audio.speech.package_weights import RATE
from gristmill.core.errors import InputError, MissingDependencyError, require

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

WINDOW_SECONDS, GAP_SECONDS = 30.0, 1.0


class Word(NamedTuple):
    """A word, and when it is said: seconds of the clip. `probability` is None where it is not known."""

    start: float
    end: float
    word: str
    probability: float | None = None


class Transcription(NamedTuple):
    """What is said in a clip."""

    text: str
    language: str | None = None
    words: Sequence[Word] = ()


class ASRAdapter(ABC):
    """Something that writes down what is said. Constructors load nothing; `setup` does, in the worker."""

    def check(self) -> None:  # noqa: B027  (optional)
        """Raise if it is clear before the run that it cannot work."""

    def setup(self, threads: int) -> None:  # noqa: B027  (optional)
        """Load the model."""

    @abstractmethod
    def transcribe(
        self, clips: Sequence[Samples], languages: Sequence[str | None]
    ) -> Sequence[Transcription | BadAudio]:
        """What is said in each clip, samples at 16 kHz, or why that is not known. A language is a code such as "en";
        None: to be found."""

    def teardown(self) -> None:  # noqa: B027  (optional)
        """Let go of the model."""


class FasterWhisperASR(ASRAdapter):
    """Whisper as faster-whisper runs it. `model_id` is the directory of a converted model; nothing is downloaded.

    With `packed`, clips that are short share windows of 30 seconds, and the text is divided by word times: faster, but
    the model then hears clips that are not related as one speech. Recordings of more than 30 seconds are cut by
    `vad_filter` and recognised `batch_size` windows at once. Decoding is greedy or by beam search, and never at random.
    """

    def __init__(
        self,
        model_id: str,
        compute_type: str = "int8",
        beam_size: int = 5,
        vad_filter: bool = True,
        word_timestamps: bool = False,
        packed: bool = False,
        batch_size: int = 8,
    ) -> None:
        self.model_id, self.compute_type, self.beam_size = str(model_id), compute_type, beam_size
        self.vad_filter, self.word_timestamps = vad_filter, word_timestamps
        self.packed, self.batch_size = packed, batch_size
        self._model: Any = None

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
        self._model = None

    def transcribe(
        self, clips: Sequence[Samples], languages: Sequence[str | None]
    ) -> Sequence[Transcription | BadAudio]:
        found: list[Transcription | BadAudio] = [Transcription("")] * len(clips)
        for rows in self._windows(clips, languages):
            language = languages[rows[0]]
            if len(rows) == 1:
                found[rows[0]] = self._heard(clips[rows[0]], language, self.word_timestamps)
                continue
            for row, transcription in zip(
                rows, self._heard_packed([clips[row] for row in rows], language), strict=True
            ):
                found[row] = transcription
        return found

    def _windows(self, clips: Sequence[Samples], languages: Sequence[str | None]) -> Iterator[list[int]]:
        """Which clips are recognised together."""
        if not self.packed:
            yield from ([row] for row in range(len(clips)))
            return
        window: list[int] = []
        room = 0.0
        order = sorted(range(len(clips)), key=lambda row: (languages[row] or "", row))
        for row in order:
            seconds = len(clips[row]) / RATE + GAP_SECONDS
            if window and (seconds > room or languages[row] is None or languages[row] != languages[window[0]]):
                yield window
                window = []
            room = (room if window else WINDOW_SECONDS) - seconds
            window.append(row)
        if window:
            yield window

    def _heard(self, clip: Samples, language: str | None, words: bool) -> Transcription:
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

    def _heard_packed(self, clips: Sequence[Samples], language: str | None) -> Iterator[Transcription]:
        gap = np.zeros(round(GAP_SECONDS * RATE), np.float32)
        joined = np.concatenate([part for clip in clips for part in (clip, gap)])[: -len(gap)]
        heard = self._heard(joined, language, words=True)
        start = 0.0
        for number, clip in enumerate(clips):
            seconds = len(clip) / RATE
            end = start + seconds + GAP_SECONDS / 2 if number < len(clips) - 1 else float("inf")
            begin = start - GAP_SECONDS / 2 if number else float("-inf")
            own = [one for one in heard.words if begin <= (one.start + one.end) / 2 < end]
            text = " ".join(one.word for one in own)
            timed = [one._replace(start=max(one.start - start, 0.0), end=min(one.end - start, seconds)) for one in own]
            yield Transcription(text, heard.language, timed if self.word_timestamps else ())
            start += seconds + GAP_SECONDS


def _even_spans(seconds: float) -> list[dict[str, float]]:
    count = int(-(-seconds // WINDOW_SECONDS))
    return [{"start": at * seconds / count, "end": (at + 1) * seconds / count} for at in range(count)]


_ROW_ERRORS = frozenset({400, 413, 415, 422})
"""Answers of a service that are about the recording: the row is set aside. Others are about the service."""


class OpenAITranscription(ASRAdapter):
    """A service with OpenAI's interface for transcription: `url` ends before `/audio/transcriptions`.

    The key is taken from the environment variable `api_key_env`, if that is set. Requests that fail are repeated, with
    growing pauses. A recording that the service refuses is set aside with its reason.
    """

    def __init__(
        self,
        url: str,
        model_id: str,
        api_key_env: str = "OPENAI_API_KEY",
        word_timestamps: bool = False,
        timeout_s: float = 120.0,
        retries: int = 4,
    ) -> None:
        if not re.match(r"https?://[^/]", url):
            raise ValueError(f"OpenAITranscription: url is {url!r}, must begin with http:// or https://")
        self.url, self.model_id, self.api_key_env = url, model_id, api_key_env
        self.word_timestamps, self.timeout_s, self.retries = word_timestamps, timeout_s, retries
        self._pool: Any = None

    def check(self) -> None:
        require("urllib3", "download", "asking a transcription service")

    def setup(self, threads: int) -> None:
        urllib3 = require("urllib3", "download", "asking a transcription service")
        retry = urllib3.Retry(
            total=self.retries,
            redirect=0,
            backoff_factor=0.5,
            status_forcelist=(429, 500, 502, 503, 504),
            allowed_methods=None,
            raise_on_status=False,
            respect_retry_after_header=True,
        )
        self._pool = urllib3.PoolManager(retries=retry, timeout=self.timeout_s)

    def teardown(self) -> None:
        if self._pool is not None:
            self._pool.clear()

    def transcribe(
        self, clips: Sequence[Samples], languages: Sequence[str | None]
    ) -> Sequence[Transcription | BadAudio]:
        return [self._asked(clip, language) for clip, language in zip(clips, languages, strict=True)]

    def _asked(self, clip: Samples, language: str | None) -> Transcription | BadAudio:
        fields: list[tuple[str, Any]] = [
            ("file", ("clip.wav", encode(clip[:, None], RATE, "wav"), "audio/wav")),
            ("model", self.model_id),
            ("temperature", "0"),
            ("response_format", "verbose_json" if self.word_timestamps else "json"),
        ]
        if language:
            fields.append(("language", language))
        if self.word_timestamps:
            fields.append(("timestamp_granularities[]", "word"))
        key = os.environ.get(self.api_key_env)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        place = f"{self.url.rstrip('/')}/audio/transcriptions"
        try:
            answer = self._pool.request("POST", place, fields=fields, headers=headers)
        except require("urllib3", "download", "a transcription service").exceptions.HTTPError as error:
            raise InputError(f"{place}: the service cannot be reached: {error}") from error
        if answer.status in _ROW_ERRORS:
            return BadAudio(f"{place} refused it ({answer.status}): {_shown(answer.data)}")
        if answer.status != 200:
            raise InputError(f"{place}: the service answered {answer.status}: {_shown(answer.data)}")
        return self._read(place, answer.data)

    def _read(self, place: str, data: bytes) -> Transcription:
        try:
            body = json.loads(data)
            timed = body.get("words") or ()
            said = [Word(float(one["start"]), float(one["end"]), str(one["word"]).strip()) for one in timed]
            return Transcription(str(body["text"]).strip(), body.get("language"), said)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{place}: the answer is no transcription: {_shown(data)}") from error


def _shown(data: bytes) -> str:
    text = " ".join(data.decode("utf-8", "replace").split())
    return text if len(text) <= 200 else f"{text[:200]}..."


class NeMoASRAdapter(ASRAdapter):
    """A model of NVIDIA NeMo, by name or from a .nemo file."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self._model: Any = None

    def check(self) -> None:
        self._models()

    def _models(self) -> Any:
        try:
            nemo_asr = importlib.import_module("nemo.collections.asr")
        except ImportError as error:
            raise MissingDependencyError(
                "recognising speech with NeMo needs 'nemo_toolkit[asr]', which is not installed: pip install "
                "'nemo_toolkit[asr]', or use ASRStage with FasterWhisperASR, which runs on a CPU"
            ) from error
        return nemo_asr.models.ASRModel

    def setup(self, threads: int) -> None:
        local = self.model_id.endswith(".nemo")
        models = self._models()
        self._model = models.restore_from(self.model_id) if local else models.from_pretrained(self.model_id)

    def transcribe(
        self, clips: Sequence[Samples], languages: Sequence[str | None]
    ) -> Sequence[Transcription | BadAudio]:
        answers = self._model.transcribe(list(clips), batch_size=max(len(clips), 1), verbose=False)
        return [Transcription(one if isinstance(one, str) else one.text) for one in answers]
