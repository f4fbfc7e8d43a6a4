"""One suite that every executor passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from gristmill import (
    CompositeStage,
    DocumentBatch,
    Pipeline,
    ProcessingStage,
    Resources,
    Task,
    processing_stage,
)
from gristmill.core.errors import StageError
from gristmill.core.executor import Progress, SilentObserver
from tests.conformance.executor_params import EXECUTORS, make, params
from tests.conformance.small_stages import (
    AddOne,
    BatchDouble,
    CountTo,
    DropFirstSplitSecond,
    Gather,
    Repeat,
    StreamThenTrouble,
    Trouble,
    Witness,
)


@pytest.fixture(params=params(*EXECUTORS), ids=str)
def executor(request: pytest.FixtureRequest) -> Any:
    return make(request)


def numbers(*values: int) -> list[Task[int]]:
    return [Task(value) for value in values]


def test_a_source_starts_with_one_empty_task(executor: Any) -> None:
    result = Pipeline("p", stages=[CountTo(4), Repeat(), AddOne()]).run(executor)
    assert [task.data for task in result] == [2, 3, 3, 4, 4, 4]
    assert [task.id for task in result] == ["0.1.0", "0.2.0", "0.2.1", "0.3.0", "0.3.1", "0.3.2"]


def test_initial_tasks_keep_their_order(executor: Any) -> None:
    result = Pipeline("p", stages=[AddOne()]).run(executor, initial_tasks=numbers(*range(50)))
    assert [task.data for task in result] == list(range(1, 51))


def test_outputs_are_grouped_per_input(executor: Any) -> None:
    result = Pipeline("p", stages=[DropFirstSplitSecond()]).run(executor, initial_tasks=numbers(0, 1))
    assert [(task.id, task.data) for task in result] == [("1.0", 1), ("1.1", -1)]


def test_batches_are_filled(executor: Any) -> None:
    result = Pipeline("p", stages=[BatchDouble()]).run(executor, initial_tasks=numbers(*range(8)))
    assert [task.data for task in result] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert max(task.metadata["batch"] for task in result) == 4


def test_a_stage_that_drops_everything_ends_well(executor: Any) -> None:
    result = Pipeline("p", stages=[CountTo(3), AddOne(), Nothing(), AddOne()]).run(executor)
    assert list(result) == []
    assert result.summary()["Nothing"].dropped == 3


class Nothing(ProcessingStage[Task[int], Task[int]]):
    def process(self, task: Task[int]) -> None:
        return None


class Interrupted(SilentObserver):
    """Ctrl-C comes in the midst of a run, and something goes wrong when that is stopped."""

    def progressed(self, progress: Progress) -> None:
        raise KeyboardInterrupt

    def finished(self, progress: Progress) -> None:
        raise OSError("cannot be closed")


@pytest.mark.parametrize("streams", [True, False])
def test_no_error_takes_the_place_of_ctrl_c(executor: Any, streams: bool) -> None:
    pipeline, given = Pipeline("p", stages=[AddOne()]), {"initial_tasks": numbers(1), "observer": Interrupted()}
    with pytest.raises(KeyboardInterrupt) as interrupted:
        list(pipeline.stream(executor, **given)) if streams else pipeline.run(executor, **given)
    assert "cannot be closed" in str(interrupted.value.__context__)


def test_no_tasks_at_all(executor: Any) -> None:
    assert list(Pipeline("p", stages=[AddOne()]).run(executor, initial_tasks=[])) == []


def test_function_stages_return_one_many_or_none(executor: Any) -> None:
    @processing_stage(name="odd_twice", resources=Resources(cpus=1))
    def odd_twice(task: Task[int]) -> Any:
        return {0: None, 1: [task, task], 2: task}[task.data]

    result = Pipeline("p", stages=[odd_twice]).run(executor, initial_tasks=numbers(0, 1, 2))
    assert [(task.id, task.data) for task in result] == [("1.0", 1), ("1.1", 1), ("2", 2)]


def test_rows_and_empty_batches(executor: Any) -> None:
    @processing_stage(name="long_only")
    def long_only(task: DocumentBatch) -> DocumentBatch:
        return task.keep(pc.greater(pc.utf8_length(task.data["text"]), 2))

    batches = [DocumentBatch([{"text": "a"}, {"text": "abc"}]), DocumentBatch([{"text": ""}])]
    result = Pipeline("p", stages=[long_only, long_only.with_(name="again")]).run(executor, initial_tasks=batches)
    assert [row for task in result for row in task.to_rows()] == [{"text": "abc"}]
    line = result.summary()["long_only"]
    assert (line.rows_in, line.rows_out, line.dropped) == (3, 1, 2)


def test_gather_gets_all_tasks_of_a_source_in_order(executor: Any) -> None:
    result = Pipeline("p", stages=[Repeat(), AddOne(), Gather()]).run(executor, initial_tasks=numbers(3, 0, 2))
    assert [task.data for task in result] == [[4, 4, 4], [3, 3]]


def test_gather_after_a_users_own_source(executor: Any) -> None:
    result = Pipeline("p", stages=[CountTo(4), Gather()]).run(executor)
    assert [task.data for task in result] == [[0], [1], [2], [3]]


def test_stream_yields_what_run_returns(executor: Any) -> None:
    pipeline = Pipeline("p", stages=[CountTo(20), Repeat()])
    assert sorted(task.id for task in pipeline.stream(executor)) == sorted(task.id for task in pipeline.run(executor))


def test_running_twice_gives_the_same_and_leaves_stages_alone(executor: Any) -> None:
    stages = [CountTo(5), Repeat()]
    before = [dict(vars(stage)) for stage in stages]
    pipeline = Pipeline("p", stages=stages)
    runs = [[(task.id, task.data) for task in pipeline.run(executor)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert [dict(vars(stage)) for stage in stages] == before


def test_composites_nest(executor: Any) -> None:
    class Inner(CompositeStage[Task[int], Task[int]]):
        def decompose(self) -> list[Any]:
            return [AddOne(), AddOne().with_(name="second")]

    class Outer(CompositeStage[Task[int], Task[int]]):
        def decompose(self) -> list[Any]:
            return [Inner(), AddOne().with_(name="third")]

    result = Pipeline("p", stages=[Outer()]).run(executor, initial_tasks=numbers(0))
    assert [task.data for task in result] == [3]


def test_an_error_names_stage_and_task(executor: Any) -> None:
    with pytest.raises(StageError, match=r"stage 'Trouble' failed on task 0\.3: ValueError: bad byte") as caught:
        Pipeline("p", stages=[CountTo(5), Trouble("raise", 3)]).run(executor)
    assert "misbehave" in caught.value.details


def test_what_fails_once_is_tried_again(executor: Any, tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[CountTo(30), Trouble("raise", 17, tmp_path), AddOne()])
    result = pipeline.run(executor)
    assert [task.data for task in result] == list(range(1, 31))
    assert result.summary()["Trouble"].rows_in == 30


def test_a_stream_that_fails_once_gives_each_child_once(executor: Any, tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[StreamThenTrouble("raise", tmp_path), AddOne()])
    result = pipeline.run(executor, initial_tasks=numbers(0, 1, 2))
    assert [task.data for task in result] == [1000 * n + i + 1 for n in range(3) for i in range(20)]


def test_hooks_run_in_order_and_teardown_after_success(executor: Any, tmp_path: Path) -> None:
    Pipeline("p", stages=[CountTo(5), Witness(tmp_path)]).run(executor)
    hooks = [path.name.split("-")[0] for path in tmp_path.iterdir()]
    assert hooks.count("node") == 1
    assert hooks.count("setup") == hooks.count("teardown") >= 1


def test_workers_are_torn_down_after_a_failure(executor: Any, tmp_path: Path) -> None:
    with pytest.raises(StageError):
        Pipeline("p", stages=[CountTo(5), Witness(tmp_path), Trouble("raise", 2)]).run(executor)
    hooks = [path.name.split("-")[0] for path in tmp_path.iterdir()]
    assert hooks.count("setup") == hooks.count("teardown") >= 1


def test_a_setup_that_fails_names_the_stage(executor: Any) -> None:
    class NoModel(AddOne):
        name = "NoModel"

        def setup(self) -> None:  # type: ignore[override]
            raise OSError("no weights")

    with pytest.raises(StageError, match="stage 'NoModel' failed .*setup raised OSError: no weights"):
        Pipeline("p", stages=[NoModel()]).run(executor, initial_tasks=numbers(1))


@pytest.mark.parametrize("answer", [7, "text", {"a": 1}, [Task(1), 3]], ids=str)
def test_what_is_no_task_is_refused(executor: Any, answer: Any) -> None:
    @processing_stage(name="wrong")
    def wrong(task: Task[int]) -> Any:
        return answer

    with pytest.raises(StageError, match="'wrong' failed on task 0: returned .* which is not a task"):
        Pipeline("p", stages=[wrong.with_(max_retries=0)]).run(executor, initial_tasks=numbers(1))


def test_a_batch_stage_must_answer_for_each_input(executor: Any) -> None:
    class Merge(ProcessingStage[Task[int], Task[int]]):
        batch_size = 2
        max_retries = 0

        def process_batch(self, tasks: Any) -> list[Task[int]]:
            return [tasks[0], tasks[0], tasks[0]]

    with pytest.raises(StageError, match="Return one answer per task"):
        Pipeline("p", stages=[Merge()]).run(executor, initial_tasks=numbers(1))


def test_thirty_stages_with_different_needs_on_few_cores(executor: Any) -> None:
    stages = [AddOne().with_(name=f"s{i}", resources=Resources(cpus=1 + i % 2 * 3)) for i in range(30)]
    result = Pipeline("p", stages=stages).run(executor, initial_tasks=numbers(*range(20)))
    assert [task.data for task in result] == list(range(30, 50))
