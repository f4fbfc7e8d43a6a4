"""What this machine has: cores, memory, GPUs; and the GPU slots that workers take."""

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
    """The cores that this process may use: affinity and container limits count."""
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
    """Bytes of memory that this process has for itself alone; 0 where that cannot be told."""
    try:
        resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _gpu_memory(given: int | list[float] | None) -> tuple[float | None, ...]:
    if given is None:
        return find_gpus()
    return (None,) * given if isinstance(given, int) else tuple(given)


def find_gpus() -> tuple[float | None, ...]:
    """The memory of each NVIDIA GPU that this process may use."""
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
    """GPUs, or shares of one, that a worker holds."""

    devices: tuple[int, ...] = ()
    share: float = 0.0


@fast_dataclass
class GpuSlots:
    """Hands out GPUs, whole or by shares."""

    memory: tuple[float | None, ...]
    _free: list[float] = field(init=False)
    _by_free: dict[tuple[float, float | None], dict[int, None]] | None = field(init=False, default=None)
    """GPUs by what is free of them and their memory: there may be thousands, and they are asked for often."""

    def __post_init__(self) -> None:
        self.free = [1.0] * len(self.memory)

    @property
    def free(self) -> list[float]:
        return self._free

    @free.setter
    def free(self, free: list[float]) -> None:
        self._free, self._by_free = free, None

    def take(self, wish: Resources) -> GpuSlot | None:
        """A slot for one worker, or None when there is no room."""
        slot = self.find(wish)
        return None if slot is None else self.reserve(slot)

    def find(self, wish: Resources) -> GpuSlot | None:
        """The slot that would be taken next. Shares fill the fullest GPU that has room."""
        if not wish.requires_gpu:
            return GpuSlot()
        if wish.gpus > 1:
            whole = [device for device, free in enumerate(self.free) if free > 1 - 1e-9][: int(wish.gpus)]
            if len(whole) < wish.gpus:
                return None
            return GpuSlot(tuple(whole), 1.0)
        rooms = self._by_free_share()
        fitting = [room for room, devices in rooms.items() if devices and wish.gpu_share(room[1]) <= room[0] + 1e-9]
        if not fitting:
            return None
        fullest = min(fitting, key=lambda room: room[0])
        return GpuSlot((next(iter(rooms[fullest])),), wish.gpu_share(fullest[1]))

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
        rooms = self._by_free_share()
        for device in slot.devices:
            memory = self.memory[device]
            del rooms[round(self.free[device], 9), memory][device]
            self.free[device] += by
            rooms.setdefault((round(self.free[device], 9), memory), {})[device] = None

    def fits(self, wish: Resources) -> int:
        """How many workers with this wish the empty machine could hold."""
        if wish.gpus > 1:
            return int(len(self.memory) // wish.gpus)
        shares = [wish.gpu_share(memory) for memory in self.memory]
        return sum(int(1 / share + 1e-9) for share in shares if share <= 1 + 1e-9)


def visible_devices(devices: tuple[int, ...]) -> tuple[int, ...]:
    """Device numbers as CUDA knows them, when the user already narrowed what this process sees."""
    visible = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip().isdecimal()]
    if not visible:
        return devices
    return tuple(int(visible[device]) for device in devices if device < len(visible))
