"""The board: an actor near the driver through which driver and workers speak outside of calls.

Workers note there what they are doing, for the driver to read when they are gone. The driver asks there, in the middle
of a call, that a worker leave some tasks to others; the worker leaves them there. A call that waits behind another is
taken back there. When a run is stopped, workers learn there that nobody waits for what they do.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ResourceError
from gristmill.core.isolate import Place
from gristmill.executors.ray_voice import Voice

if TYPE_CHECKING:
    from gristmill.executors.ray_worker import Message


class Board:
    """Where workers note what they are doing, for the driver to read when they are gone, and leave what others may do.

    It is asked by many at once, and some wait for an answer.
    """

    def __init__(self) -> None:
        self.notes: dict[int, tuple[Place, float]] = {}
        self.asks: dict[int, asyncio.Queue[int]] = {}
        self.left: list[tuple[int, int, Message, list[Any]]] = []
        self.taken: dict[int, int] = {}
        self.withdrawn: dict[int, int] = {}
        self.stopped = asyncio.Event()
        self.marks: list[str] | None = None

    async def note(self, key: int, place: Place | None) -> None:
        if place is None:
            self.notes.pop(key, None)
        else:
            self.notes[key] = (place, time.monotonic())

    async def read(self) -> dict[int, tuple[Place, float]]:
        """Each worker's place, and for how many seconds it has been there."""
        now = time.monotonic()
        return {key: (place, now - since) for key, (place, since) in self.notes.items()}

    async def ask(self, key: int, count: int) -> None:
        """Others are idle: a worker should leave them so many tasks."""
        self._asks(key).put_nowait(count)

    async def asked(self, key: int) -> int:
        """How many tasks a worker should leave to others, as soon as it should."""
        return await self._asks(key).get()

    def _asks(self, key: int) -> asyncio.Queue[int]:
        return self.asks.setdefault(key, asyncio.Queue())

    async def leave(self, key: int, number: int, message: Message, large: list[Any]) -> None:
        """Some of a worker's call, by number, for others."""
        self.left.append((key, number, message, large))

    async def collect(self) -> list[tuple[int, int, Message, list[Any]]]:
        """What workers have left since the last time."""
        left, self.left = self.left, []
        return left

    async def withdraw(self, key: int, number: int) -> bool:
        """Take a call back that a worker has not begun; whether that was in time."""
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
        self.marks = []

    async def is_heard(self) -> bool:
        return self.marks is not None

    async def mark(self, marks: list[str]) -> None:
        """What was printed ends with these."""
        self.marks = [*(self.marks or ()), *marks]

    async def take_marks(self) -> list[str]:
        marks = self.marks or []
        self.marks = None if self.marks is None else []
        return marks


_GONE = (
    "Ray has killed the actor through which driver and workers speak: the memory of its node, which is that of the "
    "driver, ran out, or the node is gone. Let stages take less at once (num_workers, a smaller blocksize), or run the "
    "driver where there is more. Started again with its run_dir, the run goes on"
)


def heard(answer: Any) -> Any:
    """What the board answers the driver."""
    import ray

    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        raise ResourceError(_GONE) from error


def mark_on(board: Any, voice: Voice) -> None:
    """Tell the driver, if it listens, by which marks it knows that it has heard all that was printed so far."""
    import ray

    if voice.used and ray.get(board.is_heard.remote()):
        ray.get(board.mark.remote(voice.mark()))


class Notes:
    """The worker's side of the board."""

    def __init__(self, board: Any, key: int, timed: set[int]) -> None:
        self.board, self.key, self.timed = board, key, timed
        self.careful = False
        self._noted = False

    def enter(self, position: int, task: int = 0, start: int = 0, stop: int = 0) -> None:
        if self.careful or position in self.timed:
            import ray

            noted = self.board.note.remote(self.key, Place(position, task, start, stop))
            self._noted = True
            if self.careful:
                ray.get(noted)

    def leave(self) -> None:
        if self._noted:
            self.board.note.remote(self.key, None)
            self._noted = False
