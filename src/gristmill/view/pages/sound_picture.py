"""A recording as a picture: its waveform, with the segments and words that a row lists below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from gristmill.view.pages.html_elements import printable

if TYPE_CHECKING:
    from gristmill.audio.sound.sound_preview import Waveform
    from gristmill.view.data.sound_marks import SoundMark

WIDTH, WAVE, LANE = 1000, 120, 34
_HEIGHT_OF_AXIS = 18
_COLOURS = ("#25704f", "#9c5312", "#1c5a86", "#7a3f8f", "#ab2c29", "#56616a")
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#56616a}.w{fill:#5d7f9c}.own{fill:#ffe58a;opacity:.55}"
    "@media(prefers-color-scheme:dark){text{fill:#a9b1b7}.w{fill:#8cb4d6}.own{fill:#6d5a10}}"
)
_CHARACTER = 6.2


def sound_picture(shape: Waveform, own: tuple[float, float] | None, marks: Mapping[str, Sequence[SoundMark]]) -> str:
    """As SVG. Its width is that of the recording, from its beginning to its end."""
    seconds = max(shape.seconds, 1e-6)
    height = WAVE + _HEIGHT_OF_AXIS + LANE * len(marks)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<style>{_STYLE}</style>",
    ]
    if own is not None:
        left, right = (min(max(edge / seconds, 0.0), 1.0) * WIDTH for edge in own)
        parts.append(f'<rect class="own" x="{left:.1f}" y="0" width="{max(right - left, 1):.1f}" height="{WAVE}"/>')
    parts += [_wave(shape), _axis(seconds)]
    for number, (name, lane) in enumerate(marks.items()):
        parts.append(_lane(name, lane, seconds, WAVE + _HEIGHT_OF_AXIS + LANE * number))
    return "".join([*parts, "</svg>"])


def _wave(shape: Waveform) -> str:
    count = len(shape.lows)
    step, middle = WIDTH / count, WAVE / 2
    loudest = max(float(abs(shape.lows).max()), float(abs(shape.highs).max()), 1e-4)
    places = [(at + 0.5) * step for at in range(count)]
    top = [f"{x:.1f},{middle - high / loudest * (middle - 2):.1f}" for x, high in zip(places, shape.highs, strict=True)]
    low = [
        f"{x:.1f},{middle - low / loudest * (middle - 2) + 0.6:.1f}" for x, low in zip(places, shape.lows, strict=True)
    ]
    return f'<polygon class="w" points="{" ".join([*top, *reversed(low)])}"/>'


def _axis(seconds: float) -> str:
    raw = seconds / 8
    step = next((nice for nice in (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600) if nice >= raw), 1800.0)
    parts, at = [], 0.0
    while at <= seconds * 0.97:
        label = f"{at:g} s" if seconds < 120 else f"{int(at) // 60}:{int(at) % 60:02}"
        parts.append(f'<text x="{at / seconds * WIDTH + 2:.1f}" y="{WAVE + 12}">{label}</text>')
        at = round(at + step, 6)
    return "".join(parts)


def _lane(name: str, marks: Sequence[SoundMark], seconds: float, top: float) -> str:
    parts = [f'<text x="2" y="{top + 11}">{escape(printable(name))}</text>']
    colours: dict[str, str] = {}
    for mark in marks:
        left, right = (min(max(edge / seconds, 0.0), 1.0) * WIDTH for edge in (mark.start, mark.end))
        is_word = name.endswith("words") or len({one.label for one in marks}) > 12
        key = "" if is_word else mark.label
        colour = colours.setdefault(key, _COLOURS[len(colours) % len(_COLOURS)])
        width = max(right - left - 0.8, 0.8)
        room = int(width / _CHARACTER)
        label = mark.label if len(mark.label) <= room else f"{mark.label[: room - 1]}…" if room > 3 else ""
        shown = f'<text x="{left + 2:.1f}" y="{top + 27}" style="fill:#fff">{escape(printable(label))}</text>'
        title = escape(printable(f"{mark.start:.2f}-{mark.end:.2f} s {mark.label}"))
        parts.append(
            f'<g><title>{title}</title><rect x="{left:.1f}" y="{top + 14}" width="{width:.1f}" height="17" rx="2" '
            f'fill="{colour}"/>{shown if label else ""}</g>'
        )
    return "".join(parts)
