"""Read films. Only their headers and first frames: films stay where they are, and rows refer to them.

    VideoReader             files: mp4, mov, mkv, webm, avi, ts ...; the .txt and .json beside a film are its caption
                            and metadata
    VideoWebDatasetReader   tars of KEY.mp4, KEY.txt, KEY.json; members of uncompressed tars are read where they lie
    VideoParquetReader      Parquet files with encoded videos, {bytes, path} structs, paths or URLs

A row is a whole film; `batch.py` and `stream_columns.py` have the columns. A film that cannot be opened goes to
quarantine with the reason; with `on_bad_record="skip"` it is only counted, with "raise" it stops the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import MIXED, POSITION
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.stage import Columns
from gristmill.core.task import FileGroupTask
from gristmill.io.formats import format_detection
from gristmill.io.formats.decompress import DamagedStreamError
from gristmill.io.formats.format_detection import detect_compression
from gristmill.io.formats.tar import MAX_MEMBER_BYTES, TarMember, check_tar, read_members, sample_key
from gristmill.io.read.composite_reader import CompositeReader
from gristmill.io.read.file_listing import Paths
from gristmill.io.read.file_partitions import BY_MEMBERS, BY_ROW_GROUPS, WHOLE_FILES, FilePartitioningStage
from gristmill.io.read.files_reader import QUARANTINE, FilesReader, relative_file_name
from gristmill.io.storage.file_input import BadRecord, FileInput, file_system
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.batch import sample_extensions
from gristmill.samples.read import ARCHIVE_EXTENSIONS, stem
from gristmill.samples.read_tables import URL, TableReaderStage
from gristmill.samples.sample_files import CAPTION, METADATA
from gristmill.video.batch import BYTE_OFFSET, BYTE_SIZE, SOURCE, VIDEO, VIDEO_ID, BadVideo, VideoBatch
from gristmill.video.decode import DecodeLimits, probe_video
from gristmill.video.one_pass import DECODE_LIMITS, STORAGE_OPTIONS
from gristmill.video.stream_columns import SPAN_TYPES, STREAM_TYPES, film_span_columns, info_columns
from gristmill.video.stream_info import StreamInfo

MAX_SIDECAR_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Film:
    """A row: where a film is, and what its header says."""

    name: str
    source: str
    info: StreamInfo
    position: int
    byte_range: tuple[int, int] | None = None
    data: bytes | None = None
    caption: str | None = None
    metadata: str | None = None


def film_table(films: Sequence[Film], encoded: bool = False) -> pa.Table:
    """The rows of films, with their bytes if `encoded`."""
    offsets = [None if film.byte_range is None else film.byte_range[0] for film in films]
    sizes = [None if film.byte_range is None else film.byte_range[1] for film in films]
    columns: dict[str, Any] = {
        VIDEO_ID: make_array([film.name for film in films], pa.string()),
        SOURCE: make_array([film.source for film in films], pa.string()),
        BYTE_OFFSET: make_array(offsets, pa.int64()),
        BYTE_SIZE: make_array(sizes, pa.int64()),
    }
    if encoded:
        columns[VIDEO] = make_array([film.data for film in films], pa.large_binary())
    infos = [film.info for film in films]
    columns |= film_span_columns(infos) | info_columns(infos)
    columns[CAPTION] = make_array([film.caption for film in films], pa.string())
    texts = make_array([film.metadata for film in films], pa.string())
    columns[METADATA] = pa.ExtensionArray.from_storage(MIXED, texts.cast(MIXED.storage_type))
    columns[POSITION] = make_array([film.position for film in films], pa.int64())
    return pa.table(columns)


class FilmsReader(FilesReader[FileGroupTask, VideoBatch]):
    """Base of the stages that read films."""

    kind = VideoBatch
    takes_empty = True

    def __init__(
        self,
        verbose: bool = False,
        on_bad_record: str = QUARANTINE,
        task_batch_size: int = 1,
        limits: DecodeLimits | None = None,
    ) -> None:
        super().__init__(on_bad_record=on_bad_record)
        check_positive(self.name, "task_batch_size", task_batch_size)
        self.verbose, self.task_batch_size, self.limits = verbose, task_batch_size, limits

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [VIDEO_ID, SOURCE, BYTE_OFFSET, BYTE_SIZE, *SPAN_TYPES, *STREAM_TYPES, CAPTION, METADATA]

    def schema(self, source: FileInput) -> pa.Schema | None:
        return film_table([]).schema

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        raise AssertionError("process() reads films")

    def empty_batch(self, task: FileGroupTask) -> VideoBatch:
        return self.batch(task, film_table([]), {})

    def batch(self, task: FileGroupTask, table: pa.Table, metadata: Mapping[str, Any]) -> VideoBatch:
        more: dict[str, Any] = {} if self.limits is None else {DECODE_LIMITS: self.limits}
        if task.storage_options:
            more[STORAGE_OPTIONS] = dict(task.storage_options)
        return super().batch(task, table, {**metadata, **more})

    def _batches(self, task: FileGroupTask, films: Iterator[Film], file: str | None) -> Iterator[VideoBatch]:
        waiting: list[Film] = []
        for film in films:
            waiting.append(film)
            if len(waiting) >= self.task_batch_size:
                yield self.batch(task, film_table(waiting, film.data is not None), {SOURCE_FILE: file})
                waiting = []
        if waiting:
            yield self.batch(task, film_table(waiting, waiting[0].data is not None), {SOURCE_FILE: file})

    def _info(
        self, source: FileInput, place: Any, position: int, byte_range: tuple[int, int] | None = None, name: str = ""
    ) -> StreamInfo | None:
        """The header of a film; None for one that is bad, which is reported."""
        try:
            return probe_video(place, byte_range, source.storage_options, self.limits)
        except BadVideo as error:
            source.on_bad(BadRecord(position, f"{name or source.path}: {error}"))
            return None


class VideoReaderStage(FilmsReader):
    """Makes a row of each film file, with what its header says."""

    name = "read_videos"

    def process(self, task: FileGroupTask) -> Iterator[VideoBatch]:
        empty = True
        for batch in self._batches(task, self._films(task), task.metadata.get("partition")):
            empty = False
            yield batch
        if empty:
            yield self.empty_batch(task)

    def _films(self, task: FileGroupTask) -> Iterator[Film]:
        positions = {path: position for position, path in enumerate(task.data)}
        for part in task.parts():
            source = self.source(task, part)
            info = self._info(source, part.path, positions[part.path])
            if info is not None:
                caption, metadata = (_beside(source, extension) for extension in ("txt", "json"))
                name = stem(relative_file_name(task, part))
                yield Film(name, part.path, info, positions[part.path], caption=caption, metadata=_valid_json(metadata))


def _beside(source: FileInput, extension: str) -> str | None:
    """The text of the file beside a film."""
    system, path = file_system(source.path, source.storage_options)
    if source.path.startswith(("http://", "https://")):
        return None
    try:
        with system.open(f"{stem(path)}.{extension}", "rb") as file:
            text: str = file.read(MAX_SIDECAR_BYTES).decode("utf-8-sig").strip()
            return text
    except (OSError, UnicodeDecodeError):
        return None


def _valid_json(text: str | None) -> str | None:
    from gristmill.core.arrow.table_conversion import parse_json

    try:
        parse_json(text or "")
    except ValueError:
        return None
    return text or None


@dataclass(eq=False, repr=False)
class VideoReader(CompositeReader[VideoBatch]):
    """Reads films in files: mp4, mov, mkv, webm, avi, ts and others; folders, patterns or lists of paths and URLs.

    Nothing but headers is fetched: stages behind it read films where they lie, remote ones in ranges.
    """

    extensions = tuple(f".{extension}" for extension in sample_extensions(VideoBatch))
    split_by = WHOLE_FILES

    input_video_path: Paths
    video_limit: int | None = None
    verbose: bool = False
    files_per_partition: int = 1
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limits: DecodeLimits | None = None

    def lister(self) -> FilePartitioningStage:
        limit = None if self.video_limit is None or self.video_limit < 0 else self.video_limit
        stage = FilePartitioningStage(
            self.input_video_path,
            self.files_per_partition,
            None,
            self.file_extensions or self.extensions,
            self.storage_options,
            limit,
            split_by=self.split_by,
        )
        stage.name = "list_videos"
        return stage

    def reading_stage(self) -> VideoReaderStage:
        return VideoReaderStage(self.verbose, self.on_bad_record, limits=self.limits)


# -- archives --------------------------------------------------------------------------------------------------


class VideoWebDatasetReaderStage(FilmsReader):
    """Makes a row of each film in WebDataset archives, with the caption and metadata beside it."""

    name = "read_video_webdataset"
    unit = "byte"

    def schema(self, source: FileInput) -> pa.Schema | None:
        check_tar(source)
        return super().schema(source)

    def process(self, task: FileGroupTask) -> Iterator[VideoBatch]:
        empty = True
        for part in task.parts():
            source, name = self.source(task, part), relative_file_name(task, part)
            for batch in self._batches(task, self._films(source, name), name):
                empty = False
                yield batch
        if empty:
            yield self.empty_batch(task)

    def _films(self, source: FileInput, name: str) -> Iterator[Film]:
        with source.open() as file:
            compressed = detect_compression(source.path, file.read(64)) is not None
        extensions = frozenset(sample_extensions(VideoBatch))
        try:
            for key, members in _samples(read_members(source, MAX_MEMBER_BYTES, with_data=compressed)):
                film = next((one for one in members if _ending(one.name) in extensions), None)
                if film is None:
                    others = ", ".join(one.name for one in members)
                    source.on_bad(BadRecord(members[0].offset, f"sample {key!r} has no video, only {others}"))
                    continue
                made = self._film(source, name, key, film, {_ending(one.name): one for one in members})
                if made is not None:
                    yield made
        except DamagedStreamError as damage:
            source.on_bad(BadRecord(0, str(damage)))

    def _film(
        self, source: FileInput, archive: str, key: str, film: TarMember, members: Mapping[str, TarMember]
    ) -> Film | None:
        where = None if film.data is not None else (film.data_offset, film.size)
        place = source.path if where else film.data
        info = self._info(source, place, film.offset, where, f"{archive}, {film.name}")
        if info is None:
            return None
        caption, metadata = (_member_text(source, members.get(ending)) for ending in ("txt", "json"))
        return Film(key, source.path, info, film.offset, where, film.data, caption, _valid_json(metadata))


def _samples(members: Iterator[TarMember]) -> Iterator[tuple[str, list[TarMember]]]:
    """Runs of members with one key."""
    key, run = "", list[TarMember]()
    for member in members:
        base = member.name.rpartition("/")[2]
        if base.startswith("."):
            continue
        own = sample_key(member.name.removeprefix("./"))
        if run and own != key:
            yield key, run
            run = []
        key = own
        run.append(member)
    if run:
        yield key, run


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _member_text(source: FileInput, member: TarMember | None) -> str | None:
    if member is None or member.size > MAX_SIDECAR_BYTES:
        return None
    data = member.data
    if data is None:
        with source.open() as file:
            file.seek(member.data_offset)
            data = file.read(member.size)
    try:
        return (data or b"").decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


class VideoWebDatasetReader(CompositeReader[VideoBatch]):
    """Reads films in WebDataset archives, several workers to a large one."""

    extensions = ARCHIVE_EXTENSIONS
    split_by = BY_MEMBERS

    def __init__(
        self,
        file_paths: Paths,
        files_per_partition: int | None = None,
        blocksize: int | str | None = None,
        file_extensions: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        on_bad_record: str = QUARANTINE,
        limit: int | None = None,
        limits: DecodeLimits | None = None,
    ) -> None:
        self.file_paths, self.files_per_partition, self.blocksize = file_paths, files_per_partition, blocksize
        self.file_extensions, self.storage_options = file_extensions, storage_options
        self.on_bad_record, self.limit, self.limits = on_bad_record, limit, limits
        self.decompose()

    def reading_stage(self) -> VideoWebDatasetReaderStage:
        return VideoWebDatasetReaderStage(False, self.on_bad_record, limits=self.limits)


# -- tables ----------------------------------------------------------------------------------------------------


class VideoParquetReaderStage(TableReaderStage[FileGroupTask, VideoBatch]):
    """Reads Parquet files with encoded videos, or with paths or URLs, and the headers of the videos."""

    name = "read_video_parquet"
    kind = VideoBatch

    def __init__(self, *settings: Any, limits: DecodeLimits | None = None) -> None:
        super().__init__(*settings)
        self.limits = limits

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [VIDEO_ID, SOURCE, VIDEO, *SPAN_TYPES, *STREAM_TYPES]

    def _table(self, source: FileInput, table: pa.Table) -> pa.Table:
        made = super()._table(source, table)
        names = made.column_names
        if self.url_field in table.column_names:
            at = names.index(SOURCE)
            made = made.set_column(at, SOURCE, table.column(self.url_field).cast(pa.string()))
        return self._with_headers(source, made)

    def _with_headers(self, source: FileInput, table: pa.Table) -> pa.Table:
        """The rows whose video can be opened, with the columns of its header. The others are bad records."""
        good: list[int] = []
        infos: list[StreamInfo] = []
        wanted = [name for name in (SOURCE, VIDEO, POSITION, BYTE_OFFSET, BYTE_SIZE) if name in table.column_names]
        for at in range(table.num_rows):
            row = {name: table.column(name)[at].as_py() for name in wanted}
            size, data = row.get(BYTE_SIZE), row.get(VIDEO)
            where = None if size is None or data is not None else (row.get(BYTE_OFFSET) or 0, size)
            place = row[SOURCE] if data is None else data
            if not place:
                source.on_bad(BadRecord(row[POSITION], f"row {row[POSITION]}: neither a video nor a path"))
                continue
            try:
                infos.append(probe_video(place, where, source.storage_options, self.limits))
                good.append(at)
            except BadVideo as error:
                source.on_bad(BadRecord(row[POSITION], f"row {row[POSITION]}: {error}"))
        table = table.take(make_array(good, pa.int64()))
        columns = {name: table.column(name) for name in table.column_names if name != POSITION}
        given = {name: column for name, column in columns.items() if name in SPAN_TYPES}
        columns |= info_columns(infos) | (given or film_span_columns(infos))
        return pa.table(columns | {POSITION: table.column(POSITION)})


@dataclass(eq=False, repr=False)
class VideoParquetReader(CompositeReader[VideoBatch]):
    """Reads Parquet files with encoded videos in `video_field`, or with paths or addresses in `url_field`."""

    extensions = format_detection.PARQUET_EXTENSIONS
    split_by = BY_ROW_GROUPS

    file_paths: Paths
    video_field: str = VIDEO
    url_field: str = URL
    id_field: str | None = None
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    fields: Sequence[str] | None = None
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None
    limits: DecodeLimits | None = None

    def reading_stage(self) -> VideoParquetReaderStage:
        columns = (self.video_field, self.url_field, self.id_field, None)
        return VideoParquetReaderStage(*columns, self.fields, self.blocksize, self.on_bad_record, limits=self.limits)
