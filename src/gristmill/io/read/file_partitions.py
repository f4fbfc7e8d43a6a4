"""FilePartitioningStage: from input paths to tasks for readers.

A partition is the unit that is committed: one file, or `files_per_partition` of them. How a partition is split into
tasks (`blocksize`) never changes the partitions or their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, islice, pairwise
from typing import Any

from gristmill.core.errors import InputError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.secret_values import hide_in_urls
from gristmill.core.stage import SourceStage
from gristmill.core.stage_roles import PlanningRole
from gristmill.core.task import FileGroupTask, FileSlice, digest
from gristmill.io.formats.format_detection import (
    COMPRESSION_BY_EXTENSION,
    JSONL_EXTENSIONS,
    PARQUET_EXTENSIONS,
    READER_BY_EXTENSION,
    TAR_EXTENSIONS,
    detect_compression,
    extension_of,
    with_compressed_extensions,
)
from gristmill.io.read.file_listing import InputFile, Paths, as_paths, list_files
from gristmill.io.storage.file_input import FileInput, block_bytes, largest_block_bytes

BY_LINES, BY_ROW_GROUPS, BY_MEMBERS, WHOLE_FILES = SPLIT_MODES = ("lines", "row_groups", "members", "whole")

_STEM_BYTES = 120


@fast_dataclass
class FilePartition(FileGroupTask):
    """Files that are read and written together. Their key does not change when the dataset is moved."""

    names: tuple[str, ...] = field(default=(), kw_only=True)
    """The names of the files below the given root: a directory, or the fixed part of a glob."""

    stamps: tuple[str, ...] = field(default=(), kw_only=True, repr=False)

    def key(self) -> str:
        return digest(sorted(map(hide_in_urls, self.names or self.data)))

    def fingerprint(self) -> str:
        return digest(self.stamps)

    @property
    def stem(self) -> str:
        """The first name without its extensions, with only characters that are valid in a file name."""
        name = hide_in_urls((self.names or self.data)[0])
        short = name[: -len(extension_of(name)) or None]
        safe = re.sub(r"[^\w.\-]+", "-", short.replace("://", "-")).strip("-.") or "part"
        return safe.encode()[-_STEM_BYTES:].decode(errors="ignore").lstrip("-.")

    def name_of(self, path: str) -> str:
        return hide_in_urls(self.names[self.data.index(path)] if self.names else path)


class FilePartitioningStage(SourceStage[FileGroupTask], PlanningRole):
    """Lists files and divides them into partitions and tasks. Files are listed once, when the pipeline is planned."""

    name = "list_files"
    not_identity = ("file_paths", "split_by")  # sources have their own identity

    def __init__(
        self,
        file_paths: Paths,
        files_per_partition: int | None = None,
        blocksize: int | str | None = None,
        file_extensions: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        limit: int | None = None,
        *,
        split_by: str | None = None,
    ) -> None:
        """`limit` is the maximum number of files; `split_by` says how to split them, by default by their extensions."""
        super().__init__()
        for what, number in (("files_per_partition", files_per_partition), ("limit", limit)):
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise ValueError(f"{what} is {number!r}, must be a whole number, 1 or more, or None")
        if split_by not in (None, *SPLIT_MODES):
            raise ValueError(f"split_by is {split_by!r}, must be 'lines', 'row_groups', 'members' or 'whole'")
        self.file_paths = file_paths
        self.files_per_partition = files_per_partition or 1
        self.blocksize = block_bytes(blocksize)
        self.file_extensions = _extensions(file_extensions)
        self.storage_options = dict(storage_options or {})
        self.limit = limit
        self.split_by = split_by
        self._listing: list[InputFile] | None = None
        self._name = _dataset_name(as_paths(file_paths))

    def check(self) -> None:
        self.files()

    def input_files(self) -> Sequence[str]:
        return [file.path for file in self.files()]

    def input_bytes(self) -> int | None:
        return sum(file.size or 0 for file in self.files())

    def files(self) -> Sequence[InputFile]:
        """The files, listed at the first call."""
        if self._listing is None:
            try:
                files = list_files(self.file_paths, self.file_extensions, self.storage_options)
            except InputError as error:
                raise InputError(f"stage {self.name!r}: {error}") from error
            self._listing = files[: self.limit]
        return self._listing

    def keep_shard(self, number: int, count: int) -> Sequence[str]:
        partitions = list(self._members_of_partitions())
        self._listing = list(chain.from_iterable(partitions[number::count]))
        return [file.name for partition in partitions for file in partition]

    def sources(self) -> Iterator[Sequence[FileGroupTask]]:
        return map(self._tasks, self._members_of_partitions())

    def partitions(self) -> Iterator[str]:
        """The names of the partitions. No file is opened."""
        for members in self._members_of_partitions():
            partition: str = self._task(members, ()).metadata["partition"]
            yield partition

    def _members_of_partitions(self) -> Iterator[Sequence[InputFile]]:
        files = iter(self.files())
        while members := list(islice(files, self.files_per_partition)):
            yield members

    def _tasks(self, members: Sequence[InputFile]) -> Sequence[FilePartition]:
        """The tasks of one partition: parts of large files, several small files together."""
        groups: list[list[FileSlice]] = []
        left = 0
        for file in members:
            for part, size in self._slices(file):
                if size > left or not groups:
                    groups.append([])
                    left = self.blocksize
                groups[-1].append(part)
                left -= size
        return [self._task(members, slices) for slices in groups]

    def _task(self, members: Sequence[InputFile], slices: Sequence[FileSlice]) -> FilePartition:
        task = FilePartition(
            [file.path for file in members],
            names=tuple(file.name for file in members),
            stamps=tuple(f"{file.size} {file.stamp}" for file in members),
            slices=tuple(slices),
            storage_options=self.storage_options,
            dataset_name=self._name,
        )
        task.metadata["partition"] = f"{task.stem}-{task.key()[:8]}"
        return task

    def _slices(self, file: InputFile) -> Iterator[tuple[FileSlice, int]]:
        """The parts of one file, each with its size if known. A file that cannot be opened is one part: its reader
        tries again, and may put it into quarantine."""
        try:
            yield from list(self._parts(file))
        except OSError:
            yield FileSlice(file.path), file.size or 0

    def _parts(self, file: InputFile) -> Iterator[tuple[FileSlice, int]]:
        how = self.split_by or _split_by(file.path)
        if file.size is None or (how == BY_LINES and extension_of(file.path).endswith(tuple(COMPRESSION_BY_EXTENSION))):
            yield FileSlice(file.path), file.size or self.blocksize
        elif how == BY_ROW_GROUPS and file.size > self.blocksize:
            yield from self._row_groups(file)
        elif how == BY_MEMBERS and file.size > self.blocksize and "://" not in file.path:
            yield from self._members(file, file.size)
        elif how == BY_LINES and (file.size <= self.blocksize or not self._is_compressed(file.path)):
            rest = largest_block_bytes(self.blocksize) - self.blocksize
            starts = range(0, max(file.size - rest, 1), self.blocksize)
            for start, end in pairwise([*starts, file.size]):
                yield FileSlice(file.path, start, end), end - start
        else:
            yield FileSlice(file.path), file.size

    def _is_compressed(self, path: str) -> bool:
        """Whether the content is compressed, which the name need not show: then it cannot be split."""
        with FileInput(FileSlice(path), self.storage_options).open() as opened:
            return detect_compression(path, opened.read(64)) is not None

    def _members(self, file: InputFile, size: int) -> Iterator[tuple[FileSlice, int]]:
        """Parts of a local tar, where seeking from header to header is cheap."""
        from gristmill.io.formats.tar import split_points

        whole = FileInput(FileSlice(file.path), self.storage_options)
        bounds = [0, *(() if self._is_compressed(file.path) else split_points(whole, self.blocksize)), size]
        for start, end in pairwise(bounds):
            part = FileSlice(file.path, start, end) if len(bounds) > 2 else FileSlice(file.path)
            yield part, end - start

    def _row_groups(self, file: InputFile) -> Iterator[tuple[FileSlice, int]]:
        from gristmill.io.formats.parquet import row_group_bytes

        sizes = row_group_bytes(FileInput(FileSlice(file.path), self.storage_options))
        if not sizes:  # not readable: its reader will report why
            yield FileSlice(file.path), file.size or 0
            return
        groups: list[int] = []
        total = 0
        for index, size in enumerate(sizes):
            if groups and total + size > self.blocksize:
                yield FileSlice(file.path, row_groups=tuple(groups)), total
                groups, total = [], 0
            groups.append(index)
            total += size
        yield FileSlice(file.path, row_groups=tuple(groups)), total


def _split_by(path: str) -> str:
    extension = extension_of(path)
    if extension in PARQUET_EXTENSIONS:
        return BY_ROW_GROUPS
    if extension in TAR_EXTENSIONS:
        return BY_MEMBERS
    return BY_LINES if extension in with_compressed_extensions(JSONL_EXTENSIONS) else WHOLE_FILES


def _extensions(extensions: Sequence[str] | None) -> list[str]:
    if extensions is None:
        return with_compressed_extensions(tuple(READER_BY_EXTENSION))
    if isinstance(extensions, str):
        extensions = [extensions]
    if not extensions:
        raise ValueError("file_extensions is empty: name at least one, such as '.jsonl', or leave it out")
    return [extension if extension.startswith(".") else f".{extension}" for extension in extensions]


def _dataset_name(roots: Sequence[str]) -> str:
    """The last part of the path, if only one was given."""
    parts = [part for part in re.split(r"[/\\]+", roots[0]) if not set(part) & set("*?[")] if roots else []
    name = parts[-1] if len(roots) == 1 and parts else ""
    return name[: -len(extension_of(name)) or None].strip(".")
