"""Measures a command: CPU seconds of its whole process tree, wall time, and peak memory per process.

CPU. `getrusage(RUSAGE_CHILDREN)` counts a descendant only if every parent between has waited for it. A worker whose
zygote ends first, or is killed, would be missing. So this process makes itself the subreaper
(`PR_SET_CHILD_SUBREAPER`): what the tree leaves behind becomes its own child, running or as a zombie, and is waited
for with `wait4`, which gives the exact CPU time of the process and of all that it has waited for itself. Nothing is
sampled and nothing counted twice. It misses a process whose parent ignores SIGCHLD, as Ray's raylet does: nobody waits
for it, and the kernel forgets its time. With `unwaited`, such processes are looked at ten times a second while they
live, and what they had when last seen is added.

Memory. A thread looks at /proc every 25 ms: VmHWM, the kernel's own high-water mark of resident memory, which a
sample can only miss in the last 25 ms of a process, and Pss from smaps_rollup, in which shared pages are divided
among those who share them. Looking costs time of this process, which is not counted, and of a core, which slows what
is measured: some figures have runs of their own for memory; the others look less often, and at all that they compare
alike.

Processes are told apart by their place in the tree: the driver is the command, its children are zygotes, the
children of those are workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORK = HERE / "work"
JOBS = HERE / "measured_jobs.py"

LIMIT_S = math.inf
"""After so many seconds a command and all that it started are killed, and it has failed."""

_SAMPLE_S = 0.025
_UNWAITED_S = 0.1
_PR_SET_CHILD_SUBREAPER = 36
_ROLES = ("driver", "zygote", "worker")
_FOLDERS = re.compile(r"(?<![\w:/])/(?:[^/\s'\"]+/)*(?=[^/\s'\"])")


@dataclass
class Peak:
    """The most memory that one process had, in MB."""

    role: str
    rss: float = 0.0
    pss: float = 0.0


@dataclass
class Measured:
    """What a command took."""

    cpu: float
    wall: float
    processes: int
    answer: Any = None
    peaks: list[Peak] = field(default_factory=list)
    shared: float = 0.0
    """The most that lay in the run's folders in shared memory, in MB."""
    together: float = 0.0
    """The most memory (Pss) that all processes had at one time, in MB."""

    def peak(self, role: str, what: str = "rss") -> float:
        """The largest of all processes of a role."""
        return max((getattr(peak, what) for peak in self.peaks if peak.role == role), default=0.0)


def job(name: str, *arguments: object) -> list[str]:
    """The command for one of the jobs in jobs.py."""
    return [sys.executable, str(JOBS), name, *map(str, arguments)]


def measure(
    command: Sequence[str],
    memory: bool = False,
    unwaited: bool = False,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    sample_s: float = _SAMPLE_S,
) -> Measured:
    """Run a command to its end, and all that it started. Its last line of output, if that is JSON, is its answer.

    What it says beside that goes to `log`. Memory is looked at every `sample_s`.
    """
    _become_subreaper()
    env = {**(os.environ if env is None else env), "GRISTMILL_PROGRESS": "off"}
    env.setdefault("PYTHONWARNINGS", "ignore::RuntimeWarning")  # remarks on the corpus, one in every round
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # or every process would compile every module anew
    WORK.mkdir(exist_ok=True)
    others = _children()
    with open(log, "wb") if log else contextlib.nullcontext() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=env)
    watcher = _Watcher(process.pid, sample_s) if memory else None
    lost = _Unwaited(os.getpid()) if unwaited else None
    limit = _Limit(others, LIMIT_S)
    try:
        output = process.stdout.read()  # until the last descendant that holds it has closed it
        code, cpu, wall, reaped = _reap(process, began, others)
    finally:
        for thread in filter(None, (watcher, lost, limit)):
            thread.stop()
    if limit.over:
        raise RuntimeError(f"{' '.join(command)} took longer than {LIMIT_S:.0f} s")
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}{f': see {log}' if log else ''}")
    if lost:
        cpu += sum(seconds for pid, seconds in lost.seconds.items() if pid not in reaped)
    found = Measured(cpu, wall, len(reaped), _answer(output))
    if watcher:
        found.peaks, found.shared, found.together = list(watcher.peaks.values()), watcher.shared, watcher.together
    return found


def _become_subreaper() -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("this needs Linux: prctl(PR_SET_CHILD_SUBREAPER)")


def _reap(process: subprocess.Popen[bytes], began: float, others: set[int]) -> tuple[int, float, float, set[int]]:
    """Wait for the command and all that it left behind: its exit code, CPU and wall seconds, processes waited for.

    `others` are children that were there before, such as a cluster.
    """
    code, cpu, wall, reaped = 0, 0.0, 0.0, set()
    waiting = {process.pid}
    while waiting:
        for pid in waiting:
            _, status, usage = os.wait4(pid, 0)
            cpu += usage.ru_utime + usage.ru_stime
            if pid == process.pid:
                wall = time.perf_counter() - began  # the user's wall time: until the command itself has ended
                code = process.returncode = os.waitstatus_to_exitcode(status)
        reaped |= waiting
        waiting = _children() - others
    return code, cpu, wall, reaped


def _children() -> set[int]:
    return {pid for pid, parent in _parents().items() if parent == os.getpid()}


def _answer(output: bytes) -> Any:
    lines = output.decode().strip().splitlines()
    with contextlib.suppress(ValueError):
        return json.loads(lines[-1]) if lines else None
    return None


class _Limit:
    """Kills all that a command started, when its time is over, unless it is stopped before."""

    def __init__(self, others: set[int], seconds: float) -> None:
        self.others, self.over = others, False
        self._timer = threading.Timer(seconds, self._kill) if seconds < math.inf else None
        if self._timer:
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _kill(self) -> None:
        self.over = True
        for child in _children() - self.others:
            for pid in [*_descendants(child), child]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class _Unwaited:
    """Notes the CPU seconds of the descendants of a process whose parents ignore SIGCHLD, until it is stopped."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.seconds: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_UNWAITED_S):
            parents = _parents()
            for pid, parent in parents.items():
                with contextlib.suppress(OSError):
                    if _depth(pid, self.root, parents) and _ignores_children(parent):
                        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                        self.seconds[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _ignores_children(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigIgn:")[2].split()[0], 16) >> (signal.SIGCHLD - 1) & 1)


class _Watcher:
    """Looks at the memory of a process and all its descendants until it is stopped."""

    def __init__(self, root: int, every_s: float = _SAMPLE_S) -> None:
        self.root, self.every_s = root, every_s
        self.peaks: dict[int, Peak] = {}
        self.shared = self.together = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self.every_s):
            parents = _parents()
            depths = {pid: _depth(pid, self.root, parents) for pid in parents}
            now = [self._look(pid, _ROLES[min(depth, 2)]) for pid, depth in depths.items() if depth is not None]
            self.together = max(self.together, sum(now))
            self.shared = max(self.shared, _shared_bytes(self.root) / 1e6)

    def _look(self, pid: int, role: str) -> float:
        """What a process has now, in MB; 0 if it has gone."""
        with contextlib.suppress(OSError, KeyError):
            status = _fields(f"/proc/{pid}/status")
            peak = self.peaks.setdefault(pid, Peak(role))
            peak.rss = max(peak.rss, status["VmHWM"])
            now = _fields(f"/proc/{pid}/smaps_rollup")["Pss"]
            peak.pss = max(peak.pss, now)
            return now
        return 0.0


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    return parents


def _depth(pid: int, root: int, parents: dict[int, int]) -> int | None:
    """How far below the root a process is, or None if it is not below it."""
    depth = 0
    while pid != root:
        if pid not in parents:
            return None
        pid, depth = parents[pid], depth + 1
    return depth


def _fields(path: str) -> dict[str, float]:
    """The sizes in a file of `Name: n kB` lines, in MB."""
    sizes = {}
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[name] = int(value[:-3]) * 1024 / 1e6
    return sizes


def _shared_bytes(pid: int) -> int:
    total = 0
    for folder in Path("/dev/shm").glob(f"gristmill-{pid}-*"):
        with contextlib.suppress(OSError):  # it may go while it is looked at
            for path in folder.iterdir():
                with contextlib.suppress(OSError):
                    total += path.stat().st_size
    return total


# -- for jobs ----------------------------------------------------------------------------------------------


def children_cpu(pid: int) -> float:
    """CPU seconds so far of the living descendants of a process, from the kernel's clock of each, exact to the ns."""
    total = 0.0
    for other in _descendants(pid):
        with contextlib.suppress(OSError):
            total += time.clock_gettime((-other - 1) << 3 | 2)  # the clock that clock_getcpuclockid(other) names
    return total


def loaded(package: str, pid: int) -> bool:
    """Whether a descendant of a process has mapped a compiled module of a package, so has imported it."""
    for other in _descendants(pid):
        with contextlib.suppress(OSError):
            if f"/site-packages/{package}/" in Path(f"/proc/{other}/maps").read_text():
                return True
    return False


def _descendants(pid: int) -> list[int]:
    parents = _parents()
    return [other for other in parents if other != pid and _depth(other, pid, parents) is not None]


# -- numbers -------------------------------------------------------------------------------------------------


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def numbers(found: Any) -> list[float]:
    """What rounds gave: a median with its ends, a list of counts that differ, or the number that all have found."""
    if isinstance(found, dict):
        return [found["min"], found["median"], found["max"]]
    return found if isinstance(found, list) else [found]


def stable(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """The median of some rounds, and the smallest and largest."""
    return {name: round(pick(values), digits) for name, pick in (("median", median), ("min", min), ("max", max))}


def show(result: dict[str, Any]) -> None:
    """Print a result, a line per number."""
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{name:32} {value['median']:>10}   ({value['min']} to {value['max']})")
        else:
            print(f"{name:32} {value if isinstance(value, str | int | list) else round(value, 3)!s:>10}")


def short_message(error: BaseException) -> str:
    """The first line of an error, for results and pages: of files only the names, since folders are those of a user."""
    return _FOLDERS.sub("", str(error).partition("\n")[0])


def quiet(patience_s: float = 0.0, most: float = 0.15) -> float:
    """Wait until others leave the machine alone, at most for some seconds. How many cores they use in the end.

    Looks at the cores for a second at a time: the load average would still hold the benchmark's own last minutes.
    """
    end = time.monotonic() + patience_s
    while (busy := busy_cores()) > most and time.monotonic() < end:
        time.sleep(1)
    return busy


def busy_cores(seconds: float = 1.0) -> float:
    """How many cores are in use, by all processes."""
    before, began = _busy_seconds(), time.perf_counter()
    time.sleep(seconds)
    return (_busy_seconds() - before) / (time.perf_counter() - began)


def _busy_seconds() -> float:
    """CPU seconds that all processes together have used since the machine started."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
