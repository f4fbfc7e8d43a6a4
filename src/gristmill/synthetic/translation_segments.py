"""Cuts a text into segments to translate, and puts their translations back in place.

Code blocks, blank lines, indentation and lines without a letter are never sent. Within a segment, what must stay as it
is (URLs, addresses, inline code, HTML tags, `{variables}`, LaTeX) is replaced by marks such as `⟦0⟧`, which a
translation must contain, each once. So whatever a model does, code and placeholders come back byte by byte, or the
translation is not taken.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

_FENCE = re.compile(r"^\s*(```|~~~)")
_KEPT = re.compile(
    r"`[^`\n]+`|https?://[^\s<>\"')\]]+|[\w.+-]+@[\w-]+\.[\w.]+|</?[A-Za-z][^<>\n]{0,200}>"
    r"|\{\{[^{}\n]*\}\}|\{\w+\}|%\(?\w*\)?[sd]"
    r"|\$[^$\n]{1,200}\$|\\\w+\{[^{}\n]*\}"
)
_MARK = re.compile(r"⟦\s*(\d+)\s*⟧")
_PREFIX = re.compile(r"^(\s*(?:[-*+>#]+\s+|\d+[.)]\s+)*)")
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])[\"')\]]*\s+(?=[\"'(\[]?[^\W\d_a-z])|(?<=[。！？])(?=\S)")
_SCRIPTS: dict[str, str | tuple[str, ...]] = {
    "ar": "ARABIC", "bg": "CYRILLIC", "bn": "BENGALI", "el": "GREEK", "fa": "ARABIC", "he": "HEBREW",
    "hi": "DEVANAGARI", "ja": ("HIRAGANA", "KATAKANA", "CJK"), "ka": "GEORGIAN", "ko": "HANGUL", "ru": "CYRILLIC",
    "ta": "TAMIL", "te": "TELUGU", "th": "THAI", "uk": "CYRILLIC", "zh": "CJK",
}  # fmt: skip
"""Languages that are known by their script, which is the first word of the names of its letters."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a text to translate, with marks for what stays as it is."""

    text: str
    kept: tuple[str, ...] = ()

    def restored(self, translated: str) -> str | None:
        """A translation with what was kept; None if a mark is missing, new, or there twice."""
        found = [int(number) for number in _MARK.findall(translated)]
        if sorted(found) != list(range(len(self.kept))):
            return None
        return _MARK.sub(lambda mark: self.kept[int(mark[1])], translated)


@dataclass(slots=True)
class SegmentedText:
    """Segments, and the parts between them."""

    segments: list[Segment] = field(default_factory=list)
    _parts: list[str | int] = field(default_factory=list)
    """Text as it is, or the number of a segment."""

    def joined(self, translations: Sequence[str]) -> str:
        """The text with translations in place of its segments."""
        return "".join(translations[part] if isinstance(part, int) else part for part in self._parts)


def segmented(text: str, mode: str = "coarse", min_chars: int = 0) -> SegmentedText:
    """The segments of a text: its lines (`coarse`), or the sentences of its lines (`fine`).

    A line that is followed by one shorter than `min_chars`, or is shorter itself, is one segment with it.
    """
    made, in_code = SegmentedText(), False
    pending = ""
    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line) is not None
        if fence or in_code or not _has_letters(line):
            _add_block(made, pending, mode)
            pending = ""
            made._parts.append(line)
            in_code = in_code != fence
        elif pending and (len(pending.strip()) < min_chars or len(line.strip()) < min_chars):
            pending += line
        else:
            _add_block(made, pending, mode)
            pending = line
    _add_block(made, pending, mode)
    return made


def _add_block(made: SegmentedText, block: str, mode: str) -> None:
    if not block:
        return
    start = _PREFIX.match(block)
    prefix = start[1] if start else ""
    body = block[len(prefix) :]
    end = body[len(body.rstrip()) :]
    if prefix:
        made._parts.append(prefix)
    pieces = _sentences(body.rstrip()) if mode == "fine" else [body.rstrip()]
    for piece in pieces:
        if not _has_letters(piece):
            made._parts.append(piece)
            continue
        bare = piece.rstrip()
        made._parts.append(len(made.segments))
        made.segments.append(_protected(bare))
        if piece != bare:
            made._parts.append(piece[len(bare) :])
    if end:
        made._parts.append(end)


def _sentences(text: str) -> list[str]:
    """The sentences of a text, each with the space after it."""
    ends = [found.end() for found in _SENTENCE_END.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if start < end]


def _protected(text: str) -> Segment:
    kept: list[str] = []

    def mark(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"⟦{len(kept) - 1}⟧"

    if "⟦" in text:  # the text has such marks of its own
        return Segment(text)
    return Segment(_KEPT.sub(mark, text), tuple(kept))


def _has_letters(text: str) -> bool:
    return any(letter.isalpha() for letter in _KEPT.sub("", text))


def script_share(text: str, language: str) -> float | None:
    """The share of letters that are of a language's script; None if the language is not known by its script."""
    names = _SCRIPTS.get(language.lower().partition("-")[0])
    letters = [letter for letter in text if letter.isalpha()]
    if names is None or not letters:
        return None
    starts = (names,) if isinstance(names, str) else names
    return sum(unicodedata.name(letter, "").startswith(starts) for letter in letters) / len(letters)
