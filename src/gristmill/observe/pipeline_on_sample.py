"""A copy of a pipeline that reads the first blocks of some input files and writes to a directory of its own.

Gives up: inputs that are not files, because their size is not known.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from gristmill.core.branching.branch_stages import CommitBranches
from gristmill.core.errors import PlanError
from gristmill.core.pipeline import Pipeline
from gristmill.core.plan.planner import decompose
from gristmill.core.stage import ProcessingStage, SourceStage
from gristmill.core.stage_roles import EndpointRole
from gristmill.core.task import FileGroupTask, FileSlice, Task
from gristmill.io.formats.format_detection import COMPRESSION_BY_EXTENSION, PARQUET_EXTENSIONS
from gristmill.io.read.file_listing import InputFile
from gristmill.io.read.file_partitions import FilePartitioningStage
from gristmill.io.storage.file_input import FileInput
from gristmill.io.storage.output_directory import OutputDirectory

_PROBE_BYTES = 2**20


class InputSample:
    """Some of the input of a pipeline, and how much of the whole it is."""

    def __init__(self, pipeline: Pipeline, most_files: int = 8) -> None:
        self.name = pipeline.name
        self.stages = decompose(pipeline.stages)
        source = self.stages[0] if self.stages else None
        if not isinstance(source, FilePartitioningStage) or len(self.stages) < 2:
            raise PlanError(
                f"an estimate needs a pipeline that starts with a reader of files; {pipeline.name!r} does not, so the "
                "size of its input is not known"
            )
        self.source = source
        there = [file for file in source.files() if file.size]
        step = max(1, len(there) // most_files)
        self.files: list[InputFile] = there[::step][:most_files]
        self.input_bytes = sum(file.size or 0 for file in source.files())
        self.blocksize = source.blocksize
        self.sources = -(-len(source.files()) // source.files_per_partition)

    @property
    def is_parquet(self) -> bool:
        return all(file.path.endswith(PARQUET_EXTENSIONS) for file in self.files)

    @property
    def splits_files(self) -> bool:
        """Whether large files are read by several workers."""
        return not any(file.path.endswith(tuple(COMPRESSION_BY_EXTENSION)) for file in self.files)

    def sample_pipeline(self, files: Sequence[InputFile], most_bytes: int, out: str) -> Pipeline:
        """The same stages over the first `most_bytes` of some files, with output in the directory `out`."""
        listed = copy.copy(self.source)
        listed._listing, listed.files_per_partition = list(files), 1
        reader = _stop_early(self.stages[1], most_bytes, self._weights(files))
        targets: dict[str, OutputDirectory] = {}
        rest = [_writing_elsewhere(stage, targets, out) for stage in self.stages[2:]]
        return Pipeline(self.name, stages=[_FirstTaskOfEachFile(listed), reader, *rest])

    def _weights(self, files: Sequence[InputFile]) -> dict[str, float]:
        """How much larger each file is than the mean. Of a larger one more is taken."""
        sizes = {file.path: (file.size or 0) * self._expansion(_compression_suffix(file)) for file in files}
        return {path: size * len(sizes) / sum(sizes.values()) for path, size in sizes.items()}

    def total_amount(self) -> float:
        """How much there is: rows of Parquet files, or else bytes as they are parsed."""
        sizes = sum(file.size or 0 for file in self.files)
        if self.is_parquet:
            return self.input_bytes * sum(map(self._rows, self.files)) / max(sizes, 1)
        packed: Counter[str | None] = Counter()
        for file in self.source.files():
            packed[_compression_suffix(file)] += file.size or 0
        return sum(size * self._expansion(suffix) for suffix, size in packed.items())

    def _rows(self, file: InputFile) -> int:
        import pyarrow.parquet as pq

        with FileInput(FileSlice(file.path), self.source.storage_options).open(read_ahead=False) as opened:
            return int(pq.ParquetFile(opened).metadata.num_rows)

    @cache  # noqa: B019  it lives as long as the estimate
    def _expansion(self, suffix: str | None) -> float:
        """How many bytes come of one, in files that are compressed so."""
        raw = text = 0
        alike = (
            [file for file in self.source.files() if file.size and _compression_suffix(file) == suffix]
            if suffix
            else []
        )
        for file in alike[:: max(1, len(alike) // len(self.files))][: len(self.files)]:
            with FileInput(FileSlice(file.path), self.source.storage_options).open() as opened:
                head = opened.read(_PROBE_BYTES)
            raw += len(head)
            text += _decompressed_bytes(head, "gzip" if suffix == ".gz" else "zstd")
        return text / raw if raw else 1.0


def _writing_elsewhere(stage: Any, targets: dict[str, OutputDirectory], out: str) -> Any:
    """A copy of a stage, which writes below `out` where it writes at all."""
    stage = stage.dry_copy() if isinstance(stage, EndpointRole) else copy.copy(stage)
    if isinstance(stage, CommitBranches):
        stage.commits = {name: _writing_elsewhere(commit, targets, out) for name, commit in stage.commits.items()}
    if isinstance(found := getattr(stage, "target", None), OutputDirectory):
        stage.target = targets.setdefault(found.url, OutputDirectory(f"{out}/{len(targets)}"))
    return stage


def _compression_suffix(file: InputFile) -> str | None:
    return next((suffix for suffix in COMPRESSION_BY_EXTENSION if file.path.endswith(suffix)), None)


def _decompressed_bytes(head: bytes, codec: str) -> int:
    """How many bytes the beginning of a compressed file gives."""
    import pyarrow as pa

    total = 0
    if not head:
        return 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(head), codec) as stream:
            while piece := stream.read(_PROBE_BYTES):
                total += len(piece)
    except OSError:  # it ends in the middle
        pass
    return total


class _FirstTaskOfEachFile(SourceStage[FileGroupTask]):
    """Of each file the first task."""

    def __init__(self, inner: FilePartitioningStage) -> None:
        self.inner, self.name = inner, inner.name

    def input_bytes(self) -> int | None:
        return self.inner.input_bytes()

    def sources(self) -> Iterator[Sequence[FileGroupTask]]:
        for tasks in self.inner.sources():
            yield tasks[:1]


def _stop_early(
    reader: ProcessingStage[Any, Any], most: int, weights: Mapping[str, float]
) -> ProcessingStage[Any, Any]:
    """The reader, which ends after so many bytes of each task, times the weight of its file."""
    kind = type(reader)

    def process(self: Any, task: Any) -> Iterator[Task[Any]]:
        taken, enough = 0, most * weights.get(task.data[0], 1.0)
        answer = kind.process(self, task)
        for batch in [answer] if isinstance(answer, Task) else answer or ():
            yield batch
            taken += batch.nbytes
            if taken >= enough:
                return

    other = copy.copy(reader)
    other.__class__ = type(kind.__name__, (kind,), {"process": process})
    if hasattr(other, "blocksize"):
        other.blocksize = min(other.blocksize, most)
    return other
