"""Figure: what the framework itself costs. 10,000 tasks of 100 bytes through three stages that do next to nothing.

Milliseconds per task and stage, of CPU (whole process tree) and of wall time; start-up is taken out as the time of a
run of 100 tasks. `inline` is in the process itself, without workers. `pools` are three of the standard library's
multiprocessing with nothing around them, 50 tasks to a call. Targets: below 0.1 ms when the stages are fused, below
1 ms when each has a pool of its own.
"""

from __future__ import annotations

from typing import Any

from process_measurement import job, measure, stable

MANY, FEW, STAGES = 10_000, 100, 3
CHUNK = 50
HOW = ("inline", "fused", "unfused", "pools")


def run(rounds: int = 3) -> dict[str, Any]:
    result: dict[str, Any] = {}
    found: dict[tuple[str, int], list[Any]] = {}
    for _ in range(rounds):
        for how in HOW:
            for count in (FEW, MANY):
                found.setdefault((how, count), []).append(measure(_job(how, count)))
    per_ms = 1e3 / ((MANY - FEW) * STAGES)
    for how in HOW:
        pairs = list(zip(found[how, FEW], found[how, MANY], strict=True))
        result[f"{how}_cpu_ms"] = stable([(many.cpu - few.cpu) * per_ms for few, many in pairs], 4)
        walls = [(many.answer["run_wall"] - few.answer["run_wall"]) * per_ms for few, many in pairs]
        result[f"{how}_wall_ms"] = stable(walls, 4)
        result[f"{how}_start_cpu_s"] = stable([few.cpu for few, _ in pairs])
    return result


def _job(how: str, count: int) -> list[str]:
    return job("tiny_pools", count, CHUNK) if how == "pools" else job("tiny", count, how)


if __name__ == "__main__":
    from process_measurement import show

    show(run())
