"""One row: all of it, why it was dropped, what filters thought of it, and its duplicates with differences marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.rejects import FILE, FILTER, PLACE, SCORE, STAGE, THRESHOLD
from gristmill.core.table import POSITION
from gristmill.view.cells import marked, number, place_of, shown
from gristmill.view.diff import Spans, compare
from gristmill.view.duplicates import Cluster, Member
from gristmill.view.frame import TITLES, table
from gristmill.view.list_page import Row, media, name_of
from gristmill.view.markup import Html, count, el, safe
from gristmill.view.query import Columns, Query
from gristmill.view.shelves import ASIDE, ASIDE_STAGE
from gristmill.view.whatif import Filter

LONGEST = 1_000_000
"""Characters of a text on the page. All of a longer one is behind a link."""


def row_page(
    row: Row,
    query: Query,
    columns: Columns,
    page: int,
    filters: Sequence[Filter],
    scores: Mapping[str, Any],
    cluster: Cluster | None,
) -> Html:
    values = row.values
    title = name_of(values) or f"Row {row.number + 1:,}"
    text = values.get(columns.text) if columns.text else None
    parts = [
        _ways(row, query, page),
        el("h2", shown(title, 200)),
        _fate(values, query.shelf),
        media(row, query, large=True),
        _text(text, row, query) if isinstance(text, str) else "",
        _duplicates(text if isinstance(text, str) else "", cluster, columns.text),
        _scores(filters, scores),
        _columns(values, columns, query.search),
    ]
    return safe(parts)


def _ways(row: Row, query: Query, page: int) -> Html:
    back = el(
        "a", f"‹ {TITLES.get(query.shelf, 'Rows')}", href=f"rows?{query.address(page=page)}", class_="button second"
    )
    before = el("a", "Previous row", href=f"row?{query.address(n=row.number - 1)}", rel="prev", class_="button second")
    after = el("a", "Next row", href=f"row?{query.address(n=row.number + 1)}", rel="next", class_="button second")
    return el("nav", back, before if row.number else "", after, class_="pager", aria_label="Rows")


def _fate(values: Mapping[str, Any], shelf: str) -> Html:
    if shelf == ASIDE:
        told = [
            el("p", "In quarantine: ", el("b", shown(values.get(ASIDE_STAGE)), class_=ASIDE), " failed on it. "),
            el("p", shown(values.get("quarantined_error"))),
        ]
        if values.get("quarantined_traceback"):
            told.append(el("details", el("summary", "Traceback"), el("pre", values["quarantined_traceback"])))
        return el("div", told, class_=f"why {ASIDE}")
    if values.get(STAGE) is None:
        return el("p", "Kept.", class_="why kept") if shelf == "kept" else Html("")
    told = [el("p", "Dropped by ", el("b", shown(values[STAGE]), class_="dropped"), ".")]
    if values.get(SCORE) is not None:
        wanted = f" It wants {values[THRESHOLD]}." if values.get(THRESHOLD) else ""
        told.append(
            el("p", f"{values.get(FILTER) or 'Its filter'} gave it ", el("b", number(values[SCORE])), ".", wanted)
        )
    if values.get(FILE) is not None:
        told.append(el("p", f"It came from {values[FILE]}, position {shown(values.get(PLACE))}.", class_="quiet"))
    return el("div", told, class_="why")


def _text(text: str, row: Row, query: Query) -> Html:
    rest = ""
    if len(text) > LONGEST:
        link = el("a", "all of it", href=f"text?{query.address(file=row.source, at=place_of(row.values))}")
        rest = el("p", f"These are the first {LONGEST:,} of {len(text):,} characters: ", link, ".", class_="quiet")
    size = el("span", f" · {count(len(text), 'character')}, {count(len(text.split()), 'word')}", class_="quiet")
    shown_text = el("pre", marked(text[:LONGEST], query.search), class_="text", tabindex="0", dir="auto")
    return el("section", el("h2", "Text", size), shown_text, rest)


def _scores(filters: Sequence[Filter], scores: Mapping[str, Any]) -> Html:
    rows: list[list[object]] = [
        [one.column, shown(scores[one.column]), (one.threshold, _verdict(one, scores))]
        for one in filters
        if one.column in scores
    ]
    if not rows:
        return Html("")
    return el("section", el("h2", "Scores"), table(["filter", "score", "wants"], rows, frozenset((1,))))


def _verdict(one: Filter, scores: Mapping[str, Any]) -> object:
    return (" ", el("b", "and dropped it", class_="dropped")) if scores.get("dropped_by") == one.stage else ""


def _duplicates(text: str, cluster: Cluster | None, field: str | None) -> Html:
    if cluster is None:
        return Html("")
    told = [el("h2", f"Duplicates: a cluster of {count(cluster.size, 'row')}")]
    told += [_pair(text, member, field) for member in cluster.others]
    hidden = cluster.size - 1 - len(cluster.others)
    if hidden > 0:
        told.append(el("p", f"and {count(hidden, 'row')} more", class_="quiet"))
    return el("section", told)


def _pair(text: str, member: Member, field: str | None) -> Html:
    alike = "" if member.similarity is None or member.kept else f", {member.similarity:.0%} like the kept one"
    fate = "kept" if member.kept else "dropped"
    name = shown(name_of(member.values or {}) or member.id, 100)
    title = el("h3", f"{name} ", el("b", fate, class_=fate), alike)
    other = (member.values or {}).get(field) if field else None
    if not isinstance(other, str):
        return el("div", title, el("p", "Its text could not be found.", class_="quiet"), class_="other")
    if other == text:
        return el("div", title, el("p", "The texts are the same.", class_="quiet"), class_="other")
    mine, others = compare(text, other)
    return el(
        "div",
        title,
        el(
            "div",
            el("div", el("h3", "This row"), _marked(mine, "del")),
            el("div", el("h3", "The other row"), _marked(others, "ins")),
            class_="pair",
        ),
        class_="other",
    )


def _marked(spans: Spans, mark: str) -> Html:
    inner = [el(mark, text) if differs else safe(text) for differs, text in spans]
    return el("pre", inner, class_="text", tabindex="0", dir="auto")


def _columns(values: Mapping[str, Any], columns: Columns, search: str) -> Html:
    rows: list[list[object]] = [
        [name, el("pre", marked(shown(value, 20_000), search), dir="auto")]
        for name, value in values.items()
        if name not in (columns.text, POSITION, "quarantined_traceback")
    ]
    return el("section", el("h2", "Columns"), table(["column", "value"], rows)) if rows else Html("")
