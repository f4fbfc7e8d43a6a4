"""Blend: a mixture of several inputs, by weights, with a budget of documents or tokens.

    list_blend   lists the files of all inputs
    read_blend   reads each input with its own reader
    blend        takes the documents of each input as often as its share of the mixture needs

How often that is must be known before the first document is written. With `factors`, the user gives it. With `weights`,
the driver first reads all inputs once. Each document draws a number from 0 to 1, by a hash; the driver sums documents
(or tokens) in a histogram of these numbers. A threshold on the number then meets the budget to one document in a
million, and which documents are taken depends on the documents alone. The counts are kept in the run directory, and
are not repeated when a run is resumed.

Gives up: mixing the order (documents stay in the partitions of their files), and counting on several machines (for many
terabytes, give `factors`).
"""

from __future__ import annotations

import copy
import math
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate, islice
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import ColumnError, InputError
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage, SourceStage, share_report
from gristmill.core.stage_roles import PlanningRole, RunStateRole
from gristmill.core.task import EmptyTask, FileGroupTask, Lineage, Task, digest
from gristmill.io.read.file_partitions import FilePartition, FilePartitioningStage
from gristmill.io.read.files_reader import SKIP
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.batch import DocumentBatch
from gristmill.text.read import FileReader, ReaderStage
from gristmill.text.resample import check_factor, draw_per_row, repeat_rows

BLEND_KEY = "blend"
"""The key in the metadata of a task for the name of its input."""

HISTOGRAM_BINS = 2**20
"""The resolution of the drawn numbers when documents are counted."""

_HISTOGRAM_SCHEMA = pa.schema([("step", pa.int64()), ("size", pa.float64())])


class Blend(CompositeStage[EmptyTask, DocumentBatch]):
    """Reads several inputs and mixes them by weights.

    `sources` maps names to readers. `weights` are the shares of the mixture, which need not add up to 1. Its size is
    `documents`, or `tokens`, the sum of the column `token_field`. An input that is too small for its share is repeated;
    one that is too large is sampled. Without a budget, the mixture is as large as it can be without repeating anything.
    `factors`, instead of `weights`, are how often the documents of each input are taken, and need no counting.
    `source_field` is a column for the name of the input.
    """

    def __init__(
        self,
        sources: Mapping[str, FileReader],
        weights: Mapping[str, float] | None = None,
        documents: int | None = None,
        tokens: int | None = None,
        token_field: str | None = None,
        factors: Mapping[str, float] | None = None,
        seed: int = 0,
        source_field: str | None = None,
    ) -> None:
        super().__init__()
        self.sources, self.weights, self.documents, self.tokens = sources, weights, documents, tokens
        self.token_field, self.factors, self.seed, self.source_field = token_field, factors, seed, source_field
        self._check_sources()
        self._check_shares()
        self._check_budget()

    def _check_sources(self) -> None:
        if not isinstance(self.sources, Mapping) or not self.sources:
            raise TypeError("Blend: sources must map names to readers, as in sources={'web': JsonlReader('web')}")
        for name, reader in self.sources.items():
            if not isinstance(reader, FileReader):
                raise TypeError(
                    f"Blend: source {name!r} is {reader!r}, must be a reader, such as JsonlReader('{name}')"
                )

    def _check_shares(self) -> None:
        if (self.weights is None) == (self.factors is None):
            raise ValueError(
                "Blend: give either weights, the shares of the mixture, or factors, how often to take each source"
            )
        shares = self.factors if self.weights is None else self.weights
        assert shares is not None
        if set(shares) != set(self.sources):
            raise ValueError(
                f"Blend: give one number for each of {', '.join(self.sources)}, not for {', '.join(shares)}"
            )
        for name, share in shares.items():
            check_factor("Blend", name, share)
        if not sum(shares.values()):
            raise ValueError("Blend: all weights are 0, so nothing would be taken: give one above 0")

    def _check_budget(self) -> None:
        if self.documents is not None and self.tokens is not None:
            raise ValueError("Blend: give a budget of documents or of tokens, not both")
        if self.weights is None and (self.documents, self.tokens, self.token_field) != (None, None, None):
            raise ValueError(
                "Blend: documents, tokens and token_field need weights: factors already decide how much is taken"
            )
        if self.tokens is not None and self.token_field is None:
            raise ValueError("Blend: name the column with the number of tokens: token_field=...")
        for what, budget in (("documents", self.documents), ("tokens", self.tokens)):
            if budget is not None:
                check_positive("Blend", what, budget)

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        listers = {name: reader.lister() for name, reader in self.sources.items()}
        readers = {name: reader.reading_stage() for name, reader in self.sources.items()}
        budget = self.documents if self.tokens is None else self.tokens
        return [
            ListBlendFiles(listers),
            ReadBlendFiles(readers),
            SampleBlend(
                listers, readers, self.weights, budget, self.token_field, self.factors, self.seed, self.source_field
            ),
        ]


class ListBlendFiles(SourceStage[FileGroupTask], PlanningRole):
    """Lists the files of all inputs. A file is identified by its input and its name there."""

    name = "list_blend"

    def __init__(self, listers: Mapping[str, FilePartitioningStage]) -> None:
        super().__init__()
        self._listers = dict(listers)

    def check(self) -> None:
        for lister in self._listers.values():
            lister.check()

    def input_files(self) -> Sequence[str]:
        return [path for lister in self._listers.values() for path in lister.input_files()]

    def sources(self) -> Iterator[Sequence[FileGroupTask]]:
        for name, lister in self._listers.items():
            for tasks in lister.sources():
                yield [_labelled(name, task) for task in tasks]


def _labelled(name: str, task: FileGroupTask) -> FilePartition:
    assert isinstance(task, FilePartition)
    labelled = replace(task, names=tuple(f"{name}/{file}" for file in task.names or task.data))
    labelled.metadata = {**task.metadata, BLEND_KEY: name, "partition": f"{labelled.stem}-{labelled.key()[:8]}"}
    return labelled


class ReadBlendFiles(ProcessingStage[FileGroupTask, DocumentBatch], PlanningRole):
    """Reads each file with the reader of its input."""

    name = "read_blend"

    def __init__(self, readers: Mapping[str, ReaderStage]) -> None:
        super().__init__()
        self.readers = dict(readers)

    def peek_columns(self, sample: Task[Any]) -> Mapping[str, pa.DataType] | None:
        return self.readers[sample.metadata[BLEND_KEY]].peek_columns(sample)

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        reader = copy.copy(self.readers[task.metadata[BLEND_KEY]])
        reader.name = self.name
        share_report(self, reader)
        yield from reader.process(task)


class SampleBlend(ProcessingStage[DocumentBatch, DocumentBatch], RunStateRole):
    """Takes the documents of each input as often as its share of the mixture needs."""

    name = BLEND_KEY
    takes_empty = True

    def __init__(
        self,
        listers: Mapping[str, FilePartitioningStage],
        readers: Mapping[str, ReaderStage],
        weights: Mapping[str, float] | None,
        budget: int | None,
        token_field: str | None,
        factors: Mapping[str, float] | None,
        seed: int,
        source_field: str | None,
    ) -> None:
        super().__init__()
        self.weights, self.budget, self.token_field, self.factors = weights, budget, token_field, factors
        self.seed, self.source_field = seed, source_field
        self.population = ""
        """A digest of the input files. It is public, and so part of the plan: other inputs give another mixture."""
        self._inputs = {name: (lister, readers[name]) for name, lister in listers.items()}
        self._factors: dict[str, float] | None = None if factors is None else dict(factors)

    def check(self) -> None:
        if self.weights is None:
            return
        files = [(name, file) for name, (lister, _) in self._inputs.items() for file in lister.files()]
        self.population = digest(f"{name} {file.name} {file.size} {file.stamp}" for name, file in files)

    def prepare_run(self, memory: dict[str, Any]) -> None:
        if self.weights is not None:
            key = digest(
                [self.population, repr(self.weights), repr(self.budget), repr(self.token_field), str(self.seed)]
            )
            if memory.get("key") != key:
                memory.update(key=key, factors=self._count())
            self._factors = memory["factors"]
        self._inputs = {}  # workers do not need them

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.source_field: "string"} if self.source_field else []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self._factors is None:  # a preview, for which nothing was prepared
            self._factors = self._count()
        name = task.metadata[BLEND_KEY]
        if self.source_field:
            label = pa.repeat(literal(name, pa.string()), task.num_items)
            task = task.with_column(self.source_field, label)
        if not task.num_items:
            return task
        factor = pa.repeat(literal(self._factors[name], pa.float64()), task.num_items)
        return repeat_rows(task, factor, draw_per_row(task, self.seed, BLEND_KEY))

    def _count(self) -> dict[str, float]:
        """How often the documents of each input are taken."""
        assert self.weights is not None
        weights = {name: weight for name, weight in self.weights.items() if weight}
        histograms = {name: count_by_draw(*self._inputs[name], name, self.seed, self.token_field) for name in weights}
        sizes = {name: sum(histogram) for name, histogram in histograms.items()}
        for name, size in sizes.items():
            if not size:
                lacks = f"no number in {self.token_field!r}" if self.token_field else "no documents"
                raise InputError(f"stage {self.name!r}: source {name!r} has {lacks}: leave it out, or give it weight 0")
        targets = target_sizes(weights, sizes, self.budget)
        factors = {name: sampling_factor(histograms[name], target) for name, target in targets.items()}
        return {name: factors.get(name, 0.0) for name in self.weights}


def target_sizes(weights: Mapping[str, float], sizes: Mapping[str, float], budget: int | None) -> dict[str, float]:
    """How much to take of each input: whole numbers of documents or tokens that add up to the budget."""
    total = sum(weights.values())
    if budget is None:
        budget = math.floor(min(sizes[name] * total / weight for name, weight in weights.items()) + 1e-9)
    exact = {name: budget * weight / total for name, weight in weights.items()}
    shares = {name: math.floor(share) for name, share in exact.items()}
    left = budget - sum(shares.values())
    for name in sorted(exact, key=lambda name: shares[name] - exact[name])[:left]:
        shares[name] += 1
    return {name: float(share) for name, share in shares.items()}


def sampling_factor(histogram: Sequence[float], target: float) -> float:
    """How often to take documents, so that their total is as near to the target as possible, and not above it."""
    sums = list(accumulate(histogram, initial=0.0))
    full_copies, rest = divmod(target, sums[-1])
    return full_copies + (bisect_right(sums, rest + 1e-6) - 1) / HISTOGRAM_BINS if rest else full_copies


def count_by_draw(
    lister: FilePartitioningStage, reader: ReaderStage, name: str, seed: int, token_field: str | None
) -> array[float]:
    """How many documents, or tokens, of an input draw a number in each bin of the histogram."""
    reader = copy.copy(reader)
    reader.on_bad_record, reader.fields = (
        SKIP,
        [token_field] if token_field else [],
    )  # the run itself reports bad records
    histogram = array("d", bytes(8 * HISTOGRAM_BINS))
    cores = os.cpu_count() or 1

    def count_task(task: FileGroupTask) -> pa.Table:
        counts = empty = pa.table([make_array([], kind) for kind in _HISTOGRAM_SCHEMA.types], schema=_HISTOGRAM_SCHEMA)
        for batch in copy.copy(reader).process(task):
            table = _draw_histogram(batch.named(task.lineage), seed, token_field) if batch.num_items else empty
            counts = pa.concat_tables([counts, table]).group_by("step").aggregate([("size", "sum")])
            counts = counts.rename_columns(["step", "size"])
        return counts

    parts = (_labelled(name, task) for tasks in lister.sources() for task in tasks)
    tasks = (task.named(Lineage(source=task.key(), files=task.files())) for task in parts)
    with ThreadPoolExecutor(cores) as threads:
        while window := list(islice(tasks, 4 * cores)):  # bounds the tasks that are listed but not counted yet
            for counts in threads.map(count_task, window):
                for step, size in zip(counts["step"].to_pylist(), counts["size"].to_pylist(), strict=True):
                    histogram[step] += size
    return histogram


def _draw_histogram(batch: DocumentBatch, seed: int, token_field: str | None) -> pa.Table:
    """The histogram bin of each document's number, and how much the document counts."""
    steps = pc.floor(
        pc.multiply(draw_per_row(batch, seed, BLEND_KEY), literal(float(HISTOGRAM_BINS), pa.float64()))
    ).cast(pa.int64())
    if token_field is None:
        return pa.table([steps, pa.repeat(literal(1.0, pa.float64()), len(steps))], schema=_HISTOGRAM_SCHEMA)
    column = batch.data.column(token_field).combine_chunks()
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)):
        raise ColumnError(
            f"stage {BLEND_KEY!r}: token_field={token_field!r} must be a column of numbers, not of {column.type}"
        )
    sizes = column.cast(pa.float64(), safe=False).fill_null(literal(0.0, pa.float64()))
    return pa.table([steps, sizes], schema=_HISTOGRAM_SCHEMA)
