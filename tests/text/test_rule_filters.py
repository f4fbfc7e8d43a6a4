"""Filters of several rules: what they measure, and how the measures decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.text import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    Rule,
    RuleFilter,
)

FILTERS: list[RuleFilter] = [
    C4QualityFilter(),
    C4QualityFilter(2, filter_curly_bracket=False),
    C4QualityFilter(0),
    GopherQualityFilter(),
    GopherQualityFilter(3, 9, None, 4, None, 0.5, 0.1, 0.4, 1, ["日本", "a"], "ja"),
    GopherRepetitionFilter(),
    GopherRepetitionFilter(None, 0.5, None, None, {1: 0.5}, None),
    FineWebQualityFilter(),
    FineWebQualityFilter(0.5, line_punct_exclude_zero=True, short_line_thr=0.9, short_line_length=3),
]

pieces = st.sampled_from(["\n", "\n\n", ". ", "... ", "- ", "# ", "the ", "and ", "lorem ipsum ", "{", "日本", "a b "])
texts = st.none() | st.lists(pieces, max_size=20).map("".join)


@pytest.mark.parametrize("one", FILTERS, ids=repr)
@settings(max_examples=30, deadline=None)
@given(documents=st.lists(texts, max_size=5))
def test_measures_of_a_column_are_those_of_its_documents_and_decide_as_the_scores_do(
    one: RuleFilter, documents: list[str | None]
) -> None:
    column = pa.array(documents, pa.string())
    measures = one.measure_batch(column)
    kept = [True] * len(documents)
    for rule in one.rules():
        assert measures[rule.name].type == rule.kind
        assert measures[rule.name].to_pylist() == [one.measure(text or "")[rule.name] for text in documents]
        kept = [before and now for before, now in zip(kept, rule.holds(measures[rule.name]).to_pylist(), strict=True)]
    assert one.keep_batch(one.score_batch(column)).to_pylist() == kept


@pytest.mark.parametrize(
    ("rule", "numbers", "held"),
    [
        (Rule("words", 2, 4), [1, 2, 4, 5, None], [False, True, True, False, None]),
        (Rule("share", high=0.1), [0.1, 0.1000001, 0.0], [True, False, True]),
        (Rule("share", low=0.1, spared=0), [0.0, 0.05, 0.1], [True, False, True]),
        (Rule("off"), [1, None], [True, True]),
    ],
)
def test_limits_are_included(rule: Rule, numbers: list[float | None], held: list[bool | None]) -> None:
    assert rule.holds(pa.array(numbers, pa.float64())).to_pylist() == held


class ShoutingFilter(RuleFilter):
    """A filter of a user."""

    def rules(self) -> Sequence[Rule]:
        return [Rule("marks", high=1, high_name="max_marks"), Rule("letters", low=3, low_name="min_letters")]

    def measure(self, text: str) -> Mapping[str, float]:
        return {"marks": text.count("!"), "letters": sum(map(str.isalpha, text))}


def test_a_filter_of_rules_needs_no_more_than_rules_and_measures() -> None:
    one = ShoutingFilter()
    scores = one.score_batch(pa.array(["oh!!", "a", "word", None]))
    assert scores.to_pylist() == ["marks", "letters", "", "letters"]
    assert one.keep_batch(scores).to_pylist() == [False, False, True, False]
    assert one.score_document("!! a") == "marks"


def test_a_subclass_with_a_score_or_a_decision_of_its_own_is_not_judged_by_the_rules() -> None:
    class Lenient(GopherQualityFilter):
        def keep_document(self, score: Any) -> bool:
            return score in ("", "words")

    class Counting(GopherRepetitionFilter):
        def measure(self, text: str) -> Mapping[str, float]:
            return {rule.name: 1.0 for rule in self.rules()}

    assert not Lenient.decides_by_rules
    assert Lenient().keep_batch(Lenient().score_batch(pa.array(["short"]))).to_pylist() == [True]
    assert Counting.decides_by_rules
    assert Counting().statistics() == ()
    assert Counting().score_batch(pa.array(["a"])).to_pylist() == ["paragraphs"]
