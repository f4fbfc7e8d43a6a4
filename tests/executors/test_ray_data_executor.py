"""RayDataExecutor on a real cluster on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import Pipeline, ProcessingStage, RayDataExecutor, Resources, Task
from gristmill.core.errors import PlanError, ResourceError
from tests.conformance.small_stages import AddOne
from tests.executors import engine_checks
from tests.ray_cluster import left_over, ray_cluster

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_cluster(num_cpus=3, num_gpus=2) as mark:
        yield mark


@pytest.mark.ray
def test_a_record_at_fault_is_found_and_nothing_is_left_behind(cluster: str, tmp_path: Path) -> None:
    engine_checks.check_faults_and_hooks(RayDataExecutor(), cluster, tmp_path)


@pytest.mark.ray
def test_ray_data_ends_well_and_a_teardown_that_fails_is_told(cluster: str) -> None:
    engine_checks.check_bad_teardown(RayDataExecutor())


@pytest.mark.ray
def test_large_batches_pass_and_results_outlive_the_engine(cluster: str) -> None:
    engine_checks.check_large_batches(RayDataExecutor(fuse=False), cluster)


@pytest.mark.ray
def test_ray_data_leaves_the_same_actors_however_many_runs_there_were(cluster: str) -> None:
    """They are shared by all its users, so they are not ours to stop."""
    from ray.util import list_named_actors

    left = []
    for _ in range(2):
        Pipeline("p", stages=[AddOne()]).run(RayDataExecutor(), initial_tasks=[Task(1)])
        left.append(sorted(actor["name"] for actor in list_named_actors(all_namespaces=True)))
    assert left[0] == left[1]
    assert left_over(cluster) == []


@pytest.mark.ray
def test_same_bytes_and_a_run_goes_on_with_another_executor(cluster: str, tmp_path: Path) -> None:
    engine_checks.check_resumes(RayDataExecutor(), tmp_path)


@pytest.mark.ray
def test_an_actor_that_is_killed_costs_nothing(cluster: str, tmp_path: Path) -> None:
    engine_checks.check_killed_actor(RayDataExecutor(), "MapWorker", tmp_path / "marks")


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore:.* left .* tasks undone:RuntimeWarning")
def test_an_engine_that_is_killed_before_it_has_begun_costs_nothing(cluster: str, tmp_path: Path) -> None:
    engine_checks.check_killed_actor(RayDataExecutor(), "EngineActor", tmp_path / "marks", after=0)


class Gpus(ProcessingStage[Task[int], Task[Any]]):
    def setup(self, worker_metadata: Any = None) -> None:
        self.gpus = worker_metadata.gpus

    def process(self, task: Task[int]) -> Task[Any]:
        return Task((self.gpus, os.environ["CUDA_VISIBLE_DEVICES"]))


@pytest.mark.ray
def test_gpus_are_reserved(cluster: str) -> None:
    stage = Gpus().with_(resources=Resources(cpus=0.1, gpus=1))
    result = Pipeline("p", stages=[stage]).run(RayDataExecutor(), initial_tasks=[Task(number) for number in range(10)])
    assert {task.data for task in result} <= {((0,), "0"), ((1,), "1")}


@pytest.mark.ray
def test_what_can_never_run_is_refused_at_once(cluster: str) -> None:
    two = [AddOne().with_(name=name, resources=Resources(gpus=2)) for name in ("a", "b")]
    for stages, match in (
        ([AddOne().with_(resources=Resources(gpus=3))], "the cluster has 2 GPUs"),
        (two, "Ray Data needs a worker of every group at the same time, which takes 4 GPUs"),
    ):
        with pytest.raises(ResourceError, match=match):
            Pipeline("p", stages=stages).run(RayDataExecutor(), initial_tasks=[Task(1)])
    with pytest.raises(PlanError, match=r"RayDataExecutor has no setting 'gpu_memory'. Did you mean 'gpu_memory_gb'"):
        RayDataExecutor(config={"gpu_memory": 80})


def test_ray_is_only_loaded_when_it_is_used() -> None:
    code = "import sys, gristmill; gristmill.RayDataExecutor(); print({'ray', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
