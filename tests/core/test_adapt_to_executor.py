"""What of a plan depends on where it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, ProcessingStage, Resources, Shuffle, Task
from gristmill.core.errors import ResourceError
from gristmill.core.plan.adapt_to_executor import arrange_groups, fuse_commits, merge_groups_to_fit
from gristmill.core.plan.planner import Plan
from gristmill.core.stage_roles import CommitStage, GatherRole
from gristmill.text import JsonlReader, JsonlWriter


class Pass(ProcessingStage[Task[Any], Task[Any]]):
    def process(self, task: Task[Any]) -> Task[Any]:
        return task


class Whole(Pass, GatherRole):
    pass


def stage(name: str, cpus: float, **settings: Any) -> Any:
    gpus = settings.pop("gpus", 0.0)
    return Pass().with_(name=name, resources=Resources(cpus=cpus, gpus=gpus), **settings)


def planned(*stages: Any) -> Plan:
    return Pipeline("p", stages=stages).plan([Task(1)])


def names(plan: Plan) -> list[str]:
    assert [group.index for group in plan.groups] == list(range(len(plan.groups)))
    return ["".join(stage.name for stage in group.stages) for group in plan.groups]


# the stages, how many cores there are, which of them share a worker
CROWDS: dict[str, tuple[list[Any], float, list[str]]] = {
    "there is room for all": ([stage("a", 1), stage("b", 3)], 4, ["a", "b"]),
    "there is not": ([stage("a", 1), stage("b", 3)], 3, ["ab"]),
    "those that are alike share": ([stage("a", 1), stage("b", 4), stage("c", 3)], 6, ["a", "bc"]),
    "no more than must": ([stage("a", 2), stage("b", 4), stage("c", 2), stage("d", 4)], 10, ["ab", "c", "d"]),
    "many on few cores": ([stage(chr(97 + i), 1 + i % 2 * 3) for i in range(20)], 2, ["abcdefghijklmnopqrst"]),
    "a number of workers is kept": ([stage("a", 1, num_workers=2), stage("b", 2)], 1, ["a", "b"]),
    "all workers count": ([stage("a", 1, num_workers=3), stage("b", 2, num_workers=3)], 8, ["ab"]),
    "environments are kept": ([stage("a", 1), stage("b", 2, runtime_env={"env_vars": {"A": "b"}})], 1, ["a", "b"]),
    "GPUs are not shared with others": ([stage("a", 1), stage("b", 2, gpus=1), stage("c", 1)], 1, ["a", "b", "c"]),
}


@pytest.mark.parametrize("name", CROWDS)
def test_groups_share_a_worker_where_there_are_few_cores(name: str) -> None:
    stages, cpus, expected = CROWDS[name]
    plan = planned(*stages)
    assert names(merge_groups_to_fit(plan, plan.groups, cpus)) == expected


def test_only_a_crowd_is_joined_and_all_stages_stay_in_order() -> None:
    plan = planned(stage("a", 1), stage("b", 2), stage("c", 1), stage("d", 2), Whole().with_(name="e"), stage("f", 3))
    fewer = merge_groups_to_fit(plan, plan.groups[1:4], 1)
    assert names(fewer) == ["a", "bcd", "e", "f"]
    assert fewer.stages == plan.stages
    assert fewer.groups[1].resources.cpus == 2
    assert merge_groups_to_fit(plan, (), 1) == plan


def test_who_shares_a_worker_has_its_memory_beside_the_other() -> None:
    cpus_and_memory = [(1, 6), (2, 6), (1, 2), (2, 0)]
    stages = [
        Pass().with_(name=name, resources=Resources(cpus=cpus, memory_gb=memory_gb))
        for name, (cpus, memory_gb) in zip("abcd", cpus_and_memory, strict=True)
    ]
    plan = planned(*stages)
    for most, expected, needs in [(100, ["abcd"], [14]), (13, ["ab", "cd"], [12, 2]), (8, ["a", "bcd"], [6, 8])]:
        fewer = merge_groups_to_fit(plan, plan.groups, 1, most)
        assert names(fewer) == expected
        assert [group.resources.memory_gb for group in fewer.groups] == needs


def test_a_plan_for_an_executor_is_what_it_runs() -> None:
    stages = [stage("a", 1), Pass().with_(name="b", resources=Resources(cpus=1, gpus=0.25, or_cpu=True)), stage("c", 2)]
    pipeline = Pipeline("p", stages=stages)
    assert names(pipeline.plan([Task(1)])) == ["a", "b", "c"]
    assert names(pipeline.plan([Task(1)], executor=LocalExecutor(2, gpus=0))) == ["ab", "c"]
    assert names(pipeline.plan([Task(1)], executor=LocalExecutor(2, gpus=1))) == ["a", "b", "c"]
    assert names(pipeline.plan([Task(1)], executor=LocalExecutor(2, gpus=0, fuse=False))) == ["a", "b", "c"]


def test_all_segments_of_a_plan_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    late = Pass().with_(name="late", resources=Resources(gpus=1))
    pipeline = Pipeline("p", stages=[JsonlReader(str(tmp_path)), Shuffle(seed=1), late])
    with pytest.raises(ResourceError, match="late"):
        pipeline.plan(executor=LocalExecutor(2, gpus=0))


def test_a_plan_is_arranged_as_its_executor_wants() -> None:
    class Tight(LocalExecutor):
        def arrange(self, plan: Plan) -> Plan:
            return merge_groups_to_fit(plan, plan.groups, 1)

    plan = planned(stage("a", 1), stage("b", 2))
    assert names(arrange_groups(plan, Tight())) == ["ab"]
    assert arrange_groups(plan, LocalExecutor(num_workers=0)).groups == plan.groups


class Commit(CommitStage):
    def process(self, task: Any) -> Any:
        return task


def commit(name: str, cpus: float = 1, **settings: Any) -> Any:
    return Commit().with_(name=name, resources=Resources(cpus=cpus), **settings)


# the stages, and which of them share a worker where writers commit what they have written
COMMITS: dict[str, tuple[list[Any], list[str]]] = {
    "a commit joins what it commits": ([stage("a", 1), commit("b")], ["ab"]),
    "not if something comes after it": ([stage("a", 1), commit("b"), stage("c", 1)], ["a", "bc"]),
    "one in each group": ([stage("a", 1), commit("b"), commit("c")], ["ab", "c"]),
    "batches are kept": ([stage("a", 1), commit("b", batch_size=2)], ["a", "b"]),
    "so is how long a worker lives": ([stage("a", 1), commit("b", max_tasks_per_worker=2)], ["a", "b"]),
    "memory is not held by all": (
        [stage("a", 1), Commit().with_(name="b", resources=Resources(memory_gb=2))],
        ["a", "b"],
    ),
    "only what commits": ([stage("a", 1), Whole().with_(name="b")], ["a", "b"]),
    "a number of workers is kept": ([stage("a", 1, num_workers=2), commit("b")], ["a", "b"]),
    "cores are kept": ([stage("a", 4), commit("b")], ["a", "b"]),
    "GPUs are not held by a commit": ([stage("a", 1, gpus=1), commit("b")], ["a", "b"]),
    "environments are kept": ([stage("a", 1), commit("b", runtime_env={"env_vars": {"A": "b"}})], ["a", "b"]),
}


@pytest.mark.parametrize("name", COMMITS)
def test_writers_commit_what_they_have_written(name: str) -> None:
    stages, expected = COMMITS[name]
    assert names(fuse_commits(planned(*stages))) == expected


def test_a_commit_stays_apart_from_a_users_own_source() -> None:
    plan = Pipeline("p", stages=[stage("a", 1), commit("b")]).plan()
    assert plan.tasks_are_sources
    assert names(fuse_commits(plan)) == ["a", "b"]


@pytest.mark.parametrize(
    ("executor", "groups"),
    [
        (LocalExecutor(), 1),
        (LocalExecutor(num_workers=0), 2),
        (LocalExecutor(fuse=False), 3),
        (LocalExecutor(execution_mode="batch"), 2),
    ],
)
def test_a_plan_shows_what_the_executor_makes_of_it(tmp_path: Path, executor: LocalExecutor, groups: int) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    pipeline = Pipeline("p", stages=[JsonlReader(str(tmp_path / "a.jsonl")), JsonlWriter(str(tmp_path / "out"))])
    assert len(pipeline.plan(executor=executor).groups) == groups
