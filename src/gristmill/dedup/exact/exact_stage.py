"""Exact deduplication: of all rows with the same text one is kept.

Rows stay in their sources; a hash of each text, and what decides which row is kept, go through an exchange
(`io/verdicts/verdict_stage.py`). The best row of a group comes first when keys are sorted, so a text that half of the rows have needs
no more memory than others.

What is given up: texts that differ in more than `normalize` allows. Null is no text, and such rows are all kept.
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
from gristmill.io.exchange.exchange import Exchange
from gristmill.io.exchange.external_sort import group_starts
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.partitions import ListPartitions
from gristmill.io.verdicts.verdict_stage import KEEP, ROW, TASK

if TYPE_CHECKING:
    from gristmill.dedup.columns.normalisation import Normalisation
    from gristmill.dedup.index.dedup_index import DedupIndex
    from gristmill.dedup.index.extend_index import DroppedRows, KeyTables
    from gristmill.dedup.index.stage_indexes import StageIndexes

DEFAULT_TEXT_FIELD = "text"
_HASH, _RANK = "hash", "rank"
_ANY = literal(0.0, pa.float64())
"""The rank of all rows of the input, if the first is kept."""


class ExactDeduplicationStage(IndexedStage):
    """Drops each row whose text another row has too; of those with the same text, one is kept.

    Rows are compared by the text in `text_field`, or by all of several `columns`, or by the URL in `url_field` without
    what does not matter in it: scheme, `www.`, user, default port, fragment, a slash at the end, the order of
    parameters, and those that only track (`utm_...`, `fbclid` and the like). Numbers are compared as text. Null is
    never a duplicate, and neither is an empty URL; the empty text is a text like any other.

    `normalize` lists differences between texts that do not count: "case", "whitespace", "punctuation", "unicode"
    (variants of characters, as in NFKC). `keep` says which row is kept: the "first" in the order of the input, the
    "longest", the one with the "highest" or "newest" `score_field`, or a `Keep`; of equals, the first. `id_field`
    names the rows in the cluster table. `memory_gb` is what a worker may use for keys. Output files are those that
    there would be without this stage, in the same order.

    Rows that an index of `against` has are dropped too. Those that are kept are added to the index `extend`, with which
    they are compared as well (`DedupIndex`).
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
        Exchange(num_partitions=num_partitions, memory_gb=memory_gb)  # a wrong number is an error here
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
            raise ValueError("ExactDeduplicationStage: give one of text_field, columns and url_field")
        if self.columns is not None and (isinstance(self.columns, str) or not self.columns):
            raise TypeError(f"ExactDeduplicationStage: columns must be a list of names, not {self.columns!r}")
        if self.url_field and self.normalize:
            raise ValueError("ExactDeduplicationStage: normalize is for texts: URLs have a normal form of their own")
        return list(self.columns) if self.columns else [self.url_field or self.text_field]

    def inputs(self) -> tuple[list[str], Columns]:
        named = [*self._fields, self._policy.field, self.id_field]
        return ["data"], list(dict.fromkeys(name for name in named if name))

    def keys(self, batch: Batch) -> pa.Table:
        hashes = hash_columns([self._values(batch, name) for name in self._fields])
        columns, alike = (
            {_HASH: hashes, ROW: consecutive_integers(batch.num_items)},
            {TASK: literal(batch.lineage.id, pa.string())},
        )
        if self._policy.policy != FIRST:
            rank = self._policy.rank(batch.data, self.count)
            columns[_RANK] = pc.negate(rank)  # the smaller the better; null is last
        elif self._indexed:
            alike[_RANK] = _ANY
        if self.id_field is None and not self._indexed:
            alike[OWNER], columns[ID] = row_name_parts(batch)
        else:
            columns[ID] = ids(self.name, batch, self.id_field)
        table = pa.table(columns)
        table = table.filter(pc.is_valid(hashes)) if hashes.null_count else table
        for name, value in alike.items():
            table = table.append_column(name, constant_column(value, table.num_rows))
        return table

    @property
    def _indexed(self) -> bool:
        return bool(self.against) or self.extend is not None

    def run_warning(self, stats: Any) -> str | None:
        return self._policy.run_warning(self.name, stats)

    def _values(self, batch: Batch, name: str) -> pa.Array:
        """What is compared of a column."""
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
    """Of the rows with one hash keeps the first; gives a verdict on each row that is not alone."""

    key = _HASH

    def __init__(
        self, name: str, num_partitions: int | None = None, indexes: StageIndexes | None = None, ranked: bool = False
    ) -> None:
        """Without ranks the first in the order of the input is the first."""
        super().__init__()
        self.name, self.num_partitions, self.indexes, self.ranked = name, num_partitions, indexes, ranked
        self.order = (_RANK,) if ranked else ()

    def lister(self, exchange: Exchange, name: str) -> ListPartitions:
        if self.indexes is None:
            return super().lister(exchange, name)
        from gristmill.dedup.index.index_lookup import IndexedPartitions, IndexLookup

        return IndexedPartitions(exchange, name, self.indexes, IndexLookup(0, _hashes, _known))

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []  # what it gives is no part of the rows, which go on as they were

    def worth_sorting(self, table: pa.Table) -> pa.Table:
        """Rows that may not be alone: as a rule these are few, and no verdict is given on the others."""
        return table.filter(repeated_keys(table.column(_HASH)))

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        best: pa.Table | None = None
        told = False
        for table in tables:
            judged, best, told = self._judge(table, best, told)
            yield judged.filter(pc.is_valid(judged.column(TASK))) if self.indexes else judged

    @staticmethod
    def _judge(table: pa.Table, best: pa.Table | None, told: bool) -> tuple[pa.Table, pa.Table, bool]:
        """Verdicts on the rows of a table. `best` is the row that the group at its beginning keeps, if that has begun
        before, and `told` whether there was a verdict on it."""
        starts = group_starts(best, table, [_HASH])
        if best is not None:
            table = pa.concat_tables([best, table]).combine_chunks()
            starts = pa.concat_arrays([make_array([True], pa.bool_()), starts])
        places = pc.indices_nonzero(starts)
        group = pc.subtract(pc.cumulative_sum(starts.cast(pa.int64())), literal(1, pa.int64()))
        named = join_row_names(table)
        partner = named.take(places.take(group))
        more = pa.concat_arrays([pc.invert(starts)[1:], make_array([False], pa.bool_())])  # its next one is like it
        wanted = pc.or_(pc.invert(starts), more)
        verdicts = pa.table(
            [
                table.column(TASK),
                table.column(ROW),
                starts,
                named,
                partner,
                pc.if_else(starts, literal(None, pa.string()), partner),
                pa.repeat(literal(1.0, pa.float64()), table.num_rows),
            ],
            [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
        )
        if SNAPSHOT in table.column_names:
            theirs = table.column(SNAPSHOT).take(places.take(group))
            verdicts = verdicts.append_column(SNAPSHOT, pc.if_else(starts, literal(None, pa.string()), theirs))
        last = places[-1].as_py()
        known = (told and last == 0) or bool(wanted[last].as_py())
        if told:
            verdicts, wanted = verdicts.slice(1), wanted[1:]
        return verdicts.filter(wanted), table.slice(last, 1), known


def _without(normalize: Sequence[str]) -> Normalisation | None:
    from gristmill.dedup.columns.normalisation import normalisation_without

    return normalisation_without("ExactDeduplicationStage", normalize)


def _hashes(keys: pa.Table) -> Numbers:
    return key_prefixes(keys.column(_HASH))


def _known(rows: pa.Table, wanted: Numbers) -> pa.Table:
    """Rows of an index, as keys that come before all others."""
    found = rows.filter(keys_among(rows.column(KEY), wanted))
    rank = pa.repeat(literal(-inf, pa.float64()), found.num_rows)
    return pa.table([found.column(KEY), rank, found.column(ID)], [_HASH, _RANK, ID])
