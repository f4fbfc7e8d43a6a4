"""The list: a page of rows, with the questions that can be asked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.core.rejects import FILTER, SCORE, STAGE, THRESHOLD
from gristmill.core.table import POSITION
from gristmill.view.cells import excerpt, number, place_of, shown
from gristmill.view.frame import TITLES, field, options
from gristmill.view.markup import Html, count, el
from gristmill.view.media import Medium
from gristmill.view.query import LENGTH, Columns, Query
from gristmill.view.scan import Scan
from gristmill.view.shelves import ASIDE, ASIDE_STAGE, Shelf

CHIPS = 8
IDS = ("id", "doc_id", "document_id", "_id", "uid", "uuid", "url", "quarantined_id")


@dataclass(frozen=True)
class Row:
    """A row on a page: its number among those found, the source that it lies in, its values, and what can be seen."""

    number: int
    source: str
    values: Mapping[str, Any]
    media: Mapping[str, Medium]

    def address(self, query: Query) -> str:
        return query.address(file=self.source, at=place_of(self.values), n=self.number)


def list_page(shelf: Shelf, query: Query, columns: Columns, scan: Scan, rows: Sequence[Row], page: int) -> Html:
    size = len(rows)
    pages = pager(query, page, scan.found, scan.done)
    note = el("p", shelf.note, class_="quiet") if shelf.note else ""
    items = [_item(row, query, columns, shelf.name) for row in rows]
    listed = el("ol", items, class_="rows", start=rows[0].number + 1) if rows else _nothing(query, scan)
    return Html(
        el("h2", f"{TITLES[shelf.name]} rows" if shelf.name != "rows" else "Rows", class_="unseen")
        + ask(query, columns, scan)
        + note
        + status(scan, page, size, query)
        + listed
        + pages
    )


def _nothing(query: Query, scan: Scan) -> Html:
    if not scan.done:
        return el("p", "Looking…", class_="quiet")
    if query.narrows:
        clear = el("a", "Show all rows", href=f"rows?{Query(query.shelf).address()}")
        return el("p", "No row is like that. ", clear)
    return el("p", "There are no rows here.", class_="quiet")


# -- questions -------------------------------------------------------------------------------------------------


def ask(query: Query, columns: Columns, scan: Scan) -> Html:
    """The form."""
    search = el("input", type="search", name="search", id="search", value=query.search, placeholder="any words")
    parts = [el("input", type="hidden", name="in", value=query.shelf), field("Search text", search, "search", True)]
    for name, label, which, there in (
        ("stage", "Stage", 0, columns.stage),
        ("language", "Language", 1, columns.language),
    ):
        if there:
            control = el("select", choices(scan, which, getattr(query, name)), name=name, id=name)
            parts.append(field(label, control, name))
    if numbers := _numbers(columns):
        parts.append(_range(query, numbers))
        parts.append(_sorting(query, numbers))
    parts.append(el("button", "Show", type="submit"))
    if query.narrows or query.sort:
        parts.append(el("a", "Clear", href=f"rows?{Query(query.shelf).address()}", class_="button second"))
    return el("form", parts, class_="ask", method="get", action="rows", role="search")


def choices(scan: Scan, which: int, chosen: str) -> list[Html]:
    """The stages or languages, with how many rows have each."""
    known = [(value, total) for value, total in scan.by(which) if value]
    if chosen and chosen not in dict(known):
        known.append((chosen, 0))
    return options([("", "all"), *((value, f"{value} ({total:,})") for value, total in known)], chosen)


def _numbers(columns: Columns) -> list[tuple[str, str]]:
    known = sorted(columns.numbers, key=lambda name: name != SCORE)
    names = [(name, SCORE_LABELS.get(name, name)) for name in known if name not in HIDDEN]
    return [*names, *([(LENGTH, "length of text")] if columns.text else [])]


SCORE_LABELS = {SCORE: "score of its filter"}
HIDDEN = {POSITION, "rejected_position", "quarantined_position"}


def _range(query: Query, numbers: list[tuple[str, str]]) -> Html:
    chosen = el("select", options(numbers, query.score), name="score", id="score", aria_label="Score")
    low, high = (
        el(
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
    return el("fieldset", el("legend", "Score"), chosen, low, high)


def _sorting(query: Query, numbers: list[tuple[str, str]]) -> Html:
    known = [("", "as they are"), *numbers]
    chosen = el("select", options(known, query.sort), name="sort", id="sort", aria_label="Order by")
    ways = options([("", "lowest first"), ("1", "highest first")], "1" if query.down else "")
    return el("fieldset", el("legend", "Order"), chosen, el("select", ways, name="down", aria_label="Direction"))


def status(scan: Scan, page: int, size: int, query: Query) -> Html:
    """What is shown of how much. The script of the page keeps it up to date."""
    return el(
        "p",
        el("span", progress(scan, page, size), id="status", role="status"),
        el("button", "Show new rows", type="button", id="renew", hidden=True),
        class_="status",
        id="state",
        data_ask=query.address(),
        data_size=size,
        data_found=scan.found,
        data_page=page,
        data_done="1" if scan.done else "",
    )


def progress(scan: Scan, page: int, size: int) -> str:
    """In words: which rows, of how many, and how far the search is."""
    first = (page - 1) * PAGE + 1
    which = f"{first:,} to {first + size - 1:,} of " if size else ""
    found = count(scan.found, "row") if scan.done else f"at least {count(scan.found, 'row')}"
    told = [f"{which}{found}"]
    if scan.query.narrows:
        told.append(f"of {scan.rows:,} looked at")
    if not scan.done:
        told.append(f"{scan.share:.0%} of the data seen so far")
    if scan.bad:
        told.append(f"{count(scan.bad, 'record')} could not be read")
    return ", ".join(told) + "".join(f". {note}" for note in scan.notes[:3])


PAGE = 50


def pager(query: Query, page: int, found: int, done: bool) -> Html:
    last = max(1, -(-found // PAGE))
    if last == 1 and page == 1 and done:
        return Html("")
    links = []
    for label, target, there in (
        ("« First", 1, page > 1),
        ("‹ Previous", page - 1, page > 1),
        ("Next ›", page + 1, page < last),
        ("Last »", last, page < last and done),
    ):
        if there:
            rel = {"‹ Previous": "prev", "Next ›": "next"}.get(label)
            links.append(el("a", label, href=f"rows?{query.address(page=target)}", class_="button second", rel=rel))
    kept = [el("input", type="hidden", name=name, value=value) for name, value in _pairs(query)]
    box = el("input", type="number", name="page", id="page", min=1, value=page, class_="num")
    of = f"of {last:,}" if done else ""
    jump = el("form", kept, el("label", "Page", for_="page"), box, el("span", of, class_="quiet n"), action="rows")
    return el("nav", links, jump, class_="pager", aria_label="Pages")


def _pairs(query: Query) -> list[tuple[str, str]]:
    from urllib.parse import parse_qsl

    return parse_qsl(query.address())


# -- rows ------------------------------------------------------------------------------------------------------


def _item(row: Row, query: Query, columns: Columns, fate: str) -> Html:
    values = row.values
    name = name_of(values) or f"Row {row.number + 1:,}"
    head = [el("a", shown(name, 80), href=f"row?{row.address(query)}"), *_why(values, fate)]
    if columns.language and values.get(columns.language):
        head.append(el("span", shown(values[columns.language], 20)))
    text = values.get(columns.text) if columns.text else None
    body = [el("div", head, class_="head")]
    if isinstance(text, str) and text:
        body.append(el("p", excerpt(text, query.search), class_="excerpt", dir="auto"))
    elif columns.text and not row.media:
        body.append(el("p", "(no text)" if not text else shown(text, 400), class_="excerpt quiet"))
    body += [media(row, query), _chips(values, columns)]
    return el("li", body, class_=f"row {fate}")


def name_of(values: Mapping[str, Any]) -> str:
    """What the data itself calls a row."""
    lower = {name.lower(): name for name in reversed(list(values))}
    found = next((values[lower[name]] for name in IDS if name in lower and values[lower[name]] is not None), None)
    return "" if found is None or isinstance(found, bytes | dict | list) else str(found)


def _why(values: Mapping[str, Any], fate: str) -> list[Html]:
    if fate == ASIDE:
        error = shown(str(values.get("quarantined_error") or "").partition("\n")[0], 160)
        return [el("b", shown(values.get(ASIDE_STAGE)), class_=fate), el("span", error)]
    if values.get(STAGE) is None:
        return []
    told = [el("b", shown(values[STAGE]), class_="dropped")]
    score, threshold = values.get(SCORE), values.get(THRESHOLD)
    if score is not None:
        filtered = values.get(FILTER)
        label = f"{filtered}: " if filtered and filtered != values[STAGE] else ""
        told.append(el("span", f"{label}score {number(score)}", f", wanted {threshold}" if threshold else ""))
    return told


def _chips(values: Mapping[str, Any], columns: Columns) -> Html:
    """The other columns, in short."""
    out = {
        columns.text,
        columns.language,
        POSITION,
        *(name for name in values if name.startswith(("rejected_", "quarantined_"))),
    }
    told = [
        el("li", el("b", name), " ", shown(value, 60))
        for name, value in values.items()
        if name not in out and name.lower() not in IDS[:1] and value is not None and not isinstance(value, bytes)
    ]
    more = [el("li", f"and {len(told) - CHIPS} more")] if len(told) > CHIPS else []
    return el("ul", told[:CHIPS], more, class_="chips") if told else Html("")


def media(row: Row, query: Query, large: bool = False) -> Html:
    """What can be seen and heard."""
    shown_media = []
    for name, medium in row.media.items():
        address = f"media?{query.address(file=row.source, at=place_of(row.values), column=name)}"
        if medium.family == "image":
            inner = el("img", src=address, alt=f"image in column {name}", loading="lazy")
        else:
            label = f"{medium.family} in column {name}"
            inner = el(medium.family, src=address, controls=True, preload="metadata", aria_label=label)
        shown_media.append(el("figure", inner, el("figcaption", name)))
    return el("div", shown_media, class_="media large" if large else "media") if shown_media else Html("")
