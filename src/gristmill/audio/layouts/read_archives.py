"""Read recordings with their bytes: archives and tables. Nothing is decoded.

AudioWebDatasetReader   tars of KEY.flac, KEY.json, KEY.txt
TarredManifestReader    NeMo: tars of recordings, and manifests with a line for each
LhotseSharReader        Lhotse Shar: tars of recordings, and cuts
AudioParquetReader      the {bytes, path} structs of the Hugging Face hub, or bytes
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from gristmill.audio.batch import AUDIO, AUDIO_FILEPATH, DURATION, OFFSET, TEXT, AudioBatch
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, parse_json, rows_to_table, table_to_rows
from gristmill.core.errors import InputError
from gristmill.core.stage import Columns
from gristmill.core.task import FileGroupTask, FileSlice
from gristmill.io.formats import format_detection
from gristmill.io.formats.jsonl import read_jsonl
from gristmill.io.formats.tar import MAX_MEMBER_BYTES, TarMember, check_tar, read_members
from gristmill.io.read.composite_reader import CompositeReader
from gristmill.io.read.file_listing import Paths, as_paths
from gristmill.io.read.file_partitions import BY_ROW_GROUPS
from gristmill.io.read.files_reader import QUARANTINE, FilesReader
from gristmill.io.storage.file_input import BadRecord, FileInput, ignore
from gristmill.samples.read import SAMPLES_PER_BATCH, ArchiveReader, ArchiveReaderStage
from gristmill.samples.read_tables import URL, TableReaderStage
from gristmill.samples.sample_files import CAPTION, EXTENSION, METADATA

SHARD_ID = "shard_id"


class AudioWebDatasetReaderStage(ArchiveReaderStage[FileGroupTask, AudioBatch]):
    """Reads WebDataset archives as streams; nothing is extracted to disk."""

    name = "read_audio_webdataset"
    kind = AudioBatch

    def outputs(self) -> tuple[list[str], list[str]]:
        return [], [*super().outputs()[1], AUDIO_FILEPATH, TEXT, DURATION]

    def batch(self, task: FileGroupTask, table: pa.Table, metadata: Mapping[str, Any]) -> AudioBatch:
        """The samples with the columns of recordings: the name of the member, and text and duration of the .json."""
        if AUDIO_FILEPATH not in table.column_names:
            keys, extensions = (table.column(name).to_pylist() for name in (self.kind.id_column, EXTENSION))
            storage = table.column(METADATA).to_pylist()
            parsed = [parse_json(text) if isinstance(text, str) else None for text in storage]
            known: list[dict[str, Any]] = [one if isinstance(one, dict) else {} for one in parsed]
            captions = table.column(CAPTION).to_pylist()
            texts = [
                one if one is not None else _of_type(more.get(TEXT), str)
                for one, more in zip(captions, known, strict=True)
            ]
            lengths = [_of_type(more.get(DURATION), int | float) for more in known]
            paths = [f"{key}.{extension}" for key, extension in zip(keys, extensions, strict=True)]
            at = table.column_names.index(POSITION)
            for name, values, kind in (
                (DURATION, lengths, pa.float64()), (TEXT, texts, pa.string()), (AUDIO_FILEPATH, paths, pa.string()),
            ):  # fmt: skip
                table = table.add_column(at, name, make_array(values, kind))
        return super().batch(task, table, metadata)


def _of_type(value: Any, kind: Any) -> Any:
    return value if isinstance(value, kind) else None


class AudioWebDatasetReader(ArchiveReader[AudioBatch]):
    """Reads WebDataset archives of recordings, several workers to a large one."""

    stage_class = AudioWebDatasetReaderStage


class AudioParquetReaderStage(TableReaderStage[FileGroupTask, AudioBatch]):
    """Reads Parquet files with recordings or URLs."""

    name = "read_audio_parquet"
    kind = AudioBatch


@dataclass(eq=False, repr=False)
class AudioParquetReader(CompositeReader[AudioBatch]):
    """Reads Parquet files with encoded recordings in `audio_field`, or with addresses in `url_field`."""

    extensions = format_detection.PARQUET_EXTENSIONS
    split_by = BY_ROW_GROUPS

    file_paths: Paths
    audio_field: str = AUDIO
    url_field: str = URL
    id_field: str | None = None
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    fields: Sequence[str] | None = None
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None

    def reading_stage(self) -> AudioParquetReaderStage:
        columns = (self.audio_field, self.url_field, self.id_field, None)
        return AudioParquetReaderStage(*columns, self.fields, self.blocksize, self.on_bad_record)


# -- tars ----------------------------------------------------------------------------------------------------


class RecordingsReaderStage(FilesReader[FileGroupTask, AudioBatch]):
    """Base of the stages that read tars of recordings whose columns stand in another file."""

    kind = AudioBatch
    unit = "byte"

    def __init__(
        self,
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
        task_batch_size: int = SAMPLES_PER_BATCH,
        max_bytes: int = MAX_MEMBER_BYTES,
    ) -> None:
        super().__init__(blocksize=blocksize, on_bad_record=on_bad_record)
        self.task_batch_size, self.max_bytes = task_batch_size, max_bytes

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [AUDIO_FILEPATH, AUDIO]

    def schema(self, source: FileInput) -> pa.Schema | None:
        check_tar(source)
        return None

    @abstractmethod
    def recordings(self, source: FileInput) -> Iterator[tuple[TarMember, list[dict[str, Any]]]]:
        """The members that are recordings, each with the columns of its rows."""

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        waiting: list[tuple[dict[str, Any], bytes, int]] = []
        size = 0
        for member, rows in self.recordings(source):
            waiting += [(row, member.data or b"", member.offset) for row in rows]
            size += member.size
            if len(waiting) >= self.task_batch_size or size >= self.blocksize:
                yield _recordings(waiting)
                waiting, size = [], 0
        if waiting:
            yield _recordings(waiting)


def _recordings(given: Sequence[tuple[dict[str, Any], bytes, int]]) -> pa.Table:
    table = rows_to_table([row for row, _, _ in given])
    table = table.append_column(AUDIO, make_array([data for _, data, _ in given], pa.large_binary()))
    return table.append_column(POSITION, make_array([position for _, _, position in given], pa.int64()))


# -- NeMo ----------------------------------------------------------------------------------------------------


def expand_shards(path: str) -> list[str]:
    """`audio__OP_0..7_CL_.tar` and `audio_{0..7}.tar` as the eight names that they stand for."""
    match = re.search(r"(?:_OP_|\{)(\d+)\.\.(\d+)(?:_CL_|\})", path)
    if not match:
        return [path]
    first, last = int(match[1]), int(match[2])
    width = len(match[1]) if match[1].startswith("0") and len(match[1]) > 1 else 0
    names = [f"{path[: match.start()]}{number:0{width}}{path[match.end() :]}" for number in range(first, last + 1)]
    return [name for one in names for name in expand_shards(one)]


def shard_number(path: str) -> int | None:
    """The last number in the name of a shard."""
    numbers = re.findall(r"\d+", path.rpartition("/")[2].partition(".")[0])
    return int(numbers[-1]) if numbers else None


class TarredManifestReaderStage(RecordingsReaderStage):
    """Reads the tars of a tarred NeMo manifest, with the columns of their lines."""

    name = "read_tarred_manifest"

    def __init__(
        self,
        manifest_paths: Sequence[str],
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
        task_batch_size: int = SAMPLES_PER_BATCH,
        max_bytes: int = MAX_MEMBER_BYTES,
    ) -> None:
        super().__init__(blocksize, on_bad_record, task_batch_size, max_bytes)
        self.manifest_paths = list(manifest_paths)

    def recordings(self, source: FileInput) -> Iterator[tuple[TarMember, list[dict[str, Any]]]]:
        lines = self._lines(source)
        for member in read_members(source, self.max_bytes):
            entries = lines.pop(member.name.removeprefix("./"), None)
            if entries is None:
                self.count("members_without_a_line")
            else:
                yield member, entries
        for name, entries in lines.items():
            source.on_bad(
                BadRecord(0, f"the tar has no member {name!r}, which the manifest names", records=len(entries))
            )

    def _lines(self, source: FileInput) -> dict[str, list[dict[str, Any]]]:
        """The lines of the manifest for this shard, by the member that they are about."""
        number = shard_number(source.path)
        own = [path for path in self.manifest_paths if shard_number(path) == number]
        paths = own if len(self.manifest_paths) > 1 and own else self.manifest_paths
        found: dict[str, list[dict[str, Any]]] = {}
        for path in paths:
            shards = _lines_by_shard(path, tuple(source.storage_options.items()))
            for row in shards.get(number, []) + shards.get(None, []):
                found.setdefault(_member_of(str(row.get(AUDIO_FILEPATH))), []).append(row)
        return found


def _member_of(path: str) -> str:
    """The member that a line is about: segments of one recording are called `name-sub1.wav`, `name-sub2.wav` ..."""
    return re.sub(r"-sub\d+(\.\w+)$", r"\1", path)


@lru_cache(maxsize=8)
def _lines_by_shard(path: str, options: tuple[tuple[str, Any], ...]) -> dict[int | None, list[dict[str, Any]]]:
    """The lines of a manifest by the shard that they name; None for those that name none."""
    shards: dict[int | None, list[dict[str, Any]]] = {}
    source = replace(FileInput(FileSlice(path), dict(options)), on_bad=ignore)
    for table in read_jsonl(source):
        for row in table_to_rows(table.drop_columns([POSITION])):
            shards.setdefault(row.get(SHARD_ID), []).append(row)
    return shards


@dataclass(eq=False, repr=False)
class TarredManifestReader(CompositeReader[AudioBatch]):
    """Reads a tarred NeMo dataset: `tarred_audio_filepaths` are the tars, `manifest_path` one manifest for all of them,
    whose lines have a `shard_id`, or one for each. Both may have patterns, as in `audio__OP_0..7_CL_.tar`.

    Members without a line in the manifest are left out, and counted.
    """

    extensions = (".tar",)

    manifest_path: Paths
    tarred_audio_filepaths: Paths
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None
    task_batch_size: int = SAMPLES_PER_BATCH
    max_bytes: int = MAX_MEMBER_BYTES

    def paths(self) -> Paths:
        return [name for path in as_paths(self.tarred_audio_filepaths) for name in expand_shards(path)]

    def reading_stage(self) -> TarredManifestReaderStage:
        manifests = [name for path in as_paths(self.manifest_path) for name in expand_shards(path)]
        if not manifests or not all(manifests):
            raise InputError("manifest_path is empty: name the manifest of the tars")
        settings = (self.blocksize, self.on_bad_record, self.task_batch_size, self.max_bytes)
        return TarredManifestReaderStage(manifests, *settings)


# -- Lhotse --------------------------------------------------------------------------------------------------


class LhotseSharReaderStage(RecordingsReaderStage):
    """Reads the tars of Lhotse Shar, with the cuts of the list of the same number."""

    name = "read_lhotse_shar"

    def recordings(self, source: FileInput) -> Iterator[tuple[TarMember, list[dict[str, Any]]]]:
        cuts = self._cuts(source)
        for member in read_members(source, self.max_bytes):
            key, _, extension = member.name.removeprefix("./").rpartition(".")
            if extension == "json":
                continue
            cut = cuts.pop(key, None)
            if cut is None:
                self.count("members_without_a_cut")
            else:
                yield member, [{**cut, AUDIO_FILEPATH: member.name}]
        for key in cuts:
            source.on_bad(BadRecord(0, f"the tar has no recording of the cut {key!r}"))

    def _cuts(self, source: FileInput) -> dict[str, dict[str, Any]]:
        """The columns of each cut of the shard, by its id."""
        folder, _, name = source.path.rpartition("/")
        path = f"{folder}/{name.replace('recording', 'cuts', 1).removesuffix('.tar')}.jsonl.gz"
        found: dict[str, dict[str, Any]] = {}
        for table in read_jsonl(replace(FileInput(FileSlice(path), dict(source.storage_options)), on_bad=ignore)):
            for cut in table_to_rows(table.drop_columns([POSITION])):
                said = [one for one in cut.get("supervisions") or () if one]
                texts = [one["text"] for one in said if one.get("text")]
                row = {"cut_id": cut["id"], DURATION: cut.get("duration"), TEXT: " ".join(texts) if texts else None}
                row |= {name: said[0].get(key) for name, key in (("speaker", "speaker"), ("lang", "language")) if said}
                row |= {OFFSET: cut["start"]} if cut.get("start") else {}
                found[str(cut["id"])] = {**(cut.get("custom") or {}), **row}
        return found


@dataclass(eq=False, repr=False)
class LhotseSharReader(CompositeReader[AudioBatch]):
    """Reads Lhotse Shar: `recording.000000.tar` and on, with `cuts.000000.jsonl.gz` beside each.

    Recordings without a cut are left out, and counted.
    """

    extensions = (".tar",)

    file_paths: Paths
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None
    task_batch_size: int = SAMPLES_PER_BATCH
    max_bytes: int = MAX_MEMBER_BYTES

    def reading_stage(self) -> LhotseSharReaderStage:
        return LhotseSharReaderStage(self.blocksize, self.on_bad_record, self.task_batch_size, self.max_bytes)
