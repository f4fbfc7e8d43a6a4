"""Counts of rows that a stage selects by the values of columns, and of the values of others when it selects none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

SELECTED = "selected"
_OTHER = "unselected: "
_VALUES = 8
"""How many values of a column are counted, and shown."""


class ValueNotes:
    """Counts the values of rows that were not selected; only some values, of which there may be any number."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def note(self, field: str, values: Sequence[str | None], count: Callable[[str, float], None]) -> None:
        for value, number in Counter(values).most_common():
            name = f"{_OTHER}{field}={str(value)[:80]}"
            if name in self._known or len(self._known) < _VALUES:
                self._known.add(name)
                count(name, number)


def without_notes(counts: Mapping[str, float]) -> dict[str, float]:
    """The counts without those of this module."""
    return {name: value for name, value in counts.items() if name != SELECTED and not name.startswith(_OTHER)}


def nothing_selected(stage: str, select: Mapping[str, Sequence[object]], counts: Mapping[str, float]) -> str | None:
    """A warning if no row was selected, with the values that there were."""
    others = {name.removeprefix(_OTHER): value for name, value in counts.items() if name.startswith(_OTHER)}
    if counts.get(SELECTED) or not others:
        return None
    wanted = " and ".join(f"{field} {' or '.join(map(repr, map(str, values)))}" for field, values in select.items())
    most = sorted(others, key=lambda name: (-others[name], name))[:_VALUES]
    return f"stage {stage!r}: no row has {wanted}, so nothing was asked. There are rows with: {', '.join(most)}"
