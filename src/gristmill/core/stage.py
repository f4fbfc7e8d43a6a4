"""ProcessingStage: one step of a pipeline.

Write `process(task)`; it may return a task, several (a list, or a generator that streams them) or None to
drop it. Write `process_batch(tasks)` instead to work on several tasks at once: it returns one such answer
per input, so that the framework always knows which output came from which input.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from gristmill.core.errors import BadRecordError, ContractError, did_you_mean
from gristmill.core.node import NodeInfo as NodeInfo  # noqa: PLC0414  people import it from here
from gristmill.core.node import WorkerMetadata as WorkerMetadata  # noqa: PLC0414
from gristmill.core.resources import Resources
from gristmill.core.task import EmptyTask, Task, WrittenFile, WrittenFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

In = TypeVar("In", bound=Task[Any])
Out = TypeVar("Out", bound=Task[Any])
Answer: TypeAlias = "Out | Iterable[Out] | None"
Columns: TypeAlias = "list[str] | dict[str, str]"
RecordsLocation: TypeAlias = "tuple[str, Mapping[str, Any]] | None"

SETTINGS = (
    "name", "resources", "batch_size", "runtime_env", "num_workers", "timeout_s", "max_retries", "max_tasks_per_worker"
)  # fmt: skip
"""What `with_` changes and a subclass may set as class attributes."""


class ProcessingStage(Generic[In, Out]):
    """One step of a pipeline. Constructors must have no side effects: stages are built to be planned."""

    name: str = "ProcessingStage"
    resources: Resources = Resources(cpus=1.0)
    batch_size: int = 1
    runtime_env: dict[str, Any] | None = None
    num_workers: int | None = None
    timeout_s: float | None = None
    max_retries: int = 2
    max_tasks_per_worker: int | None = None
    """After so many tasks a worker is torn down and replaced by a new one: for libraries that leak."""

    branch: str = ""
    """The branch of a `Route` that the stage is on: tasks of other branches pass it by. Set by `Route`."""

    part_of: str = ""
    """The stage that people know, if this is one of the parts that it is made of. Set by the planner."""

    sketched: bool = False
    """Whether a report will tell of the rows that pass. Set for a run that writes one."""

    gather: ClassVar[bool] = False
    """True: the stage receives, as one `GatherTask`, all tasks that descend from one source."""

    not_identity: ClassVar[tuple[str, ...]] = ()
    """Attributes that change how the stage runs, not what it gives: a run with others of them may be resumed."""

    writes: ClassVar[bool] = False
    """True: the stage writes output, so previews leave it out."""

    durable: ClassVar[bool] = False
    """True: what the stage gives is in place for good, so a source that is done need not be done again."""

    indivisible: ClassVar[bool] = False
    """True: what the stage is given makes sense only as a whole. If it fails on it the run stops, since there is no
    record to set aside; what the stage itself sets aside is in quarantine, as ever."""

    planned_columns: tuple[str, ...] = ()
    """Columns of `inputs` that the plan has found. Set by the planner. Blocks differ in which columns they have, since
    readers cut where they must: what was found is null in a block that lacks it."""

    takes_empty: ClassVar[bool] = False
    """True: the stage is also given batches of which no row is left. Others do not see them, and they pass by,
    because a writer needs to know their columns: the output must not depend on how rows were cut into batches."""

    catalogue_kind: ClassVar[str] = "stage"
    """How `gristmill stages` lists the class: "reader", "writer" or "stage"."""

    warning_topic: ClassVar[str] = ""
    """What `remark` is about, if others would remark the same: of these stages, a run tells what the first one says."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            cls._own_name = True
        elif not cls._own_name:
            cls.name = cls.__name__

    _own_name: ClassVar[bool] = False

    # -- what a stage author writes ------------------------------------------------------------------

    def process(self, task: In) -> Answer[Out]:
        """The output of one task: a task, several, or None to drop it."""
        answers = self.process_batch([task])
        return answers[0]

    def process_batch(self, tasks: Sequence[In]) -> Sequence[Answer[Out]]:
        """One answer per task, in the order of the tasks."""
        return [self.process(task) for task in tasks]

    def setup_on_node(self, node_info: NodeInfo, worker_metadata: WorkerMetadata) -> None:
        """Once per machine, before its first worker starts: fetch weights, fill caches."""

    def setup(self, worker_metadata: WorkerMetadata) -> None:
        """Once per worker: load the model, open clients. Import heavy libraries here."""

    def teardown(self) -> None:
        """Once per worker at its end, also after a failure."""

    def inputs(self) -> tuple[list[str], Columns]:
        """Attributes of the task and columns that the stage needs; `{"text": "string"}` also says the type."""
        return [], []

    def outputs(self) -> tuple[list[str], Columns]:
        """Attributes and columns that the stage adds."""
        return [], []

    # -- what the planner asks, before anything runs -------------------------------------------------

    def check(self) -> None:
        """Raise a PlanError if the stage can be seen to fail: missing paths, impossible parameters."""

    def default_source(self) -> SourceStage[Any] | None:
        """What lists the work of this stage if it is the first of a pipeline; None: it gets one empty task."""
        return None

    def input_files(self) -> Sequence[str]:
        """The files that the stage reads, as far as it knows."""
        return ()

    def output_directory(self) -> str | None:
        """The directory that the stage writes to."""
        return None

    def peek_columns(self, sample: Task[Any]) -> Mapping[str, pa.DataType] | None:
        """The columns that `process(sample)` would give, from a cheap look; None when it cannot tell."""
        return None

    def plan_notes(self) -> Sequence[str]:
        """What a plan should say of the stage: lines."""
        return ()

    def set_input_bytes(self, nbytes: int | None) -> None:
        """How many bytes the pipeline reads, as far as that is known."""

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        """Once per run, in the driver, before `prepare`: a directory for what the stage keeps until the run is over,
        and one for what people will want to look at, with its storage options, if there is any."""

    def see_pipeline(self, stages: Sequence[ProcessingStage[Any, Any]]) -> None:
        """Once per run, in the driver, after `settle`: all stages of the pipeline."""

    def remove_temporary_files(self) -> None:
        """The run is over, and was given no directory of its own: remove what was kept for the rest of it."""

    def prepare_run(self, memory: dict[str, Any]) -> None:
        """Once per run, in the driver, before the first task. What it puts into `memory` is there when a killed
        run is started again with the same `run_dir`."""

    def has_files(self, files: Sequence[WrittenFile]) -> bool:
        """Whether files that an earlier run wrote are still there."""
        return True

    def discard_files(self, files: Sequence[WrittenFile]) -> None:
        """Remove files that an earlier run wrote for a source that is about to be done again."""

    def records_directory(self) -> tuple[str, Mapping[str, Any]] | None:
        """A directory beside the output, with its storage options, for what a run without a directory must not lose."""
        return None

    def temporary_directory(self) -> tuple[str, Mapping[str, Any]] | None:
        """A directory for temporary files of this run, with its storage options, that a later run would sweep."""
        return None

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        """Once per run, in the driver, after all went well, on the last stage of a segment: `outputs` is all that it
        has written."""

    def segments_to_repeat(self) -> int:
        """After `complete`: how many segments run again before the next one, this one among them. For work in rounds
        of which nobody knows before how many there are."""
        return 0

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        """Once per run, in the driver: the counters as people are to see them, from those that all workers counted."""
        return counts

    def run_warning(self, stats: Any) -> str | None:
        """Once per run, in the driver, after all went well: what the user should know, from the stage's counts."""
        return None

    # -- for users of a stage --------------------------------------------------------------------------

    def with_(self, **settings: Any) -> Self:
        """A copy with other settings: name, resources, batch_size, runtime_env, num_workers, timeout_s, max_retries,
        max_tasks_per_worker."""
        other = copy.copy(self)
        for key, value in settings.items():
            if key not in SETTINGS:
                raise TypeError(
                    f"{self.name}.with_({key}=...): no such setting.{did_you_mean(key, SETTINGS)} "
                    f"There are: {', '.join(SETTINGS)}. What a stage computes is set in its constructor"
                )
            setattr(other, key, value)
        check_settings(other)
        return other

    def count(self, name: str, value: float = 1) -> None:
        """Add to a counter of the stage, shown in the summary: `self.count("bad_records")`."""
        counters = self.__dict__.setdefault("_counters", {})
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
        """Put a record that cannot be used into quarantine, and go on without it. `content` is for one that is no
        row, `position` its place in the file. In a run with `on_error="raise"` it raises."""
        if not isinstance(error, str):
            error = f"{type(error).__name__}: {error}"
        if row is not None and not isinstance(row, dict):
            row, content = None, str(row)
        aside = self.__dict__.get("_aside")
        if aside is None:
            where = f"{file}, at {position:,}: " if file and position is not None else ""
            raise BadRecordError(f"{where}{error}")
        aside.append(
            {"error": error, "row": row, "content": content, "file": file, "position": position, "records": records}
        )

    def take_counts(self) -> dict[str, float]:
        """The counters since the last call. For the worker."""
        counts: dict[str, float] = self.__dict__.pop("_counters", {})
        return counts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class SourceStage(ProcessingStage[EmptyTask, Out]):
    """A first stage that lists work, such as files. It runs in the driver, so it must be light."""

    continues: ClassVar[bool] = False
    """True: it lists what the stages before it have written, and begins a new segment of the pipeline."""

    def input_bytes(self) -> int | None:
        """How many bytes there are to read, if that is known."""
        return None

    @abstractmethod
    def sources(self) -> Iterator[Sequence[Out]]:
        """Each element is one source, the unit that is committed: the tasks that make it up, in order."""

    def process(self, task: EmptyTask) -> Iterator[Out]:
        for source in self.sources():
            yield from source


class CompositeStage(ProcessingStage[In, Out]):
    """A stage made of stages; they may be composites too."""

    folds: ClassVar[bool] = False
    """True: people are shown one stage, with the counts of its parts, and not the parts."""

    @abstractmethod
    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        """The stages that do the work, in order."""

    def with_(self, stages: Mapping[str, Mapping[str, Any]] | None = None, /, **settings: Mapping[str, Any]) -> Self:
        """A copy with other settings for its sub-stages: `reader.with_({"read_jsonl": {"batch_size": 4}})`."""
        changes = {**(stages or {}), **settings}
        names = [stage.name for stage in self.stages()]
        for name, change in changes.items():
            if name in SETTINGS or not isinstance(change, dict):
                raise TypeError(
                    f"{self.name} is made of {', '.join(names)}: say which one is meant, for example "
                    f'.with_({{"{names[-1]}": {{"{name}": ...}}}})'
                )
            if names.count(name) != 1:
                raise TypeError(f"{self.name} has no single sub-stage {name!r}.{did_you_mean(name, names)}")
        other = copy.copy(self)
        other.__dict__["_changes"] = [*self.__dict__.get("_changes", []), changes]
        other.stages()  # an unknown setting is an error here, not at run time
        return other

    def stages(self) -> list[ProcessingStage[Any, Any]]:
        """The sub-stages with the settings of `with_` applied."""
        parts = list(self.decompose())
        for changes in self.__dict__.get("_changes", []):
            parts = [
                part.with_(changes[part.name])
                if isinstance(part, CompositeStage) and part.name in changes
                else part.with_(**changes.get(part.name, {}))
                if part.name in changes
                else part
                for part in parts
            ]
        return parts

    def inputs(self) -> tuple[list[str], Columns]:
        return self.decompose()[0].inputs()

    def outputs(self) -> tuple[list[str], Columns]:
        return self.decompose()[-1].outputs()


def with_default_source(stages: list[ProcessingStage[Any, Any]], tasks: object) -> list[ProcessingStage[Any, Any]]:
    """The stages of a pipeline after what lists the work of the first, if it has that and was given no tasks."""
    lead = stages[0].default_source() if stages and tasks is None else None
    return stages if lead is None else [lead, *stages]


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
    """The fixed number of workers that a stage asks for; stages of other systems write it as a method."""
    wanted = stage.num_workers
    return wanted() if callable(wanted) else wanted


def _is_count(value: Any) -> bool:
    return value is None or (_is_int(value) and value >= 1)


def implements(stage: ProcessingStage[Any, Any], method: str) -> bool:
    """Whether the stage's class overrides a method of ProcessingStage."""
    return getattr(type(stage), method) is not getattr(ProcessingStage, method)


def copies_for_this_process(stages: Sequence[ProcessingStage[Any, Any]]) -> list[ProcessingStage[Any, Any]]:
    """Stages to run in the user's own process, so that what they set up does not end up in the user's objects."""
    try:
        return copy.deepcopy(list(stages))
    except Exception:  # noqa: BLE001  a stage may hold what cannot be copied, such as a lock
        return [copy.copy(stage) for stage in stages]
