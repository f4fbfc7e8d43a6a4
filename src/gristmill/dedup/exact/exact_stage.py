"""Exact deduplication: of all rows with the same text, one is kept.

Rows stay in their sources. A hash of each text and the rank of its row go through an exchange
(`io/exchange/verdict_stage.py`). Keys are sorted so that the best row of a group comes first; a text that half of all
rows have needs no more memory than others.

Gives up texts that differ in more than `normalize` lists. Rows whose text is null are all kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.hash_partitioning import consecutive_integers, constant_column, required_column
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import is_text
from gristmill.core.batch import Batch
from gristmill.core.stage import Columns
from gristmill.dedup.clusters.cluster_table import (
    CLUSTER,
    ID,
    KEY,
    OWNER,
    PARTNER,
    SIMILARITY,
    SNAPSHOT,
    TABLE,
    ids,
    join_row_names,
    row_name_parts,
)
from gristmill.dedup.clusters.keep_policy import FIRST, Keep, policy
from gristmill.dedup.columns.arrow_numpy import (
    Numbers,
    errors_name_column,
    from_numbers,
    key_prefixes,
    keys_among,
    repeated_keys,
    values_of,
)
from gristmill.dedup.columns.column_hashes import hash_columns
from gristmill.dedup.index.indexed_stage import IndexedStage
from gristmill.io.exchange.exchange import Exchange, ListPartitions
from gristmill.io.exchange.external_sort import group_starts
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK

if TYPE_CHECKING:
    from gristmill.dedup.columns.normalisation import Normalisation
    from gristmill.dedup.index.dedup_index import DedupIndex
    from gristmill.dedup.index.extend_index import DroppedRows, KeyTables
    from gristmill.dedup.index.stage_indexes import StageIndexes

DEFAULT_TEXT_FIELD = "text"
_HASH, _RANK = "hash", "rank"
_EQUAL_RANK = literal(0.0, pa.float64())
"""The rank of all rows if the first is kept: rows of an index, with a lower one, come before them."""


class ExactDeduplicationStage(IndexedStage):
    """Drops rows with the same text as another row; of all rows with the same text, one is kept.

    Rows are compared by the text in `text_field`, or by all of several `columns`, or by the URL in `url_field`. URLs
    are compared without scheme, `www.`, user, default port, fragment, a slash at the end, the order of parameters, and
    tracking parameters (`utm_...`, `fbclid` and the like). Numbers are compared as text. Null is never a duplicate, and
    neither is an empty URL; the empty text is a text like any other.

    `normalize` lists differences between texts to ignore: "case", "whitespace", "punctuation", "unicode" (variants of
    characters, as in NFKC). `keep` chooses the row that is kept: the "first" in the order of the input, the "longest",
    the one with the "highest" or "newest" `score_field`, or a `Keep`; of equal ones the first. `id_field` is the column
    that names rows in the cluster table. `memory_gb` is the memory that a worker may use for keys. Output files have
    the same names and order as without this stage.

    Rows that are in an index of `against` are dropped too. Kept rows are added to the index `extend`, and are compared
    with it as well (`DedupIndex`).
    """

    index_kind = "exact"

    def __init__(
        self,
        text_field: str = DEFAULT_TEXT_FIELD,
        keep: str | Keep | Mapping[str, Any] = FIRST,
        score_field: str | None = None,
        normalize: Sequence[str] = (),
        id_field: str | None = None,
        num_partitions: int | None = None,
        columns: Sequence[str] | None = None,
        url_field: str | None = None,
        memory_gb: float | None = None,
        *,
        against: Sequence[str | DedupIndex] = (),
        extend: str | DedupIndex | None = None,
    ) -> None:
        super().__init__()
        Exchange(num_partitions=num_partitions, memory_gb=memory_gb)  # raises for wrong numbers
        self.text_field, self.keep, self.score_field = text_field, keep, score_field
        self.normalize, self.id_field, self.num_partitions = normalize, id_field, num_partitions
        self.columns, self.url_field, self.memory_gb = columns, url_field, memory_gb
        self.use_indexes(against, extend)
        self._form = None if normalize == () else _without(normalize)
        self._fields = self._compared()
        self._policy = policy("ExactDeduplicationStage", keep, None if columns else self._fields[0], score_field)

    def _compared(self) -> list[str]:
        """The columns that rows are compared by."""
        given = [self.text_field != DEFAULT_TEXT_FIELD, self.columns is not None, self.url_field is not None]
        if sum(given) > 1:
            raise ValueError("ExactDeduplicationStage: set only one of text_field, columns and url_field")
        if self.columns is not None and (isinstance(self.columns, str) or not self.columns):
            raise TypeError(f"ExactDeduplicationStage: columns must be a list of names, not {self.columns!r}")
        if self.url_field and self.normalize:
            raise ValueError(
                "ExactDeduplicationStage: normalize is for texts; url_field always compares normalised URLs"
            )
        return list(self.columns) if self.columns else [self.url_field or self.text_field]

    def inputs(self) -> tuple[list[str], Columns]:
        named = [*self._fields, self._policy.field, self.id_field]
        return ["data"], list(dict.fromkeys(name for name in named if name))

    def keys(self, batch: Batch) -> pa.Table:
        hashes = hash_columns([self._values(batch, name) for name in self._fields])
        columns = {_HASH: hashes, ROW: consecutive_integers(batch.num_items)}
        constants = {TASK: literal(batch.lineage.id, pa.string())}
        if self._policy.policy != FIRST:
            rank = self._policy.rank(batch.data, self.count)
            columns[_RANK] = pc.negate(rank)  # rows are sorted ascending, null last
        elif self._indexed:
            constants[_RANK] = _EQUAL_RANK
        if self.id_field is None and not self._indexed:
            constants[OWNER], columns[ID] = row_name_parts(batch)
        else:
            columns[ID] = ids(self.name, batch, self.id_field)
        table = pa.table(columns)
        table = table.filter(pc.is_valid(hashes)) if hashes.null_count else table
        for name, value in constants.items():
            table = table.append_column(name, constant_column(value, table.num_rows))
        return table

    @property
    def _indexed(self) -> bool:
        return bool(self.against) or self.extend is not None

    def run_warning(self, stats: Any) -> str | None:
        return self._policy.run_warning(self.name, stats)

    def _values(self, batch: Batch, name: str) -> pa.Array:
        """The values of a column that are compared."""
        column = required_column(batch.data, name)
        with errors_name_column(self.name, name):
            values = values_of(column)
        if self.url_field:
            from gristmill.dedup.columns.normalisation import normalise_urls

            return normalise_urls(values)
        return self._form.apply(values) if self._form and is_text(values.type) else values

    def content(self, keys: pa.Table) -> int:
        return int(_hashes(keys).sum())

    def rounds(self) -> Sequence[KeyedStage]:
        ranked = self._policy.policy != FIRST or self._indexed
        return [KeepOnePerHash(f"{self.name}_groups", self.num_partitions, self._indexes, ranked)]

    def thresholds(self) -> dict[str, str]:
        return {SIMILARITY: "threshold=1"}

    # -- the index ---------------------------------------------------------------------------------------

    def index_parameters(self) -> Mapping[str, Any]:
        sample = make_array(["Raw data in, training data out."], pa.string())
        return {
            "compares": "URLs" if self.url_field else "values",
            "columns": len(self._fields),
            "normalize": sorted(set(self.normalize)),
            "hash": hash_columns([sample] * len(self._fields))[0].as_py().hex(),
        }

    def index_tables(self) -> Sequence[pa.Schema]:
        return [pa.schema([(KEY, pa.binary(16)), (ID, pa.string())])]

    def index_rows(self, keys: KeyTables, dropped: DroppedRows, salt: int) -> Iterator[pa.Table]:
        for table in keys():
            kept = table.filter(from_numbers(dropped.is_kept(table)))
            number = from_numbers(np.zeros(kept.num_rows, np.uint8))
            yield pa.table([number, kept.column(_HASH), kept.column(ID)], [TABLE, KEY, ID])


class KeepOnePerHash(KeyedStage):
    """Keeps the first row of each hash; gives a verdict on each row whose hash occurs more than once."""

    key = _HASH

    def __init__(
        self, name: str, num_partitions: int | None = None, indexes: StageIndexes | None = None, ranked: bool = False
    ) -> None:
        """Without `ranked` the rows of a hash stay in the order of the input."""
        super().__init__()
        self.name, self.num_partitions, self.indexes, self.ranked = name, num_partitions, indexes, ranked
        self.order = (_RANK,) if ranked else ()

    def lister(self, exchange: Exchange, name: str) -> ListPartitions:
        if self.indexes is None:
            return super().lister(exchange, name)
        from gristmill.dedup.index.index_lookup import IndexedPartitions, IndexLookup

        return IndexedPartitions(exchange, name, self.indexes, IndexLookup(0, _hashes, _known))

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []  # verdicts are no columns of the rows

    def worth_sorting(self, table: pa.Table) -> pa.Table:
        """Rows whose hash may occur more than once: usually few, and the others get no verdict."""
        return table.filter(repeated_keys(table.column(_HASH)))

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        best: pa.Table | None = None
        judged = False
        for table in tables:
            verdicts, best, judged = self._judge(table, best, judged)
            yield verdicts.filter(pc.is_valid(verdicts.column(TASK))) if self.indexes else verdicts  # not on index rows

    @staticmethod
    def _judge(table: pa.Table, best: pa.Table | None, judged: bool) -> tuple[pa.Table, pa.Table, bool]:
        """Verdicts on the rows of a table, and `best` and `judged` for the next one.

        `best` is the kept row of the group that the last table ended with; `judged` is whether it has a verdict.
        """
        starts = group_starts(best, table, [_HASH])
        if best is not None:
            table = pa.concat_tables([best, table]).combine_chunks()
            starts = pa.concat_arrays([make_array([True], pa.bool_()), starts])
        firsts = pc.indices_nonzero(starts)
        group = pc.subtract(pc.cumulative_sum(starts.cast(pa.int64())), literal(1, pa.int64()))
        names = join_row_names(table)
        partner = names.take(firsts.take(group))
        has_next = pa.concat_arrays([pc.invert(starts)[1:], make_array([False], pa.bool_())])
        in_group = pc.or_(pc.invert(starts), has_next)  # of two rows or more
        verdicts = pa.table(
            [
                table.column(TASK),
                table.column(ROW),
                starts,
                names,
                partner,
                pc.if_else(starts, literal(None, pa.string()), partner),
                pa.repeat(literal(1.0, pa.float64()), table.num_rows),
            ],
            [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
        )
        if SNAPSHOT in table.column_names:
            snapshots = table.column(SNAPSHOT).take(firsts.take(group))
            verdicts = verdicts.append_column(SNAPSHOT, pc.if_else(starts, literal(None, pa.string()), snapshots))
        last = firsts[-1].as_py()
        last_judged = (judged and last == 0) or bool(in_group[last].as_py())
        if judged:
            verdicts, in_group = verdicts.slice(1), in_group[1:]
        return verdicts.filter(in_group), table.slice(last, 1), last_judged


def _without(normalize: Sequence[str]) -> Normalisation | None:
    from gristmill.dedup.columns.normalisation import normalisation_without

    return normalisation_without("ExactDeduplicationStage", normalize)


def _hashes(keys: pa.Table) -> Numbers:
    return key_prefixes(keys.column(_HASH))


def _known(rows: pa.Table, wanted: Numbers) -> pa.Table:
    """Rows of an index as keys, with a rank that sorts them before all rows of the run."""
    known = rows.filter(keys_among(rows.column(KEY), wanted))
    rank = pa.repeat(literal(-inf, pa.float64()), known.num_rows)
    return pa.table([known.column(KEY), rank, known.column(ID)], [_HASH, _RANK, ID])
