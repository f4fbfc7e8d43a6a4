"""Run a group of fused stages, in the same way on every executor.

A worker sets up its stages, passes each task through all of them within one process, gives output tasks their ids,
counts rows, bytes and seconds, raises errors that name stage, task and file, and tears the stages down, also after a
failure. Processes, queues and retries are up to the executor, which supplies tasks and a callback for the output.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import count, filterfalse, islice
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from gristmill.core.batch import Batch
from gristmill.core.deciding_stage import DecidingStage, Decision
from gristmill.core.errors import (
    AnswerCountError,
    DownloadError,
    GristmillError,
    OutputError,
    StageError,
    describe_error,
)
from gristmill.core.records.rejected_rows import materialise_answer
from gristmill.core.records.row_summary import RowSummariser
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run.isolation import Isolator, task_number
from gristmill.core.run.user_interrupts import is_interrupt
from gristmill.core.secret_values import remember_secrets
from gristmill.core.stage import Answer, ProcessingStage, WorkerMetadata, implements, report_of, take_counts
from gristmill.core.stage_roles import GatherRole, LookAheadRole, WriterRole
from gristmill.core.task import GatherTask, Task

if TYPE_CHECKING:
    from gristmill.core.records.quarantine import ErrorBudget, QuarantinedRecord
    from gristmill.core.records.rejected_rows import RejectedRowRecorder
    from gristmill.core.records.row_scores import ScoreRecorder
    from gristmill.core.task import Lineage

_END = object()
_LISTS = (list, tuple)  # for hot paths, where `list | tuple` would be built on every check


Emit = Callable[[Task[Any], int], None]
"""Receives a task that leaves the worker, and the position of the stage it goes to next."""


def never_share() -> bool:
    return False


def no_emit(task: Task[Any], position: int) -> None:
    raise AssertionError(f"task {task.id} left early, before stage {position}, though sharing is off")


class ActivityRecorder(Protocol):
    """Records what a worker is doing, readable by the driver after the worker has died."""

    def enter(self, position: int, task: int = 0, start: int = 0, stop: int = 0) -> None:
        """Rows `start` to `stop` of a task are passed to the stage at a position."""

    def leave(self) -> None: ...


class Worker:
    """Runs one group of stages."""

    def __init__(
        self,
        stages: Sequence[ProcessingStage[Any, Any]],
        metadata: WorkerMetadata | None = None,
        activity: ActivityRecorder | None = None,
        final: bool = False,
        budget: ErrorBudget | None = None,
        side_output_recorder: RejectedRowRecorder | None = None,
    ) -> None:
        """With an error `budget`, records that a stage fails on are quarantined; otherwise failures raise."""
        self.stages = list(stages)
        self.process = os.getpid()
        remember_secrets(self.stages)
        self.metadata = metadata or WorkerMetadata()
        self.activity = activity
        self.final = final
        self._stats_by_source: dict[str, list[StageStats]] = {}
        self._settled: dict[tuple[str, int], int] = {}
        """By source and stage, the rows that did not come out when the stage last had an answer for all of them."""
        self._counting: list[str | None] = [None for _ in self.stages]
        """For each stage, the source whose task it was called with last."""
        self._counted: list[dict[str, float]] = [{} for _ in self.stages]
        """The counters of each stage when that source began."""
        self.isolator = Isolator(self, budget) if budget is not None else None
        self.side_output_recorder = side_output_recorder
        self.score_recorder = side_output_recorder.scores if side_output_recorder else None
        self.summariser = RowSummariser([stage._planned.summarised for stage in self.stages])
        self.task_number = lru_cache(1)(task_number)
        gathering = (position for position, stage in enumerate(self.stages) if isinstance(stage, GatherRole))
        self.ends = {len(self.stages), *gathering}
        """Positions at which tasks leave: the end, and stages that gather the tasks of a source."""
        self._writes = [isinstance(stage, WriterRole) for stage in self.stages]  # read for every task
        self._ready: list[int] = []
        self._shared = False

    def setup_on_node(self) -> None:
        for position in range(len(self.stages)):
            if self.activity:  # it has a time limit, like setup
                self.activity.enter(position)
            self._hook(position, "setup_on_node", self.metadata.node, self.metadata)
        if self.activity:
            self.activity.leave()

    def setup(self) -> None:
        for position, stage in enumerate(self.stages):
            if isinstance(stage, LookAheadRole):
                stage.see_later_stages(self.stages[position + 1 :])
            if self.activity:
                self.activity.enter(position)
            self._ready.append(position)  # before the hook, so that a setup that fails half-way is torn down too
            self._hook(position, "setup", self.metadata)
        if self.activity:
            self.activity.leave()

    def teardown(self) -> None:
        """Tear down the stages that were set up, last first. If one fails, the others are still torn down."""
        failures = []
        while self._ready:
            position = self._ready.pop()
            try:
                self._hook(position, "teardown")
            except StageError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def run(
        self,
        tasks: Iterable[Task[Any]],
        emit: Emit,
        start: int = 0,
        share: Callable[[], bool] = never_share,
        shed: Set[tuple[str, int]] = frozenset(),
        all_of: Set[str] = frozenset(),
        until: float = inf,
    ) -> None:
        """Pass the tasks through the stages from `start` on; `emit` receives the output of the last one.

        When one task becomes many and `share` reports idle workers, some of the children leave early: they are emitted
        with the position of their next stage. `shed` holds those that left in an earlier attempt, which are skipped.
        Tasks also leave before a stage that gathers, unless this worker has all tasks of their source (`all_of`) and
        reaches that stage before the time `until`.
        """
        for task in self.stream(tasks, start, emit, share, shed, all_of, until):
            emit(task, len(self.stages))
            del task  # otherwise the loop variable keeps it alive until the next one is there

    def stream(
        self,
        tasks: Iterable[Task[Any]],
        start: int = 0,
        emit: Emit = no_emit,
        share: Callable[[], bool] = never_share,
        shed: Set[tuple[str, int]] = frozenset(),
        all_of: Set[str] = frozenset(),
        until: float = inf,
    ) -> Iterator[Task[Any]]:
        """Like `run`, but yield the output of the last stage."""
        self._shared = False
        stream = iter(tasks)
        for position in range(start, len(self.stages)):
            if position > start and position in self.ends:
                stream = gather_local_sources(
                    stream, position, emit, all_of, lambda: not self._shared and time.perf_counter() < until
                )
            stream = self._pump(position, stream, emit, share, shed)
        if self.score_recorder:
            stream = self._recording_scores(self.score_recorder, stream)
        return filterfalse(_is_empty, stream) if self.final else stream

    def _recording_scores(self, recorder: ScoreRecorder, tasks: Iterator[Task[Any]]) -> Iterator[Task[Any]]:
        """Pass the tasks on, and send the scores of each as it leaves."""
        recorder.begin()
        for task in tasks:
            self._send(recorder.finish_task(task.id))
            yield task
        self._send(recorder.finish_call())

    def _send(self, fragments: Iterable[Task[Any]]) -> None:
        with self._writing_side_outputs(len(self.stages) - 1, None):
            for fragment in fragments:
                self.side_output_recorder.send(fragment)  # type: ignore[union-attr]

    @property
    def stats(self) -> list[StageStats]:
        """The counts since `take_stats`."""
        if len(self._stats_by_source) == 1:
            return next(iter(self._stats_by_source.values()))
        sums = [StageStats() for _ in self.stages]
        for stats in self._stats_by_source.values():
            for total, part in zip(sums, stats, strict=True):
                total.add(part)
        return sums

    def stats_of(self, source: str) -> list[StageStats]:
        """The counts of a source since `take_stats`."""
        found = self._stats_by_source.get(source)
        if found is None:
            found = self._stats_by_source[source] = [StageStats() for _ in self.stages]
        return found

    def look_at_stats(self) -> list[StageStats]:
        """A copy of the counts so far, for progress displays."""
        looks = [stat.copy() for stat in self.stats]
        for position, stat in enumerate(looks):
            settled = sum(self._settled.get((source, position), 0) for source in self._stats_by_source)
            stat.undecided = stat.net - settled
        return looks

    def take_stats(self) -> list[StageStats]:
        """The counts since the last call, with the part of each source if there were several."""
        for position, stage in enumerate(self.stages):
            self.count_for(position, None)
            take_counts(stage)
            self._counted[position] = {}
        for (source, position), summary in self.summariser.take().items():
            self.stats_of(source)[position].summary = summary
        total, by_source = self.stats, self._stats_by_source
        self._stats_by_source = {}
        self._settled.clear()
        if len(by_source) > 1:
            for position, stat in enumerate(total):
                stat.by_source = {source: stats[position] for source, stats in by_source.items()}
        return total

    def enter_source(self, position: int, source: str) -> None:
        """The stage is called with a task of this source."""
        if self._counting[position] != source:
            self.count_for(position, source)

    def count_for(self, position: int, source: str | None) -> None:
        """What the stage counts itself from here on is of this source; what it has counted is of the one before."""
        before, now = self._counting[position], report_of(self.stages[position]).counters
        if now and (counted := self._counted[position]) != now:
            more = {name: value - counted.get(name, 0) for name, value in now.items()}
            owner = before if before is not None else source or next(iter(self._stats_by_source), "")
            self.stats_of(owner)[position].add_counts(more)
            self._counted[position] = dict(now)
        self._counting[position] = source

    def take_quarantined(self) -> list[QuarantinedRecord]:
        """The records quarantined since the last call."""
        return self.isolator.take() if self.isolator else []

    # -- one stage -------------------------------------------------------------------------------------

    def _pump(
        self,
        position: int,
        tasks: Iterator[Task[Any]],
        emit: Emit,
        share: Callable[[], bool],
        shed: Set[tuple[str, int]],
    ) -> Iterator[Task[Any]]:
        # A suspended generator keeps its variables alive, so none of them may refer to rows already passed on.
        stage = self.stages[position]
        last = position + 1 in self.ends
        gone, leave = {task_id for task_id, at in shed if at == position + 1}, partial(self._leave, position + 1, emit)
        while batch := list(islice(tasks, stage.batch_size)):
            if passing := [task for task in batch if skips_stage(stage, task)]:
                for task in passing:
                    self.stats_of(task.lineage.source)[position].rows_past += task.num_rows
                batch = [task for task in batch if not skips_stage(stage, task)]
                while passing:
                    yield passing.pop(0)
            answered = self._answered(position, batch) if batch else deque()
            sources = {task.lineage.source for task in batch}
            del batch
            while answered:
                if isinstance(answered[0][1], Task):
                    yield self._single_child(position, *answered.popleft())
                    continue
                children = self._children(position, *answered.popleft())
                yield from children if last else share_children(children, share, gone, leave)
                del children
            for source in sources:
                self._settled[source, position] = self.stats_of(source)[position].net

    def _answered(self, position: int, batch: list[Task[Any]]) -> deque[tuple[Task[Any], Any]]:
        """Each task with the stage's answer."""
        for task in batch:
            self.stats_of(task.lineage.source)[position].count_input(task)
        answers = self.isolator.answers(position, batch) if self.isolator else self.ask(position, batch)
        return deque((task, _answer_or_empty_batch(task, answer)) for task, answer in zip(batch, answers, strict=True))

    def _single_child(self, position: int, parent: Task[Any], answer: Task[Any]) -> Task[Any]:
        return self._count_child(position, parent, answer.named(parent.lineage), alone=True)

    def _count_child(self, position: int, parent: Task[Any], child: Task[Any], alone: bool) -> Task[Any]:
        self.stats_of(parent.lineage.source)[position].count_output(child)
        self.summariser.passed(position, self._writes[position], parent, child)
        if self.score_recorder:
            self._send(self.score_recorder.add_task(position, parent, child, alone))
        return child

    def _leave(self, position: int, emit: Emit, child: Task[Any]) -> None:
        self._send(self.score_recorder.finish_task(child.id) if self.score_recorder else ())
        self._shared = True
        emit(child, position)

    def ask(self, position: int, tasks: list[Task[Any]], start: int = 0) -> Sequence[Answer[Any]]:
        """One answer per task. `start` is the index of the first row in the batch that the task was sliced from."""
        stage: Any = self.stages[position]
        rows = tasks[0].num_items if isinstance(tasks[0], Batch) and len(tasks) == 1 else len(tasks)
        with _StageCall(self, position, tasks[0].lineage, start, start + rows):
            answers, decisions = self._answers(position, tasks)
        if not isinstance(answers, _LISTS) or len(answers) != len(tasks):
            raise self._answer_count_error(position, tasks, answers)
        for task, answer, decision in zip(tasks, answers, decisions, strict=True):
            if decision is not None and isinstance(task, Batch):
                self.summariser.decided(position, stage, task, decision)
            if self.side_output_recorder:
                with self._writing_side_outputs(position, task.lineage):
                    self.side_output_recorder.judged(position, stage, task, start, answer, decision)
        return answers

    def _answers(self, position: int, tasks: list[Task[Any]]) -> tuple[Any, list[Decision | None]]:
        """The stage's answers, and its decisions if it is a `DecidingStage`."""
        stage: Any = self.stages[position]
        decisions: list[Decision | None] = [None] * len(tasks)
        if implements(stage, "process_batch"):
            answers = stage.process_batch(tasks)
        elif isinstance(stage, DecidingStage):
            decisions = self._decisions(position, stage, tasks)
            pairs = zip(tasks, decisions, strict=True)
            answers = [stage.apply(task, decision) if decision else stage.process(task) for task, decision in pairs]
        else:
            answers = [stage.process(task) for task in tasks]
        if self.side_output_recorder and isinstance(answers, _LISTS):
            asked = zip(tasks, answers, strict=False)  # a wrong number of answers is reported by `ask`
            answers = [materialise_answer(answer) if isinstance(task, Batch) else answer for task, answer in asked]
        return answers, decisions

    def _decisions(self, position: int, stage: Any, tasks: list[Task[Any]]) -> list[Decision | None]:
        batches = {index: task for index, task in enumerate(tasks) if isinstance(task, Batch)}
        recorder = self.score_recorder
        scored = batches.items() if recorder else ()
        decisions = {index: recorder.decide(position, stage, task) for index, task in scored}  # type: ignore[union-attr]
        ask = [index for index, task in batches.items() if decisions.get(index) is None and task.num_items]
        decisions.update(zip(ask, stage.decide_batch([batches[index] for index in ask]), strict=True))
        return [decisions.get(index) for index in range(len(tasks))]

    @contextmanager
    def _writing_side_outputs(self, position: int, lineage: Lineage | None) -> Iterator[None]:
        """Attribute errors to the writer of rejected rows or scores, not to the record or the stage."""
        try:
            yield
        except Exception as error:
            failure = self.failure(position, lineage, error)
            failure.stage = self.side_output_recorder.name if self.side_output_recorder else failure.stage
            raise failure from error

    def _children(self, position: int, parent: Task[Any], answer: Any) -> Iterator[Task[Any]]:
        """The children of a task that became several or none, with their ids."""
        if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
            raise self._error(position, parent.lineage, _not_a_task(answer), hopeless=True)
        steps = iter(answer) if self.isolator else self.outputs(position, parent, iter(answer))
        for index, output in enumerate(steps):
            if isinstance(output, Task):
                lineage = parent.lineage.child(index, output.lineage.branch)
                yield self._count_child(position, parent, output.named(lineage), alone=False)
            elif output is not None:
                raise self._error(position, parent.lineage, _not_a_task(output), hopeless=True)

    def outputs(self, position: int, parent: Task[Any], answer: Iterator[Any], start: int = 0) -> Iterator[Any]:
        """The outputs that a stage yields for one task, each timed and guarded as a call of the stage."""
        for index in count():
            rows = (start, start + parent.num_items) if isinstance(parent, Batch) else (index, index + 1)
            with _StageCall(self, position, parent.lineage, *rows):
                output = next(answer, _END)
            if output is _END:
                return
            yield output

    def _hook(self, position: int, name: str, *args: Any) -> None:
        """Call a life-cycle hook with as many arguments as it accepts."""
        if not implements(self.stages[position], name):
            return
        hook = getattr(self.stages[position], name)
        try:
            hook(*args[: _positional(hook)])
        except (Exception, SystemExit) as error:
            raise self.failure(position, None, error, doing=name) from error
        finally:
            self.end_forked_child(position, name)

    def end_forked_child(self, position: int, doing: str) -> None:
        """End a process that a stage forked, and that came back from the stage as if it were this worker."""
        if os.getpid() != self.process:
            name = self.stages[position].name
            sys.stderr.write(
                f"gristmill: a process that stage {name!r} forked returned from {doing} and was ended: its parent goes "
                "on with the same rows. End it in the stage, with os._exit\n"
            )
            sys.stderr.flush()
            os._exit(1)

    def failure(self, position: int, lineage: Lineage | None, error: BaseException, doing: str = "") -> StageError:
        details, reason = stage_traceback(error), describe_error(error)
        if isinstance(error, GristmillError):
            # Its message is complete, so it needs no traceback; a retry helps only where storage or network failed.
            hopeless = not isinstance(error, OutputError | DownloadError)
            return self._error(position, lineage, str(error), hopeless=hopeless)
        return self._error(position, lineage, f"{doing} raised {reason}" if doing else reason, details)

    def _answer_count_error(self, position: int, tasks: list[Task[Any]], answers: Any) -> AnswerCountError:
        got = f"{len(answers)} answers" if isinstance(answers, _LISTS) else type(answers).__name__
        reason = (
            f"process_batch got {len(tasks)} tasks and returned {got}. Return one answer per task, in order: a task, a "
            "list of tasks, or None to drop it. To make one task of several, inherit gristmill.MergingStage and write "
            "merge(tasks) in place of process_batch"
        )
        lineage = tasks[0].lineage
        return AnswerCountError(self.stages[position].name, lineage.id, lineage.files, reason, position=position)

    def _error(
        self, position: int, lineage: Lineage | None, reason: str, details: str = "", hopeless: bool = False
    ) -> StageError:
        task_id, files = (lineage.id, lineage.files) if lineage else ("(none yet)", ())
        error = StageError(self.stages[position].name, task_id, files, reason, details, position)
        error.hopeless = hopeless
        return error


class _StageCall:
    """A call into a stage's own code: adds to its seconds, records the activity, and wraps errors in StageError."""

    __slots__ = ("began", "lineage", "position", "rows", "worker")

    def __init__(self, worker: Worker, position: int, lineage: Lineage, start: int, stop: int) -> None:
        self.worker, self.position, self.lineage, self.rows = worker, position, lineage, (start, stop)

    def __enter__(self) -> None:
        if self.worker.activity:
            self.worker.activity.enter(self.position, self.worker.task_number(self.lineage), *self.rows)
        self.worker.enter_source(self.position, self.lineage.source)
        self.began = time.perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.worker.end_forked_child(self.position, "process")
        self.worker.stats_of(self.lineage.source)[self.position].seconds += time.perf_counter() - self.began
        if self.worker.activity:
            self.worker.activity.leave()
        if self.worker.isolator:
            self.worker.isolator.collect(self.position, self.lineage, failed=error is not None)
        if error is None or isinstance(error, StageError) or is_interrupt(error):
            return
        raise self.worker.failure(self.position, self.lineage, error) from error  # also panics, which are no Exception


def stage_traceback(error: BaseException) -> str:
    """The traceback without this file's frames."""
    trace = error.__traceback__
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # noqa: BLE001
        return ""


def skips_stage(stage: ProcessingStage[Any, Any], task: Task[Any]) -> bool:
    """Whether a task bypasses a stage, being on another branch or empty."""
    return task.lineage.skips_branch(stage._planned.branch) or (not stage.takes_empty and _is_empty(task))


def _answer_or_empty_batch(task: Task[Any], answer: Answer[Any]) -> Answer[Any]:
    """The answer, or an empty batch if all rows of a batch were dropped: writers still need its schema."""
    return answer if answer is not None else task.slice(0, 0) if isinstance(task, Batch) else ()


def _is_empty(task: Task[Any]) -> bool:
    return isinstance(task, Batch) and not task.num_items


def _positional(hook: Callable[..., Any]) -> int:
    parameters = inspect.signature(hook).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 2
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _not_a_task(value: object) -> str:
    return (
        f"returned {type(value).__name__}, which is not a task. Return a task (task.with_data(...), "
        "DocumentBatch(data=...), Task(data=...)), a list of tasks, or None to drop it"
    )


# -- tasks that leave the worker early, or wait for the other tasks of their source --------------------------


def share_children(
    children: Iterator[Task[Any]], share: Callable[[], bool], shed: Set[str], leave: Callable[[Task[Any]], None]
) -> Iterator[Task[Any]]:
    """The children that stay in this worker. Those in `shed` left in an earlier attempt.

    The first child leaves only once there is a second: moving an only child gains nothing and loses its cached columns.
    Later children leave at once, so that none is kept in memory while the next is made.
    """
    waiting: list[Task[Any]] = []
    first = True
    for child in children:
        if waiting:
            leave(waiting.pop())
        if child.id not in shed:
            if not share():
                yield child
            elif first:
                waiting.append(child)
            else:
                leave(child)
        first = False
        del child
    while waiting:
        yield waiting.pop()


def gather_local_sources(
    tasks: Iterator[Task[Any]], position: int, emit: Emit, all_of: Set[str], holds: Callable[[], bool]
) -> Iterator[Task[Any]]:
    """Gather the tasks of each source in `all_of` into one task. Tasks of other sources, and all tasks once `holds` is
    false, are emitted to be gathered by the driver, in the order in which they arrived."""
    held: dict[str, list[Task[Any]]] = {}
    for task in tasks:
        if task.lineage.source in all_of and holds():
            held.setdefault(task.lineage.source, []).append(task)
            continue
        for before in held.pop(task.lineage.source, ()):
            emit(before, position)
        emit(task, position)
    for parts in held.values():
        if holds():
            parts.sort(key=lambda part: part.lineage.sort_key())
            yield GatherTask(parts).named(parts[0].lineage.gathered())
            continue
        for part in parts:
            emit(part, position)
