"""Close streams that are still open at exit, while workers can still be torn down.

After Ctrl-C in a loop over `Pipeline.stream`, a variable or a traceback may still hold the stream. Without this it
would be collected during interpreter shutdown, when Ray is no longer usable.
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
    """Wrap a stream of tasks so that it is closed at exit."""
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
    """The id of the exception being handled. Not the exception itself, which would keep its frames alive."""
    return id(sys.exc_info()[1])


@contextlib.contextmanager
def interrupt_first(handled: int) -> Iterator[None]:
    """Raise the KeyboardInterrupt instead of an error that occurred while it was being handled.

    Shutting down after Ctrl-C may fail, and that error would hide the interrupt, which is in its chain of contexts.
    `handled` is the result of `handled_exception_id` before the block: that exception is unrelated to errors in it.
    """
    try:
        yield
    except Exception as error:
        before, seen = error.__context__, {id(error), handled}
        while before is not None and id(before) not in seen:
            if isinstance(before, KeyboardInterrupt):
                raise before  # noqa: B904  the error becomes its context
            seen.add(id(before))  # contexts can be circular
            before = before.__context__
        raise


def register_close_at_exit() -> None:
    """Move the exit handler behind those of the engine: handlers run last in, first out, so streams close before it.

    Call this once per stream, after its first task, when the engine has registered its own handler. `atexit` never
    frees the slots of unregistered handlers, so every further call makes the next one slower.
    """
    atexit.unregister(close_open_streams)
    atexit.register(close_open_streams)


@contextlib.contextmanager
def closing_stream(stream: Iterator[T]) -> Iterator[Iterator[T]]:
    """Close a stream when the loop over it ends: after an error, the traceback would keep it open."""
    try:
        yield stream
    finally:
        if isinstance(stream, Generator):
            stream.close()


def close_open_streams() -> None:
    """Close all open streams, even if one fails to close; then raise the first error, preferring KeyboardInterrupt."""
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
    with contextlib.suppress(ValueError):  # another thread is running it
        stream.close()
