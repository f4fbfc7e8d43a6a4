"""A node is set up by one guard, or by another when that is gone: a coordinator and processes, without a cluster."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import pytest

from gristmill.core.errors import GristmillError, StageError
from gristmill.executors.engines.driver_channel import CallReceipt, EngineCoordinator, GroupRunner


class Waiting(GroupRunner):
    """One that asks a desk which is here."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self.assignment, self.node = SimpleNamespace(group=0), "node"  # type: ignore[assignment]
        self._ask = ask  # type: ignore[method-assign]


@pytest.fixture
def ask() -> Iterator[Callable[..., Any]]:
    """What the desk answers."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    desk = asyncio.run_coroutine_threadsafe(_desk(), loop).result()
    yield lambda method, *args: asyncio.run_coroutine_threadsafe(method(desk, *args), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _desk() -> EngineCoordinator:
    return EngineCoordinator()


@pytest.fixture
def guards() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes of some that may have to set up the node."""
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def others(ask: Callable[..., Any], guards: list[subprocess.Popen[bytes]]) -> Iterator[list[Future[bool]]]:
    """All but the first wait for it: whether they have to set up the node."""
    first, *rest = guards
    assert Waiting(ask)._must_set_up_node(first.pid)
    assert Waiting(ask)._must_set_up_node(first.pid)  # who asks twice does not wait for itself
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(Waiting(ask)._must_set_up_node, guard.pid) for guard in rest]
        time.sleep(1.5)  # so that they have looked after it
        assert not any(one.done() for one in asked)
        yield asked


def test_nobody_sets_up_a_node_that_another_one_has_set_up(
    ask: Callable[..., Any], others: list[Future[bool]], guards: list[subprocess.Popen[bytes]]
) -> None:
    ask(EngineCoordinator.node_is_set_up, 0, "node")
    assert [other.result(5) for other in others] == [False, False]
    first = guards[0].pid
    assert ask(EngineCoordinator.first_on_node, 0, "node", 1, first) == (
        first,
        True,
    )  # that it is gone later changes nothing
    assert ask(EngineCoordinator.first_on_node, 1, "node", 1) == (1, False)


def test_one_of_those_who_wait_sets_up_the_node_when_the_first_is_gone(
    ask: Callable[..., Any], others: list[Future[bool]], guards: list[subprocess.Popen[bytes]]
) -> None:
    guards[0].kill()
    done, waiting = wait(others, 10, FIRST_COMPLETED)
    assert [other.result() for other in done] == [True]
    ask(EngineCoordinator.node_is_set_up, 0, "node")
    assert [other.result(10) for other in waiting] == [False]


@pytest.mark.parametrize("how", ["is closed", "has failed"])
def test_who_waits_hears_that_the_run_is_over(ask: Callable[..., Any], others: list[Future[bool]], how: str) -> None:
    if how == "is closed":
        ask(EngineCoordinator.close)
    else:
        assert not ask(EngineCoordinator.post, CallReceipt(0, error=StageError("s", "a", (), "cannot set up the node")))
    for other in others:
        with pytest.raises(GristmillError, match="the run is over"):
            other.result(10)
