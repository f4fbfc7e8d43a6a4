"""What clusters do to a run: nodes disappear and join, stores fill up, drivers are killed."""

from __future__ import annotations

import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, Pipeline, ProcessingStage, RayActorPoolExecutor, Task
from gristmill.core.errors import LostTaskError, ResourceError
from tests.executors.ray_nodes import Cluster

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


@pytest.fixture
def cluster(head: Cluster) -> Iterator[Cluster]:
    """A head of one core; nodes that a test adds are killed after it."""
    yield head
    head.remove_nodes()


class Blocks(ProcessingStage[Task[int], DocumentBatch]):
    """Each number becomes four batches, each of 300 kB, and each time that is noted."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def process(self, task: Task[int]) -> Iterator[DocumentBatch]:
        (self.folder / f"{task.data}-{time.monotonic_ns()}").touch()
        for block in range(4):
            yield DocumentBatch([{"n": task.data, "block": block, "text": "x" * 1000} for _ in range(300)])


class Note(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Notes each batch, and takes its time."""

    def __init__(self, folder: Path, seconds: float = 0.05) -> None:
        super().__init__()
        self.folder, self.seconds = folder, seconds

    def process(self, task: DocumentBatch) -> DocumentBatch:
        row = task.to_rows()[0]
        (self.folder / f"{row['n']}-{row['block']}-{time.monotonic_ns()}").touch()
        time.sleep(self.seconds)
        return task.with_data(task.data)


class Size(ProcessingStage[DocumentBatch, Task[Any]]):
    def process(self, task: DocumentBatch) -> Task[Any]:
        row = task.to_rows()[0]
        return Task((row["n"], row["block"], task.num_items))


class Sizes(ProcessingStage[Task[Any], Task[Any]]):
    gather = True

    def process(self, task: Any) -> Task[Any]:
        return Task([Size().process(part).data for part in task.data])


def when(folder: Path, count: int, act: Any) -> threading.Thread:
    """Act as soon as so many files are there."""

    def watch() -> None:
        while sum(1 for _ in folder.iterdir()) < count:
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("how", ["kill", "kill_raylet"])
def test_a_node_that_disappears_costs_only_its_unfinished_tasks(cluster: Cluster, tmp_path: Path, how: str) -> None:
    doomed, count = cluster.add(cpus=2), 40
    made, seen = tmp_path / "made", tmp_path / "seen"
    made.mkdir()
    seen.mkdir()
    cluster.wait_for(2)
    last = Size() if how == "kill" else Sizes()
    thread = when(seen, count, getattr(doomed, how))
    slow = Note(seen).with_(num_workers=1)  # so that most of what was made waits in the stores
    result = Pipeline("p", stages=[Blocks(made), slow, last]).run(
        RayActorPoolExecutor(fuse=False), initial_tasks=[Task(number) for number in range(count)]
    )
    thread.join()
    expected = [(n, block, 300) for n in range(count) for block in range(4)]
    found = [task.data for task in result]
    assert (found if how == "kill" else [part for parts in found for part in parts]) == expected
    assert result.quarantined() == []
    assert result.summary()["Note"].rows_in == result.summary()["Note"].rows_out == count * 4 * 300
    assert len(list(made.iterdir())) > count + 2  # more than was under way there: what lay there was made again


def test_results_that_went_with_their_node_are_told(cluster: Cluster, tmp_path: Path) -> None:
    doomed = cluster.add()
    cluster.wait_for(2)
    executor = RayActorPoolExecutor(ignore_head_node=True)
    result = Pipeline("p", stages=[Blocks(tmp_path)]).run(executor, initial_tasks=[Task(1)])
    doomed.kill()
    with pytest.raises(
        LostTaskError, match=r"the node that it lay on has disappeared.* end the pipeline with a writer"
    ):
        list(result)


class Where(ProcessingStage[Task[int], Task[int]]):
    """Leaves a file for each node, and takes its time until there are two."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def process(self, task: Task[int]) -> Task[int]:
        import ray

        (self.folder / ray.get_runtime_context().get_node_id()).touch()
        if len(list(self.folder.iterdir())) < 2:
            time.sleep(0.5)
        return task


def test_a_node_that_joins_gets_work(cluster: Cluster, tmp_path: Path) -> None:
    thread = when(tmp_path, 1, cluster.add)
    result = Pipeline("p", stages=[Where(tmp_path)]).run(
        RayActorPoolExecutor(), initial_tasks=[Task(number) for number in range(200)]
    )
    thread.join()
    assert [task.data for task in result] == list(range(200))
    assert len(list(tmp_path.iterdir())) == 2


def wheel(folder: Path, version: str) -> str:
    """A package that knows its version, as pip installs it."""
    folder.mkdir(parents=True)
    path, info = folder / f"grist_probe-{version}-py3-none-any.whl", f"grist_probe-{version}.dist-info"
    files = {
        "grist_probe.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: grist-probe\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return str(path)


class AddVersion(ProcessingStage[Task[Any], Task[Any]]):
    def setup(self, worker_metadata: Any) -> None:
        import grist_probe

        self.version = grist_probe.version

    def process(self, task: Task[Any]) -> Task[Any]:
        return Task([*task.data, self.version])


def test_two_stages_have_two_versions_of_one_package(cluster: Cluster, tmp_path: Path) -> None:
    stages = [
        AddVersion().with_(name=f"v{version}", runtime_env={"py_modules": [wheel(tmp_path / version, version)]})
        for version in ("1.0", "2.0")
    ]
    result = Pipeline("p", stages=stages).run(RayActorPoolExecutor(), initial_tasks=[Task([]) for _ in range(4)])
    assert [task.data for task in result] == [["1.0", "2.0"]] * 4


def test_an_environment_that_cannot_be_made_is_told_with_its_stage(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"no wheel")
    stage = AddVersion().with_(runtime_env={"py_modules": [str(tmp_path / "broken-1.0-py3-none-any.whl")]})
    with pytest.raises(ResourceError, match="runtime_env of stage 'AddVersion' could not be set up"):
        Pipeline("p", stages=[stage]).run(RayActorPoolExecutor(), initial_tasks=[Task([])])
