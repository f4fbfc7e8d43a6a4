"""Stages under the names of NeMo Curator that write down what is said with the times of words, as `alignment`.

NeMoASRAlignerStage      of each recording, of any length
SplitASRAlignJoinStage   the same: recordings need not be split here
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.audio.batch import TEXT, AudioBatch
from gristmill.audio.speech.asr import ASRStage, recogniser_of
from gristmill.audio.transcripts.transcript_flags import nested, values_of
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage

PARAKEET = "nvidia/parakeet-tdt_ctc-1.1b"
_EXTRAS = "__alignment_extras"


class NeMoASRAlignerStage(ASRStage):
    """Adds what is said as `text_key`, and as `alignment` the list of words with start and end, in seconds of the file.

    `model_path`, or `model_name`, is the directory of a Whisper model for CTranslate2, which runs on the CPU, or a
    model of NVIDIA NeMo, which must be installed and gives no times of words here.
    """

    def __init__(
        self,
        model_name: str = PARAKEET,
        model_path: str | None = None,
        text_key: str = TEXT,
        alignment_key: str = "alignment",
        default_language: str | None = None,
        transcribe_batch_size: int = 32,
    ) -> None:
        super().__init__(
            recogniser_of(model_path or model_name, word_timestamps=True),
            pred_text_key=text_key,
            extras_key=_EXTRAS,
            default_language=default_language,
            batch_size=transcribe_batch_size,
        )
        self.model_name, self.model_path = model_name, model_path
        self.text_key, self.alignment_key, self.transcribe_batch_size = text_key, alignment_key, transcribe_batch_size

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_key, self.alignment_key]

    def _with_answers(self, rows: AudioBatch, found: Any) -> AudioBatch:
        rows = super()._with_answers(rows, found)
        words = [one and one["words"] for one in values_of(rows, _EXTRAS)]
        rows = rows.with_column(self.alignment_key, nested(words))
        return rows.with_data(rows.data.drop_columns([_EXTRAS]))


class SplitASRAlignJoinStage(CompositeStage[AudioBatch, AudioBatch]):
    """`NeMoASRAlignerStage` for long recordings: they are read and heard in parts, so nothing is split and joined, and
    `suggested_max_len` and `min_len` change nothing."""

    folds = True

    def __init__(
        self,
        suggested_max_len: float = 3600.0,
        min_len: float = 1.0,
        model_name: str = PARAKEET,
        model_path: str | None = None,
        text_key: str = TEXT,
        transcribe_batch_size: int = 32,
    ) -> None:
        self.suggested_max_len, self.min_len = suggested_max_len, min_len
        self.model_name, self.model_path = model_name, model_path
        self.text_key, self.transcribe_batch_size = text_key, transcribe_batch_size

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        aligner = NeMoASRAlignerStage(
            self.model_name, self.model_path, self.text_key, transcribe_batch_size=self.transcribe_batch_size
        )
        return [aligner]
