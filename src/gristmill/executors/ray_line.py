"""A worker's line to the board: what it notes there, and how it finds the next one when the board is killed."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from gristmill.core.isolate import Place
from gristmill.executors.ray_voice import Voice

_PAUSE = 0.05
_LONGEST = 1.0
_NEXT = 8
"""How many boards may have been killed that this worker has not heard of."""


class Line:
    """What one worker says to the board. Two threads use it: the one that works, and one that waits for the end."""

    def __init__(self, board: Any, name: str, number: int, key: int) -> None:
        self.board, self.name, self.number, self.key = board, name, number, key
        self.place: Place | None = None
        self.since = 0.0
        self.taken = -1
        self.step = 0
        """How many notes it has written."""
        self._lock = threading.Lock()

    def become(self, key: int) -> None:
        """Speak for another worker, one of the next group of this actor. Returns when the board knows that one."""
        with self._lock:
            self.key, self.place, self.taken, self.step = key, None, -1, 0
        self.ask("meet", key, 0, None, 0.0, -1)

    def ask(self, method: str, *args: Any) -> Any:
        """What the board answers, or the one that takes its place."""
        import ray

        while True:
            board = self.board
            try:
                return ray.get(getattr(board, method).remote(*args))
            except ray.exceptions.ActorUnavailableError:  # which it may be again; if not, that is known next time
                time.sleep(_PAUSE)
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError:  # killed for memory, it has not "died"
                self._mend(board)

    def note(self, place: Place | None, sure: bool = False) -> None:
        """Where this worker is now. `sure`: returns when that is written."""
        with self._lock:
            self.place, self.since, self.step = place, time.monotonic(), self.step + 1
            step = self.step
            if not sure:
                self.board.note.remote(self.key, step, place)
        if sure:
            self.ask("note", self.key, step, place)

    def take(self, number: int) -> bool:
        """Begin a call that has waited long; whether it is still wanted."""
        self.taken = number
        wanted: bool = self.ask("take", self.key, number)
        return wanted

    def mark(self, voice: Voice) -> None:
        """Tell the driver, if it listens, by which marks it knows that it has heard all that was printed so far."""
        if voice.used and self.ask("is_heard"):
            self.ask("mark", voice.mark())

    def _mend(self, lost: Any) -> None:
        """Returns when a board knows where this worker is."""
        import ray

        while True:
            found, number = self._find(lost)
            with self._lock:
                if self.board == lost:  # or the other thread has found one, and another one since
                    self.board, self.number = found, number
                found, passed = self.board, time.monotonic() - self.since
                met = found.meet.remote(self.key, self.step, self.place, passed, self.taken)
            try:
                ray.get(met)
            except ray.exceptions.ActorUnavailableError:
                time.sleep(_PAUSE)
            except ray.exceptions.RayError:
                lost = found
            else:
                return

    def _find(self, lost: Any) -> tuple[Any, int]:
        """The board that has taken its place. Each has a number: the name of one that is gone is not free for long."""
        import ray

        pause = _PAUSE
        while True:
            with self._lock:
                board, last = self.board, self.number
            if board != lost:
                return board, last
            for number in range(last + 1, last + 1 + _NEXT):
                with contextlib.suppress(ValueError, ray.exceptions.RayError):  # there is none, yet
                    return ray.get_actor(f"{self.name}-{number}"), number
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)


class Notes:
    """Where a worker's stages are, on the board: each step of a call that is tried again, or only what is timed."""

    def __init__(self, line: Line, timed: set[int]) -> None:
        self.line, self.timed = line, timed
        self.careful = False
        self._noted = False

    def enter(self, position: int, task: int = 0, start: int = 0, stop: int = 0) -> None:
        if self.careful or position in self.timed:
            self._noted = True
            self.line.note(Place(position, task, start, stop), sure=self.careful)

    def leave(self) -> None:
        if self._noted:
            self.line.note(None)
            self._noted = False
