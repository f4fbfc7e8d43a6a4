"""One pass: a film is decoded once for all stages of a worker, and for all clips that are cut from it.

`measured_rows` gives what analysers (`frame_analyser.py`) have found of each row of a batch. What has not been measured
is measured in one pass over each film, for all of its rows, together with what later stages of the worker will ask for.
It stays with the rows: `FilmMeasurements` are objects of the batch, and those of one film are one object, which clips
take over when they are cut out of a row. They are not sent to other processes, where a stage that needs them measures
again; so what is measured must not depend on how often that happens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

import numpy as np

from gristmill.core.arrow.table_conversion import table_to_rows
from gristmill.core.run.row_progress import in_turn
from gristmill.samples.decode import encoded_views
from gristmill.video.batch import (
    BYTE_OFFSET,
    BYTE_SIZE,
    CLIP_ID,
    DECODED,
    END_PTS,
    SOURCE,
    START_PTS,
    VIDEO,
    BadVideo,
    VideoBatch,
)
from gristmill.video.decode import Analysis, Damage, DecodeLimits, analyse_video, probe_video
from gristmill.video.frame_analyser import FrameAnalyser, FrameSeries
from gristmill.video.stream_columns import STREAM_TYPES, row_info
from gristmill.video.stream_info import StreamInfo

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.core.stage import ProcessingStage

FILMS = f"{DECODED}_films"
"""The name of the objects of a batch that hold the measurements."""

DECODE_LIMITS = "decode_limits"
"""Key in `Batch.metadata`: the DecodeLimits of the reader."""

STORAGE_OPTIONS = "storage_options"
"""Key in `Batch.metadata`: how the reader opens remote files."""

Span = tuple[int, int]
"""Time stamps: from the first up to, and without, the second."""

_KEY_BYTES = 2**16
_SHOWN_DAMAGE = 3
_KEPT_PASSES = 2

T = TypeVar("T")


class Measured(NamedTuple):
    """What is known of the video of a row."""

    info: StreamInfo
    span: Span | None
    """Of a clip; None for a row that is a whole video."""
    series: Sequence[FrameSeries]
    """Of each analyser, within the span."""

    @property
    def seconds(self) -> float | None:
        """How long the video or the clip is."""
        if self.span is None:
            return self.info.duration
        return float((self.span[1] - self.span[0]) * self.info.time_base)


@dataclass
class FilmMeasurements:
    """What passes over one film have found."""

    info: StreamInfo | None = None
    """As the first frame shows it; None as long as no frame was decoded."""
    failure: BadVideo | None = None
    """Why it cannot be decoded."""
    damage: list[Damage] = field(default_factory=list)
    _found: dict[Hashable, list[tuple[list[Span] | None, FrameSeries]]] = field(default_factory=dict)
    _times: list[tuple[list[Span] | None, npt.NDArray[np.int64]]] = field(default_factory=list)

    def has(self, analyser: FrameAnalyser, span: Span | None) -> bool:
        """Whether the analyser has seen this span."""
        return self._covering(analyser.key(), span) is not None

    def series(self, analyser: FrameAnalyser, span: Span | None) -> FrameSeries:
        """What the analyser found within the span."""
        found = self._covering(analyser.key(), span)
        assert found is not None
        return found if span is None else found.within(*span)

    def _covering(self, key: Hashable, span: Span | None) -> FrameSeries | None:
        return next((series for spans, series in self._found.get(key, ()) if _covers(spans, span)), None)

    def times(self, span: Span | None) -> npt.NDArray[np.int64] | None:
        """The time stamps of the frames within a span, if they are known."""
        found = next((pts for spans, pts in self._times if _covers(spans, span)), None)
        if found is None or span is None:
            return found
        first, last = np.searchsorted(found, span)
        return found[first:last]

    def add(self, analysis: Analysis, analysers: Sequence[FrameAnalyser], spans: Sequence[Span] | None) -> None:
        """Keep what a pass has found. `analysers` are those that were asked, and then those that looked on."""
        if self.info is None or spans is None:
            self.info = analysis.info
        covered = None if spans is None else list(spans)
        for analyser, series in zip(analysers, [*analysis.results, *analysis.ahead], strict=True):
            if series is not None:
                found = self._found.get(analyser.key(), [])
                self._found[analyser.key()] = _recent([*found, (covered, series)])
        if analysis.pts is not None:
            self._times = _recent([*self._times, (covered, analysis.pts)])
        noted = set(self.damage)
        self.damage += [one for one in analysis.damage if one not in noted]

    def forget(self, analyser: FrameAnalyser, spans: Collection[Span | None] | None = None) -> None:
        """Free the memory of what an analyser found, or of what it found in passes over no more than these spans."""
        found = self._found.pop(analyser.key(), [])
        if spans is not None and (kept := [one for one in found if one[0] is None or not set(one[0]) <= set(spans)]):
            self._found[analyser.key()] = kept

    def damage_note(self) -> str | None:
        """The first damaged places, for a column; None if there are none."""
        shown = [f"at {one.seconds:.3f} s: {one.reason}" for one in self.damage[:_SHOWN_DAMAGE]]
        more = len(self.damage) - len(shown)
        return "; ".join([*shown, *([f"and {more:,} more"] if more else [])]) or None

    def failure_of(self, span: Span | None) -> BadVideo | None:
        """Why a row with this span cannot be used. A whole film with a damaged place can: what is good is cut out."""
        if self.failure is not None or span is None:
            return self.failure
        for one in self.damage:
            if span[0] <= one.pts < span[1]:
                return BadVideo(f"damaged at {one.seconds:.3f} s: {one.reason}")
        times = self.times(span)
        if times is not None and not len(times) and self.info is not None:
            start, end = self.info.seconds(span[0]), self.info.seconds(span[1])
            return BadVideo(
                f"no frames between {start:.3f} s and {end:.3f} s: the film is shorter than its header says"
            )
        return None


def _recent(passes: list[tuple[list[Span] | None, T]]) -> list[tuple[list[Span] | None, T]]:
    """Without passes over spans that are long past: clips of a film come in order, some at a time, so that memory does
    not grow with its length."""
    return [one for at, one in enumerate(passes) if one[0] is None or at >= len(passes) - _KEPT_PASSES]


def _covers(spans: Sequence[Span] | None, span: Span | None) -> bool:
    return spans is None or (span is not None and any(a <= span[0] and span[1] <= b for a, b in spans))


class FilmSource(NamedTuple):
    """Where the encoded bytes of a row are: `open_video` takes it."""

    source: Any
    """A path, a URL, or bytes; None if there is neither."""
    byte_range: tuple[int, int] | None


def measured_rows(
    batch: VideoBatch,
    analysers: Sequence[FrameAnalyser],
    ahead: Sequence[FrameAnalyser] = (),
    stage: ProcessingStage[Any, Any] | None = None,
) -> list[Measured | BadVideo]:
    """What the analysers have found of each row, or why the row cannot be decoded. The stage counts what it decodes."""
    films, spans, sources = films_of(batch), spans_of(batch), sources_of(batch)
    rows_by_film: dict[int, list[int]] = {}
    for row, film in enumerate(films):
        rows_by_film.setdefault(id(film), []).append(row)
    opening = opening_of(batch)
    for rows in in_turn(rows_by_film.values()):
        film, wanted = films[rows[0]], [spans[row] for row in rows]
        if film.failure is None:
            try:
                frames = _measure(film, sources[rows[0]], wanted, analysers, ahead, opening)
                if frames and stage is not None:
                    stage.count("decoded_frames", frames)
                    if film.damage:
                        stage.count("damaged_films")
            except BadVideo as error:
                film.failure = error
    return [_measured(film, span, analysers) for film, span in zip(films, spans, strict=True)]


def _measure(
    film: FilmMeasurements,
    source: FilmSource,
    spans: Sequence[Span | None],
    analysers: Sequence[FrameAnalyser],
    ahead: Sequence[FrameAnalyser],
    opening: Opening,
) -> int:
    """Decode what is not known of a film, once. Returns the number of frames."""
    asked = _distinct(one for one in analysers if not all(film.has(one, span) for span in spans))
    if not asked:
        return 0
    keys = {one.key() for one in asked}
    also = _distinct(one for one in ahead if one.key() not in keys and not all(film.has(one, span) for span in spans))
    whole = None in spans or any(one.whole_film for one in asked)
    wanted = None if whole else [span for span in spans if span is not None]
    also = [one for one in also if whole or not one.whole_film]
    if film.info is None and not whole:
        film.info = probe_video(source.source, source.byte_range, **opening)
    start = None if whole or film.info is None else film.info.start_pts
    analysis = analyse_video(
        source.source, asked, ahead=also, byte_range=source.byte_range, spans=wanted, start_pts=start, **opening
    )
    film.add(analysis, [*asked, *also], wanted)
    return analysis.num_frames


def _distinct(analysers: Iterable[FrameAnalyser]) -> list[FrameAnalyser]:
    return list({one.key(): one for one in analysers}.values())


def _measured(film: FilmMeasurements, span: Span | None, analysers: Sequence[FrameAnalyser]) -> Measured | BadVideo:
    if (failure := film.failure_of(span)) is not None:
        return failure
    assert film.info is not None
    return Measured(film.info, span, [film.series(analyser, span) for analyser in analysers])


def header_rows(batch: VideoBatch) -> list[Measured | BadVideo]:
    """What the header of each row says: from its columns, or from its file where they do not have it."""
    films, spans, sources, opening = films_of(batch), spans_of(batch), sources_of(batch), opening_of(batch)
    for film, source in zip(films, sources, strict=True):
        if film.info is None and film.failure is None:
            try:
                film.info = probe_video(source.source, source.byte_range, **opening)
            except BadVideo as error:
                film.failure = error
    return [
        film.failure or Measured(film.info, span, ())  # type: ignore[arg-type]  # it has one of both
        for film, span in zip(films, spans, strict=True)
    ]


def films_of(batch: VideoBatch) -> list[FilmMeasurements]:
    """The measurements of each row. Rows of one film have the same object, and batches that are made of this one from
    now on have them too."""
    films: list[FilmMeasurements] | None = batch.objects.get(FILMS)
    if films is None:
        by_source: dict[Hashable, FilmMeasurements] = {}
        names = [name for name in (*STREAM_TYPES, CLIP_ID) if name in batch.get_columns()]
        rows = table_to_rows(batch.data.select(names)) if names else [{}] * batch.num_items
        films = []
        for key, row in zip(_film_keys(batch), rows, strict=True):
            if key not in by_source:
                by_source[key] = FilmMeasurements(row_info(row))
            films.append(by_source[key])
        batch.objects[FILMS] = films
    return films


def _film_keys(batch: VideoBatch) -> list[Hashable]:
    """Equal for rows of one film."""
    return [
        (where.source, where.byte_range) if isinstance(where.source, str) else _content_key(where.source)
        for where in sources_of(batch)
    ]


def _content_key(data: Any) -> Hashable:
    if data is None:
        return None
    ends = bytes(data[:_KEY_BYTES]) + bytes(data[-_KEY_BYTES:])
    return len(data), hashlib.blake2b(ends, digest_size=16).digest()


def sources_of(batch: VideoBatch) -> list[FilmSource]:
    """For each row where its film is."""
    names, nothing = batch.get_columns(), [None] * batch.num_items

    def values(name: str) -> list[Any]:
        return batch.data.column(name).to_pylist() if name in names else nothing

    encoded: Sequence[Any] = nothing
    if VIDEO in names:
        encoded = encoded_views(batch)
    rows = zip(encoded, values(SOURCE), values(BYTE_OFFSET), values(BYTE_SIZE), strict=True)
    return [
        FilmSource(path, None if size is None else (offset or 0, size)) if data is None else FilmSource(data, None)
        for data, path, offset, size in rows
    ]


def spans_of(batch: VideoBatch) -> list[Span | None]:
    """For each row the span of its clip; None for a row that is a whole video."""
    names = batch.get_columns()
    if not {CLIP_ID, START_PTS, END_PTS} <= set(names):
        return [None] * batch.num_items
    rows = zip(*(batch.data.column(name).to_pylist() for name in (CLIP_ID, START_PTS, END_PTS)), strict=True)
    return [None if clip is None or start is None or end is None else (start, end) for clip, start, end in rows]


class Opening(TypedDict):
    """How films of a batch are opened, as arguments of `analyse_video` and `probe_video`."""

    limits: DecodeLimits | None
    storage_options: Mapping[str, Any] | None


def opening_of(batch: VideoBatch) -> Opening:
    return Opening(limits=batch.metadata.get(DECODE_LIMITS), storage_options=batch.metadata.get(STORAGE_OPTIONS))
