"""What if, as a page: a histogram of a filter's scores, its limits as sliders, and what would be kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import orjson

from gristmill.core.rejects import SCORE
from gristmill.core.result import counted
from gristmill.view.cells import number
from gristmill.view.frame import table
from gristmill.view.markup import Html, el, safe
from gristmill.view.query import Query
from gristmill.view.whatif import Answer, Filter, Judged, Limits

WIDTH, BASE = 640, 160


def whatif_page(filters: Sequence[Filter], judged: Judged | None, chosen: Limits) -> Html:
    intro = el("p", "Move a limit: counts come from the scores that the run has recorded, and no text is read again.")
    if judged is None:
        known = "The scores of this filter are no numbers." if filters else "No scores were recorded yet."
        return Html(el("h2", "What if") + _filters(filters, None) + el("p", known, class_="quiet"))
    answer = judged.ask(chosen.low, chosen.high)
    return Html(
        el("h2", "What if")
        + intro
        + _filters(filters, judged.filter)
        + (el("p", f"There are more: counts are of the first {answer.rows:,} rows.") if judged.partial else "")
        + el("div", _sliders(judged, chosen), el("div", told(judged, answer, chosen), id="told"), class_="card")
    )


def _filters(filters: Sequence[Filter], current: Filter | None) -> Html:
    links = [
        el(
            "li",
            el("a", one.column, href=f"whatif?{urlencode({'column': one.column})}", aria_current=_here(one, current)),
        )
        for one in filters
    ]
    return el("nav", el("ul", links, class_="filters"), aria_label="Filters")


def _here(one: Filter, current: Filter | None) -> str | None:
    return "page" if one == current else None


def _sliders(judged: Judged, chosen: Limits) -> Html:
    one, found = judged.filter, judged.histogram
    edges = found["edges"]
    parts: list[object] = [
        el("input", type="hidden", name="column", value=one.column),
        el("h3", f"{one.column} ", el("span", one.threshold, class_="quiet")),
        picture(found, chosen, judged.now),
    ]
    sliders = [
        _slider(name, label, value, edges, bool(found.get("whole")))
        for name, label, value in (("low", "at least", chosen.low), ("high", "at most", chosen.high))
    ]
    reset = el("a", "As it was", href=f"whatif?{urlencode({'column': one.column})}", class_="button second")
    parts += [el("div", sliders, class_="sliders"), el("button", "Count", type="submit"), " ", reset]
    facts = orjson.dumps({"edges": edges}).decode()
    return el("form", parts, id="whatif", action="whatif", method="get", data_facts=facts)


def _slider(name: str, label: str, value: float | None, edges: Sequence[float], whole: bool) -> Html:
    """A range over the histogram, in thousandths of its width, and the number itself."""
    at = place(edges, value) if value is not None else float(name == "high")
    return el(
        "div",
        el("label", label, for_=f"{name}-number"),
        el(
            "input",
            type="number",
            step="any",
            name=name,
            id=f"{name}-number",
            value="" if value is None else f"{value:.12g}",
            placeholder="no limit",
        ),
        el(
            "input",
            type="range",
            id=f"{name}-range",
            min=0,
            max=1000,
            value=round(at * 1000),
            aria_label=f"{label}, slider",
            aria_valuetext="no limit" if value is None else number(value),
            data_for=f"{name}-number",
            data_whole="1" if whole else "",
        ),
        class_="slider",
    )


def picture(found: Mapping[str, Any], chosen: Limits, now: Limits) -> Html:
    """Bars, those that are outside in another colour, with lines where the limits are and where they were."""
    counts, edges = found["counts"], found["edges"]
    step, tallest = WIDTH / len(counts), max(counts) or 1
    bars = []
    for index, rows in enumerate(counts):
        height = max((BASE - 10) * rows / tallest, 1.0 if rows else 0.0)
        low, high = edges[index], edges[index + 1]
        outside = (chosen.low is not None and high <= chosen.low) or (chosen.high is not None and low > chosen.high)
        bars.append(
            el(
                "rect",
                el("title", f"{number(low)} to {number(high)}: {rows:,}"),
                x=f"{index * step:.2f}",
                y=f"{BASE - height:.2f}",
                width=f"{max(step - 1, 0.5):.2f}",
                height=f"{height:.2f}",
                class_="out" if outside else None,
            )
        )
    lines = [_line(edges, value, "was", "") for value in (now.low, now.high) if value is not None]
    lines += [_line(edges, value, "limit", name) for name, value in (("low", chosen.low), ("high", chosen.high))]
    ends = el("div", el("span", number(edges[0])), el("span", number(edges[-1])), class_="ends n")
    label = f"{sum(counts):,} scores from {number(edges[0])} to {number(edges[-1])}"
    drawn = el("svg", bars, lines, viewBox=f"0 0 {WIDTH} {BASE}", role="img", aria_label=label)
    return Html(drawn + ends)


def _line(edges: Sequence[float], value: float | None, kind: str, name: str) -> Html:
    at = f"{place(edges, value) * WIDTH:.1f}" if value is not None else "-10"
    return el("line", x1=at, x2=at, y1=4, y2=BASE, class_=kind, id=f"{name}-line" if name else None)


def place(edges: Sequence[float], value: float) -> float:
    """How far along the histogram a number lies, from 0 to 1."""
    for index in range(len(edges) - 1):
        if value <= edges[index + 1]:
            inside = max(value - edges[index], 0) / ((edges[index + 1] - edges[index]) or 1)
            return (index + inside) / (len(edges) - 1)
    return 1.0


def told(judged: Judged, answer: Answer, chosen: Limits) -> Html:
    """The counts, as they are and as they would be."""
    tiles = [
        _tile("rows kept", *answer.kept, answer.rows),
        _tile("dropped by this filter", *answer.dropped, answer.rows),
        _tile("characters kept", *answer.chars, 0),
    ]
    parts = [el("div", tiles, class_="tiles"), el("p", _changes(answer)), _look(judged, chosen, answer)]
    if answer.languages:
        rows: list[list[object]] = [[name, f"{was:,}", f"{then:,}"] for name, was, then in answer.languages]
        parts.append(table(["language", "in the run", "with these limits"], rows, frozenset((1, 2))))
    return safe(parts)


def _tile(what: str, now: int, then: int, of: int) -> Html:
    share = f" ({then / of:.1%})" if of else ""
    change = f"in the run {now:,}" if then != now else "as in the run"
    return el("div", el("b", f"{then:,}"), what, share, el("br"), el("span", change, class_="quiet"), class_="tile")


def _changes(answer: Answer) -> str:
    if not answer.back and not answer.gone and not answer.unknown:
        return "No row would change."
    told = [f"{counted(answer.back, 'row')} would come back"] if answer.back else []
    told += [f"{answer.gone:,} would no longer be kept"] if answer.gone else []
    if answer.unknown:
        told += [f"of {answer.unknown:,} it is not known, because some stage has not seen them"]
    return ", ".join(told) + "."


def _look(judged: Judged, chosen: Limits, answer: Answer) -> Html:
    """A way to the rows that would or may come back: those that the filter has dropped, between the old limit and the
    new one."""
    if not answer.back and not answer.unknown:
        return Html("")
    query = Query("dropped", stage=judged.filter.stage, score=SCORE, least=chosen.low, most=chosen.high)
    return el("p", el("a", "Look at the rows it has dropped within these limits", href=f"rows?{query.address()}"))
