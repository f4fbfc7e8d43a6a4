"""Workflows: from files to files, for those who want deduplication alone and no pipeline of their own.

    ExactDeduplicationWorkflow       the same text, columns or URL
    FuzzyDeduplicationWorkflow       nearly the same text
    TextDuplicatesRemovalWorkflow    what one of these has found with perform_removal=False, at another time

Each is a pipeline of a reader, a stage and a writer, so what holds for pipelines holds here: any executor, the same
bytes, resuming (with `cache_path`). Input is JSON lines or Parquet at any fsspec path, output of the same kind.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.core.batch import Batch
from gristmill.core.errors import InputError, PlanError
from gristmill.core.executor import Executor, default_format
from gristmill.core.pipeline import Pipeline
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import WrittenFiles
from gristmill.dedup.clusters import FOLDER, ID, CommitVerdicts, count_clusters
from gristmill.dedup.exact import TEXT, ExactDeduplicationStage
from gristmill.dedup.fuzzy import FuzzyDeduplicationStage
from gristmill.dedup.index import DedupIndex
from gristmill.dedup.keep import FIRST, Keep
from gristmill.dedup.removal import TextDuplicatesRemovalStage
from gristmill.io.commit import SIDE_ROOM
from gristmill.io.listing import Paths, list_files
from gristmill.io.sniff import LINES, PARQUET, extension_of, with_compressed
from gristmill.io.target import Target
from gristmill.io.verdicts import VerdictStage

if TYPE_CHECKING:
    from gristmill.core.result import Result

FILETYPES = ("jsonl", "parquet")


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
    """The run itself: `summary()`, `files()`, `quarantined()`."""
    quality: str = ""
    """How well near duplicates are found: shares of a sample, and the curve."""

    def __str__(self) -> str:
        found = f"{self.documents:,} documents read, {self.duplicates:,} duplicates in {self.clusters:,} clusters"
        return f"{found}; output in {self.output_path}" + (f"\n{self.quality}" if self.quality else "")


class _Workflow:
    """What the workflows share: where rows come from, and where they go."""

    def __init__(
        self,
        input_path: Paths,
        output_path: str | os.PathLike[str],
        cache_path: str | os.PathLike[str] | None = None,
        input_filetype: str | None = None,
        input_blocksize: int | str | None = None,
        input_file_extensions: Sequence[str] | None = None,
        output_filetype: str | None = None,
        read_kwargs: Mapping[str, Any] | None = None,
        write_kwargs: Mapping[str, Any] | None = None,
        cache_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.input_path, self.output_path = input_path, os.fspath(output_path)
        self.cache_path = None if cache_path is None else os.fspath(cache_path)
        self.input_filetype, self.input_blocksize = input_filetype, input_blocksize
        self.input_file_extensions, self.output_filetype = input_file_extensions, output_filetype
        self.read_kwargs, self.write_kwargs = dict(read_kwargs or {}), dict(write_kwargs or {})
        self.cache_kwargs = dict(cache_kwargs or {})
        for what, given in (("input_filetype", input_filetype), ("output_filetype", output_filetype)):
            if given is not None and given not in FILETYPES:
                raise ValueError(f"{self.name}: {what} is {given!r}, must be 'jsonl' or 'parquet'")

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def output_options(self) -> dict[str, Any]:
        return dict(self.write_kwargs.get("storage_options") or {})

    def filetype(self) -> str:
        """The kind of the input: what was said, or what its files are called."""
        if self.input_filetype:
            return self.input_filetype
        lines = with_compressed(LINES)
        options = self.read_kwargs.get("storage_options") or {}
        try:
            files = list_files(self.input_path, self.input_file_extensions or [*lines, *PARQUET], options)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from error
        kinds = {"parquet" if extension_of(file.path) in PARQUET else "jsonl" for file in files}
        if len(kinds) > 1:
            raise PlanError(f"{self.name}: the input has JSON lines and Parquet: say which with input_filetype=...")
        return kinds.pop()

    def reader(self, kind: str) -> ProcessingStage[Any, Any]:
        made: ProcessingStage[Any, Any] = default_format(kind)[0](
            self.input_path,
            blocksize=self.input_blocksize,
            file_extensions=self.input_file_extensions,
            read_kwargs=self.read_kwargs,
        )
        return made

    def writer(self, kind: str) -> ProcessingStage[Any, Any]:
        options = {name: value for name, value in self.write_kwargs.items() if name != "storage_options"}
        compression = options.pop("compression", None)
        made: ProcessingStage[Any, Any] = default_format(self.output_filetype or kind)[1](
            self.output_path,
            write_kwargs=options,
            compression=compression,
            storage_options=self.output_options,
        )
        return made

    def run_stages(self, stages: Sequence[Any], executor: Executor | None, settings: Mapping[str, Any]) -> Result:
        pipeline = Pipeline(self.name, stages=stages)
        options = self.cache_kwargs.get("storage_options")
        return pipeline.run(executor, self.cache_path, storage_options=options, **settings)


class _Finding(_Workflow):
    """A workflow that finds duplicates, and removes them if that is wanted."""

    perform_removal: bool
    extend: str | DedupIndex | None

    def stage(self) -> VerdictStage:
        raise NotImplementedError

    def run(self, executor: Executor | None = None, **settings: Any) -> DeduplicationResult:
        """Find duplicates and, with `perform_removal`, write the rest. `settings` are those of `Pipeline.run`."""
        if self.extend is not None and not self.perform_removal:
            raise PlanError(
                f"{self.name}: an index is extended by the rows that are kept: extend needs perform_removal"
            )
        kind = self.filetype()
        stage = self.stage()
        if self.perform_removal:
            result = self.run_stages([self.reader(kind), stage, self.writer(kind)], executor, settings)
            place = f"{self.cache_path or f'{self.output_path}/{SIDE_ROOM}'}"
            options = self.cache_kwargs.get("storage_options") if self.cache_path else self.output_options
        else:
            target = Target(self.output_path, self.output_options)
            result = self.run_stages([self.reader(kind), Identify(stage, target)], executor, settings)
            place, options = self.output_path, self.output_options
        table = Target(f"{place}/{FOLDER}", options)
        duplicates, clusters = count_clusters(table)
        quality = _quality(stage, result)
        return DeduplicationResult(self.output_path, table.url, result.rows_read, duplicates, clusters, result, quality)


def _quality(stage: VerdictStage, result: Result) -> str:
    if not isinstance(stage, FuzzyDeduplicationStage):
        return ""
    counts = {name: value for line in result.summary().stages for name, value in line.counts.items()}
    shares = [(what, counts.get(f"estimated_{what}")) for what in ("recall", "precision")]
    told = [f"{what} of about {share:.1%}" for what, share in shares if share is not None]
    return "\n".join([*([f"{', '.join(told)}, by a sample"] if told else []), stage.curve()])


class Identify(CompositeStage[Batch, WrittenFiles]):
    """The part of a stage that finds out which rows to drop, and writes the table of them."""

    def __init__(self, stage: VerdictStage, target: Target) -> None:
        super().__init__()
        self.stage, self.target, self.name = stage, target, f"{stage.name}_identify"

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        _, _, parts = self.stage.judging(spools=False)
        commit = parts[-1]
        assert isinstance(commit, CommitVerdicts)
        commit.place = self.target
        return parts


class ExactDeduplicationWorkflow(_Finding):
    """Removes rows with the same text from files; or only finds them, with perform_removal=False.

    What is compared, and which row is kept, is said as for `ExactDeduplicationStage`; `normalize_text` is short for
    normalize=["case", "whitespace"]. Rows are known by `id_field`, or by their file and place (`assign_id`). With
    `cache_path`, a directory, a run that was killed goes on. `read_kwargs`, `write_kwargs` and `cache_kwargs` may hold
    `storage_options`. Without removal the cluster table is written to `clusters` in `output_path`.
    """

    def __init__(
        self,
        input_path: Paths,
        output_path: str | os.PathLike[str],
        text_field: str = TEXT,
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
        """`files`: input_filetype, input_blocksize, input_file_extensions, output_filetype, read_kwargs,
        write_kwargs, cache_kwargs."""
        super().__init__(input_path, output_path, cache_path, **files)
        if not assign_id and id_field is None:
            raise ValueError(f"{self.name}: with assign_id=False name the column that holds ids, id_field=...")
        self.text_field, self.perform_removal = text_field, perform_removal
        self.columns, self.url_field, self.normalize, self.normalize_text = (
            columns,
            url_field,
            normalize,
            normalize_text,
        )
        self.keep, self.score_field = keep, score_field
        self.id_field, self.assign_id = id_field, assign_id
        self.num_partitions, self.memory_gb, self.against, self.extend = num_partitions, memory_gb, against, extend
        self.stage()  # wrong parameters are errors here

    def stage(self) -> ExactDeduplicationStage:
        return ExactDeduplicationStage(
            self.text_field,
            self.keep,
            self.score_field,
            ["case", "whitespace"] if self.normalize_text else self.normalize,
            self.id_field,
            self.num_partitions,
            self.columns,
            self.url_field,
            self.memory_gb,
            against=self.against,
            extend=self.extend,
        )


class FuzzyDeduplicationWorkflow(_Finding):
    """Removes rows with nearly the same text from files; or only finds them, with perform_removal=False.

    Texts are compared as by `FuzzyDeduplicationStage`: by runs of `char_ngrams` characters, or of `word_ngrams` words
    if that is given; `num_bands=None` and `minhashes_per_band=None` choose bands by the `threshold`. The other
    parameters are those of `ExactDeduplicationWorkflow`.
    """

    def __init__(
        self,
        input_path: Paths,
        output_path: str | os.PathLike[str],
        cache_path: str | os.PathLike[str] | None = None,
        text_field: str = TEXT,
        *,
        perform_removal: bool = True,
        char_ngrams: int = 24,
        word_ngrams: int | None = None,
        num_bands: int | None = 20,
        minhashes_per_band: int | None = 13,
        threshold: float = 0.8,
        verify: str | None = None,
        seed: int = 42,
        use_64_bit_hash: bool = False,
        bands_per_iteration: int | None = None,
        keep: str | Keep | Mapping[str, Any] = FIRST,
        id_field: str | None = None,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
        against: Sequence[str | DedupIndex] = (),
        extend: str | DedupIndex | None = None,
        **files: Any,
    ) -> None:
        """`files`: as for `ExactDeduplicationWorkflow`."""
        super().__init__(input_path, output_path, cache_path, **files)
        self.text_field, self.perform_removal = text_field, perform_removal
        self.char_ngrams, self.word_ngrams, self.threshold = char_ngrams, word_ngrams, threshold
        self.num_bands, self.minhashes_per_band, self.verify, self.seed = num_bands, minhashes_per_band, verify, seed
        self.use_64_bit_hash, self.bands_per_iteration = use_64_bit_hash, bands_per_iteration
        self.keep, self.id_field = keep, id_field
        self.num_partitions, self.memory_gb, self.against, self.extend = num_partitions, memory_gb, against, extend
        self.stage()  # wrong parameters are errors here

    def stage(self) -> FuzzyDeduplicationStage:
        more: dict[str, Any] = {}
        for name in ("bands_per_iteration", "verify"):
            if getattr(self, name) is not None:
                more[name] = getattr(self, name)
        stage = FuzzyDeduplicationStage(
            text_field=self.text_field,
            word_ngrams=self.word_ngrams,
            threshold=self.threshold,
            char_ngrams=self.char_ngrams,
            num_bands=self.num_bands,
            minhashes_per_band=self.minhashes_per_band,
            seed=self.seed,
            keep=self.keep,
            id_field=self.id_field,
            num_partitions=self.num_partitions,
            use_64_bit_hash=self.use_64_bit_hash,
            against=self.against,
            extend=self.extend,
            **more,
        )
        stage.memory_gb = self.memory_gb
        return stage


class TextDuplicatesRemovalWorkflow(_Workflow):
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
        result = self.run_stages([self.reader(kind), stage, self.writer(kind)], executor, settings)
        written = sum(task.rows for task in result if isinstance(task, WrittenFiles))
        removed, listed = result.rows_read - written - len(result.quarantined()), stage.listed()
        if listed is not None and removed != listed:
            why = "some ids name several rows" if removed > listed else "is it the same input, with the same id_field?"
            told = f"{self.name}: the table lists {listed:,} rows to remove, and {removed:,} were removed: {why}"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        return DeduplicationResult(self.output_path, None, result.rows_read, removed, 0, result)
