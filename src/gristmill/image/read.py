"""Readers: archives, directories and tables of images in, batches of images out. Nothing is decoded or re-encoded.

    WebDatasetReader       .tar, also .gz and .zst     cut between samples
    ImageDirectoryReader   .jpg .png .webp ...         with the captions and other files beside them
    ImageParquetReader     .parquet .pq                with encoded images, {bytes, path} structs or URLs
    ImageReaderStage       .tar                        as a stage that may be the first of a pipeline

What rows look like is said in `image_samples.py`. What cannot be read goes to quarantine, with its file, its place and the
reason; with `on_bad_record="skip"` it is only counted, with "raise" it stops the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gristmill.core.batch import ImageBatch
from gristmill.core.errors import InputError
from gristmill.core.stage import CompositeStage, ProcessingStage, SourceStage
from gristmill.core.task import EmptyTask, FileGroupTask
from gristmill.image.decode import THREADS
from gristmill.image.image_samples import COLUMNS, SampleFiles, empty_schema, group_samples, samples_to_table
from gristmill.io.formats import format_detection
from gristmill.io.formats.tar import MAX_MEMBER_BYTES, check_tar, read_members
from gristmill.io.read.file_listing import Paths
from gristmill.io.read.file_partitions import BY_MEMBERS, FilePartitioningStage
from gristmill.io.read.files_reader import QUARANTINE, FilesReader, relative_file_name
from gristmill.io.storage.file_input import BadRecord, FileInput

TARS = [*format_detection.with_compressed_extensions((".tar",)), ".tgz"]
BATCH = 100
"""Images in a batch, unless told otherwise."""


class SampleReader(FilesReader[FileGroupTask, ImageBatch]):
    """What the readers of samples share: batches of `task_batch_size` images, or of a block of bytes."""

    kind = ImageBatch
    unit = "byte"

    def __init__(
        self,
        task_batch_size: int = BATCH,
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
        max_bytes: int = MAX_MEMBER_BYTES,
    ) -> None:
        """`max_bytes` is the size of the largest file that is read."""
        super().__init__(blocksize=blocksize, on_bad_record=on_bad_record)
        for what, number in (("task_batch_size", task_batch_size), ("max_bytes", max_bytes)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(f"{what} is {number!r}, must be a whole number, 1 or more")
        self.task_batch_size, self.max_bytes = task_batch_size, max_bytes

    def schema(self, source: FileInput) -> pa.Schema | None:
        return empty_schema()

    def outputs(self) -> tuple[list[str], list[str]]:
        return [], list(COLUMNS)

    def empty_batch(self, task: FileGroupTask) -> ImageBatch:
        return self.batch(task, empty_schema().empty_table(), {})

    def blocks(self, samples: Iterable[SampleFiles], source: FileInput) -> Iterator[list[SampleFiles]]:
        """The samples that have an image, so many at a time as make a batch; others are told as bad records."""
        waiting: list[SampleFiles] = []
        size = 0
        for sample in samples:
            chosen = sample.image_extension()
            if chosen is None or not sample.files[chosen]:
                source.on_bad(_no_image(sample, chosen))
                continue
            if len(sample.files) > 1 and (images := sample.image_count()) > 1:
                self.count("further_images", images - 1)
            waiting.append(sample)
            size += sample.nbytes
            if len(waiting) >= self.task_batch_size or size >= self.blocksize:
                yield waiting
                waiting, size = [], 0
        if waiting:
            yield waiting


def _no_image(sample: SampleFiles, chosen: str | None) -> BadRecord:
    if chosen is not None:
        return BadRecord(sample.position, f"sample {sample.key!r}: its image .{chosen} is empty: no bytes")
    there = ", ".join(f".{extension}" if extension else "a file without extension" for extension in sample.files)
    return BadRecord(sample.position, f"sample {sample.key!r} has no image, only {there}")


class WebDatasetReaderStage(SampleReader):
    """Reads WebDataset archives as streams; nothing is extracted to disk."""

    name = "read_webdataset"

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        raise AssertionError("read by name, in process")

    def process(self, task: FileGroupTask) -> Iterator[ImageBatch]:
        empty = True
        for part in task.parts():
            name, source = relative_file_name(task, part), self.source(task, part)
            for samples in self.blocks(group_samples(self._files(source)), source):
                empty = False
                yield self.batch(task, samples_to_table(samples, name), {"file": name})
        if empty:
            yield self.empty_batch(task)

    def _files(self, source: FileInput) -> Iterator[tuple[str, int, bytes]]:
        """The members that belong to samples, each with its name and place."""
        for member in read_members(source, self.max_bytes):
            if member.name.rpartition("/")[2].startswith("."):  # what desktops leave behind
                self.count("hidden_members")
            else:
                yield member.name.removeprefix("./"), member.offset, member.data or b""

    def schema(self, source: FileInput) -> pa.Schema | None:
        check_tar(source)
        return empty_schema()


class ImageReaderStage(WebDatasetReaderStage):
    """Reads WebDataset archives: those of the tasks before it or, as the first stage of a pipeline, those in
    `file_paths`, by default the tar files in the working directory.

    `task_batch_size` is the number of images in a batch (`dali_batch_size` means the same), `num_threads` how many
    threads of a worker decode them when a stage asks for pixels. Decoding takes no GPU: `num_gpus_per_worker` is for
    pipelines that were written for other readers, and asks for none. `verbose` changes nothing.
    """

    name = "read_images"
    not_identity = ("num_threads", "num_gpus_per_worker", "dali_batch_size", "verbose", "file_paths")

    def __init__(
        self,
        task_batch_size: int = BATCH,
        num_threads: int = 8,
        num_gpus_per_worker: float = 0.25,
        dali_batch_size: int | None = None,
        verbose: bool = False,
        file_paths: Paths | None = None,
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
        max_bytes: int = MAX_MEMBER_BYTES,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(dali_batch_size or task_batch_size, blocksize, on_bad_record, max_bytes)
        if not isinstance(num_threads, int) or isinstance(num_threads, bool) or num_threads < 1:
            raise ValueError(f"num_threads is {num_threads!r}, must be a whole number, 1 or more")
        self.num_threads, self.num_gpus_per_worker, self.verbose = num_threads, num_gpus_per_worker, verbose
        self.dali_batch_size, self.file_paths = dali_batch_size, file_paths
        self.storage_options = dict(storage_options or {})

    def default_source(self) -> SourceStage[Any]:
        return _ListTars(self.file_paths, self.blocksize, self.storage_options)

    def batch(self, task: FileGroupTask, table: pa.Table, metadata: Mapping[str, Any]) -> ImageBatch:
        return super().batch(task, table, {**metadata, THREADS: self.num_threads})


class _ListTars(FilePartitioningStage):
    """The archives that a reader reads when nothing before it lists any."""

    def __init__(self, paths: Paths | None, blocksize: int, storage_options: Mapping[str, Any]) -> None:
        super().__init__(
            paths or str(Path.cwd()), None, blocksize, TARS, storage_options=storage_options, split_by=BY_MEMBERS
        )
        self.named = paths is not None
        if not self.named:
            self.name = f"list_files ({self.file_paths}/*.tar, the working directory)"

    def files(self) -> Any:
        try:
            return super().files()
        except InputError as error:
            if self.named:
                raise
            raise InputError(
                f"{error}. The working directory was looked at, since stage 'read_images' is the first and has no "
                "file_paths: name the archives, as in ImageReaderStage(file_paths=...)"
            ) from error


@dataclass(eq=False, repr=False)
class WebDatasetReader(CompositeStage[EmptyTask, ImageBatch]):
    """Reads WebDataset archives, several workers to a large one."""

    file_paths: Paths
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    task_batch_size: int = BATCH
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None
    max_bytes: int = MAX_MEMBER_BYTES

    def __post_init__(self) -> None:
        self.decompose()  # wrong parameters are errors here

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        lister = FilePartitioningStage(
            self.file_paths,
            self.files_per_partition,
            self.blocksize,
            self.file_extensions or TARS,
            self.storage_options,
            self.limit,
            split_by=BY_MEMBERS,
        )
        return [lister, WebDatasetReaderStage(self.task_batch_size, self.blocksize, self.on_bad_record, self.max_bytes)]
