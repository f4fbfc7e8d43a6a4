"""Sizes of the duplicate clusters of a run, and examples of the largest.

Each stage that has looked for duplicates has a table of its own, in several files. Those are sorted, but a cluster may
lie in more than one of them. So what is counted in each is sorted once more, on disk if it is much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.dedup.clusters.cluster_table import CLUSTER, ID, KEPT
from gristmill.io.exchange.exchange import DEFAULT_SORT_BYTES
from gristmill.io.exchange.external_sort import sort_tables
from gristmill.io.storage.output_directory import RecordsDirectory
from gristmill.report.cluster_table_listing import ComparedColumns, cluster_tables, compared_columns
from gristmill.report.run_report.cluster_row_texts import texts_by_id

if TYPE_CHECKING:
    from gristmill.report.run_records import Records

EXAMPLE_CLUSTERS, ROWS_PER_EXAMPLE, EXAMPLE_CHARS = 6, 3, 400
_ROWS = "rows"


def duplicate_clusters(records: Records) -> dict[str, Any] | None:
    """For each stage that has compared rows, how many clusters there are and of which sizes; and some of the largest.
    None if nothing was compared."""
    if records.clusters is None:
        return None
    tables = {prefix: list(table.get_fragments()) for prefix, table in cluster_tables(records).items()}
    stages = compared_columns(records)
    described_tables, largest = [], list[tuple[int, int, str | None, str]]()
    for prefix, parts in tables.items():
        sizes = _ClusterSizes()
        with RecordsDirectory(records.place, records.options).scratch() as room:
            for counted in _counted(parts, room):
                sizes.add(counted)
        sizes.close()
        described_tables.append(
            {"stage": stages.get(prefix, ComparedColumns()).name, **sizes.to_json(), "kept": sum(map(_kept, parts))}
        )
        largest += [(rank, size, name, prefix) for rank, (size, name) in enumerate(sizes.largest)]
    largest.sort(key=lambda one: one[0])  # so that there are some of each stage
    found = [(size, prefix, _members(tables[prefix], name)) for _, size, name, prefix in largest[:EXAMPLE_CLUSTERS]]
    found.sort(key=lambda one: -one[0])
    examples, note = _examples(records, found, stages)
    return {"tables": [one for one in described_tables if one["clusters"]], "examples": examples, "note": note}


def _kept(part: Any) -> int:
    return sum(batch.column(KEPT).true_count for batch in part.to_batches(columns=[KEPT]))


def _counted(parts: Sequence[Any], room: str | None) -> Iterator[pa.Table]:
    """Clusters by name, with how many rows they have; one may come several times in a row."""
    pieces = (_runs(batch.column(CLUSTER)) for part in parts for batch in part.to_batches(columns=[CLUSTER]))
    return pieces if len(parts) == 1 else sort_tables(pieces, [CLUSTER], DEFAULT_SORT_BYTES, folder=room)


def _runs(clusters: pa.Array) -> pa.Table:
    runs = pc.run_end_encode(clusters)
    ends = runs.run_ends.cast(pa.int64())
    starts = pa.concat_arrays([make_array([0], pa.int64()), ends])[: len(ends)]
    return pa.table([runs.values, pc.subtract(ends, starts)], [CLUSTER, _ROWS])


class _ClusterSizes:
    """Counts clusters by their size, as they come in the order of their names."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.largest: list[tuple[int, str | None]] = []
        self._open: pa.Table | None = None

    def to_json(self) -> dict[str, Any]:
        rows = sum(size * count for size, count in self.counts.items())
        return {"clusters": self.counts.total(), "rows": rows, "sizes": dict(sorted(self.counts.items()))}

    def add(self, counted: pa.Table) -> None:
        both = pa.concat_tables([self._open, counted]) if self._open else counted
        grouped = both.group_by(CLUSTER, use_threads=False).aggregate([(_ROWS, "sum")])
        found = pa.table([grouped.column(CLUSTER), grouped.column(f"{_ROWS}_sum")], [CLUSTER, _ROWS])
        last = max(found.num_rows - 1, 0)
        self._open = found.slice(last)
        self._count(found.slice(0, last))

    def close(self) -> None:
        if self._open:
            self._count(self._open)
        self._open = None

    def _count(self, found: pa.Table) -> None:
        rows = pc.value_counts(found.column(_ROWS))
        pairs = zip(rows.field("values").to_pylist(), rows.field("counts").to_pylist(), strict=True)
        self.counts.update(dict(pairs))
        best = found.take(
            pc.sort_indices(found.column(_ROWS), sort_keys=[("", "descending")]).slice(0, EXAMPLE_CLUSTERS)
        )
        more = [(row[_ROWS], row[CLUSTER]) for row in best.to_pylist()]
        self.largest = sorted([*self.largest, *more], key=lambda one: (-one[0], one[1] or ""))[:EXAMPLE_CLUSTERS]


def _members(parts: Sequence[Any], name: str | None) -> list[dict[str, Any]]:
    """The first rows of a cluster: that which is kept, and others."""
    from pyarrow import dataset as ds

    mine = ds.field(CLUSTER).is_null() if name is None else ds.field(CLUSTER) == name
    found: list[dict[str, Any]] = []
    for part in parts:
        for batch in part.to_batches(filter=mine):
            best = pc.sort_indices(batch, sort_keys=[(KEPT, "descending"), (ID, "ascending")]).slice(
                0, ROWS_PER_EXAMPLE
            )
            found += batch.take(best).to_pylist()
        found = sorted(found, key=lambda one: (not one[KEPT], one[ID] or ""))[:ROWS_PER_EXAMPLE]
    return found


LargestCluster = tuple[int, str, list[dict[str, Any]]]


def _examples(
    records: Records, largest: Sequence[LargestCluster], stages: Mapping[str, ComparedColumns]
) -> tuple[list[dict[str, Any]], str]:
    """Clusters with their rows, as they are shown, and what there is to say about rows without a text."""
    texts: dict[str, Mapping[str, str]] = {}
    for prefix in {prefix for _, prefix, _ in largest}:
        ids = {row[ID]: None for _, one, rows in largest if one == prefix for row in rows}
        texts[prefix] = texts_by_id(records, stages.get(prefix, ComparedColumns()), list(ids))
    shown = [
        {
            "size": size,
            "stage": stages.get(prefix, ComparedColumns()).name,
            "members": [_member(row, texts[prefix].get(row[ID])) for row in rows],
        }
        for size, prefix, rows in largest
    ]
    lacking = [
        stages.get(one, ComparedColumns()) for one, found in texts.items() if _has_missing_text(found, one, largest)
    ]
    return shown, " ".join(dict.fromkeys(stage.missing_text_note for stage in lacking if stage.missing_text_note))


def _has_missing_text(found: Mapping[str, str], prefix: str, largest: Sequence[LargestCluster]) -> bool:
    return any(row[ID] not in found for _, one, rows in largest if one == prefix for row in rows)


def _member(row: Mapping[str, Any], text: str | None) -> dict[str, Any]:
    return {
        "id": row[ID],
        "kept": row[KEPT],
        "similarity": row["similarity"],
        "partner": row.get("partner"),
        "text": text if text is None or len(text) <= EXAMPLE_CHARS else f"{text[:EXAMPLE_CHARS]}…",
    }
