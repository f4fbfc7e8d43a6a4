"""What users do with stages: write them, change them with `with_`, nest them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
import pytest

from gristmill import (
    CompositeStage,
    DocumentBatch,
    EmptyTask,
    LocalExecutor,
    Pipeline,
    ProcessingStage,
    Resources,
    SourceStage,
    Task,
    processing_stage,
)
from gristmill.core.errors import ContractError, MissingDependencyError, did_you_mean, require, shorten
from gristmill.core.function_stage import task_types
from gristmill.text import DocumentFilter, JsonlReader, ScoreFilter

HERE = LocalExecutor(num_workers=0)


class Plain(ProcessingStage[Task[int], Task[int]]):
    def __init__(self, step: int = 1) -> None:
        super().__init__()
        self.step = step

    def process(self, task: Task[int]) -> Task[int]:
        return Task(task.data + self.step)


class Named(Plain):
    name: str = "named"
    resources: Resources = Resources(cpus=2.0)
    batch_size: int = 4


@dataclass
class Data(ProcessingStage[Task[int], Task[int]]):
    factor: int = 2
    name: str = "data"
    batch_size: int = 3

    def process(self, task: Task[int]) -> Task[int]:
        return Task(task.data * self.factor)


# -- names and settings ------------------------------------------------------------------------------------


def test_settings_are_class_attributes_with_defaults() -> None:
    stage = Plain()
    assert stage.name == "Plain"
    assert stage.resources == Resources(cpus=1.0)
    assert (stage.batch_size, stage.max_retries) == (1, 2)
    assert (stage.runtime_env, stage.num_workers, stage.timeout_s) == (None, None, None)
    assert (Named().name, Named().resources.cpus, Named().batch_size) == ("named", 2.0, 4)


def test_a_subclass_is_named_after_its_class_unless_a_name_was_chosen() -> None:
    class Heir(Plain): ...

    class NamedHeir(Named): ...

    assert (Heir().name, NamedHeir().name) == ("Heir", "named")
    assert repr(Heir()) == "<Heir 'Heir'>"


def test_dataclass_stages_work() -> None:
    stage = Data(factor=5).with_(name="five", batch_size=2)
    assert (stage.factor, stage.name, stage.batch_size) == (5, "five", 2)
    result = Pipeline("p", stages=[Data(), stage]).run(HERE, initial_tasks=[Task(1), Task(2), Task(3)])
    assert [task.data for task in result] == [10, 20, 30]


CHANGES: list[dict[str, Any]] = [
    {"name": "other"},
    {"resources": Resources(gpus=0.5)},
    {"batch_size": 16},
    {"runtime_env": {"env_vars": {"A": "1"}}},
    {"num_workers": 3},
    {"timeout_s": 1.5},
    {"max_retries": 0},
    {"name": "all", "batch_size": 2, "num_workers": 1, "timeout_s": 60, "max_retries": 5},
]


@pytest.mark.parametrize(
    "make", [Plain, Named, Data, lambda: ScoreFilter(Short())], ids=["plain", "named", "data", "f"]
)
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_with_returns_a_changed_copy_and_leaves_the_original_alone(
    make: Callable[[], Any], change: dict[str, Any]
) -> None:
    stage = make()
    before = {**vars(stage)}
    other = stage.with_(**change)
    assert other is not stage
    assert type(other) is type(stage)
    assert {key: getattr(other, key) for key in change} == change
    assert vars(stage) == before
    assert other.with_(max_retries=9).max_retries == 9


@pytest.mark.parametrize(
    ("word", "nearest"),
    [("batchsize", "batch_size"), ("resource", "resources"), ("retries", "max_retries"), ("timeout", "timeout_s")],
)
def test_an_unknown_setting_is_answered_with_the_nearest(word: str, nearest: str) -> None:
    with pytest.raises(TypeError, match=rf"Plain\.with_\({word}=\.\.\.\): no such setting\. Did you mean '{nearest}'"):
        Plain().with_(**{word: 1})


def test_a_parameter_is_no_setting() -> None:
    with pytest.raises(TypeError, match="What a stage computes is set in its constructor"):
        Plain().with_(step=2)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size is 0, must be a whole number, 1 or more"),
    ({"batch_size": 2.0}, "batch_size is 2.0"),
    ({"batch_size": True}, "batch_size is True"),
    ({"num_workers": 0}, "num_workers is 0"),
    ({"timeout_s": 0}, "timeout_s is 0, must be seconds above 0"),
    ({"max_retries": -1}, "max_retries is -1"),
    ({"resources": {"cpus": 1}}, "must be a Resources object"),
    ({"name": ""}, "a name that is not empty"),
]


@pytest.mark.parametrize(("settings", "complaint"), WRONG, ids=str)
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ContractError, match=complaint):
        Plain().with_(**settings)


def test_the_number_of_workers_may_be_a_method() -> None:
    class Fixed(Plain):
        def num_workers(self) -> int:  # type: ignore[override]
            return 2

    assert Pipeline("p", stages=[Fixed()]).plan([Task(1)]).groups[0].num_workers == 2


# -- functions ---------------------------------------------------------------------------------------------


def test_a_function_becomes_a_stage() -> None:
    @processing_stage(name="double", resources=Resources(cpus=2), batch_size=4)
    def double(task: Task[int]) -> Task[int]:
        """Twice the number."""
        return Task(task.data * 2)

    assert (double.name, double.resources.cpus, double.batch_size) == ("double", 2, 4)
    assert double.__doc__ == "Twice the number."
    assert double(Task(4)).data == 8  # still a function
    assert double.with_(name="again").name == "again"


def test_a_function_without_a_name_lends_its_own() -> None:
    @processing_stage(resources={"cpus": 3})
    def some_step(task: Task[int]) -> None:
        return None

    assert (some_step.name, some_step.resources) == ("some_step", Resources(cpus=3))


def test_a_function_must_take_one_task() -> None:
    with pytest.raises(TypeError, match="two must take one argument, the task"):

        @processing_stage(name="two")
        def two(task: Task[int], other: Task[int]) -> None: ...


def test_a_decorator_needs_no_parentheses() -> None:
    @processing_stage
    def step(task: Task[int]) -> None: ...

    assert isinstance(step, ProcessingStage)
    assert step.name == "step"


# -- what stages may return --------------------------------------------------------------------------------


class Answers(ProcessingStage[Task[int], Task[int]]):
    """0 is dropped, 1 is returned, 2 is a list, 3 is a generator, 4 an empty list."""

    def process(self, task: Task[int]) -> Any:
        def stream() -> Iterator[Task[int]]:
            for number in range(task.data):
                yield Task(number)

        return [None, task, [Task(20), Task(21)], stream(), []][task.data]


def test_one_several_or_none() -> None:
    result = Pipeline("p", stages=[Answers()]).run(HERE, initial_tasks=[Task(n) for n in range(5)])
    assert [(task.id, task.data) for task in result] == [
        ("1", 1),
        ("2.0", 20),
        ("2.1", 21),
        ("3.0", 0),
        ("3.1", 1),
        ("3.2", 2),
    ]


class DropAndSplit(ProcessingStage[Task[int], Task[int]]):
    batch_size = 2

    def process_batch(self, tasks: Any) -> list[Any]:
        return [None, [Task(10), Task(11)]]


def test_outputs_are_grouped_per_input() -> None:
    result = Pipeline("p", stages=[DropAndSplit()]).run(HERE, initial_tasks=[Task(1), Task(2)])
    assert [task.id for task in result] == ["1.0", "1.1"]  # both are children of the second


def test_counters_are_summed_per_stage() -> None:
    class Counts(Plain):
        def process(self, task: Task[int]) -> Task[int]:
            self.count("seen")
            self.count("weight", 0.5)
            return task

    result = Pipeline("p", stages=[Counts(), Plain()]).run(HERE, initial_tasks=[Task(n) for n in range(4)])
    assert result.summary()["Counts"].counts == {"seen": 4, "weight": 2.0}
    assert result.summary()["Plain"].counts == {}


class Short(DocumentFilter):
    """Keeps documents of at most `most` characters."""

    def __init__(self, most: int = 3) -> None:
        self.most = most

    def score_document(self, text: str) -> float:
        return len(text)

    def keep_document(self, score: float) -> bool:
        return score <= self.most


def test_a_filter_of_ones_own_is_ten_lines() -> None:
    stage = ScoreFilter(filter_obj=Short(most=2), score_field="length")
    batch = DocumentBatch([{"text": "a"}, {"text": "abc"}, {"text": None}, {"text": "ab"}])
    [kept] = Pipeline("p", stages=[stage]).run(HERE, initial_tasks=[batch])
    assert kept.to_rows() == [
        {"text": "a", "length": 1.0},
        {"text": None, "length": 0.0},
        {"text": "ab", "length": 2.0},
    ]
    assert stage.name == "Short"


# -- composites --------------------------------------------------------------------------------------------


class Pair(CompositeStage[Task[int], Task[int]]):
    def decompose(self) -> list[Any]:
        return [Plain(1).with_(name="first"), Plain(10).with_(name="second")]


class Nest(CompositeStage[Task[int], Task[int]]):
    def decompose(self) -> list[Any]:
        return [Pair(), Plain(100).with_(name="last")]


def settings_of(stage: CompositeStage[Any, Any]) -> dict[str, int]:
    return {part.name: part.batch_size for part in Pipeline("p", stages=[stage]).plan([Task(1)]).stages}


def test_sub_stages_are_changed_by_name() -> None:
    pair = Pair()
    changed = pair.with_({"second": {"batch_size": 4}})
    assert settings_of(changed) == {"first": 1, "second": 4}
    assert settings_of(pair) == {"first": 1, "second": 1}
    assert settings_of(pair.with_(first={"batch_size": 2})) == {"first": 2, "second": 1}


def test_changes_add_up_and_follow_a_rename() -> None:
    renamed = Pair().with_({"second": {"name": "sum", "batch_size": 2}})
    assert settings_of(renamed) == {"first": 1, "sum": 2}
    assert settings_of(renamed.with_({"sum": {"batch_size": 8}})) == {"first": 1, "sum": 8}
    assert settings_of(renamed.with_({"first": {"batch_size": 3}})) == {"first": 3, "sum": 2}
    with pytest.raises(TypeError, match="Pair has no single sub-stage 'second'"):
        renamed.with_({"second": {"batch_size": 8}})


def test_names_may_be_swapped() -> None:
    swapped = Pair().with_({"first": {"name": "second"}, "second": {"name": "first"}})
    assert list(settings_of(swapped.with_({"first": {"batch_size": 5}}))) == ["second", "first"]
    assert settings_of(swapped.with_({"first": {"batch_size": 5}}))["first"] == 5


def test_nested_composites_are_changed_from_outside() -> None:
    nest = Nest().with_({"Pair": {"first": {"batch_size": 6}}, "last": {"batch_size": 7}})
    assert settings_of(nest) == {"first": 6, "second": 1, "last": 7}
    again = nest.with_({"Pair": {"first": {"name": "zero"}}}).with_({"Pair": {"zero": {"batch_size": 9}}})
    assert settings_of(again) == {"zero": 9, "second": 1, "last": 7}
    [result] = Pipeline("p", stages=[again]).run(HERE, initial_tasks=[Task(0)])
    assert result.data == 111


def test_readers_are_composites() -> None:
    reader = JsonlReader("data").with_({"read_jsonl": {"resources": Resources(cpus=0.5), "max_retries": 0}})
    lister, stage = reader.stages()
    assert (lister.name, stage.name) == ("list_files", "read_jsonl")
    assert (stage.resources.cpus, stage.max_retries) == (0.5, 0)


def test_a_composite_says_which_stages_it_has() -> None:
    with pytest.raises(
        TypeError, match=r'Pair is made of first, second: .* \.with_\({"second": {"batch_size": \.\.\.}}'
    ):
        Pair().with_(batch_size=4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"no single sub-stage 'secnd'\. Did you mean 'second'"):
        Pair().with_({"secnd": {"batch_size": 4}})
    with pytest.raises(TypeError, match="Did you mean 'batch_size'"):
        Pair().with_({"second": {"batchsize": 4}})
    with pytest.raises(TypeError, match=r"no single sub-stage 'frst'\. Did you mean 'first'"):
        Nest().with_({"Pair": {"frst": {"batch_size": 4}}})


# -- what the planner reads off a stage --------------------------------------------------------------------


def test_declared_task_types() -> None:
    class Source(SourceStage[DocumentBatch]):
        def sources(self) -> Iterator[list[DocumentBatch]]:
            yield []

    class Untyped(ProcessingStage):  # type: ignore[type-arg]
        def process(self, task: Any) -> Any:
            return task

    assert task_types(Plain()) == (Task, Task)
    assert task_types(Named()) == (Task, Task)
    assert task_types(Source()) == (EmptyTask, DocumentBatch)
    assert task_types(Untyped()) == (None, None)


def test_nearest_names_and_short_lists() -> None:
    assert did_you_mean("TEXT", ["text", "test"]) == " Did you mean 'text'?"
    assert did_you_mean("zzz", ["text"]) == ""
    assert shorten(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_a_missing_library_is_answered_with_the_install_command() -> None:
    with pytest.raises(
        MissingDependencyError, match=r"Trick needs 'no_such_library', .* pip install 'gristmill\[text\]'"
    ):
        require("no_such_library", "text", "Trick")


def test_a_stage_may_use_arrow_directly() -> None:
    @processing_stage(name="upper")
    def upper(task: DocumentBatch) -> DocumentBatch:
        return task.with_data(task.data.set_column(0, "text", pc.utf8_upper(task.data["text"])))

    [batch] = Pipeline("p", stages=[upper]).run(HERE, initial_tasks=[DocumentBatch([{"text": "abc"}])])
    assert batch.to_rows() == [{"text": "ABC"}]
