"""RayActorPoolExecutor and RayClient on a real cluster on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, RayActorPoolExecutor, Resources, Task
from gristmill.core.errors import PlanError, ResourceError
from gristmill.executors.ray.ray_client import RayClient, processes_with_mark
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter
from tests.conformance.small_stages import AddOne, CountTo, Gather, Leak, Trouble

pytest.importorskip("ray")
ROOT = Path(__file__).parents[2]
STARTED: list[str] = []
"""The mark of the cluster's processes."""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = paths
    client = RayClient(num_cpus=3, num_gpus=2, include_dashboard=False)
    client.start()
    mark = client._mark
    STARTED[:] = [mark]
    yield
    client.stop()
    assert not processes_with_mark(mark)
    assert "RAY_ADDRESS" not in os.environ
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.mark.parametrize("fuse", [True, pytest.param(False, marks=pytest.mark.ray)])
def test_tasks_go_through_pools_of_actors(fuse: bool) -> None:
    stages = [CountTo(300), AddOne(), AddOne().with_(name="again")]
    result = Pipeline("p", stages=stages).run(RayActorPoolExecutor(fuse=fuse))
    assert [task.data for task in result] == list(range(2, 302))
    assert result.summary()["again"].rows_out == 300


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        pytest.param("exit", "crashed", marks=pytest.mark.ray),
        ("raise", "raised"),
        pytest.param("segfault", "crashed", marks=pytest.mark.ray),
        pytest.param("hang", "timed out", marks=pytest.mark.ray),
    ],
)
def test_the_record_at_fault_is_found(what: str, kind: str) -> None:
    stage = Trouble(what, 37).with_(timeout_s=1.0 if what == "hang" else None)
    result = Pipeline("p", stages=[CountTo(100), stage, AddOne()]).run(RayActorPoolExecutor(), max_errors=1)
    assert [task.data for task in result] == [number + 1 for number in range(100) if number != 37]
    assert [(record.kind, record.content) for record in result.quarantined()] == [(kind, "37")]


class Blocks(ProcessingStage[Task[int], DocumentBatch]):
    """Batches of more than rides in a message."""

    def process(self, task: Task[int]) -> Iterator[DocumentBatch]:
        for block in range(4):
            yield DocumentBatch([{"n": task.data, "block": block, "text": "x" * 1000} for _ in range(300)])


class Kills(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        rows = task.to_rows()
        if rows and (rows[0]["n"], rows[0]["block"]) == (2, 1) and len(rows) < 300:
            os._exit(1)
        return task


@pytest.mark.ray
def test_large_batches_stay_in_the_object_store_and_are_gathered() -> None:
    stages = [Blocks(), AddColumn(), Gather()]
    result = Pipeline("p", stages=stages).run(
        RayActorPoolExecutor(fuse=False), initial_tasks=[Task(number) for number in range(5)]
    )
    assert len(result) == 5


class AddColumn(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        rows = [{**row, "more": 1} for row in task.to_rows()]
        return task.with_data(DocumentBatch(rows).data)


def write_corpus(folder: Path) -> None:
    folder.mkdir()
    for number in range(6):
        rows = [{"id": f"{number}-{row}", "text": "grist " * (row % 40)} for row in range(500)]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.jsonl"))}


class Stop(ProcessingStage[Any, Any]):
    """Fails on a file when another one has been written, until it may go on."""

    max_retries = 0

    def __init__(self, go: Path, out: Path) -> None:
        self.go, self.out = go, out

    def process(self, task: Any) -> Any:
        if not self.go.exists() and "/4.jsonl" in task.lineage.files[0]:
            deadline = time.monotonic() + 60
            while not contents(self.out) and time.monotonic() < deadline:
                time.sleep(0.05)
            raise RuntimeError("stop here")
        return task


@pytest.mark.ray
def test_same_bytes_and_a_run_goes_on_where_another_executor_stopped(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in")

    def pipeline(out: str, blocksize: int) -> Pipeline:
        reader = JsonlReader(str(tmp_path / "in"), blocksize=blocksize)
        stop = Stop(tmp_path / "go", tmp_path / "out")
        stages = [reader, ScoreFilter(WordCountFilter(min_words=5)), stop, JsonlWriter(tmp_path / out)]
        return Pipeline("p", stages=stages)

    with pytest.raises(Exception, match="stop here"):
        pipeline("out", 9000).run(RayActorPoolExecutor(), tmp_path / "run", on_error="raise")
    (tmp_path / "go").touch()
    done = pipeline("out", 40_000).run(LocalExecutor(2), tmp_path / "run")
    assert done.summary()["read_jsonl"].rows_out == 3000
    assert done.summary(attempt=True)["read_jsonl"].rows_out < 3000
    pipeline("fresh", 10**6).run(RayActorPoolExecutor(fuse=False), rejected=tmp_path / "rejected")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    assert not (tmp_path / "out.run" / "_tmp").exists()


@pytest.mark.ray
def test_a_worker_is_replaced_after_so_many_tasks(tmp_path: Path) -> None:
    stage = Leak(tmp_path).with_(max_tasks_per_worker=7)
    result = Pipeline("p", stages=[stage]).run(RayActorPoolExecutor(), initial_tasks=[Task(i) for i in range(20)])
    counts = Counter(task.data for task in result)
    assert counts.total() == 20
    assert max(counts.values()) <= 7
    assert {int(mark.name) for mark in tmp_path.iterdir()} >= set(counts)


@pytest.mark.ray
def test_a_worker_that_leaks_is_replaced_when_it_has_outgrown_its_limit(tmp_path: Path) -> None:
    stage = Leak(tmp_path, megabytes=40).with_(resources=Resources(cpus=1, memory_gb=0.4), num_workers=1)
    result = Pipeline("p", stages=[stage]).run(RayActorPoolExecutor(), initial_tasks=[Task(i) for i in range(30)])
    counts = Counter(task.data for task in result)
    assert counts.total() == 30
    assert len(counts) >= 2
    assert min(list(counts.values())[:-1]) >= 2  # not before it has to be
    assert {int(mark.name) for mark in tmp_path.iterdir()} >= set(counts)


class WaitsForOthers(ProcessingStage[Task[int], Task[Any]]):
    """The first number is through when all others are; each time that a number is worked on is noted."""

    max_retries = 0

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def process(self, task: Task[int]) -> Task[Any]:
        (self.folder / f"{task.data}-{time.monotonic_ns()}").touch()
        deadline = time.monotonic() + 60
        while task.data == 0 and len({path.name.split("-")[0] for path in self.folder.iterdir()}) < self.count:
            assert time.monotonic() < deadline, "one of the others waits behind this one"
            time.sleep(0.05)
        return Task((task.data, os.getpid()))


@pytest.mark.ray
def test_a_call_that_waits_behind_a_long_one_is_done_by_another_worker(tmp_path: Path) -> None:
    stage = WaitsForOthers(tmp_path, 8).with_(num_workers=2)
    result = Pipeline("p", stages=[stage]).run(RayActorPoolExecutor(), initial_tasks=[Task(i) for i in range(8)])
    first, *others = [task.data for task in result]
    assert [number for number, _ in others] == list(range(1, 8))
    assert first[1] not in {worker for _, worker in others}  # whoever has the first can do nothing else
    assert len(list(tmp_path.iterdir())) == 8  # nor has it done again what was taken from it


class Gpus(ProcessingStage[Task[int], Task[Any]]):
    def setup(self, worker_metadata: Any = None) -> None:
        self.gpus = worker_metadata.gpus

    def process(self, task: Task[int]) -> Task[Any]:
        time.sleep(0.05)
        return Task((self.gpus, os.getpid()))


def test_gpus_are_reserved() -> None:
    stage = Gpus().with_(resources=Resources(cpus=0.1, gpus=1))
    result = Pipeline("p", stages=[stage]).run(RayActorPoolExecutor(), initial_tasks=[Task(i) for i in range(40)])
    seen = {task.data for task in result}
    assert {gpus for gpus, _ in seen} <= {(0,), (1,)}
    assert len(seen) <= 2


def test_what_can_never_run_is_refused_at_once() -> None:
    for resources, match in ((Resources(gpus=3), "the cluster has 2 GPUs"), (Resources(cpus=64), "needs 64 CPUs")):
        stage = AddOne().with_(resources=resources)
        began = time.monotonic()
        with pytest.raises(ResourceError, match=match):
            Pipeline("p", stages=[stage]).run(RayActorPoolExecutor(), initial_tasks=[Task(1)])
        assert time.monotonic() - began < 5
    with pytest.raises(PlanError, match=r"no setting 'gpu_memory'. Did you mean 'gpu_memory_gb'"):
        RayActorPoolExecutor(config={"gpu_memory": 80})


@pytest.mark.ray
def test_batch_mode_and_progress_do_what_they_say(capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("GRISTMILL_PROGRESS", "plain")
    for shows in (True, False):
        executor = RayActorPoolExecutor(
            {"execution_mode": "batch"}, fuse=False, show_progress=shows, progress_interval=0.01
        )
        result = Pipeline("p", stages=[CountTo(30), AddOne()]).run(executor)
        assert [task.data for task in result] == list(range(1, 31))
        assert ("gristmill: " in capfd.readouterr().err) == shows
    with pytest.raises(PlanError, match="must be 'streaming' or 'batch'"):
        RayActorPoolExecutor(execution_mode="stream")


def test_a_second_client_joins_and_leaves_the_cluster_alone() -> None:
    address = os.environ["RAY_ADDRESS"]
    with RayClient() as second:
        assert second.address == address
    assert os.environ["RAY_ADDRESS"] == address
    done = Pipeline("p", stages=[AddOne()]).run(RayActorPoolExecutor(), initial_tasks=[Task(1)])
    assert [task.data for task in done] == [2]


@pytest.mark.ray
def test_more_pools_than_cores_run() -> None:
    stages = [AddOne().with_(name=f"s{number}") for number in range(6)]
    result = Pipeline("p", stages=stages).run(
        RayActorPoolExecutor(fuse=False), initial_tasks=[Task(number) for number in range(20)]
    )
    assert [task.data for task in result] == list(range(6, 26))


def test_ray_is_only_loaded_when_it_is_used() -> None:
    code = "import sys, gristmill; gristmill.RayActorPoolExecutor(); print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


JOINS = """
from gristmill import Pipeline, RayActorPoolExecutor, RayClient, Task
from tests.conformance.small_stages import AddOne

with RayClient() as client:
    result = Pipeline("p", stages=[AddOne()]).run(RayActorPoolExecutor(), initial_tasks=[Task(1)])
    print(client.address, [task.data for task in result])
"""


@pytest.mark.ray
def test_a_node_joins_by_the_address_of_the_server_for_clients() -> None:
    pytest.importorskip("grpc")
    host, _, _ = os.environ["RAY_ADDRESS"].rpartition(":")
    (port,) = {
        word.rpartition("=")[2]
        for pid in processes_with_mark(STARTED[0])
        for word in command(pid)
        if word.startswith("--ray-client-server-port=")
    }
    env = {**os.environ, "RAY_ADDRESS": f"ray://{host}:{port}"}
    done = subprocess.run([sys.executable, "-c", JOINS], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == f"ray://{host}:{port} [2]\n", done.stderr


def command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


class FirstIsShort(ProcessingStage[Task[int], Task[int]]):
    """All workers begin at once. The first task is soon done; what its worker does next takes long."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.had = folder, list[int]()

    def setup(self, worker_metadata: Any = None) -> None:
        (self.folder / f"worker {os.getpid()}").touch()
        while len(list(self.folder.glob("worker *"))) < 3:
            time.sleep(0.01)

    def process(self, task: Task[int]) -> Task[int]:
        (self.folder / f"task {task.data} {time.monotonic_ns()}").touch()
        time.sleep(5.0 if 0 in self.had else 0.3 if task.data == 0 else 0.0)
        self.had.append(task.data)
        return task


@pytest.mark.ray
def test_a_call_is_not_taken_back_that_began_while_the_driver_was_away(tmp_path: Path) -> None:
    stage = FirstIsShort(tmp_path).with_(num_workers=3)
    came = []
    for task in Pipeline("p", stages=[stage]).stream(
        RayActorPoolExecutor(), initial_tasks=[Task(number) for number in range(4)]
    ):
        if not came:
            time.sleep(3.0)  # whoever had the first task is through with it, and idle ones look for work
        came.append(task.data)
    assert sorted(came) == list(range(4))
    assert len(list(tmp_path.glob("task *"))) == 4


SLURM = """
import ray
from gristmill import SlurmRayClient
from gristmill.executors.ray.cluster import cluster_nodes, connect_to_cluster

with SlurmRayClient(include_dashboard=False, num_cpus=1, worker_connect_timeout_s=60):
    connect_to_cluster()
    print("nodes", len(cluster_nodes()), flush=True)
"""


@pytest.mark.ray
def test_one_script_on_all_nodes_of_a_slurm_job(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    env |= {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2", "RAY_PORT_BROADCAST_DIR": str(tmp_path)}
    nodes = [
        subprocess.Popen(
            [sys.executable, "-c", SLURM], env=env | {"SLURM_NODEID": node}, stdout=subprocess.PIPE, text=True
        )
        for node in ("0", "1")
    ]
    said = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    assert said == ["nodes 2\n", ""]
    assert list(tmp_path.iterdir()) == []
