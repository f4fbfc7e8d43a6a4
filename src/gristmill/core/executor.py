"""Executor: where a plan runs. The protocol, and what passes through it.

An executor is thin: it starts workers, moves tasks by reference, replaces the dead and yields what leaves
the last stage. What to run next is decided in `flow.py` and `schedule.py`, how to run it in `worker.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from gristmill.core.errors import PlanError, did_you_mean
from gristmill.core.fast_dataclass import fast_dataclass

if TYPE_CHECKING:
    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.quarantine import Quarantine
    from gristmill.core.records.record_store import RecordStore
    from gristmill.core.records.run_directory import Run
    from gristmill.core.run.stage_stats import StageStats
    from gristmill.core.task import Lineage, Task


class TaskRef(Protocol):
    """A task that lives somewhere: in this process, in shared memory, in an object store."""

    def load(self) -> Task[Any]: ...

    def release(self) -> None:
        """Give up what it holds. A task that was loaded stays as it is."""


class LocalTaskRef:
    """A task in this process."""

    __slots__ = ("task",)

    def __init__(self, task: Task[Any]) -> None:
        self.task = task

    def load(self) -> Task[Any]:
        return self.task

    def release(self) -> None: ...


@fast_dataclass(slots=True)
class PoolProgress:
    """The state of one pool of workers, for those who watch."""

    name: str
    workers: int = 0
    busy: int = 0
    queued: int = 0
    queued_bytes: int = 0


@fast_dataclass
class Progress:
    """A look at a run: what each stage has done so far, and how the pools are."""

    stages: list[tuple[str, StageStats]] = field(default_factory=list)
    pools: list[PoolProgress] = field(default_factory=list)
    sources_seen: int = 0
    sources_done: int = 0
    listing_done: bool = False
    seconds: float = 0.0

    @property
    def rows_read(self) -> int:
        return rows_read(stats for _, stats in self.stages)


def rows_read(stages: Iterable[StageStats]) -> int:
    """Rows that the first stage that has to do with rows was given, or else gave or set aside.

    Where a later stage makes many rows of one and fails on some, it is as many as make the share of failures that
    of the rows that the stages were given.
    """
    first, failed, share = 0, 0, 0.0
    for stats in stages:
        rows = stats.rows_in or stats.rows_out + stats.quarantined
        first = first or rows
        if stats.quarantined and rows:
            failed, share = failed + stats.quarantined, share + stats.quarantined / rows
    return max(first, round(failed / share)) if share else first


class Observer(Protocol):
    """Told about a run at a few named moments."""

    def started(self, plan: Plan) -> None: ...

    def progressed(self, progress: Progress) -> None:
        """A few times per second."""

    def finished(self, progress: Progress) -> None:
        """Once, also after a failure."""


class ReportWriter(Protocol):
    """Looks on, and tells about it when the run is over."""

    def update(self, progress: Progress) -> None: ...

    def write(self, plan: Plan, run: Run, progress: Progress, error: BaseException | None) -> None: ...


class SilentObserver:
    """An observer that does nothing."""

    def started(self, plan: Plan) -> None: ...

    def progressed(self, progress: Progress) -> None: ...

    def finished(self, progress: Progress) -> None: ...


@fast_dataclass(frozen=True)
class Job:
    """One run of a plan: what goes in, and who watches. Each source is a list of tasks that were named."""

    plan: Plan
    sources: Iterator[Sequence[Task[Any]]]
    observer: Observer
    quarantine: Quarantine
    scratch: str | None = None
    batch: bool = False
    """Each group waits until all before it have ended, instead of working on what they give as it comes."""


MODES = ("streaming", "batch")


def is_batch_mode(executor: str, mode: object) -> bool:
    """Whether an executor's `execution_mode` is batch."""
    if mode not in MODES:
        hint = did_you_mean(str(mode), MODES)
        raise PlanError(f"{executor}(execution_mode={mode!r}): must be {' or '.join(map(repr, MODES))}.{hint}")
    return mode == "batch"


class Executor(Protocol):
    """The whole contract. `tests/conformance` holds every implementation to it."""

    fuse: bool

    def check(self, plan: Plan) -> None:
        """Raise a ResourceError if the plan can never run here."""

    def execute(self, job: Job) -> Iterator[tuple[Lineage, TaskRef | None]]:
        """Yield each task that leaves the last stage, by reference, as it leaves; and, with no reference, the
        lineage of each source of which nothing is left to do.

        They may come in any order. All workers are stopped before the iterator ends, fails or is closed.
        """


_defaults: dict[str, Callable[..., Any]] = {"observer": SilentObserver}


def set_default(what: str, factory: Callable[..., Any]) -> None:
    """Say what `Pipeline.run` uses when nothing is given. The package's root does, since core imports nothing above."""
    _defaults[what] = factory


def default_side_outputs(
    rejected: str | None, scores: str | None, storage_options: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    """The stages that write rejected rows and scores, where those are wanted, and the one that commits them."""
    stages: tuple[Any, Any, Any] = _defaults["beside"](rejected, scores, storage_options)
    return stages


def default_format_stages(name: str) -> tuple[Any, Any]:
    """What reads files of a format, "jsonl" or "parquet", and what writes them: two composite stages."""
    stages: tuple[Any, Any] = _defaults["format"](name)
    return stages


def default_executor() -> Executor:
    executor: Executor = _defaults["executor"]()
    return executor


def default_reporter(store: RecordStore) -> ReportWriter | None:
    """What writes the report of a run."""
    factory = _defaults.get("reporter")
    return factory(store) if factory else None


def default_observer(executor: Executor | None = None) -> Observer:
    """What shows the progress of a run, as its executor's `show_progress` and `progress_interval` want it, if it has
    any."""
    if not getattr(executor, "show_progress", True):
        return SilentObserver()
    interval: float | None = getattr(executor, "progress_interval", None)
    observer: Observer = _defaults["observer"]() if interval is None else _defaults["observer"](interval)
    return observer
