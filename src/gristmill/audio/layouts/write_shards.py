"""Write shards that training reads as streams: pairs of a tar of recordings and a list of them, numbered from 0.

    TarredManifestWriter   NeMo: audio_0.tar ..., tarred_audio_manifest.json, sharded_manifests/, metadata.yaml
    LhotseSharWriter       Lhotse: recording.000000.tar ..., cuts.000000.jsonl.gz ...

Shards are written under the names of their sources and numbered when the run has succeeded, in the order of the input
(`io/write/hub_file_names.py`), so their bytes do not depend on workers, blocks or interruptions.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO

import pyarrow as pa

from gristmill.audio.batch import AUDIO, AUDIO_FILEPATH, DURATION, OFFSET, TEXT, AudioBatch, BadAudio
from gristmill.audio.decode import audio_header
from gristmill.audio.waveforms import row_of, set_aside_row, sources_of
from gristmill.audio.write_recordings import check_audio_format, encoded_row, recording_stem
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, json_text, parse_json, table_to_rows
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.core.task import WrittenFiles
from gristmill.io.formats.tar import END_OF_ARCHIVE, member_header, member_padding
from gristmill.io.storage.file_input import block_bytes
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import CommitFiles, Fragment, OutputFiles, OutputFormat
from gristmill.io.write.hub_file_names import HubFileNames
from gristmill.io.write.parquet_format import ParquetFormat, fragment_tables
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.sample_files import EXTENSION
from gristmill.samples.write import SampleWriter, WriteSampleFragments

_WHOLE_FILE = "whole_file"
"""The file that the bytes of a row are, if they are all of it; null for bytes that are those of the row alone."""


class EncodeForShards(ProcessingStage[AudioBatch, AudioBatch]):
    """Puts bytes into `audio`. Rows that follow each other and are parts of one file share its bytes: the first one has
    them, in the others `audio` is null."""

    name = "encode_for_shards"
    takes_empty = True

    def __init__(self, audio_format: str | None, shared: bool) -> None:
        super().__init__()
        self.audio_format, self.shared = audio_format, shared

    def process(self, task: AudioBatch) -> Iterator[AudioBatch]:
        good: list[int] = []
        encoded: list[tuple[bytes | None, str, str | None]] = []
        size, limit = 0, block_bytes(None)
        for row, where in enumerate(sources_of(task)):
            before = encoded[-1][2] if encoded else None
            again = before is not None and before == where[0] and self._is_shared(where)
            made: Any = (None, encoded[-1][1], before) if again else row_of(where, self._encoded)
            if isinstance(made, BadAudio):
                set_aside_row(task, row, made, self)
                continue
            good.append(row)
            encoded.append(made)
            size += len(made[0] or b"")
            if size >= limit:
                yield self._rows(task, good, encoded)
                good, encoded, size = [], [], 0
        yield self._rows(task, good, encoded)

    def _is_shared(self, where: tuple[Any, Any, Any]) -> bool:
        return self.shared and isinstance(where[0], str) and self.audio_format is None

    def _encoded(self, source: Any, offset: float | None, duration: float | None) -> tuple[bytes, str, str | None]:
        if not self._is_shared((source, offset, duration)):
            return (*encoded_row(source, offset, duration, self.audio_format), None)
        audio_header(source)  # raises BadAudio for what is no recording
        return (*encoded_row(source, None, None, None), source)

    def _rows(self, task: AudioBatch, good: Sequence[int], encoded: Sequence[tuple[Any, str, Any]]) -> AudioBatch:
        rows = task.data.take(make_array(good, pa.int64()))
        names = [name for name in rows.column_names if name not in (AUDIO, OFFSET, POSITION)]
        columns: dict[str, Any] = {name: rows.column(name) for name in names}
        given = rows.column(OFFSET).to_pylist() if OFFSET in rows.column_names else [None] * len(good)
        offsets = [one if whole else None for one, (_, _, whole) in zip(given, encoded, strict=True)]
        columns[OFFSET] = make_array(offsets, pa.float64())
        keys = [name for name in (AUDIO_FILEPATH, "audio_id", "original_offset", OFFSET, DURATION) if name in names]
        row_values = table_to_rows(rows.select([*keys, *([OFFSET] if OFFSET in rows.column_names else [])]))
        stems = [
            recording_stem({AUDIO_FILEPATH: whole} if whole else row)
            for row, (_, _, whole) in zip(row_values, encoded, strict=True)
        ]
        columns[_STEM] = make_array(stems, pa.string())
        columns[EXTENSION] = make_array([extension for _, extension, _ in encoded], pa.string())
        columns[_WHOLE_FILE] = make_array([whole for _, _, whole in encoded], pa.string())
        columns[AUDIO] = make_array([data for data, _, _ in encoded], pa.large_binary())
        if POSITION in rows.column_names:
            columns[POSITION] = rows.column(POSITION)
        return AudioBatch(pa.table(columns), dataset_name=task.dataset_name, metadata=dict(task.metadata))


_STEM = "member_stem"
_OWN_COLUMNS = (_STEM, EXTENSION, _WHOLE_FILE, AUDIO)


@dataclass(frozen=True)
class ShardFormat(OutputFormat):
    """Base: tars of `samples_per_tar` rows, each with a list of its rows."""

    samples_per_tar: int = 1000
    name: str = "shards"
    extension: str = ".tar"
    extensions: tuple[str, ...] = (".tar", ".jsonl")
    companion_extensions: tuple[str, ...] = (".jsonl",)
    target_file_size: int | None = 0
    """Not None, so that files are numbered: there may be several for a source."""
    split: str | None = "shards"

    def names(self, number: int) -> tuple[str, str]:
        """What the tar and the list of a shard are called."""
        raise NotImplementedError

    def add(self, shard: RecordingShard, row: dict[str, Any]) -> None:
        """Write the members of a row, and its line to `shard.lines`."""
        raise NotImplementedError

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        ParquetFormat().write_fragment(table, file)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        rows = self._rows(fragments, schema, parts.target)
        first = next(rows, None)
        while first is not None:
            with parts.create() as tar:
                shard = RecordingShard(tar)
                self.add(shard, first)
                first = next(rows, None)
                while first is not None and len(shard.lines) < self.samples_per_tar:
                    self.add(shard, first)
                    first = next(rows, None)
                tar.write(END_OF_ARCHIVE)
            with parts.create() as file:
                file.write(self.list_bytes(shard.lines))

    @staticmethod
    def list_bytes(lines: Sequence[str]) -> bytes:
        return "".join(f"{line}\n" for line in lines).encode()

    @staticmethod
    def _rows(fragments: Sequence[Fragment], schema: pa.Schema, target: OutputDirectory) -> Iterator[dict[str, Any]]:
        """Rows with their bytes, also those that share the bytes of the row before."""
        whole, data = None, None
        for table in fragment_tables(fragments, schema, target):
            for start in range(table.num_rows):
                [row] = table_to_rows(table.slice(start, 1))
                if row[AUDIO] is None and row[_WHOLE_FILE] == whole:
                    row[AUDIO] = data
                whole, data = row[_WHOLE_FILE], row[AUDIO]
                yield row


@dataclass
class RecordingShard:
    """A tar that is being written, with what is in it by now."""

    tar: BinaryIO
    lines: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    files: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The stem and extension of each whole file that is in the tar."""
    parts: dict[str, int] = field(default_factory=dict)
    """How many rows are further parts of such a file."""

    def write(self, name: str, data: bytes) -> None:
        for piece in (member_header(name, len(data)), data, member_padding(len(data))):
            self.tar.write(piece)

    def unused(self, stem: str) -> str:
        """A stem for a member: one that nothing else has, and that no part of a file can have."""
        clean = re.sub(r"-sub(\d+)$", r"_sub\1", re.sub(r"[./\\\x00-\x1f\x7f]", "_", stem)) or "recording"
        number, name = 2, clean
        while name in self.taken:
            name, number = f"{clean}_{number}", number + 1
        self.taken.add(name)
        return name


def _columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _OWN_COLUMNS}


class TarredManifestFormat(ShardFormat):
    """The shards of a tarred NeMo dataset."""

    def names(self, number: int) -> tuple[str, str]:
        return f"audio_{number}.tar", f"audio_{number}.jsonl"

    def add(self, shard: RecordingShard, row: dict[str, Any]) -> None:
        whole = row[_WHOLE_FILE]
        if whole is not None and whole in shard.files:
            stem, extension = shard.files[whole]
            shard.parts[whole] = number = shard.parts.get(whole, 0) + 1
            name = f"{stem}-sub{number}.{extension}"
        else:
            stem, extension = shard.unused(row[_STEM]), row[EXTENSION]
            name = f"{stem}.{extension}"
            shard.write(name, row[AUDIO])
            if whole is not None:
                shard.files[whole] = stem, extension
        line = {**_columns_of(row), AUDIO_FILEPATH: name}
        if line.get(OFFSET) is None:
            line.pop(OFFSET, None)
        shard.lines.append(json_text(line))


class SharFormat(ShardFormat):
    """The shards of Lhotse Shar: cuts, and a recording for each."""

    extensions = (".tar", ".jsonl.gz")
    companion_extensions = (".jsonl.gz",)

    def names(self, number: int) -> tuple[str, str]:
        return f"recording.{number:06}.tar", f"cuts.{number:06}.jsonl.gz"

    @staticmethod
    def list_bytes(lines: Sequence[str]) -> bytes:
        return gzip.compress(ShardFormat.list_bytes(lines), mtime=0)

    def add(self, shard: RecordingShard, row: dict[str, Any]) -> None:
        header = audio_header(row[AUDIO])
        key = shard.unused(str(row.get("cut_id") or row[_STEM]))
        frames = header.frames or round(float(row.get(DURATION) or 0.0) * header.rate)
        seconds = frames / header.rate
        channels = [*range(header.channels)]
        source = {"type": "shar", "channels": channels, "source": ""}
        recording = {
            "id": key, "sources": [source], "sampling_rate": header.rate, "num_samples": frames, "duration": seconds,
            "channel_ids": channels,
        }  # fmt: skip
        channel = 0 if len(channels) == 1 else channels
        said = {"id": key, "recording_id": key, "start": 0.0, "duration": seconds, "channel": channel}
        given = {"text": row.get(TEXT), "language": row.get("lang"), "speaker": row.get("speaker")}
        said |= {name: value for name, value in given.items() if value is not None}
        left_out = (TEXT, "lang", "speaker", OFFSET, DURATION, "cut_id", AUDIO_FILEPATH)
        custom = {name: value for name, value in _columns_of(row).items() if name not in left_out and value is not None}
        cut = {
            "id": key, "start": 0.0, "duration": seconds, "channel": channel, "supervisions": [said],
            "recording": recording, **({"custom": custom} if custom else {}),
            "type": "MonoCut" if len(channels) == 1 else "MultiCut",
        }  # fmt: skip
        shard.write(f"{key}.{row[EXTENSION]}", row[AUDIO])
        shard.write(f"{key}.json", json_text(recording).encode())
        shard.lines.append(json_text(cut))


class _ShardNames(HubFileNames):
    """Numbers the shards of one output: each is a tar and a list."""

    def __init__(self, target: OutputDirectory, form: ShardFormat) -> None:
        super().__init__(target, "shards", form.extension)
        self.form = form

    def _is_numbered(self, name: str) -> bool:
        number = re.search(r"\d+", name)
        return number is not None and name in self.form.names(int(number[0]))

    def _numbered(self, number: int, count: int) -> str:
        return self.form.names(number // 2)[number % 2]


class CommitShards(CommitFiles):
    """Commits shards, and numbers them when the run has succeeded."""

    form: ShardFormat

    @cached_property
    def _hub_names(self) -> HubFileNames:
        return _ShardNames(self.target, self.form)


class CommitTarredManifest(CommitShards):
    """Writes the manifests of a tarred dataset when its shards have their numbers."""

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> Sequence[WrittenFiles] | None:
        done = super().complete(outputs, info)
        lists = [one.path for output in done or () for one in output.written if one.path.endswith(".jsonl")]
        names = sorted((self._number(path), path) for path in lists)
        folder = OutputDirectory(self.target.file("sharded_manifests"), self.target.storage_options)
        folder.create_directory()
        wanted = {f"manifest_{number}.json" for number, _ in names}
        for old in set(folder.names()) - wanted:
            folder.remove(folder.file(old))
        rows = 0
        with self.target.create(self.target.file("tarred_audio_manifest.json")) as everything:
            for number, path in names:
                lines = self._numbered_lines(path, number)
                rows += lines.count(b"\n")
                everything.write(lines)
                with folder.create(folder.file(f"manifest_{number}.json")) as file:
                    file.write(lines)
        with self.target.create(self.target.file("metadata.yaml")) as file:
            file.write(self._metadata(len(names), rows).encode())
        return done

    @staticmethod
    def _number(path: str) -> int:
        return int(re.findall(r"\d+", path.rpartition("/")[2])[0])

    def _numbered_lines(self, path: str, number: int) -> bytes:
        with self.target.open(path) as file:
            rows = [parse_json(line) for line in file.read().decode().splitlines()]
        return b"".join(f"{json_text({**row, 'shard_id': number})}\n".encode() for row in rows)

    def _metadata(self, shards: int, rows: int) -> str:
        return (
            "created_by: gristmill\n"
            "dataset_config:\n"
            f"  num_shards: {shards}\n"
            f"  max_samples_per_shard: {self.form.samples_per_tar}\n"
            "  sorted: false\n"
            "  shuffle: false\n"
            f"num_samples: {rows}\n"
            f"tarred_audio_filepaths: audio__OP_0..{max(shards - 1, 0)}_CL_.tar\n"
            "manifest: tarred_audio_manifest.json\n"
        )


class _ShardWriter(SampleWriter[AudioBatch]):
    """Base of the writers of shards."""

    kind = AudioBatch
    form_class: type[ShardFormat]
    commit_class: type[CommitShards] = CommitShards
    shared = False

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        samples_per_tar: int = 1000,
        audio_format: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_positive(self.name, "samples_per_tar", samples_per_tar)
        check_audio_format(self.name, audio_format)
        super().__init__(output_dir, None, "ignore", storage_options)
        self.samples_per_tar, self.audio_format = samples_per_tar, audio_format

    def inputs(self) -> tuple[list[str], Columns]:
        return [], []

    def _format(self) -> ShardFormat:
        return self.form_class(self.samples_per_tar)

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        form, target = self._format(), OutputDirectory(self.output_dir, self.storage_options)
        write = WriteSampleFragments(AudioBatch, target, form, None, self.mode)
        commit = self.commit_class(target, form, None, self.mode)
        return [EncodeForShards(self.audio_format, self.shared), write, commit]


class TarredManifestWriter(_ShardWriter):
    """Writes a tarred NeMo dataset, which TarredManifestReader reads: `audio_0.tar` and on, with its lines beside it,
    `tarred_audio_manifest.json` with a `shard_id` in each line, the same by shard in `sharded_manifests`, and
    `metadata.yaml`.

    A file of which several rows are parts is written once to a shard. Its first row has its name, the others are called
    `name-sub1.wav`, `name-sub2.wav` and so on; each has its `offset`. With an `audio_format` each row is a file.
    """

    form_class, commit_class, shared = TarredManifestFormat, CommitTarredManifest, True


class LhotseSharWriter(_ShardWriter):
    """Writes Lhotse Shar, which LhotseSharReader reads: `cuts.000000.jsonl.gz` and `recording.000000.tar`, a cut and a
    recording for each row."""

    form_class = SharFormat
