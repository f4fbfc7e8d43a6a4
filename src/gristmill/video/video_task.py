"""VideoTask: one film with its clips as a task, for stages that work on films one by one.

A stage declared as `ProcessingStage[VideoTask, VideoTask]` works in a pipeline of batches. What it sets on a clip
becomes columns of the clip's row; clips that it takes out of `video.clips` are gone, those that it moves to
`video.filtered_clips` are written apart, and those that it adds are cut like others.

What is given up: a batch may hold some of the clips of a film, so `video.clips` need not be all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, rows_to_table, table_to_rows
from gristmill.core.batch import Batch
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.plan.single_row_task import RowTask
from gristmill.video.batch import CLIP_ID, END, END_PTS, PREVIEW, SOURCE, START, START_PTS, TIME_BASE, VIDEO, VideoBatch
from gristmill.video.clips import clip_id
from gristmill.video.frames.clip_frames import CLIP_FRAMES
from gristmill.video.one_pass import FilmSource, films_of, opening_of, sources_of
from gristmill.video.stream_columns import BIT_RATE, CODEC, DURATION, FPS, HEIGHT, NUM_FRAMES, SIZE, WIDTH, row_info
from gristmill.video.stream_info import StreamInfo
from gristmill.video.transcode.clip_layout import FILTERED
from gristmill.video.transcode.clip_transcoding import TRANSCODING
from gristmill.video.transcode.cut import open_cutter
from gristmill.video.transcode.encoders import TranscodeSettings


class _Column:
    """An attribute of a clip that is a column of its row."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, clip: Any, kind: type | None = None) -> Any:
        return self if clip is None else clip.columns.get(self.name)

    def __set__(self, clip: Any, value: Any) -> None:
        clip.columns[self.name] = value


class Clip:
    """A clip of a film: `columns` has all columns of its row, and the usual ones are attributes."""

    uuid = _Column(CLIP_ID)
    source_video = _Column(SOURCE)
    aesthetic_score = _Column("aesthetic_score")
    motion_score_global_mean = _Column("motion_score_global_mean")
    motion_score_per_patch_min_256 = _Column("motion_score_per_patch_min_256")
    cosmos_embed1_embedding = _Column("cosmos_embed1_embedding")
    windows = _Column("windows")
    errors = _Column("errors")

    def __init__(self, span: tuple[float, float], columns: dict[str, Any] | None = None) -> None:
        """A clip from `span[0]` to `span[1]` seconds."""
        self.columns = dict(columns or {})
        self.extracted_frames: dict[str, Any] = {}
        """Of `ClipFrameExtractionStage`, if it ran in the same worker."""
        self._row: int | None = None
        self._video: Video | None = None
        self._encoded: bytes | None = None
        self._span = span

    @property
    def span(self) -> tuple[float, float]:
        """Beginning and end, in seconds."""
        return self._span

    @span.setter
    def span(self, span: tuple[float, float]) -> None:
        self._span = span
        for name in (START_PTS, END_PTS, CLIP_ID):
            self.columns.pop(name, None)

    @property
    def duration(self) -> float:
        """In seconds."""
        return self._span[1] - self._span[0]

    @property
    def encoded_data(self) -> bytes:
        """The clip as an mp4: it is cut when it is asked for."""
        if self._encoded is None:
            assert self._video is not None, "a clip is cut out of a film: add it to video.clips first"
            self._encoded = self._video.cut(self)
        return self._encoded

    def __repr__(self) -> str:
        return f"<Clip {self.span[0]:.3f} to {self.span[1]:.3f} s>"


@dataclass(frozen=True)
class VideoMetadata:
    """What the header of a film says."""

    size: int | None
    height: int | None
    width: int | None
    framerate: float | None
    num_frames: int | None
    duration: float | None
    video_codec: str | None
    pixel_format: str | None
    audio_codec: str | None
    bit_rate_k: int | None

    @classmethod
    def of(cls, row: dict[str, Any]) -> VideoMetadata:
        rate = row.get(BIT_RATE)
        length = row.get(DURATION) if row.get(CLIP_ID) is None else None
        return cls(
            row.get(SIZE), row.get(HEIGHT), row.get(WIDTH), row.get(FPS), row.get(NUM_FRAMES), length, row.get(CODEC),
            row.get("pixel_format"), row.get("audio_codec"), None if rate is None else rate // 1000,
        )  # fmt: skip


@dataclass
class Video:
    """A film with its clips."""

    input_video: str
    metadata: VideoMetadata
    clips: list[Clip] = field(default_factory=list)
    filtered_clips: list[Clip] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict, repr=False)
    """All columns of its row, or of its first clip."""
    _source: FilmSource = field(default=FilmSource(None, None), repr=False)
    _opening: Any = field(default_factory=dict, repr=False)
    _row: int = field(default=0, repr=False)
    _was_whole: bool = field(default=False, repr=False)

    @property
    def num_total_clips(self) -> int:
        return len(self.clips) + len(self.filtered_clips)

    @property
    def source_bytes(self) -> bytes:
        """The whole file."""
        from gristmill.io.storage.file_input import file_system

        if not isinstance(self._source.source, str):
            return bytes(self._source.source or b"")
        system, path = file_system(self._source.source, self._opening.get("storage_options") or {})
        start, size = self._source.byte_range or (0, None)
        with system.open(path, "rb") as file:
            file.seek(start)
            data: bytes = file.read() if size is None else file.read(size)
        return data

    def cut(self, clip: Clip) -> bytes:
        """The bytes of a clip."""
        info = self._info()
        start, end = _span_pts(clip, info)
        with open_cutter(self._source.source, self._source.byte_range, info, **self._opening) as cutter:
            return cutter.cut(start, end, TranscodeSettings.from_text(clip.columns.get(TRANSCODING))).data

    def _info(self) -> StreamInfo:
        info = row_info(self.columns)
        if info is None:
            raise ValueError(f"{self.input_video}: the row lacks what VideoReader finds in the header of a film")
        return info


def _span_pts(clip: Clip, info: StreamInfo) -> tuple[int, int]:
    start, end = clip.columns.get(START_PTS), clip.columns.get(END_PTS)
    if start is None or end is None:
        return info.pts(clip.span[0]), info.pts(clip.span[1])
    return start, end


@fast_dataclass
class VideoTask(RowTask):
    """One film: `data` is a `Video`, with its clips in `data.clips`."""

    data: Any

    batch_class: ClassVar[type[Batch]] = VideoBatch

    @classmethod
    def from_batch(cls, batch: Batch) -> list[Any]:
        assert isinstance(batch, VideoBatch)
        films, sources, opening = films_of(batch), sources_of(batch), opening_of(batch)
        names = [name for name in batch.get_columns() if name not in (VIDEO, PREVIEW, POSITION)]
        extracted = batch.objects.get(CLIP_FRAMES) or [{}] * batch.num_items
        videos: dict[int, Video] = {}
        for row, values in enumerate(table_to_rows(batch.data.select(names))):
            video = videos.get(id(films[row]))
            if video is None:
                video = Video(str(values.get(SOURCE) or ""), VideoMetadata.of(values), columns=values)
                video._source, video._opening, video._row = sources[row], opening, row
                videos[id(films[row])] = video
            if values.get(CLIP_ID) is None:
                video._was_whole = True
                continue
            clip = Clip((values.get(START) or 0.0, values.get(END) or 0.0), values)
            clip._row, clip._video = row, video
            clip.extracted_frames = extracted[row]
            (video.filtered_clips if values.get(FILTERED) else video.clips).append(clip)
        settings: dict[str, Any] = {"dataset_name": batch.dataset_name}
        return [cls(video, **settings, metadata=dict(batch.metadata)) for video in videos.values()]

    @classmethod
    def to_batch(cls, batch: Batch, sources: Sequence[int], outputs: Sequence[Any]) -> Batch:
        rows: list[int] = []
        values: list[dict[str, Any]] = []
        marked = any(task.data.filtered_clips for task in outputs) or FILTERED in batch.get_columns()
        for task in outputs:
            video: Video = task.data
            if video._was_whole and not video.num_total_clips:
                rows.append(video._row)
                values.append(video.columns)
            for clip, filtered in [(one, False) for one in video.clips] + [(one, True) for one in video.filtered_clips]:
                rows.append(video._row if clip._row is None else clip._row)
                values.append(_clip_values(video, clip) | ({FILTERED: filtered} if marked else {}))
        made = batch.take(rows)
        if not values:
            return made
        changed = rows_to_table(values)
        for name in changed.column_names:
            column = changed.column(name).combine_chunks()
            if name in made.get_columns():
                column = _as_before(column, made.data.schema.field(name).type)
            made = made.with_column(name, column)
        return made


def _as_before(column: Any, kind: pa.DataType) -> pa.Array:
    """The column with the type that it had, where its values allow that."""
    if column.type == kind:
        return column
    try:
        return make_array(column.to_pylist(), kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError):
        return column


def _clip_values(video: Video, clip: Clip) -> dict[str, Any]:
    """The columns of a clip."""
    values = {**(video.columns if clip._row is None else {}), **clip.columns}
    values[START], values[END], values[DURATION] = *clip.span, clip.duration
    if values.get(START_PTS) is None or values.get(CLIP_ID) is None or clip._row is None:
        info = video._info()
        start, end = (info.pts(Fraction(seconds)) for seconds in clip.span)
        values |= {START_PTS: start, END_PTS: end, TIME_BASE: str(info.time_base), NUM_FRAMES: None}
        values[CLIP_ID] = clip.uuid or clip_id(video.input_video, info, (start, end))
    return values
