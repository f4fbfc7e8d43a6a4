"""Run the segments of a pipeline, its parts between exchanges, one after the other as one run.

To the executor each segment is a plan of its own. Its last stage writes files into the run directory, and the source
of the next segment lists them (`io/exchange/exchange.py`). So each exchange is a checkpoint: the ledger records which
sources of which segment are done. Counts, progress, quarantine and the error budget span the whole run. A segment may
run more than once (`CommitRole.segments_to_repeat`), and one with nothing to do is skipped.

Segments do not overlap: the next one starts when the last source of this one is done.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import describe_error
from gristmill.core.executor import Executor, Job, LocalTaskRef, Observer, Progress, ReportWriter
from gristmill.core.records.rejected_rows import RejectedFiles
from gristmill.core.records.run_directory import Run, segments_in_order, versions
from gristmill.core.result import check_row_accounting
from gristmill.core.run.stage_stats import StageStats
from gristmill.core.run.stream_shutdown import closing_stream
from gristmill.core.stage_roles import ReportingRole, RunStateRole
from gristmill.core.task import EmptyTask, ScoreFiles, Task, WrittenFiles, name_sources

if TYPE_CHECKING:
    from gristmill.core.executor import TaskRef
    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.quarantine import Quarantine
    from gristmill.core.task import Lineage

SEGMENTS_FOLDER = "segments"


def run_segments(
    plan: Plan,
    executor: Executor,
    run: Run,
    quarantine: Quarantine,
    watcher: RunMonitor,
    initial_tasks: Sequence[Task[Any]] | None,
) -> Iterator[tuple[Lineage, TaskRef]]:
    """Run all segments in order; yield the output of the last stage of the last one."""
    info = {"pipeline": plan.name, "plan": run.plan, "versions": versions()}
    try:
        for segment in segments_in_order(plan):
            watcher.begin_segment(segment)
            sources = run.to_do(named_sources(segment, initial_tasks), segment)
            first = next(sources, None) if segment.number else []
            job = Job(segment, chain([first] if first else [], sources), watcher, quarantine, run.scratch)
            outputs = run.outputs = []
            with closing_stream(_outputs(job, executor, run, outputs)) as results:
                for lineage, ref in results if first is not None else ():
                    if segment.next_segment is None:
                        yield lineage, ref
                    else:
                        ref.release()
            _check_segment_accounting(segment, quarantine, watcher)
            if segment.next_segment is None:
                break
            run.flush()
            if segment.commit is not None:
                segment.commit.complete([*run.kept_outputs, *outputs], info)
    finally:
        try:
            _show_counts(plan, watcher.last)
            run.end(watcher.last)
            watcher.close()
        finally:
            executor.end_run()
    _show_warnings(plan, watcher.last)
    for stage in segment.side_output_commits:
        stage.complete((), {})
    for task in run.kept_outputs:
        yield task.lineage, LocalTaskRef(task)
    if segment.commit is not None:
        run.discard_removed_sources(segment)
        run.replace_outputs(segment.commit.complete([*run.kept_outputs, *outputs], info))


def _outputs(job: Job, executor: Executor, run: Run, outputs: list[WrittenFiles]) -> Iterator[tuple[Lineage, TaskRef]]:
    """The output of a segment's last stage; finished sources and committed files are recorded in the run directory."""
    plan = job.plan
    with closing_stream(executor.execute(job)) as results:
        for lineage, ref in results:
            if ref is None:
                run.finish_source(lineage.source)
                continue
            output = ref.load() if plan.durable or plan.has_side_outputs else None
            if isinstance(output, RejectedFiles):
                run.add_rejected(lineage.source, output)
                continue
            if isinstance(output, ScoreFiles):
                run.add_scores(lineage.source, output)
                continue
            if isinstance(output, WrittenFiles):
                outputs.append(output.named(lineage))
                run.add_written(lineage.source, output)
            yield lineage, ref


def _summed_stats(
    before: Sequence[tuple[str, StageStats]], now: Sequence[tuple[str, StageStats]]
) -> list[tuple[str, StageStats]]:
    """The counts of stages that have run more than once, added up."""
    if not before:
        return list(now)
    sums = [(name, stats.copy()) for name, stats in before]
    for (_, total), (_, more) in zip(sums, now, strict=True):
        total.add(more)
    return sums


def _check_segment_accounting(segment: Plan, quarantine: Quarantine, watcher: RunMonitor) -> None:
    check_row_accounting(watcher.segment.stages[1:] if segment.source else watcher.segment.stages)
    quarantine.close(watcher.last)
    quarantine.begin_segment(watcher.last.rows_read)


def _show_counts(plan: Plan, progress: Progress) -> None:
    """Replace the raw counters of stages by those to display."""
    for stage, (_, stats) in zip(plan.all_stages, progress.stages, strict=False):
        if isinstance(stage, ReportingRole):
            stats.raw, stats.counts = stats.counts, dict(stage.displayed_counts(stats.counts))


def _show_warnings(plan: Plan, progress: Progress) -> None:
    """Issue the warnings of stages, one per topic: several on the same topic have the same cause."""
    warned: set[str] = set()
    for stage, (_, stats) in zip(plan.all_stages, progress.stages, strict=False):
        if not isinstance(stage, ReportingRole):
            continue
        topic = stage.warning_topic or stage.name
        if topic not in warned and (warning := stage.run_warning(stats)):
            warned.add(topic)
            warnings.warn(warning, RuntimeWarning, stacklevel=2)


def named_sources(plan: Plan, initial_tasks: Sequence[Task[Any]] | None) -> Iterator[list[Task[Any]]]:
    """The tasks that enter a segment, by source, with their ids."""
    if plan.source is not None:
        return name_sources(plan.source.sources(), by_content=True)
    tasks = [EmptyTask()] if initial_tasks is None else list(initial_tasks)
    return name_sources(iter([[task] for task in tasks]), by_content=False)


@contextmanager
def assigned_directories(plan: Plan, run: Run) -> Iterator[None]:
    """Assign stages their directories: in the run directory, or in a temporary one that is removed at the end.

    A temporary one is created beside the output if possible, where there is space and all nodes can access it.
    """
    if plan.next_segment is None:
        yield
        return
    temporary, commit = not run.store or run.restarts, plan.segments[-1].commit
    url, options, local_directory = f"{run.url}/{SEGMENTS_FOLDER}", run.storage_options, ""
    if temporary:
        beside_output = commit.temporary_directory() if commit else None
        local_directory = "" if beside_output else tempfile.mkdtemp(prefix="gristmill-run-")
        url, options = (beside_output[0], dict(beside_output[1])) if beside_output else (local_directory, {})
    lasting = (
        (run.url, run.storage_options)
        if run.store
        else next(iter(commit.records_directories()), None)
        if commit
        else None
    )
    stateful: list[RunStateRole] = []
    for segment in plan.segments:
        for stage in segment.stages:
            if isinstance(stage, RunStateRole):
                stage.assign_directories(f"{url}/{segment.number + 1}", options, lasting)
                stateful.append(stage)
    for stateful_stage in stateful:
        stateful_stage.see_pipeline(plan.all_stages)
    try:
        yield
    finally:
        for stateful_stage in stateful if temporary else ():
            stateful_stage.remove_temporary_files()
        if local_directory:
            shutil.rmtree(local_directory, ignore_errors=True)


class RunMonitor(Observer):
    """Combines the progress of segments into that of one run, passes it on to an observer, and keeps the last."""

    def __init__(self, observer: Observer, reporter: ReportWriter | None = None) -> None:
        self.observer, self.reporter = observer, reporter
        self.segment = Progress()
        """Progress of the current segment."""
        self.last = Progress()
        """Progress of the run."""
        self._before = Progress()
        self._pages: dict[int, list[tuple[str, StageStats]]] = {}
        self._page = 0
        """The counts of each segment's finished turns, by segment number, and the number of the current segment."""
        self._plan: Plan | None = None

    def started(self, plan: Plan) -> None:
        if self._plan is None:
            self._plan = plan
            self.observer.started(plan)

    def progressed(self, progress: Progress) -> None:
        self._take(progress)
        if self.reporter:
            self.reporter.update(self.last)
        self.observer.progressed(self.last)

    def finished(self, progress: Progress) -> None:
        self._take(progress)

    def _take(self, progress: Progress) -> None:
        before = self._before
        self.segment = progress
        pages = {**self._pages, self._page: _summed_stats(self._pages.get(self._page, []), progress.stages)}
        self.last = replace(
            progress,
            stages=[stage for page in sorted(pages) for stage in pages[page]],
            sources_seen=before.sources_seen + progress.sources_seen,
            sources_done=before.sources_done + progress.sources_done,
            seconds=before.seconds + progress.seconds,
        )

    def begin_segment(self, segment: Plan) -> None:
        """Start a segment, whose stages have done nothing yet in this turn."""
        if self._plan is not None:
            self._pages[self._page] = _summed_stats(self._pages.get(self._page, []), self.segment.stages)
            self._before = self.last
            self._page = segment.number
            self._take(Progress([(stage.name, StageStats(part_of=stage._planned.part_of)) for stage in segment.stages]))

    def close(self) -> None:
        """Report the end of the run, successful or not."""
        if self._plan:
            self.observer.finished(self.last)

    def report(self, run: Run, error: BaseException | None) -> None:
        """Write the report. A failure to do so only warns, since the data is not affected."""
        if self.reporter is None or self._plan is None:
            return
        try:
            self.reporter.write(self._plan, run, self.last, error)
        except Exception as problem:  # noqa: BLE001
            warnings.warn(f"the report could not be written: {describe_error(problem)}", stacklevel=3)
