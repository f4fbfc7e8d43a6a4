"""Words that only one of two texts has."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.view.pages.text_diff import MAX_DIFFERENCES, diff_words

WORDS = st.lists(st.sampled_from(["a", "b", "c", " ", "\n", ",", "ä"]), max_size=30).map("".join)


def text(spans, which=None):
    return "".join(part for differs, part in spans if which is None or differs == which)


@settings(max_examples=60)
@given(WORDS, WORDS)
def test_nothing_is_lost_and_what_is_not_marked_is_in_both(one, other):
    left, right = diff_words(one, other)
    assert (text(left), text(right)) == (one, other)
    assert "".join(text(left, False).split()) == "".join(text(right, False).split())
    if one == other:
        assert not [part for differs, part in [*left, *right] if differs]


def test_changed_words_are_marked_with_the_space_between_them():
    left, right = diff_words("the quick brown fox", "the slow red fox jumps")
    assert left == [(False, "the "), (True, "quick brown"), (False, " fox")]
    assert right == [(False, "the "), (True, "slow red"), (False, " fox"), (True, " jumps")]


def test_texts_that_differ_too_much_are_marked_whole_but_for_their_ends():
    one = " ".join(f"a{number}" for number in range(MAX_DIFFERENCES))
    other = " ".join(f"b{number}" for number in range(MAX_DIFFERENCES))
    left, right = diff_words(f"start {one} end", f"start {other} end")
    assert left == [(False, "start "), (True, one), (False, " end")]
    assert right == [(False, "start "), (True, other), (False, " end")]
