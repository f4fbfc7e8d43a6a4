"""RayClient: a Ray cluster for as long as a script runs.

    with RayClient(num_cpus=8):
        pipeline.run(RayActorPoolExecutor())

It starts `ray start --head` on free ports, waits until the cluster answers, and sets `RAY_ADDRESS` for executors. If
that is already set, it joins that cluster instead, and leaves it running when it stops. The processes that it has
started carry a mark in their environment, so that it stops all of them and no others.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from gristmill.core.errors import GristmillError, cannot_write, require
from gristmill.executors.ray.cluster import cluster_nodes, connect_to_cluster, wait_for_head
from gristmill.executors.setting_checks import COUNT, FLAG, PATH, PORT, POSITIVE, SettingRule, check_setting

ADDRESS_VARIABLE = "RAY_ADDRESS"
_MARK_VARIABLE = "GRISTMILL_RAY_CLIENT"
_START_SECONDS = 120.0
_STARTUP_TIMEOUT_TEXT = "timed out during startup"
"""Part of Ray's message when it gives up after half a minute, as on a busy machine."""

_CLIENT_SERVER_TIMEOUT = {"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": f"{_START_SECONDS:.0f}"}
"""The head starts a server for each client. Ray's limit of half a minute is too short on a busy machine."""

_STOP_SECONDS = 10.0
_LOG_TAIL_LINES = 5
_LOG_TAIL_CHARS = 600
_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception): ")
_OBJECT_STORE_RULE: SettingRule = (
    lambda value: COUNT[0](value) and value >= 75 * 2**20,
    "a number of bytes, at least 75 MiB (78643200), the minimum of Ray",
)
_RULES: dict[str, SettingRule] = {
    **dict.fromkeys(("ray_port", "ray_dashboard_port", "ray_client_server_port", "ray_metrics_port"), PORT),
    **dict.fromkeys(("num_cpus", "num_gpus"), COUNT),
    **dict.fromkeys(("include_dashboard", "enable_object_spilling", "cleanup_on_start"), FLAG),
    **dict.fromkeys(("ray_temp_dir", "ray_dashboard_host", "ray_stdouterr_capture_file", "metrics_dir"), PATH),
    "object_store_memory": _OBJECT_STORE_RULE,
    "worker_connect_timeout_s": POSITIVE,
}
_OPTIONAL = {
    *("num_cpus", "num_gpus", "object_store_memory", "ray_stdouterr_capture_file", "metrics_dir"),
    *("cleanup_on_start", "worker_connect_timeout_s"),  # fields of SlurmRayClient only
}

_RAY_WORKER_PORTS = range(10_002, 20_000)
"""The ports that Ray's workers listen on."""


@dataclass
class PortAllocator:
    """Finds free ports, and claims each, so that clients that start at the same time get different ones."""

    claims: list[socket.socket] = field(default_factory=list)

    def take(self, wanted: int) -> int:
        """The port, or the next free one above it."""
        for port in range(wanted, min(wanted + 12_000, 65536)):
            if (port == wanted or port not in _RAY_WORKER_PORTS) and _is_free(port) and self._claim(port):
                return port
        raise GristmillError(f"no free port from {wanted} upwards")

    def _claim(self, port: int) -> bool:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0gristmill-ray-port-{port}")  # an abstract socket: no file, and gone when the process ends
        except OSError:
            claim.close()
            return False
        self.claims.append(claim)
        return True

    def release_all(self) -> None:
        while self.claims:
            self.claims.pop().close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("", port))
        return True
    return False


@dataclass
class RayClient:
    """Starts a Ray cluster on this machine, or joins the one at `RAY_ADDRESS`."""

    ray_port: int = 6379
    ray_dashboard_port: int = 8265
    ray_client_server_port: int = 10001
    ray_temp_dir: str = field(default_factory=lambda: str(Path(tempfile.gettempdir()) / "ray"))
    include_dashboard: bool = True
    ray_metrics_port: int = 8080
    ray_dashboard_host: str = "127.0.0.1"
    num_gpus: int | None = None
    num_cpus: int | None = None
    object_store_memory: int | None = None
    enable_object_spilling: bool = False
    ray_stdouterr_capture_file: str | None = None
    metrics_dir: str | None = None

    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _log: Path | None = field(default=None, init=False, repr=False)
    _mark: str = field(default="", init=False, repr=False)
    _ports: PortAllocator = field(default_factory=PortAllocator, init=False, repr=False)
    address: str = field(default="", init=False)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in _RULES and (value is not None or name not in _OPTIONAL):
                check_setting(type(self).__name__, name, value, _RULES[name])

    def start(self) -> None:
        """Start or join the cluster. Returns when it answers."""
        require("ray", "ray", "RayClient")
        if self.address:
            return
        if os.environ.get(ADDRESS_VARIABLE):
            wait_for_head(os.environ[ADDRESS_VARIABLE])
            self.address = os.environ[ADDRESS_VARIABLE]
            return
        try:
            address = self._begin()
        except GristmillError as error:
            if _STARTUP_TIMEOUT_TEXT not in str(error):
                raise
            address = self._begin()  # a second start is faster, as files are cached now
        self.address = os.environ[ADDRESS_VARIABLE] = address
        atexit.register(self.stop)

    def _begin(self) -> str:
        """Start a head node. Returns its address when it answers."""
        self._mark = secrets.token_hex(8)
        address = f"{_own_address()}:{self._ports.take(self.ray_port)}"
        self._launch(["--head", *self._head_options(address), *self._node_options()])
        try:
            self._await(address)
        except BaseException:
            self._end()
            raise
        return address

    def stop(self) -> None:
        """Stop what this client has started. A cluster that it has joined keeps running."""
        if self._process is not None:
            import ray

            if ray.is_initialized():
                importlib.import_module("gristmill.executors.ray.actor_pool_executor").stop_running_drivers()
                ray.shutdown()
            self._end()
            if os.environ.get(ADDRESS_VARIABLE) == self.address:
                del os.environ[ADDRESS_VARIABLE]
            atexit.unregister(self.stop)
        self.address = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- the processes -----------------------------------------------------------------------------------

    def _head_options(self, address: str) -> list[str]:
        host, _, port = address.rpartition(":")
        options = [f"--node-ip-address={host}", f"--port={port}", f"--temp-dir={self.ray_temp_dir}"]
        if importlib.util.find_spec("grpc"):  # only for clients that join by ray://
            options += [f"--ray-client-server-port={self._ports.take(self.ray_client_server_port)}"]
        options += [f"--include-dashboard={str(self.include_dashboard).lower()}"]
        if self.include_dashboard:
            options += [f"--dashboard-host={self.ray_dashboard_host}"]
            options += [f"--dashboard-port={self._ports.take(self.ray_dashboard_port)}"]
        return options

    def _node_options(self) -> list[str]:
        options = [f"--metrics-export-port={self._ports.take(self.ray_metrics_port)}", "--disable-usage-stats"]
        given = {"cpus": self.num_cpus, "gpus": self.num_gpus}
        options += [f"--num-{name}={count}" for name, count in given.items() if count is not None]
        if self.object_store_memory is not None:
            options += [f"--object-store-memory={self.object_store_memory}"]
        if self.enable_object_spilling:
            options += [f"--object-spilling-directory={Path(self.ray_temp_dir, 'spilled')}"]
            Path(self.ray_temp_dir, "spilled").mkdir(parents=True, exist_ok=True)
        return options

    def _launch(self, options: list[str]) -> None:
        env = {"RAY_AUTH_MODE": "disabled", **_CLIENT_SERVER_TIMEOUT, **os.environ, _MARK_VARIABLE: self._mark}
        env.pop(ADDRESS_VARIABLE, None)
        command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block", *options]
        with self._open_log() as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)

    def _open_log(self) -> IO[bytes]:
        if self.ray_stdouterr_capture_file is None:
            handle, name = tempfile.mkstemp(prefix="gristmill-ray-", suffix=".log")
            self._log = Path(name)
            return os.fdopen(handle, "wb")
        self._log = Path(self.ray_stdouterr_capture_file)
        try:
            return self._log.open("wb")
        except OSError as error:
            raise cannot_write(str(self._log), error) from error

    def _await(self, address: str) -> None:
        """Wait until the cluster answers at the address and has a node."""
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            if is_head_alive(address) and _count_nodes(address):
                return
            time.sleep(0.1)
        assert self._log is not None
        text = log_tail(self._log.read_text(errors="replace"))
        late = "" if self._process.poll() is not None else f" within {_START_SECONDS:g} s"
        hint = "" if self.ray_stdouterr_capture_file else '\nray_stdouterr_capture_file="ray.log" keeps the whole log'
        raise GristmillError(f"the Ray cluster did not start at {address}{late}. The end of its log:\n{text}{hint}")

    def _end(self) -> None:
        process, self._process = self._process, None
        self._ports.release_all()
        if process is None:
            return
        process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline and (process.poll() is None or processes_with_mark(self._mark)):
            time.sleep(0.05)
        for pid in processes_with_mark(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        if self._log and self.ray_stdouterr_capture_file is None:
            self._log.unlink(missing_ok=True)


@dataclass
class SlurmRayClient(RayClient):
    """For a script that runs on all nodes of a Slurm job: node 0 becomes the head and continues, the others serve it.

    The head writes its address to a file in `RAY_PORT_BROADCAST_DIR`, or in the directory that the job was submitted
    from. All nodes must see that directory. The dashboard runs jobs for anyone who can reach it, so it listens on the
    head itself only: `ssh -L 8265:localhost:8265 HEAD` shows it on another machine, or set `ray_dashboard_host`.
    """

    worker_connect_timeout_s: float = 300.0
    cleanup_on_start: bool = True

    def start(self) -> None:
        if "SLURM_JOB_ID" not in os.environ:
            raise GristmillError("SlurmRayClient needs SLURM_JOB_ID: start the script with srun, or use RayClient")
        self.num_cpus = self.num_cpus if self.num_cpus is not None else _int_variable("SLURM_CPUS_ON_NODE")
        self.num_gpus = self.num_gpus if self.num_gpus is not None else _int_variable("SLURM_GPUS_ON_NODE")
        if int(os.environ.get("SLURM_NODEID", "0")):
            self._serve()
        notice = self._notice()
        if self.cleanup_on_start:
            notice.unlink(missing_ok=True)
        super().start()
        draft = notice.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"address": self.address}))
        draft.replace(notice)
        self._await_nodes(_int_variable("SLURM_JOB_NUM_NODES") or _int_variable("SLURM_NNODES") or 1)

    def stop(self) -> None:
        self._notice().unlink(missing_ok=True)
        super().stop()

    def _notice(self) -> Path:
        folder = os.environ.get("RAY_PORT_BROADCAST_DIR") or os.environ.get("SLURM_SUBMIT_DIR") or "."
        return Path(folder) / f"gristmill-ray-{os.environ.get('SLURM_JOB_ID', '')}.json"

    def _serve(self) -> None:
        """Join the head as a worker node, and exit when the head is gone."""
        self._mark = secrets.token_hex(8)
        address = self._await_notice()
        self._launch([f"--address={address}", *self._node_options()])
        atexit.register(self._end)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        assert self._process is not None
        while self._process.poll() is None and is_head_alive(address):
            time.sleep(1.0)
        sys.exit(0)

    def _await_notice(self) -> str:
        deadline = time.monotonic() + self.worker_connect_timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                address = str(json.loads(self._notice().read_text())["address"])
                if is_head_alive(address):
                    return address
            time.sleep(0.2)
        raise GristmillError(
            f"node 0 did not write its address to {self._notice()} within {self.worker_connect_timeout_s:g} s. If not "
            "all nodes see that directory, set RAY_PORT_BROADCAST_DIR to one that they see"
        )

    def _await_nodes(self, count: int) -> None:
        import ray

        connect_to_cluster()
        deadline = time.monotonic() + self.worker_connect_timeout_s
        while len(cluster_nodes()) < count:
            if time.monotonic() > deadline:
                found = len(cluster_nodes())
                self.stop()
                raise GristmillError(
                    f"{found} of {count} nodes joined within {self.worker_connect_timeout_s:g} s "
                    "(worker_connect_timeout_s). Every node must run this script"
                )
            time.sleep(0.2)
        ray.shutdown()  # the executor connects when it runs


def log_tail(text: str) -> str:
    """The end of a log: from its last error on, without the traceback, or the last few lines."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    return "\n".join(lines[errors[-1] :])[:_LOG_TAIL_CHARS] if errors else "\n".join(lines[-_LOG_TAIL_LINES:])


def is_head_alive(address: str) -> bool:
    """Whether the head of a cluster answers at the address."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2):
        return _healthy(address)
    return False


def _healthy(address: str) -> bool:
    with contextlib.suppress(Exception):  # as `ray health-check`, without its two seconds of start-up
        return _gcs_client(address).check_alive([], timeout=2) is not None
    return False


def _count_nodes(address: str) -> int:
    """How many nodes are registered and alive."""
    with contextlib.suppress(Exception):
        return sum(node.state == 0 for node in _gcs_client(address).get_all_node_info(timeout=2).values())
    return 0


def _gcs_client(address: str) -> Any:
    return importlib.import_module("ray._raylet").GcsClient(address=address)


def processes_with_mark(mark: str) -> list[int]:
    """The processes that a client has started, and their descendants."""
    wanted = f"{_MARK_VARIABLE}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _own_address() -> str:
    """The address of this machine that others can reach, without asking anybody."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # a datagram socket sends nothing when it connects
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def _int_variable(variable: str) -> int | None:
    value: Any = os.environ.get(variable)
    return int(value) if value and value.isdecimal() else None
