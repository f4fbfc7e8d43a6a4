"""Which children of a task leave their worker."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.run.worker import gather_local_sources, share_children
from gristmill.core.task import Lineage, Task


def children(many: int) -> Iterator[Task[int]]:
    for number in range(many):
        yield Task(number).named(Lineage(f"t.{number}", "t"))


@pytest.mark.parametrize(("count", "stay", "left"), [(0, [], []), (1, [0], []), (2, [], [0, 1]), (3, [], [0, 1, 2])])
def test_an_only_child_stays_though_others_are_idle(count: int, stay: list[int], left: list[int]) -> None:
    gone: list[Task[int]] = []
    here = list(share_children(children(count), lambda: True, set(), gone.append))
    assert [task.data for task in here] == stay
    assert [task.data for task in gone] == left


@given(st.lists(st.booleans(), max_size=12), st.sets(st.integers(0, 11)))
def test_each_child_stays_leaves_or_has_left(answers: list[bool], shed: set[int]) -> None:
    asked, gone = iter(answers), list[Task[int]]()
    names = {f"t.{number}" for number in shed}
    here = list(share_children(children(len(answers)), lambda: next(asked), names, gone.append))
    found = [task.data for task in (*here, *gone)]
    assert sorted(found) == [number for number in range(len(answers)) if number not in shed]


def test_what_has_left_or_gone_on_is_not_held_while_the_next_is_made() -> None:
    made: list[weakref.ref[Task[int]]] = []

    def watched() -> Iterator[Task[int]]:
        for task in children(4):
            assert all(ref() is None for ref in made[1:]), "of those after the first"
            made.append(weakref.ref(task))
            yield task
            del task

    idle = iter([True, False, True, False])
    for child in share_children(watched(), lambda: next(idle), set(), lambda task: None):
        del child
    assert len(made) == 4


@pytest.mark.parametrize(
    ("all_of", "patience", "gathered", "left"),
    [
        ({"a", "b"}, 99, ["a.0 a.1 a.10", "b.0"], []),
        ({"a"}, 99, ["a.0 a.1 a.10"], ["b.0"]),
        (set(), 99, [], ["a.0", "a.10", "b.0", "a.1"]),
        ({"a", "b"}, 2, [], ["a.0", "a.10", "a.1", "b.0"]),
        ({"a", "b"}, 4, [], ["a.0", "a.10", "a.1", "b.0"]),
    ],
)
def test_what_is_all_here_is_gathered_in_order_and_the_rest_leaves_as_it_came(
    all_of: set[str], patience: int, gathered: list[str], left: list[str]
) -> None:
    tasks = [Task(0).named(Lineage(name, name[0])) for name in ("a.0", "a.10", "b.0", "a.1")]
    asked, out = count(), list[str]()
    found = gather_local_sources(
        iter(tasks), 3, lambda task, position: out.append(f"{task.id}"), all_of, lambda: next(asked) < patience
    )
    assert [" ".join(part.id for part in task.data) for task in found] == gathered
    assert sorted(out) == sorted(left)
    assert [name for name in out if name[0] == "a"] == [name for name in ("a.0", "a.10", "a.1") if name in left]
