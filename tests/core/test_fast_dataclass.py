"""Records do what data classes do, but for refusing changes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar

import pytest

from gristmill.core.fast_dataclass import fast_dataclass


@fast_dataclass
class Plain:
    """A record with all that fields can have."""

    name: str
    sizes: list[int] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)
    many: ClassVar[int] = 3


@dataclass
class PlainData:
    name: str
    sizes: list[int] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)
    many: ClassVar[int] = 3


@fast_dataclass(frozen=True, slots=True)
class Slotted:
    first: int
    second: str = "b"


@fast_dataclass(kw_only=True)
class Named(Plain):
    rows: int = 0


@fast_dataclass(slots=True)
class Settled:
    total: int = field(init=False)
    given: InitVar[int] = 1

    def __post_init__(self, given: int) -> None:
        self.total = given + 1


@fast_dataclass(frozen=True)
class Own:
    """One that says itself what it is equal to, and how it looks."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and other.name.lower() == self.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())

    def __repr__(self) -> str:
        return "own"


@dataclass
class Derived(Plain):
    more: int = 1


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (Plain("a", [1], note="x"), "Plain(name='a', sizes=[1])"),
        (Slotted(1), "Slotted(first=1, second='b')"),
        (Named(name="a", rows=2), "Named(name='a', sizes=[], rows=2)"),
        (Settled(given=4), "Settled(total=5)"),
        (Own("a"), "own"),
        (Derived("a", more=2), "Derived(name='a', sizes=[], more=2)"),
    ],
)
def test_records_are_shown_copied_pickled_and_compared(made: Any, shown: str) -> None:
    assert repr(made) == shown
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other == made
        assert type(other) is type(made)
    assert made != shown


def test_records_are_equal_if_what_is_compared_is() -> None:
    assert Plain("a", note="x") == Plain("a", note="y")
    assert Plain("a") != Plain("b")
    assert Plain("a") != Named(name="a")
    assert Plain("a") != PlainData("a")
    nan = float("nan")
    assert Slotted(1, nan) == Slotted(1, nan)  # type: ignore[arg-type]
    assert Own("A") == Own("a")


def test_frozen_records_can_be_hashed_and_others_cannot() -> None:
    assert {Slotted(1), Slotted(1), Slotted(2)} == {Slotted(1), Slotted(2)}
    assert len({Own("A"), Own("a")}) == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(Plain("a"))


def test_records_are_data_classes_to_all_who_ask() -> None:
    made = Plain("a", [1])
    assert dataclasses.replace(made, name="b") == Plain("b", [1])
    assert dataclasses.asdict(made) == {"name": "a", "sizes": [1], "note": ""}
    assert [each.name for each in dataclasses.fields(made)] == ["name", "sizes", "note"]
    assert Plain.__match_args__ == PlainData.__match_args__
    assert not hasattr(Slotted(1), "__dict__")


def test_constructors_refuse_what_those_of_data_classes_refuse() -> None:
    with pytest.raises(TypeError, match="name"):
        Plain()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Named("a", [], "", 2)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected"):
        Slotted(1, third=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="mutable default"):

        @fast_dataclass
        class _Wrong:
            sizes: list[int] = []  # noqa: RUF012


def test_a_record_that_holds_itself_can_be_shown() -> None:
    made = Plain("a")
    made.sizes.append(made)  # type: ignore[arg-type]
    assert repr(made) == "Plain(name='a', sizes=[...])"
