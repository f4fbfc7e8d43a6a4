"""Figure: memory does not grow with the input. One file of JSON lines of 100 MB, 300 MB and 1 GB: read, clean, filter,
write, with the default executor; and the same for one .jsonl.gz.

The most memory of the driver and of the largest worker: resident (VmHWM) and proportional (Pss, sampled). `growth` is
the largest input over the smallest, by resident memory; the target is at most 1.2.
"""

from __future__ import annotations

from typing import Any

from corpus import corpus
from process_measurement import WORK, job, measure, stable

SIZES = (100, 300, 1000)
STAGES = "QuotationUnifier,NewlineNormalizer,WordCountFilter"


def run(rounds: int = 3, sizes: tuple[int, ...] = SIZES, gz_sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for kind, megabytes in (("jsonl", sizes), ("gz", gz_sizes)):
        found: dict[int, list[Any]] = {}
        for _ in range(rounds):
            for size in megabytes:
                path = corpus(size * 10**6, gz=kind == "gz")[0]
                found.setdefault(size, []).append(measure(job("text", path, WORK / "out", STAGES), memory=True))
        for role in ("driver", "worker"):
            for what in ("rss", "pss"):
                for size, runs in found.items():
                    result[f"{kind}_{size}mb_{role}_{what}_mb"] = stable([run.peak(role, what) for run in runs], 1)
            ends = [[run.peak(role) for run in found[size]] for size in (megabytes[0], megabytes[-1])]
            result[f"{kind}_{role}_growth"] = stable([large / small for small, large in zip(*ends, strict=True)])
        for size, runs in found.items():
            result[f"{kind}_{size}mb_shared_memory_mb"] = stable([run.shared for run in runs], 1)
            result[f"{kind}_{size}mb_wall_s"] = stable([run.wall for run in runs])
    return result


if __name__ == "__main__":
    from process_measurement import show

    show(run(rounds=1))
