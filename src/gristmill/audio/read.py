"""Read recordings: manifests and directories. Nothing is decoded, and recordings stay where they are.

    ManifestReader         NeMo manifests, a JSON object per line
    AudioDirectoryReader   files, with .txt or .lab beside them
    CreateInitialManifestReadSpeechStage   the read speech of the DNS challenge

`layouts` reads lists of other kinds, archives and tables.

Batches end where their recordings make `batch_seconds`, as far as manifests know durations, so that what is decoded of
one fits into memory; without stages that decode, nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import AUDIO_FILEPATH, DURATION, TEXT, AudioBatch
from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, column_values, is_json, is_text
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import InputError
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask, FileGroupTask
from gristmill.io.formats import format_detection
from gristmill.io.formats.jsonl import peek_jsonl, read_jsonl
from gristmill.io.formats.line_blocks import MAX_LINE_BYTES
from gristmill.io.read.composite_reader import CompositeReader
from gristmill.io.read.file_listing import Paths
from gristmill.io.read.file_partitions import BY_LINES, WHOLE_FILES, FilePartitioningStage
from gristmill.io.read.files_reader import QUARANTINE, FilesReader
from gristmill.io.storage.file_input import BadRecord, FileInput, file_system
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.batch import sample_extensions

BATCH_ROWS, BATCH_SECONDS = 4000, 3600.0
MANIFEST_EXTENSIONS = format_detection.with_compressed_extensions((".jsonl", ".json"))


class ManifestReaderStage(FilesReader[FileGroupTask, AudioBatch]):
    """Reads the lines of NeMo manifests. Paths that are not absolute begin in the directory of their manifest."""

    name = "read_manifest"
    kind = AudioBatch
    unit = "byte"

    def __init__(
        self,
        fields: Sequence[str] | None = None,
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
        task_batch_size: int = BATCH_ROWS,
        batch_seconds: float = BATCH_SECONDS,
    ) -> None:
        super().__init__(fields=fields, blocksize=blocksize, on_bad_record=on_bad_record)
        check_batch_size(self.name, task_batch_size, batch_seconds)
        self.task_batch_size, self.batch_seconds = task_batch_size, batch_seconds

    def outputs(self) -> tuple[list[str], Columns]:
        return [], self.fields or [AUDIO_FILEPATH]

    def schema(self, source: FileInput) -> pa.Schema | None:
        schema = peek_jsonl(source, self.fields)
        if schema is not None and AUDIO_FILEPATH not in schema.names:
            raise InputError(
                f"{source.path} is no manifest: its lines have no {AUDIO_FILEPATH!r}, only {', '.join(schema.names)}"
            )
        return schema

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        for table in read_jsonl(source, self.fields, MAX_LINE_BYTES):
            yield from cut_table(self._with_paths(source, table), self.task_batch_size, self.batch_seconds)

    def _with_paths(self, source: FileInput, table: pa.Table) -> pa.Table:
        """The rows that name a recording, with absolute paths. The others are bad records."""
        names = table.column_names
        kind = table.schema.field(AUDIO_FILEPATH).type if AUDIO_FILEPATH in names else pa.null()
        if is_json(kind) or not is_text(kind):
            paths: list[str | None] = [None] * table.num_rows
            if AUDIO_FILEPATH in names:
                paths = [one if isinstance(one, str) else None for one in column_values(table.column(AUDIO_FILEPATH))]
            at = names.index(AUDIO_FILEPATH) if AUDIO_FILEPATH in names else 0
            place = table.set_column if AUDIO_FILEPATH in names else table.add_column
            table = place(at, AUDIO_FILEPATH, make_array(paths, pa.string()))
        column = table.column(AUDIO_FILEPATH)
        named = pc.fill_null(pc.greater(pc.binary_length(column), literal(0, pa.int32())), literal(False, pa.bool_()))
        if not pc.all(named).as_py():
            for position in table.filter(pc.invert(named)).column(POSITION).to_pylist():
                source.on_bad(BadRecord(position, f"a line of a manifest without {AUDIO_FILEPATH}"))
            table = table.filter(named)
        return with_absolute_paths(table, source.path)


def with_absolute_paths(table: pa.Table, manifest: str) -> pa.Table:
    """The rows with paths that do not depend on where they are read: relative ones begin beside the manifest."""
    column = table.column(AUDIO_FILEPATH)
    absolute = pc.match_substring_regex(column, r"^/|^[a-z0-9+]+:")
    if pc.all(absolute).as_py() in (True, None):
        return table
    folder = manifest.rpartition("/")[0]
    joined = pc.binary_join_element_wise(literal(folder, column.type), column, literal("/", column.type))
    at = table.column_names.index(AUDIO_FILEPATH)
    return table.set_column(at, AUDIO_FILEPATH, pc.if_else(absolute, column, joined))


def cut_table(table: pa.Table, rows: int, seconds: float) -> Iterator[pa.Table]:
    """The table in parts of at most `rows` rows, each cut where its recordings make `seconds`."""
    if not table.num_rows:
        yield table
        return
    starts = {*range(0, table.num_rows, rows)}
    if DURATION in table.column_names:
        column = table.column(DURATION)
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            lengths = np.nan_to_num(column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(), posinf=0, neginf=0)
            hours = np.floor(np.cumsum(np.maximum(lengths, 0)) / seconds)
            starts.update((np.flatnonzero(np.diff(hours)) + 1).tolist())
    ordered = [*sorted(starts), table.num_rows]
    for start, end in pairwise(ordered):
        yield table.slice(start, end - start)


def check_batch_size(stage: str, rows: Any, seconds: Any) -> None:
    """For constructors of readers."""
    check_positive(stage, "task_batch_size", rows)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
        raise ValueError(f"stage {stage!r}: batch_seconds is {seconds!r}, must be a number of seconds above 0")


@dataclass(eq=False, repr=False)
class ManifestReader(CompositeReader[AudioBatch]):
    """Reads NeMo manifests: a JSON object per line, with the path of a recording in `audio_filepath`."""

    extensions = MANIFEST_EXTENSIONS
    split_by = BY_LINES

    manifest_path: Paths
    files_per_partition: int | None = 1
    blocksize: int | str | None = None
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    fields: Sequence[str] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None
    task_batch_size: int = BATCH_ROWS
    batch_seconds: float = BATCH_SECONDS

    def paths(self) -> Paths:
        return self.manifest_path

    def reading_stage(self) -> ManifestReaderStage:
        return ManifestReaderStage(
            self.fields, self.blocksize, self.on_bad_record, self.task_batch_size, self.batch_seconds
        )


class AudioFilesReaderStage(FilesReader[FileGroupTask, AudioBatch]):
    """Makes a row of each recording: its path, and the text of the .txt or .lab of the same name."""

    name = "read_audio_files"
    kind = AudioBatch
    transcripts: tuple[str, ...] = ("txt", "lab")

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [AUDIO_FILEPATH, TEXT]

    def schema(self, source: FileInput) -> pa.Schema | None:
        return pa.schema([(AUDIO_FILEPATH, pa.string()), (TEXT, pa.string()), (POSITION, pa.int64())])

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        raise AssertionError("process() makes the rows of a partition together")

    def process(self, task: FileGroupTask) -> Iterator[AudioBatch]:
        positions = {path: position for position, path in enumerate(task.data)}
        paths, texts = [], []
        for part in task.parts():
            source = self.source(task, part)
            try:
                texts.append(self._transcript(source))
            except UnicodeDecodeError as error:
                source.on_bad(BadRecord(positions[part.path], f"a transcript that is no UTF-8 at byte {error.start}"))
                continue
            paths.append(part.path)
        columns = {AUDIO_FILEPATH: make_array(paths, pa.string()), TEXT: make_array(texts, pa.string())}
        places = make_array([positions[path] for path in paths], pa.int64())
        yield self.batch(task, pa.table({**columns, POSITION: places}), {SOURCE_FILE: task.metadata.get("partition")})

    def _transcript(self, source: FileInput) -> str | None:
        system, path = file_system(source.path, source.storage_options)
        stem = path.rpartition(".")[0]
        for extension in self.transcripts:
            try:
                with system.open(f"{stem}.{extension}", "rb") as file:
                    text: str = file.read(MAX_LINE_BYTES).decode("utf-8-sig").strip()
                    return text
            except FileNotFoundError:
                continue
        return None


@dataclass(eq=False, repr=False)
class AudioDirectoryReader(CompositeReader[AudioBatch]):
    """Reads directories of recordings, and of videos with sound, with the transcripts beside them."""

    extensions = tuple(f".{extension}" for extension in sample_extensions(AudioBatch))

    file_paths: Paths
    files_per_partition: int = 1000
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None

    def reading_stage(self) -> AudioFilesReaderStage:
        return AudioFilesReaderStage(on_bad_record=self.on_bad_record)


class ReadSpeechFilesStage(AudioFilesReaderStage):
    """Makes a row of each recording, with the book and the reader that its name tells."""

    name = "read_readspeech"
    transcripts = ()

    def __init__(self, filepath_key: str = AUDIO_FILEPATH, text_key: str = TEXT) -> None:
        super().__init__()
        self.filepath_key, self.text_key = filepath_key, text_key

    def process(self, task: FileGroupTask) -> Iterator[AudioBatch]:
        for batch in super().process(task):
            paths = batch.data.column(AUDIO_FILEPATH).to_pylist()
            columns = {self.filepath_key: paths, self.text_key: [""] * len(paths)}
            columns |= {f"{what}_id": [_part_after(path, what) for path in paths] for what in ("book", "reader")}
            rows = batch
            for name, values in columns.items():
                rows = rows.with_column(name, make_array(values, pa.string()))
            yield rows


def _part_after(path: str, word: str) -> str:
    """What follows a word in a name such as book_00000_chp_0009_reader_06709_0_seg_1.wav."""
    parts = path.rpartition("/")[2].rpartition(".")[0].split("_")
    at = parts.index(word) + 1 if word in parts else len(parts)
    return parts[at] if at < len(parts) else ""


@dataclass(eq=False, repr=False)
class CreateInitialManifestReadSpeechStage(CompositeStage[EmptyTask, AudioBatch]):
    """Reads the read speech of the fifth DNS challenge, wav files in any folder of `raw_data_dir`, with `book_id` and
    `reader_id`: the first `max_samples` by name, or all if that is not above 0.

    Nothing is downloaded: with `auto_download` a directory without recordings is an error that says where to get them.
    """

    _catalogue_kind = "reader"

    raw_data_dir: str
    max_samples: int = 5000
    auto_download: bool = True
    filepath_key: str = AUDIO_FILEPATH
    text_key: str = TEXT

    def with_(self, stages: Any = None, /, **settings: Any) -> Self:
        """As for other composites; `batch_size` changes nothing, as batches are cut by files."""
        settings.pop("batch_size", None)
        return super().with_(stages, **settings)

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        limit = self.max_samples if self.max_samples > 0 else None
        listing = _ReadSpeechListing(str(self.raw_data_dir), 1000, None, [".wav"], None, limit, split_by=WHOLE_FILES)
        return [listing, ReadSpeechFilesStage(self.filepath_key, self.text_key)]


class _ReadSpeechListing(FilePartitioningStage):
    """Lists the recordings, or says where to get them."""

    def files(self) -> Any:
        try:
            return super().files()
        except InputError as error:
            raise InputError(
                f"{error}. auto_download downloads nothing, so that runs do not depend on a network. On a machine that "
                "has one: download read_speech.tgz.partaa (4.88 GB) as https://github.com/microsoft/DNS-Challenge says "
                "(datasets_fullband), and unpack it there"
            ) from error
