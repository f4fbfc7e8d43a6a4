"""Figure: how busy GPU workers are. Pipelines of stages that sleep instead of computing, on a cluster with four logical
GPUs, streamed by RayActorPoolExecutor:

    steady    a CPU stage of 10 ms, a GPU stage of 100 ms
    fast      a fast producer of large batches before a slow GPU stage
    change    two GPU stages, of which the first becomes three times slower and the second faster in the middle
    setup     a GPU stage that takes 20 s to set up
    shared    three GPU stages that share the GPUs by their memory

Each worker notes by its own clock when a call of `process` begins and ends. The busy share is the time inside of
`process` over the time between the first and the last of a worker's calls, of all workers that hold a GPU. Warm-up is
left out, and so is the end: it counts from when the last worker of a division of the GPUs has begun until a GPU stage
has done its last task. In `change` it is measured before the change and after the new division; the time in between is
a figure of its own. Targets: 99 % in steady and shared, 95 % in the others.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process_measurement import WORK, show, stable

from gristmill import ProcessingStage, Resources, Task
from ray_cluster import answer, started

SETTLED_S = 2.0
"""After the last worker of a division has begun, until what it does is measured."""

GPU = Resources(cpus=0.5, gpus=1)


class Sleeper(ProcessingStage[Task[Any], Task[Any]]):
    """Sleeps, as long as its list says for a task, and notes from when to when."""

    def __init__(
        self, name: str, folder: str, seconds: Sequence[float], resources: Resources, setup: float = 0.0, give: int = 0
    ) -> None:
        super().__init__()
        self.name, self.folder, self.seconds, self.resources = name, folder, seconds, resources
        self.setup_seconds, self.give = setup, give

    def setup(self, worker_metadata: Any = None) -> None:
        time.sleep(self.setup_seconds)
        path = Path(self.folder, f"{self.name}-{worker_metadata.worker_id}")
        self.plan_notes = path.open("w", buffering=1)

    def process(self, task: Task[Any]) -> Task[Any]:
        began = time.monotonic()
        number = task.data if isinstance(task.data, int) else task.data[0]
        time.sleep(self.seconds[number])
        gives: Task[Any] = Task(data=(number, bytes(self.give)) if self.give else number)
        self.plan_notes.write(f"{number} {began} {time.monotonic()}\n")
        return gives

    def teardown(self) -> None:
        self.plan_notes.close()


@dataclass(frozen=True)
class Case:
    """A pipeline, and how much is asked of it."""

    count: int
    stages: Callable[[str], list[Sleeper]]
    target: float
    splits: int = 1
    """Into how many parts of equal rates the run falls."""

    def tasks(self) -> list[Task[Any]]:
        return [Task(number) for number in range(self.count)]


def _steady(folder: str) -> list[Sleeper]:
    return [
        Sleeper("cpu", folder, [0.01] * 1200, Resources(cpus=1)),
        Sleeper("gpu", folder, [0.1] * 1200, GPU),
    ]


def _fast(folder: str) -> list[Sleeper]:
    return [
        Sleeper("producer", folder, [0.002] * 500, Resources(cpus=1), give=2 * 2**20),
        Sleeper("gpu", folder, [0.2] * 500, GPU),
    ]


def _change(folder: str) -> list[Sleeper]:
    slow, fast = 0.3, 0.1
    return [
        Sleeper("first", folder, [fast] * 200 + [slow] * 200, GPU),
        Sleeper("second", folder, [slow] * 200 + [fast] * 200, GPU),
    ]


def _setup(folder: str) -> list[Sleeper]:
    return [
        Sleeper("cpu", folder, [0.01] * 800, Resources(cpus=1)),
        Sleeper("gpu", folder, [0.1] * 800, GPU, setup=20.0),
    ]


def _shared(folder: str) -> list[Sleeper]:
    count = 500
    return [
        Sleeper(name, folder, [seconds] * count, Resources(cpus=0.25, gpu_memory_gb=memory))
        for name, seconds, memory in (("first", 0.2, 20), ("second", 0.41, 20), ("third", 0.21, 40))
    ]


CASES = {
    "steady": Case(1200, _steady, 0.99),
    "fast": Case(500, _fast, 0.95),
    "change": Case(400, _change, 0.95, splits=2),
    "setup": Case(800, _setup, 0.95),
    "shared": Case(500, _shared, 0.99),
}


@dataclass(frozen=True)
class Shift:
    """What one worker noted: number, begin and end of its calls."""

    stage: str
    calls: list[tuple[int, float, float]]

    @property
    def began(self) -> float:
        return self.calls[0][1]

    def inside(self, start: float, end: float) -> tuple[float, float]:
        """Seconds inside of calls, and seconds of presence, between two moments."""
        start, end = max(start, self.began), min(end, self.calls[-1][2])
        busy = sum(max(0.0, min(end, to) - max(start, since)) for _, since, to in self.calls)
        return busy, max(0.0, end - start)


def shifts(folder: Path) -> list[Shift]:
    found = []
    for path in sorted(folder.iterdir()):
        lines = [line.split() for line in path.read_text().splitlines()]
        calls = [(int(number), float(since), float(to)) for number, since, to in lines]
        if calls:
            found.append(Shift(path.name.rpartition("-")[0], calls))
    return found


def windows(case: Case, gpu: list[Shift]) -> list[tuple[float, float]]:
    """From when to when the division of the GPUs was settled."""
    first = gpu[0].stage
    last_calls = [max(s.calls[-1][2] for s in gpu if s.stage == stage) for stage in {s.stage for s in gpu}]
    end = min(last_calls)
    begin = min(shift.began for shift in gpu)
    change = (begin + end) / 2
    if case.splits == 2:
        change = min(
            since for s in gpu if s.stage == first for number, since, _ in s.calls if number >= case.count // 2
        )
    early = max(shift.began for shift in gpu if shift.began < change) + SETTLED_S
    if case.splits == 1:
        return [(early, end)]
    late = max([change, *(shift.began for shift in gpu if change <= shift.began < end - SETTLED_S)])
    return [(early, change), (late + SETTLED_S, end)]


def busy(case: Case, found: list[Shift], gpu_stages: set[str]) -> dict[str, Any]:
    gpu = [shift for shift in found if shift.stage in gpu_stages]
    spans, stages = windows(case, gpu), {shift.stage for shift in found}
    seen = [shift.inside(*span) for span in spans for shift in gpu]
    shares = [inside / there for inside, there in seen if there > SETTLED_S]
    found_out: dict[str, Any] = {
        "busy_percent": 100 * sum(inside for inside, _ in seen) / sum(there for _, there in seen),
        "least_busy_percent": 100 * min(shares),
        "measured_s": sum(end - start for start, end in spans),
        "workers": ", ".join(f"{stage} {sum(s.stage == stage for s in found)}" for stage in sorted(stages)),
    }
    if case.splits == 2:
        found_out["rebalancing_s"] = spans[1][0] - spans[0][1] - SETTLED_S
    return found_out


def run(rounds: int = 1, cases: Sequence[str] = tuple(CASES)) -> dict[str, Any]:
    with started(num_cpus=8, num_gpus=4):
        return measured(rounds, cases)


def measured(rounds: int, cases: Sequence[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in cases:
        case = CASES[name]
        answers = []
        for _ in range(rounds):
            folder = WORK / "balance" / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            answer("balance", name, folder)
            gpu_stages = {stage.name for stage in case.stages("") if stage.resources.requires_gpu}
            answers.append(busy(case, shifts(folder), gpu_stages))
        for key in answers[0]:
            values = [one[key] for one in answers]
            result[f"{name}_{key}"] = values[0] if key == "workers" else stable(values, 2)
    return result


if __name__ == "__main__":
    show(run(1, sys.argv[1:] or tuple(CASES)))
