"""What all pages share: head, tabs, and how addresses are built."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from gristmill.view.data.row_sets import RunOrDataset
from gristmill.view.pages.html_elements import SafeHtml, element, to_html

TITLES = {"rows": "Rows", "kept": "Kept", "dropped": "Dropped", "quarantined": "Quarantined"}


def page_frame(library: RunOrDataset, title: str, body: object, current: str, more: Mapping[str, str]) -> SafeHtml:
    """A whole page. `more` are tabs beside those of the row_sets: where they lead, and what they are called."""
    tabs = []
    for name, row_set in library.row_sets().items():
        number = "" if row_set.rows is None else f"{row_set.rows:,}"
        label = (TITLES[name], element("span", number, class_="n", data_count=name))
        link = element("a", *label, href=f"rows?{urlencode({'in': name})}", aria_current=_aria_current(current == name))
        tabs.append(element("li", link, class_=name))
    for href, called in more.items():
        tabs.append(element("li", element("a", called, href=href, aria_current=_aria_current(current == href))))
    top = element(
        "header",
        element(
            "div",
            element("div", f"Gristmill · {library.url}", class_="brand"),
            element("h1", library.title),
            element("nav", element("ul", tabs, class_="tabs"), aria_label="What to look at"),
        ),
        class_="top",
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} · {library.title} · Gristmill"),
        element("link", rel="icon", href="icon.svg"),
        element("link", rel="stylesheet", href="page.css"),
        element("script", src="page.js", defer=True),
    )
    skip = element("a", "Skip to the content", href="#main", class_="skip")
    page = element("html", head, element("body", skip, top, element("main", body, id="main", tabindex="-1")), lang="en")
    return SafeHtml(f"<!doctype html>{page}\n")


def _aria_current(yes: bool) -> str | None:
    return "page" if yes else None


def select_options(values: list[tuple[str, str]], chosen: str) -> list[SafeHtml]:
    """The choices of a select: value and label."""
    return [element("option", label, value=value, selected=value == chosen) for value, label in values]


def form_field(label: str, control: SafeHtml, name: str, wide: bool = False) -> SafeHtml:
    """A control under its label."""
    return element("div", element("label", label, for_=name), control, class_="wide" if wide else None)


def html_table(titles: list[str], rows: list[list[object]], right: frozenset[int] = frozenset()) -> SafeHtml:
    """A table whose first column names the row; columns of numbers are on the right."""
    heads = [
        element("th", title, scope="col", class_="n" if number in right else None)
        for number, title in enumerate(titles)
    ]
    lines = []
    for first, *others in rows:
        cells = [element("td", cell, class_="n" if number in right else None) for number, cell in enumerate(others, 1)]
        lines.append(element("tr", element("th", first, scope="row"), cells))
    whole = element("table", element("thead", element("tr", heads)), element("tbody", lines))
    return element(
        "div", whole, class_="scroll", tabindex="0", role="region", aria_label=", ".join(map(to_html, titles))
    )
