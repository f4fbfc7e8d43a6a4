"""Workflows: from files to files, for those who want deduplication alone and no pipeline of their own.

    ExactDeduplicationWorkflow       the same text, columns or URL
    FuzzyDeduplicationWorkflow       nearly the same text

What one of these has found with perform_removal=False is removed at another time by `removal_workflow.py`.

Each is a pipeline of a reader, a stage and a writer, so what holds for pipelines holds here: any executor, the same
bytes, resuming (with `cache_path`). Input is JSON lines or Parquet at any fsspec path, output of the same kind.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gristmill.core.batch import Batch
from gristmill.core.errors import PlanError
from gristmill.core.executor import Executor
from gristmill.core.records.record_store import RecordStore
from gristmill.core.result import count_noun
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import WrittenFiles
from gristmill.dedup.clusters.cluster_table import CLUSTERS_DIRECTORY, ID, CommitVerdicts, count_clusters
from gristmill.dedup.clusters.keep_policy import FIRST, Keep
from gristmill.dedup.clusters.removal_by_id import TextDuplicatesRemovalStage
from gristmill.dedup.exact.exact_stage import DEFAULT_TEXT_FIELD, ExactDeduplicationStage
from gristmill.dedup.fuzzy.fuzzy_stage import FuzzyDeduplicationStage
from gristmill.dedup.index.dedup_index import DedupIndex
from gristmill.dedup.workflows.files_workflow import FilesWorkflow
from gristmill.io.read.file_listing import Paths
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.verdicts.verdict_stage import VerdictStage
from gristmill.io.write.commit import RECORDS_DIRECTORY

if TYPE_CHECKING:
    from gristmill.core.result import Result

NUM_BANDS, MINHASHES_PER_BAND = 20, 13
"""What scripts for NeMo Curator that give one of the two expect of the other."""


@dataclass(frozen=True)
class DeduplicationResult:
    """What a workflow has found and done. Counts of a resumed run are those of all its attempts."""

    output_path: str
    """Where the output is: files, or only the cluster table."""
    clusters_path: str | None
    """The cluster table, if this workflow has made one."""
    documents: int
    """Rows that were read."""
    duplicates: int
    """Rows that were removed, or are to be."""
    clusters: int
    """How many different rows have duplicates."""
    run: Result
    """The run itself: `files()`, `quarantined()`, and the `summary()` of its last attempt."""
    quality: str = ""
    """How well near duplicates are found: shares of a sample, and the curve."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """What the stage that finds them has counted, such as `estimated_recall`."""

    def __str__(self) -> str:
        read, again = count_noun(self.documents, "document"), count_noun(self.duplicates, "duplicate")
        found = f"{read} read, {again} in {count_noun(self.clusters, 'cluster')}"
        return f"{found}; output in {self.output_path}" + (f"\n{self.quality}" if self.quality else "")


class DuplicateFindingWorkflow(FilesWorkflow):
    """A workflow that finds duplicates, and removes them if that is wanted."""

    perform_removal: bool
    extend: str | DedupIndex | None
    id_field: str | None
    assign_id: bool

    def name_rows_by(self, id_field: str | None, assign_id: bool) -> None:
        if not assign_id and id_field is None:
            raise ValueError(f"{self.name}: with assign_id=False name the column that holds ids, id_field=...")
        self.id_field, self.assign_id = id_field, assign_id

    def stage(self) -> VerdictStage:
        raise NotImplementedError

    def run(self, executor: Executor | None = None, **settings: Any) -> DeduplicationResult:
        """Find duplicates and, with `perform_removal`, write the rest. `settings` are those of `Pipeline.run`."""
        if self.extend is not None and not self.perform_removal:
            raise PlanError(
                f"{self.name}: an index is extended by the rows that are kept: extend needs perform_removal"
            )
        if self.output_mode is not None and not self.perform_removal:
            raise PlanError(f"{self.name}: output_mode is for the rows that are left: it needs perform_removal")
        kind = self.filetype()
        stage = self.stage()
        if self.perform_removal:
            result = self.write_rest(kind, stage, executor, settings)
            place = f"{self.cache_path or f'{self.output_path}/{RECORDS_DIRECTORY}'}"
            options = self.cache_kwargs.get("storage_options") if self.cache_path else self.output_options
        else:
            target = OutputDirectory(self.output_path, self.output_options)
            result = self.run_stages([self.reader(kind), IdentifyDuplicates(stage, target)], executor, settings)
            place, options = self.output_path, self.output_options
        table = OutputDirectory(f"{place}/{CLUSTERS_DIRECTORY}", options)
        duplicates, clusters = count_clusters(table)
        counts = self._counts(stage, result, settings)
        return DeduplicationResult(
            self.output_path,
            table.url,
            result.rows_read,
            duplicates,
            clusters,
            result,
            _quality(stage, counts),
            counts,
        )

    def _counts(self, stage: VerdictStage, result: Result, settings: Mapping[str, Any]) -> dict[str, float]:
        """What the stage has counted in all attempts, which the report knows; the summary is of the last one."""
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
    told = [f"{what} of about {share:.1%}" for what, share in shares if share is not None]
    return "\n".join([*([f"{', '.join(told)}, by a sample"] if told else []), stage.curve()])


class IdentifyDuplicates(CompositeStage[Batch, WrittenFiles]):
    """The part of a stage that finds out which rows to drop, and writes the table of them."""

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
    """The differences between texts that do not count: those that are listed, and those that have a short name."""
    if not normalize_text or isinstance(normalize, str):  # which is an error of its own
        return normalize
    return list(dict.fromkeys(["case", "whitespace", *normalize]))


class ExactDeduplicationWorkflow(DuplicateFindingWorkflow):
    """Removes rows with the same text from files; or only finds them, with perform_removal=False.

    What is compared, and which row is kept, is said as for `ExactDeduplicationStage`; `normalize_text` adds "case" and
    "whitespace" to `normalize`. Rows are known by `id_field`, or by their file and place (`assign_id`). With
    `cache_path`, a directory, a run that was killed goes on. `read_kwargs`, `write_kwargs` and `cache_kwargs` may hold
    `storage_options`. `output_mode` says what becomes of files that are in `output_path`, as `mode` of a writer does;
    without it those of the same name are replaced, and if there are others the run does not start. Without removal the
    cluster table is written to `clusters` in `output_path`.
    """

    def __init__(
        self,
        input_path: Paths,
        output_path: str | os.PathLike[str],
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
        self.columns, self.url_field, self.normalize, self.normalize_text = (
            columns,
            url_field,
            normalize,
            normalize_text,
        )
        self.keep, self.score_field = keep, score_field
        self.num_partitions, self.memory_gb, self.against, self.extend = num_partitions, memory_gb, against, extend
        self.stage()  # wrong parameters are errors here

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

    Texts are compared as by `FuzzyDeduplicationStage`: by runs of `char_ngrams` characters, or of `word_ngrams` words
    if that is given. Bands are chosen by the `threshold`, unless `num_bands` or `minhashes_per_band` is given; without
    the other, there are 20 bands, or 13 minhashes in each. The other parameters are those of
    `ExactDeduplicationWorkflow`, and all but the two paths go by name.
    """

    def __init__(
        self,
        input_path: Paths,
        output_path: str | os.PathLike[str],
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
        self.stage()  # wrong parameters are errors here

    def stage(self) -> FuzzyDeduplicationStage:
        bands, rows = self.num_bands, self.minhashes_per_band
        if bands is not None or rows is not None:
            bands, rows = NUM_BANDS if bands is None else bands, MINHASHES_PER_BAND if rows is None else rows
        more: dict[str, Any] = {}
        for name in ("bands_per_iteration", "verify"):
            if getattr(self, name) is not None:
                more[name] = getattr(self, name)
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
            **more,
        )


class TextDuplicatesRemovalWorkflow(FilesWorkflow):
    """Removes rows by their ids: those of a cluster table that are not kept, or all of a table of ids.

    The input is that in which they were found, in blocks of any size. `id_field` is as it was then.
    """

    def __init__(
        self,
        input_path: Paths,
        ids_to_remove_path: Paths,
        output_path: str | os.PathLike[str],
        id_field: str | None = None,
        duplicate_id_field: str = ID,
        duplicate_id_read_kwargs: Mapping[str, Any] | None = None,
        cache_path: str | os.PathLike[str] | None = None,
        **files: Any,
    ) -> None:
        """`files`: as for `ExactDeduplicationWorkflow`."""
        super().__init__(input_path, output_path, cache_path, **files)
        self.ids_to_remove_path, self.id_field = ids_to_remove_path, id_field
        self.duplicate_id_field = duplicate_id_field
        self.duplicate_id_read_kwargs = dict(duplicate_id_read_kwargs or {})

    def run(self, executor: Executor | None = None, **settings: Any) -> DeduplicationResult:
        """Write the input without the rows to remove. `settings` are those of `Pipeline.run`."""
        kind = self.filetype()
        options = self.duplicate_id_read_kwargs.get("storage_options")
        stage = TextDuplicatesRemovalStage(self.ids_to_remove_path, self.id_field, self.duplicate_id_field, options)
        result = self.write_rest(kind, stage, executor, settings)
        written = sum(task.rows for task in result if isinstance(task, WrittenFiles))
        removed, listed = result.rows_read - written - len(result.quarantined()), stage.listed()
        told = stage.run_warning(result.summary()[stage.name])  # of this attempt alone
        if listed is not None and removed != listed and not told:
            warnings.warn(stage.count_warning(removed, listed), RuntimeWarning, stacklevel=2)
        return DeduplicationResult(self.output_path, None, result.rows_read, removed, 0, result)
