"""The board: an actor near the driver through which driver and workers speak outside of calls.

Workers note there what they are doing, for the driver to read when they are gone. The driver asks there, in the middle
of a call, that a worker leave some tasks to others; the worker leaves them there. A call that waits behind another is
taken back there. When a run is stopped, workers learn there that nobody waits for what they do.

Ray's memory monitor kills what can be restarted first, then what was started last. So the board is started first and is
not restarted by Ray. It may be killed all the same, and no run depends on what was on it: the driver puts up the next
one, with what it knows itself; workers look for that and tell it where they are (`control_client.py`); tasks that are left to
others come with the outputs of the call as well.

What is given up: a worker that ends before it has told the new board where it is has nobody to blame for it, and what
it did is done again; the last lines that workers print may come too late.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ResourceError
from gristmill.core.run.isolation import RowLocation
from gristmill.executors.ray.output_forwarding import OutputMarker

if TYPE_CHECKING:
    from gristmill.executors.ray.worker_actor import WorkerMessage


SharedPart = tuple[int, "WorkerMessage", list[Any]]
"""Some of a call that was left to others: which part of it, and what a worker would have sent."""

_LIVENESS_POLL_SECONDS = 0.1
_POSITION_MAX_AGE_SECONDS = 0.2
_REREGISTER_SECONDS = 5.0
"""Seconds that workers have to tell the next board that they are not any more where they were."""

_RETRY_SECONDS = 0.1
_MAX_ATTEMPTS = 50
"""How often the board is asked in vain, or another one put up, before the run is given up."""


@dataclass(slots=True)
class ControlState:
    """What the driver knows when it puts up another board."""

    positions: dict[int, tuple[RowLocation, float]] = field(default_factory=dict)
    """Where workers were when it last looked, and for how many seconds."""
    withdrawn: dict[int, int] = field(default_factory=dict)
    workers: set[int] = field(default_factory=set)
    stopped: bool = False
    output_enabled: bool = False
    closed: bool = False
    """Whether there was an engine, which does not know of this board."""


class ControlActor:
    """Where workers note what they are doing, for the driver to read when they are gone, and leave what others may do.

    It is asked by many at once, and some wait for an answer.
    """

    def __init__(self, past: ControlState | None = None) -> None:
        past, now = past or ControlState(), time.monotonic()
        self.notes = {key: (place, now - seconds) for key, (place, seconds) in past.positions.items()}
        self.steps: dict[int, int] = {}
        """The step of the latest note of each worker: Ray may deliver them in another order."""
        self.asks: dict[int, asyncio.Queue[int]] = {}
        self.left: list[tuple[int, int, SharedPart]] = []
        self.taken: dict[int, int] = {}
        self.withdrawn = past.withdrawn
        self.unregistered_workers = past.workers
        """Workers that have spoken to the board before this one, and not yet to this one."""
        self.stopped = asyncio.Event()
        self.marks: list[str] | None = [] if past.output_enabled else None
        if past.stopped:
            self.stopped.set()

    async def clear(self) -> None:
        """A segment is over, and the next one begins."""
        for asked in self.asks.values():
            asked.put_nowait(0)  # nobody may wait forever
        for books in (
            self.notes,
            self.steps,
            self.asks,
            self.left,
            self.taken,
            self.withdrawn,
            self.unregistered_workers,
        ):
            books.clear()
        self.marks = None

    async def wait_until_killed(self) -> None:
        """Never answers: it is the end of waiting that tells."""
        await asyncio.Event().wait()

    async def expect(self, key: int) -> None:
        """A worker that has not been told yet that it is one: it may have died at rest."""
        self.unregistered_workers.add(key)

    async def meet(self, key: int, step: int, place: RowLocation | None, seconds: float, taken: int) -> None:
        """A worker that was expected, or knew the board before this one: where it is, since when, what it began."""
        await self.note(key, step, place, seconds)
        self.taken[key] = max(taken, self.taken.get(key, -1))
        self.unregistered_workers.discard(key)

    async def note(self, key: int, step: int, place: RowLocation | None, seconds: float = 0.0) -> None:
        """Where a worker is, and for how many seconds; unless what it noted after that has come before."""
        if step < self.steps.get(key, 0):
            return
        self.steps[key] = step
        self.notes.pop(key, None)
        if place is not None:
            self.notes[key] = (place, time.monotonic() - seconds)

    async def read(self) -> tuple[dict[int, tuple[RowLocation, float]], set[int]]:
        """Each worker's place, and for how many seconds it has been there; and those of whom that is not certain."""
        now = time.monotonic()
        return {key: (place, now - since) for key, (place, since) in self.notes.items()}, self.unregistered_workers

    async def ask(self, key: int, count: int) -> None:
        """Others are idle: a worker should leave them so many tasks."""
        self._asks(key).put_nowait(count)

    async def asked(self, key: int) -> int:
        """How many tasks a worker should leave to others, as soon as it should."""
        return await self._asks(key).get()

    def _asks(self, key: int) -> asyncio.Queue[int]:
        return self.asks.setdefault(key, asyncio.Queue())

    async def leave(self, key: int, number: int, left: SharedPart) -> None:
        """Some of a worker's call, by number, for others."""
        self.left.append((key, number, left))

    async def collect(self) -> list[tuple[int, int, SharedPart]]:
        """What workers have left since the last time."""
        left, self.left = self.left, []
        return left

    async def withdraw(self, key: int, number: int) -> bool:
        """Take a call back that a worker has not begun; whether that was in time."""
        if key in self.unregistered_workers:  # it may have begun
            return False
        self.withdrawn[key] = number
        return self.taken.get(key, -1) < number

    async def take(self, key: int, number: int) -> bool:
        """A worker begins a call that has waited long; whether it is still wanted."""
        self.taken[key] = number
        return self.withdrawn.get(key) != number

    async def stop(self) -> None:
        """Nobody waits for what workers do any more."""
        self.stopped.set()

    async def until_stopped(self) -> None:
        await self.stopped.wait()

    async def hear(self) -> None:
        """The driver listens to what workers print."""
        self.marks = self.marks or []

    async def is_heard(self) -> bool:
        return self.marks is not None

    async def mark(self, marks: list[str]) -> None:
        """What was printed ends with these."""
        self.marks = [*(self.marks or ()), *marks]

    async def take_marks(self) -> list[str]:
        marks = self.marks or []
        self.marks = None if self.marks is None else []
        return marks


_CONTROL_ACTOR_LOST_MESSAGE = (
    "Ray has killed the actor through which driver and workers speak, again and again: the memory of its node, which "
    "is that of the driver, ran out, or the node is gone. Let stages take less at once (num_workers, a smaller "
    "blocksize), or run the driver where there is more. Started again with its run_dir, the run goes on"
)


class ControlActorSupervisor:
    """The driver's side: asks the board, and puts up another one when it is gone."""

    def __init__(self, made: type, options: Mapping[str, Any], past: Callable[[], ControlState]) -> None:
        self.actor_class, self.options, self.make_state = made, options, past
        self.name = f"gristmill-{secrets.token_hex(8)}"
        """What the next board is found by, with a number."""
        self.number = 0
        self.unregistered_workers: set[int] = set()
        self._notes: dict[int, tuple[RowLocation, float]] = {}
        self._noted = 0.0
        self._start_actor()

    def _start_actor(self, *past: ControlState) -> None:
        import ray

        self.number += 1
        made: Any = ray.remote(self.actor_class)
        self.actor: Any = made.options(**self.options, name=f"{self.name}-{self.number}").remote(*past)
        self.polled_at = time.monotonic()
        self.death_ref: Any = self.actor.wait_until_killed.remote()

    def ask(self, method: str, *args: Any) -> Any:
        """What the board answers, or the one that takes its place."""
        import ray

        for _ in range(_MAX_ATTEMPTS):
            try:
                return ray.get(getattr(self.actor, method).remote(*args))
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.ActorUnavailableError:  # which it may be again; if not, that is known next time
                time.sleep(_RETRY_SECONDS)
            except ray.exceptions.RayError:
                self._replace()
        raise ResourceError(_CONTROL_ACTOR_LOST_MESSAGE)

    def begin_segment(self, past: Callable[[], ControlState]) -> None:
        """Serve the driver of the next segment."""
        self.make_state, self._notes, self.unregistered_workers = past, {}, set()
        self.ask("clear")

    def refresh_positions(self) -> None:
        """Which notes there are, now."""
        self._notes, self.unregistered_workers = self.ask("read")
        self._noted = time.monotonic()

    def position_of(self, key: int) -> tuple[RowLocation, float] | None:
        """Where a worker is, as it was a moment ago, and for how many seconds."""
        if time.monotonic() - self._noted > _POSITION_MAX_AGE_SECONDS:
            self.refresh_positions()
        return self._notes.get(key)

    def check_liveness(self) -> None:
        """Workers may wait for a board: it is looked after also when the driver has nothing to ask."""
        import ray

        if self.death_ref is None or time.monotonic() - self.polled_at < _LIVENESS_POLL_SECONDS:
            return
        self.polled_at = time.monotonic()
        if ray.wait([self.death_ref], timeout=0)[0]:
            self.refresh_positions()
            self.death_ref = self.actor.wait_until_killed.remote()

    def _replace(self) -> None:
        past, passed = self.make_state(), time.monotonic() - self._noted - _REREGISTER_SECONDS
        past.positions = {key: (place, seconds + passed) for key, (place, seconds) in self._notes.items()}
        self._start_actor(past)

    def close(self) -> None:
        import ray

        self.death_ref = None
        ray.kill(self.actor)


def report_output_marks(board: Any, output_marker: OutputMarker) -> None:
    """Tell the driver, if it listens, by which marks it knows that it has heard all that was printed so far."""
    import ray

    if output_marker.has_new_output and ray.get(board.is_heard.remote()):
        ray.get(board.mark.remote(output_marker.mark()))
