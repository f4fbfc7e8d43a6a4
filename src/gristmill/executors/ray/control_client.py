"""A worker's line to the board: what it notes there, and how it finds the next one when the board is killed."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from gristmill.core.run.isolation import RowLocation
from gristmill.executors.ray.output_forwarding import OutputMarker

_PAUSE = 0.05
_MAX_PAUSE = 1.0
_MAX_SUCCESSORS = 8
"""How many boards may have been killed that this worker has not heard of."""


class ControlClient:
    """What one worker says to the board. Two threads use it: the one that works, and one that waits for the end."""

    def __init__(self, board: Any, name: str, number: int, key: int) -> None:
        self.actor, self.name, self.number, self.key = board, name, number, key
        self.position: RowLocation | None = None
        self.since = 0.0
        self.taken = -1
        self.step = 0
        """How many notes it has written."""
        self._lock = threading.Lock()

    def switch_worker(self, key: int) -> None:
        """Speak for another worker, one of the next group of this actor. Returns when the board knows that one."""
        with self._lock:
            self.key, self.position, self.taken, self.step = key, None, -1, 0
        self.ask("meet", key, 0, None, 0.0, -1)

    def ask(self, method: str, *args: Any) -> Any:
        """What the board answers, or the one that takes its place."""
        import ray

        while True:
            board = self.actor
            try:
                return ray.get(getattr(board, method).remote(*args))
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as error:  # killed for memory, it has not "died"
                self._reconnect(board, error)

    def set_position(self, place: RowLocation | None, sure: bool = False) -> None:
        """Where this worker is now. `sure`: returns when that is written."""
        with self._lock:  # or it might go to a board that is gone, after the next one was told of the place before
            self.position, self.since, self.step = place, time.monotonic(), self.step + 1
            step = self.step
            if not sure:
                self.actor.note.remote(self.key, step, place)
        if sure:
            self.ask("note", self.key, step, place)

    def begin_call(self, number: int) -> bool:
        """Begin a call that has waited long; whether it is still wanted."""
        self.taken = number
        wanted: bool = self.ask("take", self.key, number)
        return wanted

    def report_output_marks(self, output_marker: OutputMarker) -> None:
        """Tell the driver, if it listens, by which marks it knows that it has heard all that was printed so far."""
        if output_marker.has_new_output and self.ask("is_heard"):
            self.ask("mark", output_marker.mark())

    def _reconnect(self, board: Any, error: Exception) -> None:
        """Returns when a board knows where this worker is: what was said to it since the error may be lost."""
        import ray

        pause = _PAUSE
        while True:
            away = isinstance(error, ray.exceptions.ActorUnavailableError)  # it may be back; if not, that is known then
            if away or not self._find_successor(board):
                time.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
            with self._lock:
                board, passed = self.actor, time.monotonic() - self.since
                met = board.meet.remote(self.key, self.step, self.position, passed, self.taken)
            try:
                ray.get(met)
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as again:
                error = again
            else:
                return

    def _find_successor(self, lost: Any) -> bool:
        """Turn to the board that has taken the place of one; whether there is any. The other thread may have done so.

        Each has a number: the name of one that is gone is not free for long.
        """
        import ray

        for number in range(self.number + 1, self.number + 1 + _MAX_SUCCESSORS):
            if self.actor != lost:
                return True
            with contextlib.suppress(ValueError, ray.exceptions.RayError):  # there is none, as far as can be told
                found = ray.get_actor(f"{self.name}-{number}")
                with self._lock:
                    self.actor, self.number = found, number
                return True
        return False


class PositionRecorder:
    """Where a worker's stages are, on the board: each step of a call that is tried again, or only what is timed."""

    def __init__(self, line: ControlClient, timed: set[int]) -> None:
        self.control, self.timed = line, timed
        self.acknowledged = False
        self._noted = False

    def enter(self, position: int, task: int = 0, start: int = 0, stop: int = 0) -> None:
        if self.acknowledged or position in self.timed:
            self._noted = True
            self.control.set_position(RowLocation(position, task, start, stop), sure=self.acknowledged)

    def leave(self) -> None:
        if self._noted:
            self.control.set_position(None)
            self._noted = False
