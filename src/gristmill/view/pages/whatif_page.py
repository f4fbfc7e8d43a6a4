"""The what-if page: a histogram of a filter's scores, its limits as sliders, and the rows that would be kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

import orjson

from gristmill.core.records.rejected_rows import SCORE
from gristmill.core.result import count_noun
from gristmill.report.drop_sentence import rule_in_words
from gristmill.view.data.query import RowQuery
from gristmill.view.data.whatif import JudgedRows, ScoredFilter, ScoreLimits, WhatIfAnswer
from gristmill.view.pages.cell_values import number
from gristmill.view.pages.html_elements import SafeHtml, element, to_html
from gristmill.view.pages.page_frame import html_table

WIDTH, BASE = 640, 160


def whatif_page(filters: Sequence[ScoredFilter], judged: JudgedRows | None, chosen: ScoreLimits) -> SafeHtml:
    several = element("code", "gristmill whatif RUN --set FILTER.PARAMETER=VALUE --set ...")
    intro = element(
        "p",
        "Move a limit to see how many rows would be kept. Counts come from the recorded scores. For limits of several "
        "filters at once: ",
        several,
    )
    if judged is None:
        known = (
            "The scores of this filter are no numbers: they have no limits to move."
            if filters
            else "No scores have been recorded yet."
        )
        return SafeHtml(element("h2", "What if") + _filters(filters, None) + element("p", known, class_="quiet"))
    answer = judged.ask(chosen.low, chosen.high)
    return SafeHtml(
        element("h2", "What if")
        + intro
        + _filters(filters, judged.filter)
        + (element("p", f"Counts cover only the first {answer.rows:,} rows.") if judged.partial else "")
        + element(
            "div",
            _sliders(judged, chosen),
            element("div", whatif_counts(judged, answer, chosen), id="counts"),
            class_="card",
        )
    )


def _filters(filters: Sequence[ScoredFilter], current: ScoredFilter | None) -> SafeHtml:
    """A link for each filter, and a list of links for the rules of one that has several."""
    parts = []
    for _, own in groupby(filters, lambda one: (one.stage, one.label)):
        several = list(own)
        if several[0].rule:
            name = several[0].name
            rules = [element("li", _link(one, rule_in_words(one.rule), current)) for one in several]
            parts.append(element("li", element("b", name), element("ul", rules, class_="filters"), class_="whole"))
        else:
            parts.append(element("li", _link(several[0], several[0].title, current)))
    return element("nav", element("ul", parts, class_="filters"), aria_label="Filters")


def _link(one: ScoredFilter, name: str, current: ScoredFilter | None) -> SafeHtml:
    return element("a", name, href=f"whatif?{urlencode({'column': one.column})}", aria_current=_here(one, current))


def _here(one: ScoredFilter, current: ScoredFilter | None) -> str | None:
    return "page" if one == current else None


def _sliders(judged: JudgedRows, chosen: ScoreLimits) -> SafeHtml:
    one, found = judged.filter, judged.histogram
    edges = found["edges"]
    parts: list[object] = [
        element("input", type="hidden", name="column", value=one.column),
        element("h3", f"{one.title} ", element("span", one.threshold, class_="quiet")),
        histogram_svg(found, chosen, judged.limits_in_run),
    ]
    sliders = [
        _slider(name, label, value, edges, bool(found.get("whole")))
        for name, label, value in (("low", "at least", chosen.low), ("high", "at most", chosen.high))
    ]
    reset = element("a", "Reset", href=f"whatif?{urlencode({'column': one.column})}", class_="button second")
    parts += [element("div", sliders, class_="sliders"), element("button", "Count", type="submit"), " ", reset]
    facts = orjson.dumps({"edges": edges}).decode()
    return element("form", parts, id="whatif", action="whatif", method="get", data_facts=facts)


def _slider(name: str, label: str, value: float | None, edges: Sequence[float], whole: bool) -> SafeHtml:
    """A range over the histogram, in thousandths of its width, and the number itself."""
    at = position_on_axis(edges, value) if value is not None else float(name == "high")
    return element(
        "div",
        element("label", label, for_=f"{name}-number"),
        element(
            "input",
            type="number",
            step="any",
            name=name,
            id=f"{name}-number",
            value="" if value is None else f"{value:.12g}",
            placeholder="no limit",
        ),
        element(
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


def histogram_svg(found: Mapping[str, Any], chosen: ScoreLimits, now: ScoreLimits) -> SafeHtml:
    """Bars, those that are outside in another colour, with lines where the limits are and where they were."""
    counts, edges = found["counts"], found["edges"]
    step, tallest = WIDTH / len(counts), max(counts) or 1
    bars = []
    for index, rows in enumerate(counts):
        height = max((BASE - 10) * rows / tallest, 1.0 if rows else 0.0)
        low, high = edges[index], edges[index + 1]
        outside = (chosen.low is not None and high <= chosen.low) or (chosen.high is not None and low > chosen.high)
        bars.append(
            element(
                "rect",
                element("title", f"{number(low)} to {number(high)}: {rows:,}"),
                x=f"{index * step:.2f}",
                y=f"{BASE - height:.2f}",
                width=f"{max(step - 1, 0.5):.2f}",
                height=f"{height:.2f}",
                class_="out" if outside else None,
            )
        )
    lines = [_line(edges, value, "was", "") for value in (now.low, now.high) if value is not None]
    lines += [_line(edges, value, "limit", name) for name, value in (("low", chosen.low), ("high", chosen.high))]
    ends = element("div", element("span", number(edges[0])), element("span", number(edges[-1])), class_="ends n")
    label = f"{sum(counts):,} scores from {number(edges[0])} to {number(edges[-1])}"
    drawn = element("svg", bars, lines, viewBox=f"0 0 {WIDTH} {BASE}", role="img", aria_label=label)
    return SafeHtml(drawn + ends)


def _line(edges: Sequence[float], value: float | None, kind: str, name: str) -> SafeHtml:
    at = f"{position_on_axis(edges, value) * WIDTH:.1f}" if value is not None else "-10"
    return element("line", x1=at, x2=at, y1=4, y2=BASE, class_=kind, id=f"{name}-line" if name else None)


def position_on_axis(edges: Sequence[float], value: float) -> float:
    """How far along the histogram a number lies, from 0 to 1."""
    for index in range(len(edges) - 1):
        if value <= edges[index + 1]:
            inside = max(value - edges[index], 0) / ((edges[index + 1] - edges[index]) or 1)
            return (index + inside) / (len(edges) - 1)
    return 1.0


def whatif_counts(judged: JudgedRows, answer: WhatIfAnswer, chosen: ScoreLimits) -> SafeHtml:
    """The counts, as they are and as they would be."""
    tiles = [
        _tile("rows kept", *answer.kept, answer.rows),
        _tile(f"dropped by this {'rule' if judged.filter.rule else 'filter'}", *answer.dropped, answer.rows),
        _tile("characters kept", *answer.chars, 0),
    ]
    parts = [
        element("div", tiles, class_="tiles"),
        element("p", _changes(answer)),
        _link_to_rows(judged, chosen, answer),
    ]
    if answer.languages:
        rows: list[list[object]] = [[name, f"{was:,}", f"{then:,}"] for name, was, then in answer.languages]
        parts.append(html_table(["language", "in the run", "with these limits"], rows, frozenset((1, 2))))
    return to_html(parts)


def _tile(what: str, now: int, then: int, of: int) -> SafeHtml:
    share = f" ({then / of:.1%})" if of else ""
    change = f"in the run {now:,}" if then != now else "as in the run"
    return element(
        "div",
        element("b", f"{then:,}"),
        what,
        share,
        element("br"),
        element("span", change, class_="quiet"),
        class_="tile",
    )


def _changes(answer: WhatIfAnswer) -> str:
    if not answer.rows_gained and not answer.rows_lost and not answer.unknown:
        return "No row would change."
    sentences = [f"{count_noun(answer.rows_gained, 'row')} would also be kept"] if answer.rows_gained else []
    sentences += [f"{answer.rows_lost:,} would no longer be kept"] if answer.rows_lost else []
    if answer.unknown:
        sentences += [f"{answer.unknown:,} are unknown because a later stage has not scored them"]
    return ", ".join(sentences) + "."


def _link_to_rows(judged: JudgedRows, chosen: ScoreLimits, answer: WhatIfAnswer) -> SafeHtml:
    """A way to the rows that would or may come back: those that the filter has dropped, between the old limit and the
    new one."""
    if not answer.rows_gained and not answer.unknown:
        return SafeHtml("")
    one = judged.filter
    if one.is_inverted:  # rows that it has dropped lie within the limits
        return SafeHtml("")
    query = RowQuery("dropped", stage=one.stage, rule=one.rule, score=SCORE, least=chosen.low, most=chosen.high)
    return element("p", element("a", "Show the dropped rows within these limits", href=f"rows?{query.address()}"))
