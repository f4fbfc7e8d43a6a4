"""Deduplication workflows: from files to files, without writing a pipeline.

    ExactDeduplicationWorkflow      the same text, columns or URL
    FuzzyDeduplicationWorkflow      nearly the same text
    TextDuplicatesRemovalWorkflow   removes later what one of these has found with perform_removal=False

Each runs a pipeline of a reader, a stage and a writer, and has its properties: any executor, the same output bytes,
resuming (with `cache_path`). Input is JSON lines or Parquet at any fsspec path; output is of the same format.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.errors import PlanError
from gristmill.core.executor import Executor
from gristmill.core.records.run_location import records_beside
from gristmill.core.records.run_record_store import RecordStore
from gristmill.core.result import count_noun
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import FileGroupTask, WrittenFiles
from gristmill.dedup.clusters.cluster_table import CLUSTERS_DIRECTORY, ID, CommitVerdicts, count_clusters
from gristmill.dedup.clusters.curator_duplicate_ids import (
    CURATOR_DEDUP_ID_STR,
    NumberRows,
    RowNumbers,
    refuse_other_files,
    write_duplicate_ids,
)
from gristmill.dedup.clusters.keep_policy import FIRST, Keep
from gristmill.dedup.clusters.removal_by_id import TextDuplicatesRemovalStage
from gristmill.dedup.exact.exact_stage import DEFAULT_TEXT_FIELD, ExactDeduplicationStage
from gristmill.dedup.fuzzy.fuzzy_stage import FuzzyDeduplicationStage
from gristmill.dedup.index.dedup_index import DedupIndex
from gristmill.dedup.workflows.files_workflow import FilesWorkflow
from gristmill.io.exchange.verdict_stage import VerdictStage
from gristmill.io.read.file_listing import Paths
from gristmill.io.storage.output_directory import OutputDirectory

if TYPE_CHECKING:
    from gristmill.core.result import Result

NUM_BANDS, MINHASHES_PER_BAND = 20, 13
"""The defaults of NeMo Curator, used if a script sets only one of the two."""


@dataclass(frozen=True)
class DeduplicationResult:
    """The result of a workflow. Counts of a resumed run are those of all its attempts."""

    output_path: str
    """The output directory: files, or only the cluster table."""
    clusters_path: str | None
    """The directory of the cluster table, if this workflow writes one."""
    documents: int
    """Rows that were read."""
    duplicates: int
    """Rows that were removed, or that the cluster table lists for removal."""
    clusters: int
    """The number of clusters of duplicates."""
    run: Result
    """The result of the run: `files()`, `quarantined()`, and the `summary()` of its last attempt."""
    quality: str = ""
    """Estimated recall and precision of fuzzy deduplication, and the S-curve of its bands."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """The counters of the deduplication stage, such as `estimated_recall`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the result of a workflow of NeMo Curator has under these names: `num_duplicates`, `id_generator_path` ..."""

    def get_metadata(self, key: str) -> Any:
        """One entry of `metadata`; None if there is none."""
        return self.metadata.get(key)

    def __str__(self) -> str:
        documents, duplicates = count_noun(self.documents, "document"), count_noun(self.duplicates, "duplicate")
        counts = f"{documents} read, {duplicates} in {count_noun(self.clusters, 'cluster')}"
        return f"{counts}; output in {self.output_path}" + (f"\n{self.quality}" if self.quality else "")


class DuplicateFindingWorkflow(FilesWorkflow):
    """A workflow that finds duplicates and, with `perform_removal`, removes them."""

    perform_removal: bool
    extend: str | DedupIndex | None
    id_field: str | None
    assign_id: bool

    ids_directory: ClassVar[str]
    """The directory in `output_path` for the ids of duplicates, if they are only found."""
    id_generator_file: ClassVar[str]
    """The file in `output_path` with the numbers of rows that have no `id_field`."""
    ids_column: ClassVar[str | None] = None
    """The name of the column of ids; None for `id_field`, or `CURATOR_DEDUP_ID_STR`."""

    def name_rows_by(self, id_field: str | None, assign_id: bool) -> None:
        if not assign_id and id_field is None:
            raise ValueError(f"{self.name}: assign_id=False needs the column with ids: id_field=...")
        self.id_field, self.assign_id = id_field, assign_id

    def stage(self) -> VerdictStage:
        raise NotImplementedError

    def run(
        self,
        executor: Executor | Sequence[FileGroupTask] | None = None,
        *,
        initial_tasks: Sequence[FileGroupTask] | None = None,
        **settings: Any,
    ) -> DeduplicationResult:
        """Find duplicates and, with `perform_removal`, write the kept rows. `settings` are those of `Pipeline.run`.

        `initial_tasks` are the files to read, instead of `input_path`; they may also be the first argument, as in
        NeMo Curator.
        """
        if executor is not None and not isinstance(executor, Executor):
            executor, initial_tasks = None, executor
        if initial_tasks is not None:
            return self.with_tasks(initial_tasks).run(executor, **settings)
        if self.extend is not None and not self.perform_removal:
            raise PlanError(f"{self.name}: extend adds the kept rows to an index, and needs perform_removal=True")
        if self.output_mode is not None and not self.perform_removal:
            raise PlanError(f"{self.name}: output_mode is for the files of kept rows, and needs perform_removal=True")
        kind = self.filetype()
        stage = self.stage()
        if self.perform_removal:
            result = self.write_rest(kind, [stage], executor, settings)
            directory = self.cache_path or records_beside(self.output_path)
            options = self.cache_kwargs.get("storage_options") if self.cache_path else self.output_options
        else:
            result = self._identify(kind, stage, executor, settings)
            directory, options = self.output_path, self.output_options
        table = OutputDirectory(f"{directory}/{CLUSTERS_DIRECTORY}", options)
        duplicates, clusters = count_clusters(table)
        counts = self._counts(stage, result, settings)
        metadata: dict[str, Any] = {"num_duplicates": duplicates}
        if not self.perform_removal:
            metadata["id_generator_path"] = self._write_ids(kind, table)
        return DeduplicationResult(
            self.output_path,
            table.url,
            result.rows_read,
            duplicates,
            clusters,
            result,
            _quality(stage, counts),
            counts,
            metadata,
        )

    def _identify(self, kind: str, stage: VerdictStage, executor: Executor | None, settings: Any) -> Result:
        target = OutputDirectory(self.output_path, self.output_options)
        refuse_other_files(self.name, OutputDirectory(target.file(self.ids_directory), self.output_options))
        return self.run_stages([self.reader(kind), IdentifyDuplicates(stage, target)], executor, settings)

    def _write_ids(self, kind: str, table: OutputDirectory) -> str | None:
        """Write the ids of duplicates in the layout of NeMo Curator; returns the path of the numbers of rows, if any.

        The file of numbers is written first: without it the ids mean nothing.
        """
        target = OutputDirectory(self.output_path, self.output_options)
        listing, reading = self.reader(kind).decompose()
        numbers, path, values = None, None, pa.string()
        if self.id_field is None:
            numbers = RowNumbers(file.name for file in listing.files())
            path = numbers.write(target, self.id_generator_file)
        else:
            found = reading.peek_columns(next(iter(listing.sources()))[0]) or {}
            values = pa.int64() if pa.types.is_integer(found.get(self.id_field, values)) else values
        column = self.ids_column or self.id_field or CURATOR_DEDUP_ID_STR
        folder = OutputDirectory(target.file(self.ids_directory), self.output_options)
        write_duplicate_ids(table, folder, column, numbers, values)
        return path

    def _counts(self, stage: VerdictStage, result: Result, settings: Mapping[str, Any]) -> dict[str, float]:
        """The counters of the stage over all attempts, from the report; the summary has only those of the last."""
        last = [{"name": line.name, "counts": line.counts} for line in result.summary().stages]
        counts = _counts_of(stage, last)
        if self.cache_path is None or (counts and settings.get("report", True) is not True):
            return counts
        report = RecordStore(self.cache_path, self.cache_kwargs.get("storage_options")).read("report.json")
        return _counts_of(stage, report["stages"]) if report else counts

    def _done_before(self) -> set[str]:
        if self.cache_path is None:
            return set()
        entries = RecordStore(self.cache_path, self.cache_kwargs.get("storage_options")).lines("ledger")
        paths = [file["path"] for entry in entries for file in entry.get("written") or ()]
        folder = OutputDirectory(self.output_path, self.output_options).file("")
        return {path.removeprefix(folder) for path in paths if path.startswith(folder)}


def _counts_of(stage: VerdictStage, lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    mine = [line["counts"] for line in lines if line["name"].startswith(stage.name)]
    return {name: value for counts in mine for name, value in counts.items()}


def _quality(stage: VerdictStage, counts: Mapping[str, float]) -> str:
    if not isinstance(stage, FuzzyDeduplicationStage):
        return ""
    shares = [(what, counts.get(f"estimated_{what}")) for what in ("recall", "precision")]
    estimates = [f"{what} of about {share:.1%}" for what, share in shares if share is not None]
    return "\n".join([*([f"{', '.join(estimates)}, by a sample"] if estimates else []), stage.curve()])


class IdentifyDuplicates(CompositeStage[Batch, WrittenFiles]):
    """The part of a stage that finds duplicates and writes the cluster table, without removing them."""

    def __init__(self, stage: VerdictStage, target: OutputDirectory) -> None:
        super().__init__()
        self.stage, self.target, self.name = stage, target, f"{stage.name}_identify"

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        _, _, parts = self.stage.judging(spools=False)
        commit = parts[-1]
        assert isinstance(commit, CommitVerdicts)
        commit.table_target = self.target
        return parts


def ignored_differences(normalize: Sequence[str], normalize_text: bool) -> Sequence[str]:
    """The differences between texts to ignore: those listed, and those that `normalize_text` stands for."""
    if not normalize_text or isinstance(normalize, str):  # the stage raises for a str
        return normalize
    return list(dict.fromkeys(["case", "whitespace", *normalize]))


class ExactDeduplicationWorkflow(DuplicateFindingWorkflow):
    """Removes rows with the same text from files; or only finds them, with perform_removal=False.

    Parameters are those of `ExactDeduplicationStage`; `normalize_text` adds "case" and "whitespace" to `normalize`.
    Rows are identified by `id_field`, or by their file and position (`assign_id`). With `cache_path`, a directory, a
    killed run can be resumed. `read_kwargs`, `write_kwargs` and `cache_kwargs` may contain `storage_options`.
    `output_mode` is the `mode` of the writer for files that are already in `output_path`; without it files of the same
    name are replaced, and the run does not start if there are others. Without removal the cluster table is written to
    `clusters` in `output_path`, and the ids of duplicates, as NeMo Curator has them, to `ExactDuplicateIds`. The sizes
    of its GPU memory pools and the like are accepted and ignored.
    """

    ids_directory = "ExactDuplicateIds"
    id_generator_file = "exact_id_generator.json"
    unused = (
        "identification_batchsize",
        "total_nparts",
        "rmm_pool_size",
        "spill_memory_limit",
        "env_vars",
        "use_async_memory",
    )

    def __init__(
        self,
        input_path: Paths | None = None,
        output_path: str | os.PathLike[str] | None = None,
        text_field: str = DEFAULT_TEXT_FIELD,
        *,
        perform_removal: bool = True,
        cache_path: str | os.PathLike[str] | None = None,
        columns: Sequence[str] | None = None,
        url_field: str | None = None,
        normalize: Sequence[str] = (),
        normalize_text: bool = False,
        keep: str | Keep | Mapping[str, Any] = FIRST,
        score_field: str | None = None,
        id_field: str | None = None,
        assign_id: bool = True,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
        against: Sequence[str | DedupIndex] = (),
        extend: str | DedupIndex | None = None,
        **files: Any,
    ) -> None:
        """`files`: input_filetype, input_blocksize, input_file_extensions, output_filetype, output_mode,
        read_kwargs, write_kwargs, cache_kwargs."""
        super().__init__(input_path, output_path, cache_path, **files)
        self.name_rows_by(id_field, assign_id)
        self.text_field, self.perform_removal = text_field, perform_removal
        self.columns, self.url_field = columns, url_field
        self.normalize, self.normalize_text = normalize, normalize_text
        self.keep, self.score_field = keep, score_field
        self.num_partitions, self.memory_gb, self.against, self.extend = num_partitions, memory_gb, against, extend
        self.stage()  # raises for wrong parameters

    def stage(self) -> ExactDeduplicationStage:
        return ExactDeduplicationStage(
            self.text_field,
            self.keep,
            self.score_field,
            ignored_differences(self.normalize, self.normalize_text),
            self.id_field,
            self.num_partitions,
            self.columns,
            self.url_field,
            self.memory_gb,
            against=self.against,
            extend=self.extend,
        )


class FuzzyDeduplicationWorkflow(DuplicateFindingWorkflow):
    """Removes rows with nearly the same text from files; or only finds them, with perform_removal=False.

    Texts are compared as by `FuzzyDeduplicationStage`, by runs of `char_ngrams` characters, or of `word_ngrams` words
    if that is given. Bands are chosen by the `threshold`, unless `num_bands` or `minhashes_per_band` is set; if only
    one is, the other is 20 bands, or 13 minhashes for each. The other parameters are those of
    `ExactDeduplicationWorkflow`; all but the two paths are keyword-only. Without removal the ids of duplicates are
    written to `FuzzyDuplicateIds`.
    """

    ids_directory = "FuzzyDuplicateIds"
    id_generator_file = "fuzzy_id_generator.json"
    unused = (
        "lsh_num_output_partitions",
        "lsh_rmm_pool_size",
        "lsh_spill_memory_limit",
        "env_vars",
        "use_async_memory",
    )

    def __init__(
        self,
        input_path: Paths | None = None,
        output_path: str | os.PathLike[str] | None = None,
        *,
        text_field: str = DEFAULT_TEXT_FIELD,
        perform_removal: bool = True,
        cache_path: str | os.PathLike[str] | None = None,
        char_ngrams: int = 24,
        word_ngrams: int | None = None,
        num_bands: int | None = None,
        minhashes_per_band: int | None = None,
        threshold: float = 0.8,
        verify: str | None = None,
        seed: int = 42,
        use_64_bit_hash: bool = False,
        bands_per_iteration: int | None = None,
        normalize: Sequence[str] = (),
        normalize_text: bool = False,
        keep: str | Keep | Mapping[str, Any] = FIRST,
        score_field: str | None = None,
        id_field: str | None = None,
        assign_id: bool = True,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
        against: Sequence[str | DedupIndex] = (),
        extend: str | DedupIndex | None = None,
        **files: Any,
    ) -> None:
        """`files`: as for `ExactDeduplicationWorkflow`."""
        super().__init__(input_path, output_path, cache_path, **files)
        self.name_rows_by(id_field, assign_id)
        self.text_field, self.perform_removal = text_field, perform_removal
        self.normalize, self.normalize_text = normalize, normalize_text
        self.char_ngrams, self.word_ngrams, self.threshold = char_ngrams, word_ngrams, threshold
        self.num_bands, self.minhashes_per_band, self.verify, self.seed = num_bands, minhashes_per_band, verify, seed
        self.use_64_bit_hash, self.bands_per_iteration = use_64_bit_hash, bands_per_iteration
        self.keep, self.score_field = keep, score_field
        self.num_partitions, self.memory_gb, self.against, self.extend = num_partitions, memory_gb, against, extend
        self.stage()  # raises for wrong parameters

    def stage(self) -> FuzzyDeduplicationStage:
        bands, rows = self.num_bands, self.minhashes_per_band
        if bands is not None or rows is not None:
            bands, rows = NUM_BANDS if bands is None else bands, MINHASHES_PER_BAND if rows is None else rows
        optional = {"bands_per_iteration": self.bands_per_iteration, "verify": self.verify}
        given: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        return FuzzyDeduplicationStage(
            text_field=self.text_field,
            word_ngrams=self.word_ngrams,
            threshold=self.threshold,
            char_ngrams=self.char_ngrams,
            num_bands=bands,
            minhashes_per_band=rows,
            seed=self.seed,
            keep=self.keep,
            score_field=self.score_field,
            normalize=ignored_differences(self.normalize, self.normalize_text),
            id_field=self.id_field,
            num_partitions=self.num_partitions,
            use_64_bit_hash=self.use_64_bit_hash,
            against=self.against,
            extend=self.extend,
            memory_gb=self.memory_gb,
            **given,
        )


class TextDuplicatesRemovalWorkflow(FilesWorkflow):
    """Removes rows by their ids: the dropped rows of a cluster table, or all rows of a table of ids.

    The input and `id_field` must be those with which the table was made; blocks may be of any size. With
    `id_generator_path`, the JSON file that was written with the ids, rows get the numbers they had then in the column
    `id_field`, by default `_curator_dedup_id`. `drop_id_field` leaves that column out of the output, `output_fields`
    are the columns to write, `input_fields` those to read. `input_task_limit` is the maximum number of partitions of
    `input_files_per_partition` files. `input_kwargs` and `output_kwargs` are `read_kwargs` and `write_kwargs`.
    """

    def __init__(
        self,
        input_path: Paths | None,
        ids_to_remove_path: Paths,
        output_path: str | os.PathLike[str],
        id_field: str | None = None,
        duplicate_id_field: str = ID,
        duplicate_id_read_kwargs: Mapping[str, Any] | None = None,
        cache_path: str | os.PathLike[str] | None = None,
        *,
        id_generator_path: str | os.PathLike[str] | None = None,
        id_generator_storage_options: Mapping[str, Any] | None = None,
        drop_id_field: bool = False,
        input_fields: Sequence[str] | None = None,
        input_files_per_partition: int | None = None,
        input_task_limit: int | None = None,
        input_kwargs: Mapping[str, Any] | None = None,
        output_fields: Sequence[str] | None = None,
        output_kwargs: Mapping[str, Any] | None = None,
        output_file_extension: str | None = None,
        **files: Any,
    ) -> None:
        """`files`: as for `ExactDeduplicationWorkflow`."""
        for name, given in (("read_kwargs", input_kwargs), ("write_kwargs", output_kwargs)):
            files[name] = {**(files.get(name) or {}), **(given or {})}
        super().__init__(input_path, output_path, cache_path, **files)
        self.ids_to_remove_path, self.duplicate_id_field = ids_to_remove_path, duplicate_id_field
        self.id_generator_path = None if id_generator_path is None else os.fspath(id_generator_path)
        self.id_field = CURATOR_DEDUP_ID_STR if id_field is None and self.id_generator_path else id_field
        self.id_generator_storage_options = dict(id_generator_storage_options or {})
        self.duplicate_id_read_kwargs, self.drop_id_field = dict(duplicate_id_read_kwargs or {}), drop_id_field
        self.input_fields, self.output_fields = input_fields, output_fields
        self.input_files_per_partition, self.input_task_limit = input_files_per_partition, input_task_limit
        wanted = self.output_filetype or self.input_filetype
        if output_file_extension and wanted and output_file_extension.lstrip(".") != wanted:
            raise ValueError(
                f"{self.name}: output_file_extension is {output_file_extension!r}, but files of this format end in "
                f"'.{wanted}': leave it out, or set output_filetype"
            )

    def reader_settings(self) -> dict[str, Any]:
        limit, each = self.input_task_limit, self.input_files_per_partition
        return {
            "fields": self.input_fields,
            "files_per_partition": each,
            "limit": None if limit is None else limit * (each or 1),
        }

    def run(
        self,
        executor: Executor | None = None,
        initial_tasks: Sequence[FileGroupTask] | None = None,
        **settings: Any,
    ) -> DeduplicationResult:
        """Write the input without the rows to remove. `settings` are those of `Pipeline.run`."""
        if initial_tasks is not None:
            return self.with_tasks(initial_tasks).run(executor, **settings)
        kind = self.filetype()
        options = self.duplicate_id_read_kwargs.get("storage_options")
        stage = TextDuplicatesRemovalStage(
            self.ids_to_remove_path, self.id_field, self.duplicate_id_field, options, self.drop_id_field
        )
        result = self.write_rest(kind, [*self._numbering(kind), stage], executor, settings)
        written = sum(task.rows for task in result if isinstance(task, WrittenFiles))
        removed, listed = result.rows_read - written - len(result.quarantined()), stage.listed()
        warned = stage.run_warning(result.summary()[stage.name])  # by the run, of its last attempt
        if listed is not None and removed != listed and not warned:
            warnings.warn(stage.count_warning(removed, listed), RuntimeWarning, stacklevel=2)
        metadata = {"num_duplicates_removed": removed}
        return DeduplicationResult(self.output_path, None, result.rows_read, removed, 0, result, metadata=metadata)

    def _numbering(self, kind: str) -> list[NumberRows]:
        if self.id_generator_path is None:
            return []
        assert self.id_field is not None
        path, options = self.id_generator_path, self.id_generator_storage_options
        names = [file.name for file in self.reader(kind).decompose()[0].files()]
        RowNumbers.read(path, options).check(names, path)
        return [NumberRows(path, self.id_field, options)]
