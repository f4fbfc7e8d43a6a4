"""Pool: the worker processes of one group."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from multiprocessing.connection import Connection
from typing import Any, Literal

import cloudpickle

from gristmill.core.errors import StageError
from gristmill.core.executor import Job
from gristmill.core.flow import Call
from gristmill.core.plan import Group
from gristmill.core.rejects import Rejecter
from gristmill.core.stage import implements
from gristmill.executors.machine import GpuSlots, Machine, Slot, visible_devices
from gristmill.executors.process import WINDOW, Order, Setup, StatusPage
from gristmill.executors.zygote import Zygote

State = Literal["starting", "idle", "busy", "leaving", "gone"]
_ids = itertools.count()


class WorkerHandle:
    """The driver's side of one worker process."""

    def __init__(self, group: int, gather: bool, pid: int, channel: Connection, slot: Slot, page: StatusPage) -> None:
        self.group, self.gather, self.pid, self.channel = group, gather, pid, channel
        self.slot, self.page = slot, page
        self.death = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        """Becomes readable when the process ends."""
        self.state: State = "starting"
        self.owed = 0
        self.share_asked = False
        self.timed_out = ""

    def call(self, call: Call) -> None:
        item = call.items[0]
        self.state, self.owed, self.share_asked = "busy", 0, False
        items = [(entry.lineage, entry.refs) for entry in call.items]
        order = Order(items, call.start, self.gather, call.streams, item.history, call.budget, item.sent, item.shed)
        self.channel.send(("call", order))

    def acknowledge(self) -> None:
        owed, self.owed = self.owed, 0
        self._say("ack", owed)

    def ask_to_share(self, count: int) -> None:
        self.share_asked = True
        self._say("share", count)

    def stop(self) -> None:
        self.state = "leaving"
        self._say("stop")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _say(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # it has died, which is noticed elsewhere
            self.channel.send(message)


class Pool:
    """Workers of one group: how many there may be, and what each is doing."""

    def __init__(
        self,
        group: Group,
        machine: Machine,
        zygote: Zygote,
        slots: GpuSlots,
        folders: list[str],
        final: bool,
        job: Job,
    ) -> None:
        self.group, self.index = group, group.index
        self.zygote, self.slots, self.final = zygote, slots, final
        self.budget = job.quarantine.budget if job.quarantine.isolates else None
        self.rejecter = job.plan.rejecter(group)
        self.pages, self.folders = folders[-1], folders[1:] if final else folders  # results are kept on disk
        # a fixed number of workers is the user's own word on how much runs at once
        self.cpus = 0.0 if group.num_workers else group.resources.cpus
        self.limit = group.num_workers or _most_workers(group, machine, slots)
        self.target = self.limit
        self.timed = any(stage.timeout_s is not None for stage in group.stages)
        self.on_node = any(implements(stage, "setup_on_node") for stage in group.stages)
        self.payload: bytes | None = None
        self.workers: list[WorkerHandle] = []
        self.setup_failures = 0

    def those(self, state: State) -> list[WorkerHandle]:
        return [worker for worker in self.workers if worker.state == state]

    @property
    def idle(self) -> list[WorkerHandle]:
        return self.those("idle")

    @property
    def busy(self) -> list[WorkerHandle]:
        return self.those("busy")

    @property
    def starting(self) -> int:
        return len(self.those("starting"))

    def can_grow(self) -> bool:
        if len(self.workers) >= min(self.limit, max(self.target, 1)) or (self.on_node and self.starting):
            return False
        slot = self.slots.take(self.group.resources)
        if slot is None:
            return False
        self.slots.give_back(slot)
        return True

    def cpus_in_use(self, total: float) -> float:
        """Cores that calls and set-ups use; a worker that waits for room behind it uses none."""
        active = self.starting + sum(1 for worker in self.busy if worker.owed < WINDOW // 2)
        return active * min(self.cpus, total)

    def start(self) -> WorkerHandle:
        if self.payload is None:
            self.payload = pickled(self.group, self.rejecter)
        slot = self.slots.take(self.group.resources)
        assert slot is not None
        number = next(_ids)
        page = f"{self.pages}/page-{number}"
        pid, channel = self.zygote.fork()
        worker = WorkerHandle(self.index, self.group.gather, pid, channel, slot, StatusPage(page))
        env = (self.group.stages[0].runtime_env or {}).get("env_vars", {})
        setup = Setup(
            self.payload,
            f"{self.index}-{number}",
            page,
            self.folders,
            self.on_node,
            self.final,
            self.budget,
            visible_devices(slot.devices),
            self.group.resources.cpus,
            env,
        )
        with contextlib.suppress(OSError):
            channel.send(("setup", setup))
        self.workers.append(worker)
        return worker

    def remove(self, worker: WorkerHandle) -> None:
        worker.state = "gone"
        self.workers.remove(worker)
        self.slots.give_back(worker.slot)
        worker.channel.close()
        if worker.death is not None:
            os.close(worker.death)


def _most_workers(group: Group, machine: Machine, slots: GpuSlots) -> int:
    wish = group.resources
    most = max(1, int(machine.cpus / wish.cpus + 1e-9)) if wish.cpus else int(machine.cpus)
    if wish.requires_gpu:
        most = slots.fits(wish)
    if wish.memory_gb and machine.memory_gb:
        most = min(most, int(machine.memory_gb / wish.memory_gb))
    return max(1, most)


def pickled(group: Group, rejecter: Rejecter | None = None) -> bytes:
    """The stages of a group, and what writes down what they drop, ready to be sent to its workers."""
    for stage in group.stages:
        try:
            cloudpickle.dumps(stage)
        except Exception as error:
            raise StageError(
                stage.name,
                "(none yet)",
                (),
                f"it cannot be sent to a worker: {error}. Create what cannot be pickled (locks, clients, models) "
                "in setup(), not in the constructor",
            ) from error
    payload: bytes = cloudpickle.dumps((list(group.stages), rejecter))
    return payload
