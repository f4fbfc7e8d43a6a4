"""The page of one row: all columns, why it was dropped, its scores, and its duplicates with differences marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.records.rejected_rows import FILE, FILTER, PLACE, SCORE, STAGE, THRESHOLD
from gristmill.interleaved.item_columns import PLACEHOLDER
from gristmill.interleaved.placeholders import ITEMS_COLUMN
from gristmill.report.drop_sentence import rejected_sentence
from gristmill.report.run_report.score_histogram import limits_in_threshold
from gristmill.view.data.query import ColumnRoles, RowQuery
from gristmill.view.data.row_sets import QUARANTINED, QUARANTINED_BY
from gristmill.view.data.whatif import ScoredFilter
from gristmill.view.pages.cell_values import format_value, highlight_matches, number, position_of
from gristmill.view.pages.find_duplicates import ClusterMember, DuplicateCluster
from gristmill.view.pages.html_elements import SafeHtml, count_noun, element, to_html
from gristmill.view.pages.page_frame import TITLES, html_table
from gristmill.view.pages.row_list_page import ListedRow, media, medium_element, row_name
from gristmill.view.pages.text_diff import Spans, diff_words

MAX_TEXT_CHARS = 1_000_000
"""Characters of a text on the page. All of a longer one is behind a link."""


def row_page(
    row: ListedRow,
    query: RowQuery,
    columns: ColumnRoles,
    page: int,
    filters: Sequence[ScoredFilter],
    scores: Mapping[str, Any],
    cluster: DuplicateCluster | None,
    timeline: SafeHtml = SafeHtml(""),  # noqa: B008  a constant
) -> SafeHtml:
    values = row.values
    title = row_name(values) or f"Row {row.number + 1:,}"
    text = values.get(columns.text) if columns.text else None
    parts = [
        _navigation(row, query, page),
        element("h2", format_value(title, 200)),
        _outcome(values, query.row_set),
        media(row, query, large=True),
        timeline,
        _text(text, row, query) if isinstance(text, str) else "",
        _duplicates(text if isinstance(text, str) else "", cluster, columns.text),
        _scores(filters, scores),
        _columns(values, columns, query.search),
    ]
    return to_html(parts)


def _navigation(row: ListedRow, query: RowQuery, page: int) -> SafeHtml:
    back = element(
        "a", f"‹ {TITLES.get(query.row_set, 'Rows')}", href=f"rows?{query.address(page=page)}", class_="button second"
    )
    before = element(
        "a", "Previous row", href=f"row?{query.address(n=row.number - 1)}", rel="prev", class_="button second"
    )
    after = element("a", "Next row", href=f"row?{query.address(n=row.number + 1)}", rel="next", class_="button second")
    return element("nav", back, before if row.number else "", after, class_="pager", aria_label="Rows")


def _outcome(values: Mapping[str, Any], row_set: str) -> SafeHtml:
    if row_set == QUARANTINED:
        paragraphs = [
            element(
                "p",
                "Quarantined: stage ",
                element("b", format_value(values.get(QUARANTINED_BY)), class_=QUARANTINED),
                " failed on this row.",
            ),
            element("p", format_value(values.get("quarantined_error"))),
        ]
        if values.get("quarantined_traceback"):
            paragraphs.append(
                element("details", element("summary", "Traceback"), element("pre", values["quarantined_traceback"]))
            )
        return element("div", paragraphs, class_=f"why {QUARANTINED}")
    if values.get(STAGE) is None:
        return element("p", "Kept.", class_="why kept") if row_set == "kept" else SafeHtml("")
    reason: tuple[object, ...] = (".",)
    if sentence := rejected_sentence(values):
        reason = (f": {sentence}.",)
    elif values.get(SCORE) is not None:
        comparison = _compare(values[SCORE], values.get(THRESHOLD) or "")
        reason = (f": {values.get(FILTER) or 'score'} ", element("b", number(values[SCORE])), f"{comparison}.")
    paragraphs = [element("p", "Dropped by ", element("b", format_value(values[STAGE]), class_="dropped"), *reason)]
    if values.get(FILE) is not None:
        source = f"Source: {values[FILE]}, position {format_value(values.get(PLACE))}."
        paragraphs.append(element("p", source, class_="quiet"))
    return element("div", paragraphs, class_="why")


def _compare(score: float, threshold: str) -> str:
    """How a score violates the threshold; the threshold itself where its text does not say which limit it is."""
    for name, limit in limits_in_threshold(threshold):
        side = "above" if score > limit else "below" if score < limit else "equal to"
        if name == "threshold":
            return f" is {side} the threshold of {number(limit)}"
        if (name.startswith("min_") and score < limit) or (name.startswith("max_") and score > limit):
            return f" is {side} {name}={number(limit)}"
    return f", threshold: {threshold}" if threshold else ""


def _text(text: str, row: ListedRow, query: RowQuery) -> SafeHtml:
    rest = ""
    if len(text) > MAX_TEXT_CHARS:
        link = element("a", "Show all", href=f"text?{query.address(file=row.source, at=position_of(row.values))}")
        rest = element("p", f"Showing the first {MAX_TEXT_CHARS:,} of {len(text):,} characters. ", link, class_="quiet")
    size = element(
        "span", f" · {count_noun(len(text), 'character')}, {count_noun(len(text.split()), 'word')}", class_="quiet"
    )
    inner = _with_media(text[:MAX_TEXT_CHARS], row, query)
    shown_text = element("pre", inner, class_="text", tabindex="0", dir="auto")
    return element("section", element("h2", "Text", size), shown_text, rest)


def _with_media(text: str, row: ListedRow, query: RowQuery) -> SafeHtml:
    """A text with pictures, sound and film in the places that placeholders hold for them."""
    first, *runs = text.split(PLACEHOLDER) if row.items else [text]
    named = [*row.items.items(), *[("", None)] * len(runs)]
    parts: list[object] = [highlight_matches(first, query.search)]
    for run, (name, medium) in zip(runs, named, strict=False):
        if medium is not None:
            parts.append(element("span", medium_element(row, query, name, medium), class_="media large"))
        elif name:
            parts.append(element("span", _named_item(row, name), class_="quiet"))
        parts.append(highlight_matches(run, query.search))
    return to_html(parts)


def _named_item(row: ListedRow, name: str) -> str:
    """An item that cannot be shown here: its kind, and where it is."""
    item = row.values[ITEMS_COLUMN][int(name.rpartition(".")[2])]
    ref = item.get("ref") or {}
    return f"[{item['kind']}: {ref.get('member') or ref.get('path') or 'no bytes'}]"


def _scores(filters: Sequence[ScoredFilter], scores: Mapping[str, Any]) -> SafeHtml:
    dropped = _dropping(filters, scores)
    verdict = (" ", element("b", "dropped this row", class_="dropped"))
    rows: list[list[object]] = [
        [one.title, format_value(scores[one.column]), (one.threshold, verdict if one is dropped else "")]
        for one in filters
        if one.column in scores
    ]
    if not rows:
        return SafeHtml("")
    return element(
        "section", element("h2", "Scores"), html_table(["filter", "score", "threshold"], rows, frozenset((1,)))
    )


def _dropping(filters: Sequence[ScoredFilter], scores: Mapping[str, Any]) -> ScoredFilter | None:
    """What dropped the row: the first rule of its stage that it breaks, or the only filter that it can be."""
    own = [one for one in filters if one.column in scores and one.stage == scores.get("dropped_by")]
    broken = next((one for one in own if one.drops(scores[one.column])), None)
    unclear = [one for one in own if one.drops(scores[one.column]) is None]
    return broken or (unclear[0] if len(unclear) == 1 else None)


def _duplicates(text: str, cluster: DuplicateCluster | None, field: str | None) -> SafeHtml:
    if cluster is None:
        return SafeHtml("")
    parts = [element("h2", f"Duplicates: a cluster of {count_noun(cluster.size, 'row')}")]
    parts += [_pair(text, member, field) for member in cluster.others]
    hidden = cluster.size - 1 - len(cluster.others)
    if hidden > 0:
        parts.append(element("p", f"and {count_noun(hidden, 'row')} more", class_="quiet"))
    return element("section", parts)


def _pair(text: str, member: ClusterMember, field: str | None) -> SafeHtml:
    alike = "" if member.similarity is None or member.kept else f", {member.similarity:.0%} similar to the kept row"
    fate = "kept" if member.kept else "dropped"
    name = format_value(row_name(member.values or {}) or member.id, 100)
    title = element("h3", f"{name} ", element("b", fate, class_=fate), alike)
    other = (member.values or {}).get(field) if field else None
    if not isinstance(other, str):
        return element("div", title, element("p", "Text not found.", class_="quiet"), class_="other")
    if other == text:
        return element("div", title, element("p", "Identical text.", class_="quiet"), class_="other")
    mine, others = diff_words(text, other)
    return element(
        "div",
        title,
        element(
            "div",
            element("div", element("h3", "This row"), _marked(mine, "del")),
            element("div", element("h3", "The other row"), _marked(others, "ins")),
            class_="pair",
        ),
        class_="other",
    )


def _marked(spans: Spans, mark: str) -> SafeHtml:
    inner = [element(mark, text) if differs else to_html(text) for differs, text in spans]
    return element("pre", inner, class_="text", tabindex="0", dir="auto")


def _columns(values: Mapping[str, Any], columns: ColumnRoles, search: str) -> SafeHtml:
    rows: list[list[object]] = [
        [name, element("pre", highlight_matches(format_value(value, 20_000), search), dir="auto")]
        for name, value in values.items()
        if name not in (columns.text, POSITION, "quarantined_traceback")
    ]
    return element("section", element("h2", "Columns"), html_table(["column", "value"], rows)) if rows else SafeHtml("")
