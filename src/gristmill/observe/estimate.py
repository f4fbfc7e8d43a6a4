"""Estimate time, memory and disk of a run from a sample of a few seconds.

The sample passes through all stages in this process, exchanges and writing included, and its cost is scaled up to the
whole input. Two small samples come first: one warms up, one measures the fixed cost of a call and how large the last
sample may be.

Gives up: what only the whole input shows, such as duplicates far apart, and input that is unlike its beginning.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.core.executor import Executor, Progress, SilentObserver
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage_roles import EndpointForecast, EndpointRole, output_directory_of
from gristmill.observe.pipeline_on_sample import InputSample
from gristmill.observe.run_snapshot import stage_positions

if TYPE_CHECKING:
    from gristmill.core.pipeline import Pipeline
    from gristmill.core.plan.planner import Group, Plan

SAMPLE_SECONDS = 4.0
"""How long the sample may take, about."""

ESTIMATE_FILE = "estimate.json"
_FIRST_BYTES = 256 * 2**10
_START_S = 0.5
_WORKER_BYTES, _DRIVER_BYTES = 70_000_000, 90_000_000
"""What a process takes before it has rows: Python, Arrow and what stages import."""
_COPIES = 4
"""What a worker holds of a block: text, columns, and what is made of them."""


@fast_dataclass(frozen=True, slots=True)
class StageEstimate:
    """What one stage will do."""

    name: str
    rows_in: int
    kept: int
    seconds: float


@fast_dataclass(frozen=True, slots=True)
class Estimate:
    """What a whole run will take."""

    seconds: float
    cpu_seconds: float
    workers: int
    memory_bytes: int
    worker_bytes: int
    output_bytes: int
    temporary_bytes: int
    input_bytes: int
    sampled_share: float
    rows_in: int
    rows_out: int
    stages: list[StageEstimate]
    notes: list[str] = field(default_factory=list)
    endpoints: dict[str, EndpointForecast] = field(default_factory=dict)
    """What stages that ask a model will ask, by stage. Their time is not part of `seconds`."""

    def facts(self) -> dict[str, Any]:
        """As plain data, for `estimate.json`."""
        return asdict(self)


@fast_dataclass
class _SampleRun:
    """What a sample took."""

    progress: Progress
    taken: float
    """Rows of Parquet, or parsed bytes."""
    seconds: float
    sources: int
    output_bytes: int
    temporary_bytes: int
    memory_bytes: int
    """What it took more than there was before."""


def estimate(pipeline: Pipeline, place: Executor, here: Executor, seconds: float = SAMPLE_SECONDS) -> Estimate:
    """What the pipeline will take on `place`. The sample runs `here`, which must be this process."""
    plan = pipeline.plan(executor=place)
    sample = InputSample(pipeline)
    _run_sample(sample, here, 1, _FIRST_BYTES)  # imports, and what else is done once
    small = _run_sample(sample, here, 1, _FIRST_BYTES)
    affordable = _FIRST_BYTES * seconds / max(small.seconds, 0.01)
    count = int(min(max(affordable // (2 * _FIRST_BYTES), 2), len(sample.files)))
    block = int(min(max(affordable / count, _FIRST_BYTES), sample.blocksize))
    return _scale_up(plan, sample, small, _run_sample(sample, here, count, block), place, block)


def _run_sample(sample: InputSample, here: Executor, count: int, most_bytes: int) -> _SampleRun:
    last = _LastProgress()
    with tempfile.TemporaryDirectory(prefix="gristmill-estimate-") as folder:
        _reset_peak_memory()
        before = _memory_bytes("VmRSS")
        began = time.perf_counter()
        pipeline = sample.sample_pipeline(sample.files[:count], most_bytes, f"{folder}/out")
        pipeline.run(here, run_dir=f"{folder}/run", max_errors=None, report=False, observer=last)
        return _SampleRun(
            last.progress,
            _amount_read(last.progress, sample.is_parquet),
            time.perf_counter() - began,
            count,
            _directory_bytes(Path(folder, "out")),
            _directory_bytes(Path(folder, "run", "segments")),
            max(_memory_bytes("VmHWM") - before, 0),
        )


class _LastProgress(SilentObserver):
    progress: Progress

    def finished(self, progress: Progress) -> None:
        self.progress = progress


def _amount_read(progress: Progress, by_rows: bool) -> float:
    reader = progress.stages[1][1]
    return reader.rows_out if by_rows else reader.counts.get("bytes_read", 0) or reader.bytes_out


def _scale_up(
    plan: Plan, sample: InputSample, small: _SampleRun, large: _SampleRun, place: Executor, block: int
) -> Estimate:
    workers, memory_gb = _workers(place)
    whole = sample.total_amount()
    scale = max(whole / large.taken, 1.0) if large.taken else 1.0
    blocks = max(sample.sources, -(-sample.input_bytes // sample.blocksize) if sample.splits_files else 0)
    stages = []
    for index, (position, (name, stats)) in enumerate(zip(stage_positions(plan), large.progress.stages, strict=True)):
        calls = sample.sources if position.gathers else blocks
        seconds = _seconds(small, large, index, whole, calls)
        stages.append(StageEstimate(name, round(stats.rows_in * scale), round(stats.rows_out * scale), seconds))
    rows = large.memory_bytes + _COPIES * (
        min(sample.blocksize, round(whole / blocks)) - block if sample.splits_files else 0
    )
    worker = _WORKER_BYTES + max(rows, 0)
    memory = _DRIVER_BYTES + workers * (_WORKER_BYTES // 2 + max(rows, 0))  # libraries are shared, and counted once
    output, temporary = round(large.output_bytes * scale), round(large.temporary_bytes * scale)
    return Estimate(
        seconds=_wall_seconds(plan, sample, stages, workers, blocks),
        cpu_seconds=sum(stage.seconds for stage in stages),
        workers=workers,
        memory_bytes=memory,
        worker_bytes=worker,
        output_bytes=output,
        temporary_bytes=temporary,
        input_bytes=sample.input_bytes,
        sampled_share=min(1 / scale, 1.0),
        rows_in=stages[1].kept,
        rows_out=stages[-1].kept,
        stages=_fold_parts(plan, stages),
        notes=_notes(plan, memory, memory_gb, output, temporary),
        endpoints=_forecasts(plan, large, scale),
    )


def _forecasts(plan: Plan, run: _SampleRun, scale: float) -> dict[str, EndpointForecast]:
    pairs = zip(plan.all_stages, run.progress.stages, strict=False)
    return {
        name: stage.foresee(stats.counts, scale) for stage, (name, stats) in pairs if isinstance(stage, EndpointRole)
    }


def _fold_parts(plan: Plan, stages: Sequence[StageEstimate]) -> list[StageEstimate]:
    """One estimate for each stage of the pipeline: the parts of a composite stage are added up."""
    folded: list[StageEstimate] = []
    part_of = ""
    for position, stage in zip(stage_positions(plan), stages, strict=True):
        if folded and part_of == position.user_stage:
            before = folded.pop()
            rows, spent = before.rows_in or stage.rows_in, before.seconds + stage.seconds
            folded.append(StageEstimate(position.user_stage, rows, stage.kept, spent))
        else:
            folded.append(StageEstimate(position.user_stage, stage.rows_in, stage.kept, stage.seconds))
        part_of = position.user_stage if position.user_stage != position.name else ""
    return folded


def _seconds(small: _SampleRun, large: _SampleRun, stage: int, whole: float, calls: int) -> float:
    """A stage takes something for each call and something for each byte. Two samples tell the two apart."""
    first, second = (run.progress.stages[stage][1].seconds / run.sources for run in (small, large))
    little, much = small.taken / small.sources, large.taken / large.sources
    if not much:
        return second * calls
    fixed = max(first * much - second * little, 0.0) / (much - little) if much > 2 * little else 0.0
    fixed = min(fixed, second)
    return fixed * calls + (second - fixed) / much * whole


def _workers(place: Executor) -> tuple[int, float | None]:
    """How many calls run at once, and how much memory there is, as far as the executor knows."""
    machine = place.machine()
    if machine is None:
        return os.cpu_count() or 1, None
    return 1 if place.runs_inline else max(1, int(machine.cpus)), machine.memory_gb


def _wall_seconds(plan: Plan, sample: InputSample, stages: Sequence[StageEstimate], workers: int, blocks: int) -> float:
    """Segments follow each other. In each, all cores share the work, and no pool has more workers than it may."""
    spent: dict[tuple[int, int], float] = {}
    for position, stage in zip(stage_positions(plan), stages, strict=True):
        if position.group is not None:
            spent[position.segment, position.group] = spent.get((position.segment, position.group), 0.0) + stage.seconds
    total = 0.0
    for segment in plan.segments:
        took = {group.index: spent.get((segment.number, group.index), 0.0) for group in segment.main_groups}
        shared = sum(took[group.index] * max(group.resources.cpus, 0.1) for group in segment.main_groups) / workers
        alone = max(
            took[group.index] / _useful_workers(group, workers, sample, blocks) for group in segment.main_groups
        )
        total += _START_S + max(shared, alone)
    return total


def _useful_workers(group: Group, workers: int, sample: InputSample, blocks: int) -> int:
    """How many workers of a group have something to do."""
    limit = group.num_workers or max(1, int(workers / max(group.resources.cpus, 1.0)))
    return max(1, min(limit, sample.sources if group.gather else blocks))


def _notes(plan: Plan, memory: int, memory_gb: float | None, output: int, temporary: int) -> list[str]:
    notes = []
    if plan.next_segment:
        notes.append("the sample holds fewer duplicates than the full input, so the run may keep fewer rows")
    if any(stage.resources.requires_gpu for stage in plan.all_stages):
        notes.append("GPU stages were measured on this machine; on another GPU their time will differ")
    if memory_gb and memory > memory_gb * 1e9:
        notes.append(f"this is more than the {memory_gb:.0f} GB of memory available: use fewer workers (--workers)")
    place = next((owned for stage in plan.all_stages if (owned := output_directory_of(stage))), None)
    free = _free_disk_bytes(place) if place and "://" not in place else None
    if free is not None and output + temporary > free:
        notes.append(f"output and temporary files need more than the {free / 1e9:,.1f} GB free at {place}")
    return notes


def _free_disk_bytes(place: str) -> int | None:
    path = Path(place).expanduser().absolute()
    there = next((folder for folder in (path, *path.parents) if folder.exists()), None)
    return shutil.disk_usage(there).free if there else None


def _directory_bytes(folder: Path) -> int:
    """Bytes of all files below a directory, but those that only say what there is."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.name.startswith("_"))


def _reset_peak_memory() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _memory_bytes(which: str) -> int:
    """How much memory this process has (VmRSS), or has had since `_reset_peak_memory` at most (VmHWM)."""
    try:
        found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
