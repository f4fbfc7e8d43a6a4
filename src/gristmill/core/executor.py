"""The Executor contract: the base class of everything that runs a plan, and the objects that pass through it.

An executor is thin: it starts workers, moves tasks by reference, replaces workers that die, and yields what leaves the
last stage. `run/flow.py` and `run/schedule.py` decide what runs next; `run/worker.py` runs it.

`core` cannot import the layers above it, so what `Pipeline.run` uses by default (the executor, the progress display,
the report) is registered here by the package root; see `set_default`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import PlanError, did_you_mean
from gristmill.core.fast_dataclass import fast_dataclass

if TYPE_CHECKING:
    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.quarantine import Quarantine
    from gristmill.core.records.run_directory import Run
    from gristmill.core.records.run_record_store import RecordStore
    from gristmill.core.records.stage_stats import StageStats
    from gristmill.core.task import Lineage, Task


class TaskRef(ABC):
    """A reference to a task that is stored somewhere: in this process, in shared memory or in an object store."""

    __slots__ = ()

    node: str = ""
    """The cluster node that stores the task; empty if it travels with the reference."""
    nbytes: int = 0
    """The size of the task, for back-pressure."""

    @abstractmethod
    def load(self) -> Task[Any]:
        """Return the task. It can be loaded more than once, until it is released."""

    def release(self) -> None:  # noqa: B027
        """Free the storage of a result. A task that was already loaded stays valid."""

    def discard(self) -> None:
        """Free the storage of a task inside a run, once no worker needs it."""
        self.release()


class LocalTaskRef(TaskRef):
    """A task in this process."""

    __slots__ = ("task",)

    def __init__(self, task: Task[Any]) -> None:
        self.task = task

    def load(self) -> Task[Any]:
        return self.task


@fast_dataclass(frozen=True)
class Machine:
    """What an executor can use: one machine, or all nodes of a cluster added up."""

    cpus: float
    memory_gb: float | None = None
    """None if unknown."""
    gpus: tuple[float | None, ...] = ()
    """The memory of each GPU in GB; None if unknown."""
    nodes: int = 1


@fast_dataclass(slots=True)
class PoolProgress:
    """The state of one worker pool."""

    name: str
    workers: int = 0
    busy: int = 0
    queued: int = 0
    queued_bytes: int = 0


@fast_dataclass
class Progress:
    """A snapshot of a run: the counts of each stage so far, and the state of the pools.

    What earlier attempts did for sources that are kept is included, except in `seconds` and `pools`.
    """

    stages: list[tuple[str, StageStats]] = field(default_factory=list)
    pools: list[PoolProgress] = field(default_factory=list)
    sources_seen: int = 0
    sources_done: int = 0
    listing_done: bool = False
    seconds: float = 0.0
    """Since this attempt began."""
    kept: list[tuple[str, StageStats]] = field(default_factory=list)
    """The part of `stages` that earlier attempts did. Empty if there is none."""
    sources_kept: int = 0
    """The part of `sources_done` that earlier attempts did."""
    earlier_seconds: float = 0.0
    """How long those attempts took, as far as is known."""

    @property
    def all_seconds(self) -> float:
        """How long all attempts took."""
        return self.seconds + self.earlier_seconds

    @property
    def attempt_stages(self) -> list[tuple[str, StageStats]]:
        """What this attempt has done."""
        if not self.kept:
            return self.stages
        done = [(name, stats.copy()) for name, stats in self.stages]
        for (_, stats), (_, before) in zip(done, self.kept, strict=True):
            stats.subtract(before)
        return done

    @property
    def rows_read(self) -> int:
        return rows_read(stats for _, stats in self.stages)


def rows_read(stages: Iterable[StageStats]) -> int:
    """The rows that entered the pipeline, as the base of the error rate.

    That is what the first stage with rows received (or produced, if it is a reader). If a later stage turns one row
    into many and fails on some of them, the number is raised so that failures / rows_read is the stage's failure rate.
    """
    first, failed, rate = 0, 0, 0.0
    for stats in stages:
        rows = stats.rows_in or stats.rows_out + stats.quarantined
        first = first or rows
        if stats.quarantined and rows:
            failed, rate = failed + stats.quarantined, rate + stats.quarantined / rows
    return max(first, round(failed / rate)) if rate else first


class Observer:
    """Is called at a few named moments of a run. Override what you need; by default nothing happens."""

    def noticed(self, message: str) -> None:
        """Something that the user should know before the run begins, in a sentence without a full stop."""

    def started(self, plan: Plan) -> None:
        """The run begins."""

    def progressed(self, progress: Progress) -> None:
        """Called a few times per second."""

    def finished(self, progress: Progress) -> None:
        """Called once at the end, also after a failure."""


class SilentObserver(Observer):
    """An observer that shows nothing."""


class ReportWriter(ABC):
    """Collects what a report needs during the run and writes the report at the end."""

    def update(self, progress: Progress) -> None:  # noqa: B027
        """Called a few times per second."""

    @abstractmethod
    def write(self, plan: Plan, run: Run, progress: Progress, error: BaseException | None) -> None:
        """Write the report. `error` is what ended the run, if it failed."""


@fast_dataclass(frozen=True)
class Job:
    """One segment of a run, as an executor receives it. Each source is a list of tasks that have their ids."""

    plan: Plan
    sources: Iterator[Sequence[Task[Any]]]
    observer: Observer
    quarantine: Quarantine
    scratch: str | None = None
    """A local directory for temporary files; None for the system's."""
    batch: bool = False
    """Each group starts when all groups before it have finished, instead of processing their outputs as they come."""


MODES = ("streaming", "batch")


def is_batch_mode(executor: str, mode: object) -> bool:
    """Whether an executor's `execution_mode` is batch."""
    if mode not in MODES:
        hint = did_you_mean(str(mode), MODES)
        raise PlanError(f"{executor}(execution_mode={mode!r}): must be {' or '.join(map(repr, MODES))}.{hint}")
    return mode == "batch"


class Executor(ABC):
    """Where a pipeline runs. Subclasses implement `check` and `execute`; everything else has a default.

    `tests/conformance` runs every executor of the package through the same tests.
    """

    fuse: bool = True
    """Whether neighbouring stages share a worker, so that rows pass between them without being pickled."""

    show_progress: bool = True
    """Whether `Pipeline.run` shows progress when no observer is given."""

    progress_interval: float | None = None
    """Seconds between two progress lines where output is not a terminal; None for the default."""

    runs_inline: bool = False
    """Whether everything runs in the calling process, one call at a time."""

    @abstractmethod
    def check(self, plan: Plan) -> None:
        """Raise a ResourceError if the plan can never run here."""

    @abstractmethod
    def execute(self, job: Job) -> Iterator[tuple[Lineage, TaskRef | None]]:
        """Run one segment. Yield each task that leaves the last stage, by reference, as it leaves; and, with None as
        the reference, the lineage of each source that is finished.

        The order is free. All workers must have stopped before the iterator ends, raises or is closed.
        """

    def machine(self) -> Machine | None:
        """The resources that plans and estimates can count on; None if unknown, which plans treat as no GPU.

        An executor for a cluster may connect to it here.
        """
        return None

    def arrange(self, plan: Plan) -> Plan:
        """The plan, with stages grouped as this executor runs them. Called once per segment, after `check`."""
        return plan

    def end_run(self) -> None:  # noqa: B027
        """Close what was kept from one segment for the next. Called once per run, also after a failure."""

    def show_engine_logs(self) -> None:  # noqa: B027
        """Print the log of the underlying engine, for `gristmill run -v`. Called before the run."""


_defaults: dict[str, Callable[..., Any]] = {"observer": SilentObserver}


def set_default(name: str, factory: Callable[..., Any]) -> None:
    """Register what `Pipeline.run` uses when an argument is left out. Called by the package root at import."""
    _defaults[name] = factory


def default_side_outputs(
    rejected: str | None, scores: str | None, storage_options: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    """The stages that write rejected rows and scores (None where no directory is given), and the one that commits."""
    stages: tuple[Any, Any, Any] = _defaults["side_outputs"](rejected, scores, storage_options)
    return stages


def default_format_stages(name: str) -> tuple[Any, Any]:
    """The reader and the writer of a format, "jsonl" or "parquet": two composite stages."""
    stages: tuple[Any, Any] = _defaults["format"](name)
    return stages


def default_text_embedder(model: Any, **parameters: Any) -> Any:
    """The stage that embeds text with a model."""
    return _defaults["text_embedder"](model, **parameters)


def default_executor() -> Executor:
    executor: Executor = _defaults["executor"]()
    return executor


def default_reporter(store: RecordStore) -> ReportWriter | None:
    """What writes the report of a run."""
    factory = _defaults.get("reporter")
    return factory(store) if factory else None


def default_observer(executor: Executor | None = None) -> Observer:
    """The progress display, as the executor's `show_progress` and `progress_interval` ask for."""
    if executor is not None and not executor.show_progress:
        return SilentObserver()
    interval = executor.progress_interval if executor is not None else None
    observer: Observer = _defaults["observer"]() if interval is None else _defaults["observer"](interval)
    return observer


def check_is_executor(executor: object) -> None:
    """Refuse anything but an instance of `Executor`."""
    if not isinstance(executor, Executor):
        hint = "Did you forget the parentheses?" if isinstance(executor, type) else "Pass LocalExecutor(), for example."
        raise TypeError(
            f"executor={executor!r} is not an executor. {hint} Your own executor must inherit from "
            "gristmill.core.executor.Executor"
        )
