"""Stages that compare transcripts, and add what they found as columns.

GetPairwiseWerStage         the word error rate of each row
ComputeWERStage             word, character and edge error rates, of rows or of their segments
SelectBestPredictionStage   one transcript of several
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import DURATION, TEXT, AudioBatch
from gristmill.audio.transcripts.error_rates import (
    WITHOUT_SPACES,
    ErrorCounts,
    error_counts,
    one_spaced,
    plain_words,
    word_error_rates,
)
from gristmill.audio.transcripts.transcript_filters import PRED_TEXT
from gristmill.audio.transcripts.transcript_flags import (
    HALLUCINATION,
    NOTES,
    SKIP_ME,
    nested,
    noted,
    text_column,
    text_values,
    values_of,
)
from gristmill.core.stage import Columns, ProcessingStage

METRICS, SEGMENTS, SKIP_REASON = "metrics", "segments", "metric_skip_reason"
_RATES, _PUNCTUATED = ("char_rate", "word_rate", "wer", "cer", "start_cer", "end_cer"), ("wer_pnc", "cer_pnc")


class GetPairwiseWerStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Adds the word error rate of `pred_text_key` against `text_key`, in percent, to two decimals.

    Words are compared as they are. Null counts as blank; against a blank text a blank one has 0, and any other 100.
    """

    def __init__(self, text_key: str = TEXT, pred_text_key: str = PRED_TEXT, wer_key: str = "wer_pct") -> None:
        super().__init__()
        self.text_key, self.pred_text_key, self.wer_key = text_key, pred_text_key, wer_key

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_key, self.pred_text_key]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.wer_key]

    def process(self, task: AudioBatch) -> AudioBatch:
        texts = (text_column(self.name, task, name) for name in (self.text_key, self.pred_text_key))
        return task.with_column(self.wer_key, pa.array(np.round(word_error_rates(*texts), 2)))


class ComputeWERStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Adds `metrics`: error rates of words, characters and edges, and how much is said in a second.

    Edges are the first and last `edge_length` characters. `compute_pnc_wer` adds rates with case and punctuation.
    Rates are shares of the reference. Rows with a list in `segments_key` get the metrics in each segment instead. A
    blank reference has null rates, and `metric_skip_reason`. `normalizer` is called with each text before, for numbers
    and abbreviations, in pieces of `num_words_threshold` words. In languages without spaces words are characters.
    """

    def __init__(
        self,
        language: str = "en",
        hypothesis_text_key: str = TEXT,
        reference_text_key: str = "text_ref",
        num_words_threshold: int = 200,
        compute_pnc_wer: bool = False,
        edge_length: int = 12,
        segments_key: str = SEGMENTS,
        normalizer: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("edge_length", edge_length), ("num_words_threshold", num_words_threshold)):
            if value < 1:
                raise ValueError(f"ComputeWERStage: {name} is {value!r}, must be 1 or more")
        self.language, self.num_words_threshold, self.normalizer = language, num_words_threshold, normalizer
        self.hypothesis_text_key, self.reference_text_key = hypothesis_text_key, reference_text_key
        self.compute_pnc_wer, self.edge_length, self.segments_key = compute_pnc_wer, edge_length, segments_key

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [METRICS]

    def process(self, task: AudioBatch) -> AudioBatch:
        if self.segments_key in task.get_columns():
            rows = values_of(task, self.segments_key)
            found = [None if row is None else [self._measured_segment(one) for one in row] for row in rows]
            return task.with_column(self.segments_key, nested(found))
        names = (self.hypothesis_text_key, self.reference_text_key)
        texts = [text_values(self.name, task, name) for name in names]
        seconds = values_of(task, DURATION)
        metrics = [self._metrics(*given) for given in zip(*texts, seconds, strict=True)]
        return task.with_column(METRICS, nested(metrics))

    def _measured_segment(self, segment: Mapping[str, Any] | None) -> Any:
        if segment is None:
            return None
        hypothesis, reference = segment.get(self.hypothesis_text_key), segment.get(self.reference_text_key)
        start, end = segment.get("start") or 0.0, segment.get("end") or segment.get(DURATION) or 0.0
        return {**segment, METRICS: self._metrics(hypothesis, reference, end - start)}

    def _metrics(self, hypothesis: str | None, reference: str | None, seconds: float | None) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys((*_RATES, *(_PUNCTUATED if self.compute_pnc_wer else ()), SKIP_REASON))
        said, expected = self._normalised(hypothesis), self._normalised(reference)
        plain, wanted = plain_words(said), plain_words(expected)
        if not wanted:
            return {**found, SKIP_REASON: "empty_reference"}
        if seconds and seconds > 0:
            text = hypothesis or ""
            found["char_rate"] = round(len("".join(text.split())) / seconds, 2)
            found["word_rate"] = round(len(text.split()) / seconds, 2)
        edge = self.edge_length
        found["wer"] = _counted("wer", self._words(wanted), self._words(plain))
        found["cer"] = _counted("cer", wanted, plain)
        found["start_cer"] = _counted("cer", wanted[:edge], plain[:edge])
        found["end_cer"] = _counted("cer", wanted[-edge:], plain[-edge:])
        if self.compute_pnc_wer:
            expected, said = one_spaced(expected), one_spaced(said)
            found["wer_pnc"] = _counted("wer", self._words(expected), self._words(said))
            found["cer_pnc"] = _counted("cer", expected, said)
        return found

    def _words(self, text: str) -> Sequence[str]:
        return "".join(text.split()) if self.language.lower() in WITHOUT_SPACES else text.split()

    def _normalised(self, text: str | None) -> str:
        words = (text or "").split()
        if self.normalizer is None:
            return " ".join(words)
        size = self.num_words_threshold
        return " ".join(self.normalizer(" ".join(words[at : at + size])) for at in range(0, len(words), size))


def _counted(rate: str, reference: Sequence[Any], other: Sequence[Any]) -> dict[str, Any]:
    counts: ErrorCounts = error_counts(reference, other)
    shares = {"ins_rate": counts.inserted, "del_rate": counts.deleted, "sub_rate": counts.substituted}
    return {rate: counts.rate, "tokens": counts.tokens, **shares}


_RECOVERED = re.compile("recovered", re.IGNORECASE)


class SelectBestPredictionStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Chooses one transcript: that of the first model, or that of the second, or the reference.

    In this order: with `force_reference` the reference; the second model's, if a stage noted that it recovered the
    row; with `use_reference_on_hallucination` the reference, where the row is flagged as made up; the first model's,
    without the flag, where the two models agree in `min_agreement_pct` percent of the words; else the first model's.
    Recordings shorter than `short_audio_threshold` get the reference if `primary_model_type` is "qwen_omni", which
    makes texts up for them.
    """

    def __init__(
        self,
        primary_text_key: str = "primary_model_prediction",
        fallback_text_key: str = "fallback_model_prediction",
        asr_text_key: str | None = None,
        *,
        output_key: str = "best_prediction",
        source_key: str = "best_prediction_source",
        notes_key: str = NOTES,
        skip_me_key: str = SKIP_ME,
        duration_key: str = DURATION,
        min_agreement_pct: float = 80.0,
        agreement_wer_key: str = "primary_fallback_agreement_wer",
        primary_source_label: str = "primary",
        fallback_source_label: str = "fallback",
        reference_text_key: str | None = None,
        use_reference_on_hallucination: bool = False,
        force_reference: bool = False,
        use_ground_truth_for_short_audio: bool = True,
        short_audio_threshold: float = 1.0,
        primary_model_type: str | None = None,
        reference_source_label: str = "reference",
        ground_truth_source_label: str = "ground_truth",
    ) -> None:
        super().__init__()
        if (force_reference or use_reference_on_hallucination) and not reference_text_key:
            raise ValueError(
                "SelectBestPredictionStage: reference_text_key is missing: name the column of the reference"
            )
        self.primary_text_key, self.fallback_text_key, self.asr_text_key = (
            primary_text_key,
            fallback_text_key,
            asr_text_key,
        )
        self.output_key, self.source_key, self.notes_key = output_key, source_key, notes_key
        self.skip_me_key, self.duration_key = skip_me_key, duration_key
        self.min_agreement_pct, self.agreement_wer_key = min_agreement_pct, agreement_wer_key
        self.primary_source_label, self.fallback_source_label = primary_source_label, fallback_source_label
        self.reference_text_key = reference_text_key
        self.use_reference_on_hallucination = use_reference_on_hallucination
        self.force_reference = force_reference
        self.use_ground_truth_for_short_audio = use_ground_truth_for_short_audio
        self.short_audio_threshold, self.primary_model_type = short_audio_threshold, primary_model_type
        self.reference_source_label = reference_source_label
        self.ground_truth_source_label = ground_truth_source_label

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.primary_text_key, *([self.reference_text_key] if self.reference_text_key else [])]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.output_key, self.source_key, self.skip_me_key, self.agreement_wer_key, self.notes_key]

    def process(self, task: AudioBatch) -> AudioBatch:
        primary = [text or "" for text in text_values(self.name, task, self.primary_text_key)]
        fallback = [text or "" for text in values_of(task, self.asr_text_key or self.fallback_text_key)]
        references = [(text or "").strip() for text in values_of(task, self.reference_text_key)]
        flags = [flag or "" for flag in values_of(task, self.skip_me_key)]
        notes = values_of(task, self.notes_key)
        rates = word_error_rates(primary, fallback)
        chosen = []
        for row, seconds in enumerate(values_of(task, self.duration_key)):
            texts = (primary[row], fallback[row], references[row])
            chosen.append(self._choice(texts, flags[row], notes[row] or {}, seconds, float(rates[row])))
        texts_, sources, new_flags, agreement, remarks = zip(*chosen, strict=True) if chosen else ((),) * 5
        task = task.with_column(self.output_key, pa.array(texts_, pa.string()))
        task = task.with_column(self.source_key, pa.array(sources, pa.string()))
        task = task.with_column(self.skip_me_key, pa.array(new_flags, pa.string()))
        task = task.with_column(self.agreement_wer_key, pa.array(agreement, pa.float64()))
        return task.with_column(self.notes_key, noted(notes, self.name, remarks))

    def _choice(
        self, texts: tuple[str, str, str], flag: str, notes: Mapping[str, Any], seconds: float | None, wer: float
    ) -> tuple[str, str, str, float | None, str]:
        """Text, source, flag, rate and remark for one row."""
        primary, fallback, reference = texts
        truth, own = self.ground_truth_source_label, self.primary_source_label
        hallucinated = flag.startswith(HALLUCINATION)
        short = seconds is not None and 0 < seconds < self.short_audio_threshold
        makes_up_short = self.use_ground_truth_for_short_audio and self.primary_model_type == "qwen_omni"
        agreement = wer if hallucinated and primary and fallback else None
        chosen: tuple[str, str, str, float | None, str] = (primary, own, flag, agreement, f"used {own}")
        if reference and short and makes_up_short:
            chosen = reference, truth, "", None, f"reference: shorter than {self.short_audio_threshold} s"
        elif self.force_reference:
            chosen = reference, truth, "", None, "forced:ground_truth"
        elif fallback and any(_RECOVERED.search(str(note)) for note in notes.values()):
            chosen = fallback, self.fallback_source_label, flag, None, f"used {self.fallback_source_label}"
        elif hallucinated and self.use_reference_on_hallucination and reference:
            chosen = reference, self.reference_source_label, "", None, "recovered:reference_text"
        elif agreement is not None and agreement <= 100.0 - self.min_agreement_pct:
            chosen = primary, own, "", agreement, f"recovered:cross_model_agreement (wer={wer:.1f}%)"
        return chosen
