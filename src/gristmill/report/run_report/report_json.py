"""The contents of report.json, as plain data; `report_html.py` draws them.

Gives up: more of a sample than some thousand characters, so that a report stays small whatever the data is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gristmill.core.deciding_stage import DecidingStage
from gristmill.core.executor import rows_read
from gristmill.core.records.row_summary import bucket_lower_bound
from gristmill.core.records.run_directory import versions
from gristmill.core.records.stage_identity import describe_stage
from gristmill.core.result import StageSummary, Summary, folded_stages
from gristmill.core.stage_roles import WriterRole
from gristmill.report.run_records import Records, latest_entries
from gristmill.report.run_report import sources_seeds_memory
from gristmill.report.run_report.drop_counts import label_counts, rule_counts
from gristmill.report.run_report.duplicate_clusters import duplicate_clusters
from gristmill.report.run_report.score_histogram import build_histogram, limits_in_threshold
from gristmill.synthetic.before_after import read_samples

if TYPE_CHECKING:
    from gristmill.core.executor import Progress
    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.quarantine import QuarantinedRecord
    from gristmill.core.records.row_summary import RowSummary
    from gristmill.core.records.run_directory import Run
    from gristmill.core.stage import ProcessingStage

MAX_TIMELINE_POINTS, MAX_QUARANTINE_RECORDS, HISTOGRAM_BINS = 240, 20, 48
SAMPLE_CHARS, OUTCOME_CHARS = 2000, 4000


class WorkerTimeline:
    """How busy the workers were: at most so many moments of a run, however long, at equal distances."""

    def __init__(self) -> None:
        self.points: list[dict[str, Any]] = []
        self.names: list[str] = []
        """Of pools, also those of segments that are over. A point has the number of each pool that there is then."""
        self._every, self._due = 0.25, 0.0

    def update(self, progress: Progress) -> None:
        if progress.seconds < self._due:
            return
        self.names += [pool.name for pool in progress.pools if pool.name not in self.names]
        pools = [[self.names.index(pool.name), pool.workers, pool.busy, pool.queued] for pool in progress.pools]
        self.points.append({"seconds": round(progress.seconds, 2), "rows": progress.rows_read, "pools": pools})
        if len(self.points) > MAX_TIMELINE_POINTS:
            self.points, self._every = self.points[::2], self._every * 2
        self._due = progress.seconds + self._every


def gather_facts(
    plan: Plan, run: Run, progress: Progress, timeline: WorkerTimeline, error: BaseException | None
) -> dict[str, Any]:
    """All that there is to tell of a run."""
    summary = Summary.of(progress)
    written = [file for task in (*run.kept_outputs, *run.outputs) for file in task.written]
    sizes = {path: size for file in written for path, size in file.all_sizes().items()}
    facts = {
        "name": plan.name,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "outcome": "finished" if error is None else _failure(error),
        "rows_in": summary.rows_in,
        "rows_out": summary.rows_out,
        "kept_share": summary.kept_share,
        "quarantined": summary.quarantined,
        "seconds": round(summary.seconds, 3),
        "attempts": run.counts.earlier_attempts + (progress.sources_done > progress.sources_kept or error is not None),
        "done_before": len(run.kept_outputs),
        "not_counted": run.counts.sources_unknown,
        "unfinished_rows": _unfinished_rows(run, progress) if error is not None else 0,
        "files": len(sizes),
        "bytes": sum(sizes.values()),
        "stages": _stages(plan, progress),
        "pools": timeline.names,
        "timeline": timeline.points,
        "quarantine": _records(run),
        "plan": plan.describe(verbose=True),
        "pipeline": plan.describe(),
        "seeds": sources_seeds_memory.random_seeds(
            (stage._planned.part_of or stage.name, describe_stage(stage)) for stage in plan.all_stages
        ),
        "memory": sources_seeds_memory.peak_memory(),
        "versions": versions(),
    }
    return {**facts, **_facts_of_run_directory(run, facts)}


def _failure(error: BaseException) -> str:
    failure = f"stopped: {type(error).__name__}: {error}".partition("\n\nTraceback")[0]
    return failure if len(failure) <= OUTCOME_CHARS else f"{failure[:OUTCOME_CHARS]}…"


def _unfinished_rows(run: Run, progress: Progress) -> int:
    """Rows that were read of sources that were not finished, and will be read again."""
    return max(rows_read(stats for _, stats in progress.attempt_stages[:2]) - run.rows_finished, 0)


_ENTRY_KEYS = ("source", "attempt", "plan", "files", "rows", "read")
"""What the report needs of an entry of the ledger, which may have a million."""


def _facts_of_run_directory(run: Run, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the directory of the run tells, if it has one."""
    if not run.store or run.store.get("plan.json") is None:
        return {}
    records = Records(run.url, run.storage_options)
    lines = ({key: line.get(key) for key in _ENTRY_KEYS} for line in run.store.lines("ledger"))
    entries = [entry for entry in latest_entries(lines, records.plan) if entry["source"] in run.listed_sources]
    first, last = ([entry for entry in entries if entry["plan"] == end] for end in run.first_and_last_segment)
    actual = {
        "seconds": facts["seconds"],
        "rows_in": facts["rows_in"],
        "rows_out": facts["rows_out"],
        "output_bytes": facts["bytes"],
        "memory_bytes": max(facts["memory"].values(), default=0) * 1e6,
    }
    return {
        "sources": sources_seeds_memory.rows_by_source(records, first, last, facts["rows_in"] - facts["quarantined"]),
        "duplicates": duplicate_clusters(records),
        "rewritten": read_samples(records.store),
        "predicted": sources_seeds_memory.estimate_and_actual(run.store, actual),
    }


def _stages(plan: Plan, progress: Progress) -> list[dict[str, Any]]:
    stages = []
    place = -1
    for name, parts in folded_stages(progress.stages):
        place += len(parts)
        line, summary = StageSummary.of(name, parts), parts[-1].summary
        stage = plan.all_stages[place]
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
                "writes": isinstance(stage, WriterRole),
                "branch": stage._planned.branch,
                **(_summarised(summary, stage) if summary else {}),
                **(_dropped_by(stage, summary, line) if summary and isinstance(stage, DecidingStage) else {}),
            }
        )
    return stages


def _dropped_by(stage: DecidingStage[Any], summary: RowSummary, line: StageSummary) -> dict[str, Any]:
    return {"rules": rule_counts(stage, summary, line.rows_in, line.dropped), "labels": label_counts(summary)}


def _summarised(summary: RowSummary, stage: ProcessingStage[Any, Any]) -> dict[str, Any]:
    thresholds: Mapping[str, str] = stage.thresholds() if isinstance(stage, DecidingStage) else {}
    return {
        "spread": {name: _histogram_of(buckets) for name, buckets in summary.histograms.items() if buckets},
        "thresholds": {name: text for name, text in thresholds.items() if text},
        "limits": {name: [limit for _, limit in limits_in_threshold(text)] for name, text in thresholds.items()},
        "values": {name: dict(counts.most_common()) for name, counts in summary.values.items()},
        "samples": [{**sample, "row": _clipped(sample["row"])} for _, sample in summary.samples],
    }


def _clipped(row: Mapping[str, Any], most: int = SAMPLE_CHARS) -> dict[str, Any]:
    """The values of a row, as many as there is room for; its text comes first."""
    shown: dict[str, Any] = {}
    for name in sorted(row, key=lambda name: name != "text"):
        value = row[name]
        if isinstance(value, str) and len(value) > max(most, 0):
            value = f"{value[: max(most, 0)]}…"
        most -= len(str(name)) + len(str(value))
        shown[name[:200]] = value
        if most <= 0:
            break
    return shown


def _histogram_of(buckets: Counter[int]) -> dict[str, Any]:
    return build_histogram(
        [bucket_lower_bound(bucket) for bucket in buckets], list(buckets.values()), min(HISTOGRAM_BINS, len(buckets))
    )


def _records(run: Run) -> list[dict[str, Any]]:
    """The first of the records in quarantine."""
    records = []
    for record in run.quarantined():
        records.append(_record(record))
        if len(records) == MAX_QUARANTINE_RECORDS:
            break
    return records


def _record(record: QuarantinedRecord) -> dict[str, Any]:
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
