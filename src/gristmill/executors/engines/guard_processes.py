"""Where guards live, and seeing them off when a run is over.

An engine kills its actors when it has no more use for them; their worker processes then tear down by themselves. A run
is over when they have, so the driver waits for them, on every node, and hears what went wrong.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from gristmill.core.errors import StageError, WorkerLostError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.executors.local.zygote import teardown_error_files

_PROC = Path("/proc")


@fast_dataclass(frozen=True, slots=True)
class GuardProcess:
    """Where a guard lives: its node, the process that ends last, and its folders."""

    node: str
    pid: int
    folders: tuple[str, ...]


def wait_for_all_guards(guard_processes: Sequence[GuardProcess], grace: float) -> StageError | None:
    """Wait for guards on all nodes. What went wrong in teardown, if anything did."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    waiting = []
    for node in sorted({lodging.node for lodging in guard_processes} - {here}):
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        remote = ray.remote(wait_for_local_guards).options(num_cpus=0, scheduling_strategy=place, max_retries=0)
        waiting.append(remote.remote([lodging for lodging in guard_processes if lodging.node == node], grace))
    problem = wait_for_local_guards([lodging for lodging in guard_processes if lodging.node == here], grace)
    for one in waiting:
        with contextlib.suppress(ray.exceptions.RayError):  # the node is gone, and so are they
            problem = ray.get(one) or problem
    return problem


def wait_for_local_guards(guard_processes: Sequence[GuardProcess], grace: float) -> StageError | None:
    """Wait until the guards on this node have ended, and clean up after them."""
    deadline = time.monotonic() + grace
    problem: StageError | None = None
    for lodging in guard_processes:
        while is_process_running(lodging.pid):
            if time.monotonic() > deadline:
                late = f"in teardown, it took more than {grace:g} s and was stopped"
                if _has_workers(lodging.pid):  # or it was still starting, and had nothing to tear down
                    problem = WorkerLostError("(worker)", "(none left)", (), late)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(lodging.pid, signal.SIGKILL)
            time.sleep(0.01)
        for folder in lodging.folders:
            for words in teardown_error_files(folder):
                problem = pickle.loads(words.read_bytes())
            shutil.rmtree(folder, ignore_errors=True)
    return problem


def _has_workers(pid: int) -> bool:
    try:
        return bool((_PROC / f"{pid}/task/{pid}/children").read_text().split())
    except OSError:
        return True


def is_process_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody asked about does not, as far as that can be told."""
    try:
        if not _PROC.exists():
            os.kill(pid, 0)
            return True
        return (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except PermissionError:  # it is somebody else's
        return True
    except (OSError, IndexError):
        return False
