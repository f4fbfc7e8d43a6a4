"""Tell an interrupt by the user from a stage that raises KeyboardInterrupt or SystemExit by itself.

What a signal handler raises during a call of a stage is noted while it is raised, so it is known by identity. Whatever
else comes out of a stage is its own.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = [number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))]

_raised: BaseException | None = None


def interrupt() -> KeyboardInterrupt:
    """The exception for a signal handler of ours to raise."""
    global _raised  # noqa: PLW0603  signals belong to the process
    _raised = KeyboardInterrupt()
    return _raised


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal handler raised this error, or the one that was being handled when it was raised."""
    seen: BaseException | None = error
    while seen is not None and _raised is not None:
        if seen is _raised:
            return isinstance(error, KeyboardInterrupt | SystemExit) or seen is error
        seen = seen.__context__
    return False


def forget_interrupt() -> None:
    """The call is over. Without this, the traceback of the interrupt would keep its rows in memory."""
    global _raised  # noqa: PLW0603
    _raised = None


@contextmanager
def noting_interrupts() -> Iterator[None]:
    """Note what the signal handlers of the user raise. Does nothing in threads, which run no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: found for number in _SIGNALS if callable(found := signal.getsignal(number))}
    ours = {number: _noting(handler) for number, handler in before.items()}
    for number, handler in ours.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in ours.items():
            if signal.getsignal(number) is handler:  # unless a stage has set its own
                signal.signal(number, before[number])
        forget_interrupt()


def _noting(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], Any]:
    def note(number: int, frame: FrameType | None) -> Any:
        global _raised  # noqa: PLW0603
        try:
            return handler(number, frame)
        except BaseException as error:
            _raised = error
            raise

    return note
