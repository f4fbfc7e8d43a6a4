"""StreamInfo as columns of a batch, so that no stage opens a file only to read its header again.

container, codec, profile, pixel_format   as FFmpeg names them
width, height      of the upright picture
rotation           by how many degrees decoded pictures are turned counter-clockwise
pixel_aspect       width of a pixel divided by its height
time_base          seconds in a unit of time stamps, as in "1/12800"
film_start_pts     the time stamp of the first frame of the film
duration           seconds; of a clip, how long the clip is
fps, variable_rate, num_frames, bit_rate, interlaced, color_range, color_transfer
audio_codec, audio_rate, audio_channels   null: no sound
size               bytes of the film
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.video.batch import CLIP_ID, END, END_PTS, START, START_PTS, TIME_BASE
from gristmill.video.stream_info import StreamInfo

FILM_START_PTS, DURATION = "film_start_pts", "duration"
WIDTH, HEIGHT, FPS, BIT_RATE, CODEC, NUM_FRAMES, SIZE = (
    "width", "height", "fps", "bit_rate", "codec", "num_frames", "size"
)  # fmt: skip
_MAX_RATE_DENOMINATOR = 1001

STREAM_TYPES: Mapping[str, pa.DataType] = {
    "container": pa.string(), CODEC: pa.string(), "profile": pa.string(), "pixel_format": pa.string(),
    WIDTH: pa.int64(), HEIGHT: pa.int64(), "rotation": pa.int64(), "pixel_aspect": pa.float64(),
    TIME_BASE: pa.string(), FILM_START_PTS: pa.int64(), DURATION: pa.float64(), FPS: pa.float64(),
    "variable_rate": pa.bool_(), NUM_FRAMES: pa.int64(), BIT_RATE: pa.int64(), "interlaced": pa.bool_(),
    "color_range": pa.string(), "color_transfer": pa.string(), "audio_codec": pa.string(), "audio_rate": pa.int64(),
    "audio_channels": pa.int64(), SIZE: pa.int64(),
}  # fmt: skip

SPAN_TYPES: Mapping[str, pa.DataType] = {
    START_PTS: pa.int64(), END_PTS: pa.int64(), START: pa.float64(), END: pa.float64(), CLIP_ID: pa.string(),
}  # fmt: skip


def info_values(info: StreamInfo) -> dict[str, Any]:
    """The values of the columns of a film."""
    width, height = info.display_size
    other = {"container": info.format, FILM_START_PTS: info.start_pts, TIME_BASE: str(info.time_base)}
    other |= {WIDTH: width, HEIGHT: height, DURATION: info.duration}
    other |= {"pixel_aspect": float(info.pixel_aspect), FPS: None if info.fps is None else float(info.fps)}
    return {name: other[name] if name in other else getattr(info, name) for name in STREAM_TYPES}


def info_columns(infos: Sequence[StreamInfo]) -> dict[str, pa.Array]:
    """The columns of films."""
    rows = [info_values(info) for info in infos]
    return {name: make_array([row[name] for row in rows], kind) for name, kind in STREAM_TYPES.items()}


def film_span_columns(infos: Sequence[StreamInfo]) -> dict[str, pa.Array]:
    """The columns of spans, of rows that are whole films."""
    values: dict[str, list[Any]] = {
        START_PTS: [info.start_pts for info in infos], END_PTS: [info.end_pts for info in infos],
        START: [0.0] * len(infos), END: [info.duration for info in infos], CLIP_ID: [None] * len(infos),
    }  # fmt: skip
    return {name: make_array(values[name], kind) for name, kind in SPAN_TYPES.items()}


def row_info(row: Mapping[str, Any]) -> StreamInfo | None:
    """What the columns of a row say of its film; None if they do not say it."""
    if any(row.get(name) is None for name in (TIME_BASE, FILM_START_PTS, WIDTH, HEIGHT, CODEC)):
        return None
    base, turned = Fraction(row[TIME_BASE]), (row.get("rotation") or 0) in (90, 270)
    size = (row[HEIGHT], row[WIDTH]) if turned else (row[WIDTH], row[HEIGHT])
    seconds, rate, aspect = row.get(DURATION), row.get(FPS), row.get("pixel_aspect")
    known: dict[str, Any] = {name: row.get(name) for name in STREAM_TYPES if name in StreamInfo.__dataclass_fields__}
    known |= {"format": row.get("container") or "", "width": size[0], "height": size[1], "time_base": base}
    known |= {"start_pts": row[FILM_START_PTS], "rotation": row.get("rotation") or 0, "size": row.get("size") or 0}
    known["pixel_aspect"] = Fraction(aspect or 1.0).limit_denominator(_MAX_RATE_DENOMINATOR)
    known["fps"] = None if not rate else Fraction(rate).limit_denominator(_MAX_RATE_DENOMINATOR)
    known["duration_pts"] = None if seconds is None or row.get(CLIP_ID) is not None else round(seconds / base)
    known |= {name: bool(row.get(name)) for name in ("variable_rate", "interlaced")}
    known["pixel_format"] = row.get("pixel_format") or ""
    return StreamInfo(**known)
