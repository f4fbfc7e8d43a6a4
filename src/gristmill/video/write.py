"""Write clips: here they are cut, and nothing before (`transcode`).

    ClipWriterStage         the folders of NeMo Curator (`clip_layout.py`)
    VideoWebDatasetWriter   tars of UUID.mp4, UUID.txt with the caption, UUID.json with the columns, and an index
    VideoParquetWriter      Parquet files with the encoded clips in the column `video`

Output appears complete or not at all, and its bytes do not depend on workers, blocks or interruptions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.core.task import WrittenFiles
from gristmill.io.storage.file_input import parse_size
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import OutputFormat, WriteFragments
from gristmill.io.write.parquet_format import ParquetFormat
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.shard_formats import WebDatasetFormat
from gristmill.samples.write import SampleWriter
from gristmill.video.batch import VideoBatch
from gristmill.video.transcode.clip_layout import ClipLayoutFormat, CommitClips
from gristmill.video.transcode.clip_transcoding import CutClips


class ClipWriterStage(CompositeStage[VideoBatch, WrittenFiles]):
    """Cuts the clips that are left, and writes them with their metadata in the folders that NeMo Curator uses.

    `output_path` is a directory or a URL. With `upload_clips=False` or `dry_run` no clips are cut, and only metadata is
    written. Previews, embeddings and captions are written if the rows have them; `generate_...` only say that they
    should.
    """

    _catalogue_kind = "writer"

    def __init__(
        self,
        output_path: str | os.PathLike[str],
        input_path: str | os.PathLike[str] = "",
        upload_clips: bool = True,
        dry_run: bool = False,
        generate_embeddings: bool = True,
        generate_previews: bool = True,
        generate_captions: bool = True,
        embedding_algorithm: str = "cosmos-embed1",
        caption_models: Sequence[str] | None = None,
        enhanced_caption_models: Sequence[str] | None = None,
        *,
        verbose: bool = False,
        max_workers: int = 6,
        log_stats: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not os.fspath(output_path):
            raise ValueError(f"{type(self).__name__}: output_path is empty: name the directory to write to")
        self.output_path, self.input_path, self.upload_clips, self.dry_run = (
            output_path,
            input_path,
            upload_clips,
            dry_run,
        )
        self.generate_embeddings, self.generate_previews = generate_embeddings, generate_previews
        self.generate_captions, self.embedding_algorithm = generate_captions, embedding_algorithm
        self.caption_models, self.enhanced_caption_models = caption_models, enhanced_caption_models
        self.verbose, self.max_workers, self.log_stats = verbose, max_workers, log_stats
        self.storage_options = storage_options

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        cut = self.upload_clips and not self.dry_run
        form = ClipLayoutFormat(
            upload_clips=cut,
            embedding_algorithm=self.embedding_algorithm,
            embeddings=self.generate_embeddings,
            previews=self.generate_previews,
        )
        target = OutputDirectory(self.output_path, self.storage_options)
        parts: list[ProcessingStage[Any, Any]] = [WriteFragments(target, form), CommitClips(target, form)]
        return [CutClips(), *parts] if cut else parts

    def inputs(self) -> tuple[list[str], Columns]:
        return [], []


class _ClipSampleWriter(SampleWriter[VideoBatch]):
    """Base of the writers of samples."""

    kind = VideoBatch

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [CutClips(as_samples=True), *super().decompose()]

    def inputs(self) -> tuple[list[str], Columns]:
        return [], []


class VideoWebDatasetWriter(_ClipSampleWriter):
    """Writes WebDataset shards of `samples_per_tar` clips, with a Parquet index beside each."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        samples_per_tar: int = 1000,
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_positive(self.name, "samples_per_tar", samples_per_tar)
        super().__init__(output_dir, fields, mode, storage_options)
        self.samples_per_tar = samples_per_tar

    def _format(self) -> OutputFormat:
        return WebDatasetFormat(VideoBatch, self.samples_per_tar)


class VideoParquetWriter(_ClipSampleWriter):
    """Writes Parquet files with the encoded clips in the column `video`, which VideoParquetReader reads."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        target_file_size: int | str | None = None,
        compression: str = "zstd",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(output_dir, fields, mode, storage_options)
        self.target_file_size, self.compression = target_file_size, compression

    def _format(self) -> OutputFormat:
        size = None if self.target_file_size is None else parse_size(self.target_file_size)
        return ParquetFormat(self.compression, target_file_size=size)
