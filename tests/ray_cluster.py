"""A real Ray cluster on this machine, for tests."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OURS = {
    "ControlActor",
    "EngineActor",
    "EngineCoordinator",
    "ResultOwner",
    "RayWorker",
    "MapWorker",
    "StageWorker",
    "NodeResourceMonitor",
}
"""Actors that must be gone when a run is over."""


@contextlib.contextmanager
def ray_cluster(**options: Any) -> Iterator[str]:
    """Its mark, by which its processes are known."""
    from gristmill.executors.ray.ray_client import RayClient, processes_with_mark

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    client = RayClient(include_dashboard=False, **options)
    client.start()
    mark = client._mark
    try:
        yield mark
    finally:
        client.stop()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    deadline = time.monotonic() + 10
    while (
        left := processes_with_mark(mark)
    ) and time.monotonic() < deadline:  # killed, and not gone yet on a busy machine
        time.sleep(0.1)
    assert [_command(pid) for pid in left] == []
    assert "RAY_ADDRESS" not in os.environ


def left_over(mark: str, seconds: float = 60.0) -> list[str]:
    """Actors and processes of runs that are still there after some time. Results that somebody holds keep theirs."""
    gc.collect()
    deadline = time.monotonic() + seconds
    while (found := _actors() + _workers(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _actors() -> list[str]:
    import ray
    from ray._private.state import actors

    assert ray.is_initialized()
    found = [actor["ActorClassName"] for actor in actors().values() if actor["State"] != "DEAD"]
    return [name for name in found if name.partition("(")[0] in OURS]


def _workers(mark: str) -> list[str]:
    from gristmill.executors.ray.ray_client import processes_with_mark

    commands = [_command(pid) for pid in processes_with_mark(mark)]
    return [command for command in commands if "executors.local.zygote" in command or _title(command) in OURS]


def _title(command: str) -> str:
    """The actor that a process of Ray is for. It may be there when Ray has forgotten the actor."""
    return re.split(r"[.(\0]", command.removeprefix("ray::"))[0] if command.startswith("ray::") else ""


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return "(gone)"
