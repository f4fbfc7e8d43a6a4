"""Why a decision drops rows: the filter and its rule, the number that breaks the rule, and the limit that it breaks.

Of several filters it is the one that dropped the row, and of several rules the first that the row breaks. Gives up:
numbers of filters that decide by something else than rules and numbers; those are named alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import Rule

if TYPE_CHECKING:
    from gristmill.core.deciding_stage import DecidingStage, Decision

_TEXT, _NUMBER = pa.string(), pa.float64()
_FALSE = literal(False, pa.bool_())


@dataclass(frozen=True, slots=True)
class DropReasons:
    """A column for each part of the reason, with a value for each row of a batch; null where it is not known."""

    filter: pa.Array
    rule: pa.Array
    """Null for filters that have only one rule, which is about their score."""
    score: pa.Array
    """The number that breaks the rule; without a rule, the score."""
    limit: pa.Array
    threshold: pa.Array
    """The parameter that sets the limit, as text; without a rule, all that scores are compared with."""


def drop_reasons(stage: DecidingStage[Any], decision: Decision) -> DropReasons:
    """The reasons of a decision."""
    thresholds, rules = stage.thresholds(), stage.rules()
    count = len(decision.keep)
    label = rule = threshold = pa.nulls(count, _TEXT)
    score = limit = pa.nulls(count, _NUMBER)
    for name, scores in decision.scores.items():
        by = decision.dropped_by
        mine = pc.is_valid(scores) if by is None else pc.equal(by, literal(name, _TEXT)).fill_null(_FALSE)
        if not mine.true_count:
            continue
        own = pa.nulls(count, _TEXT), as_numbers(scores), pa.nulls(count, _NUMBER)
        why = pa.repeat(literal(thresholds.get(name), _TEXT), count)
        for one in reversed(rules.get(name, ())):
            numbers = as_numbers(decision.measures.get(name, {}).get(one.name, scores if not one.name else None), count)
            own, why = _with_broken_rule(one, numbers, own, why)
        label = pc.if_else(mine, literal(name, _TEXT), label)
        rule, score, limit = (pc.if_else(mine, new, old) for new, old in zip(own, (rule, score, limit), strict=True))
        threshold = pc.if_else(mine, why, threshold)
    return DropReasons(label, rule, score, limit, threshold)


def _with_broken_rule(
    rule: Rule, numbers: pa.Array, known: tuple[pa.Array, pa.Array, pa.Array], why: pa.Array
) -> tuple[tuple[pa.Array, pa.Array, pa.Array], pa.Array]:
    """What is known of the rows, with the rule where they break it."""
    name, score, limit = known
    breaks = pc.invert(rule.holds(numbers)).fill_null(_FALSE)
    if rule.name:
        name = pc.if_else(breaks, literal(rule.name, _TEXT), name)
    score = pc.if_else(breaks, numbers, score)
    sides = [(rule.high, rule.high_name, True), (rule.low, rule.low_name, rule.high is None)]
    for bound, parameter, otherwise in sides:
        if bound is None:
            continue
        below = pc.less(numbers, literal(float(bound), _NUMBER)).fill_null(_FALSE)
        here = breaks if otherwise else pc.and_(breaks, below)
        limit = pc.if_else(here, literal(float(bound), _NUMBER), limit)
        if rule.name:
            why = pc.if_else(here, literal(limit_text(bound, parameter, bound is rule.low), _TEXT), why)
    return (name, score, limit), why


def drops_by_rule(rules: Mapping[str, Sequence[Rule]], decision: Decision) -> dict[str, Counter[str]]:
    """How many rows each filter drops, by the name of the first rule that they break; "" for filters without named
    rules, and for rows that are dropped because they break none. Empty if the decision does not say which filter it is.
    """
    if decision.dropped_by is None:
        return {}
    found = {}
    gone = dropped_rows(decision)
    for label in decision.scores:
        mine = pc.and_(gone, pc.equal(decision.dropped_by, literal(label, _TEXT)).fill_null(_FALSE))
        if not mine.true_count:
            continue
        broken = pa.repeat(literal("", _TEXT), mine.true_count)
        measures = decision.measures.get(label, {})
        for rule in reversed(rules.get(label, ())):
            if rule.is_on and rule.name in measures:
                breaks = pc.invert(rule.holds(as_numbers(measures[rule.name].filter(mine)))).fill_null(_FALSE)
                broken = pc.if_else(breaks, literal(rule.name, _TEXT), broken)
        found[label] = Counter(counted(broken))
    return found


def dropped_rows(decision: Decision) -> pa.BooleanArray:
    """The rows that are dropped, and not only set aside."""
    dropped = pc.invert(decision.keep)
    return dropped if decision.aside is None else pc.and_not(dropped, decision.aside)


def counted(values: pa.Array) -> dict[str, int]:
    """How often each value is there."""
    counts = pc.value_counts(values)
    return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))


def limit_text(bound: float, parameter: str, is_low: bool) -> str:
    """A limit as it is shown: with its parameter, where it has one."""
    if parameter:
        return parameter if "=" in parameter else f"{parameter}={bound:.12g}"
    return f"{'at least' if is_low else 'at most'} {bound:.12g}"


def as_numbers(scores: pa.Array | pa.ChunkedArray | None, count: int = 0) -> pa.Array:
    """Scores as numbers; null where they are none."""
    if scores is None:
        return pa.nulls(count, _NUMBER)
    kind = scores.type
    if pa.types.is_boolean(kind):
        scores, kind = scores.cast(pa.int8()), pa.int8()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return scores.cast(_NUMBER, safe=False)
    return pa.nulls(len(scores), _NUMBER)
