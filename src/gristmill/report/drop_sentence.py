"""Why a row was dropped, in a sentence: the rule, its number and its limit."""

from __future__ import annotations


def drop_sentence(rule: str | None, score: float, limit: float | None, threshold: str) -> str:
    """`41 words, fewer than min_doc_words=50`; without a rule `11, below min_words=20`."""
    parts = [part.strip() for part in threshold.split(",")]
    exact = [] if limit is None else [part for part in parts if part.partition("=")[2] in (f"{limit!r}", f"{limit:g}")]
    shown = exact[0] if len(exact) == 1 else f"{limit:g}" if limit is not None else threshold
    if rule and not exact:
        shown = f"{shown} ({threshold})" if "=" in threshold else shown
    is_count = rule is not None and score == int(score) and limit is not None and limit == int(limit)
    name = (rule or "").replace("_", " ")
    if limit is None:
        return f"{name} {score:g}, compared with {threshold}".strip() if threshold else f"{name} {score:g}".strip()
    if is_count:
        return f"{score:g} {name}, {'fewer' if score < limit else 'more'} than {shown}"
    return f"{name} {score:g}, {'below' if score < limit else 'above' if score > limit else 'at'} {shown}".strip()
