"""The programs that are measured on a Ray cluster, each in a process of its own, which joins the cluster that
`RAY_ADDRESS` names: `python benchmarks/ray_jobs.py NAME ARGUMENTS...`. They print one line of JSON as their answer.
"""

import os
import sys
import time
from collections import deque


def tiny(count: str, how: str) -> dict[str, object]:
    """Many tasks of 100 bytes through three pools; milliseconds per task, once a hundred are through."""
    import gristmill.core.run.schedule
    from gristmill import Pipeline, RayActorPoolExecutor, RayDataExecutor, Task, XennaExecutor, processing_stage

    if how == "single":
        gristmill.core.run.schedule.MAX_CHUNK = 1

    def nothing(task: Task) -> Task:
        return Task(data=task.data)

    stages = [processing_stage(name=name)(nothing) for name in ("one", "two", "three")]
    tasks = [Task(data=b"%0100d" % number) for number in range(int(count) + 100)]
    executor = {"ray_data": RayDataExecutor, "xenna": XennaExecutor}.get(how, RayActorPoolExecutor)(fuse=False)
    times = [time.perf_counter() for _ in Pipeline("tiny", stages=stages).stream(executor, initial_tasks=tasks)]
    assert len(times) == len(tasks), len(times)
    return {"ms": (times[-1] - times[99]) * 1e3 / int(count)}


def bare(count: str, chunk: str) -> dict[str, object]:
    """The same through three actors with nothing around them: two calls in flight each, references passed on."""
    import ray

    ray.init(log_to_driver=False, logging_level="ERROR")

    class Nothing:
        def call(self, data: list[bytes]) -> list[bytes]:
            return list(data)

    actors = [ray.remote(Nothing).options(num_cpus=0.001).remote() for _ in range(3)]
    ray.get([actor.call.remote([b""]) for actor in actors])
    size = int(chunk)
    queues: list[deque[object]] = [deque() for _ in actors]
    queues[0].extend([b"%0100d" % (first + n) for n in range(size)] for first in range(0, int(count), size))
    running: list[deque[object]] = [deque() for _ in actors]
    began, done = time.perf_counter(), 0
    while done < int(count) // size:
        for actor, queue, calls in zip(actors, queues, running, strict=True):
            while queue and len(calls) < 2:
                calls.append(actor.call.remote(queue.popleft()))
        heads = {calls[0]: index for index, calls in enumerate(running) if calls}
        ready, _ = ray.wait(list(heads), num_returns=1, fetch_local=False)
        for ref in ready:
            index = heads[ref]
            running[index].popleft()
            if index + 1 < len(actors):
                queues[index + 1].append(ref)
            else:
                ray.get(ref)
                done += 1
    return {"ms": (time.perf_counter() - began) * 1e3 / int(count)}


def blocks(gigabytes: str) -> dict[str, object]:
    """Blocks of 8 MB from stage to stage; the driver's memory after a tenth of them, and in the end."""
    import numpy as np
    import pyarrow as pa

    from gristmill import DocumentBatch, Pipeline, RayActorPoolExecutor, Task, processing_stage

    @processing_stage(name="make")
    def make(task: Task) -> DocumentBatch:
        rng = np.random.default_rng(task.data)
        return DocumentBatch(pa.table({"value": rng.random(10**6)}))

    @processing_stage(name="read")
    def read(batch: DocumentBatch) -> Task:
        return Task(data=batch.num_items)

    def resident() -> float:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e6

    count = max(10, int(float(gigabytes) * 1e9 / 8e6))
    began, early = time.perf_counter(), 0.0
    tasks = [Task(number) for number in range(count)]
    stream = Pipeline("blocks", stages=[make, read]).stream(RayActorPoolExecutor(fuse=False), initial_tasks=tasks)
    for number, task in enumerate(stream):
        assert task.data == 10**6
        if number == count // 10:
            early = resident()
    return {"early_mb": early, "end_mb": resident(), "wall_s": time.perf_counter() - began}


def balance(case: str, folder: str) -> dict[str, object]:
    """A pipeline of stages that sleep, each call of which is noted in a file of its worker."""
    from gpu_utilisation import CASES

    from gristmill import Pipeline, RayActorPoolExecutor

    shape = CASES[case]
    stages = shape.stages(folder)
    began = time.monotonic()
    executor = RayActorPoolExecutor(config={"gpu_memory_gb": 80.0})
    result = Pipeline(case, stages=stages).run(executor, initial_tasks=shape.tasks())
    assert len(result) == shape.count, len(result)
    return {"began": began, "ended": time.monotonic()}


if __name__ == "__main__":
    import json

    os.environ["GRISTMILL_PROGRESS"] = "off"
    answer = globals()[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(answer))
