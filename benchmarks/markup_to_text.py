"""Wikitext and LaTeX to text: megabytes and pages for each second of CPU, beside mwparserfromhell.

    python benchmarks/run.py --sources

Pages are made up of what articles hold, about as much of each. mwparserfromhell only strips (`strip_code`): to leave
out what cleaners leave out, references and tables, would take it longer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

PARTS = (
    (
        "The '''{w}''' is a [[{w}]] of the [[{w} ({w})|{w}]] in {{{{lang|fr|{w}}}}}, and {s}<ref>{{{{cite web|url=http://{w}.org"
        "|title={w} {w}|date=2020}}}}</ref> {s}\n\n"
    ),
    "== {w} ==\n[[File:{w}.jpg|thumb|A [[{w}]] and {w}]] {s} {s} {s}<ref name={w}/>\n",
    "{{{{Infobox\n| name = {w}\n| image = {w}.jpg\n| text = {{{{small|{s}}}}}\n}}}}\n",
    "* [[{w}]] – {s}\n* ''{w}'' {s}\n",
    '{{| class="wikitable"\n! {w} !! {w}\n|-\n| {w} || [[{w}]]\n|}}\n',
    "{s} {s} {s} {s} {s}\n\n",
)
SECTION = (
    "\\section{{{w}}} {s}~\\cite{{{w}}}. {s} \\emph{{{w}}}, $x_{{{w}}}^2$. % {s}\n{s} \\foo{{{w}}}{{{w}}}.\n"
    "\\begin{{equation}}\\label{{{w}}} a = \\R{{3}} \\end{{equation}}\n{s}\n\n"
)


def _words(lots: random.Random) -> Callable[[str], str]:
    known = ["".join(lots.choices("aeiourstlnmdk", k=lots.randint(2, 10))) for _ in range(2000)]

    def fill(pattern: str) -> str:
        return pattern.format(w=lots.choice(known), s=" ".join(lots.choices(known, k=lots.randint(8, 25))) + ".")

    return fill


def wiki_pages(count: int) -> list[str]:
    lots = random.Random(7)
    fill = _words(lots)
    return ["".join(fill(lots.choice(PARTS)) for _ in range(60)) for _ in range(count)]


def papers(count: int) -> list[str]:
    lots = random.Random(7)
    fill = _words(lots)
    head = "\\documentclass{article}\\newcommand{\\R}[1]{\\mathbb{R}^{#1}}\\newcommand{\\foo}[2]{#2 and #1}"
    head += "\\begin{document}\n"
    return [head + "".join(fill(SECTION) for _ in range(60)) + "\\end{document}" for _ in range(count)]


def measured(name: str, work: Callable[[str], Any], texts: list[str]) -> dict[str, Any]:
    work(texts[0])
    start = time.process_time()
    for text in texts:
        work(text)
    seconds = time.process_time() - start
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    found = {f"{name}_mb_per_cpu_s": megabytes / seconds, f"{name}_pages": len(texts) / seconds}
    return {key: {"median": round(value, 2)} for key, value in found.items()}


def run(count: int = 400) -> dict[str, Any]:
    import mwparserfromhell

    from gristmill.download import LatexCleaner, WikitextCleaner

    pages = wiki_pages(count)
    return {
        **measured("wikitext", WikitextCleaner().clean, pages),
        **measured("mwparserfromhell", lambda page: mwparserfromhell.parse(page).strip_code(), pages[: count // 4]),
        **measured("latex", LatexCleaner().clean, papers(count)),
    }
