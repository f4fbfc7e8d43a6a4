"""Figure: the driver's memory stays flat while blocks pass through the object store: 8 MB each, made by one stage, read
by the next, on a cluster whose store holds a fraction of them.

The most memory of the driver after a tenth of the blocks, and at the end.
`python benchmarks/object_store_memory.py 2` passes 2 GB.
"""

from __future__ import annotations

import sys
from typing import Any

from process_measurement import show, stable

from ray_cluster import answer, started


def run(rounds: int = 1, gigabytes: float = 10.0) -> dict[str, Any]:
    with started(num_cpus=2, object_store_memory=512 * 2**20):
        answers = [answer("blocks", gigabytes) for _ in range(rounds)]
    return {
        "gigabytes": gigabytes,
        "early_rss_mb": stable([one["early_mb"] for one in answers], 1),
        "driver_rss_mb": stable([one["end_mb"] for one in answers], 1),
        "growth": stable([one["end_mb"] / one["early_mb"] for one in answers], 3),
        "wall_s": stable([one["wall_s"] for one in answers], 1),
    }


if __name__ == "__main__":
    show(run(1, *map(float, sys.argv[1:])))
