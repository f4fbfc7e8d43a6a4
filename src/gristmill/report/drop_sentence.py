"""Why a row was dropped, in a sentence: the rule, its number and its limit; and rules in words."""

from __future__ import annotations

import re


def drop_sentence(rule: str | None, score: float, limit: float | None, threshold: str) -> str:
    """`41 words, fewer than min_doc_words=50`; without a rule `11, below min_words=20`."""
    parts = [part.strip() for part in threshold.split(",")]
    exact = [] if limit is None else [part for part in parts if part.partition("=")[2] in (f"{limit!r}", f"{limit:g}")]
    shown = exact[0] if len(exact) == 1 else f"{limit:g}" if limit is not None else threshold
    if rule and not exact:
        shown = f"{shown} ({threshold})" if "=" in threshold else shown
    is_count = rule is not None and score == int(score) and limit is not None and limit == int(limit)
    name = rule_in_words(rule)
    if limit is None:
        return f"{name} {score:g}, compared with {threshold}".strip() if threshold else f"{name} {score:g}".strip()
    if is_count:
        return f"{score:g} {name}, {'fewer' if score < limit else 'more'} than {shown}"
    return f"{name} {score:g}, {'below' if score < limit else 'above' if score > limit else 'at'} {shown}".strip()


def rule_in_words(rule: str | None) -> str:
    """`word length` for `word_length`."""
    return re.sub(r"(\d) gram\b", r"\1-gram", (rule or "").replace("_", " "))


def limit_in_words(
    low: float | None, high: float | None, low_name: str = "", high_name: str = "", strict: bool = False
) -> str:
    """`at least 50, at most 100,000 (min_doc_words, max_doc_words)`."""
    at_least, at_most = ("more than", "less than") if strict else ("at least", "at most")
    sides = [(at_least, low, low_name), (at_most, high, high_name)]
    told = [
        "none" if what == "at most" and limit == 0 else f"{what} {limit:,.12g}"
        for what, limit, _ in sides
        if limit is not None
    ]
    names = [name for _, limit, name in sides if limit is not None and name]
    return ", ".join(told) + (f" ({', '.join(names)})" if names else "")
