"""ClipTranscodingStage notes how clips are to be encoded; `CutClips`, the first part of every writer, does it.

So only what is left of a film at the end is cut, and a clip that a filter drops costs no encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.table_conversion import MIXED, POSITION, json_text, table_to_rows
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.io.storage.file_input import block_bytes
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.sample_files import CAPTION, EXTENSION, METADATA
from gristmill.video.batch import (
    BYTE_OFFSET,
    BYTE_SIZE,
    CLIP_ID,
    END_PTS,
    START_PTS,
    VIDEO,
    VIDEO_ID,
    BadVideo,
    VideoBatch,
)
from gristmill.video.frame_stage import set_aside_row
from gristmill.video.one_pass import FilmSource, Span, films_of, header_rows, opening_of, sources_of, spans_of
from gristmill.video.stream_columns import CODEC, NUM_FRAMES, SIZE, STREAM_TYPES
from gristmill.video.transcode.cut import CutClip, FilmCutter, open_cutter
from gristmill.video.transcode.encoders import AUTO, ENCODE, X264, TranscodeSettings, check_encoder

TRANSCODING = "transcoding"
"""The column in which wishes are noted, as text."""

CUT_WAY = "cut"
"""The column that says how a clip was made: "copy", "smart" or "encode"."""


class ClipTranscodingStage(ProcessingStage[VideoBatch, VideoBatch]):
    """Notes how clips are to be encoded when a writer cuts them: nothing is encoded here.

    With an `encoder` all frames are encoded by it: libx264, libopenh264, libvpx-vp9, libsvtav1, libx265 or h264_nvenc,
    as far as the FFmpeg of PyAV has them. Without one, clips are cut as `cut` says: "auto" copies what can be copied,
    and encodes only the frames at the ends of other clips; "copy" lets clips begin at the key frame before their start;
    "smart" and "encode" ask for that way. `sound=False` leaves the sound out; `height` makes pictures smaller.
    """

    takes_empty = True
    not_identity = ("num_cpus_per_worker", "encode_batch_size", "num_clips_per_chunk", "verbose", "ffmpeg_verbose")

    def __init__(
        self,
        num_cpus_per_worker: float = 6.0,
        encoder: str | None = None,
        encoder_threads: int = 1,
        encode_batch_size: int = 16,
        nb_streams_per_gpu: int = 3,
        use_hwaccel: bool = False,
        use_input_bit_rate: bool = False,
        num_clips_per_chunk: int = 32,
        ffmpeg_verbose: bool = False,
        verbose: bool = False,
        *,
        cut: str | None = None,
        sound: bool = True,
        height: int | None = None,
        encoder_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        check_positive(type(self).__name__, "num_clips_per_chunk", num_clips_per_chunk)
        self.num_cpus_per_worker, self.encoder, self.encoder_threads = num_cpus_per_worker, encoder, encoder_threads
        self.encode_batch_size, self.nb_streams_per_gpu = encode_batch_size, nb_streams_per_gpu
        self.use_hwaccel, self.use_input_bit_rate = use_hwaccel, use_input_bit_rate
        self.num_clips_per_chunk, self.ffmpeg_verbose, self.verbose = num_clips_per_chunk, ffmpeg_verbose, verbose
        self.cut, self.sound, self.height, self.encoder_options = cut, sound, height, encoder_options
        self.settings().check(type(self).__name__)

    def settings(self) -> TranscodeSettings:
        return TranscodeSettings(
            cut=self.cut or (AUTO if self.encoder is None else ENCODE),
            encoder=self.encoder or X264,
            options=tuple(sorted((self.encoder_options or {}).items())),
            sound=self.sound,
            use_input_bit_rate=self.use_input_bit_rate,
            height=self.height,
        )

    def check(self) -> None:
        if self.encoder is not None:
            check_encoder(f"stage {self.name!r}", self.encoder)

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [TRANSCODING]

    def process(self, task: VideoBatch) -> Iterator[VideoBatch]:
        wish = pa.repeat(literal(self.settings().to_text(), pa.string()), task.num_items)
        noted = task.with_column(TRANSCODING, wish)
        films_of(noted)  # chunks share what was measured
        yield noted.slice(0, self.num_clips_per_chunk)
        for start in range(self.num_clips_per_chunk, task.num_items, self.num_clips_per_chunk):
            yield noted.slice(start, self.num_clips_per_chunk)


class CutClips(ProcessingStage[VideoBatch, VideoBatch]):
    """Cuts the clips of the rows, and puts their bytes into `video`. Clips of one film are cut one after the other from
    one open file."""

    name = "cut_clips"
    takes_empty = True
    max_retries = 0

    def __init__(self, as_samples: bool = False, block: int | str | None = None) -> None:
        super().__init__()
        self.as_samples, self.block = as_samples, block_bytes(block)

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [VIDEO, CUT_WAY]

    def process(self, task: VideoBatch) -> Iterator[VideoBatch]:
        good: list[int] = []
        clips: list[CutClip] = []
        size = 0
        for row, clip in self._cut_rows(task):
            if isinstance(clip, BadVideo):
                set_aside_row(task, row, clip, self)
                continue
            self.count(f"clips_by_{clip.way}")
            good.append(row)
            clips.append(clip)
            size += len(clip.data)
            if size >= self.block:
                yield self._rows(task, good, clips)
                good, clips, size = [], [], 0
        yield self._rows(task, good, clips)

    def _cut_rows(self, task: VideoBatch) -> Iterator[tuple[int, CutClip | BadVideo]]:
        headers, spans, sources = header_rows(task), spans_of(task), sources_of(task)
        names, rows = task.get_columns(), task.num_items
        wishes = task.data.column(TRANSCODING).to_pylist() if TRANSCODING in names else [None] * rows
        settings = {text: TranscodeSettings.from_text(text) for text in set(wishes)}
        with ExitStack() as stack:
            opened: tuple[FilmSource, FilmCutter] | None = None
            for row, (header, source) in enumerate(zip(headers, sources, strict=True)):
                if isinstance(header, BadVideo):
                    yield row, header
                    continue
                try:
                    if opened is None or opened[0] != source:
                        stack.pop_all().close()
                        opened = None
                        cutter = open_cutter(source.source, source.byte_range, header.info, **opening_of(task))
                        opened = source, stack.enter_context(cutter)
                    span = spans[row] or _whole(header.info)
                    yield row, opened[1].cut(*span, settings[wishes[row]])
                except BadVideo as error:
                    yield row, error

    def _rows(self, task: VideoBatch, good: Sequence[int], clips: Sequence[CutClip]) -> VideoBatch:
        rows = task.data.take(make_array(good, pa.int64()))
        left_out = (VIDEO, START_PTS, END_PTS, BYTE_OFFSET, BYTE_SIZE, TRANSCODING, POSITION)
        columns: dict[str, Any] = {name: rows.column(name) for name in rows.column_names if name not in left_out}
        columns |= {
            "container": pa.repeat(literal("mp4", pa.string()), len(good)),
            CODEC: make_array([clip.codec for clip in clips], STREAM_TYPES[CODEC]),
            NUM_FRAMES: make_array([clip.num_frames for clip in clips], STREAM_TYPES[NUM_FRAMES]),
            SIZE: make_array([len(clip.data) for clip in clips], STREAM_TYPES[SIZE]),
            CUT_WAY: make_array([clip.way for clip in clips], pa.string()),
        }
        if self.as_samples:
            columns |= _sample_columns(rows)
        columns[VIDEO] = make_array([clip.data for clip in clips], pa.large_binary())
        if POSITION in rows.column_names:
            columns[POSITION] = rows.column(POSITION)
        return VideoBatch(pa.table(columns), dataset_name=task.dataset_name, metadata=dict(task.metadata))


def _whole(info: Any) -> Span:
    """The span of a whole film."""
    return info.start_pts, info.end_pts if info.end_pts is not None else 2**62


def _sample_columns(rows: pa.Table) -> dict[str, Any]:
    """The key, the extension and the metadata of the files of a sample."""
    names = rows.column_names
    nothing = pa.nulls(rows.num_rows, pa.string())
    clips = rows.column(CLIP_ID).to_pylist() if CLIP_ID in names else nothing.to_pylist()
    films = rows.column(VIDEO_ID).to_pylist() if VIDEO_ID in names else nothing.to_pylist()
    left_out = [name for name in (VIDEO, POSITION, CAPTION, TRANSCODING) if name in names]
    texts = [json_text(row) for row in table_to_rows(rows.drop_columns(left_out))]
    metadata = make_array(texts, pa.string())
    return {
        VIDEO_ID: make_array([clip or film for clip, film in zip(clips, films, strict=True)], pa.string()),
        "film_id": make_array(films, pa.string()),
        EXTENSION: pa.repeat(literal("mp4", pa.string()), rows.num_rows),
        CAPTION: rows.column(CAPTION) if CAPTION in names else nothing,
        METADATA: pa.ExtensionArray.from_storage(MIXED, metadata.cast(MIXED.storage_type)),
    }
