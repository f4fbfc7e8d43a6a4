"""A Ray cluster of several nodes on this machine, whose nodes can be killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gristmill.executors.ray.ray_client import RayClient, processes_with_mark

ROOT = Path(__file__).parents[2]
MARK = "GRISTMILL_RAY_CLIENT"

QUICK = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
}
"""Let Ray notice within seconds that a node has gone, and not think so of one that is slow."""


@dataclass
class NodeProcess:
    process: subprocess.Popen[bytes]
    mark: str

    def kill(self) -> None:
        """Like a machine that loses its power: no process of the node has time for anything."""
        for pid in processes_with_mark(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def kill_raylet(self) -> None:
        for pid in processes_with_mark(self.mark):
            if b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                os.kill(pid, signal.SIGKILL)


class Cluster:
    """A head that `RAY_ADDRESS` names, and nodes that are added to it."""

    def __init__(self, cpus: int = 1, gpus: int = 0, store_mb: int = 100, spilling: bool = False) -> None:
        self.folder = tempfile.mkdtemp(prefix="gmr")  # short: there will be sockets in it
        self.before = {name: os.environ.get(name) for name in ("PYTHONPATH", *QUICK)}
        os.environ.update(QUICK, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "src")]))
        self.client = RayClient(
            num_cpus=cpus,
            num_gpus=gpus,
            include_dashboard=False,
            ray_temp_dir=self.folder,
            object_store_memory=store_mb * 2**20,
            enable_object_spilling=spilling,
        )
        self.nodes: list[NodeProcess] = []

    def __enter__(self) -> Self:
        self.client.start()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill()
        self.client.stop()
        assert not any(processes_with_mark(node.mark) for node in self.nodes)
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, value in self.before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    def add(self, cpus: int = 1, gpus: int = 0, store_mb: int = 100) -> NodeProcess:
        """Start a node. It joins within seconds."""
        mark = secrets.token_hex(8)
        command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]
        command += [f"--address={self.client.address}", f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
        command += [f"--object-store-memory={store_mb * 2**20}", "--disable-usage-stats"]
        env = {**os.environ, MARK: mark, "RAY_AUTH_MODE": "disabled"}
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=env, start_new_session=True)
        self.nodes.append(NodeProcess(process, mark))
        return self.nodes[-1]

    def remove_nodes(self) -> None:
        for node in self.nodes:
            node.kill()
        self.wait_for(1)

    def wait_for(self, count: int) -> None:
        """Until there are so many nodes."""
        from gristmill.executors.ray.ray_client import _count_nodes

        deadline = time.monotonic() + 120
        while _count_nodes(self.client.address) != count:
            assert time.monotonic() < deadline, "the nodes did not join"
            time.sleep(0.1)


def pids(kind: str) -> set[int]:
    """The processes of the actors of a class."""
    from ray._private.state import actors

    alive = [actor for actor in actors().values() if actor["State"] == "ALIVE"]
    return {actor["Pid"] for actor in alive if actor["ActorClassName"] == kind} - {0}
