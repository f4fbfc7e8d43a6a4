"""Small SVG charts, in the colours of the page. All text in them is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

WIDTH, HEIGHT = 320, 110


def format_number(value: float) -> str:
    """A number as people read it."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def funnel_chart(stages: Sequence[Mapping[str, Any]]) -> str:
    """A bar per stage: what came in, split into kept, dropped and set aside."""
    shown = [stage for stage in stages if stage["rows_in"] or stage["rows_out"]]
    most = max((max(stage["rows_in"], stage["rows_out"]) for stage in shown), default=0)
    if not most:
        return "<p class=quiet>No rows.</p>"
    return f"<div class=funnel role=list>{''.join(_bar(stage, most) for stage in shown)}</div>"


def _bar(stage: Mapping[str, Any], most: int) -> str:
    kept, dropped, aside = stage["rows_out"], stage["dropped"], stage["quarantined"]
    parts = (("kept", min(kept, most)), ("dropped", dropped), ("aside", aside))
    bars = "".join(f'<i class={kind} style="width:{100 * rows / most:.3f}%"></i>' for kind, rows in parts if rows)
    lost = [f"{rows:,} {what}" for rows, what in ((dropped, "dropped"), (aside, "quarantined")) if rows]
    count_text = f"{kept:,}" + (f" <em>− {', '.join(lost)}</em>" if lost else "")
    return (
        f"<div class=step role=listitem><span class=name>{escape(stage['name'])}</span>"
        f"<span class=bar aria-hidden=true>{bars}</span><span class=row-text>{count_text}</span></div>"
    )


def histogram(title: str, found: Mapping[str, Any], limits: Sequence[float] = ()) -> str:
    """Bars, with a line at each limit that lies within them."""
    counts, edges = found["counts"], found["edges"]
    top, base = 8, HEIGHT - 18
    tallest = max(counts) or 1
    step = WIDTH / len(counts)
    bars = []
    for index, count in enumerate(counts):
        height = (base - top) * count / tallest
        hint = (
            f"{format_number(edges[index])} to {format_number(edges[index + 1])}: {count:,}"
            if len(edges) > len(counts)
            else ""
        )
        bars.append(
            f'<rect x="{index * step:.2f}" y="{base - height:.2f}" width="{max(step - 1, 0.5):.2f}" '
            f'height="{height:.2f}"><title>{escape(hint)}</title></rect>'
        )
    lines = [_limit(_place(edges, limit), limit, base) for limit in limits if edges[0] < limit < edges[-1]]
    ends = (
        f'<text x="0" y="{HEIGHT - 4}">{format_number(edges[0])}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">{format_number(edges[-1])}</text>'
    )
    label = f"{title}: {found['rows']:,} rows, from {format_number(found['least'])} to {format_number(found['most'])}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(bars)}{''.join(lines)}{ends}</svg>"
    )


def _place(edges: Sequence[float], value: float) -> float:
    """How far along the bins a number lies, from 0 to 1."""
    for index, (low, high) in enumerate(pairwise(edges)):
        if low <= value <= high:
            return (index + (value - low) / (high - low)) / (len(edges) - 1)
    return 1.0


def _limit(share: float, value: float, base: float) -> str:
    at = share * WIDTH
    anchor = "end" if share > 0.8 else "start"
    return (
        f'<g class="limit"><line x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{base}"/>'
        f'<text x="{at + (-3 if anchor == "end" else 3):.1f}" y="12" text-anchor="{anchor}">'
        f"{format_number(value)}</text></g>"
    )


def busy_workers_chart(points: Sequence[Mapping[str, Any]], pool: int) -> str:
    """The share of a pool's workers that were busy, over time."""
    seconds = max(point["seconds"] for point in points) or 1.0
    spots = []
    for point in points:
        workers, working = next(((found[1], found[2]) for found in point["pools"] if found[0] == pool), (0, 0))
        share = working / workers if workers else 0.0
        spots.append(f"{point['seconds'] / seconds * WIDTH:.1f},{60 - 54 * share:.1f}")
    return (
        f'<svg viewBox="0 0 {WIDTH} 76" role="img" aria-label="share of busy workers over {seconds:.0f} seconds">'
        f'<polygon points="0,60 {" ".join(spots)} {WIDTH},60"/>'
        f'<text x="0" y="73">0 s</text><text x="{WIDTH}" y="73" text-anchor="end">{seconds:.0f} s</text></svg>'
    )


def before_after_bars(before: Mapping[str, int], after: Mapping[str, int], most: int = 15) -> str:
    """Names with how many rows had each, before and after."""
    names = sorted({**before, **after}, key=lambda name: (-before.get(name, 0), name))
    largest = max(max(before.values(), default=0), max(after.values(), default=0), 1)
    lines = []
    for name in names[:most]:
        was, now = before.get(name, 0), after.get(name, 0)
        lines.append(
            f"<div class=step role=listitem><span class=name>{escape(name)}</span><span class=bar aria-hidden=true>"
            f'<i class=kept style="width:{100 * now / largest:.2f}%"></i>'
            f'<i class=dropped style="width:{100 * max(was - now, 0) / largest:.2f}%"></i></span>'
            f"<span class=row-text>{now:,} of {was:,}</span></div>"
        )
    rest = f"<p class=quiet>and {len(names) - most:,} more</p>" if len(names) > most else ""
    return f"<div class=funnel role=list>{''.join(lines)}</div>{rest}"


def rule_bars(rules: Sequence[Mapping[str, Any]], dropped: int) -> str:
    """A bar for each rule: the rows that it dropped, of all that the stage dropped."""
    lines = []
    for one in rules:
        share = "" if one["share"] is None else f" ({one['share']:.2%})"
        drop_text = f"{one['dropped']:,} dropped{share}" if one["dropped"] else "<em>none dropped</em>"
        width = 100 * one["dropped"] / dropped if dropped else 0.0
        name = f"{escape(one['words'] or one['filter'])} <small>{escape(one['limit'])}</small>"
        lines.append(
            f"<div class=step role=listitem><span class=name>{name}</span>"
            f'<span class=bar aria-hidden=true><i class=dropped style="width:{width:.3f}%"></i></span>'
            f"<span class=row-text>{drop_text}</span></div>"
        )
    return f"<div class=funnel role=list>{''.join(lines)}</div>"
