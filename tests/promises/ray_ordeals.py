"""Faults on a Ray cluster of two nodes: actors, raylets, a node, the network and the driver, on all three executors.

The head, where the driver is, stays. The other node is killed and replaced, or its raylet stops answering for a while.
A run that is killed goes on with any of the executors. Runs on Ray Data and Xenna may end with an error when what the
engine itself needs is gone, as long as they can go on and lose nothing; those are counted.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.executors.ray.ray_client import processes_with_mark
from tests.executors.multi_node_cluster import Cluster
from tests.promises.fault_injection import Attempt
from tests.promises.fault_pipeline import ON_RAY, WRITERS, Mill
from tests.promises.fault_scenarios import Ordeal, draw_faults
from tests.promises.run_processes import send

if TYPE_CHECKING:
    from tests.promises.soak import Scenarios, Shelf

WEIGHTS = {"driver": 4, "terminate": 1, "interrupt": 1, "actor": 6, "control": 2, "raylet": 2, "node": 2, "network": 2}
ACTORS = ("RayWorker", "EngineActor", "MapWorker", "StageWorker")
CONTROL = ("ControlActor", "EngineCoordinator")
RETRIES, CPUS = 30, 2


class RayAttempt(Attempt):
    """One driver on the cluster. Its workers are actors."""

    def __init__(self, mill: Mill, mark: str, folder: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        self.struck = list[str]()
        super().__init__(mill, mark, folder)

    def _count(self, moment: str) -> int:
        return len(actors(self.cluster, ACTORS)) if moment == "worker" else super()._count(moment)

    def suffers(self, kind: str, rng: random.Random) -> bool:
        if kind in ("driver", "terminate", "interrupt"):
            return super().suffers(kind, rng)
        hit: bool = getattr(self, f"_{kind}")(rng)
        if hit:
            self.struck.append(kind)
        return hit

    def _actor(self, rng: random.Random) -> bool:
        return self._kill_one(ACTORS, rng)

    def _control(self, rng: random.Random) -> bool:
        return self._kill_one(CONTROL, rng)

    def _kill_one(self, kinds: tuple[str, ...], rng: random.Random) -> bool:
        found = self._some(lambda _: actors(self.cluster, kinds))
        send([rng.choice(found)] if found else [], signal.SIGKILL)
        return bool(found)

    def _raylet(self, _: random.Random) -> bool:
        """The raylet of a node dies, and soon all else there; another node takes its place."""
        self._other_node().kill_raylet()
        self.cluster.add(cpus=CPUS)
        return True

    def _node(self, _: random.Random) -> bool:
        self._other_node().kill()
        self.cluster.add(cpus=CPUS)
        return True

    def _network(self, rng: random.Random) -> bool:
        """A node does not answer for a while: not long enough to be given up, or nearly so."""
        raylets = [pid for pid in processes_with_mark(self._other_node().mark) if b"raylet/raylet" in _command(pid)]
        send(raylets, signal.SIGSTOP)
        time.sleep(rng.uniform(0.5, 6))
        send(raylets, signal.SIGCONT)
        return bool(raylets)

    def _other_node(self) -> Any:
        return self.cluster.nodes[-1]


class RayOrdeal(Ordeal):
    """A run on a cluster, on one executor after another."""

    patience, grace = 400.0, 90.0
    other_codes = frozenset({1, signal.SIGTERM, -signal.SIGABRT})  # Ray has its own handler, which may abort

    def __init__(self, *given: Any, cluster: Cluster) -> None:
        super().__init__(*given)
        self.cluster = cluster
        self.history.append(self.mill.executor)

    def _start(self) -> RayAttempt:
        for node in self.cluster.nodes[:-1]:  # what a dead raylet has left
            node.kill()
        del self.cluster.nodes[:-1]
        self.cluster.wait_for(2)
        return RayAttempt(self.mill, self.mark, self.folder, self.cluster)

    def _may_give_up(self, attempt: Attempt) -> bool:
        assert isinstance(attempt, RayAttempt)
        excuse = {"control", "raylet", "node", "network"} & set(attempt.struck)
        allowed = bool(excuse) and self.mill.executor != "ray-actors" and self.tally.gave_up < 5
        if allowed:
            errors = [line for line in self._messages().splitlines() if "Error" in line]
            self.history.append(f"gave up ({' | '.join(errors[-1:])[:200]})")
        return allowed

    def _change(self) -> None:
        super()._change()
        executor = self.rng.choice(list(ON_RAY))
        self.mill = replace(self.mill, executor=executor, command=False)
        self.history.append(executor)

    def _no_process_is_left(self) -> None:
        super()._no_process_is_left()
        deadline = time.monotonic() + self.grace
        while (left := actors(self.cluster, ACTORS + CONTROL)) and time.monotonic() < deadline:
            time.sleep(0.2)
        if left:
            self._object(f"actors {[_command(pid) for pid in left]} outlived their driver")


def actors(cluster: Cluster, kinds: tuple[str, ...]) -> list[int]:
    """The processes of actors of these classes, on any node."""
    titles = tuple(f"ray::{kind}".encode() for kind in kinds)
    marks = [cluster.client._mark, *(node.mark for node in cluster.nodes)]
    return sorted(pid for mark in marks for pid in processes_with_mark(mark) if _command(pid).startswith(titles))


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@contextmanager
def ray_scenarios() -> Iterator[Scenarios]:
    """Ways to draw ordeals, while there is a cluster for them."""
    with Cluster(cpus=CPUS) as cluster:
        cluster.add(cpus=CPUS)

        def one_run(rng: random.Random, shelf: Shelf, folder: Path, poison: int = 0) -> list[Ordeal]:
            seed, writer = rng.randrange(3), rng.choice(list(WRITERS))
            corpus, reference = shelf.corpus(seed), shelf.reference(seed, writer, poison)
            mill = Mill(
                str(corpus.folder),
                "",
                "",
                writer,
                blocksize=rng.choice([3000, 8000, 50_000]),
                nap=0.004 / (seed + 1),
                flush=rng.choice([0.0, 0.1, 1.0]),
                retries=RETRIES if not poison else 6,
                poison=poison,
                executor=rng.choice(list(ON_RAY)),
            )
            kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=rng.randint(2, 6))
            faults = draw_faults(rng, kinds, 4 * reference.seconds)
            return [RayOrdeal(corpus, reference, mill, folder, faults, rng.randrange(2**32), cluster=cluster)]

        def poisoned_run(rng: random.Random, shelf: Shelf, folder: Path) -> list[Ordeal]:
            return one_run(rng, shelf, folder, poison=rng.choice([60, 200]))

        yield {one_run: 3, poisoned_run: 1}
