"""Worker processes of this machine, and the pool that starts them."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from gristmill.core.executor import Job
from gristmill.core.isolate import Place
from gristmill.core.plan import Group
from gristmill.executors.machine import GpuSlots, Machine, Slot, visible_devices
from gristmill.executors.pool import Order, Pool, WorkerHandle, pickled
from gristmill.executors.process import Setup, StatusPage, threads_of
from gristmill.executors.zygote import Zygote

_ids = itertools.count()


class Process(WorkerHandle):
    """The driver's side of one worker process. Its key is its pid."""

    def __init__(
        self, group: int, meets: int | None, pid: int, channel: Connection, slot: Slot, page: StatusPage
    ) -> None:
        super().__init__(group, meets, pid, slot)
        self.channel, self.page = channel, page
        self.death = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        """Becomes readable when the process ends."""
        self.rests = False
        """Whether it has ended as a worker of its group, and not as a process."""

    def order(self, order: Order) -> None:
        self._say("call", order)

    def acknowledge(self) -> None:
        owed, self.owed = self.owed, 0
        self._say("ack", owed)

    def ask_to_share(self, count: int) -> None:
        self.share_asked = True
        self._say("share", count)

    def stop(self) -> None:
        self.state = "leaving"
        self._say("stop")
        if self.calls:
            self.interrupt()

    def interrupt(self) -> None:
        """Nobody waits for what it does any more."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.key, signal.SIGINT)

    def kill(self) -> None:
        self.rests = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.key, signal.SIGKILL)

    def place(self) -> Place | None:
        return self.page.place()

    def doing(self) -> tuple[int, float]:
        return self.page.read()

    def close(self) -> None:
        if not self.rests:
            self.channel.close()
        if self.death is not None:
            os.close(self.death)

    def _say(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # it has died; the end of its channel tells
            self.channel.send(message)


class ProcessPool(Pool):
    """Takes workers that rest, or has new ones forked."""

    node = "local"

    def __init__(
        self,
        group: Group,
        machine: Machine,
        slots: GpuSlots,
        job: Job,
        zygote: Zygote,
        folders: list[str],
        final: bool,
        register: Callable[[Process], None],
    ) -> None:
        super().__init__(group, machine, slots, job)
        self.goes_on = job.plan.after is not None
        self.zygote, self.final, self.register = zygote, final, register
        self.pages, self.folders = folders[-1], folders

    def start(self) -> None:
        if (slot := self.next_slot()) is None:
            return
        if self.payload is None:
            self.payload = pickled(self.group, self.rejecter)
        self.slots.hold(slot)
        number = next(_ids)
        page = f"{self.pages}/page-{number}"
        pid, channel = self.zygote.worker(threads_of(self.group.resources.cpus))
        worker = Process(self.index, self.group.meets, pid, channel, slot, StatusPage(page))
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
            self.node,
            self.zygote.lingers,
            self.goes_on,
        )
        with contextlib.suppress(OSError):
            channel.send(("setup", setup))
        self.enlist(worker)
        self.register(worker)
