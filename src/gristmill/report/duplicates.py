"""Duplicates: how large the clusters of a run are, and what some of them look like.

Each stage that has looked for duplicates has a table of its own, in several files. Those are sorted, but a cluster may
lie in more than one of them. So what is counted in each is sorted once more, on disk if it is much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.columns import make_array
from gristmill.core.compute import pc
from gristmill.dedup.clusters import CLUSTER, ID, KEPT
from gristmill.io.partitions import SORT_BYTES
from gristmill.io.sorting import sorted_pieces
from gristmill.io.target import Target
from gristmill.report.compared import Compared, cluster_tables, compared_by
from gristmill.report.examples import texts_of

if TYPE_CHECKING:
    from gristmill.report.records import Records

EXAMPLES, SHOWN, CLIP = 6, 3, 400
_ROWS = "rows"


def duplicates(records: Records) -> dict[str, Any] | None:
    """How many clusters there are, of which sizes, and the largest of them; None if nothing was compared."""
    if records.clusters is None:
        return None
    tables = {segment: list(table.get_fragments()) for segment, table in cluster_tables(records).items()}
    sizes = _Sizes()
    for segment, parts in tables.items():
        with Target(records.place, records.options).scratch() as room:
            for counted in _counted(parts, room):
                sizes.add(counted, segment)
        sizes.close(segment)
    largest = [(size, segment, _members(tables[segment], name)) for size, name, segment in sizes.largest]
    stages = compared_by(records)
    examples, note = _examples(records, largest, stages)
    return {
        "stages": [stages[segment].name for segment in tables if segment in stages],
        "clusters": sizes.counts.total(),
        "rows": sum(size * count for size, count in sizes.counts.items()),
        "kept": sum(_kept(part) for parts in tables.values() for part in parts),
        "sizes": dict(sorted(sizes.counts.items())),
        "examples": examples,
        "note": note,
    }


def _kept(part: Any) -> int:
    return sum(batch.column(KEPT).true_count for batch in part.to_batches(columns=[KEPT]))


def _counted(parts: Sequence[Any], room: str | None) -> Iterator[pa.Table]:
    """Clusters by name, with how many rows they have; one may come several times in a row."""
    pieces = (_runs(batch.column(CLUSTER)) for part in parts for batch in part.to_batches(columns=[CLUSTER]))
    return pieces if len(parts) == 1 else sorted_pieces(pieces, [CLUSTER], SORT_BYTES, folder=room)


def _runs(clusters: pa.Array) -> pa.Table:
    runs = pc.run_end_encode(clusters)
    ends = runs.run_ends.cast(pa.int64())
    starts = pa.concat_arrays([make_array([0], pa.int64()), ends])[: len(ends)]
    return pa.table([runs.values, pc.subtract(ends, starts)], [CLUSTER, _ROWS])


class _Sizes:
    """Counts clusters by their size, as they come in the order of their names."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.largest: list[tuple[int, str | None, int]] = []
        self._open: pa.Table | None = None

    def add(self, counted: pa.Table, segment: int) -> None:
        both = pa.concat_tables([self._open, counted]) if self._open else counted
        grouped = both.group_by(CLUSTER, use_threads=False).aggregate([(_ROWS, "sum")])
        found = pa.table([grouped.column(CLUSTER), grouped.column(f"{_ROWS}_sum")], [CLUSTER, _ROWS])
        last = max(found.num_rows - 1, 0)
        self._open = found.slice(last)
        self._count(found.slice(0, last), segment)

    def close(self, segment: int) -> None:
        if self._open:
            self._count(self._open, segment)
        self._open = None

    def _count(self, found: pa.Table, segment: int) -> None:
        rows = pc.value_counts(found.column(_ROWS))
        pairs = zip(rows.field("values").to_pylist(), rows.field("counts").to_pylist(), strict=True)
        self.counts.update(dict(pairs))
        best = found.take(pc.sort_indices(found.column(_ROWS), sort_keys=[("", "descending")]).slice(0, EXAMPLES))
        more = [(row[_ROWS], row[CLUSTER], segment) for row in best.to_pylist()]
        in_order = sorted([*self.largest, *more], key=lambda one: (-one[0], one[2], one[1] or ""))
        self.largest = in_order[:EXAMPLES]


def _members(parts: Sequence[Any], name: str | None) -> list[dict[str, Any]]:
    """The first rows of a cluster: that which is kept, and others."""
    from pyarrow import dataset as ds

    mine = ds.field(CLUSTER).is_null() if name is None else ds.field(CLUSTER) == name
    found: list[dict[str, Any]] = []
    for part in parts:
        for batch in part.to_batches(filter=mine):
            best = pc.sort_indices(batch, sort_keys=[(KEPT, "descending"), (ID, "ascending")]).slice(0, SHOWN)
            found += batch.take(best).to_pylist()
        found = sorted(found, key=lambda one: (not one[KEPT], one[ID] or ""))[:SHOWN]
    return found


Found = tuple[int, int, list[dict[str, Any]]]


def _examples(
    records: Records, largest: Sequence[Found], stages: Mapping[int, Compared]
) -> tuple[list[dict[str, Any]], str]:
    """Clusters with their rows, as they are shown, and what there is to say about rows without a text."""
    texts: dict[int, Mapping[str, str]] = {}
    for segment in {segment for _, segment, _ in largest}:
        ids = {row[ID]: None for _, one, rows in largest if one == segment for row in rows}
        texts[segment] = texts_of(records, stages.get(segment, Compared()), list(ids))
    shown = [
        {
            "size": size,
            "stage": stages.get(segment, Compared()).name,
            "members": [_member(row, texts[segment].get(row[ID])) for row in rows],
        }
        for size, segment, rows in largest
    ]
    lacking = [stages.get(one, Compared()) for one, found in texts.items() if _lacks(found, one, largest)]
    return shown, " ".join(dict.fromkeys(stage.without for stage in lacking if stage.without))


def _lacks(found: Mapping[str, str], segment: int, largest: Sequence[Found]) -> bool:
    return any(row[ID] not in found for _, one, rows in largest if one == segment for row in rows)


def _member(row: Mapping[str, Any], text: str | None) -> dict[str, Any]:
    return {
        "id": row[ID],
        "kept": row[KEPT],
        "similarity": row["similarity"],
        "text": text if text is None or len(text) <= CLIP else f"{text[:CLIP]}…",
    }
