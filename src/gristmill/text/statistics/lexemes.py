"""Lexemes: words and punctuation marks, each on its own, nearly as spaCy separates them for English.

The rules of Gopher, C4 and FineWeb are applied to them, as in datatrove. A piece of text between white space is split:

    1.  opening marks are cut off at its beginning and closing ones at its end, one after the other: quotes, brackets,
        commas, symbols, ellipses, a full stop after a small letter, the 's of a genitive
    2.  what is left is one lexeme if it is an address of the web
    3.  otherwise it is split between letters at hyphens, commas, slashes and colons, at ellipses, at a full stop
        between a small letter and a capital, and before n't, 'll and other contractions

In text of scripts without spaces, each word of `split_words` is a lexeme. Gives up the exceptions of spaCy but the most
frequent ones: it also knows times of day, emoticons and rare abbreviations. `_kernels` does the same in C.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

from gristmill.text.statistics.word_segmentation import has_unspaced, split_words

QUOTES = frozenset("'\"”“`‘´’‚„»«「」『』（）〔〕【】《》〈〉")
MARKS = QUOTES | frozenset("…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪–—\xa6\xa9\xae\xb0")
"""Cut off at both ends."""

OPENING = MARKS | frozenset("$£€¥฿₽₴§%=")
"""Cut off at the beginning."""

AFTER_DIGIT = frozenset("$£€¥฿₽₴+%")
"""Cut off at the end after a digit."""

BEFORE_STOP = MARKS | frozenset("%²-+")
"""What comes before a full stop that ends a sentence, besides digits and small letters."""

HYPHENS = frozenset("-–—~")
_ICONS = ((0x2300, 0x2307), (0x230C, 0x23FF), (0x2500, 0x25F7), (0x2600, 0x2767), (0x2794, 0x27BF), (0x2800, 0x28FF),
          (0x1F000, 0x1FAFF))  # fmt: skip
_WHOLE = frozenset([
    *("Mr.", "Mrs.", "Ms.", "Dr.", "St.", "Jr.", "Inc.", "Ltd.", "Co.", "co.", "Corp.", "Prof.", "Gen.", "Rev."),
    *("Gov.", "Sen.", "Rep.", "vs.", "e.g.", "i.e.", "E.g.", "I.e.", "E.G.", "I.E.", "a.m.", "p.m.", "Ph.D."),
    *("D.C.", "Jan.", "Feb.", "Mar.", "Apr.", "Jun.", "Jul.", "Aug.", "Sep.", "Sept.", "Oct.", "Nov.", "Dec."),
    *("and/or", "C++"),
])  # fmt: skip
_LONGEST_WHOLE = max(map(len, _WHOLE))
_CONTRACTIONS = frozenset(("ll", "re", "ve", "d", "m"))
TERMINAL_MARKS = tuple(
    ".!?\u0589\u061d\u061e\u061f\u06d4\u0700\u0701\u0702\u07f9\u0964\u0965\u104a\u104b\u1362\u1367\u1368\u166e\u17d4"
    "\u17d5\u1803\u1809\u203c\u203d\u2047\u2048\u2049\u3002\ufe52\ufe56\ufe57\uff01\uff0e\uff1f\uff61"
)
"""What a sentence ends with, by the property Sentence_Terminal of Unicode."""

_ENDS = re.compile(f"[{re.escape(''.join(TERMINAL_MARKS))}]")
_SYMBOLS = frozenset(
    "\xab\xb4\xbb\u2013\u2014\u2019\u201c\u201d\u201e\u2026\u2236\u2501\u25ba\u3001\u3008\u3009\u300a\u300b\u300c\u300d"
    "\u3010\u3011\uff05\uff08\uff09\uff0c\uff1a\uff1b\uff5e"
).union(TERMINAL_MARKS, string.punctuation, map(chr, (*range(10), *range(11, 32), *range(127, 160))))
_NOT_PUNCTUATION = frozenset("$+<=>^`|~")
_TWO_WORDS = {"cannot": 3, "Cannot": 3, "id": 1, "Id": 1}


def lexemes(text: str, language: str | None = None) -> list[str]:
    """The lexemes of a text. `language` ("ja", "zh") decides how ideographs are split, as in `split_words`."""
    if has_unspaced(text):
        text = " ".join(split_words(text, language))
    found: list[str] = []
    for piece in text.split():
        if piece.isalpha() and len(piece) > 6:
            found.append(piece)
        else:
            found += _split(piece)
    return found


def found_lexemes(text: str, wanted: frozenset[str], language: str | None = None) -> set[str]:
    """Those of some lexemes that a text has."""
    if has_unspaced(text):
        return set(wanted.intersection(lexemes(text, language)))
    found: set[str] = set()
    any_of = re.compile("|".join(map(re.escape, sorted(wanted))))
    for piece in set(text.split()) if wanted else ():
        if any_of.search(piece):
            found.update(wanted.intersection(_split(piece)))
    return found


def is_word(lexeme: str) -> bool:
    """Whether a lexeme is more than punctuation."""
    return not _SYMBOLS.issuperset(lexeme)


def count_sentences(line: str) -> int:
    """The number of sentences of a line: they end with marks, and the last one with the line."""
    if has_unspaced(line):  # where lexemes have no marks
        return sum(1 for one in _ENDS.split(line) if one.strip())
    found = lexemes(line)
    count, ended = int(bool(found)), False
    for one in found:
        if one in TERMINAL_MARKS:
            ended = True
        elif ended and not _is_punctuation(one):
            count, ended = count + 1, False
    return count


def _is_punctuation(lexeme: str) -> bool:
    return _SYMBOLS.issuperset(lexeme) and _NOT_PUNCTUATION.isdisjoint(lexeme)


def _split(piece: str) -> Iterator[str]:
    start, end, after = 0, len(piece), []
    while start < end and not _is_whole(piece, start, end):
        opening = _opening(piece, start, end)
        if opening:
            yield piece[start : start + opening]
            start += opening
            if _is_whole(piece, start, end):
                break
        closing = _closing(piece, start, end)
        if closing:
            after.append(piece[end - closing : end])
            end -= closing
        if not opening and not closing:
            break
    if start < end:
        yield from _split_inside(piece[start:end])
    yield from reversed(after)


def _is_whole(piece: str, start: int, end: int) -> bool:
    """Whether it is an abbreviation that keeps its full stop."""
    if end - start == 2 and piece[end - 1] == ".":
        return "a" <= piece[start] <= "z"
    return end - start <= _LONGEST_WHOLE and piece[start:end] in _WHOLE


def _opening(piece: str, start: int, end: int) -> int:
    """The length of what is cut off at the beginning, or 0."""
    first = piece[start]
    if first == ".":
        return dots if (dots := _dots(piece, start, end)) > 1 else 0
    if first == "+":
        return int(not (start + 1 < end and _is_digit(piece[start + 1])))
    return int(first in OPENING or is_icon(first))


def _closing(piece: str, start: int, end: int) -> int:  # noqa: PLR0911  (a rule to a line)
    """The length of what is cut off at the end, or 0."""
    if start == end:
        return 0
    last, before = piece[end - 1], piece[end - 2] if end - start > 1 else ""
    if last == ".":
        dots = 1
        while end - dots > start and piece[end - dots - 1] == ".":
            dots += 1
        if dots > 1:
            return dots
        two_capitals = before.isupper() and end - start > 2 and piece[end - 3].isupper()
        return int(bool(before) and (_is_digit(before) or _is_small(before) or before in BEFORE_STOP or two_capitals))
    if last in "sS" and before and before in "'’":
        return 2 if end - start > 2 else 0
    if last == ":" and before == ")":
        return 2
    if last in AFTER_DIGIT:
        return int(bool(before) and _is_digit(before))
    return int(last in MARKS or is_icon(last))


def _split_inside(piece: str) -> Iterator[str]:
    if _is_whole(piece, 0, len(piece)) or _is_address(piece):
        yield piece
        return
    start = at = 0
    while at < len(piece):
        size = _separator(piece, at)
        if size and at:
            yield from _split_contraction(piece[start:at])
            yield piece[at : at + size]
            start = at + size
        at += max(size, 1)
    if start < len(piece):
        yield from _split_contraction(piece[start:])


def _separator(piece: str, at: int) -> int:  # noqa: PLR0911  (a rule to a line)
    """The length of what separates two lexemes, or 0."""
    one = piece[at]
    if one == "…" or is_icon(one):
        return 1
    if one == "." and (dots := _dots(piece, at, len(piece))) > 1:
        return dots
    before = piece[at - 1] if at else ""
    size = 1
    if one in HYPHENS:
        while at + size < len(piece) and piece[at + size] == one and size < 3:
            size += 1
    after = piece[at + size] if at + size < len(piece) else ""
    if not before or not after:
        return 0
    if one == ".":
        return int((_is_small(before) or before in QUOTES) and (after.isupper() or after in QUOTES))
    if one in "+-*^" and size == 1 and _is_digit(before) and (_is_digit(after) or after == "-"):
        return 1
    if one in HYPHENS or one == ",":
        is_joined = before.isalpha() or (one != "," and _is_digit(before))
        return size if is_joined and after.isalpha() else 0
    return int(one in ":<>=/" and (before.isalpha() or _is_digit(before)) and after.isalpha())


def _split_contraction(word: str) -> Iterator[str]:
    cut = _TWO_WORDS.get(word, 0)
    if not cut and len(word) > 2:
        if word[-3:-2] in ("n", "N") and word[-2] in "'’" and word[-1] in "tT":
            cut = len(word) - 3
        else:
            for size in (2, 1):
                mark = len(word) - size - 1
                if mark > 0 and word[mark] in "'’" and word[mark + 1 :].lower() in _CONTRACTIONS:
                    cut = mark
    if cut:
        yield word[:cut]
    yield word[cut:]


_SCHEME = re.compile(r"[A-Za-z]+://.")
_HOST = re.compile(r"(?:[A-Za-z0-9\x80-\U0010ffff][\w\x80-\U0010ffff-]*\.)+[a-z]{2,}(?=\Z|[/?#]|:[0-9])", re.ASCII)


def _is_address(piece: str) -> bool:
    """Whether it is a URL, with or without a scheme, or an e-mail address."""
    return _SCHEME.match(piece) is not None or _HOST.match(piece, piece.rfind("@") + 1) is not None


def _dots(piece: str, start: int, end: int) -> int:
    count = 0
    while start + count < end and piece[start + count] == ".":
        count += 1
    return count


def _is_digit(one: str) -> bool:
    return "0" <= one <= "9"


def _is_small(one: str) -> bool:
    return one.isalpha() and not one.isupper()


def is_icon(one: str) -> bool:
    return one >= "\u2300" and any(low <= ord(one) <= high for low, high in _ICONS)
