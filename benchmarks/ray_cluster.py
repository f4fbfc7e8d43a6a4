"""The cluster that the Ray figures are measured on."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import process_measurement
from process_measurement import HERE


@contextlib.contextmanager
def started(num_cpus: int, num_gpus: int = 0, **options: object) -> Iterator[None]:
    """A cluster on this machine, with as many logical cores and GPUs as one likes."""
    from gristmill import RayClient

    roots = [str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, roots))
    with RayClient(num_cpus=num_cpus, num_gpus=num_gpus, include_dashboard=False, **options):
        yield


def answer(*job: object) -> Any:
    """What one of the jobs in ray_jobs.py says, in a process of its own that joins the cluster."""
    command = [sys.executable, str(HERE / "ray_jobs.py"), *map(str, job)]
    limit = None if math.isinf(process_measurement.LIMIT_S) else process_measurement.LIMIT_S
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=limit)
    return json.loads(done.stdout.splitlines()[-1])
