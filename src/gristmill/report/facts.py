"""Facts: what a report tells, as plain data. `report.json` is this; `page.py` draws it.

Gives up: sources that an earlier attempt of the run had finished. They are counted, but their scores and samples
went with that attempt.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.core.decide import thresholds_of
from gristmill.core.result import Summary
from gristmill.core.run import versions
from gristmill.core.sketch import lower_bound

if TYPE_CHECKING:
    from gristmill.core.executor import Progress
    from gristmill.core.plan import Plan
    from gristmill.core.quarantine import SetAside
    from gristmill.core.run import Run
    from gristmill.core.sketch import Sketch

POINTS, RECORDS, BINS = 240, 20, 48
_NUMBER = re.compile(r"(\w+)=(-?[\d.]+(?:e[+-]?\d+)?)\b")


class Timeline:
    """How busy the workers were: at most so many moments of a run, however long, at equal distances."""

    def __init__(self) -> None:
        self.points: list[dict[str, Any]] = []
        self._every, self._due = 0.25, 0.0

    def saw(self, progress: Progress) -> None:
        if progress.seconds < self._due:
            return
        pools = [[pool.workers, pool.busy, pool.queued] for pool in progress.pools]
        self.points.append({"seconds": round(progress.seconds, 2), "rows": progress.rows_read, "pools": pools})
        if len(self.points) > POINTS:
            self.points, self._every = self.points[::2], self._every * 2
        self._due = progress.seconds + self._every


def gather(
    plan: Plan,
    run: Run,
    progress: Progress,
    timeline: Timeline,
    error: BaseException | None,
) -> dict[str, Any]:
    """All that there is to tell of a run."""
    summary = Summary.of(progress)
    files = [file for task in (*run.kept, *run.outputs) for file in task.written]
    return {
        "name": plan.name,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "outcome": "finished" if error is None else _failure(error),
        "rows_in": summary.rows_in,
        "rows_out": summary.rows_out,
        "quarantined": summary.quarantined,
        "seconds": round(summary.seconds, 3),
        "done_before": len(run.kept),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "stages": _stages(plan, progress, summary),
        "pools": [pool.name for pool in progress.pools],
        "timeline": timeline.points,
        "quarantine": _records(run),
        "plan": str(plan),
        "versions": versions(),
    }


def _failure(error: BaseException) -> str:
    return f"stopped: {type(error).__name__}: {error}".partition("\n\nTraceback")[0]


def _stages(plan: Plan, progress: Progress, summary: Summary) -> list[dict[str, Any]]:
    told = {stage.name: thresholds_of(stage) for stage in plan.everything}
    stages = []
    sketches = {name: stats.sketch for name, stats in progress.stages}
    for line in summary.stages:
        thresholds: Mapping[str, str] = told.get(line.name, {})
        sketch = sketches.get(line.name)
        stages.append(
            {
                "name": line.name,
                "rows_in": line.rows_in,
                "rows_out": line.rows_out,
                "dropped": line.dropped,
                "quarantined": line.quarantined,
                "seconds": round(line.seconds, 3),
                "mb_per_s": round(line.mb_per_s, 2),
                "counts": line.counts,
                **(_sketched(sketch, thresholds) if sketch else {}),
            }
        )
    return stages


def _sketched(sketch: Sketch, thresholds: Mapping[str, str]) -> dict[str, Any]:
    return {
        "spread": {name: histogram(buckets) for name, buckets in sketch.spread.items() if buckets},
        "thresholds": {name: text for name, text in thresholds.items() if text},
        "limits": {name: limits(text) for name, text in thresholds.items()},
        "values": {name: dict(counts.most_common()) for name, counts in sketch.values.items()},
        "samples": [sample for _, sample in sketch.samples],
    }


def limits(threshold: str) -> list[float]:
    """The numbers of a threshold that a score is compared with."""
    return [float(number) for name, number in _NUMBER.findall(threshold) if name != "seed"]


def histogram(buckets: Counter[int]) -> dict[str, Any]:
    """Counts in bins of equal width, of equal ratio where numbers of very different sizes meet. The few that lie far
    out are in the first and last bin."""
    pairs = sorted((lower_bound(bucket), count) for bucket, count in buckets.items())
    low, high = _quantile(pairs, 0.002), _quantile(pairs, 0.998)
    total = sum(count for _, count in pairs)
    known = {"rows": total, "least": pairs[0][0], "most": pairs[-1][0], "middle": _quantile(pairs, 0.5)}
    if low == high:
        return {**known, "edges": [low, high], "counts": [total]}
    ratio = low > 0 and high / low > 200
    bins = min(BINS, len(pairs))
    steps = [index / bins for index in range(bins + 1)]
    edges = [low * (high / low) ** step if ratio else low + (high - low) * step for step in steps]
    counts = [0] * bins
    for number, count in pairs:
        counts[_bin(edges, number)] += count
    return {**known, "edges": edges, "counts": counts}


def _bin(edges: Sequence[float], number: float) -> int:
    from bisect import bisect_right

    return min(max(bisect_right(edges, number) - 1, 0), len(edges) - 2)


def _quantile(pairs: Sequence[tuple[float, int]], share: float) -> float:
    left = share * sum(count for _, count in pairs)
    for number, count in pairs:
        left -= count
        if left <= 0:
            return number
    return pairs[-1][0]


def _records(run: Run) -> list[dict[str, Any]]:
    """The first of the records in quarantine."""
    records = []
    for record in run.quarantined():
        records.append(_record(record))
        if len(records) == RECORDS:
            break
    return records


def _record(record: SetAside) -> dict[str, Any]:
    where = record.file or ", ".join(record.files)
    shown = record.row if record.row is not None else record.content
    return {
        "stage": record.stage,
        "kind": record.kind,
        "error": record.error,
        "file": where,
        "position": record.position,
        "row": shown if shown is None or len(repr(shown)) < 1500 else f"{shown!r:.1500}…",
    }
