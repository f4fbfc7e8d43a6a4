"""What clusters do to a run: nodes disappear and join, stores fill up, drivers are killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, Pipeline, ProcessingStage, RayActorPoolExecutor, Resources, Task
from gristmill.core.errors import LostTaskError, ResourceError
from gristmill.core.stage_roles import GatherRole
from gristmill.executors.ray.cluster import connect_to_cluster
from gristmill.text import JsonlReader, JsonlWriter
from tests.executors.multi_node_cluster import Cluster

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
    """Each number becomes four batches, each of 300 kB, and each time that is noted. A node that has made `most` waits
    for another one."""

    def __init__(self, folder: Path, most: int = 1000) -> None:
        super().__init__()
        self.folder, self.most = folder, most

    def process(self, task: Task[int]) -> Iterator[DocumentBatch]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        (self.folder / f"{task.data}-{time.monotonic_ns()}-{node}").touch()
        while by_node(self.folder)[node] > self.most and not two_nodes(self.folder):
            time.sleep(0.1)
        for block in range(4):
            yield DocumentBatch([{"n": task.data, "block": block, "text": "x" * 1000} for _ in range(300)])


def by_node(folder: Path) -> Counter[str]:
    return Counter(path.name.split("-")[2] for path in folder.iterdir())


def two_nodes(folder: Path) -> bool:
    """Whether two nodes have made a good part each."""
    return sum(count >= 7 for count in by_node(folder).values()) == 2


class Note(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Notes each batch. After twelve of them it waits until something has happened."""

    def __init__(self, folder: Path, happened: Path) -> None:
        super().__init__()
        self.folder, self.happened = folder, happened

    def process(self, task: DocumentBatch) -> DocumentBatch:
        row = task.to_rows()[0]
        (self.folder / f"{row['n']}-{row['block']}-{time.monotonic_ns()}").touch()
        while len(list(self.folder.iterdir())) > 12 and not self.happened.exists():
            time.sleep(0.05)
        return task.with_data(task.data)


class Size(ProcessingStage[DocumentBatch, Task[Any]]):
    def process(self, task: DocumentBatch) -> Task[Any]:
        row = task.to_rows()[0]
        return Task((row["n"], row["block"], task.num_items))


class Sizes(ProcessingStage[Task[Any], Task[Any]], GatherRole):
    def process(self, task: Any) -> Task[Any]:
        return Task([Size().process(part).data for part in task.data])


def when(ready: Callable[[], bool], act: Callable[[], Any]) -> threading.Thread:
    """Act as soon as it is time, or a minute later than that should be."""

    def watch() -> None:
        deadline = time.monotonic() + 120
        while not ready() and time.monotonic() < deadline:
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("how", ["kill", "kill_raylet"])
def test_a_node_that_disappears_costs_only_its_unfinished_tasks(cluster: Cluster, tmp_path: Path, how: str) -> None:
    doomed, count = cluster.add(cpus=2), 40
    made, seen, gone = tmp_path / "made", tmp_path / "seen", tmp_path / "gone"
    made.mkdir()
    seen.mkdir()
    cluster.wait_for(2)
    last = Size() if how == "kill" else Sizes()

    def ready() -> bool:  # all has begun, and most of it waits in the stores of both nodes
        return by_node(made).total() >= count and two_nodes(made) and any(seen.iterdir())

    def act() -> None:
        getattr(doomed, how)()
        gone.touch()

    thread = when(ready, act)
    stages = [Blocks(made, most=18), Note(seen, gone).with_(num_workers=1), last]
    stages = [stage.with_(max_retries=0) for stage in stages]  # a record that is blamed would not come out
    result = Pipeline("p", stages=stages).run(
        RayActorPoolExecutor(fuse=False), initial_tasks=[Task(number) for number in range(count)]
    )
    thread.join()
    expected = [(n, block, 300) for n in range(count) for block in range(4)]
    found = [task.data for task in result]
    assert (found if how == "kill" else [part for parts in found for part in parts]) == expected
    assert result.quarantined() == []
    assert result.summary()["Note"].rows_in == result.summary()["Note"].rows_out == count * 4 * 300
    assert count < len(list(made.iterdir())) < 2 * count  # what lay there was made again, and no more


class Made(ProcessingStage[Task[int], DocumentBatch]):
    """A batch that is too large for a message, with the node that it was made on."""

    def process(self, task: Task[int]) -> DocumentBatch:
        import ray

        time.sleep(0.05)
        node = ray.get_runtime_context().get_node_id()
        return DocumentBatch([{"node": node, "text": "x" * 1000} for _ in range(300)])


class IsHere(ProcessingStage[DocumentBatch, Task[Any]]):
    def process(self, task: DocumentBatch) -> Task[Any]:
        import ray

        time.sleep(0.15)  # there is always something that waits, and nearly always nobody who does
        made = task.data["node"][0].as_py()
        return Task((made, made == ray.get_runtime_context().get_node_id()))


def test_work_goes_to_the_node_that_holds_what_it_needs(cluster: Cluster) -> None:
    cluster.add()
    cluster.wait_for(2)
    half = Resources(cpus=0.4)  # there is room for both on each of the nodes
    stages = [stage.with_(num_workers=2, resources=half) for stage in (Made(), IsHere())]
    result = Pipeline("p", stages=stages).run(
        RayActorPoolExecutor(fuse=False), initial_tasks=[Task(number) for number in range(60)]
    )
    found = Counter(task.data for task in result)
    assert len({node for node, _ in found}) == 2
    assert sum(count for (_, here), count in found.items() if here) >= 0.7 * 60  # by chance it would be half


def test_results_that_went_with_their_node_are_told(cluster: Cluster, tmp_path: Path) -> None:
    doomed = cluster.add()
    cluster.wait_for(2)
    executor = RayActorPoolExecutor(ignore_head_node=True)
    result = Pipeline("p", stages=[Blocks(tmp_path)]).run(executor, initial_tasks=[Task(1)])
    doomed.kill()
    with pytest.raises(LostTaskError, match=r"its node has disappeared.* end the pipeline with a writer"):
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
    thread = when(lambda: any(tmp_path.iterdir()), cluster.add)
    result = Pipeline("p", stages=[Where(tmp_path)]).run(
        RayActorPoolExecutor(), initial_tasks=[Task(number) for number in range(200)]
    )
    thread.join()
    assert [task.data for task in result] == list(range(200))
    assert len(list(tmp_path.iterdir())) == 2


MILL = """
import sys
from pathlib import Path
from tests.executors.test_ray_faults import mill
from gristmill import RayActorPoolExecutor
result = mill(Path(sys.argv[1])).run(RayActorPoolExecutor(), Path(sys.argv[1]) / "run", max_errors=1)
print(result.summary().rows_out, len(result.quarantined()))
"""


class Slowly(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Takes its time, and dies of one record."""

    max_retries = 0

    def process(self, task: DocumentBatch) -> DocumentBatch:
        time.sleep(0.1 if task.num_items > 1 else 0)
        if "3-7" in task.data["id"].to_pylist():
            os._exit(1)
        return task


def mill(folder: Path) -> Pipeline:
    reader = JsonlReader(str(folder / "in"), files_per_partition=1)
    return Pipeline("p", stages=[reader, Slowly(), JsonlWriter(str(folder / "out"))])


def write_corpus(folder: Path, files: int) -> None:
    (folder / "in").mkdir(parents=True)
    for number in range(files):
        rows = [{"id": f"{number}-{row}", "text": "grist " * row} for row in range(10)]
        (folder / "in" / f"{number:02}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def start(folder: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", MILL, str(folder)], stdout=pipe, stderr=pipe, text=True)


def output(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("*.jsonl"))}


def actors() -> list[str]:
    """The actors of the cluster that are alive, or will be."""
    from ray._private.state import actors

    return [actor["ActorClassName"] for actor in actors().values() if actor["State"] != "DEAD"]


def test_two_pipelines_share_a_cluster_and_leave_nothing_behind(cluster: Cluster, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        write_corpus(folder, 6)
    runs = [start(folder) for folder in folders]
    said = [run.communicate(timeout=300) for run in runs]
    assert said == [("59 1\n", "")] * 2  # and no word of the workers that died
    assert output(folders[0]) == output(folders[1])
    connect_to_cluster()
    assert actors() == []


def test_a_driver_that_is_killed_leaves_no_actors_and_its_run_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    write_corpus(tmp_path, 40)
    run = start(tmp_path)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "run").glob("ledger/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    run.kill()
    run.communicate()
    connect_to_cluster()
    while actors() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert actors() == []
    done = mill(tmp_path).run(RayActorPoolExecutor(), tmp_path / "run", max_errors=1)
    assert 0 < done.summary(attempt=True)["read_jsonl"].rows_out < 400
    (tmp_path / "fresh" / "in").parent.mkdir()
    shutil.copytree(tmp_path / "in", tmp_path / "fresh" / "in")
    mill(tmp_path / "fresh").run(max_errors=1)
    assert output(tmp_path) == output(tmp_path / "fresh")
    assert len(output(tmp_path)) == 40


class Devices(ProcessingStage[Task[int], Task[Any]]):
    def setup(self, worker_metadata: Any = None) -> None:
        self.worker = (worker_metadata.node.node_id, worker_metadata.gpus, worker_metadata.worker_id)

    def process(self, task: Task[int]) -> Task[Any]:
        time.sleep(0.05)
        return Task(self.worker)


def test_gpus_are_where_their_workers_are(cluster: Cluster) -> None:
    for count, gpus in ((2, 2), (3, 1)):
        cluster.add(gpus=gpus)
        cluster.wait_for(count)  # two that start at once would take the same ports
    numbers = [Task(number) for number in range(60)]
    both = Devices().with_(resources=Resources(cpus=0.1, gpus=2))
    pairs = Pipeline("p", stages=[both]).run(RayActorPoolExecutor(), initial_tasks=numbers)
    assert {gpus for _, gpus, _ in (task.data for task in pairs)} == {(0, 1)}
    shares = Resources(cpus=0.1, gpu_memory_gb=10)
    executor = RayActorPoolExecutor({"gpu_memory_gb": 24})
    shared = Pipeline("p", stages=[Devices().with_(resources=shares)]).run(executor, initial_tasks=numbers)
    workers = {task.data for task in shared}
    by_device = Counter((node, gpus) for node, gpus, _ in workers)
    assert 1 <= len(by_device) <= 3
    assert max(by_device.values()) <= 2
    with pytest.raises(ResourceError, match="needs gpus=3, but the cluster has 3 GPUs on 3 nodes, at most 2 on one"):
        Pipeline("p", stages=[Devices().with_(resources=Resources(cpus=0, gpus=3))]).run(RayActorPoolExecutor())


def test_workers_stay_off_the_head_or_the_run_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ResourceError, match="its only node is the head, and ignore_head_node=True"):
        Pipeline("p", stages=[Devices()]).run(RayActorPoolExecutor(ignore_head_node=True))


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
    def setup(self, worker_metadata: Any = None) -> None:
        import grist_probe

        self.version = grist_probe.version

    def process(self, task: Task[Any]) -> Task[Any]:
        return Task([*task.data, self.version])


@pytest.mark.parametrize("how", ["pip", "py_modules"])
def test_two_stages_have_two_versions_of_one_package(cluster: Cluster, tmp_path: Path, how: str) -> None:
    stages = [
        AddVersion().with_(name=f"v{version}", runtime_env={how: [wheel(tmp_path / version, version)]})
        for version in ("1.0", "2.0")
    ]
    result = Pipeline("p", stages=stages).run(RayActorPoolExecutor(), initial_tasks=[Task([]) for _ in range(4)])
    assert [task.data for task in result] == [["1.0", "2.0"]] * 4


def test_an_environment_that_cannot_be_made_is_told_with_its_stage(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"no wheel")
    for env in ({"pip": [str(tmp_path / "broken-1.0-py3-none-any.whl")]}, {"conda": "there-is-no-such-environment"}):
        stage = AddVersion().with_(runtime_env=env)
        with pytest.raises(ResourceError, match="runtime_env of stage 'AddVersion' could not be set up"):
            Pipeline("p", stages=[stage]).run(RayActorPoolExecutor(), initial_tasks=[Task([])])


class Fan(ProcessingStage[Task[int], DocumentBatch]):
    """One task becomes many that are too large for a message. Its worker may die of it, the first time."""

    def __init__(self, mark: Path, dies: bool) -> None:
        super().__init__()
        self.mark, self.dies = mark, dies

    def process(self, task: Task[int]) -> Iterator[DocumentBatch]:
        for block in range(60):
            if block == 40 and self.dies and not self.mark.exists():
                self.mark.touch()
                os._exit(1)
            yield DocumentBatch([{"block": block, "text": "x" * 1000} for _ in range(200)])


class Worked(ProcessingStage[DocumentBatch, Task[Any]]):
    def process(self, task: DocumentBatch) -> Task[Any]:
        time.sleep(0.1)
        return Task((task.to_rows()[0]["block"], os.getpid()))


@pytest.mark.parametrize("dies", [False, True])
def test_one_task_that_becomes_many_is_shared_out(cluster: Cluster, tmp_path: Path, dies: bool) -> None:
    cluster.add(cpus=2)
    cluster.wait_for(2)
    stages = [Fan(tmp_path / "mark", dies), Worked()]
    result = Pipeline("p", stages=stages).run(RayActorPoolExecutor(), initial_tasks=[Task(1)])
    assert [task.data[0] for task in result] == list(range(60))
    assert len({task.data[1] for task in result}) > 1
    assert result.summary()["Fan"].rows_out == result.summary()["Worked"].rows_in == 60 * 200
    assert (tmp_path / "mark").exists() is dies
