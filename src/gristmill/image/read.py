"""Read images from archives, directories and tables. Nothing is decoded or encoded again.

    WebDatasetReader       .tar, also .gz and .zst     split between samples
    ImageDirectoryReader   .jpg .png .webp ...         with the captions and other files beside them
    ImageParquetReader     .parquet .pq                with encoded images, {bytes, path} structs or URLs
    ImageReaderStage       .tar                        as a stage that may be the first of a pipeline

`samples/sample_files.py` has the columns. What cannot be read goes to quarantine, with its file, its position and the
reason; with `on_bad_record="skip"` it is only counted, with "raise" it stops the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gristmill.core.errors import InputError
from gristmill.core.stage import SourceStage
from gristmill.core.task import FileGroupTask
from gristmill.image.batch import IMAGE, ImageBatch
from gristmill.io.formats import format_detection
from gristmill.io.formats.tar import MAX_MEMBER_BYTES
from gristmill.io.read.composite_reader import CompositeReader
from gristmill.io.read.file_listing import Paths
from gristmill.io.read.file_partitions import BY_MEMBERS, BY_ROW_GROUPS, FilePartitioningStage
from gristmill.io.read.files_reader import QUARANTINE
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.decode import DECODE_THREADS
from gristmill.samples.read import (
    ARCHIVE_EXTENSIONS,
    SAMPLES_PER_BATCH,
    ArchiveReader,
    ArchiveReaderStage,
    DirectoryReader,
    DirectoryReaderStage,
)
from gristmill.samples.read_tables import URL, TableReaderStage


class WebDatasetReaderStage(ArchiveReaderStage[FileGroupTask, ImageBatch]):
    """Reads WebDataset archives as streams; nothing is extracted to disk."""

    kind = ImageBatch


class WebDatasetReader(ArchiveReader[ImageBatch]):
    """Reads WebDataset archives, several workers to a large one."""

    stage_class = WebDatasetReaderStage


class ImageReaderStage(WebDatasetReaderStage):
    """Reads WebDataset archives: those of the tasks before it or, as the first stage of a pipeline, those in
    `file_paths`, by default the tar files in the working directory.

    `task_batch_size` is the number of images in a batch (`dali_batch_size` means the same), `num_threads` how many
    threads of a worker decode them when a stage asks for pixels. Decoding takes no GPU: `num_gpus_per_worker` is for
    pipelines that were written for other readers, and asks for none. `verbose` changes nothing.
    """

    name = "read_images"
    _catalogue_kind = "reader"
    not_identity = ("num_threads", "num_gpus_per_worker", "dali_batch_size", "verbose", "file_paths")

    def __init__(
        self,
        task_batch_size: int = SAMPLES_PER_BATCH,
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
        check_positive(self.name, "num_threads", num_threads)
        self.num_threads, self.num_gpus_per_worker, self.verbose = num_threads, num_gpus_per_worker, verbose
        self.dali_batch_size, self.file_paths = dali_batch_size, file_paths
        self.storage_options = dict(storage_options or {})

    def default_source(self) -> SourceStage[Any]:
        return _ArchiveListing(self.file_paths, self.blocksize, self.storage_options)

    def batch(self, task: FileGroupTask, table: pa.Table, metadata: Mapping[str, Any]) -> ImageBatch:
        return super().batch(task, table, {**metadata, DECODE_THREADS: self.num_threads})


class _ArchiveListing(FilePartitioningStage):
    """Lists the archives for an ImageReaderStage that is the first stage."""

    def __init__(self, paths: Paths | None, blocksize: int, storage_options: Mapping[str, Any]) -> None:
        super().__init__(
            paths or str(Path.cwd()),
            None,
            blocksize,
            ARCHIVE_EXTENSIONS,
            storage_options=storage_options,
            split_by=BY_MEMBERS,
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
                f"{error}. The working directory was searched, since stage 'read_images' is the first and has no "
                "file_paths: name the archives, as in ImageReaderStage(file_paths=...)"
            ) from error


class ImageFilesReaderStage(DirectoryReaderStage[FileGroupTask, ImageBatch]):
    """Reads image files and the files of the same name beside them."""

    name = "read_image_files"
    kind = ImageBatch


class ImageDirectoryReader(DirectoryReader[ImageBatch]):
    """Reads images from directories, with captions, metadata, labels and other files of the same name."""

    stage_class = ImageFilesReaderStage


class ImageParquetReaderStage(TableReaderStage[FileGroupTask, ImageBatch]):
    """Reads Parquet files with images or URLs."""

    name = "read_image_parquet"
    kind = ImageBatch


@dataclass(eq=False, repr=False)
class ImageParquetReader(CompositeReader[ImageBatch]):
    """Reads Parquet files with encoded images in `image_field`, or with addresses in `url_field`."""

    extensions = format_detection.PARQUET_EXTENSIONS
    split_by = BY_ROW_GROUPS

    file_paths: Paths
    image_field: str = IMAGE
    url_field: str = URL
    id_field: str | None = None
    caption_field: str | None = None
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    fields: Sequence[str] | None = None
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None

    def reading_stage(self) -> ImageParquetReaderStage:
        columns = (self.image_field, self.url_field, self.id_field, self.caption_field)
        return ImageParquetReaderStage(*columns, self.fields, self.blocksize, self.on_bad_record)
