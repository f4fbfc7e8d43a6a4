"""Clips: spans of films as rows. Nothing is cut or encoded here, and what was measured of a film stays with its clips.

`clip_rows` makes rows of clips from rows of films. `FixedStrideExtractorStage` does so every few seconds; stages that
look for shots (`shots/`) do so where the picture changes.

A clip is named by a UUID made of the path of its film and the numbers of its first and last frame at the film's average
rate, so that it has the same name in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.samples.argument_checks import check_count, check_not_negative, check_number
from gristmill.video.batch import CLIP_ID, END, END_PTS, SOURCE, START, START_PTS, VIDEO_ID, VideoBatch
from gristmill.video.frame_stage import good_rows
from gristmill.video.one_pass import Span, films_of, header_rows, sources_of, spans_of
from gristmill.video.stream_columns import DURATION, NUM_FRAMES, SPAN_TYPES, STREAM_TYPES
from gristmill.video.stream_info import StreamInfo

FILM_DAMAGE = "film_damage"
"""Column: the first places of the film that could not be decoded, and why; null if there are none, or it was not looked
for. A clip with such a place in it goes to quarantine."""


CHUNK_SECONDS = 120.0


class ClipSpan(NamedTuple):
    """A clip of the film in a row."""

    row: int
    start_pts: int
    end_pts: int


def clip_rows(
    films: VideoBatch, infos: Sequence[StreamInfo], clips: Sequence[ClipSpan], decoded: bool = False
) -> VideoBatch:
    """The rows of clips of the films, in the order of `clips`. `infos` are those of the films. If the films were
    `decoded` by the stage that found the clips, their frames are counted."""
    films_of(films)  # the measurements go along
    made = films.take([clip.row for clip in clips])
    times = [(infos[clip.row], clip) for clip in clips]
    names = _film_names(films)
    values: dict[str, list[Any]] = {
        START_PTS: [clip.start_pts for clip in clips],
        END_PTS: [clip.end_pts for clip in clips],
        START: [info.seconds(clip.start_pts) for info, clip in times],
        END: [info.seconds(clip.end_pts) for info, clip in times],
        CLIP_ID: [clip_id(names[clip.row], info, (clip.start_pts, clip.end_pts)) for info, clip in times],
    }
    values[DURATION] = [end - start for start, end in zip(values[START], values[END], strict=True)]
    for name, column in values.items():
        made = made.with_column(name, make_array(column, SPAN_TYPES.get(name) or STREAM_TYPES[name]))
    spans = zip(films_of(made), spans_of(made), strict=True)
    counted = [film.times(span) if decoded else None for film, span in spans]
    counts = [None if pts is None else len(pts) for pts in counted]
    made = made.with_column(NUM_FRAMES, make_array(counts, STREAM_TYPES[NUM_FRAMES]))
    notes = [film.damage_note() if decoded else None for film in films_of(made)]
    return made.with_column(FILM_DAMAGE, make_array(notes, pa.string()))


def clip_id(film: str, info: StreamInfo, span: Span) -> str:
    """The name of a clip."""
    rate = float(info.fps or 0) or float(1 / info.time_base)
    first, last = (math.floor(info.seconds(pts) * rate + 1e-6) for pts in span)
    return str(uuid5(NAMESPACE_URL, f"{film}_{first}_{last}"))


def _film_names(films: VideoBatch) -> list[str]:
    """A name for each film that does not depend on how the input is cut into batches."""
    names = films.get_columns()
    ids = films.data.column(VIDEO_ID).to_pylist() if VIDEO_ID in names else [None] * films.num_items
    files = films.data.column(SOURCE).to_pylist() if SOURCE in names else [None] * films.num_items
    whole = [isinstance(where.source, str) and where.byte_range is None for where in sources_of(films)]
    rows = zip(files, ids, whole, strict=True)
    return [str(file) if alone else f"{file}/{video}" for file, video, alone in rows]


class FixedStrideExtractorStage(ProcessingStage[VideoBatch, VideoBatch]):
    """Cuts each film into clips of `clip_len_s` seconds, one every `clip_stride_s`. A last one that is shorter than
    `min_clip_length_s` is left out. `limit_clips` is the largest number of clips of a film; 0 or less: no limit.

    Nothing is decoded: a clip is a span of its film, in exact time stamps.
    """

    takes_empty = True
    max_retries = 0

    def __init__(
        self,
        clip_len_s: float = 10.0,
        clip_stride_s: float = 10.0,
        min_clip_length_s: float = 2.0,
        limit_clips: int = 0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for parameter, value in (("clip_len_s", clip_len_s), ("clip_stride_s", clip_stride_s)):
            check_number(name, parameter, value)
            if value <= 0:
                raise ValueError(f"{name}: {parameter} is {value!r}, must be a number of seconds above 0")
        check_not_negative(name, "min_clip_length_s", min_clip_length_s)
        check_count(name, "limit_clips", limit_clips, least=-1)
        self.clip_len_s, self.clip_stride_s = clip_len_s, clip_stride_s
        self.min_clip_length_s, self.limit_clips = min_clip_length_s, limit_clips

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [CLIP_ID, START, END, START_PTS, END_PTS, DURATION]

    def process(self, task: VideoBatch) -> Iterator[VideoBatch]:
        """Clips of about `CHUNK_SECONDS` at a time: what is decoded of a film is then little, however long it is."""
        films, measured = good_rows(task, header_rows(task), self)
        clips = [
            ClipSpan(row, *span)
            for row, film in enumerate(measured)
            for span in self._spans(film.info, film.span, film.seconds)
        ]
        infos = [film.info for film in measured]
        per_chunk = max(int(CHUNK_SECONDS / self.clip_len_s), 1)
        yield clip_rows(films, infos, clips[:per_chunk])
        for start in range(per_chunk, len(clips), per_chunk):
            yield clip_rows(films, infos, clips[start : start + per_chunk])

    def _spans(self, info: StreamInfo, within: Span | None, seconds: float | None) -> list[Span]:
        """The spans of the clips of a film, or of a clip that is cut once more."""
        if seconds is None:
            return []
        begin = 0.0 if within is None else info.seconds(within[0])
        spans: list[Span] = []
        count = 0
        while (start := count * self.clip_stride_s) < seconds and not 0 < self.limit_clips <= len(spans):
            end = min(start + self.clip_len_s, seconds)
            if end - start >= self.min_clip_length_s:
                spans.append((info.pts(begin + start), info.pts(begin + end)))
            count += 1
        return spans
