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
from dataclasses import field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import describe_error
from gristmill.core.executor import Executor, Job, LocalTaskRef, Observer, Progress, ReportWriter
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.rejected_rows import RejectedFiles
from gristmill.core.records.run_directory import Run, segments_in_order, versions
from gristmill.core.records.source_counts import NamedStats, SourceCounts, summed
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.result import check_row_accounting
from gristmill.core.run.stream_shutdown import closing_stream
from gristmill.core.stage_roles import LastingRecordsRole, ReportingRole, RunStateRole
from gristmill.core.task import EmptyTask, ScoreFiles, Task, WrittenFiles, name_sources

if TYPE_CHECKING:
    from gristmill.core.executor import TaskRef
    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.quarantine import Quarantine
    from gristmill.core.stage_roles import RecordsLocation
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
    info: dict[str, Any] = {"pipeline": plan.name, "plan": run.plan, "versions": versions()}
    info |= {"shard": [run.shard.number, run.shard.count]} if run.shard else {}
    try:
        for segment in segments_in_order(plan):
            watcher.begin_segment(segment)
            sources = run.to_do(named_sources(segment, initial_tasks), segment)
            watcher.follow(run.counts)
            first = next(sources, None) if segment.number else []
            job = Job(segment, chain([first] if first else [], sources), watcher, quarantine, run.scratch)
            outputs = run.outputs = []
            with closing_stream(_outputs(job, executor, run, outputs)) as results:
                for lineage, ref in results if first is not None else ():
                    if segment.next_segment is None:
                        yield lineage, ref
                    else:
                        ref.release()
            _check_segment_end(plan, segment, quarantine, watcher)
            if segment.next_segment is None:
                break
            run.flush()
            if segment.commit is not None:
                segment.commit.complete([*run.kept_outputs, *outputs], info)
    finally:
        try:
            watcher.end()
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
        run.replace_outputs(segment.commit.join_outputs([*run.kept_outputs, *outputs]))
        segment.commit.outputs_recorded()
        run.replace_outputs(segment.commit.complete([*run.kept_outputs, *outputs], info))
        segment.commit.outputs_recorded()


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
                ref.release()  # with many sources, one copy of each output is enough
                output = output.named(lineage)
                outputs.append(output)
                run.add_written(lineage.source, output)
                ref = LocalTaskRef(output)  # noqa: PLW2901
            yield lineage, ref


def _check_segment_end(plan: Plan, segment: Plan, quarantine: Quarantine, watcher: RunMonitor) -> None:
    check_row_accounting(watcher.segment.stages[1:] if segment.source else watcher.segment.stages)
    attempt = replace(watcher.last, stages=watcher.last.attempt_stages)
    quarantine.close(attempt)
    quarantine.begin_segment(attempt.rows_read)
    if segment.next_segment is None:
        _check_results(plan, watcher.last)


def _show_counts(plan: Plan, progress: Progress) -> None:
    """Replace the raw counters of stages by those to display."""
    for stage, (_, stats) in zip(plan.all_stages, progress.stages, strict=False):
        if isinstance(stage, ReportingRole):
            stats.raw, stats.counts = stats.counts, dict(stage.displayed_counts(stats.counts))


def _check_results(plan: Plan, progress: Progress) -> None:
    for stage, (_, stats) in zip(plan.all_stages, progress.stages, strict=False):
        if isinstance(stage, ReportingRole):
            stage.check_run(stats)


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
    lasting = _assign_records(plan, run)
    if plan.next_segment is None:
        yield
        return
    temporary, commit = not run.store or run.restarts, plan.segments[-1].commit
    url, options, local_directory = f"{run.url}/{SEGMENTS_FOLDER}", run.storage_options, ""
    if temporary:
        beside_output = commit.temporary_directory() if commit else None
        local_directory = "" if beside_output else tempfile.mkdtemp(prefix="gristmill-run-")
        url, options = (beside_output[0], dict(beside_output[1])) if beside_output else (local_directory, {})
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


def _assign_records(plan: Plan, run: Run) -> RecordsLocation:
    """Tell stages where the records of the run are, its own directory or else beside the output, and return that."""
    commit = plan.segments[-1].commit
    beside = next(iter(commit.records_directories()), None) if commit else None
    lasting = (run.url, run.storage_options) if run.store else beside
    for stage in plan.all_stages:
        if isinstance(stage, LastingRecordsRole):
            stage.assign_records(*(lasting or ("", {})), run.attempt, run.lasting_name)
    return lasting


@fast_dataclass(slots=True)
class _Turn:
    """One time that a segment runs, and what is kept of earlier attempts in it."""

    number: int
    progress: Progress = field(default_factory=Progress)
    kept: list[NamedStats] = field(default_factory=list)
    sources_kept: int = 0


class RunMonitor(Observer):
    """Combines the progress of segments into that of one run, passes it on to an observer, and keeps the last."""

    def __init__(self, observer: Observer, reporter: ReportWriter | None = None, report_directory: str = "") -> None:
        self.observer, self.reporter = observer, reporter
        self.report_directory = report_directory
        """Where the user wants the report, if not in the run directory."""
        self.segment = Progress()
        """Progress of the current segment."""
        self.last = Progress()
        """Progress of the run."""
        self._counts: SourceCounts | None = None
        self._follows = False
        self._turns: list[_Turn] = []
        """The segments that have run, in order; one that ran several times has as many turns."""
        self._plan: Plan | None = None

    def noticed(self, message: str) -> None:
        self.observer.noticed(message)

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

    def begin_segment(self, segment: Plan) -> None:
        """Start a segment, whose stages have done nothing yet in this turn."""
        if self._turns:
            self._take(self.segment)  # what was kept is known by now
        self._turns.append(_Turn(segment.number))
        self._follows = False
        self._take(Progress([(stage.name, StageStats(part_of=stage._planned.part_of)) for stage in segment.stages]))

    def follow(self, counts: SourceCounts) -> None:
        """From now on, count what is kept of earlier attempts too."""
        self._counts, self._follows = counts, True

    def _take(self, progress: Progress, summaries: bool = False) -> None:
        self.segment, turn = progress, self._turns[-1]
        turn.progress = progress
        if self._counts is not None and self._follows:
            turn.kept, turn.sources_kept = self._counts.kept, self._counts.sources_kept
        kept = sum(one.sources_kept for one in self._turns)
        every = {turn.number: [one for one in self._turns if one.number == turn.number] for turn in self._turns}
        whole, before = [], []
        for number in sorted(every):
            turns = every[number]
            earlier = [one.kept for one in turns if one.kept]
            now = summed((*earlier, *(one.progress.stages for one in turns)), summaries)
            whole += now
            before += summed(earlier, False) if earlier else [(name, StageStats()) for name, _ in now]
        self.last = replace(
            progress,
            stages=whole,
            kept=before if kept else [],
            sources_kept=kept,
            sources_seen=kept + sum(one.progress.sources_seen for one in self._turns),
            sources_done=kept + sum(one.progress.sources_done for one in self._turns),
            seconds=sum(one.progress.seconds for one in self._turns),
            earlier_seconds=self._counts.earlier_seconds if self._counts else 0.0,
        )

    def end(self) -> None:
        """Take the last counts, with the summaries of rows, which are too slow to add up while the run goes on."""
        if self._turns:
            self._take(self.segment, summaries=True)

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
