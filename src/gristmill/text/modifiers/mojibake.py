"""Mojibake: lines of text as ftfy repairs them, without asking it about each.

ftfy looks for mojibake with one large expression. Python tries it character by character; Arrow's engine (RE2) reads
many lines at once, a hundred times as fast. So lines that cannot be mojibake are found there, before and after each
repair, and ftfy is asked about the others. What that engine matches may be more than ftfy's own expression does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import require

REPAIRED_CHARACTERS = r"&\x00-\x08\x0b\x0e-\x1f\x7f-\x9f" + "\u206a-\u206f\ufeff\ufff9-\ufffc"
"""Entities, controls and escapes: what ftfy repairs besides mojibake."""

SUSPECT_PATTERN = rf"[{REPAIRED_CHARACTERS}ŒœÃÂØÙ]|[^\x00-\x7f][^\x00-\x7f]"
"""In all that ftfy takes for mojibake there are two neighbours outside ASCII, or one of these letters."""

_REGEX_PART = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.|\s+|#[^\n]*|.", re.DOTALL)
_WIDER_REGEX_PART = {r"\s": r"(?:.|\n)", r"\w": r"[^\x00-/:-@\[-^`{-\x7f]", ".": r"(?:.|\n)"}
_MAX_REPAIR_PASSES = 8


def repair_texts(texts: Sequence[str], config: Any) -> list[str]:
    """What `ftfy.fix_text` gives for each text, if `config` changes nothing in good text, and explains."""
    most = config.max_decode_length
    line = re.compile(rf"[^\n]{{0,{most - 1}}}\n|[^\n]{{1,{most}}}")  # ftfy repairs line by line too
    documents = [line.findall(text) for text in texts]
    suspects = [(lines, *found) for lines in documents for found in _suspect_lines(lines, config.unescape_html)]
    fixed = _repair_lines([lines[place] for lines, place, _ in suspects], [html for *_, html in suspects], config)
    for (lines, place, _), new in zip(suspects, fixed, strict=True):
        lines[place] = new
    return ["".join(lines) for lines in documents]


def _suspect_lines(lines: Sequence[str], unescape: str | bool) -> Iterator[tuple[int, bool]]:
    """The places of lines that ftfy might change, and whether it replaces entities there: not in HTML, if "auto"."""
    suspect, html = re.compile(SUSPECT_PATTERN), bool(unescape)
    for place, line in enumerate(lines):
        html = html and not (unescape == "auto" and "<" in line)
        if suspect.search(line):
            yield place, html


def _repair_lines(lines: Sequence[str], unescape: Sequence[bool], config: Any) -> list[str]:
    """Each line as ftfy gives it. Its rounds are done for all lines at once; it does what these leave undone itself."""
    ftfy = require("ftfy", "text", "UnicodeReformatter")
    unescaped = require("ftfy.fixes", "text", "UnicodeReformatter").unescape_html
    pairs = zip(lines, unescape, strict=True)
    new = [unescaped(line) if html and "&" in line else line for line, html in pairs]
    for _ in range(_MAX_REPAIR_PASSES):
        changed = False
        for place in _mojibake_candidates(new):
            before, new[place] = new[place], _repair_once(new[place], config)
            changed = changed or new[place] != before
        if not changed:
            break
    for place, html in enumerate(unescape):
        if _needs_full_repair(new[place], html and unescaped):
            new[place] = ftfy.fix_text(lines[place], config._replace(unescape_html=html))
    return new


def _needs_full_repair(line: str, unescaped: Any) -> bool:
    if not re.search(f"[{REPAIRED_CHARACTERS}]", line):
        return False
    return bool(re.search(f"[{REPAIRED_CHARACTERS[1:]}]", line)) or bool(unescaped and unescaped(line) != line)


def _repair_once(text: str, config: Any) -> str:
    """One step of `ftfy.fix_encoding`; all of them, if this ftfy has no such function."""
    ftfy = require("ftfy", "text", "UnicodeReformatter")
    step = getattr(ftfy, "_fix_encoding_one_step_and_explain", ftfy.fix_encoding_and_explain)
    found: str = step(text, config).text
    return found


def _mojibake_candidates(lines: Sequence[str]) -> Iterator[int]:
    """The places of lines that may hold mojibake."""
    found = pc.match_substring_regex(make_array(list(lines), pa.string()), _mojibake_regex())
    return iter(pc.indices_nonzero(found).to_pylist())


@cache
def _mojibake_regex() -> str:
    """An expression for RE2 that matches all that ftfy's does."""
    pattern: str = require("ftfy.badness", "text", "UnicodeReformatter").BADNESS_RE.pattern
    parts = (part for part in _REGEX_PART.findall(pattern) if not part.isspace() and not part.startswith("#"))
    return "".join(_WIDER_REGEX_PART.get(part, part) for part in parts)
