"""Who was asked to leave tasks to others is asked again when the request is lost (on Ray)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gristmill.executors.machine_resources import GpuSlot
from gristmill.executors.ray.actor_pool import ActorHandle
from gristmill.executors.ray.actor_pool_executor import RayDriver

ray = pytest.importorskip("ray")


class ControlActors:
    """A control actor as the driver has it: how each request ends, or that nothing is known of it yet."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.ends: list[Exception | str | None] = []
        self.request_share = SimpleNamespace(remote=self._ask)

    def _ask(self, key: int, count: int) -> int:
        self.asked.append((key, count))
        self.ends.append("open")
        return len(self.asked) - 1

    def wait(self, refs: list[int], timeout: float) -> tuple[list[int], list[int]]:
        return [ref for ref in refs if self.ends[ref] != "open"], []

    def get(self, ref: int) -> None:
        if isinstance(error := self.ends[ref], Exception):
            raise error


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> ControlActors:
    control = ControlActors()
    monkeypatch.setattr(ray, "wait", control.wait)
    monkeypatch.setattr(ray, "get", control.get)
    return control


@pytest.fixture
def actor(control: ControlActors) -> ActorHandle:
    made = ActorHandle(0, False, 7, GpuSlot((), 0.0), None, "n", SimpleNamespace(control_actor=control), {})  # type: ignore[arg-type]
    made.ask_to_share(4)
    return made


def test_a_request_that_has_arrived_is_not_repeated(control: ControlActors, actor: ActorHandle) -> None:
    actor.check_share_request()
    assert actor.share_asked  # nobody knows yet
    control.ends[0] = None
    for _ in range(2):
        actor.check_share_request()
        assert actor.share_asked


@pytest.mark.parametrize(
    "error", [lambda: ray.exceptions.ActorUnavailableError("away", None), ray.exceptions.ActorDiedError]
)
def test_a_request_that_did_not_arrive_is_repeated(
    control: ControlActors, actor: ActorHandle, error: Callable[[], Exception]
) -> None:
    control.ends[0] = error()
    actor.check_share_request()
    assert not actor.share_asked
    actor.ask_to_share(4)
    actor.check_share_request()
    assert actor.share_asked
    assert control.asked == [(7, 4), (7, 4)]


def test_a_request_to_a_control_actor_that_is_gone_is_repeated_once(control: ControlActors, actor: ActorHandle) -> None:
    driver: Any = RayDriver.__new__(RayDriver)
    driver.pools, driver._stopping = [SimpleNamespace(workers=[actor])], False
    assert driver._control_state().workers == {7}
    assert not actor.share_asked
    actor.ask_to_share(4)
    control.ends[0] = ray.exceptions.ActorDiedError()  # what became of the first is known only now
    actor.check_share_request()
    assert actor.share_asked
