"""Word-by-word diff of two texts.

Finds the shortest edit script (Myers, 1986), which is fast for similar texts, as duplicates are.

Gives up: texts that differ in more than `MAX_DIFFERENCES` words. Everything between their common beginning and end is
marked then.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

MAX_DIFFERENCES = 400
MAX_CHARS = 400_000
"""Characters of each text that are compared."""

Spans = list[tuple[bool, str]]
"""Parts of a text in order, each with whether the other text lacks it."""

_WORDS = re.compile(r"\w+|\s+|[^\w\s]")


def diff_words(one: str, other: str) -> tuple[Spans, Spans]:
    """The parts of each of two texts."""
    left, right = _WORDS.findall(one[:MAX_CHARS]), _WORDS.findall(other[:MAX_CHARS])
    head = _common_prefix(left, right)
    tail = _common_prefix(left[head:][::-1], right[head:][::-1])
    inner = left[head : len(left) - tail], right[head : len(right) - tail]
    shared = _shared_words(*inner)
    return tuple(  # type: ignore[return-value]
        _spans(words, [head + place for place in places], head, tail)
        for words, places in zip((left, right), shared, strict=True)
    )


def _common_prefix(left: Sequence[str], right: Sequence[str]) -> int:
    """How many words at the beginning are the same."""
    most = min(len(left), len(right))
    return next((index for index in range(most) if left[index] != right[index]), most)


def _shared_words(left: Sequence[str], right: Sequence[str]) -> tuple[list[int], list[int]]:
    """The places of the words that both have in one order: none if the texts differ too much."""
    if not left or not right:
        return [], []
    reach, trail = {1: 0}, []
    for edits in range(min(MAX_DIFFERENCES, len(left) + len(right)) + 1):
        trail.append(dict(reach))
        for way in range(-edits, edits + 1, 2):
            down = way == -edits or (way != edits and reach.get(way - 1, -1) < reach.get(way + 1, -1))
            x = reach[way + 1] if down else reach[way - 1] + 1
            y = x - way
            while x < len(left) and y < len(right) and left[x] == right[y]:
                x, y = x + 1, y + 1
            reach[way] = x
            if x >= len(left) and y >= len(right):
                return _trace_back(trail, x, y)
    return [], []


def _trace_back(trail: Sequence[dict[int, int]], x: int, y: int) -> tuple[list[int], list[int]]:
    """The way that was taken, from its end: where it went on in both texts at once, they share a word."""
    pairs = []
    for edits in range(len(trail) - 1, -1, -1):
        reach, way = trail[edits], x - y
        down = way == -edits or (way != edits and reach.get(way - 1, -1) < reach.get(way + 1, -1))
        before = way + 1 if down else way - 1
        from_x = reach[before] if edits else 0
        from_y = from_x - before if edits else 0
        while x > from_x and y > from_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = from_x, from_y
    return [x for x, _ in reversed(pairs)], [y for _, y in reversed(pairs)]


def _spans(words: Sequence[str], places: Sequence[int], head: int, tail: int) -> Spans:
    shared = {*range(head), *places, *range(len(words) - tail, len(words))}
    marks = [number not in shared for number in range(len(words))]
    for number, (here, after) in enumerate(pairwise(marks)):  # a space between two that differ is no likeness
        if number and not here and after and marks[number - 1] and words[number].isspace():
            marks[number] = True
    spans: Spans = []
    for mark, word in zip(marks, words, strict=True):
        if spans and spans[-1][0] == mark:
            spans[-1] = (mark, spans[-1][1] + word)
        else:
            spans.append((mark, word))
    return spans
