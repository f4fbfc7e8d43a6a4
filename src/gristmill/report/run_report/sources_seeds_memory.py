"""Provenance for report.json: rows by source, random seeds, peak memory, and the estimate beside the actual cost."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.records.row_scores import DROPPED, SOURCE
from gristmill.report.whatif import NO_VALUE, is_quarantined, quarantined_positions

if TYPE_CHECKING:
    from gristmill.core.records.run_record_store import RecordStore
    from gristmill.report.run_records import Records

MAX_SOURCES = 30
ESTIMATE_FILE = "estimate.json"


def rows_by_source(
    records: Records, first: Sequence[Mapping[str, Any]], last: Sequence[Mapping[str, Any]], rows: int
) -> dict[str, Any]:
    """Rows read and kept by the column `source`, if scores tell it, else by input file, as entries of the ledger tell
    for the first segment and the last. Empty if they do not cover all `rows`: a run without a directory
    has a ledger only from its first quarantined record on."""
    if records.scores is not None and SOURCE in records.scores.rows.schema.names:
        return _source_counts("source", *_by_column(records))
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for entry in first:
        before[_name(entry)] += entry.get("read") or 0
    for entry in last:
        after[_name(entry)] += entry["rows"]
    return _source_counts("file", before, after) if sum(before.values()) >= rows else {}


def _name(entry: Mapping[str, Any]) -> str:
    return ", ".join(entry["files"][:2]) + (" ..." if len(entry["files"]) > 2 else "")


def _by_column(records: Records) -> tuple[Counter[str], Counter[str]]:
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    assert records.scores is not None
    aside = quarantined_positions(records)
    for table in records.scores.pieces([]):
        kept = table.filter(pc.and_(pc.is_null(table.column(DROPPED)), pc.invert(is_quarantined(table, aside))))
        for counts, rows in ((before, table), (after, kept)):
            found = pc.value_counts(rows.column(SOURCE))
            pairs = zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)
            counts.update({NO_VALUE if value is None else value: count for value, count in pairs})
    return before, after


def _source_counts(by: str, before: Counter[str], after: Counter[str]) -> dict[str, Any]:
    names = [name for name, _ in before.most_common(MAX_SOURCES)]
    return {
        "by": by,
        "count": len(before),
        "before": {name: before[name] for name in names},
        "after": {name: after[name] for name in names},
    }


def random_seeds(stages: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The seeds of each stage that draws random numbers. The parts of one stage share its name, and most a seed."""
    found = {(name, path.rpartition(".")[2], value) for name, stage in stages for path, value in _seeds(stage, "")}
    return [{"stage": name, "parameter": parameter, "seed": value} for name, parameter, value in sorted(found)]


def _seeds(settings: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            here = f"{path}.{name}" if path else str(name)
            if (name == "seed" or name.endswith("_seed")) and isinstance(value, int):
                yield here, value
            elif isinstance(value, Mapping | list):
                yield from _seeds(value, here)
    elif isinstance(settings, list):
        for item in settings:
            yield from _seeds(item, path)


def peak_memory() -> dict[str, float]:
    """The most memory that this process and any of its workers on this machine have had, in megabytes."""
    try:
        import resource
    except ImportError:  # Windows
        return {}
    unit = 1 if sys.platform == "darwin" else 1024
    kinds = {"driver": resource.RUSAGE_SELF, "largest worker": resource.RUSAGE_CHILDREN}
    found = {name: resource.getrusage(who).ru_maxrss * unit / 1e6 for name, who in kinds.items()}
    return {name: round(value, 1) for name, value in found.items() if value}


def estimate_and_actual(store: RecordStore, actual: Mapping[str, float]) -> list[dict[str, Any]]:
    """What `gristmill plan --estimate` said, beside what it was."""
    predicted = store.read(ESTIMATE_FILE)
    if predicted is None:
        return []
    return [
        {"what": what, "predicted": predicted[what], "actual": value}
        for what, value in actual.items()
        if isinstance(predicted.get(what), int | float) and value
    ]
