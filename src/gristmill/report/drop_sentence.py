"""Why a row was dropped, in a sentence: the rule, its number and its limit; and rules in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gristmill.core.records.rejected_rows import FILTER, LIMIT, RULE, SCORE, STAGE, THRESHOLD
from gristmill.dedup.clusters.cluster_table import SIMILARITY
from gristmill.report.run_report.score_histogram import limits_in_threshold

PARTNER = "rejected_partner"


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


def rejected_sentence(row: Mapping[str, Any]) -> str | None:
    """Why a rejected row was dropped, where its columns name a broken rule or a similar row; else None."""
    score, label, threshold = row.get(SCORE), row.get(FILTER), row.get(THRESHOLD) or ""
    if score is None:
        return None if row.get(PARTNER) is None else f"a duplicate of {row[PARTNER]}"
    if label == SIMILARITY:
        return similarity_sentence(score, row.get(PARTNER), threshold)
    if row.get(RULE) is None:
        return None
    of = f"{label}: " if label and label != row.get(STAGE) else ""
    return of + drop_sentence(row[RULE], score, row.get(LIMIT), threshold)


def similarity_sentence(similarity: float, partner: Any, threshold: str) -> str:
    """`similarity 0.84 to books-00012 is above the threshold of 0.80`."""
    limits = limits_in_threshold(threshold)
    other = f"{partner}" if partner is not None else "another row"
    if len(limits) != 1:
        return f"similarity {similarity:.2f} to {other}"
    limit = limits[0][1]
    if limit == similarity == 1:
        return f"equal to {other}"
    digits = next((n for n in (2, 3, 4) if f"{similarity:.{n}f}" != f"{limit:.{n}f}"), 2)
    shown = f"similarity {similarity:.{digits}f} to {other}"
    bound = f"{limit:.2f}" if round(limit, 2) == limit else f"{limit:g}"
    if similarity < limit:  # an estimate
        return f"{shown}; the threshold is {bound}"
    return f"{shown} is {'above' if similarity > limit else 'at'} the threshold of {bound}"


def rule_in_words(rule: str | None) -> str:
    """`word length` for `word_length`."""
    return re.sub(r"(\d) gram\b", r"\1-gram", (rule or "").replace("_", " "))


def limit_in_words(
    low: float | None, high: float | None, low_name: str = "", high_name: str = "", strict: bool = False
) -> str:
    """`at least 50, at most 100,000 (min_doc_words, max_doc_words)`."""
    at_least, at_most = ("more than", "less than") if strict else ("at least", "at most")
    sides = [(at_least, low, low_name), (at_most, high, high_name)]
    limit_texts = [
        "none allowed" if what == "at most" and limit == 0 else f"{what} {limit:,.12g}"
        for what, limit, _ in sides
        if limit is not None
    ]
    names = [name for _, limit, name in sides if limit is not None and name]
    return ", ".join(limit_texts) + (f" ({', '.join(names)})" if names else "")
