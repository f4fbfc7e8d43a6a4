"""Duplicates: how large the clusters of a run are, and what some of them look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.columns import make_array
from gristmill.core.compute import pc
from gristmill.report.whatif import row_at
from gristmill.report.why import place_of

if TYPE_CHECKING:
    from gristmill.report.records import Records

EXAMPLES, SHOWN, CLIP = 6, 3, 400


def duplicates(records: Records) -> dict[str, Any] | None:
    """How many clusters there are, of which sizes, and the largest of them; None if nothing was compared."""
    rows = records.clusters
    if rows is None:
        return None
    sizes = _Sizes()
    for part in rows.get_fragments():
        for batch in part.to_batches(columns=["cluster"]):
            sizes.add(batch.column("cluster"))
        sizes.close()
    return {
        "clusters": sizes.counts.total(),
        "rows": sum(size * count for size, count in sizes.counts.items()),
        "sizes": dict(sorted(sizes.counts.items())),
        "examples": [_example(records, name, size) for size, name in sizes.largest],
    }


class _Sizes:
    """Counts clusters by their size. A file is sorted by cluster, so a cluster is a run of rows."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.largest: list[tuple[int, str]] = []
        self._open: tuple[str, int] | None = None

    def add(self, clusters: pa.Array) -> None:
        if not len(clusters):
            return
        runs = pc.run_end_encode(clusters)
        names, ends = runs.values, runs.run_ends.cast(pa.int64())
        lengths = pc.subtract(ends, pa.concat_arrays([make_array([0], pa.int64()), ends[:-1]]))
        first = names[0].as_py()
        if self._open and self._open[0] == first and len(names) == 1:
            self._open = (first, self._open[1] + lengths[0].as_py())
            return
        if self._open and self._open[0] == first:
            self._open = (first, self._open[1] + lengths[0].as_py())
            names, lengths = names[1:], lengths[1:]
        self.close()
        self._open = (names[-1].as_py(), lengths[-1].as_py())
        self._count(names[:-1], lengths[:-1])

    def close(self) -> None:
        if self._open:
            name, size = self._open
            self._count(make_array([name], pa.string()), make_array([size], pa.int64()))
        self._open = None

    def _count(self, names: pa.Array, lengths: pa.Array) -> None:
        found = pc.value_counts(lengths)
        pairs = zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)
        self.counts.update(dict(pairs))
        best = pc.sort_indices(lengths, sort_keys=[("", "descending")]).slice(0, EXAMPLES)
        more = zip(lengths.take(best).to_pylist(), names.take(best).to_pylist(), strict=True)
        self.largest = sorted([*self.largest, *more], key=lambda one: (-one[0], one[1]))[:EXAMPLES]


def _example(records: Records, name: str, size: int) -> dict[str, Any]:
    from pyarrow import dataset as ds

    assert records.clusters is not None
    found: pa.Table = records.clusters.to_table(filter=ds.field("cluster") == name)
    members = sorted(found.to_pylist(), key=lambda one: (not one["kept"], one["id"]))[:SHOWN]
    return {"size": size, "members": [_member(records, one) for one in members]}


def _member(records: Records, member: Mapping[str, Any]) -> dict[str, Any]:
    place = place_of(records, member["id"])
    row = row_at(records, *place) if place else None
    text = str(row.get("text") or "") if row else None
    return {
        "id": member["id"],
        "kept": member["kept"],
        "similarity": member["similarity"],
        "text": text if text is None or len(text) <= CLIP else f"{text[:CLIP]}…",
    }
