"""XennaExecutor on a real cluster on this machine."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gristmill import Pipeline, Resources, Task, XennaExecutor
from gristmill.core.errors import PlanError
from gristmill.executors.engines.engine_executor import EngineJob
from gristmill.executors.engines.xenna_executor import _worker_counts
from tests.conformance.small_stages import AddOne
from tests.executors import engine_checks
from tests.ray_cluster import ray_cluster

pytest.importorskip("cosmos_xenna")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_cluster(num_cpus=2) as mark:
        yield mark


@pytest.mark.ray
@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_a_record_at_fault_is_found_and_nothing_is_left_behind(cluster: str, tmp_path: Path, mode: str) -> None:
    engine_checks.check_faults_and_hooks(XennaExecutor({"execution_mode": mode}), cluster, tmp_path)


@pytest.mark.ray
@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_xenna_ends_well_and_a_teardown_that_fails_is_told(cluster: str, mode: str) -> None:
    engine_checks.check_bad_teardown(XennaExecutor({"execution_mode": mode}))


@pytest.mark.ray
def test_large_batches_pass_and_results_outlive_the_engine(cluster: str) -> None:
    engine_checks.check_large_batches(XennaExecutor(fuse=False), cluster)


@pytest.mark.ray
def test_same_bytes_and_a_run_goes_on_with_another_executor(cluster: str, tmp_path: Path) -> None:
    engine_checks.check_resumes(XennaExecutor(), tmp_path)


@pytest.mark.ray
def test_what_xenna_gives_up_is_done_by_actors(cluster: str, tmp_path: Path) -> None:
    """Version 0.3 ends the run when one of its actors dies; later ones start another, and may drop what it was at."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine_checks.check_killed_actor(XennaExecutor(), "StageWorker", tmp_path / "marks")
    messages = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    if version("cosmos-xenna").startswith("0.3"):
        assert re.match("Xenna left .* tasks undone; Gristmill runs them on its own actors", messages[0])


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore:.* left .* tasks undone:RuntimeWarning")
def test_an_engine_that_is_killed_before_it_has_begun_costs_nothing(cluster: str, tmp_path: Path) -> None:
    engine_checks.check_killed_actor(XennaExecutor(), "EngineActor", tmp_path / "marks", after=0)


@pytest.mark.ray
def test_groups_share_a_worker_where_cores_are_few_unless_they_must_not(cluster: str) -> None:
    """On two cores. Those that stay apart run all the same."""
    stages = [AddOne().with_(name=f"s{i}", resources=Resources(cpus=1 + i % 2)) for i in range(6)]
    pipeline = Pipeline("p", stages=stages)
    batch, apart = XennaExecutor({"execution_mode": "batch"}), XennaExecutor(fuse=False)
    for executor, groups in ((XennaExecutor(), 1), (batch, 6), (apart, 6)):
        assert len(executor.arrange(pipeline.plan([Task(1)])).groups) == groups
    result = pipeline.run(apart, initial_tasks=[Task(n) for n in range(9)])
    assert [task.data for task in result] == list(range(6, 15))


@pytest.mark.parametrize(
    ("rows", "batch", "wanted", "workers"),
    [(1, 1, None, 1), (2, 1, None, None), (4, 4, None, 1), (5, 4, None, None), (1, 1, 3, 3)],
)
def test_one_call_has_one_worker(rows: int, batch: int, wanted: int | None, workers: int | None) -> None:
    """What goes into later groups is not known, so they have as many as Xenna likes."""
    score = EngineJob([], [b""] * rows, [], [wanted, None], [batch, 1], [], cpus=4.0)
    assert _worker_counts(score) == [workers, None]


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"logging_intervall": 5}, "no setting 'logging_intervall'. Did you mean 'logging_interval'"),
        ({"execution_mode": "streamin"}, "must be 'streaming' or 'batch'. Did you mean 'streaming'"),
        ({"cpu_allocation_percentage": 0}, "cpu_allocation_percentage=0.*more than 0"),
    ],
)
def test_wrong_settings_are_refused(config: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        XennaExecutor(config)


def test_what_stands_in_for_its_monitor_does_all_that_it_does() -> None:
    """Of the version that is installed: 0.5 also stops it, at the end of a run, which then failed there."""
    code = """
from cosmos_xenna.pipelines.private.monitoring import RayResourceMonitor
from gristmill.executors.engines.xenna_executor import _NoMonitor
print({name for name in set(dir(RayResourceMonitor)) - set(dir(_NoMonitor)) if not name.startswith("_")})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_it_is_only_loaded_when_it_is_used() -> None:
    code = "import sys, gristmill; gristmill.XennaExecutor(); print({'ray', 'cosmos_xenna'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
