"""One process of a run, the faults that it can suffer, and the moments at which they come."""

from __future__ import annotations

import glob
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.promises.fault_pipeline import Mill
from tests.promises.output_checks import state
from tests.promises.run_processes import kill_at_once, marked, send, workers, zygotes

ENDING = {
    "driver": {-signal.SIGKILL},
    "everything": {-signal.SIGKILL},
    "zygote": {1},
    "terminate": {-signal.SIGTERM, 128 + signal.SIGTERM},
    "interrupt": {-signal.SIGINT, 128 + signal.SIGINT},
}
"""Faults that end the driver, and the exit codes that it may then have."""

PASSING = {"worker": 1, "workers": 2, "hail": 10, "pause": 0}
"""Faults that a run survives, and how many workers they kill: so many retries must its stages have."""

NEEDS_WORKERS = {*PASSING, "zygote"}
"""Faults that come to processes that are gone before the run has ended."""

MOMENTS = ("plan", "worker", "fragment", "commit", "ledger", "metrics", "manifest")
"""What a run does, in about this order. A fault comes when it has just done so for the first, second, ... time."""


_TICK = 0.002


@dataclass(frozen=True)
class Fault:
    """What happens, and when: some seconds after the run was launched, or after it has done something."""

    kind: str
    moment: str = "launch"
    number: int = 1
    delay: float = 0.0

    def __str__(self) -> str:
        when = self.moment if self.number == 1 else f"{self.moment} {self.number}"
        return f"{self.kind} at {when} + {self.delay:.2f} s"


class Attempt:
    """One process of a run."""

    def __init__(self, mill: Mill, mark: str, folder: Path) -> None:
        self._watched = {
            "plan": f"{_plain(mill.run_dir)}/plan.json",
            "fragment": f"{_plain(mill.output)}.run/_tmp/*/*",
            "commit": f"{_plain(mill.output)}/[!_]*",
            "ledger": f"{_plain(mill.run_dir)}/ledger/*.jsonl",
            "metrics": f"{_plain(mill.run_dir)}/metrics.json",
            "manifest": f"{_plain(mill.output)}.run/manifest.json",
        }
        self._before = {moment: self._seen(moment) for moment in self._watched}
        self.mark, self.killed = mark, 0
        self.began = time.monotonic()
        self.process = mill.start(mark, folder)

    @property
    def driver(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    # -- moments ---------------------------------------------------------------------------------------

    def reaches(self, fault: Fault) -> bool:
        """Wait for the moment of a fault. False when the run has ended before."""
        since = self.began
        while fault.moment != "launch" and not self.ended:
            if self._count(fault.moment) >= fault.number:
                since = time.monotonic()
                break
            time.sleep(_TICK)
        while not self.ended and (left := since + fault.delay - time.monotonic()) > 0:
            time.sleep(min(left, 0.01))
        return not self.ended

    def _count(self, moment: str) -> int:
        if moment == "worker":
            return len(workers(self.driver))
        return len(self._seen(moment) - self._before[moment])

    def _seen(self, moment: str) -> set[tuple[str, int, int]]:
        found = set()
        for path in glob.glob(self._watched[moment]):
            with suppress(FileNotFoundError):
                found.add((path, *state(Path(path))))
        return found

    # -- faults ----------------------------------------------------------------------------------------

    def suffers(self, kind: str, rng: random.Random) -> bool:
        """Inject a fault. False when there was nothing left to hit."""
        if kind == "driver":
            self.process.kill()
        elif kind == "everything":
            kill_at_once(marked(self.mark))
        elif kind == "terminate":
            self.process.terminate()
        elif kind == "interrupt":
            os.killpg(self.driver, signal.SIGINT)  # as a terminal does
        elif kind == "zygote":
            return bool(self._strike(zygotes, 1, rng))
        elif kind == "pause":
            return self._pause(rng)
        elif kind == "hail":
            return self._hail(rng)
        else:
            struck = self._strike(workers, PASSING[kind], rng)
            self.killed += struck
            return bool(struck)
        return True

    def _strike(self, find: Callable[[int], list[int]], most: int, rng: random.Random) -> int:
        """Kill some of the processes that are found, as soon as there are any."""
        found = self._some(find)
        victims = rng.sample(found, min(most, len(found)))
        send(victims, signal.SIGKILL)
        return len(victims)

    def _hail(self, rng: random.Random) -> bool:
        """Kill one worker after another."""
        struck = 0
        while struck < PASSING["hail"] and self._strike(workers, 1, rng):
            struck += 1
            time.sleep(rng.uniform(0, 0.1))
        self.killed += struck
        return struck > 0

    def _pause(self, rng: random.Random) -> bool:
        """Stop a worker for a while, as a machine does that is suspended or swaps."""
        if not (found := self._some(workers)):
            return False
        victim = [rng.choice(found)]
        send(victim, signal.SIGSTOP)
        time.sleep(rng.uniform(0.05, 0.5))
        send(victim, signal.SIGCONT)
        return True

    def _some(self, find: Callable[[int], list[int]]) -> list[int]:
        while not self.ended:
            if found := find(self.driver):
                return found
            time.sleep(_TICK)
        return []


def _plain(path: str) -> str:
    return glob.escape(path)
