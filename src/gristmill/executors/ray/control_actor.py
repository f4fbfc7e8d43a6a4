"""The control actor: how the driver and workers of a run on Ray communicate outside of calls.

A call on a Ray actor cannot be interrupted or looked into. So an actor on the driver's node carries everything else:

- workers record where they are (`PositionRecorder`), and the driver reads it when one of them dies or runs too long;
- the driver asks a worker in the middle of a call to share tasks, and the worker sends them here;
- the driver withdraws calls that a worker has not begun;
- workers learn that the run was stopped.

`ControlActorSupervisor` is the driver's side, `ControlClient` the worker's.

Ray's memory monitor kills restartable actors first, then those started last. The control actor is therefore started
first and is not restartable. It can still be killed, and no run depends on its state: the driver starts a successor
with what it knows itself, workers find it by name and register again, and shared tasks also come with the outputs of
their call.

What is given up: if a worker dies before it has registered with a successor, no record can be blamed, and its call is
simply repeated; the last lines that workers print may arrive too late to be shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from gristmill.core.errors import ResourceError
from gristmill.core.run.isolation import RowLocation
from gristmill.executors.ray.console_forwarding import OutputMarker

if TYPE_CHECKING:
    from gristmill.executors.ray.worker_actor import WorkerMessage

P = ParamSpec("P")
T = TypeVar("T")
ActorMethod = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]

SharedPart = tuple[int, "WorkerMessage", list[Any]]
"""A part of a call that a worker hands to others: its number within the call, the message, and its large tasks."""

_LIVENESS_POLL_SECONDS = 0.1
_POSITION_MAX_AGE_SECONDS = 0.2
_REREGISTER_SECONDS = 5.0
"""How long workers have to register with a successor before their last known position counts against time limits."""

_RETRY_SECONDS = 0.1
_MAX_ATTEMPTS = 50
"""How often the supervisor retries or replaces the actor before the run fails."""

_PAUSE = 0.05
_MAX_PAUSE = 1.0
_MAX_SUCCESSORS = 8
"""How many control actors may have been lost since a worker last reached one."""

_CONTROL_ACTOR_LOST_MESSAGE = (
    "Ray keeps killing the control actor of the run: the driver's node is out of memory, or gone. Let stages use less "
    "memory at a time (num_workers, a smaller blocksize), or run the driver on a node with more. Run again with the "
    "same run_dir to continue"
)


@dataclass(slots=True)
class ControlState:
    """What the driver knows when it starts a successor."""

    positions: dict[int, tuple[RowLocation, float]] = field(default_factory=dict)
    """The last known position of each worker, and for how many seconds it has been there."""
    withdrawn: dict[int, int] = field(default_factory=dict)
    workers: set[int] = field(default_factory=set)
    stopped: bool = False
    output_enabled: bool = False
    closed: bool = False
    """Whether the run had an engine. The engine's actors do not know the successor, so they must not start work."""


class ControlActor:
    """The state that driver and workers share. Workers are identified by their key, calls by their number.

    All methods are coroutines of one event loop: hundreds of callers wait here at the same time.
    """

    def __init__(self, state: ControlState | None = None) -> None:
        state, now = state or ControlState(), time.monotonic()
        self.positions = {key: (position, now - seconds) for key, (position, seconds) in state.positions.items()}
        self.steps: dict[int, int] = {}
        """The step of the latest position of each worker: Ray may deliver messages out of order."""
        self.share_requests: dict[int, asyncio.Queue[int]] = {}
        self.shared_parts: list[tuple[int, int, SharedPart]] = []
        self.begun: dict[int, int] = {}
        self.withdrawn = state.withdrawn
        self.unregistered_workers = state.workers
        """Workers that were registered with the predecessor, and not yet here."""
        self.stopped = asyncio.Event()
        self.marks: list[str] | None = [] if state.output_enabled else None
        if state.stopped:
            self.stopped.set()

    async def begin_segment(self) -> None:
        """Forget the last segment of the run."""
        for requests in self.share_requests.values():
            requests.put_nowait(0)  # release workers that still wait for a request
        self.positions.clear()
        self.steps.clear()
        self.share_requests.clear()
        self.shared_parts.clear()
        self.begun.clear()
        self.withdrawn.clear()
        self.unregistered_workers.clear()
        self.marks = None

    async def wait_until_killed(self) -> None:
        """Never returns. The driver learns from the failed call that this actor is gone."""
        await asyncio.Event().wait()

    async def expect_worker(self, key: int) -> None:
        """An idle actor is about to become this worker. Until it registers, it may be dead."""
        self.unregistered_workers.add(key)

    async def register_worker(
        self, key: int, step: int, position: RowLocation | None, seconds: float, begun: int
    ) -> None:
        """A worker was expected, or comes from the predecessor: where it is, for how long, and its current call."""
        await self.set_position(key, step, position, seconds)
        self.begun[key] = max(begun, self.begun.get(key, -1))
        self.unregistered_workers.discard(key)

    async def set_position(self, key: int, step: int, position: RowLocation | None, seconds: float = 0.0) -> None:
        """Record where a worker is, unless a later position has overtaken this one."""
        if step < self.steps.get(key, 0):
            return
        self.steps[key] = step
        self.positions.pop(key, None)
        if position is not None:
            self.positions[key] = (position, time.monotonic() - seconds)

    async def read_positions(self) -> tuple[dict[int, tuple[RowLocation, float]], set[int]]:
        """The position of each worker with its age in seconds, and the workers whose position is uncertain."""
        now = time.monotonic()
        current = {key: (position, now - since) for key, (position, since) in self.positions.items()}
        return current, self.unregistered_workers

    async def request_share(self, key: int, count: int) -> None:
        """Ask a worker to hand over this many tasks, because others are idle."""
        self._share_requests(key).put_nowait(count)

    async def wait_for_share_request(self, key: int) -> int:
        """How many tasks a worker should hand over. Returns when it is asked to."""
        return await self._share_requests(key).get()

    def _share_requests(self, key: int) -> asyncio.Queue[int]:
        return self.share_requests.setdefault(key, asyncio.Queue())

    async def add_shared_part(self, key: int, number: int, part: SharedPart) -> None:
        """A worker hands over a part of call `number`."""
        self.shared_parts.append((key, number, part))

    async def take_shared_parts(self) -> list[tuple[int, int, SharedPart]]:
        """What workers have handed over since the last time."""
        parts, self.shared_parts = self.shared_parts, []
        return parts

    async def withdraw_call(self, key: int, number: int) -> bool:
        """Withdraw a call that a worker has not begun. Returns whether that was in time."""
        if key in self.unregistered_workers:  # it may have begun
            return False
        self.withdrawn[key] = number
        return self.begun.get(key, -1) < number

    async def begin_call(self, key: int, number: int) -> bool:
        """A worker begins a call that has waited long. Returns whether it is still wanted."""
        self.begun[key] = number
        return self.withdrawn.get(key) != number

    async def stop_run(self) -> None:
        """The results of running calls are no longer wanted."""
        self.stopped.set()

    async def wait_until_stopped(self) -> None:
        await self.stopped.wait()

    async def enable_output(self) -> None:
        """The driver shows what workers print."""
        self.marks = self.marks or []

    async def is_output_enabled(self) -> bool:
        return self.marks is not None

    async def add_output_marks(self, marks: list[str]) -> None:
        """Workers have printed everything up to these marks (`console_forwarding.py`)."""
        self.marks = [*(self.marks or ()), *marks]

    async def take_output_marks(self) -> list[str]:
        marks = self.marks or []
        self.marks = None if self.marks is None else []
        return marks


class ControlActorSupervisor:
    """The driver's side: calls the control actor, and starts a successor when it is gone."""

    def __init__(self, actor_class: type, options: Mapping[str, Any], make_state: Callable[[], ControlState]) -> None:
        self.actor_class, self.options, self.make_state = actor_class, options, make_state
        self.name = f"gristmill-{secrets.token_hex(8)}"
        """Workers find a successor by this name and its number."""
        self.number = 0
        self.unregistered_workers: set[int] = set()
        self._positions: dict[int, tuple[RowLocation, float]] = {}
        self._read_at = 0.0
        self._start_actor()

    def _start_actor(self, *state: ControlState) -> None:
        import ray

        self.number += 1
        actor_class: Any = ray.remote(self.actor_class)
        self.actor: Any = actor_class.options(**self.options, name=f"{self.name}-{self.number}").remote(*state)
        self.polled_at = time.monotonic()
        self.death_ref: Any = self.actor.wait_until_killed.remote()

    def ask(self, method: ActorMethod[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the control actor, or of its successor if it is gone."""
        import ray

        for _ in range(_MAX_ATTEMPTS):
            try:
                answer: T = ray.get(getattr(self.actor, method.__name__).remote(*args, **kwargs))
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.ActorUnavailableError:  # it may come back; if not, the next attempt fails otherwise
                time.sleep(_RETRY_SECONDS)
            except ray.exceptions.RayError:
                self._replace()
            else:
                return answer
        raise ResourceError(_CONTROL_ACTOR_LOST_MESSAGE)

    def begin_segment(self, make_state: Callable[[], ControlState]) -> None:
        """Serve the driver of the next segment."""
        self.make_state, self._positions, self.unregistered_workers = make_state, {}, set()
        self.ask(ControlActor.begin_segment)

    def refresh_positions(self) -> None:
        self._positions, self.unregistered_workers = self.ask(ControlActor.read_positions)
        self._read_at = time.monotonic()

    def position_of(self, key: int) -> tuple[RowLocation, float] | None:
        """Where a worker was a moment ago, and for how many seconds."""
        if time.monotonic() - self._read_at > _POSITION_MAX_AGE_SECONDS:
            self.refresh_positions()
        return self._positions.get(key)

    def check_liveness(self) -> None:
        """Replace the actor if it is gone. Workers may be waiting for it while the driver has nothing to ask."""
        import ray

        if self.death_ref is None or time.monotonic() - self.polled_at < _LIVENESS_POLL_SECONDS:
            return
        self.polled_at = time.monotonic()
        if ray.wait([self.death_ref], timeout=0)[0]:
            self.refresh_positions()
            self.death_ref = self.actor.wait_until_killed.remote()

    def _replace(self) -> None:
        state, age = self.make_state(), time.monotonic() - self._read_at - _REREGISTER_SECONDS
        state.positions = {key: (position, seconds + age) for key, (position, seconds) in self._positions.items()}
        self._start_actor(state)

    def close(self) -> None:
        import ray

        self.death_ref = None
        ray.kill(self.actor)


class ControlClient:
    """The worker's side. Used by two threads: the one that works, and one that waits for the run to stop."""

    def __init__(self, actor: Any, name: str, number: int, key: int) -> None:
        self.actor, self.name, self.number, self.key = actor, name, number, key
        self.position: RowLocation | None = None
        self.since = 0.0
        self.begun = -1
        self.step = 0
        """How many positions were recorded."""
        self._lock = threading.Lock()

    def switch_worker(self, key: int) -> None:
        """Speak for another worker from now on: this actor is reused. Returns when the control actor knows it."""
        with self._lock:
            self.key, self.position, self.begun, self.step = key, None, -1, 0
        self.ask(ControlActor.register_worker, key, 0, None, 0.0, -1)

    def ask(self, method: ActorMethod[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the control actor, or of its successor if it is gone."""
        import ray

        while True:
            actor = self.actor
            try:
                answer: T = ray.get(getattr(actor, method.__name__).remote(*args, **kwargs))
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as error:  # an actor that was killed for memory does not count as "died"
                self._reconnect(actor, error)
            else:
                return answer

    def set_position(self, position: RowLocation | None, acknowledged: bool = False) -> None:
        """Record where this worker is. With `acknowledged`, return when the control actor has it."""
        with self._lock:  # otherwise a lost actor could get it after its successor got the position before
            self.position, self.since, self.step = position, time.monotonic(), self.step + 1
            step = self.step
            if not acknowledged:
                self.actor.set_position.remote(self.key, step, position)
        if acknowledged:
            self.ask(ControlActor.set_position, self.key, step, position)

    def begin_call(self, number: int) -> bool:
        """Begin a call that has waited long. Returns whether it is still wanted."""
        self.begun = number
        return self.ask(ControlActor.begin_call, self.key, number)

    def report_output_marks(self, output_marker: OutputMarker) -> None:
        """If the driver shows output: print marks, so that it knows when it has shown everything up to here."""
        if output_marker.has_new_output and self.ask(ControlActor.is_output_enabled):
            self.ask(ControlActor.add_output_marks, output_marker.mark())

    def _reconnect(self, actor: Any, error: Exception) -> None:
        """Register again, with the same actor or its successor: messages since the error may be lost."""
        import ray

        pause = _PAUSE
        while True:
            unavailable = isinstance(error, ray.exceptions.ActorUnavailableError)  # it may come back
            if unavailable or not self._find_successor(actor):
                time.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
            with self._lock:
                actor, age = self.actor, time.monotonic() - self.since
                registered = actor.register_worker.remote(self.key, self.step, self.position, age, self.begun)
            try:
                ray.get(registered)
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as again:
                error = again
            else:
                return

    def _find_successor(self, lost: Any) -> bool:
        """Switch to the successor of a lost actor, unless the other thread already has. Returns whether there is one.

        Successors are numbered, because the name of a lost actor is not free at once.
        """
        import ray

        for number in range(self.number + 1, self.number + 1 + _MAX_SUCCESSORS):
            if self.actor != lost:
                return True
            with contextlib.suppress(ValueError, ray.exceptions.RayError):  # no actor of this name yet
                successor = ray.get_actor(f"{self.name}-{number}")
                with self._lock:
                    self.actor, self.number = successor, number
                return True
        return False


class PositionRecorder:
    """Records which stage and rows a worker is at.

    A call that is tried again records every step and waits for it to arrive, so that a crash can be blamed on a row.
    Otherwise only stages with a time limit are recorded.
    """

    def __init__(self, control: ControlClient, timed: set[int]) -> None:
        self.control, self.timed = control, timed
        self.acknowledged = False
        self._recorded = False

    def enter(self, position: int, task: int = 0, start: int = 0, stop: int = 0) -> None:
        if self.acknowledged or position in self.timed:
            self._recorded = True
            self.control.set_position(RowLocation(position, task, start, stop), self.acknowledged)

    def leave(self) -> None:
        if self._recorded:
            self.control.set_position(None)
            self._recorded = False


def report_output_marks(control_actor: Any, output_marker: OutputMarker) -> None:
    """The same for actors of an engine, which know no successor of the control actor."""
    import ray

    if output_marker.has_new_output and ray.get(control_actor.is_output_enabled.remote()):
        ray.get(control_actor.add_output_marks.remote(output_marker.mark()))
