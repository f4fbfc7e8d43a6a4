"""The list page: one page of rows, with controls to search, filter and sort them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.records.rejected_rows import FILTER, LIMIT, SCORE, STAGE, THRESHOLD
from gristmill.report.drop_sentence import rejected_sentence
from gristmill.view.data.film_rows import SOURCE, clip_span
from gristmill.view.data.media_in_rows import MediaContent
from gristmill.view.data.query import LENGTH, ColumnRoles, RowQuery
from gristmill.view.data.row_scan import RowScan
from gristmill.view.data.row_sets import QUARANTINED, QUARANTINED_BY, RowSet
from gristmill.view.data.sound_marks import own_segment
from gristmill.view.pages.cell_values import excerpt, format_value, number, position_of
from gristmill.view.pages.html_elements import SafeHtml, count_noun, element
from gristmill.view.pages.page_frame import TITLES, form_field, select_options

MAX_CHIPS = 8
MAX_ITEMS = 6
"""Pictures of a document in a list of rows."""
ID_COLUMNS = (
    "id", "doc_id", "document_id", "_id", "uid", "uuid", "url", "quarantined_id", "clip_id", "video_id",
)  # fmt: skip


@dataclass(frozen=True)
class ListedRow:
    """A row on a page: its number among those found, the source that it lies in, its values, and what can be seen."""

    number: int
    source: str
    values: Mapping[str, Any]
    media: Mapping[str, MediaContent]
    items: Mapping[str, MediaContent | None] = field(default_factory=dict)
    """What stands for the placeholders in the text of an interleaved document, in order."""

    def url_parameters(self, query: RowQuery) -> str:
        return query.address(file=self.source, at=position_of(self.values), n=self.number)


def list_page(
    row_set: RowSet, query: RowQuery, columns: ColumnRoles, scan: RowScan, rows: Sequence[ListedRow], page: int
) -> SafeHtml:
    size = len(rows)
    pages = pager(query, page, scan.found, scan.done)
    note = element("p", row_set.note, class_="quiet") if row_set.note else ""
    items = [_item(row, query, columns, row_set.name) for row in rows]
    listed = element("ol", items, class_="rows", start=rows[0].number + 1) if rows else _nothing(query, scan)
    return SafeHtml(
        element("h2", f"{TITLES[row_set.name]} rows" if row_set.name != "rows" else "Rows", class_="unseen")
        + query_form(query, columns, scan)
        + note
        + status_line(scan, page, size, query)
        + listed
        + pages
    )


def _nothing(query: RowQuery, scan: RowScan) -> SafeHtml:
    if not scan.done:
        return element("p", "Looking…", class_="quiet")
    if query.is_filtered:
        clear = element("a", "Show all rows", href=f"rows?{RowQuery(query.row_set).address()}")
        return element("p", "No rows match. ", clear)
    return element("p", "There are no rows here.", class_="quiet")


# -- questions -------------------------------------------------------------------------------------------------


def query_form(query: RowQuery, columns: ColumnRoles, scan: RowScan) -> SafeHtml:
    """The form."""
    search = element("input", type="search", name="search", id="search", value=query.search, placeholder="any words")
    parts = [
        element("input", type="hidden", name="in", value=query.row_set),
        form_field("Search text", search, "search", True),
    ]
    for name, label, which, there in (
        ("stage", "Stage", 0, columns.stage),
        ("rule", "Rule", 2, columns.rule),
        ("language", "Language", 1, columns.language),
    ):
        if there:
            control = element("select", value_choices(scan, which, getattr(query, name)), name=name, id=name)
            parts.append(form_field(label, control, name))
    if numbers := _numbers(columns):
        parts.append(_range(query, numbers))
        parts.append(_sorting(query, numbers))
    parts.append(element("button", "Show", type="submit"))
    if query.is_filtered or query.sort:
        parts.append(element("a", "Clear", href=f"rows?{RowQuery(query.row_set).address()}", class_="button second"))
    return element("form", parts, class_="ask", method="get", action="rows", role="search")


def value_choices(scan: RowScan, which: int, chosen: str) -> list[SafeHtml]:
    """The stages or languages, with how many rows have each."""
    known = [(value, total) for value, total in scan.count_by(which) if value]
    if chosen and chosen not in dict(known):
        known.append((chosen, 0))
    return select_options([("", "all"), *((value, f"{value} ({total:,})") for value, total in known)], chosen)


def _numbers(columns: ColumnRoles) -> list[tuple[str, str]]:
    known = sorted(columns.numbers, key=lambda name: name != SCORE)
    names = [(name, SCORE_LABELS.get(name, name)) for name in known if name not in HIDDEN_COLUMNS]
    return [*names, *([(LENGTH, "length of text")] if columns.text else [])]


SCORE_LABELS = {SCORE: "filter score"}
HIDDEN_COLUMNS = {POSITION, "rejected_position", "quarantined_position", LIMIT}


def _range(query: RowQuery, numbers: list[tuple[str, str]]) -> SafeHtml:
    chosen = element("select", select_options(numbers, query.score), name="score", id="score", aria_label="Score")
    low, high = (
        element(
            "input",
            type="number",
            step="any",
            name=name,
            class_="num",
            aria_label=label,
            placeholder=label,
            value=None if value is None else f"{value:.12g}",
        )
        for name, label, value in (("least", "at least", query.least), ("most", "at most", query.most))
    )
    return element("fieldset", element("legend", "Score"), chosen, low, high)


def _sorting(query: RowQuery, numbers: list[tuple[str, str]]) -> SafeHtml:
    known = [("", "original order"), *numbers]
    chosen = element("select", select_options(known, query.sort), name="sort", id="sort", aria_label="Order by")
    ways = select_options([("", "lowest first"), ("1", "highest first")], "1" if query.down else "")
    return element(
        "fieldset", element("legend", "Order"), chosen, element("select", ways, name="down", aria_label="Direction")
    )


def status_line(scan: RowScan, page: int, size: int, query: RowQuery) -> SafeHtml:
    """What is shown of how much. The script of the page keeps it up to date."""
    return element(
        "p",
        element("span", progress_text(scan, page, size), id="status", role="status"),
        element("button", "Show new rows", type="button", id="renew", hidden=True),
        class_="status",
        id="state",
        data_ask=query.address(),
        data_size=size,
        data_found=scan.found,
        data_page=page,
        data_done="1" if scan.done else "",
    )


def progress_text(scan: RowScan, page: int, size: int) -> str:
    """In words: which rows, of how many, and how far the search is."""
    first = (page - 1) * ROWS_PER_PAGE + 1
    which = f"{first:,} to {first + size - 1:,} of " if size else ""
    found = count_noun(scan.found, "row") if scan.done else f"at least {count_noun(scan.found, 'row')}"
    parts = [f"{which}{found}"]
    if scan.query.is_filtered:
        parts.append(f"of {scan.rows:,} searched")
    if not scan.done:
        parts.append(f"{scan.share:.0%} of the data searched so far")
    if scan.bad:
        parts.append(f"{count_noun(scan.bad, 'record')} could not be read")
    return ", ".join(parts) + "".join(f". {note}" for note in scan.notes[:3])


ROWS_PER_PAGE = 50


def pager(query: RowQuery, page: int, found: int, done: bool) -> SafeHtml:
    last = max(1, -(-found // ROWS_PER_PAGE))
    if last == 1 and page == 1 and done:
        return SafeHtml("")
    links = []
    for label, target, there in (
        ("« First", 1, page > 1),
        ("‹ Previous", page - 1, page > 1),
        ("Next ›", page + 1, page < last),
        ("Last »", last, page < last and done),
    ):
        if there:
            rel = {"‹ Previous": "prev", "Next ›": "next"}.get(label)
            links.append(
                element("a", label, href=f"rows?{query.address(page=target)}", class_="button second", rel=rel)
            )
    kept = [element("input", type="hidden", name=name, value=value) for name, value in _pairs(query)]
    box = element("input", type="number", name="page", id="page", min=1, value=page, class_="num")
    of = f"of {last:,}" if done else ""
    jump = element(
        "form", kept, element("label", "Page", for_="page"), box, element("span", of, class_="quiet n"), action="rows"
    )
    return element("nav", links, jump, class_="pager", aria_label="Pages")


def _pairs(query: RowQuery) -> list[tuple[str, str]]:
    from urllib.parse import parse_qsl

    return parse_qsl(query.address())


# -- rows ------------------------------------------------------------------------------------------------------


def _item(row: ListedRow, query: RowQuery, columns: ColumnRoles, fate: str) -> SafeHtml:
    values = row.values
    name = row_name(values) or f"Row {row.number + 1:,}"
    head = [element("a", format_value(name, 80), href=f"row?{row.url_parameters(query)}"), *_why_dropped(values, fate)]
    if columns.language and values.get(columns.language):
        head.append(element("span", format_value(values[columns.language], 20)))
    text = values.get(columns.text) if columns.text else None
    body = [element("div", head, class_="head")]
    if isinstance(text, str) and text:
        body.append(element("p", excerpt(text, query.search), class_="excerpt", dir="auto"))
    elif columns.text and not row.media:
        body.append(element("p", "(no text)" if not text else format_value(text, 400), class_="excerpt quiet"))
    body += [media(row, query), _chips(values, columns)]
    return element("li", body, class_=f"row {fate}")


def row_name(values: Mapping[str, Any]) -> str:
    """What the data itself calls a row."""
    lower = {name.lower(): name for name in reversed(list(values))}
    found = next(
        (values[lower[name]] for name in ID_COLUMNS if name in lower and values[lower[name]] is not None), None
    )
    return "" if found is None or isinstance(found, bytes | dict | list) else str(found)


def _why_dropped(values: Mapping[str, Any], fate: str) -> list[SafeHtml]:
    if fate == QUARANTINED:
        error = format_value(str(values.get("quarantined_error") or "").partition("\n")[0], 160)
        return [element("b", format_value(values.get(QUARANTINED_BY)), class_=fate), element("span", error)]
    if values.get(STAGE) is None:
        return []
    parts = [element("b", format_value(values[STAGE]), class_="dropped")]
    score, threshold = values.get(SCORE), values.get(THRESHOLD)
    if sentence := rejected_sentence(values):
        parts.append(element("span", sentence))
    elif score is not None:
        filtered = values.get(FILTER)
        label = f"{filtered}: " if filtered and filtered != values[STAGE] else ""
        parts.append(
            element("span", f"{label}score {number(score)}", f" (threshold: {threshold})" if threshold else "")
        )
    return parts


def _chips(values: Mapping[str, Any], columns: ColumnRoles) -> SafeHtml:
    """The other columns, in short."""
    out = {
        columns.text,
        columns.language,
        POSITION,
        *(name for name in values if name.startswith(("rejected_", "quarantined_"))),
    }
    chips = [
        element("li", element("b", name), " ", format_value(value, 60))
        for name, value in values.items()
        if name not in out and name.lower() not in ID_COLUMNS[:1] and value is not None and not isinstance(value, bytes)
    ]
    more = [element("li", f"and {len(chips) - MAX_CHIPS} more")] if len(chips) > MAX_CHIPS else []
    return element("ul", chips[:MAX_CHIPS], more, class_="chips") if chips else SafeHtml("")


def media(row: ListedRow, query: RowQuery, large: bool = False) -> SafeHtml:
    """What can be seen and heard."""
    shown_media = []
    items = [] if large else [(name, medium) for name, medium in row.items.items() if medium is not None][:MAX_ITEMS]
    for name, medium in [*row.media.items(), *items]:
        shown = [medium_element(row, query, name, medium), element("figcaption", name)]
        if large and medium.family == "audio" and find_spec("soundfile"):
            shown.insert(0, _waveform(row, query, name))
        shown_media.append(element("figure", *shown, class_="sound" if len(shown) > 2 else None))
    return element("div", shown_media, class_="media large" if large else "media") if shown_media else SafeHtml("")


def _waveform(row: ListedRow, query: RowQuery, name: str) -> SafeHtml:
    """The picture of a recording; a click on it plays from there."""
    address = f"waveform?{query.address(file=row.source, at=position_of(row.values), column=name)}"
    return element(
        "img", src=address, alt=f"waveform of column {name}, with the segments of the row", class_="waveform"
    )


def medium_element(row: ListedRow, query: RowQuery, name: str, medium: MediaContent) -> SafeHtml:
    """A picture, or controls for sound and film."""
    address = f"media?{query.address(file=row.source, at=position_of(row.values), column=name)}"
    if medium.family == "image":
        return element("img", src=address, alt=f"image in column {name}", loading="lazy")
    label = f"{medium.family} in column {name}"
    if medium.family == "audio":
        segment = None if isinstance(row.values.get(name), bytes) else own_segment(row.values)
        if segment is not None:
            address += f"#t={segment[0]:.3f},{segment[1]:.3f}"  # a player begins and ends there
        return element("audio", src=address, controls=True, preload="metadata", aria_label=label)
    return _film_element(row, query, name, address, label)


def _film_element(row: ListedRow, query: RowQuery, name: str, address: str, label: str) -> SafeHtml:
    """A player. Of a row that is a clip of the film in its column `source`, it plays that clip."""
    span = clip_span(row.values) if name == SOURCE else None
    start, end = span or (0.0, 0.0)
    middle = int(500 * (start + end))
    still = f"poster?{query.address(file=row.source, at=position_of(row.values), column=name, ms=middle)}"
    part = f"#t={start:.3f},{end:.3f}" if span else ""
    return element("video", src=f"{address}{part}", poster=still, controls=True, preload="none", aria_label=label)
