"""ProcessingStage: one step of a pipeline.

Write `process(task)`; it may return a task, several (a list, or a generator that streams them) or None to
drop it. Write `process_batch(tasks)` instead to work on several tasks at once: it returns one such answer
per input, so that the framework always knows which output came from which input.

A stage that does more than turn tasks into tasks (one that plans, writes, commits, gathers or warns) also inherits the
roles that it takes on from `core/stage_roles.py`. One that keeps or drops rows is a `DecidingStage`
(`core/deciding_stage.py`).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from gristmill.core.curator.stage_calls import StageCalls, own_part_names, take_specs
from gristmill.core.errors import BadRecordError, ContractError, PlanError, did_you_mean
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.resources import Resources
from gristmill.core.task import EmptyTask, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

In = TypeVar("In", bound=Task[Any])
Out = TypeVar("Out", bound=Task[Any])
Answer: TypeAlias = "Out | Iterable[Out] | None"
Columns: TypeAlias = "list[str] | dict[str, str]"

SETTINGS = (
    "name", "resources", "batch_size", "runtime_env", "num_workers", "timeout_s", "max_retries", "max_tasks_per_worker"
)  # fmt: skip
"""What `with_` changes and a subclass may set as class attributes."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The machine that `setup_on_node` runs on."""

    node_id: str = "local"


@dataclass(frozen=True, slots=True)
class WorkerMetadata:
    """The worker that a stage is set up in."""

    worker_id: str = "0"
    node: NodeInfo = field(default_factory=NodeInfo)
    gpus: tuple[int, ...] = ()


@fast_dataclass(frozen=True, slots=True)
class PlannedStage:
    """What the planner, `Route` and the pipeline have noted on a stage. Authors of stages never set it."""

    branch: str = ""
    """The branch of a `Route` that the stage is on. Tasks of other branches skip the stage."""
    part_of: str = ""
    """The composite stage that users see in place of this one, if it is one of its parts."""
    summarised: bool = False
    """Whether rows that pass are sampled for the report."""
    columns: tuple[str, ...] = ()
    """Columns of `inputs()` that the planner found in the input. Files and blocks differ in which columns they have: a
    column that was found is null in a block that lacks it."""
    not_text: tuple[str, ...] = ()
    """Those of `columns` that hold no text."""


@fast_dataclass(slots=True)
class StageReport:
    """What a stage has counted and set aside since its worker last asked."""

    counters: dict[str, float] = field(default_factory=dict)
    quarantined: list[dict[str, Any]] | None = None
    """Where `set_aside` puts records; None where nobody collects them, so that `set_aside` raises."""


class ProcessingStage(StageCalls, Generic[In, Out]):
    """One step of a pipeline. Constructors must have no side effects: stages are built to be planned."""

    name: str = "ProcessingStage"
    resources: Resources = Resources(cpus=1.0)
    batch_size: int = 1
    runtime_env: dict[str, Any] | None = None
    num_workers: int | None = None
    timeout_s: float | None = None
    max_retries: int = 2
    max_tasks_per_worker: int | None = None
    """A worker is torn down and replaced after this many tasks: for libraries that leak memory."""

    takes_empty: ClassVar[bool] = False
    """True: the stage is also given batches without rows. They skip other stages, and still reach the writer, which
    needs their columns: the output must not depend on how rows were cut into batches."""

    not_identity: ClassVar[tuple[str, ...]] = ()
    """Attributes that change how the stage runs and not what it returns. A run may be resumed with other values."""

    _catalogue_kind: ClassVar[str] = "stage"  # how `gristmill stages` lists the class: reader, writer or stage
    _planned: PlannedStage = PlannedStage()
    _report: StageReport | None = None  # created when first used: a subclass need not call super().__init__()
    _own_name: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            cls._own_name = True
        elif not cls._own_name:
            cls.name = cls.__name__

    # -- what a stage author writes ------------------------------------------------------------------

    def process(self, task: In) -> Answer[Out]:
        """The output of one task: a task, several, or None to drop it."""
        answers = self.process_batch([task])
        return answers[0]

    def process_batch(self, tasks: Sequence[In]) -> Sequence[Answer[Out]]:
        """One answer per task, in the order of the tasks."""
        return [self.process(task) for task in tasks]

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        """Once per machine, before its first worker starts: fetch weights, fill caches."""

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Once per worker: load the model, open clients. Import heavy libraries here."""

    def teardown(self) -> None:
        """Once per worker at its end, also after a failure."""

    def inputs(self) -> tuple[list[str], Columns]:
        """Attributes of the task and columns that the stage needs; `{"text": "string"}` also says the type."""
        return [], []

    def outputs(self) -> tuple[list[str], Columns]:
        """Attributes and columns that the stage adds."""
        return [], []

    def check(self) -> None:
        """Called while planning. Raise a PlanError if the stage is bound to fail: missing paths, bad parameters."""

    # -- for users of a stage --------------------------------------------------------------------------

    def with_(self, **settings: Any) -> Self:
        """A copy with other settings: name, resources, batch_size, runtime_env, num_workers, timeout_s, max_retries,
        max_tasks_per_worker."""
        other = copy.copy(self)
        for key, value in take_specs(other, settings).items():
            if key not in SETTINGS:
                raise TypeError(
                    f"{self.name}.with_({key}=...): no such setting.{did_you_mean(key, SETTINGS)} "
                    f"There are: {', '.join(SETTINGS)}. What a stage computes is set in its constructor"
                )
            setattr(other, key, value)
        check_settings(other)
        return other

    # -- called from process ---------------------------------------------------------------------------

    def count(self, name: str, value: float = 1) -> None:
        """Add to a counter of the stage, shown in the summary: `self.count("bad_records")`."""
        counters = report_of(self).counters
        counters[name] = counters.get(name, 0) + value

    def set_aside(
        self,
        error: str | BaseException,
        *,
        row: Any = None,
        content: str | None = None,
        file: str | None = None,
        position: int | None = None,
        records: int = 1,
    ) -> None:
        """Put a record that cannot be used into quarantine, and go on without it. `content` is for one that is not a
        row, `position` is where it is in the file. In a run with `on_error="raise"` this raises."""
        if not isinstance(error, str):
            error = f"{type(error).__name__}: {error}"
        if row is not None and not isinstance(row, dict):
            row, content = None, str(row)
        quarantined = report_of(self).quarantined
        if quarantined is None:
            where = f"{file}, at {position:,}: " if file and position is not None else ""
            raise BadRecordError(f"{where}{error}")
        quarantined.append(
            {"error": error, "row": row, "content": content, "file": file, "position": position, "records": records}
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class SourceStage(ProcessingStage[EmptyTask, Out]):
    """A first stage that lists the input, such as files. It runs in the driver, so it must be light."""

    continues: ClassVar[bool] = False
    """True: it lists what the stages before it have written, and starts a new segment of the pipeline."""

    def input_bytes(self) -> int | None:
        """How many bytes there are to read, if that is known."""
        return None

    def keep_shard(self, number: int, count: int) -> Sequence[str]:
        """Keep only the sources `number`, `number + count` ... of those there are; called before `sources`. Returns the
        names of all sources."""
        raise PlanError(f"stage {self.name!r} cannot be divided into shards: {type(self).__name__} has no keep_shard")

    @abstractmethod
    def sources(self) -> Iterator[Sequence[Out]]:
        """Each element is one source, the unit that is committed: the tasks that make it up, in order."""

    def process(self, task: EmptyTask) -> Iterator[Out]:
        for source in self.sources():
            yield from source


class CompositeStage(ProcessingStage[In, Out]):
    """A stage made of stages; they may be composites too."""

    folds: ClassVar[bool] = False
    """True: users see one stage, with the counts of its parts, and not the parts."""

    _changes: tuple[Mapping[str, Mapping[str, Any]], ...] = ()

    @abstractmethod
    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        """The stages that do the work, in order."""

    def with_(self, stages: Mapping[str, Mapping[str, Any]] | None = None, /, **settings: Mapping[str, Any]) -> Self:
        """A copy with other settings for its sub-stages: `reader.with_({"read_jsonl": {"batch_size": 4}})`."""
        names = [stage.name for stage in self.stages()]
        changes = own_part_names({**(stages or {}), **settings}, names)
        for name, change in changes.items():
            if name in SETTINGS or not isinstance(change, dict):
                raise TypeError(
                    f"{self.name} is made of {', '.join(names)}: say which one is meant, for example "
                    f'.with_({{"{names[-1]}": {{"{name}": ...}}}})'
                )
            if names.count(name) != 1:
                raise TypeError(f"{self.name} has no single sub-stage {name!r}.{did_you_mean(name, names)}")
        other = copy.copy(self)
        other._changes = (*self._changes, changes)
        other.stages()  # an unknown setting is an error here, not at run time
        return other

    def stages(self) -> list[ProcessingStage[Any, Any]]:
        """The sub-stages with the settings of `with_` applied."""
        parts = list(self.decompose())
        for changes in self._changes:
            parts = [
                part.with_(changes[part.name])
                if isinstance(part, CompositeStage) and part.name in changes
                else part.with_(**changes.get(part.name, {}))
                if part.name in changes
                else part
                for part in parts
            ]
        return parts

    def process(self, task: In) -> Answer[Out]:
        """Pass a task through the parts, in this process: for calls by hand. Pipelines run the parts themselves."""
        from gristmill.core.curator.call_composite import process_directly

        answer: Answer[Out] = process_directly(self, task)
        return answer

    def inputs(self) -> tuple[list[str], Columns]:
        return self.decompose()[0].inputs()

    def outputs(self) -> tuple[list[str], Columns]:
        return self.decompose()[-1].outputs()


def report_of(stage: ProcessingStage[Any, Any]) -> StageReport:
    """What the stage has counted and set aside."""
    if stage._report is None:
        stage._report = StageReport()
    return stage._report


def take_counts(stage: ProcessingStage[Any, Any]) -> dict[str, float]:
    """The counters of a stage since the last call."""
    report = report_of(stage)
    counters, report.counters = report.counters, {}
    return counters


def share_report(stage: ProcessingStage[Any, Any], inner: ProcessingStage[Any, Any]) -> None:
    """What `inner` counts and sets aside while it works for `stage` is reported by `stage`."""
    inner._report = report_of(stage)


def check_settings(stage: ProcessingStage[Any, Any]) -> None:
    """Raise when a setting of the stage has the wrong type or range."""
    rules: list[tuple[str, bool, str]] = [
        ("name", isinstance(stage.name, str) and bool(stage.name), "a name that is not empty"),
        ("resources", isinstance(stage.resources, Resources), "a Resources object"),
        ("batch_size", _is_int(stage.batch_size) and stage.batch_size >= 1, "a whole number, 1 or more"),
        ("num_workers", _is_count(worker_count(stage)), "a whole number, 1 or more, or None"),
        ("timeout_s", _is_seconds(stage.timeout_s), "seconds above 0, or None"),
        ("runtime_env", isinstance(stage.runtime_env, dict | None), "a dict, or None"),
        ("max_retries", _is_int(stage.max_retries) and stage.max_retries >= 0, "a whole number, 0 or more"),
        ("max_tasks_per_worker", _is_count(stage.max_tasks_per_worker), "a whole number, 1 or more, or None"),
    ]
    for key, valid, wanted in rules:
        if not valid:
            raise ContractError(f"stage {stage.name!r}: {key} is {getattr(stage, key)!r}, must be {wanted}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_seconds(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0)


def worker_count(stage: ProcessingStage[Any, Any]) -> int | None:
    """The fixed number of workers that a stage asks for. Stages written for other systems have it as a method."""
    wanted = stage.num_workers
    return wanted() if callable(wanted) else wanted


def _is_count(value: Any) -> bool:
    return value is None or (_is_int(value) and value >= 1)


def implements(stage: ProcessingStage[Any, Any], method: str) -> bool:
    """Whether the stage's class overrides a method of ProcessingStage."""
    return getattr(type(stage), method) is not getattr(ProcessingStage, method)


def copies_for_this_process(stages: Sequence[ProcessingStage[Any, Any]]) -> list[ProcessingStage[Any, Any]]:
    """Copies of stages to run in the user's own process: what they set up must not end up in the user's objects."""
    try:
        return copy.deepcopy(list(stages))
    except Exception:  # noqa: BLE001  a stage may hold something that cannot be copied, such as a lock
        return [copy.copy(stage) for stage in stages]
