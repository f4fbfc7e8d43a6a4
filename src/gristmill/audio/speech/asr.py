"""Stages that write down what is said in recordings.

ASRStage               with any adapter (`recognisers.py`)
InferenceAsrNemoStage  with a model of NVIDIA NeMo
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gristmill.audio.batch import OFFSET, AudioBatch, BadAudio
from gristmill.audio.decode import Sound
from gristmill.audio.speech.recognisers import ASRAdapter, NeMoASRAdapter, Transcription
from gristmill.audio.transcripts.transcript_flags import nested, values_of
from gristmill.audio.waveforms import WaveformStage, set_aside_row
from gristmill.core.arrow.array_building import make_array
from gristmill.core.stage import Columns, WorkerMetadata

PRED_TEXT = "pred_text"


class ASRStage(WaveformStage):
    """Adds what is said in each recording as `pred_text_key`.

    `adapter` is what recognises it, for example `FasterWhisperASR("models/whisper-base")`. The language of a row is in
    the column `source_lang_key`, else `default_language`; without either the adapter finds it. `extras_key` is a column
    for language and words, with times in seconds of the file. With `skip_if_output_exists`, rows with a text keep it.
    Recordings that an adapter refuses are set aside.
    """

    def __init__(
        self,
        adapter: ASRAdapter,
        source_lang_key: str = "source_lang",
        default_language: str | None = None,
        pred_text_key: str = PRED_TEXT,
        extras_key: str | None = None,
        skip_if_output_exists: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(adapter, ASRAdapter):
            raise TypeError(f"{type(self).__name__}: adapter is {adapter!r}, must be one such as FasterWhisperASR(...)")
        if not pred_text_key or pred_text_key == extras_key:
            raise ValueError(f"{type(self).__name__}: pred_text_key is {pred_text_key!r}: name a column of its own")
        self.adapter, self.source_lang_key, self.default_language = adapter, source_lang_key, default_language
        self.pred_text_key, self.extras_key = pred_text_key, extras_key
        self.skip_if_output_exists = skip_if_output_exists

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.pred_text_key, *([self.extras_key] if self.extras_key else [])]

    def check(self) -> None:
        self.adapter.check()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        super().setup(worker_metadata)
        self.adapter.setup(max(int(self.resources.cpus), 1))

    def teardown(self) -> None:
        self.adapter.teardown()

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        known = values_of(rows, self.pred_text_key) if self.skip_if_output_exists else [None] * rows.num_items
        languages = [_code(value or self.default_language) for value in values_of(rows, self.source_lang_key)]
        asked = [row for row, text in enumerate(known) if not text]
        answers = self.adapter.transcribe(
            [sounds[row].samples[:, 0] for row in asked], [languages[row] for row in asked]
        )
        found: list[Transcription | BadAudio] = [Transcription(str(text)) for text in known]
        for row, answer in zip(asked, answers, strict=True):
            found[row] = answer
            if isinstance(answer, BadAudio):
                set_aside_row(rows, row, answer, self)
        good = [(row, one) for row, one in enumerate(found) if isinstance(one, Transcription)]
        kept = rows if len(good) == len(found) else rows.take([row for row, _ in good])
        kept = kept.with_column(self.pred_text_key, make_array([one.text for _, one in good], pa.string()))
        if self.extras_key is None:
            return kept
        begins = values_of(kept, OFFSET)
        extras = [_extras(one, begin or 0.0) for (_, one), begin in zip(good, begins, strict=True)]
        return kept.with_column(self.extras_key, nested(extras))


def _code(language: Any) -> str | None:
    return str(language).strip().lower() or None if language else None


def _extras(one: Transcription, begin: float) -> dict[str, Any]:
    words = [
        {"start": round(word.start + begin, 3), "end": round(word.end + begin, 3), "word": word.word}
        | ({} if word.probability is None else {"probability": round(word.probability, 3)})
        for word in one.words
    ]
    return {"language": one.language, "words": words}


class InferenceAsrNemoStage(ASRStage):
    """Adds what is said in each recording, recognised with a model of NVIDIA NeMo, which must be installed."""

    def __init__(self, model_name: str, pred_text_key: str = PRED_TEXT) -> None:
        super().__init__(NeMoASRAdapter(model_name), pred_text_key=pred_text_key)
        self.model_name = model_name
