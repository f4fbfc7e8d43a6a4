"""Figure: what a task costs on Ray. 2,000 tasks of 100 bytes through three pools of actors, on a cluster that runs.

Milliseconds per task, from the hundredth result to the last: one task per call, and in chunks as the policy makes
them. Next to it the same through three bare actors, one task per call and 50; and on Ray Data and Xenna, which
schedule for themselves. Targets: at most 2.5 ms and 0.1 ms.
"""

from __future__ import annotations

import subprocess
from typing import Any

from process_measurement import short_message, show, stable

from ray_cluster import answer, started

COUNT = 2000
JOBS = {
    "bare_single_ms": ("bare", COUNT, 1),
    "single_ms": ("tiny", COUNT, "single"),
    "bare_chunked_ms": ("bare", COUNT, 50),
    "chunked_ms": ("tiny", COUNT, "chunked"),
    "ray_data_ms": ("tiny", COUNT, "ray_data"),
    "xenna_ms": ("tiny", COUNT, "xenna"),
}

ENGINES = ("ray_data_ms", "xenna_ms")
"""One that fails is named, and left out."""


def run(rounds: int = 3) -> dict[str, Any]:
    found: dict[str, list[float]] = {name: [] for name in JOBS}
    failed: list[str] = []
    with started(num_cpus=2):
        for _ in range(rounds):
            for name, job in JOBS.items():
                try:
                    found[name].append(answer(*job)["ms"])
                except subprocess.SubprocessError as error:
                    if name not in ENGINES:
                        raise
                    failed.append(f"{name.removesuffix('_ms')}: {short_message(error)}")
    result: dict[str, Any] = {name: stable(values, 4) for name, values in found.items() if values}
    return result | ({"failed": failed} if failed else {})


if __name__ == "__main__":
    show(run())
