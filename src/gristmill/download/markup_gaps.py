"""Text with holes in it, where markup was left out, made whole: no blank before a full stop, no empty brackets."""

from __future__ import annotations

import re

GAP = "\x01"
"""Stands for what was left out."""

_GAPS = re.compile(r"\x01(?:[ \t]*\x01)+")
_SPACES = re.compile("  +")
_LINE_ENDS = re.compile(" +\n")
_LINE_STARTS = re.compile("\n +")
_BLANKS = re.compile("\n\n\n+")
_OPEN, _SHUT = ("(", "（", "["), (")", "）", "]")


def close_gaps(text: str) -> str:
    """Without holes, and without the blanks, commas and brackets that were for what was there."""
    if GAP in text:
        text = _remove_gaps(_GAPS.sub(GAP, text))
    text = _SPACES.sub(" ", text)
    return _BLANKS.sub("\n\n", _LINE_STARTS.sub("\n", _LINE_ENDS.sub("\n", text))).strip()


def _remove_gaps(text: str) -> str:
    first, *rest = text.split(GAP)
    pieces = [first]
    for piece in rest:
        part, left, right = piece, pieces[-1], piece.lstrip(" ")
        bare, inner = left.rstrip(" ,;:"), part.lstrip(" ,;:")
        if bare.endswith(_OPEN) and inner.startswith(_SHUT):
            left, part = bare[:-1].rstrip(" "), inner[1:]
        elif bare.endswith(_OPEN):
            left, part = bare, inner
        elif right.startswith(_SHUT):
            left, part = bare, right
        elif not right or right[0] in ".,;:!?\n":
            left = left.rstrip(" ")
            part = right[1:] if right[:1] == "." == left[-1:] else right
        elif left.endswith(" "):
            part = right
        pieces[-1] = left
        if part:
            pieces.append(part)
    return "".join(pieces)
