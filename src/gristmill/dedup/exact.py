"""Exact deduplication: of all rows with the same text one is kept.

Rows stay in their sources; a hash of each text, and what decides which row is kept, go through an exchange
(`io/verdicts.py`). The best row of a group comes first when keys are sorted, so a text that half of the rows have needs
no more memory than others.

What is given up: texts that differ in more than `normalize` allows. Null is no text, and such rows are all kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.columns import literal, make_array
from gristmill.core.compute import pc
from gristmill.core.errors import ColumnError
from gristmill.core.spread import column_of
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.core.table import is_json, is_text
from gristmill.dedup.clusters import CLUSTER, ID, PARTNER, SIMILARITY, CommitVerdicts, ids
from gristmill.dedup.columns import from_numbers
from gristmill.dedup.hashes import hash128
from gristmill.dedup.index import DedupIndex
from gristmill.dedup.index_extend import Dropped, Keys, extending
from gristmill.dedup.index_files import KEY, TABLE
from gristmill.dedup.index_join import SNAPSHOT, Known, KnownPartitions, known_of
from gristmill.dedup.normal import check_forms, normal
from gristmill.io.exchange import CommitRuns, Exchange
from gristmill.io.keyed import KeyedStage
from gristmill.io.partitions import Partitions
from gristmill.io.sorting import group_starts
from gristmill.io.verdicts import KEEP, ROW, TASK, Spool, Verdicts, VerdictStage, identities

FIRST, LONGEST, HIGHEST = POLICIES = ("first", "longest", "highest")
_HASH, _RANK = "hash", "rank"


class ExactDeduplicationStage(VerdictStage):
    """Drops each row whose text another row has too; of those with the same text, one is kept.

    `keep` says which one: the "first" in the order of the input, the "longest", or the one with the "highest"
    `score_field`; of equals, the first. `normalize` lists differences that do not count: "case", "whitespace",
    "punctuation", "unicode" (variants of characters, as in NFKC). `id_field` names the rows in the cluster table.
    Output files are those that there would be without this stage, in the same order. Null is never a duplicate.
    """

    def __init__(
        self,
        text_field: str = "text",
        keep: str = FIRST,
        score_field: str | None = None,
        normalize: Sequence[str] = (),
        id_field: str | None = None,
        num_partitions: int | None = None,
        *,
        against: Sequence[str | DedupIndex] = (),
        extend: str | DedupIndex | None = None,
    ) -> None:
        super().__init__()
        if keep not in POLICIES:
            raise ValueError(f"ExactDeduplicationStage: keep is {keep!r}, must be one of {', '.join(POLICIES)}")
        if (keep == HIGHEST) != (score_field is not None):
            raise ValueError("ExactDeduplicationStage: keep='highest' goes with the column to look at, score_field=...")
        Exchange(num_partitions=num_partitions)  # a wrong number is an error here
        self.text_field, self.keep, self.score_field = text_field, keep, score_field
        self.normalize, self.id_field, self.num_partitions = normalize, id_field, num_partitions
        self._forms = check_forms("ExactDeduplicationStage", normalize)
        self.against, self.extend = against, extend

    def inputs(self) -> tuple[list[str], Columns]:
        named = [name for name in (self.score_field, self.id_field) if name]
        return ["data"], [self.text_field, *named]

    def keys(self, batch: Batch) -> pa.Table:
        texts = column_of(batch.data, self.text_field)
        if not (is_text(texts.type) or is_json(texts.type) or pa.types.is_null(texts.type)):
            raise ColumnError(f"stage {self.name!r} needs text in column {self.text_field!r}, which holds {texts.type}")
        texts = texts.cast(pa.string()) if not is_text(texts.type) else texts
        known = identities(batch)
        columns = [hash128(normal(texts, self._forms)), self._ranks(batch, texts), ids(batch, self.id_field)]
        table = pa.table([*columns, known.column(TASK), known.column(ROW)], [_HASH, _RANK, ID, TASK, ROW])
        return table.filter(pc.is_valid(table.column(_HASH))) if texts.null_count else table

    def _ranks(self, batch: Batch, texts: pa.ChunkedArray) -> pa.Array:
        """The smaller the better; null is last."""
        if self.keep == HIGHEST and self.score_field is not None:
            return pc.negate(column_of(batch.data, self.score_field).cast(pa.float64()))
        if self.keep == LONGEST:
            return pc.negate(pc.utf8_length(texts).cast(pa.float64()))
        return pa.repeat(literal(0.0, pa.float64()), len(texts))

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        self._known = known_of(self, "exact", self._index_parameters())
        return super().decompose()

    def rounds(self) -> Sequence[KeyedStage]:
        return [SameHash(f"{self.name}_groups", self.num_partitions, self._known)]

    def commit(self, verdicts: Exchange) -> CommitRuns:
        return CommitVerdicts(verdicts, f"{self.name}_commit_verdicts", [SNAPSHOT] if self._known else [])

    # -- the index ---------------------------------------------------------------------------------------

    def _index_parameters(self) -> dict[str, Any]:
        return {
            "normalize": sorted(self._forms),
            "hash": hash128(make_array(["gristmill"], pa.string()))[0].as_py().hex(),
        }

    def afterwards(self, spool: Spool, verdicts: Verdicts) -> Sequence[ProcessingStage[Any, Any]]:
        return extending(self, self._known, spool, verdicts) if self._known and self._known.extends else ()

    def index_tables(self) -> Sequence[pa.Schema]:
        return [pa.schema([(KEY, pa.binary(16)), (ID, pa.string())])]

    def index_rows(self, keys: Keys, dropped: Dropped, salt: int) -> Iterator[pa.Table]:
        for table in keys():
            kept = table.filter(from_numbers(dropped.spares(table)))
            number = from_numbers(np.zeros(kept.num_rows, np.uint8))
            yield pa.table([number, kept.column(_HASH), kept.column(ID)], [TABLE, KEY, ID])


class SameHash(KeyedStage):
    """Of the rows with one hash keeps the first; gives a verdict on each row that is not alone."""

    key = _HASH
    order = (_RANK,)

    def __init__(self, name: str, num_partitions: int | None = None, known: Known | None = None) -> None:
        super().__init__()
        self.name, self.num_partitions, self.known = name, num_partitions, known

    def lister(self, exchange: Exchange, name: str) -> Partitions:
        return (
            KnownPartitions(exchange, name, self.known, 0, _HASH, _first) if self.known else Partitions(exchange, name)
        )

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []  # what it gives is no part of the rows, which go on as they were

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        best: pa.Table | None = None
        told = False
        for table in tables:
            judged, best, told = self._judge(table, best, told)
            yield judged.filter(pc.is_valid(judged.column(TASK))) if self.known else judged

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
        partner = table.column(ID).take(places.take(group))
        more = pa.concat_arrays([pc.invert(starts)[1:], make_array([False], pa.bool_())])  # its next one is like it
        wanted = pc.or_(pc.invert(starts), more)
        verdicts = pa.table(
            [
                table.column(TASK),
                table.column(ROW),
                starts,
                table.column(ID),
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


def _first(rows: pa.Table) -> pa.Table:
    """Rows of an index as keys that come before all others."""
    rank = pa.repeat(literal(-inf, pa.float64()), rows.num_rows)
    return pa.table([rows.column(KEY), rank, rows.column(ID)], [_HASH, _RANK, ID])
