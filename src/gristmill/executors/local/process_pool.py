"""The driver's side of worker processes, and the pool that starts them."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from gristmill.core.executor import Job, Machine
from gristmill.core.plan.planner import Group
from gristmill.core.run.isolation import RowLocation
from gristmill.executors.local.worker_process import StatusPage, WorkerSetup, thread_count
from gristmill.executors.local.zygote import Zygote
from gristmill.executors.machine_resources import GpuSlot, GpuSlots, visible_devices
from gristmill.executors.worker_pool import CallRequest, WorkerHandle, WorkerPool, pickle_group

_EXIT_SECONDS = 1.0
"""How long a process may take to end after its channel was closed."""

_worker_numbers = itertools.count()


class ProcessHandle(WorkerHandle):
    """The driver's side of one worker process. Its key is its pid."""

    def __init__(
        self, group: int, gather_position: int | None, pid: int, channel: Connection, slot: GpuSlot, page: StatusPage
    ) -> None:
        super().__init__(group, gather_position, pid, slot)
        self.channel, self.page = channel, page
        self.death = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        """Becomes readable when the process ends."""
        self.kept_for_reuse = False
        """Whether it has stopped working for its group, and its process stays for another."""
        self.closed_channel = False
        """Whether a stage closed the channel, and the process is still there."""

    def send_call(self, request: CallRequest) -> None:
        self._send_message("call", request)

    def acknowledge(self) -> None:
        owed, self.unacknowledged_bytes = self.unacknowledged_bytes, 0
        self._send_message("ack", owed)

    def ask_to_share(self, count: int) -> None:
        self.share_asked = True
        self._send_message("share", count)

    def stop(self) -> None:
        self.state = "leaving"
        self._send_message("stop")
        if self.calls:
            self.interrupt()

    def interrupt(self) -> None:
        """Interrupt its call, whose result is no longer wanted."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.key, signal.SIGINT)

    def kill(self) -> None:
        self.kept_for_reuse = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.key, signal.SIGKILL)

    def last_position(self) -> RowLocation | None:
        return self.page.location()

    def current_stage(self) -> tuple[int, float]:
        return self.page.read()

    def rows_noted(self) -> tuple[int, float] | None:
        return self.page.rows_noted()

    def note_closed_channel(self) -> None:
        """The channel has ended, as a rule because the process has."""
        if self.death is not None:
            self.closed_channel = not select.select([self.death], [], [], _EXIT_SECONDS)[0]

    def close(self) -> None:
        if not self.kept_for_reuse:
            self.channel.close()
        if self.death is not None:
            os.close(self.death)

    def _send_message(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # it has died, which `listen` sees at the end of its channel
            self.channel.send(message)


class ProcessPool(WorkerPool):
    """Takes idle worker processes from the zygote, or has new ones forked."""

    has_default_limits = True

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
        register: Callable[[ProcessHandle], None],
    ) -> None:
        super().__init__(group, machine, slots, job)
        self.has_next_segment = job.plan.next_segment is not None
        self.zygote, self.final, self.register = zygote, final, register
        self.pages, self.folders = folders[-1], folders

    def start(self) -> None:
        if (slot := self.next_slot()) is None:
            return
        if self.payload is None:
            self.payload = pickle_group(self.group, self.rejecter)
        self.slots.reserve(slot)
        number = next(_worker_numbers)
        page = f"{self.pages}/page-{number}"
        pid, channel = self.zygote.take_worker(thread_count(self.group.resources.cpus))
        worker = ProcessHandle(self.index, self.group.gather_position, pid, channel, slot, StatusPage(page))
        env = (self.group.stages[0].runtime_env or {}).get("env_vars", {})
        setup = WorkerSetup(
            stages=self.payload,
            worker_id=f"{self.index}-{number}",
            page=page,
            folders=self.folders,
            needs_node_setup=self.needs_node_setup,
            final=self.final,
            budget=self.budget,
            gpus=visible_devices(slot.devices),
            cpus=self.group.resources.cpus,
            env=env,
            node=self.node,
            outlives_driver=self.zygote.outlives_driver,
            has_next_segment=self.has_next_segment,
        )
        with contextlib.suppress(OSError):
            channel.send(("setup", setup))
        self.add_worker(worker)
        self.register(worker)
