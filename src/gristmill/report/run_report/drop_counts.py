"""What each rule of a stage has dropped, and how the labels that filters gave are spread, for the report.

A row counts for the filter that dropped it, and there for the first rule that it breaks: so the rows of all rules of a
stage add up to those that it dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gristmill.core.deciding_stage import FilteringStage
from gristmill.report.drop_sentence import limit_in_words, rule_in_words

if TYPE_CHECKING:
    from gristmill.core.deciding_stage import DecidingStage, Rule
    from gristmill.core.records.row_summary import RowSummary

NOT_KNOWN = "not known: counted by an earlier version"


def rule_counts(stage: DecidingStage[Any], summary: RowSummary, rows_in: int, dropped: int) -> list[dict[str, Any]]:
    """One entry for each rule of each filter, in order; none for stages that do not say which filter drops a row."""
    if not summary.drops and not isinstance(stage, FilteringStage):
        return []
    rules, thresholds = stage.rules(), stage.thresholds()
    found: list[dict[str, Any]] = []
    for label in dict.fromkeys([*rules, *thresholds, *summary.drops]):
        drops: Mapping[str, int] = summary.drops.get(label, {})
        named = [rule for rule in rules.get(label, ()) if rule.name and rule.is_on]
        found += [_entry(label, rule.name, _limit(rule), drops.get(rule.name, 0)) for rule in named]
        rest = drops.get("", 0)
        if rest or not named:
            found.append(_entry(label, None, "breaks no rule" if named else thresholds.get(label, ""), rest))
    if (rest := dropped - sum(entry["dropped"] for entry in found)) > 0:
        found.append(_entry("", None, NOT_KNOWN, rest))
    return [{**entry, "share": entry["dropped"] / rows_in if rows_in else None} for entry in found]


def _limit(rule: Rule) -> str:
    return limit_in_words(rule.low, rule.high, rule.low_name, rule.high_name, rule.strict)


def _entry(label: str, rule: str | None, limit: str, dropped: int) -> dict[str, Any]:
    return {"filter": label, "rule": rule, "words": rule_in_words(rule), "limit": limit, "dropped": dropped}


def label_counts(summary: RowSummary) -> dict[str, dict[str, dict[str, int]]]:
    """For each filter that gives labels: rows with each label, and how many of them the stage dropped."""
    return {
        name: {
            label: {"rows": rows, "dropped": dropped}
            for label, (rows, dropped) in sorted(labels.items(), key=lambda item: (-item[1][0], item[0]))
        }
        for name, labels in summary.labels.items()
    }
