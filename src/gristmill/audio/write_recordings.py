"""Write recordings with their bytes (`samples/write.py`).

    AudioWebDatasetWriter   tars of KEY.flac, KEY.txt, KEY.json, with a Parquet index beside each
    AudioParquetWriter      Parquet files with the encoded recordings in a column
    AudioDirectoryWriter    files in directories, with their transcripts beside them
    SegmentExtractionStage  writes each recording or segment to a file, and goes on with the rows

A recording that is a whole file is written as it is, byte for byte, unless `audio_format` asks for another format. A
segment, and a recording that a stage has changed, is encoded: as flac unless `audio_format` says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from gristmill.audio.batch import (
    AUDIO,
    AUDIO_FILEPATH,
    AUDIO_ID,
    DURATION,
    OFFSET,
    SAMPLE_RATE,
    TEXT,
    AudioBatch,
    BadAudio,
)
from gristmill.audio.decode import decode
from gristmill.audio.sound.audio_format import EXTENSIONS, FLAC
from gristmill.audio.sound.encode import ENCODED_FORMATS, encode, is_waveform_bytes
from gristmill.audio.waveforms import row_of, set_aside_row, sources_of
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import MIXED, POSITION, column_values, json_text, table_to_rows
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.core.task import digest
from gristmill.io.storage.file_input import block_bytes, file_system, parse_size
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import OutputFormat, safe_file_name
from gristmill.io.write.hub_file_names import check_split
from gristmill.io.write.parquet_format import ParquetFormat
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.sample_files import CAPTION, EXTENSION, METADATA
from gristmill.samples.shard_formats import WebDatasetFormat
from gristmill.samples.write import SampleDirectoryWriter, SampleWriter

ORIGINAL_FILE, ORIGINAL_OFFSET = "original_file", "original_offset"
_EXTENSION_BY_FORMAT = {"ogg": "ogg", "opus": "opus"}


def check_audio_format(stage: str, kind: str | None) -> None:
    """For constructors."""
    if kind is not None and kind not in ENCODED_FORMATS:
        raise ValueError(f"{stage}: audio_format is {kind!r}, must be one of {', '.join(ENCODED_FORMATS)}, or None")


def encoded_row(source: Any, offset: float | None, duration: float | None, kind: str | None) -> tuple[bytes, str]:
    """The bytes of a row's recording, and the extension of a file with them. Raises BadAudio."""
    changed = not isinstance(source, str) and is_waveform_bytes(source)
    if kind is None and offset is None and not changed:
        data = _file_bytes(source) if isinstance(source, str) else bytes(source)
        form = AudioBatch.format_of(data)
        if form is None:
            decode(data)  # raises with the reason
        given = source.rpartition(".")[2].lower() if isinstance(source, str) else ""
        usual = EXTENSIONS[form or FLAC]
        return data, given if given in usual else usual[0]
    sound = decode(source, offset, duration)
    form = kind or FLAC
    try:
        return encode(sound.samples, sound.rate, form), _EXTENSION_BY_FORMAT.get(form, form)
    except (ValueError, RuntimeError) as error:
        raise BadAudio(f"it cannot be encoded as {form}: {error}") from error


def _file_bytes(path: str) -> bytes:
    try:
        system, inner = file_system(path, {})
        with system.open(inner, "rb") as file:
            data: bytes = file.read()
    except OSError as error:
        raise BadAudio(f"the file cannot be opened: {error}") from error
    return data


class EncodeRecordings(ProcessingStage[AudioBatch, AudioBatch]):
    """Puts the bytes of each recording into `audio`, with an id, a transcript and metadata for files of a sample."""

    name = "encode_recordings"
    takes_empty = True

    def __init__(self, audio_format: str | None = None, as_samples: bool = True, block: int | None = None) -> None:
        super().__init__()
        self.audio_format, self.as_samples, self.block = audio_format, as_samples, block_bytes(block)

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [AUDIO]

    def process(self, task: AudioBatch) -> Iterator[AudioBatch]:
        def read(source: Any, offset: float | None, duration: float | None) -> tuple[bytes, str]:
            return encoded_row(source, offset, duration, self.audio_format)

        good: list[int] = []
        encoded: list[tuple[bytes, str]] = []
        size = 0
        for row, source in enumerate(sources_of(task)):
            made = row_of(source, read)
            if isinstance(made, BadAudio):
                set_aside_row(task, row, made, self)
                continue
            good.append(row)
            encoded.append(made)
            size += len(made[0])
            if size >= self.block:
                yield self._rows(task, good, encoded)
                good, encoded, size = [], [], 0
        yield self._rows(task, good, encoded)

    def _rows(self, task: AudioBatch, good: Sequence[int], encoded: Sequence[tuple[bytes, str]]) -> AudioBatch:
        rows = task.data.take(make_array(good, pa.int64()))
        columns = {name: rows.column(name) for name in rows.column_names if name not in (AUDIO, OFFSET, POSITION)}
        columns[ORIGINAL_OFFSET] = original_offsets(rows)
        if self.as_samples:
            columns |= _sample_columns(rows)
        columns[EXTENSION] = make_array([extension for _, extension in encoded], pa.string())
        columns[AUDIO] = make_array([data for data, _ in encoded], pa.large_binary())
        if POSITION in rows.column_names:
            columns[POSITION] = rows.column(POSITION)
        return AudioBatch(pa.table(columns), dataset_name=task.dataset_name, metadata=dict(task.metadata))


def _sample_columns(rows: pa.Table) -> dict[str, Any]:
    """The id, the transcript and the metadata of each row, unless it has them."""
    names = rows.column_names
    table = rows.drop_columns([name for name in (AUDIO, POSITION, METADATA, CAPTION) if name in names])
    given = table_to_rows(table)
    found: dict[str, Any] = {}
    if AUDIO_ID not in names:
        found[AUDIO_ID] = make_array([recording_stem(row) for row in given], pa.string())
    if CAPTION not in names:
        texts = [row.get(TEXT) for row in given]
        found[CAPTION] = make_array([one if isinstance(one, str) else None for one in texts], pa.string())
    if METADATA not in names:
        left_out = ("sidecars", "label", "source", EXTENSION, OFFSET)
        texts = [json_text({key: value for key, value in row.items() if key not in left_out}) for row in given]
        found[METADATA] = pa.ExtensionArray.from_storage(MIXED, make_array(texts, pa.string()).cast(MIXED.storage_type))
    return found


def original_offsets(table: pa.Table) -> pa.Array:
    """Where each row begins in the file that it was made of, in seconds; null for one that is a whole file."""
    offsets = pa.nulls(table.num_rows, pa.float64())
    for name in (ORIGINAL_OFFSET, OFFSET):
        if name in table.column_names:
            values = column_values(table.column(name))
            more = make_array([None if one is None else float(one) for one in values], pa.float64())
            offsets = pc.coalesce(pc.add(offsets, more), offsets, more)
    return offsets


def recording_stem(row: Mapping[str, Any]) -> str:
    """A name for the file of a row: that of its recording and, for a segment, its times in milliseconds."""
    path = str(row.get(AUDIO_FILEPATH) or row.get(AUDIO_ID) or "recording")
    base = path.rpartition("/")[2]
    stem = base.rpartition(".")[0] or base
    offsets = [float(row[name]) for name in (ORIGINAL_OFFSET, OFFSET) if row.get(name) is not None]
    if not offsets:
        return stem
    start, length = sum(offsets), float(row.get(DURATION) or 0.0)
    return f"{stem}_{round(1000 * start)}_{round(1000 * (start + length))}"


class _AudioWriter(SampleWriter[AudioBatch]):
    """Base of the writers of recordings."""

    kind = AudioBatch
    audio_format: str | None

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [EncodeRecordings(self.audio_format, self._as_samples()), *super().decompose()]

    def inputs(self) -> tuple[list[str], Columns]:
        return [], []

    def _as_samples(self) -> bool:
        return True


class AudioWebDatasetWriter(_AudioWriter):
    """Writes WebDataset shards of `samples_per_tar` recordings, with a Parquet index beside each: for each recording a
    file of sound, a .txt with its text and a .json with its columns."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        samples_per_tar: int = 1000,
        audio_format: str | None = None,
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_positive(self.name, "samples_per_tar", samples_per_tar)
        check_audio_format(self.name, audio_format)
        super().__init__(output_dir, fields, mode, storage_options)
        self.samples_per_tar, self.audio_format = samples_per_tar, audio_format

    def _format(self) -> OutputFormat:
        return WebDatasetFormat(AudioBatch, self.samples_per_tar)


class AudioParquetWriter(_AudioWriter):
    """Writes Parquet files with the encoded recordings in the column `audio`, which AudioParquetReader reads.

    With `split="train"`, files are named as on the Hugging Face hub: `train-00000-of-00012.parquet`.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        audio_format: str | None = None,
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        target_file_size: int | str | None = None,
        compression: str = "zstd",
        storage_options: Mapping[str, Any] | None = None,
        split: str | None = None,
    ) -> None:
        check_audio_format(self.name, audio_format)
        super().__init__(output_dir, fields, mode, storage_options)
        check_split(self.name, split, mode)
        self.split = split
        self.audio_format, self.target_file_size, self.compression = audio_format, target_file_size, compression

    def _as_samples(self) -> bool:
        return False

    def _format(self) -> OutputFormat:
        size = None if self.target_file_size is None else parse_size(self.target_file_size)
        return ParquetFormat(self.compression, target_file_size=size, split=self.split)


class AudioDirectoryWriter(SampleDirectoryWriter[AudioBatch]):
    """Writes files of sound with a .txt and a .json beside each: a directory for each partition of the input, and an
    index that appears when all of it is there."""

    kind = AudioBatch

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        audio_format: str | None = None,
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_audio_format(self.name, audio_format)
        super().__init__(output_dir, fields, mode, storage_options)
        self.audio_format = audio_format

    def inputs(self) -> tuple[list[str], Columns]:
        return [], []

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [EncodeRecordings(self.audio_format), *super().decompose()]


class SegmentExtractionStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Writes the recording or segment of each row to a file in `output_dir`, and goes on with rows that name it.

    A file is called after its recording, the times of the segment in milliseconds, and a hash of the path, so that a
    run that is repeated writes the same files. `original_file` and `original_offset` say where a row comes from.
    """

    takes_empty = True

    def __init__(self, output_dir: str | os.PathLike[str], output_format: str = "wav", batch_size: int = 64) -> None:
        super().__init__()
        if not os.fspath(output_dir):
            raise ValueError(f"{self.name}: output_dir is empty: name the directory to write to")
        check_audio_format(self.name, output_format)
        self.output_dir, self.output_format, self.batch_size = output_dir, output_format, batch_size

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [AUDIO_FILEPATH, ORIGINAL_FILE, ORIGINAL_OFFSET, DURATION, SAMPLE_RATE]

    def process(self, task: AudioBatch) -> AudioBatch:
        target = OutputDirectory(self.output_dir)
        names = [
            name for name in (AUDIO_FILEPATH, AUDIO_ID, OFFSET, DURATION, ORIGINAL_OFFSET) if name in task.get_columns()
        ]
        rows = table_to_rows(task.data.select(names))
        written: list[tuple[int, str, float, int]] = []
        for row, source in enumerate(sources_of(task)):
            made = row_of(source, partial(self._write, target, rows[row]))
            if isinstance(made, BadAudio):
                set_aside_row(task, row, made, self)
            else:
                written.append((row, *made))
        return self._rows(task, written)

    def _name(self, row: Mapping[str, Any]) -> str:
        origin = str(row.get(AUDIO_FILEPATH) or row.get(AUDIO_ID) or "")
        return safe_file_name(f"{recording_stem(row)}-{digest([origin], 4)}.{self.output_format}")

    def _write(
        self, target: OutputDirectory, row: Mapping[str, Any], source: Any, offset: Any, duration: Any
    ) -> tuple[str, float, int]:
        """Path, seconds and rate of the file."""
        sound = decode(source, offset, duration)
        path = target.file(self._name(row))
        data = encode(sound.samples, sound.rate, self.output_format)
        with target.create(path) as file:
            file.write(data)
        return path, sound.seconds, sound.rate

    def _rows(self, task: AudioBatch, written: Sequence[tuple[int, str, float, int]]) -> AudioBatch:
        good, paths, seconds, rates = (list(values) for values in zip(*written, strict=True)) if written else ([],) * 4
        table = task.data.take(make_array(good, pa.int64()))
        names = table.column_names
        origin = [name for name in (ORIGINAL_FILE, AUDIO_FILEPATH) if name in names]
        new = {
            ORIGINAL_FILE: table.column(origin[0]) if origin else pa.nulls(len(good), pa.string()),
            ORIGINAL_OFFSET: original_offsets(table),
            AUDIO_FILEPATH: make_array(paths, pa.string()),
            DURATION: make_array(seconds, pa.float64()),
            SAMPLE_RATE: make_array(rates, pa.int64()),
        }
        columns = {name: table.column(name) for name in names if name not in (AUDIO, OFFSET)}
        return AudioBatch(pa.table(columns | new), dataset_name=task.dataset_name, metadata=dict(task.metadata))
