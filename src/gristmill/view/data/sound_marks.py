"""What rows say about moments of their recordings: the segment that they are, and lists of segments and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

MAX_MARKS = 400
_SIDES = (("start", "end"), ("start_time", "end_time"))
_LABELS = ("word", "speaker", "class", "text", "label")


class SoundMark(NamedTuple):
    """A part of a recording, in seconds of its file, and what it is called."""

    start: float
    end: float
    label: str


def own_segment(values: Mapping[str, Any]) -> tuple[float, float] | None:
    """The part of its file that a row is: beginning and end; None if it is all of it."""
    start, length = values.get("offset"), values.get("duration")
    if not _is_number(start) or not _is_number(length):
        return None
    return float(start), float(start) + float(length)


def sound_marks(values: Mapping[str, Any]) -> dict[str, list[SoundMark]]:
    """The parts that each column lists, by the name of the column."""
    found: dict[str, list[SoundMark]] = {}
    for name, value in values.items():
        for path, listed in _lists(name, value):
            marks = [mark for mark in map(_mark, listed[:MAX_MARKS]) if mark is not None]
            if marks:
                found[path] = marks
    return found


def _lists(name: str, value: Any) -> list[tuple[str, Sequence[Any]]]:
    """The lists of records in a column: itself, one in a record, and the words of its segments."""
    if isinstance(value, Mapping):
        return [
            pair for key, inner in value.items() if isinstance(inner, list) for pair in _lists(f"{name}.{key}", inner)
        ]
    if not isinstance(value, list) or not value or not all(isinstance(one, Mapping) for one in value):
        return []
    words = [word for one in value for word in one.get("words") or () if isinstance(word, Mapping)]
    return [(name, value), *([(f"{name}.words", words)] if words else [])]


def _mark(one: Mapping[str, Any]) -> SoundMark | None:
    for first, last in _SIDES:
        start, end = one.get(first), one.get(last)
        if _is_number(start) and _is_number(end):
            label = next((str(one[name]) for name in _LABELS if one.get(name)), "")
            return SoundMark(float(start), float(end), label[:80])
    return None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
