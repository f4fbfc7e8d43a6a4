"""Which children of a task leave their worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.share import kept
from gristmill.core.task import Lineage, Task


def children(count: int, alone: bool = False) -> Iterator[tuple[Task[int], bool]]:
    for number in range(count):
        yield Task(number).named(Lineage(f"t.{number}", "t")), alone


@pytest.mark.parametrize(
    ("count", "alone", "stay", "left"),
    [
        (0, False, [], []),
        (1, False, [0], []),  # it would only change hands
        (1, True, [0], []),
        (2, False, [1], [0]),
        (4, False, [3], [0, 1, 2]),
    ],
)
def test_all_but_the_last_leave_if_others_are_idle(count: int, alone: bool, stay: list[int], left: list[int]) -> None:
    gone: list[Task[int]] = []
    here = list(kept(children(count, alone), lambda: True, set(), gone.append))
    assert [task.data for task in here] == stay
    assert [task.data for task in gone] == left


@given(st.lists(st.booleans(), max_size=12), st.sets(st.integers(0, 11)))
def test_each_child_stays_leaves_or_has_left(answers: list[bool], shed: set[int]) -> None:
    asked, gone = iter(answers), list[Task[int]]()
    names = {f"t.{number}" for number in shed}
    here = list(kept(children(len(answers)), lambda: next(asked), names, gone.append))
    found = [task.data for task in (*here, *gone)]
    assert sorted(found) == [number for number in range(len(answers)) if number not in shed]
