"""Removal by id: rows whose ids a table lists are dropped, at any time after they were found, in blocks of any size.

The table is a cluster table (`cluster_table.py`), of which the rows that are not kept are removed, or any Parquet files with
a column of ids.

What is given up: 16 bytes of memory in each worker for each id in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.errors import InputError
from gristmill.core.score import DecidingStage, Decision
from gristmill.core.stage import Columns
from gristmill.core.stage_roles import ReportingRole
from gristmill.core.task import FileSlice, digest
from gristmill.dedup.clusters.cluster_table import ID, KEPT, ids
from gristmill.dedup.columns.arrow_numpy import Numbers, errors_name_column, flags, from_numbers, values_of
from gristmill.dedup.columns.column_hashes import hash128
from gristmill.io.read.file_listing import InputFile, Paths, list_files
from gristmill.io.storage.file_input import FileInput

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from gristmill.core.stage import WorkerMetadata

_ROWS = 2**16


class TextDuplicatesRemovalStage(DecidingStage[Batch], ReportingRole):
    """Drops the rows whose ids are in the Parquet files of `ids_to_remove_path`, such as a cluster table.

    `id_field` is the column with the ids of the rows; without it rows are known by their file and their place in it,
    as they were when the table was made without one. `duplicate_id_field` is the column of the table.
    """

    takes_empty = True
    parameter: ClassVar[str] = "ids_to_remove_path"

    def __init__(
        self,
        ids_to_remove_path: Paths,
        id_field: str | None = None,
        duplicate_id_field: str = ID,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.ids_to_remove_path, self.id_field = ids_to_remove_path, id_field
        self.duplicate_id_field, self.storage_options = duplicate_id_field, dict(storage_options or {})
        self.stamp = ""
        """Changes with the table: what was removed by another one is removed again."""
        self._gone: tuple[Numbers, Numbers] | None = None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.id_field] if self.id_field else []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def check(self) -> None:
        self.stamp = digest([f"{file.name} {file.size} {file.stamp}" for file in self._files()])

    def setup(self, worker_metadata: WorkerMetadata) -> None:
        gone, kept = [np.zeros((0, 2), np.uint64)], [np.zeros((0, 2), np.uint64)]
        for names, keep in self._columns():
            there = flags(names.is_valid())
            gone.append(_halves(names.filter(from_numbers(there & ~keep))))
            kept.append(_halves(names.filter(from_numbers(there & keep))))
        found = np.concatenate(gone)
        found = found[np.argsort(found[:, 0], kind="stable")]
        self._gone = found[:, 0], found[:, 1]
        both = int(self._among(np.concatenate(kept)).sum())
        if both:
            raise InputError(
                f"stage {self.name!r}: {both:,} ids of the table are those of rows to keep and of rows to remove too: "
                "they name several rows, and all would be lost. Leave out id_field, here and where duplicates were "
                "found, or remove them there"
            )

    def run_warning(self, stats: Any) -> str | None:
        """Fewer rows than the table lists are no reason for doubt: others, or an earlier attempt, may have dropped some
        of them."""
        removed = stats.rows_in - stats.rows_out - stats.quarantined
        listed = self.listed() if removed else None
        return self.doubt(removed, listed) if listed is not None and removed > listed else None

    def doubt(self, removed: int, listed: int) -> str:
        """What to tell of a number of rows that is not the one that the table lists."""
        why = (
            "some ids name several rows, and all of these are gone. Give ids that do not, or leave out id_field, here "
            "and where duplicates were found"
            if removed > listed
            else "is it the same input, with the same id_field?"
        )
        return f"stage {self.name!r}: the table lists {listed:,} rows to remove, and {removed:,} were removed: {why}"

    def listed(self) -> int | None:
        """How many rows a cluster table wants removed; None for a list of ids, which may be of other rows too."""
        found = [
            flags(batch.column(KEPT))
            for table in self._tables()
            if KEPT in table.schema_arrow.names
            for batch in table.iter_batches(batch_size=_ROWS, columns=[KEPT], use_threads=False)
        ]
        return sum(int((~keep).sum()) for keep in found) if any(keep.any() for keep in found) else None

    def _files(self) -> list[InputFile]:
        try:
            return list_files(self.ids_to_remove_path, [".parquet"], self.storage_options)
        except InputError as error:
            raise InputError(f"stage {self.name!r}, {self.parameter}: {error}") from error

    def _tables(self) -> Iterator[pq.ParquetFile]:
        import pyarrow.parquet as pq

        for path in (file.path for file in self._files()):
            with FileInput(FileSlice(path), self.storage_options).open(read_ahead=False) as file:
                table = pq.ParquetFile(pa.PythonFile(file, mode="r"))
                names = table.schema_arrow.names
                if self.duplicate_id_field not in names:
                    raise InputError(
                        f"stage {self.name!r}: {path} has no column {self.duplicate_id_field!r}, only "
                        f"{', '.join(names)}: say which one holds the ids (duplicate_id_field=...)"
                    )
                yield table

    def _columns(self) -> Iterator[tuple[pa.Array, Numbers]]:
        """Ids, and whether the row of each is to be kept."""
        for table in self._tables():
            wanted = [self.duplicate_id_field, *([KEPT] if KEPT in table.schema_arrow.names else [])]
            for batch in table.iter_batches(batch_size=_ROWS, columns=wanted, use_threads=False):
                with errors_name_column(self.name, self.duplicate_id_field):
                    names = values_of(batch.column(self.duplicate_id_field)).cast(pa.string())
                kept = flags(batch.column(KEPT)) if KEPT in wanted else np.zeros(len(names), np.bool_)
                yield names, kept

    def decide(self, batch: Batch) -> Decision:
        late = self.id_field not in batch.data.column_names and self.id_field in self._planned.columns
        if self.id_field and (late or not batch.num_items):  # a block of JSON in which no row has an id
            return Decision(from_numbers(np.ones(batch.num_items, np.bool_)))
        mine = ids(self.name, batch, self.id_field)
        return Decision(from_numbers(~(self._among(_halves(mine)) & flags(mine.is_valid()))))

    def _among(self, wanted: Numbers) -> Numbers:
        """Whether each hash is that of an id to remove."""
        assert self._gone is not None, "setup comes before process"
        low, high = self._gone
        place = np.searchsorted(low, wanted[:, 0])
        gone = np.zeros(len(wanted), np.bool_)
        there = place < len(low)
        while there.any():  # as a rule once: hashes that share a half are as rare as they are few
            there[there] = low[place[there]] == wanted[there, 0]
            gone[there] |= high[place[there]] == wanted[there, 1]
            place += 1
            there &= ~gone & (place < len(low))
        return gone

    def apply(self, batch: Batch, decision: Decision) -> Batch:
        return batch.keep(decision.keep)


class ImageDuplicatesRemovalStage(TextDuplicatesRemovalStage):
    """Drops the images whose `image_id_field` is among the ids in the Parquet files of `removal_parquets_dir`.

    `verbose` changes nothing: the summary tells what was dropped.
    """

    parameter = "removal_parquets_dir"

    def __init__(
        self,
        removal_parquets_dir: Paths,
        duplicate_id_field: str = ID,
        image_id_field: str = "image_id",
        verbose: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(removal_parquets_dir, image_id_field, duplicate_id_field, storage_options)
        self.removal_parquets_dir, self.image_id_field, self.verbose = removal_parquets_dir, image_id_field, verbose


def _halves(column: pa.Array) -> Numbers:
    return np.frombuffer(hash128(column).buffers()[1], "<u8").reshape(-1, 2)[: len(column)]
