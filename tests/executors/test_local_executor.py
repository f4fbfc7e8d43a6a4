"""LocalExecutor: workers that die, hang or run ahead; drivers that are killed; GPUs; what is left behind."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, ProcessingStage, Resources, Task
from gristmill.core.errors import PlanError, ResourceError, StageError, TaskTimeoutError, WorkerLostError
from gristmill.core.executor import Progress, SilentObserver
from tests.conformance.small_stages import AddOne, Big, CountTo, Leak, Pid, Slow, StreamThenTrouble, Trouble
from tests.executors.leftover_processes import leftovers, nothing_left

pytestmark = pytest.mark.usefixtures(nothing_left.__name__)


@pytest.mark.parametrize("what", ["exit", "kill", "segfault", "sys.exit"])
def test_a_worker_that_dies_once_is_replaced(what: str, tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[CountTo(100), Trouble(what, 37, tmp_path), AddOne()])
    assert [task.data for task in pipeline.run(LocalExecutor(2))] == list(range(1, 101))


@pytest.mark.parametrize(
    ("what", "why"),
    [("exit", "exited with code 3"), ("kill", "killed by SIGKILL"), ("segfault", "killed by SIGSEGV")],
)
def test_a_worker_that_always_dies_is_an_error_that_names_stage_and_task(what: str, why: str) -> None:
    with pytest.raises(WorkerLostError, match=rf"stage 'Trouble' failed on task 0\.37: its worker .*{why}"):
        Pipeline("p", stages=[CountTo(100), AddOne(), Trouble(what, 38)]).run(LocalExecutor(2), on_error="raise")


def test_a_task_that_hangs_is_stopped_and_named() -> None:
    stage = Trouble("hang", 3).with_(timeout_s=0.3, max_retries=1)
    began = time.monotonic()
    with pytest.raises(TaskTimeoutError, match=r"'Trouble' failed on task 0\.3: it ran for more than 0.3 s"):
        Pipeline("p", stages=[CountTo(5), stage]).run(LocalExecutor(2), on_error="raise")
    assert time.monotonic() - began < 20


def test_a_task_that_hangs_once_is_tried_again(tmp_path: Path) -> None:
    stage = Trouble("hang", 3, tmp_path).with_(timeout_s=0.3)
    assert len(Pipeline("p", stages=[CountTo(5), stage]).run(LocalExecutor(2))) == 5


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("nap", [0.0, 0.02])
def test_a_stream_whose_worker_dies_gives_each_child_once(tmp_path: Path, fuse: bool, nap: float) -> None:
    stages = [StreamThenTrouble("kill", tmp_path, children=30, nap=nap), AddOne(), Pid(0).with_(name="end")]
    result = Pipeline("p", stages=stages[:2]).run(LocalExecutor(3, fuse=fuse), initial_tasks=[Task(0), Task(1)])
    assert [task.data for task in result] == [1000 * n + i + 1 for n in range(2) for i in range(30)]


def test_one_task_that_becomes_many_is_shared_out() -> None:
    class Many(ProcessingStage[Task[int], Task[int]]):
        def process(self, task: Task[int]) -> Iterator[Task[int]]:
            for index in range(40):
                yield Task(index)

    pipeline = Pipeline("p", stages=[Many(), Pid(0.05)])
    assert len(pipeline.plan([Task(0)]).groups) == 1
    result = pipeline.run(LocalExecutor(3), initial_tasks=[Task(0)])
    assert len(result) == 40
    assert len({task.data for task in result}) > 1


class Nap(ProcessingStage[Task[int], Task[tuple[int, float, float]]]):
    """Takes a second. Tells in which process, from when to when."""

    def process(self, task: Task[int]) -> Task[tuple[int, float, float]]:
        began = time.monotonic()
        time.sleep(1.0)
        return Task((os.getpid(), began, time.monotonic()))


def test_what_is_left_to_others_is_with_them_before_the_rest_is_done() -> None:
    class Some(ProcessingStage[Task[int], Task[int]]):
        def process(self, task: Task[int]) -> Iterator[Task[int]]:
            for index in range(5):
                time.sleep(0.1)  # so that it is asked to share
                yield Task(index)

    result = Pipeline("p", stages=[Some(), Nap()]).run(LocalExecutor(2), initial_tasks=[Task(0)])
    naps = sorted((task.data for task in result), key=lambda nap: nap[1])
    assert len(naps) == 5
    (first, _, ended), others = naps[0], [nap for nap in naps if nap[0] != naps[0][0]]
    assert min(began for _, began, _ in others) < ended, f"{first} was through before others had begun"


class Watch(SilentObserver):
    def __init__(self) -> None:
        self.most = 0

    def progressed(self, progress: Progress) -> None:
        self.most = max(self.most, *(pool.queued_bytes for pool in progress.pools))


def test_bytes_between_pools_are_bounded() -> None:
    """A fast producer of 2 GB before a slow consumer: it waits, with no more than a window in flight."""
    watch = Watch()
    pipeline = Pipeline("p", stages=[Big(children=256, size=8 * 2**20), Slow(0.002)])
    result = pipeline.run(LocalExecutor(1), initial_tasks=[Task(0)], observer=watch)
    assert [task.data for task in result] == [8 * 2**20] * 256
    assert 0 < watch.most <= 256 * 2**20 + 2 * 64 * 2**20


def test_a_full_queue_before_a_pool_does_not_stop_what_leaves_it() -> None:
    """Each task of a queue that is full becomes more than a window of bytes."""

    class Copy(ProcessingStage[Task[Any], Task[Any]]):
        num_workers = 1

        def process(self, task: Task[Any]) -> Iterator[Task[Any]]:
            for _ in range(12):
                yield Task(task.data)

    pipeline = Pipeline("p", stages=[Big(children=48, size=8 * 2**20), Copy(), Slow(0.001)])
    result = pipeline.run(LocalExecutor(1, fuse=False), initial_tasks=[Task(0)])
    assert len(result) == 48 * 12


def test_results_are_loaded_when_looked_at_and_go_with_the_result() -> None:
    before = leftovers()
    result = Pipeline("p", stages=[Big(children=4, size=10**6)]).run(LocalExecutor(2), initial_tasks=[Task(0)])
    assert len(leftovers() - before) == 1
    assert len(result[3].data) == 10**6
    del result
    assert leftovers() <= before


def test_a_consumer_that_stops_early_stops_the_workers() -> None:
    stream = Pipeline("p", stages=[CountTo(10**6), AddOne()]).stream(LocalExecutor(2))
    assert next(stream).data >= 1
    stream.close()
    assert not children_of(os.getpid())


class VisibleGpus(ProcessingStage[Task[int], Task[Any]]):
    def setup(self, worker_metadata: Any = None) -> None:
        self.gpus = worker_metadata.gpus

    def process(self, task: Task[int]) -> Task[Any]:
        time.sleep(0.05)
        return Task((os.environ["CUDA_VISIBLE_DEVICES"], self.gpus, os.getpid()))


@pytest.mark.parametrize(
    ("resources", "gpus", "workers"),
    [
        (Resources(gpus=1), 2, 2),
        (Resources(gpus=0.25), 1, 4),
        (Resources(gpu_memory_gb=10), [24.0], 2),
        (Resources(gpu_memory_gb=10), [24.0, 80.0], 10),
    ],
    ids=str,
)
def test_gpus_are_handed_out(resources: Resources, gpus: Any, workers: int) -> None:
    stage = VisibleGpus().with_(
        resources=Resources(cpus=0.1, gpus=resources.gpus, gpu_memory_gb=resources.gpu_memory_gb)
    )
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(4, gpus=gpus), initial_tasks=[Task(i) for i in range(60)])
    seen = {task.data for task in result}
    devices = len(gpus) if isinstance(gpus, list) else gpus
    assert {int(visible) for visible, _, _ in seen} <= set(range(devices))
    assert all((int(visible),) == given for visible, given, _ in seen)
    assert len({pid for _, _, pid in seen}) <= workers


def test_two_stages_that_each_want_the_only_gpu_take_turns() -> None:
    stages = [AddOne().with_(name=name, resources=Resources(cpus=1, gpus=1)) for name in ("a", "b")]
    result = Pipeline("p", stages=stages).run(LocalExecutor(2, gpus=1), initial_tasks=[Task(i) for i in range(20)])
    assert [task.data for task in result] == list(range(2, 22))


class Workers(SilentObserver):
    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def progressed(self, progress: Progress) -> None:
        self.seen.append([pool.workers for pool in progress.pools])


def test_gpus_go_to_the_stage_that_needs_them_most() -> None:
    """A quick stage before one that is ten times slower, on four GPUs."""
    quick = Pid(0.005).with_(name="quick", resources=Resources(cpus=0.1, gpus=1))
    slow = Pid(0.05).with_(name="slow", resources=Resources(cpus=0.1, gpus=1))
    workers = Workers()
    pipeline = Pipeline("p", stages=[quick, slow])
    pipeline.run(LocalExecutor(4, gpus=4), initial_tasks=[Task(i) for i in range(200)], observer=workers)
    assert max(count for _, count in workers.seen) >= 3


def test_a_gpu_stage_without_a_gpu_is_refused_with_a_way_out() -> None:
    stage = AddOne().with_(resources=Resources(gpus=1))
    with pytest.raises(ResourceError, match=r"'AddOne' needs cpus=1 gpus=1, but this machine has no GPU.*with_"):
        Pipeline("p", stages=[stage]).run(LocalExecutor(2, gpus=0), initial_tasks=[Task(1)])


def test_more_memory_than_there_is_is_refused() -> None:
    stage = AddOne().with_(resources=Resources(memory_gb=10**6))
    with pytest.raises(ResourceError, match="needs 1e\\+06 GB of memory"):
        Pipeline("p", stages=[stage]).run(LocalExecutor(2), initial_tasks=[Task(1)])


def test_a_runtime_env_sets_variables_and_what_it_cannot_do_is_refused() -> None:
    class Read(AddOne):
        def process(self, task: Task[int]) -> Any:
            return Task(os.environ["MILL"])

    stage = Read().with_(runtime_env={"env_vars": {"MILL": "wind"}})
    result = Pipeline("p", stages=[AddOne(), stage]).run(LocalExecutor(2), initial_tasks=[Task(1)])
    assert [task.data for task in result] == ["wind"]
    with pytest.raises(ResourceError, match="runtime_env pip"):
        Pipeline("p", stages=[Read().with_(runtime_env={"pip": ["x"]})]).run(initial_tasks=[Task(1)])


def test_num_workers_of_a_stage_is_kept() -> None:
    stage = Pid(0.05).with_(num_workers=5)  # on a busy machine, the last one may take a second to start
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(2), initial_tasks=[Task(i) for i in range(200)])
    assert len({task.data for task in result}) == 5


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line.split()[0]) for line in found.stdout.splitlines() if "zygote" in line]


def test_a_stage_that_cannot_be_sent_to_workers_is_named() -> None:
    import threading

    class Locked(AddOne):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    with pytest.raises(StageError, match="Locked.*cannot be sent to a worker"):
        Pipeline("p", stages=[Locked()]).run(LocalExecutor(2), initial_tasks=[Task(1)])


# -- what a review found ---------------------------------------------------------------------------------


def test_one_task_may_become_very_many_small_ones() -> None:
    """What the driver says to a worker that does not listen must not fill the channel until both wait."""
    result = Pipeline("p", stages=[CountTo(60_000)]).run(LocalExecutor(2))
    assert len(result) == 60_000


def test_a_limit_that_is_far_away_kills_nobody() -> None:
    class Fan(ProcessingStage[Task[int], Task[int]]):
        def process(self, task: Task[int]) -> Iterator[Task[int]]:
            return (Task(index) for index in range(5_000))

    stages = [Fan(), *(AddOne().with_(name=f"s{i}") for i in range(10))]
    limited = [stage.with_(timeout_s=3600, max_retries=0) for stage in stages]
    assert len(Pipeline("p", stages=limited).run(LocalExecutor(2), initial_tasks=[Task(0)])) == 5_000


@pytest.mark.parametrize("executor", [LocalExecutor(0), LocalExecutor(1)], ids=["inline", "process"])
def test_odd_errors_are_told_with_their_stage(executor: LocalExecutor) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    class Odd(ProcessingStage[Task[int], Task[Any]]):
        max_retries = 0

        def process(self, task: Task[int]) -> Task[Any]:
            raise Mute

    with pytest.raises(StageError, match="'Odd' failed on task 0: Mute"):
        Pipeline("p", stages=[Odd()]).run(executor, initial_tasks=[Task(1)])


def test_an_output_that_cannot_be_sent_is_told_with_its_stage() -> None:
    class Lock(ProcessingStage[Task[int], Task[Any]]):
        max_retries = 0

        def process(self, task: Task[int]) -> Task[Any]:
            import threading

            return Task(threading.Lock())

    with pytest.raises(
        StageError, match="'Lock' failed on task 0: its output cannot be sent to the next worker: TypeError"
    ):
        Pipeline("p", stages=[Lock()]).run(LocalExecutor(1), initial_tasks=[Task(1)])


def test_a_piece_of_a_batch_is_sent_without_the_rest(tmp_path: Path) -> None:
    from gristmill import DocumentBatch
    from gristmill.executors.local.task_transport import pack_task

    batch = DocumentBatch([{"text": "x" * 1000} for _ in range(10_000)])
    parcel = pack_task(batch.slice(500, 100), [str(tmp_path)])
    assert parcel.nbytes < 120_000
    assert parcel.load().to_rows() == batch.slice(500, 100).to_rows()


def test_large_initial_tasks_enter_a_few_at_a_time() -> None:
    import pyarrow as pa

    watch = Watch()
    tasks = [Task(pa.py_buffer(bytes(10**7))) for _ in range(60)]
    Pipeline("p", stages=[Slow(0.001)]).run(LocalExecutor(1), initial_tasks=tasks, observer=watch)
    assert 0 < watch.most <= 300 * 2**20


def test_streamed_results_are_not_kept() -> None:
    folder = []
    for task in Pipeline("p", stages=[Big(children=20, size=10**6)]).stream(LocalExecutor(1), initial_tasks=[Task(0)]):
        assert len(task.data) == 10**6
        names = [Path("/tmp") / name for name in leftovers() if (Path("/tmp") / name).exists()]
        folder.append(sum(file.stat().st_size for name in names for file in name.iterdir()))
    assert min(folder[10:]) < 10 * 10**6


def test_an_endless_source_can_be_streamed_in_process() -> None:
    stream = Pipeline("p", stages=[CountTo(10**12), AddOne()]).stream(LocalExecutor(0))
    assert [next(stream).data for _ in range(3)] == [1, 2, 3]
    stream.close()


def test_a_worker_is_replaced_after_so_many_tasks(tmp_path: Path) -> None:
    stage = Leak(tmp_path).with_(max_tasks_per_worker=7)
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(2), initial_tasks=[Task(i) for i in range(60)])
    counts = Counter(task.data for task in result)
    assert counts.total() == 60
    assert max(counts.values()) <= 7
    assert {int(mark.name) for mark in tmp_path.iterdir()} >= set(counts)


def test_a_worker_that_leaks_is_replaced_when_it_has_outgrown_its_limit(tmp_path: Path) -> None:
    stage = Leak(tmp_path, megabytes=40).with_(resources=Resources(cpus=1, memory_gb=0.4), num_workers=1)
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(2), initial_tasks=[Task(i) for i in range(30)])
    counts = Counter(task.data for task in result)
    assert counts.total() == 30
    assert len(counts) >= 2
    assert min(list(counts.values())[:-1]) >= 2  # not before it has to be
    assert {int(mark.name) for mark in tmp_path.iterdir()} >= set(counts)


class Ended(SilentObserver):
    """Whether the second stage had begun before the first was through."""

    def __init__(self) -> None:
        self.overlap = False

    def progressed(self, progress: Progress) -> None:
        done, begun = progress.stages[1][1].tasks_out, progress.stages[2][1].tasks_in
        self.overlap = self.overlap or (begun > 0 and done < 60)


def test_in_batch_mode_a_stage_begins_when_those_before_it_have_ended() -> None:
    stages = [CountTo(60), Pid(0.02).with_(name="first"), Pid(0.02).with_(name="second")]
    seen = {mode: Ended() for mode in ("streaming", "batch")}
    for mode, observer in seen.items():
        result = Pipeline("p", stages=stages).run(LocalExecutor(2, fuse=False, execution_mode=mode), observer=observer)
        assert len(result) == 60
    assert {mode: observer.overlap for mode, observer in seen.items()} == {"streaming": True, "batch": False}
    with pytest.raises(PlanError, match=r"execution_mode='stream'\): must be 'streaming' or 'batch'. Did you mean"):
        LocalExecutor(execution_mode="stream")
