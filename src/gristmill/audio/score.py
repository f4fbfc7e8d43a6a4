"""Stages that run filters on recordings.

    AudioScoreFilter   scores recordings and drops some by their score
    AudioScore         only adds the score as a column

Filters of one stage, and stages that share a worker, share what was measured. Long recordings are measured window by
window, so memory stays flat. A recording that cannot be decoded goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from gristmill.audio.batch import AudioBatch, BadAudio
from gristmill.audio.decode import AudioHeader, LongAudio, Sound, open_sound
from gristmill.audio.filters import HEADER, LENGTH, LOUDNESS, AudioFilter
from gristmill.audio.sound.loudness import loudness
from gristmill.audio.sound.measures import Measures
from gristmill.audio.speech.speech_filters import HEARD, SpeechModelFilter
from gristmill.audio.transcripts.transcript_filters import TranscriptFilter
from gristmill.audio.waveforms import (
    STREAMED_BYTES,
    column_of,
    recording_name,
    row_of,
    sounds,
    sources_of,
    streamed,
)
from gristmill.core.stage import Columns
from gristmill.samples.batch import SampleBatch
from gristmill.samples.decode import Decoder, share_decoded
from gristmill.samples.filters import SampleFilter
from gristmill.samples.score import SampleScore, SampleScoreFilter, ScoresSamples


def _header(source: Any, _offset: float | None, _duration: float | None) -> AudioHeader:
    """The header of the recording of a row. Raises BadAudio."""
    with open_sound(source) as sound:
        return sound.header


def _seconds(source: Any, offset: float | None, duration: float | None) -> float:
    """The length of a segment or, by its header, of a recording; if the header does not say, all is decoded."""
    with open_sound(source) as sound:
        whole = sound.header.seconds
        if whole is None:
            whole = sum(map(len, sound.blocks(0, None))) / sound.header.rate
    if not whole:
        raise BadAudio("no samples")
    if offset is None:
        return whole
    if offset >= whole:
        raise BadAudio(f"the segment begins at {offset:g} s, and the recording ends at {whole:.3f} s")
    return whole - offset if duration is None else duration


def measured_rows(batch: AudioBatch, kind: str) -> list[Any]:
    """What filters that look at `kind` are given for each row, or a BadAudio. It stays with the row."""
    cells = share_decoded(batch)
    missing = [row for row, cell in enumerate(cells) if kind not in cell]
    if missing:
        asked = batch if len(missing) == len(cells) else batch.take(missing)
        if kind in (HEADER, LENGTH):
            reads = _header if kind == HEADER else _seconds
            found: Iterable[Any] = (row_of(source, reads) for source in sources_of(asked))
        else:
            found = _heard(asked, loudness if kind == LOUDNESS else Measures.of)
        for row, measured in zip(missing, found, strict=True):
            cells[row][kind] = measured
    return [cell[kind] for cell in cells]


def _heard(batch: AudioBatch, measure: Callable[..., Any]) -> Iterator[Any]:
    """What is measured of each row, from its samples."""

    def in_windows(source: Any, offset: float | None, duration: float | None) -> Any:
        with open_sound(source) as opened:
            return measure(opened.windows(offset, duration), opened.header.rate, opened.header.channels)

    sources: list[Any] = []
    for row, sound in enumerate(sounds(batch, max_bytes=STREAMED_BYTES)):
        if isinstance(sound, Sound):
            yield measure([sound.samples], sound.rate, sound.samples.shape[1])
        elif isinstance(sound, LongAudio):
            sources = sources or sources_of(batch)
            yield row_of(sources[row], in_windows)
        else:
            yield sound


def heard_rows(batch: AudioBatch, tool: SpeechModelFilter) -> list[Any]:
    """What a model says to each row, or a BadAudio. It stays with the row."""
    cells, key = share_decoded(batch), (HEARD, tool.heard_as())
    missing = [row for row, cell in enumerate(cells) if key not in cell]
    if missing:
        asked = batch if len(missing) == len(cells) else batch.take(missing)
        sources: list[Any] = []
        given = sounds(asked, tool.rate, mono=True, max_bytes=STREAMED_BYTES)
        for index, (row, sound) in enumerate(zip(missing, given, strict=True)):
            if isinstance(sound, LongAudio):
                sources = sources or sources_of(asked)
                cells[row][key] = row_of(sources[index], partial(_heard_blocks, tool))
            else:
                cells[row][key] = tool.hear(sound.samples[:, 0]) if isinstance(sound, Sound) else sound
    return [cell[key] for cell in cells]


def _heard_blocks(tool: SpeechModelFilter, source: Any, offset: float | None, duration: float | None) -> Any:
    return tool.hear_blocks(block[:, 0] for block in streamed(source, offset, duration, tool.rate, mono=True))


def _checked(batch: AudioBatch, rows: list[Any]) -> list[Any]:
    """What is known of rows; raises BadAudio for the first that cannot be decoded."""
    bad = next((index for index, row in enumerate(rows) if isinstance(row, BadAudio)), None)
    if bad is not None:
        raise BadAudio(f"{recording_name(batch, bad)}: {rows[bad]}")
    return rows


def check_models(tools: Iterable[Any]) -> None:
    """Raise if a model of one of these filters cannot run here."""
    for tool in tools:
        if isinstance(tool, SpeechModelFilter):
            tool.check()


class _ScoresAudio(ScoresSamples):
    kind = AudioBatch
    filter_class = AudioFilter

    def decoder(self, looks_at: str) -> Decoder:
        raise AssertionError(f"{looks_at} of recordings is not made of one column")

    def filter_inputs(self, batch: SampleBatch, looks_at: str) -> Sequence[Any]:
        """As in the base class: a row that cannot be decoded raises, until the worker has found it."""
        assert isinstance(batch, AudioBatch)
        return _checked(batch, measured_rows(batch, looks_at))

    def score_column(self, tool: SampleFilter, batch: SampleBatch) -> pa.Array:
        """As in the base class; filters of transcripts are given columns, those of speech what a model says."""
        assert isinstance(batch, AudioBatch)
        if isinstance(tool, SpeechModelFilter) and batch.num_items:
            return tool.score_batch(_checked(batch, heard_rows(batch, tool)))
        if not isinstance(tool, TranscriptFilter):
            return super().score_column(tool, batch)
        return tool.score_columns(*(column_of(tool.name, batch, name) for name in tool.columns_read()))


def columns_read(tools: Iterable[Any]) -> list[str]:
    """The columns that filters read, each once."""
    return list(
        dict.fromkeys(name for tool in tools if isinstance(tool, TranscriptFilter) for name in tool.columns_read())
    )


class AudioScoreFilter(_ScoresAudio, SampleScoreFilter[AudioBatch]):
    """Scores recordings and keeps those that the filter keeps, or with `invert` those that it does not.

    `filter_obj` is a filter, or a list that is run in order: a recording that one drops is not scored by the next.
    `score_field` is the column for the scores, or a list of one for each filter; None: they are not written.
    """

    max_retries = 0
    """What cannot be decoded once cannot be decoded."""

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], columns_read(step.tool for step in self._steps)

    def check(self) -> None:
        check_models(step.tool for step in self._steps)


class AudioScore(_ScoresAudio, SampleScore[AudioBatch]):
    """Adds a column with the score of each recording, and drops none."""

    max_retries = 0

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], columns_read(tool for tool, _ in self._steps)

    def check(self) -> None:
        check_models(tool for tool, _ in self._steps)
