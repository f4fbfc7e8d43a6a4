"""Streams that are open when the program ends: they are closed while there is still somebody to tear workers down.

A loop over `Pipeline.stream` that is left by Ctrl-C may still hold its stream, in a variable or a traceback. It would
be collected when the interpreter is half gone, and so is Ray.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import weakref
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_open: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


def closed_at_exit(tasks: Generator[T, None, None]) -> Generator[T, None, None]:
    """A stream of tasks, which is closed when the program ends."""
    stream = _interruptible(tasks)
    _open.add(stream)
    return stream


def _interruptible(tasks: Generator[T, None, None]) -> Generator[T, None, None]:
    handled = 0
    try:
        while True:
            handled = handled_exception_id()
            with interrupt_first(handled):
                try:
                    task = next(tasks)
                except StopIteration:
                    return
            yield task
    finally:
        with interrupt_first(handled):
            tasks.close()


def handled_exception_id() -> int:
    """Which exception is being handled; by its identity, since whoever keeps it keeps its frames, and all in them."""
    return id(sys.exc_info()[1])


@contextlib.contextmanager
def interrupt_first(handled: int) -> Iterator[None]:
    """Let no error take the place of Ctrl-C that has come before it, as one may when all is stopped: it is its context.

    `handled` is what `handled_exception_id` returned to the caller before: that exception, Ctrl-C or not, has nothing
    to do with an error in here.
    """
    try:
        yield
    except Exception as error:
        before, seen = error.__context__, {id(error), handled}
        while before is not None and id(before) not in seen:
            if isinstance(before, KeyboardInterrupt):
                raise before  # noqa: B904  what it was the context of becomes its own
            seen.add(id(before))  # contexts may go in a circle
            before = before.__context__
        raise


def register_close_at_exit() -> None:
    """A stream has given its first task: from now on, what it runs on is there, and must end after it.

    Once for each stream: `atexit` never forgets the place of what was registered, so that each time takes longer.
    """
    atexit.unregister(close_open_streams)
    atexit.register(close_open_streams)


@contextlib.contextmanager
def closing_stream(stream: Iterator[T]) -> Iterator[Iterator[T]]:
    """Close a stream with the loop over it: after an error in the loop, the traceback would hold it, half way."""
    try:
        yield stream
    finally:
        if isinstance(stream, Generator):
            stream.close()


def close_open_streams() -> None:
    """Close all of them, also when one cannot be closed; what was raised is raised in the end, Ctrl-C before all."""
    raised: list[BaseException] = []
    for stream in list(_open):
        try:
            _close(stream)
        except BaseException as error:  # noqa: BLE001
            raised.append(error)
    interrupts = [error for error in raised if isinstance(error, KeyboardInterrupt)]
    if raised:
        raise (interrupts or raised)[0]


def _close(stream: Generator[Any, None, None]) -> None:
    with contextlib.suppress(ValueError):  # another thread is in it
        stream.close()
