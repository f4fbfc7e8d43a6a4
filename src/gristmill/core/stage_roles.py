"""Roles: what a stage may do besides turning tasks into tasks.

Most stages need none of this. A stage takes on a role by inheriting it: `class W(ProcessingStage[...], WriterRole)`.
The framework asks with `isinstance`. Every method has a default, so a stage writes only those that it needs.

    PlanningRole      answers the planner: the files that it reads, the columns that it will return
    ScoringRole       adds columns of scores
    MainColumnRole    names the column that it works on above all
    ReportingRole     turns its counters into what users see, and warns
    LookAheadRole     knows the stages that come after it in its worker
    LastingRecordsRole  keeps records of its own with those of the run
    EndpointRole      asks a service that costs money
    WholeInputRole    a failure concerns its whole input, so no record can be set aside for it
      GatherRole      receives all tasks of a source as one (`MergingStage` makes fewer of them)
    RunStateRole      keeps directories or state for the time of a run
      OutputRole      owns an output directory
        WriterRole    writes rows
        CommitRole    puts files in place for good: what it has committed is not done again

All methods here but that of `LookAheadRole` are called in the driver, none of them per task.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from gristmill.core.errors import PlanError
from gristmill.core.stage import In, Out, ProcessingStage
from gristmill.core.task import GatherTask, Task, WrittenFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from gristmill.core.stage import Answer, SourceStage
    from gristmill.core.task import WrittenFile

Directory: TypeAlias = "tuple[str, Mapping[str, Any]]"
"""The URL of a directory, and the storage options for it."""

RecordsLocation: TypeAlias = "Directory | None"


@dataclass(frozen=True, slots=True)
class EndpointForecast:
    """What a stage will ask of a service, as far as that is known."""

    model: str
    requests: int
    prompt_tokens: int
    answer_tokens: int
    """As many as answers had so far, or else at most."""
    at_most: bool = True
    """Whether `answer_tokens`, and so the cost, is a limit and not what is expected."""
    cost: float | None = None
    seconds: float | None = None


class PlanningRole:
    """Takes part in planning, before anything runs."""

    def default_source(self) -> SourceStage[Any] | None:
        """The stage that lists the input if this one is the first of a pipeline; None: it gets one empty task."""
        return None

    def input_files(self) -> Sequence[str]:
        """The files that the stage reads, as far as they are known."""
        return ()

    def peek_columns(self, sample: Task[Any]) -> Mapping[str, pa.DataType] | None:
        """The columns that `process(sample)` would return, at little cost; None if that is not known."""
        return None

    def plan_notes(self) -> Sequence[str]:
        """Lines to show under the stage when a plan is printed."""
        return ()

    def set_input_bytes(self, nbytes: int | None) -> None:
        """How many bytes the pipeline reads, if that is known."""


class ScoringRole:
    """Adds columns of scores without dropping rows by them."""

    def recorded(self) -> list[str]:
        """The names of these columns, for `scores=`."""
        return []


class MainColumnRole:
    """Works on one column above all. The length of its values is recorded with the scores of each row."""

    @property
    def main_column(self) -> str | None:
        """The name of this column; None: there are several, or it is that of the batch class."""
        return None


class ReportingRole:
    """Has a say in what a run reports. Called once per run, after it ended."""

    warning_topic: ClassVar[str] = ""
    """What `run_warning` is about. Of several stages with the same topic, only the first one warns."""

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        """The counters to show, from the sums over all workers."""
        return counts

    def check_run(self, stats: Any) -> None:
        """Raise an error if the run must not end well, from the `StageStats` of the stage. Called before the output is
        completed, and the counts are those of `count`."""

    def run_warning(self, stats: Any) -> str | None:
        """A warning for the user after a run that succeeded, from the `StageStats` of the stage."""
        return None


class LookAheadRole:
    """Does work in one go that stages after it in the same worker would otherwise do again."""

    def see_later_stages(self, stages: Sequence[ProcessingStage[Any, Any]]) -> None:
        """In the worker, before `setup`: the stages that come after this one there. What a stage returns must not
        depend on them: the same stages may run in other workers."""


class LastingRecordsRole:
    """Keeps records of its own with those of the run, from one attempt to the next."""

    def assign_records(self, url: str, storage_options: Mapping[str, Any], attempt: str, run: str) -> None:
        """Before the first task of each attempt: the directory of the records, "" if the run has none, the name of the
        attempt, and that of the run, which its attempts share."""


class EndpointRole:
    """Asks a service that costs money or much time."""

    def dry_copy(self, recorder: Any = None) -> Any:
        """A copy that asks nobody: it counts what it would ask, tells the `recorder`, and makes up the answers."""
        raise NotImplementedError

    def foresee(self, counts: Mapping[str, float], scale: float) -> EndpointForecast:
        """What a run will ask, from what a dry copy has counted over a part of the input."""
        raise NotImplementedError


class WholeInputRole:
    """What it is given makes sense only as a whole. If the stage fails the run stops, since there is no single record
    to set aside. Records that the stage sets aside itself go to quarantine as usual."""


class GatherRole(WholeInputRole):
    """Receives all tasks that descend from one source as one `GatherTask`."""


class RunStateRole:
    """Keeps directories or other state for the time of a run."""

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        """First call of a run that has several segments. `url` is a directory for what the stage keeps until the run is
        over, `lasting` one for what users will want to look at, if there is any."""

    def see_pipeline(self, stages: Sequence[ProcessingStage[Any, Any]]) -> None:
        """After `assign_directories`: all stages of the pipeline."""

    def prepare_run(self, memory: dict[str, Any]) -> None:
        """Before the first task. What it puts into `memory` is there again when the run is resumed with the same
        `run_dir`."""

    def remove_temporary_files(self) -> None:
        """The run is over and had no directory of its own: remove what was kept for it."""


class OutputRole(RunStateRole):
    """Owns a directory of the output."""

    def output_directory(self) -> str | None:
        """The directory that the stage writes to. No other stage may read from it or write to it."""
        return None


class WriterRole(OutputRole):
    """Writes rows. Previews stop before it."""


class CommitRole(OutputRole):
    """Puts output in place for good, so that a source which is done need not be done again."""

    def has_files(self, files: Sequence[WrittenFile]) -> bool:
        """Whether files that an earlier run has committed are still there."""
        return True

    def discard_files(self, files: Sequence[WrittenFile]) -> None:
        """Remove files that an earlier run committed for a source that is about to be done again."""

    def keeps_removed(self) -> bool:
        """Whether the output of sources that are no longer in the input is kept, and counts."""
        return True

    def records_directories(self) -> Sequence[Directory]:
        """The directories beside the outputs, for their manifests. The first is for the records of a run without a
        `run_dir`."""
        return ()

    def check_shards(self) -> None:
        """Raise a PlanError if the output cannot be written by several runs, each with a part of the input."""
        raise PlanError(f"stage {self.name!r} cannot write its output as one shard of several")  # type: ignore[attr-defined]

    def temporary_directory(self) -> RecordsLocation:
        """A directory for temporary files of this run. A later run removes it if this one is killed."""
        return None

    def join_outputs(self, outputs: Sequence[WrittenFiles]) -> Sequence[WrittenFiles]:
        """Before `complete`, in the last segment: the outputs after files of several sources were joined into one.
        `outputs_recorded` follows, so that what was joined is kept until the ledger has the new files."""
        return outputs

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> Sequence[WrittenFiles] | None:
        """The segment that ends with this stage has succeeded; `outputs` is all that it has committed. Returns them as
        they are now, in the same order, if this has changed files; else they or None."""
        return None

    def outputs_recorded(self) -> None:
        """What the last `join_outputs` or `complete` has returned is in the ledger."""

    def segments_to_repeat(self) -> int:
        """After `complete`: how many segments, up to this one, run again before the next. For work in rounds whose
        number is not known before."""
        return 0


class CommitStage(ProcessingStage[GatherTask, WrittenFiles], GatherRole, CommitRole):
    """The last stage of a writer: commits what was written for one source."""


class MergingStage(ProcessingStage[In, Out], GatherRole):
    """Turns several tasks of one source into fewer, or into any number.

    `merge` gets the tasks of a source (a file, or a partition of an exchange) in order: all of them, or `merge_size` at
    a time. They never depend on which worker was free, and a source is still committed, retried and resumed as a whole.
    Tasks of different sources meet only after an exchange such as `Repartition`.
    """

    is_base: ClassVar[bool] = True

    merge_size: ClassVar[int | None] = None
    """How many tasks are merged at a time; None: all tasks of a source."""

    @abstractmethod
    def merge(self, tasks: Sequence[In]) -> Answer[Out]:
        """One answer for all these tasks: a task, several, or None to drop them."""

    def process(self, task: In) -> Iterator[Out]:
        tasks: Sequence[Any] = task.data if isinstance(task, GatherTask) else [task]
        size = self.merge_size or len(tasks)
        for start in range(0, len(tasks), size):
            answer = self.merge(tasks[start : start + size])
            yield from (answer,) if isinstance(answer, Task) else answer or ()


def output_directory_of(stage: ProcessingStage[Any, Any]) -> str | None:
    """The directory that a stage writes to, if there is one."""
    return stage.output_directory() if isinstance(stage, OutputRole) else None


def can_set_records_aside(stage: ProcessingStage[Any, Any]) -> bool:
    """Whether a failure of the stage may be the fault of a single record."""
    return not isinstance(stage, WholeInputRole | WriterRole | CommitRole)
