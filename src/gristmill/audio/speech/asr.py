"""Stages that write down what is said in recordings.

    ASRStage                    with any adapter (`recognisers.py`)
    InferenceAsrNemoStage       with a model of NVIDIA NeMo, or a local Whisper
    AudioLanguageStage          which language is spoken

Recordings too long to be decoded as a whole are read window by window, cut where it is quiet, and heard in parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import AUDIO, AUDIO_FILEPATH, OFFSET, AudioBatch, BadAudio
from gristmill.audio.decode import Sound
from gristmill.audio.speech.package_weights import RATE
from gristmill.audio.speech.recognisers import ASRAdapter, NeMoASRAdapter, Transcription, adapter_of
from gristmill.audio.speech.whisper import FasterWhisperASR
from gristmill.audio.split_at_silence import parts_at_silence
from gristmill.audio.transcripts.transcript_filters import PRED_TEXT
from gristmill.audio.transcripts.transcript_flags import nested, values_of
from gristmill.audio.waveforms import WaveformStage, set_aside_row
from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import BadRecordError
from gristmill.core.stage import Columns, WorkerMetadata
from gristmill.samples.argument_checks import check_positive

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

_PART_SECONDS = 600.0
_OWN = "__own_"
"""How the columns are called that are kept while another recording of a row is heard."""


class ASRStage(WaveformStage):
    """Adds what is said in each recording as `pred_text_key`.

    `adapter_target` is what recognises it, for example `FasterWhisperASR("models/whisper-base")`, or the name of such a
    class, which then gets `model_id` and `adapter_kwargs`. It is given clips by length, `batch_size` at once. If rows
    have the column `audio_filepath_key`, the recording named there is heard, and otherwise that of the row.

    The language of a row is in the column `source_lang_key`, else `default_language`; without either the adapter finds
    it. Rows in a language that is none of `supported_language_codes` are not heard: their text is null. `extras_key` is
    a column for language and words, with times in seconds of the file. With `skip_if_output_exists`, rows with a text
    keep it. Recordings that an adapter refuses are set aside, or with `fail_on_audio_error` fail the stage.

    `waveform_key`, `sample_rate_key` and `keep_waveform` change nothing: what was decoded is known, and never stored.
    """

    streams: ClassVar[bool] = True

    def __init__(
        self,
        adapter_target: ASRAdapter | type[ASRAdapter] | str,
        model_id: str | None = None,
        *,
        audio_filepath_key: str = "resampled_audio_filepath",
        waveform_key: str | None = None,
        sample_rate_key: str = "sampling_rate",
        target_sample_rate: int = RATE,
        keep_waveform: bool = False,
        source_lang_key: str = "source_lang",
        default_language: str | None = None,
        supported_language_codes: Sequence[str] | None = None,
        pred_text_key: str = PRED_TEXT,
        extras_key: str | None = None,
        skip_if_output_exists: bool = False,
        fail_on_audio_error: bool = False,
        adapter_kwargs: Mapping[str, Any] | None = None,
        batch_size: int = 32,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.adapter = adapter_of(name, adapter_target, model_id, adapter_kwargs or {})
        if not pred_text_key or pred_text_key == extras_key:
            raise ValueError(f"{name}: pred_text_key is {pred_text_key!r}: name a column of its own")
        if target_sample_rate != RATE:
            raise ValueError(f"{name}: target_sample_rate is {target_sample_rate}: adapters hear {RATE:,} per second")
        check_positive(name, "batch_size", batch_size)
        self.audio_filepath_key, self.waveform_key, self.sample_rate_key = (
            audio_filepath_key,
            waveform_key,
            sample_rate_key,
        )
        self.keep_waveform, self.source_lang_key, self.default_language = (
            keep_waveform,
            source_lang_key,
            default_language,
        )
        self.supported_language_codes = (
            None if supported_language_codes is None else [code.strip().lower() for code in supported_language_codes]
        )
        self.pred_text_key, self.extras_key = pred_text_key, extras_key
        self.skip_if_output_exists, self.fail_on_audio_error = skip_if_output_exists, fail_on_audio_error
        self.clips_at_once = batch_size

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.pred_text_key, *([self.extras_key] if self.extras_key else [])]

    def check(self) -> None:
        self.adapter.check()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        super().setup(worker_metadata)
        self.adapter.setup(max(int(self.resources.cpus), 1))

    def teardown(self) -> None:
        self.adapter.teardown()

    def process(self, task: AudioBatch) -> Iterator[AudioBatch]:
        if self.audio_filepath_key not in task.get_columns() or self.audio_filepath_key == AUDIO_FILEPATH:
            yield from super().process(task)
            return
        for batch in super().process(_other_recording(task, self.audio_filepath_key)):
            yield _own_recording(batch)

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        clips = [sound.samples[:, 0] for sound in sounds]
        found: list[Transcription | BadAudio | None] = [None] * len(clips)
        languages = self._languages(rows)
        asked = self._asked(rows, found, languages)
        order = sorted(asked, key=lambda row: (len(clips[row]), row))
        for start in range(0, len(order), self.clips_at_once):
            some = order[start : start + self.clips_at_once]
            answers = self.adapter.transcribe([clips[row] for row in some], [languages[row] for row in some])
            for row, answer in zip(some, answers, strict=True):
                found[row] = answer
        return self._with_answers(rows, found)

    def process_stream(self, rows: AudioBatch, blocks: Iterator[Samples]) -> AudioBatch:
        found: list[Transcription | BadAudio | None] = [None]
        languages = self._languages(rows)
        if self._asked(rows, found, languages):
            found = [self._heard_in_parts(blocks, languages[0])]
        return self._with_answers(rows, found)

    def _languages(self, rows: AudioBatch) -> list[str | None]:
        return [_code(value or self.default_language) for value in values_of(rows, self.source_lang_key)]

    def _asked(
        self, rows: AudioBatch, found: list[Transcription | BadAudio | None], languages: Sequence[str | None]
    ) -> list[int]:
        """The rows that are to be heard; for the others, what is known goes to `found`."""
        known = values_of(rows, self.pred_text_key) if self.skip_if_output_exists else [None] * rows.num_items
        asked = []
        for row, (text, language) in enumerate(zip(known, languages, strict=True)):
            if text:
                found[row] = Transcription(str(text))
            elif self.supported_language_codes is None or language in self.supported_language_codes:
                asked.append(row)
        return asked

    def _heard_in_parts(self, blocks: Iterator[Samples], language: str | None) -> Transcription | BadAudio:
        texts, words, start = [], [], 0.0
        for part in parts_at_silence(blocks, RATE, _PART_SECONDS):
            [one] = self.adapter.transcribe([part], [language])
            if isinstance(one, BadAudio):
                return one
            texts.append(one.text)
            words += [word._replace(start=word.start + start, end=word.end + start) for word in one.words]
            language, start = language or one.language, start + len(part) / RATE
        return Transcription(" ".join(text for text in texts if text), language, words)

    def _with_answers(self, rows: AudioBatch, found: Sequence[Transcription | BadAudio | None]) -> AudioBatch:
        good = []
        for row, one in enumerate(found):
            if not isinstance(one, BadAudio):
                good.append((row, one))
            elif self.fail_on_audio_error:
                raise BadRecordError(f"fail_on_audio_error: {one}")
            else:
                set_aside_row(rows, row, one, self)
        kept = rows if len(good) == len(found) else rows.take([row for row, _ in good])
        texts = make_array([None if one is None else one.text for _, one in good], pa.string())
        kept = kept.with_column(self.pred_text_key, texts)
        if self.extras_key is None:
            return kept
        begins = values_of(kept, OFFSET)
        extras = [one and _extras(one, begin or 0.0) for (_, one), begin in zip(good, begins, strict=True)]
        return kept.with_column(self.extras_key, nested(extras))


def _other_recording(batch: AudioBatch, key: str) -> AudioBatch:
    """The rows with the recording that a column names in place of their own."""
    table = batch.data
    paths = table.column(key)
    names = [f"{_OWN}{name}" if name in (AUDIO, AUDIO_FILEPATH, OFFSET) else name for name in table.column_names]
    table = table.rename_columns(names).append_column(AUDIO_FILEPATH, paths)
    return AudioBatch(table, dataset_name=batch.dataset_name, metadata=batch.metadata)


def _own_recording(batch: AudioBatch) -> AudioBatch:
    table = batch.data.drop_columns([AUDIO_FILEPATH])
    table = table.rename_columns([name.removeprefix(_OWN) for name in table.column_names])
    made = AudioBatch(table, dataset_name=batch.dataset_name, metadata=batch.metadata)
    made.lineage = batch.lineage
    return made


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
    """Adds what is said in each recording, recognised with a model of NVIDIA NeMo, which must be installed.

    If `model_name` is the directory of a Whisper model, faster-whisper runs that instead, on the CPU.
    """

    def __init__(
        self, model_name: str, filepath_key: str = AUDIO_FILEPATH, pred_text_key: str = PRED_TEXT, batch_size: int = 16
    ) -> None:
        super().__init__(
            recogniser_of(model_name),
            audio_filepath_key=filepath_key,
            pred_text_key=pred_text_key,
            batch_size=batch_size,
        )
        self.model_name, self.filepath_key = model_name, filepath_key


def recogniser_of(model_name: str, word_timestamps: bool = False) -> ASRAdapter:
    """What runs a model: faster-whisper the directory of one for CTranslate2, NeMo any other."""
    if (Path(model_name) / "model.bin").is_file():
        return FasterWhisperASR(model_name, word_timestamps=word_timestamps)
    return NeMoASRAdapter(model_name)


class AudioLanguageStage(WaveformStage):
    """Adds which language is spoken, as `language_key`, and how probable it is, as `probability_key`.

    `model_id` is the directory of a Whisper model of several languages. It hears the first 30 seconds.
    """

    streams: ClassVar[bool] = True

    def __init__(
        self, model_id: str, language_key: str = "language", probability_key: str = "language_probability"
    ) -> None:
        super().__init__()
        self.model_id, self.language_key, self.probability_key = model_id, language_key, probability_key
        self._whisper = FasterWhisperASR(model_id)

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.language_key, self.probability_key]

    def check(self) -> None:
        self._whisper.check()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        super().setup(worker_metadata)
        self._whisper.setup(max(int(self.resources.cpus), 1))

    def teardown(self) -> None:
        self._whisper.teardown()

    def process_waveforms(self, rows: AudioBatch, waveforms: Sequence[Samples]) -> AudioBatch:
        return self._with(rows, self._whisper.languages(waveforms))

    def process_stream(self, rows: AudioBatch, blocks: Iterator[Samples]) -> AudioBatch:
        heard, seconds = [], 0.0
        for block in blocks:
            heard.append(block[:, 0])
            seconds += len(block) / RATE
            if seconds >= _PART_SECONDS:
                break
        return self._with(rows, self._whisper.languages([np.concatenate(heard)]))

    def _with(self, rows: AudioBatch, found: Sequence[Any]) -> AudioBatch:
        rows = rows.with_column(self.language_key, make_array([one.language for one in found], pa.string()))
        chances = make_array([round(one.probability, 4) for one in found], pa.float64())
        return rows.with_column(self.probability_key, chances)
