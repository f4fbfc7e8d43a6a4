"""A worker's client of the control actor: it is there, away or gone (with Ray: `test_ray_control_actor.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gristmill.core.run.isolation import RowLocation
from gristmill.executors.ray import control_actor as control_actor_module
from gristmill.executors.ray.control_actor import ControlActor, ControlClient

ray = pytest.importorskip("ray")

HERE, THERE = RowLocation(1, 2, 3, 4), RowLocation(5, 6, 7, 8)


class Handle:
    """A board as a worker has it: what it is told arrives at once, or never."""

    def __init__(self) -> None:
        self.board = ControlActor()
        self.fails: list[Exception] = []
        """What the next calls end with."""
        self.gone = False

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any) -> Callable[[], Any]:
            if self.gone or self.fails:
                error = ray.exceptions.ActorDiedError() if self.gone else self.fails.pop()
                return lambda: _raise(error)
            answer = asyncio.run(getattr(self.board, method)(*args))
            return lambda: answer

        return SimpleNamespace(remote=remote)

    @property
    def places(self) -> list[RowLocation]:
        return [place for place, _ in asyncio.run(self.board.read_positions())[0].values()]


def _raise(error: Exception) -> None:
    raise error


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> dict[str, Handle]:
    there = {"run-1": Handle()}

    def get_actor(name: str) -> Handle:
        if name not in there:
            raise ValueError(name)
        return there[name]

    monkeypatch.setattr(ray, "get", lambda answer: answer())
    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(control_actor_module, "_PAUSE", 0.001)
    return there


@pytest.fixture
def line(boards: dict[str, Handle]) -> ControlClient:
    return ControlClient(boards["run-1"], "run", 1, 7)


def test_each_note_is_a_step_and_another_worker_begins_anew(line: ControlClient, boards: dict[str, Handle]) -> None:
    line.set_position(HERE)
    line.set_position(THERE, acknowledged=True)
    assert boards["run-1"].board.steps == {7: 2}
    line.switch_worker(8)
    line.set_position(HERE)
    assert boards["run-1"].board.steps == {7: 2, 8: 1}
    assert boards["run-1"].places == [THERE, HERE]


@pytest.mark.parametrize(
    "error", [ray.exceptions.ActorUnavailableError("away", None), ray.exceptions.RaySystemError("no way to it")]
)
def test_a_board_that_was_away_is_told_what_it_has_missed(
    line: ControlClient, boards: dict[str, Handle], error: Exception
) -> None:
    boards["run-1"].fails = [error] * 4
    line.set_position(HERE)
    assert line.ask(ControlActor.is_output_enabled) is False
    assert line.actor is boards["run-1"]
    assert boards["run-1"].places == [HERE]


def test_the_next_board_is_told_where_the_worker_is(line: ControlClient, boards: dict[str, Handle]) -> None:
    boards["run-1"].gone = True
    line.set_position(HERE)
    boards["run-3"] = Handle()  # the second was gone before anybody heard of it
    assert line.ask(ControlActor.is_output_enabled) is False
    assert boards["run-3"].places == [HERE]
    assert (line.actor, line.number) == (boards["run-3"], 3)


def test_who_finds_an_older_board_than_the_other_thread_comes_to_the_newer(
    line: ControlClient, boards: dict[str, Handle], monkeypatch: pytest.MonkeyPatch
) -> None:
    boards |= {"run-2": Handle(), "run-3": Handle()}
    boards["run-1"].gone = boards["run-2"].gone = True
    line.set_position(HERE)

    def get_actor(name: str) -> Handle:
        line.actor, line.number = boards["run-3"], 3  # the other thread is quicker
        monkeypatch.setattr(ray, "get_actor", boards.__getitem__)
        return boards[name]

    monkeypatch.setattr(ray, "get_actor", get_actor)
    assert line.ask(ControlActor.is_output_enabled) is False
    assert (line.actor, line.number) == (boards["run-3"], 3)
    assert boards["run-3"].places == [HERE]


def test_an_error_of_the_board_itself_is_told(line: ControlClient, boards: dict[str, Handle]) -> None:
    boards["run-1"].fails = [ray.exceptions.RayTaskError("meet", "", ValueError("wrong"))]
    with pytest.raises(ray.exceptions.RayTaskError):
        line.ask(ControlActor.is_output_enabled)
    boards["run-1"].gone = True
    boards["run-2"] = Handle()
    boards["run-2"].fails = [ray.exceptions.RayTaskError("meet", "", ValueError("wrong"))]
    with pytest.raises(ray.exceptions.RayTaskError):
        line.ask(ControlActor.is_output_enabled)
