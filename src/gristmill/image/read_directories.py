"""Directories of images: each file is a sample, with the files of the same name beside it.

`cats/001.jpg` has the id `cats/001`; `cats/001.txt`, `.json` and `.cls` are its caption, metadata and label, and
whatever else is called `001` is a sidecar. Other files are not images, and are left out. Files are read in partitions
of `files_per_partition` images, in the order of their names. Scores and rejected rows know a row by its partition and
its place there; its file is in the column `source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from gristmill.core.batch import ImageBatch
from gristmill.core.errors import InputError
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask, FileGroupTask, FileSlice
from gristmill.image.formats import IMAGE_EXTENSIONS
from gristmill.image.image_samples import SampleFiles, samples_to_table
from gristmill.image.read import BATCH, SampleReader
from gristmill.io.formats.tar import MAX_MEMBER_BYTES
from gristmill.io.read.file_listing import InputFile, Paths, list_files
from gristmill.io.read.file_partitions import FilePartition, FilePartitioningStage
from gristmill.io.read.files_reader import QUARANTINE, relative_file_name
from gristmill.io.storage.file_input import BadRecord, FileInput

ENDINGS = [f".{extension}" for extension in IMAGE_EXTENSIONS]


class ListImageFiles(FilePartitioningStage):
    """Lists images with the files beside them, which stay together."""

    name = "list_images"

    def files(self) -> Sequence[InputFile]:
        if self._listing is None:
            try:
                found = list_files(self.file_paths, [""], self.storage_options)
            except InputError as error:
                raise InputError(f"stage {self.name!r}: {error}") from error
            stems = dict.fromkeys(stem(file.name) for file in found if self._is_image(file.name))
            chosen = list(stems)[: self.limit]
            if not chosen:
                raise InputError(
                    f"stage {self.name!r}: {self.file_paths} has no file that ends in "
                    f"{', '.join(self.file_extensions)}. Name other endings with file_extensions=[...]"
                )
            wanted = set(chosen)
            self._listing = [file for file in found if stem(file.name) in wanted]
        return self._listing

    def sources(self) -> Iterator[Sequence[FileGroupTask]]:
        samples: dict[str, list[InputFile]] = {}
        for file in self.files():
            samples.setdefault(stem(file.name), []).append(file)
        rest = iter(samples.values())
        while members := list(islice(rest, self.files_per_partition)):
            yield self._split_partition(members)

    def _split_partition(self, samples: Sequence[Sequence[InputFile]]) -> Sequence[FilePartition]:
        """The tasks of one partition: so many samples together as make a block."""
        groups: list[list[FileSlice]] = []
        room = 0
        for files in samples:
            size = sum(file.size or 0 for file in files)
            if size > room or not groups:
                groups.append([])
                room = self.blocksize
            groups[-1] += [FileSlice(file.path) for file in files]
            room -= size
        members = [file for files in samples for file in files]
        return [self._task(members, slices) for slices in groups]

    def _is_image(self, name: str) -> bool:
        return name.lower().endswith(tuple(self.file_extensions))


class ImageFilesReaderStage(SampleReader):
    """Reads image files and what lies beside them."""

    name = "read_image_files"

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        raise AssertionError("read by sample, in process")

    def process(self, task: FileGroupTask) -> Iterator[ImageBatch]:
        empty = True
        places = {path: place for place, path in enumerate(task.data)}
        first = self.source(task, task.parts()[0])
        for samples in self.blocks(self._samples(task, places), first):
            empty = False
            yield self.batch(task, samples_to_table(samples), {"file": task.metadata.get("partition")})
        if empty:
            yield self.empty_batch(task)

    def _samples(self, task: FileGroupTask, places: Mapping[str, int]) -> Iterator[SampleFiles]:
        """A sample for each image; images of one name share what lies beside them."""
        together: dict[str, list[FileSlice]] = {}
        for part in task.parts():
            together.setdefault(stem(relative_file_name(task, part)), []).append(part)
        for key, parts in together.items():
            images = [part for part in parts if _extension(part.path).lower() in IMAGE_EXTENSIONS]
            beside = {_extension(part.path): part for part in parts if part not in images}
            files = {extension: self._content(task, part, 0) for extension, part in beside.items()}
            for part in images:
                data = self._content(task, part, places[part.path])
                if data is not None:
                    own = {_extension(part.path): data}
                    own |= {extension: content for extension, content in files.items() if content is not None}
                    yield SampleFiles(key, places[part.path], own, relative_file_name(task, part))

    def _content(self, task: FileGroupTask, part: FileSlice, place: int) -> bytes | None:
        source = self.source(task, part)
        with source.open() as file:
            data = file.read(self.max_bytes + 1)
        source.on_bytes(len(data))
        if len(data) > self.max_bytes:
            source.on_bad(BadRecord(place, f"a file of more than max_bytes={self.max_bytes:,} bytes"))
            return None
        return data


def stem(name: str) -> str:
    """A name without its extension: cut at the last dot, since names of photographs may have others."""
    folder, slash, base = name.rpartition("/")
    head, dot, _ = base.rpartition(".")
    return folder + slash + (head if dot and head else base)


def _extension(path: str) -> str:
    base = path.rpartition("/")[2]
    head, dot, last = base.rpartition(".")
    return last if dot and head else ""


@dataclass(eq=False, repr=False)
class ImageDirectoryReader(CompositeStage[EmptyTask, ImageBatch]):
    """Reads images from directories, with captions, metadata, labels and other files of the same name."""

    file_paths: Paths
    files_per_partition: int = 1000
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
        lister = ListImageFiles(
            self.file_paths,
            self.files_per_partition,
            self.blocksize,
            self.file_extensions or ENDINGS,
            self.storage_options,
            self.limit,
        )
        return [lister, ImageFilesReaderStage(self.task_batch_size, self.blocksize, self.on_bad_record, self.max_bytes)]
