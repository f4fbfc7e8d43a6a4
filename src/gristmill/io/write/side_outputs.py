"""Side outputs of a run: rejected rows and scores, as Parquet, one file per source, committed like output.

They are written to directories that belong to the run. If the rows of a source were scored by several workers, their
fragments are merged by row, which holds the scores of that source in memory: about 300 bytes per row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import PlanError, shorten
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.rejected_rows import RejectedFiles
from gristmill.core.records.row_scores import ALIKE, DROPPED, FACTS, FILE, PART, PLACE, SEGMENT
from gristmill.core.task import GatherTask, ScoreFiles
from gristmill.io.storage.output_directory import RecordsDirectory
from gristmill.io.write.commit import CommitFiles, Fragment, OutputFiles, WriteFragments, data_files
from gristmill.io.write.output_schema import AS_JSON
from gristmill.io.write.parquet_format import ParquetFormat, fragment_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gristmill.core.batch import Batch
    from gristmill.core.task import GatherTask, WrittenFile, WrittenFiles

REJECTED_MARK = "_rejected"
"""A file that marks a directory of rejected rows: only in such a directory are files of earlier runs removed."""


class WriteRejected(WriteFragments):
    """Writes the rows that stages drop."""

    def check(self) -> None:
        super().check()
        _check_owned(self, "rejected", "rejected rows", REJECTED_MARK)

    def prepare_run(self, memory: dict[str, Any]) -> None:
        super().prepare_run(memory)
        memory["place"] = self.target.url
        with self.target.create(self.target.file(REJECTED_MARK)):
            pass


def _check_owned(writer: WriteFragments, parameter: str, content: str, mark: str) -> None:
    """Raise a PlanError if the directory has data files but not the file that marks it as written by a run."""
    files = data_files(writer.target, writer.form)
    if files and not writer.target.exists(writer.target.file(mark)):
        raise PlanError(
            f"{parameter}={writer.target.url!r} holds {shorten(files)}, which were not written as {content} by a run: "
            "choose an empty directory"
        )


class CommitRejected(CommitFiles):
    """Joins the rejected rows of one source."""

    name = "commit_rejected"

    def process(self, task: GatherTask) -> RejectedFiles:
        files = super().process(task)
        return RejectedFiles(files.data, rows=files.rows, written=files.written, storage_options=files.storage_options)

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        """Remove fragments of abandoned attempts, which no commit has used."""
        self.target.remove_stale_files(everything=True)


def rejected_row_stages(url: str, storage_options: Mapping[str, Any]) -> tuple[WriteRejected, CommitRejected]:
    """The two stages that write rejected rows. They remove the files of earlier runs, unless one is resumed."""
    target, form = RecordsDirectory(url, storage_options), ParquetFormat(nested=AS_JSON, one_schema=False)
    writer = WriteRejected(target, form, mode="overwrite")
    writer.name = "write_rejected"
    return writer, CommitRejected(target, form, mode="overwrite")


SCORES_INFO_FILE = "_scores.json"
SCORES_VERSION = 1
_ROW = "__row__"
_IN_ORDER = [("first", "ascending"), ("row", "ascending")]


@fast_dataclass
class ScoreFragment(Fragment):
    """The scores of a batch."""

    @property
    def stage(self) -> str:
        """The number of the first stage of the worker that wrote the scores."""
        return self.lineage.id.partition(".")[0]


@fast_dataclass(frozen=True)
class ScoreFormat(ParquetFormat):
    """Parquet in which the columns of a row may come from several fragments.

    Fragments are not compressed, since they are read once and soon; columns of scores have no dictionary and no
    statistics, since scores rarely repeat.
    """

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        import pyarrow.parquet as pq

        pieces = fragment_tables(fragments, schema, parts.target)
        workers = {fragment.stage for fragment in fragments if isinstance(fragment, ScoreFragment)}
        if len(workers) > 1 or PART in schema.names:
            pieces = iter([merge_score_rows(pa.concat_tables(pieces))])
        facts = [name for name in schema.names if name in FACTS]
        with (
            parts.create() as file,
            pq.ParquetWriter(
                file, schema, compression=self.compression, use_dictionary=facts, write_statistics=facts
            ) as writer,
        ):
            for group in _row_groups(pieces, self.row_group_size):
                writer.write_table(group, row_group_size=group.num_rows)


def _row_groups(pieces: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """Regroup rows into tables of `size` rows."""
    waiting: list[pa.Table] = []
    rows = 0
    for piece in pieces:
        start = 0
        while start < piece.num_rows:
            waiting.append(piece.slice(start, size - rows))
            start, rows = start + waiting[-1].num_rows, rows + waiting[-1].num_rows
            if rows == size:
                yield pa.concat_tables(waiting)
                waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def merge_score_rows(table: pa.Table) -> pa.Table:
    """One row per position in a file and part, in order of first appearance, with the first non-null value of each
    column. A row that was divided is replaced by its parts, which have its scores too."""
    key = [name for name in (FILE, PLACE, PART) if name in table.column_names]
    names = [name for name in table.column_names if name not in key]
    plain = [column.cast(pa.string()) if _is_extension(column) else column for column in table.columns]
    numbers = pa.array(range(table.num_rows), pa.int64())
    numbered = pa.table([*plain, numbers], [*table.column_names, _ROW])
    wanted: list[Any] = [(name, "first") for name in names]
    grouped = numbered.group_by(key, use_threads=False).aggregate([*wanted, (_ROW, "min")])
    ordered = grouped.sort_by(f"{_ROW}_min")
    merged = pa.table({name: ordered.column(name if name in key else f"{name}_first") for name in table.column_names})
    if ALIKE in merged.column_names:  # they were merged now
        alike = merged.column(ALIKE)
        merged = merged.set_column(merged.column_names.index(ALIKE), ALIKE, pc.or_(alike, pc.is_valid(alike)))
    merged = _with_parts_alone(merged) if PART in key else merged
    columns = [_with_type(column, kind) for column, kind in zip(merged.columns, table.schema.types, strict=True)]
    return pa.table(columns, schema=table.schema)


def _with_parts_alone(table: pa.Table) -> pa.Table:
    """The rows without those of which there are parts; what was recorded of these is given to their parts, which take
    their place."""
    is_part = pc.is_valid(table.column(PART))
    if not pc.any(is_part).as_py():
        return table
    place = pc.binary_join_element_wise(
        table.column(PLACE).cast(pa.string()), pc.fill_null(table.column(FILE), ""), "/"
    ).combine_chunks()
    whole = pc.indices_nonzero(pc.invert(is_part))
    origin = whole.take(pc.index_in(place, value_set=place.take(whole)))
    origin = pc.if_else(is_part.combine_chunks(), origin, pa.scalar(None, origin.type))
    for number, name in enumerate(table.column_names):
        if name not in (FILE, PLACE, PART, SEGMENT, DROPPED):
            column = table.column(number)
            table = table.set_column(number, name, pc.coalesce(column, column.take(origin)))
    divided = pc.is_in(place, value_set=place.filter(is_part))
    left = pc.or_(is_part.combine_chunks(), pc.invert(divided))
    first = pc.index_in(place, value_set=place)  # rows of one place stand together, where the first of them was
    order = pc.sort_indices(pa.table({"first": first, "row": pa.array(range(len(first)))}), sort_keys=_IN_ORDER)
    return table.take(order.filter(left.take(order)))


def _with_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if not isinstance(kind, pa.BaseExtensionType):
        return column.cast(kind)
    return pa.chunked_array([pa.ExtensionArray.from_storage(kind, chunk) for chunk in column.chunks], kind)


def _is_extension(column: pa.ChunkedArray) -> bool:
    return isinstance(column.type, pa.BaseExtensionType)


class WriteScores(WriteFragments):
    """Writes the scores that filters give to rows."""

    stages: Sequence[Mapping[str, Any]] = ()
    """A description of the score columns of each stage, set by the plan."""

    def check(self) -> None:
        super().check()
        _check_owned(self, "scores", "scores", SCORES_INFO_FILE)

    def prepare_run(self, memory: dict[str, Any]) -> None:
        super().prepare_run(memory)
        memory["place"] = self.target.url
        with self.target.create(self.target.file(SCORES_INFO_FILE)) as file:
            file.write(json.dumps({"version": SCORES_VERSION, "stages": list(self.stages)}, indent=1).encode())

    def process(self, task: Batch) -> ScoreFragment:
        fragment = super().process(task)
        return ScoreFragment(**{name: value for name, value in vars(fragment).items() if name != "lineage"})


class CommitScores(CommitFiles):
    """Joins the scores of one source."""

    def __init__(self, writer: WriteScores) -> None:
        super().__init__(writer.target, writer.form, mode="overwrite")
        self.writer = writer

    def _schema(self, fragments: Sequence[Any]) -> pa.Schema:
        """Columns in the order of the plan, independent of which block had them first."""
        order = [*FACTS, *(column for stage in self.writer.stages for column in stage["columns"].values())]
        ranks = {name: rank for rank, name in enumerate(order)}
        schema = super()._schema(fragments)
        return pa.schema(sorted(schema, key=lambda column: (ranks.get(column.name, len(ranks)), column.name)))

    def process(self, task: GatherTask) -> ScoreFiles:
        files = super().process(task)
        return ScoreFiles(files.data, rows=files.rows, written=files.written, storage_options=files.storage_options)

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        self.target.remove_stale_files(everything=True)


class CommitSideOutputs(CommitFiles):
    """Commits the side outputs of a source: rejected rows, scores, or both."""

    name = "commit_beside"

    def __init__(self, rejected: CommitRejected | None, scores: CommitScores | None) -> None:
        first = rejected or scores
        assert first is not None
        super().__init__(first.target, first.form, mode="overwrite")
        self.name = "commit_beside"
        self.rejected, self.scores = rejected, scores

    @property
    def commits(self) -> list[CommitFiles]:
        return [one for one in (self.rejected, self.scores) if one]

    def prepare_run(self, memory: dict[str, Any]) -> None:
        for commit in self.commits:
            commit.prepare_run(memory)

    def has_files(self, files: Sequence[WrittenFile]) -> bool:
        return all(any(commit.has_files([file]) for commit in self._commits_of(file)) for file in files)

    def discard_files(self, files: Sequence[WrittenFile]) -> None:
        for commit in self.commits:
            commit.discard_files(files)

    def _commits_of(self, file: WrittenFile) -> list[CommitFiles]:
        return [commit for commit in self.commits if file.path.startswith(commit.target.file(""))]

    def process(self, task: GatherTask) -> list[WrittenFiles]:  # type: ignore[override]
        scores: list[Any] = [fragment for fragment in task.data if isinstance(fragment, ScoreFragment)]
        rejected: list[Any] = [fragment for fragment in task.data if not isinstance(fragment, ScoreFragment)]
        pairs = ((self.rejected, rejected), (self.scores, scores))
        return [commit.process(GatherTask(part).named(task.lineage)) for commit, part in pairs if commit and part]

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        for commit in self.commits:
            commit.complete((), info)


def side_output_stages(
    rejected: str | None, scores: str | None, storage_options: Mapping[str, Any]
) -> tuple[WriteRejected | None, WriteScores | None, CommitSideOutputs]:
    """The stages that write rejected rows and scores, None where not wanted, and the one that commits both."""
    reject = rejected_row_stages(rejected, storage_options) if rejected else (None, None)
    score = _score_stages(scores, storage_options) if scores else (None, None)
    return reject[0], score[0], CommitSideOutputs(reject[1], score[1])


def _score_stages(url: str, storage_options: Mapping[str, Any]) -> tuple[WriteScores, CommitScores]:
    """As `rejected_row_stages`, for scores."""
    target, form = RecordsDirectory(url, storage_options), ScoreFormat(nested=AS_JSON, one_schema=False)
    writer = WriteScores(target, form, mode="overwrite")
    writer.name = "write_scores"
    return writer, CommitScores(writer)
