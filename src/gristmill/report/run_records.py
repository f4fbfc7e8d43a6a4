"""Read what a run has recorded about rows: scores, rejected rows, clusters, quarantine, ledger.

Tables are read piece by piece, and only the columns that are wanted. Nothing here needs the run to be over.

Gives up: rows that no reader has given a file and a position, and reading the input again where it is compressed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import InputError
from gristmill.core.records.remote_storage import open_file_system
from gristmill.core.records.row_scores import ALIKE, DROPPED, FACTS, FILE, PART, PLACE, SEGMENT
from gristmill.core.records.run_directory import Run
from gristmill.core.records.run_location import PLAN, find_run
from gristmill.core.records.run_record_store import RecordStore
from gristmill.core.task import SHUFFLE_FILE_SUFFIX, digest
from gristmill.dedup.clusters.cluster_table import CLUSTERS_DIRECTORY as CLUSTERS
from gristmill.io.formats.decompress import decompress
from gristmill.io.formats.format_detection import GZIP, ZSTD
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.side_outputs import SCORES_INFO_FILE, merge_score_rows

if TYPE_CHECKING:
    from pyarrow import dataset

    from gristmill.core.records.quarantine import QuarantinedRecord

Opened = TypeVar("Opened")

SCORES, REJECTED = "scores", "rejected"
_KEY_IN_PLAN = {REJECTED: "rejects"}
HOW_TO_KEEP = {
    SCORES: "scores were not kept: run with scores=True, or --scores",
    REJECTED: "rejected rows were not kept: run with rejected=True, or --rejected",
}


def latest_entries(lines: Iterable[dict[str, Any]], record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each source, the entry of the ledger that was made last; in a run that did all, as its `record` says, by
    the last attempt."""
    only = record.get("attempt") if record.get("whole") else None
    return list({entry["source"]: entry for entry in lines if only in (None, entry["attempt"])}.values())


class Records:
    """What a run has recorded, found by its directory or by one of its outputs; `elsewhere` too, where its plan says
    that scores or rejected rows are."""

    def __init__(self, where: str, storage_options: Mapping[str, Any] | None = None, elsewhere: bool = True) -> None:
        self.options, self.elsewhere = dict(storage_options or {}), elsewhere
        self.scores_directory = ""
        store = find_run(where, self.options)
        if store is None:
            raise InputError(f"{where} is not a run directory: give the directory of a run, or its output directory")
        self.place, self.store, self.plan = store.url, store, store.read(PLAN) or {}

    @property
    def stages(self) -> list[dict[str, Any]]:
        """What each stage computes: its name, class and parameters."""
        found: list[dict[str, Any]] = self.plan["stages"]
        return found

    @cached_property
    def scores(self) -> RecordedScores | None:
        found = self._opened(SCORES, open_parquet_dataset)
        if found is None:
            return None
        place, rows = found
        self.scores_directory = place
        about = RecordStore(place, self.options).get(SCORES_INFO_FILE)
        return RecordedScores(rows, orjson.loads(about)["stages"] if about else [])

    @cached_property
    def rejected(self) -> list[dataset.Dataset] | None:
        """One for all files that have the same columns: those of the user's may have other types in other files."""
        found = self._opened(REJECTED, open_by_schema)
        return found[1] if found else None

    @cached_property
    def clusters(self) -> dataset.Dataset | None:
        found = self._opened(CLUSTERS, open_parquet_dataset)
        return found[1] if found else None

    def _opened(
        self, folder: str, opener: Callable[[str, Mapping[str, Any]], Opened | None]
    ) -> tuple[str, Opened] | None:
        planned = self.plan.get(_KEY_IN_PLAN.get(folder, folder)) or {}
        for place in (f"{self.place}/{folder}", planned.get("place") if self.elsewhere else None):
            if place and (rows := opener(place, self.options)) is not None:
                return place, rows
        return None

    def explain_missing(self, name: str) -> str:
        """Why there are no scores, or no rejected rows."""
        asked = self.plan.get(_KEY_IN_PLAN.get(name, name))
        return f"{name} are being kept, but there are none yet" if asked else HOW_TO_KEEP[name]

    @cached_property
    def _run(self) -> Run:
        return Run(self.place, self.options)

    def quarantined(self) -> Iterator[QuarantinedRecord]:
        return self._run.quarantined()

    @cached_property
    def entries(self) -> list[dict[str, Any]]:
        """The sources that are done, as the ledger tells, each as it was done last."""
        return latest_entries(self.store.lines("ledger"), self.plan)

    def input_path(self, file: str) -> str | None:
        """The full path of an input file, which rows know by its name below the root."""
        paths = (path for entry in self.entries for path in entry["files"])
        return next((path for path in paths if path == file or path.endswith(f"/{file}")), None)

    def output_paths(self, file: str) -> list[str]:
        """The files that were written for an input file."""
        return [path for paths in self.output_paths_by_branch(file).values() for path in paths]

    def output_paths_by_branch(self, file: str) -> dict[str, list[str]]:
        """The same, by branch of a Route or Tee."""
        path, found = self.input_path(file), dict[str, list[str]]()
        for one in (one for entry in self.entries if path in entry["files"] for one in entry["written"] or ()):
            if not one["path"].endswith(SHUFFLE_FILE_SUFFIX):
                found.setdefault(one.get("branch") or "", []).append(one["path"])
        return found

    def rows_before(self, file: str) -> int:
        """The rows of other input files that come before those of an input file in the only file written for it."""
        path = self.input_path(file)
        parts = [one.get("part") for entry in self.entries if path in entry["files"] for one in entry["written"] or ()]
        return max((part["start"] for part in parts if part), default=0)


class RecordedScores:
    """The scores of a run. `stages` says which column belongs to which filter."""

    def __init__(self, rows: dataset.Dataset, stages: Sequence[Mapping[str, Any]]) -> None:
        self.rows, self.stages = rows, stages

    @property
    def columns(self) -> dict[str, tuple[str, str]]:
        """For each column of scores, the stage and the filter's label."""
        return {column: (stage["name"], label) for stage in self.stages for label, column in stage["columns"].items()}

    @cached_property
    def has_parts(self) -> bool:
        """Whether there are rows that are parts of one row of the input, as clips of a film; or might have been, since
        of rows that can have parts none was kept."""
        if PART not in self.rows.schema.names:
            return False
        return self._any(PART, "is_valid") or not self.rows.to_table(columns=[DROPPED]).column(DROPPED).null_count

    @cached_property
    def are_confused(self) -> bool:
        """Whether there are rows whose scores could not be told apart: a stage made several of one without names."""
        return self._any(ALIKE, "is_valid" if any(segment > 1 for _, segment in self.parts()) else "any")

    def _any(self, column: str, kind: str) -> bool:
        if column not in self.rows.schema.names:
            return False
        values = self.rows.to_table(columns=[column]).column(column)
        return bool(values.null_count < len(values) if kind == "is_valid" else pc.any(values).as_py())

    def parts(self) -> list[tuple[Any, int]]:
        """The files, and the segment of each."""
        return [(part, _segment_of(part)) for part in self.rows.get_fragments()]

    def pieces(self, columns: Iterable[str] | None = None) -> Iterator[pa.Table]:
        """The rows as they were read, source by source, with what later segments add to each of them.

        `dropped_by` is the stage that dropped the row at last; null: it was kept, or set aside.
        """
        there = self.rows.schema.names
        wanted = there if columns is None else [name for name in (*FACTS, *columns) if name in there]
        wanted = list(dict.fromkeys(wanted))
        parts = self.parts()
        more = any(segment > 1 for _, segment in parts)
        for part, segment in parts:
            if segment == 1:
                table: pa.Table = part.to_table(schema=self.rows.schema, columns=wanted)
                yield _with_later_segments(table, self.rows, wanted) if more else table

    def table(self, columns: Iterable[str] | None = None) -> pa.Table:
        pieces = list(self.pieces(None if columns is None else list(columns)))
        return pa.concat_tables(pieces) if pieces else self.rows.schema.empty_table()

    def find(self, condition: Any) -> list[dict[str, Any]]:
        """The rows that a condition on columns of the dataset holds for, one line for each segment. Their places are
        looked for first: only where those are is all of a row read."""
        from pyarrow import dataset as ds

        key = [name for name in (FILE, PLACE, PART) if name in self.rows.schema.names]
        places = self.rows.to_table(columns=key, filter=condition).to_pylist()
        found: list[dict[str, Any]] = []
        for file, place, part in dict.fromkeys((row[FILE], row[PLACE], row.get(PART)) for row in places):
            here = (ds.field(FILE) == file) & (ds.field(PLACE) == place)
            if part is not None:  # what a segment knows of the whole of which it is a part, too
                here &= (ds.field(PART) == part) | ds.field(PART).is_null()
            elif PART in key:
                here &= ds.field(PART).is_null()
            found += self.rows.to_table(filter=here).sort_by(SEGMENT).to_pylist()
        return found


def _segment_of(part: Any) -> int:
    """The segment that a file of scores belongs to. All its rows are of one."""
    group = part.metadata.row_group(0) if part.metadata.num_row_groups else None
    if group is None:
        return 1
    place = part.metadata.schema.names.index(SEGMENT)
    return int(group.column(place).statistics.min)


def _with_later_segments(table: pa.Table, rows: dataset.Dataset, columns: Sequence[str]) -> pa.Table:
    """The rows with what is known of them from later segments."""
    from pyarrow import dataset as ds

    files = pc.unique(table.column(FILE))
    more = rows.to_table(columns=list(columns), filter=(ds.field(SEGMENT) > 1) & ds.field(FILE).isin(files))
    if PART in table.column_names:
        mine = pc.is_in(_places(more), value_set=_places(table))
        return merge_score_rows(pa.concat_tables([table, more.filter(mine).sort_by(SEGMENT)]))
    numbered = table.append_column("__row__", pa.array(range(table.num_rows), pa.int64()))
    for number in sorted(pc.unique(more.column(SEGMENT)).to_pylist()):
        part = more.filter(pc.equal(more.column(SEGMENT), literal(number, pa.int64())))
        scores = [name for name in columns if name not in FACTS or name == DROPPED]
        part = part.select([FILE, PLACE, *scores])
        joined = numbered.join(part, [FILE, PLACE], right_suffix=" later").sort_by("__row__")
        for name in scores:
            both = pc.coalesce(joined.column(name), joined.column(f"{name} later"))
            numbered = numbered.set_column(numbered.column_names.index(name), name, both)
    return numbered.drop_columns(["__row__"])


def _places(table: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(table.column(FILE), table.column(PLACE).cast(pa.string()), "/")


def open_parquet_dataset(place: str, options: Mapping[str, Any]) -> dataset.Dataset | None:
    """The Parquet files of a directory as one dataset; None if there are none."""
    found = _files(place, options)
    return None if found is None else found.replace_schema(_unified([one.physical_schema for one in _parts(found)]))


def open_by_schema(place: str, options: Mapping[str, Any]) -> list[dataset.Dataset] | None:
    """The same, as a dataset for each schema that files have."""
    found = _files(place, options)
    if found is None:
        return None
    alike: dict[str, list[Any]] = {}
    for part in _parts(found):
        alike.setdefault(str(part.physical_schema), []).append(part)
    return [dataset_of(parts, parts[0].physical_schema) for parts in alike.values()]


def dataset_of(parts: Sequence[Any], schema: pa.Schema) -> dataset.Dataset:
    """Files of a dataset as one of their own."""
    from pyarrow import dataset as ds

    return ds.FileSystemDataset(parts, schema, parts[0].format, parts[0].filesystem)


def _files(place: str, options: Mapping[str, Any]) -> dataset.Dataset | None:
    target = OutputDirectory(place, options)
    names = sorted(name for name in target.names() if name.endswith(".parquet"))
    if not names:
        return None
    from pyarrow import dataset as ds  # which loads pandas, where that is installed

    system, root = (None, target.url) if target.local else _remote(place, options)
    return ds.dataset([f"{root}/{name}" for name in names], format="parquet", filesystem=system)


def _parts(rows: dataset.Dataset) -> list[Any]:
    return list(rows.get_fragments())


def _unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of all; those whose types do not go together are read as text."""
    columns: dict[str, list[pa.Schema]] = {}
    for schema in schemas:
        for column in schema:
            columns.setdefault(column.name, []).append(pa.schema([column]))
    found = []
    for name, kinds in columns.items():
        try:
            found.append(pa.unify_schemas(kinds, promote_options="permissive").field(0))
        except pa.ArrowTypeError:
            found.append(pa.field(name, pa.string()))
    return pa.schema(found)


def _remote(place: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    system, root = open_file_system(place, options)
    return system, root.rstrip("/")


def row_id(file: str, position: int) -> str:
    """What a row is called that has no id of its own, as in the cluster table."""
    return f"{digest([file])}_{position}"


def read_input_row(path: str, position: int, options: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """A row of the input, by its place; None where that would mean to read the whole file."""
    if path.endswith(".parquet"):
        return _parquet_row(path, position, options or {})
    if posixpath.splitext(path)[1] in (".jsonl", ".json", ".ndjson"):
        folder, _, name = path.rpartition("/")
        target = OutputDirectory(folder or ".", options)
        with target.open(target.file(name)) as file:
            file.seek(position)
            line = file.readline()
        row = orjson.loads(line) if line.strip() else None
        return row if isinstance(row, dict) else None
    return None


def read_output_row(path: str, number: int, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row of an output file, by its number from 1; None where the format of the file is another one."""
    if path.endswith(".parquet"):
        return _parquet_row(path, number - 1, options)
    if not _is_jsonl(path):
        return None
    folder, _, name = path.rpartition("/")
    target = OutputDirectory(folder or ".", options)
    with target.open(target.file(name)) as file:
        line = next(islice(_lines(path, file), number - 1, None), b"")
    return orjson.loads(line) if line.strip() else None


def _is_jsonl(path: str) -> bool:
    return path.endswith((".jsonl", *(f".jsonl{ending}" for ending in _COMPRESSED)))


_COMPRESSED = {".gz": GZIP, ".zst": ZSTD}


def _lines(path: str, file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, decompressed if its name says that it is compressed."""
    kind = _COMPRESSED.get(posixpath.splitext(path)[1])
    if kind is None:
        yield from file
        return
    rest = b""
    for piece in decompress(cast("Any", file), kind, 2**20):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def has_row(path: str, column: str, value: Any, options: Mapping[str, Any]) -> bool | None:
    """Whether an output file has a row with this value; None where that is not known."""
    folder, _, name = path.rpartition("/")
    target = OutputDirectory(folder or ".", options)
    with target.open(target.file(name)) as file:
        if path.endswith(".parquet"):
            import pyarrow.parquet as pq

            source = pq.ParquetFile(file)
            if column not in source.schema_arrow.names:
                return None
            pieces = source.iter_batches(columns=[column])
            return any(str(value) in map(str, piece.column(0).to_pylist()) for piece in pieces)
        if not _is_jsonl(path):
            return None
        wanted = orjson.dumps(str(value)).strip(b'"')
        lines = (line for line in _lines(path, file) if wanted in line)
        return any(str(orjson.loads(line).get(column)) == str(value) for line in lines)


def _parquet_row(path: str, position: int, options: Mapping[str, Any]) -> dict[str, Any] | None:
    import pyarrow.parquet as pq

    folder, _, name = path.rpartition("/")
    target = OutputDirectory(folder or ".", options)
    with target.open(target.file(name)) as file:
        source = pq.ParquetFile(file)
        for group in range(source.num_row_groups):
            rows = source.metadata.row_group(group).num_rows
            if position < rows:
                return dict(source.read_row_group(group).slice(position, 1).to_pylist()[0])
            position -= rows
    return None
