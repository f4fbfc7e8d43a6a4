"""Write images: WebDataset shards with an index, Parquet, or files in directories (`samples/write.py`).

    ImageWriterStage       tars of a given number of images, with a Parquet index beside each
    ImageParquetWriter     Parquet files with the encoded images among their columns
    ImageDirectoryWriter   a directory of image files for each partition of the input, with an index

Images are written as they are, and never encoded again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.image.batch import ImageBatch
from gristmill.io.storage.file_input import parse_size
from gristmill.io.write.commit import OutputFormat
from gristmill.io.write.hub_file_names import check_split
from gristmill.io.write.parquet_format import ParquetFormat
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.shard_formats import WebDatasetFormat
from gristmill.samples.write import SampleDirectoryWriter, SampleWriter


class ImageWriterStage(SampleWriter[ImageBatch]):
    """Writes WebDataset shards of `images_per_tar` samples, with a Parquet index beside each.

    Keys, captions, metadata, labels and all other files of a sample are in the tar; scores, embeddings and the columns
    of other stages are in the index. Names come from the input and are the same in every run, so there is nothing for
    `deterministic_name=False` to change, and rows end here, so there is no image data left to remove. `mode` says what
    becomes of files that are in the directory: "ignore" replaces those of the same name, "overwrite" deletes all
    shards in it, "append" leaves them and chooses new names, "error" refuses.
    """

    kind = ImageBatch

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
        check_positive(self.name, "images_per_tar", images_per_tar)
        super().__init__(output_dir, fields, mode, storage_options)
        self.images_per_tar, self.verbose = images_per_tar, verbose
        self.deterministic_name, self.remove_image_data = deterministic_name, remove_image_data

    def _format(self) -> OutputFormat:
        return WebDatasetFormat(ImageBatch, self.images_per_tar)


class ImageParquetWriter(SampleWriter[ImageBatch]):
    """Writes Parquet files with the encoded images among their columns, which ImageParquetReader reads.

    With `split="train"`, files are named as on the Hugging Face hub: `train-00000-of-00012.parquet`.
    """

    kind = ImageBatch

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        target_file_size: int | str | None = None,
        compression: str = "zstd",
        storage_options: Mapping[str, Any] | None = None,
        split: str | None = None,
    ) -> None:
        super().__init__(output_dir, fields, mode, storage_options)
        check_split(self.name, split, mode)
        self.split = split
        self.target_file_size, self.compression = target_file_size, compression

    def _format(self) -> OutputFormat:
        size = None if self.target_file_size is None else parse_size(self.target_file_size)
        return ParquetFormat(self.compression, target_file_size=size, split=self.split)


class ImageDirectoryWriter(SampleDirectoryWriter[ImageBatch]):
    """Writes image files with their captions, metadata, labels and sidecars beside them: a directory for each
    partition of the input, and an index that appears when all of it is there."""

    kind = ImageBatch
