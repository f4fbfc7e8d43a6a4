"""What the control actor of a run holds, without a cluster (with one: `test_ray_control_actor.py`)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.run.isolation import RowLocation
from gristmill.executors.ray.control_actor import ControlActor, ControlState


def test_a_call_is_not_taken_back_from_a_worker_that_may_have_begun_it() -> None:
    async def ask() -> None:
        control = ControlActor(ControlState({7: (RowLocation(1, 2, 3, 4), 5.0)}, {9: 4}, {7, 8, 9}, stopped=True))
        notes, strangers = await control.read_positions()
        assert notes[7][0] == RowLocation(1, 2, 3, 4)
        assert notes[7][1] == pytest.approx(5.0, abs=1.0)
        assert strangers == {7, 8, 9}
        assert not await control.withdraw_call(8, 3)
        await control.register_worker(8, 0, None, 0.0, 3)
        await control.register_worker(7, 0, None, 0.0, -1)
        assert not await control.withdraw_call(8, 3)
        assert await control.withdraw_call(8, 4)
        assert not await control.begin_call(9, 4)
        assert await control.read_positions() == ({}, {9})
        await control.wait_until_stopped()

    asyncio.run(ask())


def test_what_was_printed_before_the_driver_listens_is_not_forgotten() -> None:
    async def listen() -> list[object]:
        control = ControlActor()
        heard = [await control.is_output_enabled(), await control.take_output_marks()]
        await control.enable_output()
        await control.add_output_marks(["first"])
        await control.enable_output()  # it does not wait for the actor, so this may come after what a worker says
        await control.add_output_marks(["second"])
        return [
            *heard,
            await control.is_output_enabled(),
            await control.take_output_marks(),
            await control.take_output_marks(),
        ]

    assert asyncio.run(listen()) == [False, [], True, ["first", "second"], []]


@given(st.permutations(range(7)))
def test_in_whatever_order_notes_come_the_last_one_counts(order: list[int]) -> None:
    """Ray may deliver what a worker says in another order."""
    place = RowLocation(1, 2, 3, 4)

    async def tell() -> None:
        control = ControlActor()
        words = [
            *(control.set_position(7, step, None if step % 2 == 0 else place) for step in range(1, 6)),
            control.register_worker(7, 0, None, 0.0, -1),
            control.register_worker(7, 5, place, 9.0, -1),
        ]
        for word in (words[index] for index in order):
            await word
        assert [where for where, _ in (await control.read_positions())[0].values()] == [place]

    asyncio.run(tell())
