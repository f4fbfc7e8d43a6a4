"""Write images: WebDataset shards with an index, Parquet, or files in directories.

    ImageWriterStage       tars of so many images, with a Parquet index beside each
    ImageParquetWriter     Parquet files with the encoded images among their columns
    ImageDirectoryWriter   a directory of image files for each partition of the input, with an index

All write in two steps, as the writers of text do (`io/write/commit.py`): output appears whole or not at all, and its bytes
do not depend on workers, blocks or interruptions. Images are written as they are, and never encoded again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.batch import ImageBatch
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.core.task import GatherTask, WrittenFile, WrittenFiles
from gristmill.image.image_samples import IMAGE
from gristmill.image.shard_formats import DirectoryFormat, WebDatasetFormat, clear_directory
from gristmill.io.storage.file_input import parse_size
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import WRITE_MODES, CommitFiles, OutputFormat, WriteFragments
from gristmill.io.write.parquet_format import ParquetFormat


class _ImageWriter(CompositeStage[ImageBatch, WrittenFiles]):
    """What the writers share. A format writes `_format`."""

    def _set_output(
        self,
        output_dir: str | os.PathLike[str],
        fields: Sequence[str] | None,
        mode: str,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        if not os.fspath(output_dir):
            raise ValueError(f"{self.name}: output_dir is empty: name the directory to write to")
        if mode not in WRITE_MODES:
            raise ValueError(f"{self.name}: mode is {mode!r}, must be one of {', '.join(map(repr, WRITE_MODES))}")
        if isinstance(fields, str):
            raise TypeError(f'{self.name}: fields must be a list of names, as in fields=["{fields}"]')
        self.output_dir, self.fields, self.mode, self.storage_options = output_dir, fields, mode, storage_options

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        fields = None if self.fields is None else list(self.fields)
        form, target = self._format(), OutputDirectory(self.output_dir, self.storage_options)
        return [_WriteImages(target, form, fields, self.mode), CommitFiles(target, form, fields, self.mode)]

    def _format(self) -> OutputFormat:
        raise NotImplementedError


class _WriteImages(WriteFragments):
    """Writes each batch of images to a temporary file."""

    def inputs(self) -> tuple[list[str], Columns]:
        return [], [IMAGE]


class ImageWriterStage(_ImageWriter):
    """Writes WebDataset shards of `images_per_tar` samples, with a Parquet index beside each.

    Keys, captions, metadata, labels and all other files of a sample are in the tar; scores, embeddings and the columns
    of other stages are in the index. Names come from the input and are the same in every run, so there is nothing for
    `deterministic_name=False` to change, and rows end here, so there is no image data left to remove. `mode` says what
    becomes of files that are in the directory: "ignore" replaces those of the same name, "overwrite" deletes all
    shards in it, "append" leaves them and chooses new names, "error" refuses.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        images_per_tar: int = 1000,
        verbose: bool = False,
        deterministic_name: bool = True,
        remove_image_data: bool = False,
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(images_per_tar, int) or isinstance(images_per_tar, bool) or images_per_tar < 1:
            raise ValueError(f"{self.name}: images_per_tar is {images_per_tar!r}, must be a whole number, 1 or more")
        self._set_output(output_dir, fields, mode, storage_options)
        self.images_per_tar, self.verbose = images_per_tar, verbose
        self.deterministic_name, self.remove_image_data = deterministic_name, remove_image_data

    def _format(self) -> OutputFormat:
        return WebDatasetFormat(self.images_per_tar)


class ImageParquetWriter(_ImageWriter):
    """Writes Parquet files with the encoded images among their columns, which ImageParquetReader reads."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        target_file_size: int | str | None = None,
        compression: str = "zstd",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._set_output(output_dir, fields, mode, storage_options)
        self.target_file_size, self.compression = target_file_size, compression

    def _format(self) -> OutputFormat:
        size = None if self.target_file_size is None else parse_size(self.target_file_size)
        return ParquetFormat(self.compression, target_file_size=size)


class ImageDirectoryWriter(_ImageWriter):
    """Writes image files with their captions, metadata, labels and sidecars beside them: a directory for each
    partition of the input, and an index that appears when all of it is there."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._set_output(output_dir, fields, mode, storage_options)
        if mode not in ("ignore", "error"):
            raise ValueError(f"{self.name}: mode is {mode!r}, must be 'ignore' or 'error'")

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        first, commit = super().decompose()
        assert isinstance(commit, CommitFiles)
        return [first, _CommitDirectories(commit.target, commit.form, commit.fields, commit.mode)]

    def _format(self) -> OutputFormat:
        return DirectoryFormat()


class _CommitDirectories(CommitFiles):
    """Puts files into directories; what stands for a directory in the books is its index."""

    def process(self, task: GatherTask) -> WrittenFiles:
        everything: list[Any] = task.data
        if not any(fragment.size for fragment in everything):
            clear_directory(self.target, self.stem(task))
        return super().process(task)

    def discard_files(self, files: Sequence[WrittenFile]) -> None:
        super().discard_files(files)
        for file in files:
            clear_directory(self.target, file.path.rpartition("/")[2].removesuffix(".parquet"))
