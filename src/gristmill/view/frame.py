"""Frame: what all pages have in common: head, tabs, and how addresses are made."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from gristmill.view.markup import Html, el, safe
from gristmill.view.shelves import Library

TITLES = {"rows": "Rows", "kept": "Kept", "dropped": "Dropped", "quarantined": "Quarantined"}


def frame(library: Library, title: str, body: object, current: str, more: Mapping[str, str]) -> Html:
    """A whole page. `more` are tabs beside those of the shelves: where they lead, and what they are called."""
    tabs = []
    for name, shelf in library.shelves().items():
        number = "" if shelf.rows is None else f"{shelf.rows:,}"
        label = (TITLES[name], el("span", number, class_="n", data_count=name))
        link = el("a", *label, href=f"rows?{urlencode({'in': name})}", aria_current=_here(current == name))
        tabs.append(el("li", link, class_=name))
    for href, called in more.items():
        tabs.append(el("li", el("a", called, href=href, aria_current=_here(current == href))))
    top = el(
        "header",
        el(
            "div",
            el("div", f"Gristmill · {library.url}", class_="brand"),
            el("h1", library.title),
            el("nav", el("ul", tabs, class_="tabs"), aria_label="What to look at"),
        ),
        class_="top",
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{title} · {library.title} · Gristmill"),
        el("link", rel="icon", href="icon.svg"),
        el("link", rel="stylesheet", href="page.css"),
        el("script", src="page.js", defer=True),
    )
    skip = el("a", "Skip to the content", href="#main", class_="skip")
    page = el("html", head, el("body", skip, top, el("main", body, id="main", tabindex="-1")), lang="en")
    return Html(f"<!doctype html>{page}\n")


def _here(yes: bool) -> str | None:
    return "page" if yes else None


def options(values: list[tuple[str, str]], chosen: str) -> list[Html]:
    """The choices of a select: value and label."""
    return [el("option", label, value=value, selected=value == chosen) for value, label in values]


def field(label: str, control: Html, name: str, wide: bool = False) -> Html:
    """A control under its label."""
    return el("div", el("label", label, for_=name), control, class_="wide" if wide else None)


def table(titles: list[str], rows: list[list[object]], right: frozenset[int] = frozenset()) -> Html:
    """A table whose first column names the row; columns of numbers are on the right."""
    heads = [
        el("th", title, scope="col", class_="n" if number in right else None) for number, title in enumerate(titles)
    ]
    lines = []
    for first, *others in rows:
        cells = [el("td", cell, class_="n" if number in right else None) for number, cell in enumerate(others, 1)]
        lines.append(el("tr", el("th", first, scope="row"), cells))
    whole = el("table", el("thead", el("tr", heads)), el("tbody", lines))
    return el("div", whole, class_="scroll", tabindex="0", role="region", aria_label=", ".join(map(safe, titles)))
