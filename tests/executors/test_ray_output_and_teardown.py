"""What a run on a cluster shows and leaves: lines that stages print, teardown after Ctrl-C, cores for others."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import Pipeline, RayActorPoolExecutor, Resources, Task
from gristmill.core.errors import ResourceError
from tests.conformance.small_stages import AddOne, Pid
from tests.ray_cluster import ray_cluster

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster(num_cpus=3):
        yield


SPEAKS = """
import sys
import gristmill
from gristmill import Pipeline, ProcessingStage, Task

class Speaks(ProcessingStage[Task[int], Task[int]]):
    def process(self, task):
        print(f"task {task.data}")
        print("the same line")
        print(f"warning {task.data}", file=sys.stderr)
        return task

    def teardown(self):
        print("torn down")

executor = getattr(gristmill, sys.argv[1])()
result = Pipeline("p", stages=[Speaks()]).run(executor, initial_tasks=[Task(number) for number in range(20)])
print("over", len(result))
"""


@pytest.mark.parametrize("executor", ["LocalExecutor", "RayActorPoolExecutor", "RayDataExecutor", "XennaExecutor"])
def test_what_a_stage_prints_is_seen(executor: str) -> None:
    if executor == "XennaExecutor":
        pytest.importorskip("cosmos_xenna")
    done = subprocess.run([sys.executable, "-c", SPEAKS, executor], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(line for line in lines if line.startswith("task")) == sorted(f"task {number}" for number in range(20))
    assert lines.count("the same line") == 20
    assert set(lines) - {f"task {number}" for number in range(20)} <= {"the same line", "torn down", "over 20"}
    assert sorted(done.stderr.splitlines()) == sorted(f"warning {number}" for number in range(20))


INTERRUPTED = """
import sys, time
from pathlib import Path
from gristmill import Pipeline, ProcessingStage, RayActorPoolExecutor, Task

class Model(ProcessingStage[Task[int], Task[int]]):
    def __init__(self, folder, floods):
        self.folder, self.floods = folder, floods

    def process(self, task):
        Path(self.folder, f"at work {task.data}").touch()
        while self.floods:
            yield Task(bytes(1_000_000))
        time.sleep(600)

    def teardown(self):
        time.sleep(0.2)
        Path(self.folder, f"torn down {id(self)}").touch()

stages = [Model(sys.argv[1], sys.argv[2] == "floods").with_(num_workers=2)]
tasks = Pipeline("p", stages=stages).stream(RayActorPoolExecutor(), initial_tasks=[Task(number) for number in range(6)])
for task in tasks:
    time.sleep(0.5)
"""


@pytest.mark.parametrize("how", ["sleeps", "floods"])
def test_a_stage_that_is_interrupted_is_torn_down(how: str, tmp_path: Path) -> None:
    """Also one that waits until somebody takes what it gives; and what waits behind it is not begun."""
    script = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path), how], stderr=subprocess.PIPE, text=True
    )
    while len(list(tmp_path.glob("at work *"))) < 2:
        assert script.poll() is None
    script.send_signal(signal.SIGINT)
    _, err = script.communicate(timeout=60)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert len(list(tmp_path.glob("torn down *"))) == 2
    assert len(list(tmp_path.glob("at work *"))) == 2


def test_reserved_cores_are_left_to_others() -> None:
    tasks = [Task(number) for number in range(40)]
    result = Pipeline("p", stages=[Pid()]).run(RayActorPoolExecutor({"reserved_cpus": 2}), initial_tasks=tasks)
    assert len({task.data for task in result}) == 1
    executor = RayActorPoolExecutor({"reserved_cpus": 3, "resource_wait_timeout_s": 0.5})
    with pytest.raises(ResourceError, match="reserved_cpus=3 leaves no core"):
        Pipeline("p", stages=[AddOne()]).run(executor, initial_tasks=tasks)
    with pytest.raises(ResourceError, match="needs 3 CPUs .* or reserve less"):
        Pipeline("p", stages=[AddOne().with_(resources=Resources(cpus=3))]).run(
            RayActorPoolExecutor({"reserved_cpus": 1}), initial_tasks=tasks
        )
