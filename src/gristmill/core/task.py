"""Tasks: units of work with a payload and an id.

Ids are deterministic and assigned by the worker, never by stages. The id of a source task derives from its content (the
files it lists), that of a child from its parent's id, with its position if there are several.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from gristmill.core.curator.task_arguments import TaskNames, TaskType
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.secret_values import hide_in_urls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a task comes from: its id, the source it descends from, that source's files and place in the input."""

    id: str = ""
    source: str = ""
    files: tuple[str, ...] = ()
    order: int = 0
    branch: str = ""
    """The branch of a `Route` that the task goes along; `a/b` for branch b of a Route in branch a."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Faster than the default of dataclasses, which would take most of the time of sending a small task."""
        return Lineage, (self.id, self.source, self.files, self.order, self.branch)

    def child(self, key: object, branch: str = "") -> Lineage:
        return Lineage(f"{self.id}.{key}", self.source, self.files, self.order, branch or self.branch)

    def as_source(self) -> Lineage:
        return Lineage(self.id, self.id, self.files, self.order, self.branch)

    def gathered(self) -> Lineage:
        """The lineage of all tasks of the source gathered into one; this is that of the first."""
        return Lineage(self.source, self.source, self.files, self.order)

    def skips_branch(self, branch: str) -> bool:
        """Whether the task bypasses the stages of a branch."""
        return branch not in ("", self.branch) and not self.branch.startswith(f"{branch}/")

    def sort_key(self) -> tuple[int, tuple[tuple[int, int | str], ...]]:
        """The sort key of the output: sources as listed, then children by position."""
        return self.order, id_sort_key(self.id)


def id_sort_key(task_id: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts ids by position, so that `a.2` comes before `a.10`."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in task_id.split("."))


def digest(parts: Iterable[str], size: int = 8) -> str:
    """A short stable hash of several strings."""
    hasher = blake2b(digest_size=size)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        hasher.update(len(raw).to_bytes(8, "little") + raw)
    return hasher.hexdigest()


@fast_dataclass
class Task(TaskNames, Generic[T], metaclass=TaskType):
    """A unit of work. `Task(data=anything)` carries a user's own payload."""

    data: T
    dataset_name: str = field(default="", kw_only=True)
    metadata: dict[str, Any] = field(default_factory=dict, kw_only=True)
    lineage: Lineage = field(default=Lineage(), init=False, repr=False, compare=False)

    @property
    def id(self) -> str:
        """The id that the framework gave; empty before the task entered a pipeline."""
        return self.lineage.id

    task_id = id

    @property
    def num_items(self) -> int:
        """How many rows, files or other items the task holds, for counting."""
        return 1

    @property
    def num_rows(self) -> int:
        """How many records the task holds; none for a list of files."""
        return self.num_items

    @property
    def nbytes(self) -> int:
        """Bytes of payload, as far as they are known without serialising it."""
        return 0

    def key(self) -> str | None:
        """A name for the task that depends only on its content, for tasks that start a pipeline."""
        return None

    def files(self) -> tuple[str, ...]:
        """The files that the task stands for, to be named in messages."""
        return ()

    def fingerprint(self) -> str:
        """Changes when what the task stands for has changed, for example the size of a file."""
        return ""

    def named(self, lineage: Lineage) -> Self:
        """The same task under another lineage. For the framework; stages have no use for it."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.lineage = lineage
        return other


@fast_dataclass
class EmptyTask(Task[None]):
    """What the first stage of a pipeline gets when nothing else is given."""

    data: None = None

    @property
    def num_items(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A part of a file: bytes from `start` to `end` of a text file, or some row groups of a Parquet file."""

    path: str
    start: int = 0
    end: int | None = None
    row_groups: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        return 0 if self.end is None else self.end - self.start


@fast_dataclass
class FileGroupTask(Task[list[str]]):
    """Files for a reader to read, or files that a writer has written.

    `slices` narrows the task to parts of those files, when a large file is shared out to several workers.
    """

    slices: tuple[FileSlice, ...] | None = field(default=None, kw_only=True)
    storage_options: dict[str, Any] = field(default_factory=dict, kw_only=True, repr=False)
    reader_config: dict[str, Any] = field(default_factory=dict, kw_only=True, repr=False)
    """For stages of the user's own; readers do not look at it."""

    @property
    def num_items(self) -> int:
        return len(self.data)

    @property
    def num_rows(self) -> int:
        return 0

    def parts(self) -> tuple[FileSlice, ...]:
        """What to read: the slices, or each file whole."""
        return self.slices if self.slices is not None else tuple(FileSlice(path) for path in self.data)

    def key(self) -> str:
        return digest(sorted(map(hide_in_urls, self.data)))

    def files(self) -> tuple[str, ...]:
        return tuple(map(hide_in_urls, self.data[:8]))  # enough to know it by


@fast_dataclass(frozen=True, slots=True)
class OutputPart:
    """What a source has written to a file of the output, which may hold rows of other sources before and after it."""

    name: str
    """The name of the file that was committed for the source, without those of others."""
    checksum: str
    """The checksum of that file."""
    content: int
    """How many bytes count towards the target size."""
    rows: int
    start: int = 0
    """How many rows of other sources come before."""
    whole: int = 0
    """The number of rows in the file, if it is joined from those of several sources."""


@fast_dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of the output, as it should be."""

    path: str
    size: int
    checksum: str
    branch: str = ""
    """The branch of a `Route` whose writer wrote it."""
    rows: int = 0
    """On a branch: the number of the source's rows in it, given with its first file only."""
    columns: str = ""
    """The columns of the source, if all files of the output have the same ones (`io/write/output_schema.py`)."""
    layout: str = ""
    """The columns of the file."""
    part: OutputPart | None = None
    """The rows of the source in it, if files have a target size (`io/write/file_compaction.py`)."""
    attached: str = ""
    """The files in folders of the output that belong to it, packed (`pack_attached`): there may be thousands."""

    def attached_files(self) -> list[AttachedFile]:
        if not self.attached:
            return []
        lines = json.loads(zlib.decompress(base64.b85decode(self.attached)))
        return [AttachedFile(name, size, checksum) for name, size, checksum in lines]

    def all_sizes(self) -> dict[str, int]:
        """The sizes of the file and of those that belong to it, by path."""
        folder = self.path.rpartition("/")[0]
        return {self.path: self.size} | {f"{folder}/{one.name}": one.size for one in self.attached_files()}


@fast_dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file in a folder of the output, such as a clip, that belongs to a table of it."""

    name: str
    """Its path below the output."""
    size: int
    checksum: str


def pack_attached(files: Iterable[AttachedFile]) -> str:
    lines = [[file.name, file.size, file.checksum] for file in sorted(files, key=lambda file: file.name)]
    return base64.b85encode(zlib.compress(json.dumps(lines).encode())).decode() if lines else ""


def upgraded_file_entry(noted: Mapping[str, Any]) -> dict[str, Any]:
    """A file entry in the current format. Earlier versions stored the checksum as `sha256`."""
    rest = {name: value for name, value in noted.items() if name != "sha256"}
    return {"checksum": f"sha256:{noted['sha256']}", **rest} if "sha256" in noted else rest


SHUFFLE_FILE_SUFFIX = ".runs"
"""The suffix of files passed between segments of a run; not shown to the user."""


@fast_dataclass
class WrittenFiles(FileGroupTask):
    """The committed files of one source."""

    rows: int = field(default=0, kw_only=True)
    written: tuple[WrittenFile, ...] = field(default=(), kw_only=True, repr=False)

    def with_written(self, written: tuple[WrittenFile, ...]) -> Self:
        """The same rows in other files."""
        other = self.named(self.lineage)
        other.data, other.written = [file.path for file in written], written
        return other

    @property
    def num_items(self) -> int:
        return self.rows

    @property
    def num_rows(self) -> int:
        return self.rows


class ScoreFiles(WrittenFiles):
    """The committed scores of one source."""


class GatherTask(Task[list[Task[Any]]]):
    """All tasks of one source, in order: what a stage with `gather = True` receives."""

    @property
    def num_items(self) -> int:
        return sum(task.num_items for task in self.data)

    @property
    def num_rows(self) -> int:
        return sum(task.num_rows for task in self.data)


def name_sources(sources: Iterator[Sequence[Any]], by_content: bool) -> Iterator[list[Any]]:
    """Assign ids to the tasks that enter a pipeline: by content, or by position in the list."""
    for order, tasks in enumerate(sources):
        named = []
        for index, task in enumerate(tasks):
            source = (tasks[0].key() if by_content else None) or str(order)
            task_id = source if len(tasks) == 1 else f"{source}.{index}"
            named.append(task.named(Lineage(task_id, source, task.files(), order)))
        yield named
