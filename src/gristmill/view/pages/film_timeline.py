"""The clips of a film on a time line: what was kept, what was dropped and by which stage, and which one is shown."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.view.data.film_rows import FilmClip
from gristmill.view.data.query import RowQuery
from gristmill.view.pages.html_elements import SafeHtml, count_noun, element

WIDTH, HEIGHT, MARGIN = 1000.0, 40.0, 6.0
_LEAST = 2.0


def film_timeline(clips: Sequence[FilmClip], shown: tuple[float, float] | None) -> SafeHtml:
    """Each clip is a link to its row. Clips that overlap lie over each other, the dropped ones below the others."""
    if len(clips) < 2:
        return SafeHtml("")
    end = max(clip.end for clip in clips) or 1.0
    bars = [_bar(clip, end, shown) for clip in sorted(clips, key=lambda clip: clip.fate != "dropped")]
    label = f"{count_noun(len(clips), 'clip')} of this film in the order of time"
    drawn = element("svg", bars, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="group", aria_label=label, class_="film")
    ends = element("div", element("span", "0:00"), element("span", clock(end)), class_="ends")
    dropped = sum(clip.fate == "dropped" for clip in clips)
    kept = f"{count_noun(len(clips), 'clip')}" + (f", {dropped:,} of them dropped" if dropped else "")
    return element("section", element("h2", "Clips of this film ", element("span", kept, class_="quiet")), drawn, ends)


def _bar(clip: FilmClip, end: float, shown: tuple[float, float] | None) -> SafeHtml:
    left, width = clip.start / end * WIDTH, max((clip.end - clip.start) / end * WIDTH - 1, _LEAST)
    here = shown == (clip.start, clip.end)
    text = f"{clock(clip.start)} to {clock(clip.end)}, {clip.fate}" + (f" by {clip.dropped_by}" * bool(clip.dropped_by))
    top = 0.0 if here else MARGIN
    bar = element(
        "rect", element("title", text), x=f"{left:.2f}", y=f"{top:g}", width=f"{width:.2f}",
        height=f"{HEIGHT - 2 * top:g}", class_=f"{clip.fate}{' here' if here else ''}",
    )  # fmt: skip
    address = RowQuery(clip.fate).address(file=clip.source, at=clip.position)
    return element("a", bar, href=f"row?{address}", aria_label=text, aria_current="true" if here else None)


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
