"""Cleans up the text around removed markup: no space before a full stop, no empty brackets, no blank lines in a row.

Converters of LaTeX and wikitext put `GAP` where they remove something that was part of a sentence.
"""

from __future__ import annotations

import re

GAP = "\x01"
"""Marks a place where markup was removed."""

_GAPS = re.compile(r"\x01(?:[ \t]*\x01)+")
_SPACES = re.compile("  +")
_LINE_ENDS = re.compile(" +\n")
_LINE_STARTS = re.compile("\n +")
_BLANKS = re.compile("\n\n\n+")
_OPEN, _CLOSE = ("(", "（", "["), (")", "）", "]")


def close_gaps(text: str) -> str:
    """The text without gaps, and without the spaces, commas and brackets that belonged to what was removed."""
    if GAP in text:
        text = _remove_gaps(_GAPS.sub(GAP, text))
    text = _SPACES.sub(" ", text)
    return _BLANKS.sub("\n\n", _LINE_STARTS.sub("\n", _LINE_ENDS.sub("\n", text))).strip()


def _remove_gaps(text: str) -> str:
    first, *rest = text.split(GAP)
    pieces = [first]
    for piece in rest:
        before, after, unspaced = pieces[-1], piece, piece.lstrip(" ")
        bare_before, bare_after = before.rstrip(" ,;:"), piece.lstrip(" ,;:")
        if bare_before.endswith(_OPEN) and bare_after.startswith(_CLOSE):  # nothing is left in the brackets
            before, after = bare_before[:-1].rstrip(" "), bare_after[1:]
        elif bare_before.endswith(_OPEN):
            before, after = bare_before, bare_after
        elif unspaced.startswith(_CLOSE):
            before, after = bare_before, unspaced
        elif not unspaced or unspaced[0] in ".,;:!?\n":
            before = before.rstrip(" ")
            after = unspaced[1:] if unspaced[:1] == "." == before[-1:] else unspaced  # not two full stops
        elif before.endswith(" "):
            after = unspaced
        pieces[-1] = before
        if after:
            pieces.append(after)
    return "".join(pieces)
