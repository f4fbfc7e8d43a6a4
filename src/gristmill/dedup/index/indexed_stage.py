"""IndexedStage: the base of deduplication stages that can be compared with indexes (`dedup_index.py`) and extend one.

Modules of indexes are imported only if a stage uses one: most runs do not, and start faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.stage import ProcessingStage
from gristmill.dedup.clusters.cluster_table import SNAPSHOT, CommitVerdicts
from gristmill.io.exchange.exchange import CommitShuffleFiles, Exchange
from gristmill.io.exchange.verdict_stage import SpoolExchange, VerdictExchange, VerdictStage

if TYPE_CHECKING:
    from gristmill.dedup.index.dedup_index import DedupIndex
    from gristmill.dedup.index.extend_index import DroppedRows, KeyTables
    from gristmill.dedup.index.stage_indexes import StageIndexes


class IndexedStage(VerdictStage):
    """Drops rows that are duplicates of rows of this run or of an index."""

    is_base: ClassVar[bool] = True
    against: Sequence[str | DedupIndex] = ()
    extend: str | DedupIndex | None = None
    id_field: str | None = None
    index_kind: ClassVar[str]
    _indexes: StageIndexes | None = None

    def use_indexes(self, against: Sequence[str | DedupIndex], extend: str | DedupIndex | None) -> None:
        """Set the indexes; to be called by the constructor of a stage that takes `against` and `extend`."""
        if against != () and isinstance(against, str | _index_type()):
            raise TypeError(f"stage {self.name!r}: against must be a list of indexes, as in against=[{against!r}]")
        self.against, self.extend = against, extend

    @property
    def sums(self) -> bool:
        return self.extend is not None

    def index_parameters(self) -> Mapping[str, Any]:
        """The parameters that must be the same for an index to be usable."""
        raise NotImplementedError

    def index_tables(self) -> Sequence[pa.Schema]:
        """The tables of the index. The first column of each is `KEY`; the last table has a row for each document."""
        raise NotImplementedError

    def index_rows(self, keys: KeyTables, dropped: DroppedRows, salt: int) -> Iterator[pa.Table]:
        """The rows to add to the index: `KEY`, `TABLE`, and the columns of all tables.

        `keys` reads the keys of one source, and can be called more than once. `salt` differs for each addition.
        """
        raise NotImplementedError

    def judging(self, spools: bool = True) -> tuple[SpoolExchange, VerdictExchange, list[ProcessingStage[Any, Any]]]:
        self._indexes = self._open_indexes() if self.against or self.extend is not None else None
        return super().judging(spools)

    def _open_indexes(self) -> StageIndexes:
        from gristmill.dedup.index.stage_indexes import StageIndexes

        prefix_ids = self.id_field is None
        return StageIndexes(self.name, self.index_kind, self.index_parameters(), self.against, self.extend, prefix_ids)

    def commit(self, verdicts: Exchange) -> CommitShuffleFiles:
        return CommitVerdicts(
            verdicts, f"{self.name}_commit_verdicts", [SNAPSHOT] if self._indexes else [], self.memory_gb
        )

    def afterwards(self, spool: SpoolExchange, verdicts: VerdictExchange) -> Sequence[ProcessingStage[Any, Any]]:
        if self._indexes is None or self._indexes.extends is None:
            return ()
        from gristmill.dedup.index.extend_index import extend_stages

        return extend_stages(self, self._indexes, spool, verdicts)


def _index_type() -> type[DedupIndex]:
    from gristmill.dedup.index.dedup_index import DedupIndex

    return DedupIndex
