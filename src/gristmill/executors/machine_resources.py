"""The resources of this machine (cores, memory, GPUs), and the GPU slots that workers hold."""

from __future__ import annotations

import os
import shutil
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from gristmill.core.executor import Machine
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.resources import Resources


def this_machine(cpus: int | None = None, gpus: int | list[float] | None = None) -> Machine:
    """The machine that this process runs on. Arguments replace what would be measured."""
    return Machine(float(cpus or count_cpus()), total_memory_gb(), _gpu_memory(gpus))


def count_cpus() -> int:
    """The cores that this process may use, within its CPU affinity and container limits."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def total_memory_gb() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError):
        return None


def private_memory_bytes() -> int:
    """The private memory of this process in bytes; 0 where it cannot be measured."""
    try:
        resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _gpu_memory(gpus: int | list[float] | None) -> tuple[float | None, ...]:
    if gpus is None:
        return find_gpus()
    return (None,) * gpus if isinstance(gpus, int) else tuple(gpus)


def find_gpus() -> tuple[float | None, ...]:
    """The memory in GB of each NVIDIA GPU that this process may use."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or not shutil.which("nvidia-smi"):
        return ()
    import subprocess

    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        memory = [float(line) * 2**20 / 1e9 for line in answer.split()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    chosen = [int(device) for device in visible if device.strip().isdecimal()]
    return tuple(memory[device] for device in chosen if device < len(memory)) if chosen else tuple(memory)


class GpuSlot(NamedTuple):
    """The GPUs that a worker holds, or the share of one."""

    devices: tuple[int, ...] = ()
    share: float = 0.0


@fast_dataclass
class GpuSlots:
    """Assigns GPUs to workers, whole or by shares."""

    memory: tuple[float | None, ...]
    _free: list[float] = field(init=False)
    _by_free: dict[tuple[float, float | None], dict[int, None]] | None = field(init=False, default=None)
    """GPUs by free share and memory, so that a search among thousands of them is fast."""

    def __post_init__(self) -> None:
        self.free = [1.0] * len(self.memory)

    @property
    def free(self) -> list[float]:
        return self._free

    @free.setter
    def free(self, free: list[float]) -> None:
        self._free, self._by_free = free, None

    def take(self, resources: Resources) -> GpuSlot | None:
        """Reserve a slot for one worker; None if there is none."""
        slot = self.find(resources)
        return None if slot is None else self.reserve(slot)

    def find(self, resources: Resources) -> GpuSlot | None:
        """The slot that would be taken next. Shares go to the fullest GPU that has room."""
        if not resources.requires_gpu:
            return GpuSlot()
        if resources.gpus > 1:
            free_devices = [device for device, free in enumerate(self.free) if free > 1 - 1e-9][: int(resources.gpus)]
            if len(free_devices) < resources.gpus:
                return None
            return GpuSlot(tuple(free_devices), 1.0)
        by_free = self._by_free_share()
        fitting = [key for key, devices in by_free.items() if devices and resources.gpu_share(key[1]) <= key[0] + 1e-9]
        if not fitting:
            return None
        fullest = min(fitting, key=lambda key: key[0])
        return GpuSlot((next(iter(by_free[fullest])),), resources.gpu_share(fullest[1]))

    def _by_free_share(self) -> dict[tuple[float, float | None], dict[int, None]]:
        if self._by_free is None:
            self._by_free = {}
            for device, (free, memory) in enumerate(zip(self.free, self.memory, strict=True)):
                self._by_free.setdefault((round(free, 9), memory), {})[device] = None
        return self._by_free

    def reserve(self, slot: GpuSlot) -> GpuSlot:
        self._change(slot, -slot.share)
        return slot

    def release(self, slot: GpuSlot) -> None:
        self._change(slot, slot.share)

    def _change(self, slot: GpuSlot, by: float) -> None:
        by_free = self._by_free_share()
        for device in slot.devices:
            memory = self.memory[device]
            del by_free[round(self.free[device], 9), memory][device]
            self.free[device] += by
            by_free.setdefault((round(self.free[device], 9), memory), {})[device] = None

    def fits(self, resources: Resources) -> int:
        """How many workers with these needs fit on the machine when it is empty."""
        if resources.gpus > 1:
            return int(len(self.memory) // resources.gpus)
        shares = [resources.gpu_share(memory) for memory in self.memory]
        return sum(int(1 / share + 1e-9) for share in shares if share <= 1 + 1e-9)


def visible_devices(devices: tuple[int, ...]) -> tuple[int, ...]:
    """Translate device numbers if CUDA_VISIBLE_DEVICES already limits what this process sees."""
    visible = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip().isdecimal()]
    if not visible:
        return devices
    return tuple(int(visible[device]) for device in devices if device < len(visible))
