"""Rows that are films, or clips of films: a picture of them, and the other clips of the same film.

A row is a clip if it has the columns `source`, `start` and `end`, as rows of `gristmill.video` have. Other clips are
looked for among all rows of the dataset, kept and dropped.

Gives up: clips that are not found within two seconds, or beyond the first 2,000.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import require
from gristmill.core.records.rejected_rows import STAGE
from gristmill.io.storage.file_input import ignore

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.view.data.media_in_rows import MediaContent
    from gristmill.view.data.row_sets import RunOrDataset

SOURCE, START, END = "source", "start", "end"
MAX_CLIPS, SEARCH_SECONDS = 2_000, 2.0
POSTER_SIDE, _QUALITY = 480, 80


@dataclass(frozen=True, slots=True)
class FilmClip:
    """A clip of a film: when it is, in seconds, which row it is, and what became of it."""

    start: float
    end: float
    fate: str
    """The name of its row set."""
    source: str
    position: int
    dropped_by: str = ""


def clip_span(values: Mapping[str, Any]) -> tuple[float, float] | None:
    """From when to when a row is, in seconds; None for one that is no clip."""
    start, end = values.get(START), values.get(END)
    numbers = isinstance(start, int | float) and isinstance(end, int | float)
    return (float(start), float(end)) if numbers and isinstance(values.get(SOURCE), str) and end > start else None  # type: ignore[arg-type,operator]


def clips_of_film(library: RunOrDataset, values: Mapping[str, Any]) -> list[FilmClip]:
    """The clips of the film that a row is of, in the order of time."""
    if clip_span(values) is None:
        return []
    found: list[FilmClip] = []
    stop = time.monotonic() + SEARCH_SECONDS
    for clip in _clips(library, str(values[SOURCE])):
        found.append(clip)
        if len(found) >= MAX_CLIPS or time.monotonic() > stop:
            break
    return sorted(found, key=lambda clip: (clip.start, clip.end))


def _clips(library: RunOrDataset, film: str) -> Iterator[FilmClip]:
    for fate, row_set in library.row_sets().items():
        for source in row_set.sources:
            for block in source.blocks((SOURCE, START, END, STAGE, POSITION), ignore):
                assert block.table is not None
                for row in _of_film(block.table, film):
                    if (span := clip_span(row)) is not None:
                        yield FilmClip(*span, fate, source.id, int(row[POSITION]), str(row.get(STAGE) or ""))


def _of_film(table: pa.Table, film: str) -> list[dict[str, Any]]:
    column = table.column(SOURCE)
    if str(column.type) not in ("string", "large_string"):
        return []
    rows: list[dict[str, Any]] = table.filter(pc.equal(column, literal(film, column.type))).to_pylist()
    return rows


def poster(medium: MediaContent, seconds: float, storage_options: Mapping[str, Any]) -> bytes | None:
    """The picture that a film shows at a time, as JPEG; None if it cannot be decoded."""
    from gristmill.video.batch import BadVideo
    from gristmill.video.decode import analyse_video, probe_video
    from gristmill.video.frame_analyser import RGB, CollectedFrames, FrameRequest

    source: Any = medium.content if medium.content is not None else medium.path
    part = None if medium.size is None else (medium.offset, medium.size)
    try:
        info = probe_video(source, part, storage_options)
        at, second = info.pts(seconds), round(1 / info.time_base)
        wanted = CollectedFrames(FrameRequest(RGB, max_side=POSTER_SIDE))
        found = analyse_video(
            source, [wanted], byte_range=part, spans=[(at, at + second)], start_pts=info.start_pts,
            storage_options=storage_options,
        )  # fmt: skip
    except BadVideo:
        return None
    frames = found.results[0].columns["frames"]
    if not found.results[0].pts.size:
        return None
    encoder = require("simplejpeg", "video", "showing films")
    encoded: bytes = encoder.encode_jpeg(frames[0].copy(), quality=_QUALITY, colorspace="RGB")
    return encoded
