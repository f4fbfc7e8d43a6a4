"""IndexedStage: what deduplication stages have in common: verdicts, a table of them, and indexes (`index.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.stage import ProcessingStage
from gristmill.dedup.clusters import SNAPSHOT, CommitVerdicts
from gristmill.io.exchange import CommitRuns, Exchange
from gristmill.io.verdicts import Spool, Verdicts, VerdictStage

if TYPE_CHECKING:
    from gristmill.dedup.index import DedupIndex
    from gristmill.dedup.index_extend import Dropped, Keys
    from gristmill.dedup.index_join import Known


class IndexedStage(VerdictStage):
    """Drops rows that are like others, of this run or of an index."""

    is_base: ClassVar[bool] = True
    against: Sequence[str | DedupIndex] = ()
    extend: str | DedupIndex | None = None
    num_partitions: int | None = None
    id_field: str | None = None
    index_kind: ClassVar[str]
    _known: Known | None = None

    def use_indexes(self, against: Sequence[str | DedupIndex], extend: str | DedupIndex | None) -> None:
        """For the constructor of a stage that takes `against` and `extend`."""
        if against != () and isinstance(against, str | _index_type()):
            raise TypeError(f"stage {self.name!r}: against must be a list of indexes, as in against=[{against!r}]")
        self.against, self.extend = against, extend

    @property
    def sums(self) -> bool:
        return self.extend is not None

    def index_parameters(self) -> Mapping[str, Any]:
        """What must be the same for an index to be of use."""
        raise NotImplementedError

    def index_tables(self) -> Sequence[pa.Schema]:
        """The tables of the index; the first column of each is `KEY`, and the last has a row for each document."""
        raise NotImplementedError

    def index_rows(self, keys: Keys, dropped: Dropped, salt: int) -> Iterator[pa.Table]:
        """Rows for the index, from the keys of one source, which can be read more than once: `KEY`, `TABLE`, and the
        columns of all tables. `salt` is another number for each addition."""
        raise NotImplementedError

    def judging(self, spools: bool = True) -> tuple[Spool, Verdicts, list[ProcessingStage[Any, Any]]]:
        self._known = self._opened() if self.against or self.extend is not None else None
        return super().judging(spools)

    def _opened(self) -> Known:
        from gristmill.dedup.index_join import Known

        made_names = self.id_field is None
        return Known(self.name, self.index_kind, self.index_parameters(), self.against, self.extend, made_names)

    def commit(self, verdicts: Exchange) -> CommitRuns:
        return CommitVerdicts(
            verdicts, f"{self.name}_commit_verdicts", [SNAPSHOT] if self._known else [], self.memory_gb
        )

    def afterwards(self, spool: Spool, verdicts: Verdicts) -> Sequence[ProcessingStage[Any, Any]]:
        if self._known is None or self._known.extends is None:
            return ()
        from gristmill.dedup.index_extend import extending

        return extending(self, self._known, spool, verdicts)


def _index_type() -> type[DedupIndex]:
    from gristmill.dedup.index import DedupIndex

    return DedupIndex
