"""Pipeline: an ordered list of stages; `plan` it, `preview` it, `run` it or `stream` it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gristmill.core.errors import GristmillError
from gristmill.core.executor import (
    Executor,
    Observer,
    check_is_executor,
    default_executor,
    default_observer,
    default_reporter,
    default_side_outputs,
)
from gristmill.core.plan.adapt_to_executor import check_record_directories, plan_for_executor
from gristmill.core.plan.planner import Plan, decompose, make_plan
from gristmill.core.records.quarantine import ErrorBudget, Quarantine
from gristmill.core.records.run_directory import Run
from gristmill.core.records.run_location import MANIFEST, PLAN
from gristmill.core.records.run_record_store import RecordStore
from gristmill.core.records.sharded_run import Shard, begin_shard, finish_shard, keep_shard, open_shard
from gristmill.core.result import Result
from gristmill.core.run import stream_shutdown
from gristmill.core.run.run_segments import RunMonitor, assigned_directories, named_sources, run_segments
from gristmill.core.secret_values import remember_secrets
from gristmill.core.stage import ProcessingStage
from gristmill.core.stage_roles import CommitRole
from gristmill.core.task import Task

if TYPE_CHECKING:
    from typing import Self

    from gristmill.core.executor import TaskRef
    from gristmill.core.run.preview import Preview
    from gristmill.core.task import Lineage


InitialTasks: TypeAlias = "Sequence[Task[Any]] | str | Path | None"
"""The tasks to start with. A path is taken as the run directory, which had this position in version 0.1."""

RunDirectory: TypeAlias = "str | Path | None"

STARTS_ANEW = "there is output of an earlier run. Without a run directory, this run starts from the beginning"


class Pipeline:
    """An ordered list of stages."""

    def __init__(
        self,
        name: str = "pipeline",
        description: str | None = None,
        stages: Iterable[ProcessingStage[Any, Any]] = (),
        config: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a pipeline's first argument is its name, not {name!r}: Pipeline('name', stages=[...])")
        self.name, self.description, self.config = name, description, config or {}
        self.stages: list[ProcessingStage[Any, Any]] = []
        for stage in stages:
            self.add_stage(stage)

    def add_stage(self, stage: ProcessingStage[Any, Any]) -> Self:
        _check_is_stage(stage)
        self.stages.append(stage)
        return self

    def plan(
        self,
        initial_tasks: Sequence[Task[Any]] | None = None,
        *,
        fuse: bool = True,
        executor: Executor | None = None,
    ) -> Plan:
        """Compile the pipeline: composites decomposed, inputs and columns checked, stages fused into groups. With an
        executor, the plan is adapted to it, after checking that it can run."""
        if executor is not None:
            return plan_for_executor(self.name, self.stages, executor, initial_tasks)
        return make_plan(self.name, self.stages, initial_tasks, fuse)

    def build(self) -> None:
        """Check the pipeline as `plan` does. Running it does so too; nothing needs to be built first."""
        self.plan()

    def describe(self, verbose: bool = False) -> str:
        """The plan as text; `verbose` also shows the parts of composite stages, groups and segments."""
        return self.plan().describe(verbose)

    def preview(self, n: int = 5, initial_tasks: Sequence[Task[Any]] | None = None) -> Preview:
        """Run the first n rows in this process, writing nothing; see each row's scores and fate."""
        from gristmill.core.run.preview import make_preview

        return make_preview(self.plan(initial_tasks), n, initial_tasks)

    def run(
        self,
        executor: Executor | None = None,
        initial_tasks: InitialTasks = None,
        run_dir: RunDirectory = None,
        *,
        on_error: str = "quarantine",
        max_errors: float | None = 0.01,
        rejected: bool | str | Path = False,
        scores: bool | str | Path = False,
        replay: bool = False,
        report: bool | str | Path = True,
        storage_options: Mapping[str, Any] | None = None,
        observer: Observer | None = None,
        checkpoint_path: RunDirectory = None,
        shard: Shard | str | None = None,
    ) -> Result:
        """Run to the end and return the last stage's tasks, which load when looked at.

        The first stage gets the `initial_tasks`, unless it lists its own input. `run_dir` (or `checkpoint_path`, its
        name in NeMo Curator) keeps the records of the run, on any fsspec URL (`storage_options` are for it): started
        again with the same one, a run does only what is left; with `replay`, also the sources of which records are in
        quarantine. `on_error="quarantine"` sets records aside that a stage fails on, and stops the run when there
        are more than `max_errors` (a number, or a share of the rows, or None for no limit); `"raise"` stops at the
        first. `rejected` is a directory for the rows that stages drop, with stage, score and threshold, as Parquet;
        True puts them into the run directory, or else beside the output `OUT`, into `OUT.run`. `scores`, likewise,
        keeps what each filter thought of each row, for `gristmill why` and `gristmill whatif`. `report.html` shows what
        happened to the data: it is written into the run directory, if there is one, or into the directory `report`.
        `shard="3/10"` does the third of ten parts of the input, or `"slurm"` that of a job in an array; all parts
        have the same `run_dir` (`core/records/sharded_run.py`).
        """
        initial_tasks, run_dir = _tasks_and_directory(initial_tasks, run_dir, checkpoint_path)
        part = open_shard(shard, run_dir, storage_options) if isinstance(shard, str) else shard
        kept = {"rejected": rejected, "scores": scores, "report": report}
        run, storage_options = self._open_run(part, run_dir, storage_options, replay, kept)
        watcher = _watcher(run, observer or default_observer(executor), report, storage_options)
        anew = run_dir is None and part is None
        quarantine = _quarantine(run, on_error, max_errors)
        beside = _beside(run, rejected, scores, storage_options)
        try:
            with stream_shutdown.interrupt_first(stream_shutdown.handled_exception_id()):
                refs = list(self._execute(executor, run, quarantine, initial_tasks, watcher, beside, anew))
        except BaseException as failure:
            watcher.report(run, failure)
            raise
        watcher.report(run, None)
        return Result(refs, watcher.last, run)

    def _open_run(
        self,
        part: Shard | None,
        run_dir: RunDirectory,
        storage_options: Mapping[str, Any] | None,
        replay: bool,
        kept: Mapping[str, bool | str | Path],
    ) -> tuple[Run, Mapping[str, Any] | None]:
        """The records of a run, and the options of the storage for what it keeps besides."""
        if part:
            _refuse_shared_directories(kept)
            run_dir = part.directory
        beside_output = None if run_dir else self.records_directory()
        wanted = kept["rejected"] is True or kept["scores"] is True
        if beside_output and (wanted or str(kept["report"]) == beside_output[0]):
            return Run(*beside_output, restarts=True), {**beside_output[1], **(storage_options or {})}
        run = Run(run_dir, storage_options, replay)
        run.shard = part or run.shard
        return run, storage_options

    def records_directory(self) -> tuple[str, Mapping[str, Any]] | None:
        """The directory for records beside the output, with its storage options; None if nothing is written."""
        last = decompose(self.stages[-1:])[-1:]
        return next(iter(last[0].records_directories()), None) if last and isinstance(last[0], CommitRole) else None

    def _has_earlier_output(self) -> bool:
        """Whether records of another run lie beside the output."""
        beside = self.records_directory()
        try:
            store = RecordStore(*beside) if beside else None
            return store is not None and any(store.get(name) is not None for name in (MANIFEST, PLAN))
        except (OSError, GristmillError):  # a store that cannot be read: the run says so
            return False

    def left_to_do(
        self, run_dir: str | Path, initial_tasks: Sequence[Task[Any]] | None = None, *, replay: bool = False
    ) -> tuple[list[str], list[tuple[Lineage, str]], int]:
        """What a run with this `run_dir` would do: changes of the pipeline, sources to do and why, sources done."""
        run = Run(run_dir, replay=replay)
        plan = make_plan(self.name, self.stages, initial_tasks, resuming=run.resuming)
        if run.shard:
            keep_shard(plan, run.shard)
        with assigned_directories(plan, run):
            return run.left_to_do(plan, lambda segment: named_sources(segment, initial_tasks))

    def stream(
        self,
        executor: Executor | None = None,
        initial_tasks: InitialTasks = None,
        run_dir: RunDirectory = None,
        *,
        on_error: str = "quarantine",
        max_errors: float | None = 0.01,
        storage_options: Mapping[str, Any] | None = None,
        observer: Observer | None = None,
    ) -> Iterator[Task[Any]]:
        """Yield the last stage's tasks as they finish, in any order. A slow consumer slows the pipeline down."""
        given, directory = _tasks_and_directory(initial_tasks, run_dir)

        def tasks() -> Generator[Task[Any], None, None]:
            watcher = RunMonitor(observer or default_observer(executor))
            run = Run(directory, storage_options)
            quarantine = _quarantine(run, on_error, max_errors)
            results = self._execute(executor, run, quarantine, given, watcher)
            with stream_shutdown.closing_stream(results):
                for number, (lineage, ref) in enumerate(results):
                    task: Task[Any] = ref.load().named(lineage)
                    ref.release()
                    if not number:
                        stream_shutdown.register_close_at_exit()
                    yield task

        return stream_shutdown.closed_at_exit(tasks())

    def _execute(
        self,
        executor: Executor | None,
        run: Run,
        quarantine: Quarantine,
        initial_tasks: Sequence[Task[Any]] | None,
        watcher: RunMonitor,
        beside: tuple[Any, Any, Any] | None = None,
        anew: bool = False,
    ) -> Iterator[tuple[Lineage, TaskRef]]:
        executor = executor or default_executor()
        check_is_executor(executor)
        remember_secrets(self.stages)
        plan = plan_for_executor(self.name, self.stages, executor, initial_tasks, run.resuming, beside)
        if anew and self._has_earlier_output():  # asked after the plan has found that the output can be reached
            watcher.noticed(STARTS_ANEW)
        for stage in plan.all_stages if watcher.reporter else ():
            stage._planned = replace(stage._planned, summarised=not stage._planned.part_of)
        check_record_directories(plan, run.url, watcher.report_directory)
        sources = begin_shard(plan, run.shard, run.storage_options) if run.shard else ""
        with assigned_directories(plan, run):
            run.begin(plan)
            yield from run_segments(plan, executor, run, quarantine, watcher, initial_tasks)
        if run.shard:
            finish_shard(run.shard, sources, [*run.kept_outputs, *run.outputs], run.storage_options)

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}: {' -> '.join(stage.name for stage in self.stages) or 'empty'}>"


def _tasks_and_directory(
    initial_tasks: InitialTasks, run_dir: RunDirectory, checkpoint_path: RunDirectory = None
) -> tuple[Sequence[Task[Any]] | None, RunDirectory]:
    """The tasks and the run directory, from all the ways to give them."""
    tasks, first = (None, initial_tasks) if isinstance(initial_tasks, str | Path) else (initial_tasks, None)
    given = [place for place in (first, run_dir, checkpoint_path) if place is not None]
    if len({str(place) for place in given}) > 1:
        raise TypeError(f"there is one run directory, and {len(given)} were given: {', '.join(map(str, given))}")
    if given and not isinstance(given[0], str | Path):
        raise TypeError(f"run_dir must be a path, not {given[0]!r:.80}. Tasks come first: run(executor, initial_tasks)")
    return tasks, given[0] if given else None


def _quarantine(run: Run, on_error: str, max_errors: float | None) -> Quarantine:
    if on_error not in ("quarantine", "raise"):
        raise ValueError(f"on_error is {on_error!r}, must be 'quarantine' or 'raise'")
    return Quarantine(on_error == "quarantine", ErrorBudget.of(max_errors), run)


def _watcher(
    run: Run, observer: Observer, report: bool | str | Path, storage_options: Mapping[str, Any] | None
) -> RunMonitor:
    """What observes the run, with a report where one is wanted."""
    store = run.store if report is True else RecordStore(str(report), storage_options) if report else None
    reporter = default_reporter(store) if store else None
    return RunMonitor(observer, reporter, "" if isinstance(report, bool) else str(report))


def _beside(
    run: Run, rejected: bool | str | Path, scores: bool | str | Path, storage_options: Mapping[str, Any] | None
) -> tuple[Any, Any, Any] | None:
    """The stages that write rejected rows and scores, if requested."""
    directories: list[str | None] = []
    for name, wanted, what in (("rejected", rejected, "dropped rows"), ("scores", scores, "scores")):
        if wanted is True and not run.url:
            raise ValueError(
                f"{name}=True keeps {what} with the output, and there is none: give run_dir=... or {name}='dir'"
            )
        directories.append(f"{run.url}/{name}" if wanted is True else str(wanted) if wanted else None)
    return default_side_outputs(directories[0], directories[1], storage_options or {}) if any(directories) else None


def _refuse_shared_directories(options: Mapping[str, bool | str | Path]) -> None:
    """Shards keep their records apart: each would replace those of the others."""
    for name, place in options.items():
        if place not in (True, False):
            raise ValueError(f"{name}={str(place)!r} would be shared by all shards: {name}=True keeps it in run_dir")


def _check_is_stage(stage: object) -> None:
    if not isinstance(stage, ProcessingStage):
        hint = " Did you forget the parentheses?" if isinstance(stage, type) else ""
        raise TypeError(f"a pipeline is made of stages, not of {stage!r}.{hint}")
