"""OpenAITranscription: a service with the interface `/v1/audio/transcriptions` as a recogniser."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gristmill.audio.batch import BadAudio
from gristmill.audio.sound.encode import encode
from gristmill.audio.speech.package_weights import RATE
from gristmill.audio.speech.recognisers import ASRAdapter, Transcription, Word
from gristmill.core.errors import InputError, require
from gristmill.samples.argument_checks import check_positive

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

_ROW_ERRORS = frozenset({400, 413, 415, 422})
"""Answers of a service that are about the recording: the row is set aside. Others are about the service."""


class OpenAITranscription(ASRAdapter):
    """A service with OpenAI's interface for transcription: `url` ends before `/audio/transcriptions`.

    The key is taken from the environment variable `api_key_env`, if that is set. Requests that fail are repeated, with
    growing pauses, and `concurrency` of them run at once. A recording that the service refuses is set
    aside with its reason.
    """

    def __init__(
        self,
        url: str,
        model_id: str,
        api_key_env: str = "OPENAI_API_KEY",
        word_timestamps: bool = False,
        timeout_s: float = 120.0,
        retries: int = 4,
        concurrency: int = 4,
    ) -> None:
        if not re.match(r"https?://[^/]", url):
            raise ValueError(f"OpenAITranscription: url is {url!r}, must begin with http:// or https://")
        self.url, self.model_id, self.api_key_env = url, model_id, api_key_env
        check_positive("OpenAITranscription", "concurrency", concurrency)
        self.word_timestamps, self.timeout_s, self.retries = word_timestamps, timeout_s, retries
        self.concurrency = concurrency
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
        self._pool = urllib3.PoolManager(retries=retry, timeout=self.timeout_s, maxsize=self.concurrency)

    def teardown(self) -> None:
        if self._pool is not None:
            self._pool.clear()

    def transcribe(
        self, clips: Sequence[Samples], languages: Sequence[str | None]
    ) -> Sequence[Transcription | BadAudio]:
        if len(clips) <= 1 or self.concurrency == 1:
            return [self._asked(clip, language) for clip, language in zip(clips, languages, strict=True)]
        with ThreadPoolExecutor(min(self.concurrency, len(clips))) as threads:
            return list(threads.map(self._asked, clips, languages, timeout=None))

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
