"""Read samples from WebDataset archives and from directories of files. Nothing is decoded or encoded again.

    ArchiveReader, ArchiveReaderStage       .tar, also .gz and .zst, split between samples
    DirectoryReader, DirectoryReaderStage   files, with the files of the same name beside them

A modality subclasses them and sets `kind`, its `SampleBatch`. The columns are those of `sample_files.py`. A sample that
cannot be read goes to quarantine with its file, its position and the reason; with `on_bad_record="skip"` it is only
counted, with "raise" it stops the run.

In a directory `cats/001.jpg` has the id `cats/001`; `cats/001.txt`, `.json` and `.cls` are its caption, metadata and
label, and every other file called `001` is a sidecar. Files that belong to no sample are left out. Files are read in
partitions of `files_per_partition` samples, in the order of their names. Scores and rejected rows know a row by its
partition and its position there; its file is in the column `source`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import InputError
from gristmill.core.task import FileGroupTask, FileSlice
from gristmill.io.formats import format_detection
from gristmill.io.formats.tar import MAX_MEMBER_BYTES, check_tar, read_members
from gristmill.io.read.composite_reader import CompositeReader
from gristmill.io.read.file_listing import InputFile, Paths, list_files
from gristmill.io.read.file_partitions import BY_MEMBERS, FilePartition, FilePartitioningStage
from gristmill.io.read.files_reader import QUARANTINE, FilesReader, relative_file_name
from gristmill.io.storage.file_input import BadRecord, FileInput
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.batch import S, SampleBatch, sample_extensions
from gristmill.samples.sample_files import (
    SampleFiles,
    empty_schema,
    group_samples,
    sample_columns,
    samples_to_table,
)

ARCHIVE_EXTENSIONS = [*format_detection.with_compressed_extensions((".tar",)), ".tgz"]
SAMPLES_PER_BATCH = 100

Files = TypeVar("Files", bound=FileGroupTask)


class SampleReader(FilesReader[Files, S]):
    """Base of the stages that read samples: batches of `task_batch_size` samples, or of a block of bytes."""

    kind: ClassVar[type[SampleBatch]]
    unit = "byte"

    def __init__(
        self,
        task_batch_size: int = SAMPLES_PER_BATCH,
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
        max_bytes: int = MAX_MEMBER_BYTES,
    ) -> None:
        """`max_bytes` is the size of the largest file that is read."""
        super().__init__(blocksize=blocksize, on_bad_record=on_bad_record)
        for what, number in (("task_batch_size", task_batch_size), ("max_bytes", max_bytes)):
            check_positive(self.name, what, number)
        self.task_batch_size, self.max_bytes = task_batch_size, max_bytes

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        raise AssertionError("process() reads the files of a sample together")

    def schema(self, source: FileInput) -> pa.Schema | None:
        return empty_schema(self.kind)

    def outputs(self) -> tuple[list[str], list[str]]:
        return [], sample_columns(self.kind)

    def empty_batch(self, task: FileGroupTask) -> S:
        return self.batch(task, empty_schema(self.kind).empty_table(), {})

    def _tables(self, samples: Iterable[SampleFiles], source: FileInput, name: str = "") -> Iterator[pa.Table]:
        """Tables of the samples that have an object, one for each batch. The others are reported as bad records."""
        extensions = frozenset(sample_extensions(self.kind))
        waiting: list[SampleFiles] = []
        size = 0
        for sample in samples:
            chosen = sample.object_extension(extensions)
            if chosen is None or not sample.files[chosen]:
                source.on_bad(self._no_object(sample, chosen))
                continue
            if len(sample.files) > 1 and (objects := sample.object_count(extensions)) > 1:
                self.count(f"further_{self.kind.sample_name}s", objects - 1)
            waiting.append(sample)
            size += sample.nbytes
            if len(waiting) >= self.task_batch_size or size >= self.blocksize:
                yield samples_to_table(waiting, self.kind, extensions, name)
                waiting, size = [], 0
        if waiting:
            yield samples_to_table(waiting, self.kind, extensions, name)

    def _no_object(self, sample: SampleFiles, chosen: str | None) -> BadRecord:
        name = self.kind.sample_name
        if chosen is not None:
            return BadRecord(sample.position, f"sample {sample.key!r}: its {name} .{chosen} is empty: no bytes")
        others = ", ".join(f".{extension}" if extension else "a file without extension" for extension in sample.files)
        return BadRecord(sample.position, f"sample {sample.key!r} has no {name}, only {others}")


class ArchiveReaderStage(SampleReader[Files, S]):
    """Reads WebDataset archives as streams; nothing is extracted to disk."""

    name = "read_webdataset"

    def process(self, task: Files) -> Iterator[S]:
        empty = True
        for part in task.parts():
            name, source = relative_file_name(task, part), self.source(task, part)
            for table in self._tables(group_samples(self._members(source)), source, name):
                empty = False
                yield self.batch(task, table, {SOURCE_FILE: name})
        if empty:
            yield self.empty_batch(task)

    def _members(self, source: FileInput) -> Iterator[tuple[str, int, bytes]]:
        """Name, position and bytes of the members that belong to samples."""
        for member in read_members(source, self.max_bytes):
            base = member.name.rpartition("/")[2]
            if base.startswith(("._", ".DS_Store")) or base in (".", ".gitkeep", ".nojekyll"):  # what systems add
                self.count("hidden_members")
            elif base.startswith("."):
                reason = f"{member.name!r} has a name that begins with a dot, and so no key of a sample: rename it"
                source.on_bad(BadRecord(member.offset, reason))
            else:
                yield member.name.removeprefix("./"), member.offset, member.data or b""

    def schema(self, source: FileInput) -> pa.Schema | None:
        check_tar(source)
        return super().schema(source)


class SampleFilesListing(FilePartitioningStage):
    """Lists the files of samples, so that those of one sample stay together."""

    def files(self) -> Sequence[InputFile]:
        if self._listing is None:
            try:
                files = list_files(self.file_paths, [""], self.storage_options)
            except InputError as error:
                raise InputError(f"stage {self.name!r}: {error}") from error
            endings = tuple(self.file_extensions)
            stems = dict.fromkeys(stem(file.name) for file in files if file.name.lower().endswith(endings))
            chosen = set(islice(stems, self.limit))
            if not chosen:
                raise InputError(
                    f"stage {self.name!r}: {self.file_paths} has no file that ends in "
                    f"{', '.join(self.file_extensions)}. Name other endings with file_extensions=[...]"
                )
            self._listing = [file for file in files if stem(file.name) in chosen]
        return self._listing

    def sources(self) -> Iterator[Sequence[FileGroupTask]]:
        samples: dict[str, list[InputFile]] = {}
        for file in self.files():
            samples.setdefault(stem(file.name), []).append(file)
        waiting = iter(samples.values())
        while members := list(islice(waiting, self.files_per_partition)):
            yield self._split_partition(members)

    def _split_partition(self, samples: Sequence[Sequence[InputFile]]) -> Sequence[FilePartition]:
        """The tasks of one partition: as many samples in each as make a block."""
        groups: list[list[FileSlice]] = []
        free_bytes = 0
        for files in samples:
            size = sum(file.size or 0 for file in files)
            if size > free_bytes or not groups:
                groups.append([])
                free_bytes = self.blocksize
            groups[-1] += [FileSlice(file.path) for file in files]
            free_bytes -= size
        members = [file for files in samples for file in files]
        return [self._task(members, slices) for slices in groups]


class DirectoryReaderStage(SampleReader[Files, S]):
    """Reads files of one modality, and the files of the same name beside them."""

    def process(self, task: Files) -> Iterator[S]:
        empty = True
        first = self.source(task, task.parts()[0])
        for table in self._tables(self._samples(task), first):
            empty = False
            yield self.batch(task, table, {SOURCE_FILE: task.metadata.get("partition")})
        if empty:
            yield self.empty_batch(task)

    def _samples(self, task: FileGroupTask) -> Iterator[SampleFiles]:
        """A sample for each object. Objects of one name (`001.jpg`, `001.png`) share the files beside them."""
        positions = {path: position for position, path in enumerate(task.data)}
        extensions = frozenset(sample_extensions(self.kind))
        by_stem: dict[str, list[FileSlice]] = {}
        for part in task.parts():
            by_stem.setdefault(stem(relative_file_name(task, part)), []).append(part)
        for key, parts in by_stem.items():
            objects = [part for part in parts if _extension(part.path).lower() in extensions]
            beside = {_extension(part.path): part for part in parts if part not in objects}
            sidecars = {extension: self._content(task, part, 0) for extension, part in beside.items()}
            for part in objects:
                data = self._content(task, part, positions[part.path])
                if data is not None:
                    files = {_extension(part.path): data}
                    files |= {extension: content for extension, content in sidecars.items() if content is not None}
                    yield SampleFiles(key, positions[part.path], files, relative_file_name(task, part))

    def _content(self, task: FileGroupTask, part: FileSlice, position: int) -> bytes | None:
        """The bytes of a file; None if there are more than `max_bytes`."""
        source = self.source(task, part)
        with source.open() as file:
            data = file.read(self.max_bytes + 1)
        source.on_bytes(len(data))
        if len(data) > self.max_bytes:
            source.on_bad(BadRecord(position, f"a file of more than max_bytes={self.max_bytes:,} bytes"))
            return None
        return data


def stem(name: str) -> str:
    """A name without its extension: split at the last dot, since names of photographs may have others."""
    folder, slash, base = name.rpartition("/")
    head, dot, _ = base.rpartition(".")
    return folder + slash + (head if dot and head else base)


def _extension(path: str) -> str:
    base = path.rpartition("/")[2]
    head, dot, last = base.rpartition(".")
    return last if dot and head else ""


@dataclass(eq=False, repr=False)
class SamplesReader(CompositeReader[S]):
    """Base of the readers of samples. A modality sets `stage_class`."""

    stage_class: ClassVar[type[SampleReader[Any, Any]]]

    file_paths: Paths
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    task_batch_size: int = SAMPLES_PER_BATCH
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None
    max_bytes: int = MAX_MEMBER_BYTES

    def reading_stage(self) -> FilesReader[Any, S]:
        return self.stage_class(self.task_batch_size, self.blocksize, self.on_bad_record, self.max_bytes)


class ArchiveReader(SamplesReader[S]):
    """Reads WebDataset archives, with several workers for a large one. A modality sets `stage_class`."""

    extensions = ARCHIVE_EXTENSIONS
    split_by = BY_MEMBERS


@dataclass(eq=False, repr=False)
class DirectoryReader(SamplesReader[S]):
    """Reads files from directories, with captions, metadata, labels and other files of the same name. A modality sets
    `stage_class`."""

    files_per_partition: int = 1000

    listing_class = SampleFilesListing

    def lister(self) -> FilePartitioningStage:
        stage = super().lister()
        stage.name = f"list_{self.stage_class.kind.sample_name}s"
        return stage

    def default_extensions(self) -> Sequence[str]:
        return [f".{extension}" for extension in sample_extensions(self.stage_class.kind)]
