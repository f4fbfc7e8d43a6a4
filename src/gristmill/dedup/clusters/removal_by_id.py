"""Removal by id: drop the rows whose ids are in a table, in a run of its own.

The table is a cluster table (`cluster_table.py`), whose dropped rows are removed, or any Parquet files with a column of
ids. The input may be read in blocks of any size.

Costs 16 bytes of memory in each worker for each id in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.deciding_stage import DecidingStage, Decision
from gristmill.core.errors import InputError
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

    `id_field` is the column with the ids of rows. Without it rows are identified by their file and position, as in a
    table that was made without one. `duplicate_id_field` is the column of the table. `drop_id_field` removes the column
    of ids from the kept rows. `read_kwargs` may contain `storage_options`.
    """

    takes_empty = True
    parameter: ClassVar[str] = "ids_to_remove_path"

    def __init__(
        self,
        ids_to_remove_path: Paths,
        id_field: str | None = None,
        duplicate_id_field: str = ID,
        storage_options: Mapping[str, Any] | None = None,
        drop_id_field: bool = False,
        read_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.ids_to_remove_path, self.id_field, self.drop_id_field = ids_to_remove_path, id_field, drop_id_field
        self.duplicate_id_field, self.read_kwargs = duplicate_id_field, dict(read_kwargs or {})
        self.storage_options = {**self.read_kwargs.get("storage_options", {}), **(storage_options or {})}
        self.stamp = ""
        """Changes with the table, so that a resumed run with another table starts over."""
        self._removed: tuple[Numbers, Numbers] | None = None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.id_field] if self.id_field else []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def check(self) -> None:
        self.stamp = digest([f"{file.name} {file.size} {file.stamp}" for file in self._files()])
        next(self._tables(), None)  # raises if its first file has no such column

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        removed, kept = [np.zeros((0, 2), np.uint64)], [np.zeros((0, 2), np.uint64)]
        for names, keep in self._columns():
            valid = flags(names.is_valid())
            removed.append(_halves(names.filter(from_numbers(valid & ~keep))))
            kept.append(_halves(names.filter(from_numbers(valid & keep))))
        hashes = np.concatenate(removed)
        hashes = hashes[np.argsort(hashes[:, 0], kind="stable")]
        self._removed = hashes[:, 0], hashes[:, 1]
        both = int(self._among(np.concatenate(kept)).sum())
        if both:
            raise InputError(
                f"stage {self.name!r}: {both:,} ids of the table are of rows to keep and of rows to remove. They name "
                "several rows, all of which would be lost. Leave out id_field, here and where duplicates were found, "
                "or remove duplicates there"
            )

    def run_warning(self, stats: Any) -> str | None:
        """Warns only of more removed rows than the table lists: earlier stages or attempts may have dropped some."""
        removed = stats.rows_in - stats.rows_out - stats.quarantined
        listed = self.listed() if removed else None
        return self.count_warning(removed, listed) if listed is not None and removed > listed else None

    def count_warning(self, removed: int, listed: int) -> str:
        """A warning that another number of rows was removed than the table lists."""
        why = (
            "some ids name several rows, and all of these were removed. Use unique ids, or leave out id_field, here "
            "and where duplicates were found"
            if removed > listed
            else "check that it is the same input, with the same id_field"
        )
        return f"stage {self.name!r}: the table lists {listed:,} rows to remove, but {removed:,} were removed: {why}"

    def listed(self) -> int | None:
        """How many rows a cluster table lists as dropped; None for a list of ids, which may be of other inputs too."""
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
                        f"{', '.join(names)}: set duplicate_id_field to the column with the ids"
                    )
                if self.id_field is None and pa.types.is_integer(
                    table.schema_arrow.field(self.duplicate_id_field).type
                ):
                    raise InputError(
                        f"stage {self.name!r}: the ids in {path} are numbers, and rows without an id have none. Set "
                        "id_field to the column with their ids, or id_generator_path to the JSON file that was "
                        "written with these ids"
                    )
                yield table

    def _columns(self) -> Iterator[tuple[pa.Array, Numbers]]:
        """The ids of the table, and whether the row of each is kept."""
        for table in self._tables():
            wanted = [self.duplicate_id_field, *([KEPT] if KEPT in table.schema_arrow.names else [])]
            for batch in table.iter_batches(batch_size=_ROWS, columns=wanted, use_threads=False):
                with errors_name_column(self.name, self.duplicate_id_field):
                    names = values_of(batch.column(self.duplicate_id_field)).cast(pa.string())
                kept = flags(batch.column(KEPT)) if KEPT in wanted else np.zeros(len(names), np.bool_)
                yield names, kept

    def decide(self, batch: Batch) -> Decision:
        lacks_ids = self.id_field not in batch.data.column_names and self.id_field in self._planned.columns
        if self.id_field and (lacks_ids or not batch.num_items):  # a block of JSON in which no row has an id
            return Decision(from_numbers(np.ones(batch.num_items, np.bool_)))
        names = ids(self.name, batch, self.id_field)
        return Decision(from_numbers(~(self._among(_halves(names)) & flags(names.is_valid()))))

    def _among(self, wanted: Numbers) -> Numbers:
        """Whether each hash is that of an id to remove."""
        assert self._removed is not None, "setup is called before process"
        low, high = self._removed
        position = np.searchsorted(low, wanted[:, 0])
        among = np.zeros(len(wanted), np.bool_)
        open_ = position < len(low)
        while open_.any():  # nearly always once: different hashes with the same lower half are rare
            open_[open_] = low[position[open_]] == wanted[open_, 0]
            among[open_] |= high[position[open_]] == wanted[open_, 1]
            position += 1
            open_ &= ~among & (position < len(low))
        return among

    def apply(self, batch: Batch, decision: Decision) -> Batch:
        kept = batch.keep(decision.keep)
        drops = self.drop_id_field and self.id_field in kept.get_columns()
        return kept.with_data(kept.data.drop_columns([self.id_field])) if drops else kept


class ImageDuplicatesRemovalStage(TextDuplicatesRemovalStage):
    """Drops the images whose `image_id_field` is among the ids in the Parquet files of `removal_parquets_dir`.

    `verbose` has no effect: the summary of a run shows what was dropped.
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
