"""Time grows with the length of a text, whatever is in it: no function of the catalogue is quadratic.

What takes 16 times as long a text must take about 16 times as long; a quadratic function takes 256 times. Both are
timed in one run, the best of several, so that a busy machine makes no difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import pytest

from gristmill import DocumentBatch
from gristmill.text import DocumentSplitter
from tests.hostile.hostile_texts import Pattern, patterns
from tests.hostile.text_functions import Call, text_functions

GROWTH = 16
MOST_GROWTH = 4 * GROWTH
"""How much longer it may take. Caches, garbage and other processes add to what is in proportion."""

LONG_S = 3.0
"""What takes longer than this is not tried with a text that is longer still."""

TOO_SHORT_S = 0.03
"""Below this, time says nothing; a text is made longer then."""


def seconds(call: Callable[[], object], tries: int) -> float:
    found = []
    for _ in range(tries):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return min(found)


def growth(call: Call, pattern: Pattern, sizes: tuple[int, int]) -> tuple[float, int]:
    """How much longer a text of 16 times the size takes, and that size: the first that takes long enough, or the
    largest."""
    size, largest = sizes
    while True:
        text = pattern(size)
        took = seconds(lambda: call(text), 1)
        if took >= TOO_SHORT_S or size >= largest:
            break
        size *= 4
    if took < TOO_SHORT_S:
        return 0.0, size
    short = pattern(size // GROWTH)
    quotient = took / seconds(lambda: call(short), 5)
    if quotient > MOST_GROWTH:  # was it the function, or was it the machine?
        took = seconds(lambda: call(text), 3)
        quotient = took / seconds(lambda: call(short), 9)
    if quotient > MOST_GROWTH and took < LONG_S:  # memory beyond the caches costs more, but not again and again
        longer = pattern(4 * size)
        quotient = min(quotient, MOST_GROWTH * seconds(lambda: call(longer), 2) / took / 8)
    return quotient, size


def superlinear(calls: list[tuple[str, Call]], some: list[tuple[str, Pattern]], sizes: tuple[int, int]) -> list[str]:
    found = []
    for name, call in calls:
        for result, pattern in some:
            quotient, size = growth(call, pattern, sizes)
            if quotient > MOST_GROWTH:
                found.append(f"{name}: {result} of {size:,} characters takes {quotient:.0f} times a 16th of it")
    return found


SHARDS, TURNS = 8, 8


@cache
def calls() -> list[tuple[str, Call]]:
    return list(text_functions())


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_longer_text_takes_in_proportion_longer(shard: int) -> None:
    """Each function with an eighth of the patterns, another one for each."""
    some = list(patterns(mixed=0))
    for number, call in enumerate(calls()[shard::SHARDS]):
        assert not superlinear([call], some[number % TURNS :: TURNS], (16_384, 16_384))


def test_words_between_marks_take_in_proportion_longer() -> None:
    """An expression such as `[\\W_]+$` searches from each mark to the end of the word."""
    some = [call for call in calls() if call[0].startswith(("StopWord", "FlaggedWords", "UnigramLogProb"))]
    assert len(some) >= 6
    assert not superlinear(some, [("a---b", lambda size: f"a{'-' * size}b")], (16_384, 65_536))


def test_a_text_of_many_segments_is_not_repeated_for_each() -> None:
    """400,000 segments of a text of 800 kB would be 320 GB."""
    batch = DocumentBatch([{"id": 1, "text": "a\n" * 400_000}, {"id": 2, "text": None}])
    rows = DocumentSplitter("\n").process(batch)
    assert rows.num_items == 400_002
    assert rows.data.nbytes < 20_000_000
    assert rows.get_columns() == ["id", "text", "segment_id"]


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_megabyte_takes_in_proportion_longer(shard: int) -> None:
    """Each function with an eighth of the patterns, other ones than above."""
    some, found = list(patterns(mixed=60)), []
    for number, call in enumerate(calls()[shard::SHARDS]):
        found += superlinear([call], some[(number + 3) % TURNS :: TURNS], (16_384, 2**20))
    assert not found
