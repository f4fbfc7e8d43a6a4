"""The definition of each statistic of a document, in plain Python.

`_kernels` computes the same in C, many times faster. This file is the reference that tests compare it with, and the
fallback where the extension was not built. All statistics are whole numbers; the filters in `filters/heuristics.py` and
`filters/repetition.py` compute scores from them.

    words        what `str.split` returns
    lines        split at line feeds, without blank ones
    paragraphs   split at two line feeds in a row, including empty ones
    n-grams      runs of n words; of several that are equally frequent, the first in the text is the top one
    lexemes      words and punctuation marks (`lexemes.py`)
    feed lines   split at line feeds in a row, so an empty one can only be the first or the last
    blocks       split at two or more line feeds in a row, without white space around the text
    split lines  what `str.splitlines` returns
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from gristmill.text.statistics.lexemes import TERMINAL_MARKS, is_word, lexemes
from gristmill.text.statistics.word_segmentation import has_unspaced

MAX_NGRAM_WORDS = 32
"""The longest n-grams that are counted."""

SCORED_URL = re.compile(r"https?://(?:[A-Za-z0-9$\-_@.&+/:=?#~!*(),]|%[0-9A-Fa-f]{2})+")
"""What counts as a URL in scores. `REMOVED_URL` of `modifiers/removers.py` is less strict."""

PLAIN_CHARACTERS = frozenset(string.ascii_letters + string.digits + "\n?!,.")
WHITE_SPACE = frozenset("\t\n\r\b ")
BRACKETS = frozenset("{}⟨⟩[]()")
BULLETS = tuple("•‣⁃⁌⁍∙○●◘◦⦾⦿")
SENTENCE_END_MARKS = (".", "?", "!", '"', "'")
ELLIPSES = ("...", "[...]", "…", "(...)", "[…]", "-»", "read more..", "read more")
COMMON_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
LOREM_IPSUM = "lorem ipsum"
POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "privacy overview",
    "use of cookies",
    "use cookies",
    "privacy & cookies policy",
    "privacy and cookies policy",
)
"""Phrases of paragraphs about policies, in lower case."""

NOTICE_PHRASES = (
    *POLICY_PHRASES,
    (
        "necessary cookies are absolutely essential for the website to function properly. this category only includes "
        "cookies that ensures basic functionalities and security features of the website. these cookies do not store "
        "any personal information."
    ),
    (
        "any cookies that may not be particularly necessary for the website to function and is used specifically to "
        "collect user personal data via analytics, ads, other embedded contents are termed as non-necessary cookies. "
        "it is mandatory to procure user consent prior to running these cookies on your website."
    ),
    "if you continue to browse this site without changing your cookie settings, you agree to this use. acceptread more",
)
"""Phrases of policies and of cookie notices on web pages, in lower case."""

_LETTER_LIKE = re.compile(
    "[\u16ee-\u16f0\u2160-\u2182\u2185-\u2188\u24b6-\u24e9\u3007\u3021-\u3029\u3038-\u303a\ua6e6-\ua6ef"
    "\U00010140-\U00010174\U00010341\U0001034a\U000103d1-\U000103d5\U00012400-\U0001246e"
    "\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]"
)
"""Alphabetic characters that are not letters: letter-like numbers, and letters in circles and squares."""


class DocumentParts:
    """The parts of a document, each computed once."""

    def __init__(self, text: str, language: str | None = None) -> None:
        self.text, self.language = text, language

    @cached_property
    def words(self) -> list[str]:
        return self.text.split()

    @cached_property
    def lines(self) -> list[str]:
        return [line for line in self.text.split("\n") if line.strip()]

    @cached_property
    def paragraphs(self) -> list[str]:
        return self.text.split("\n\n")

    @cached_property
    def urls(self) -> list[str]:
        return SCORED_URL.findall(self.text)

    @cached_property
    def lexemes(self) -> list[str]:
        return lexemes(self.text, self.language)

    @cached_property
    def feed_lines(self) -> list[str]:
        return re.split("\n+", self.text)

    @cached_property
    def blocks(self) -> list[str]:
        return re.split("\n{2,}", self.text.strip())

    @cached_property
    def split_lines(self) -> list[str]:
        return self.text.splitlines()

    def ngrams(self, n: int) -> list[tuple[str, ...]]:
        return list(zip(*(self.words[start:] for start in range(n)), strict=False))

    def top_ngram(self, n: int) -> tuple[str, int]:
        """The most frequent n-gram, its words joined by spaces, and how often it occurs."""
        [(words, count)] = Counter(self.ngrams(n)).most_common(1) or [((), 0)]
        return " ".join(words), count


def is_alphabetic(word: str) -> bool:
    """Whether a word has an alphabetic character."""
    return any(map(str.isalpha, word)) or _LETTER_LIKE.search(word) is not None


def is_symbol(word: str) -> bool:
    """Whether a word is an ellipsis, or has more runs of # than half its characters."""
    return word in ELLIPSES or 2 * len(re.findall("#+", word)) > len(word)


def top_ngram_chars(document: DocumentParts, n: int) -> int:
    """How many characters are removed with every literal occurrence of the top n-gram."""
    top, count = document.top_ngram(n)
    return len(document.text) - len(document.text.replace(top, "")) if count else 0


def repeated_top_ngram_chars(document: DocumentParts, n: int) -> int:
    """The length of the top n-gram, times how often it occurs."""
    top, count = document.top_ngram(n)
    return len(top) * count


def duplicate_ngram_chars(document: DocumentParts, n: int) -> int:
    """The characters of n-grams that occurred before, each word counted once, with a space for each word.

    An n-gram that does not overlap the previous repeated one has one space less.
    """
    words, seen = document.words, set()
    total = counted = 0  # words up to `counted` are counted
    for start, ngram in enumerate(document.ngrams(n)):
        if ngram in seen:
            first = max(counted, start)
            total += sum(map(len, words[first : start + n])) + min(start + n - first, n - 1)
            counted = start + n
        seen.add(ngram)
    return total


def top_lexeme_ngram_chars(document: DocumentParts, n: int) -> int:
    """The length of the most frequent n-gram of lexemes, times how often it occurs; 0 if none occurs twice."""
    grams = zip(*(document.lexemes[start:] for start in range(n)), strict=False)
    [(top, count)] = Counter(grams).most_common(1) or [((), 0)]
    return len(" ".join(top)) * count if count > 1 else 0


def duplicate_lexeme_ngram_chars(document: DocumentParts, n: int) -> int:
    """The characters of the lexemes in n-grams that occurred before, read from left to right: after a repeated n-gram,
    the next one that is looked at begins behind it."""
    found, start, seen = document.lexemes, 0, set()
    total = 0
    while start + n <= len(found):
        ngram = tuple(found[start : start + n])
        if ngram in seen:
            total += sum(map(len, ngram))
            start += n
        else:
            seen.add(ngram)
            start += 1
    return total


def _repeated(parts: Iterable[str]) -> list[str]:
    """The parts that occurred before."""
    seen: set[str] = set()
    return [part for part in parts if part in seen or seen.add(part)]  # type: ignore[func-returns-value]


def _characters(test: Callable[[str], bool]) -> Callable[[DocumentParts], int]:
    return lambda document: sum(map(test, document.text))


def _length(parts: Iterable[str]) -> int:
    return sum(map(len, parts))


def _count_containing(phrases: Sequence[str], paragraphs: Iterable[str]) -> int:
    lowered = [paragraph.lower() for paragraph in paragraphs]
    return sum(any(phrase in paragraph for phrase in phrases) for paragraph in lowered)


STATISTICS: dict[str, Callable[[DocumentParts], int]] = {
    "chars": lambda d: len(d.text),
    "plain": _characters(PLAIN_CHARACTERS.__contains__),
    "digits": _characters(frozenset(string.digits).__contains__),
    "white": _characters(WHITE_SPACE.__contains__),
    "brackets": _characters(BRACKETS.__contains__),
    "letters": _characters(str.isalpha),
    "capitals": _characters(str.isupper),
    "spaces": _characters(str.isspace),
    "punctuation": _characters(frozenset(string.punctuation).__contains__),
    "words": lambda d: len(d.words),
    "word_chars": lambda d: _length(d.words),
    "longest_word": lambda d: max(map(len, d.words), default=0),
    "alphabetic_words": lambda d: sum(map(is_alphabetic, d.words)),
    "symbol_words": lambda d: sum(map(is_symbol, d.words)),
    "common_words": lambda d: sum(map(COMMON_WORDS.__contains__, d.words)),
    "lines": lambda d: len(d.lines),
    "line_chars": lambda d: _length(d.lines),
    "bullet_lines": lambda d: sum(line.lstrip().startswith(BULLETS) for line in d.lines),
    "unended_lines": lambda d: sum(not line.rstrip().endswith(SENTENCE_END_MARKS) for line in d.lines),
    "ellipsis_lines": lambda d: sum(line.strip().lower().endswith(ELLIPSES) for line in d.lines),
    "distinct_lines": lambda d: len(set(d.lines)),
    "distinct_line_chars": lambda d: _length(set(d.lines)),
    "paragraphs": lambda d: len(d.paragraphs),
    "paragraph_chars": lambda d: _length(d.paragraphs),
    "boilerplate_paragraphs": lambda d: _count_containing(NOTICE_PHRASES, d.paragraphs),
    "lorem_paragraphs": lambda d: _count_containing([LOREM_IPSUM], d.paragraphs),
    "distinct_paragraphs": lambda d: len(set(d.paragraphs)),
    "distinct_paragraph_chars": lambda d: _length(set(d.paragraphs)),
    "url_chars": lambda d: _length(d.urls),
    "porn_urls": lambda d: sum("porn" in url for url in d.urls),
    "lexemes": lambda d: len(d.lexemes),
    "word_lexemes": lambda d: sum(map(is_word, d.lexemes)),
    "word_lexeme_chars": lambda d: _length(filter(is_word, d.lexemes)),
    "letter_lexemes": lambda d: sum(any(map(str.isalpha, one)) for one in d.lexemes),
    "common_lexemes": lambda d: len(COMMON_WORDS.intersection(d.lexemes)),
    "unspaced": lambda d: int(has_unspaced(d.text)),
    "hashes": lambda d: d.text.count("#"),
    "ellipses": lambda d: d.text.count("...") + d.text.count("…"),
    "line_feeds": lambda d: d.text.count("\n"),
    "split_lines": lambda d: len(d.split_lines),
    "dash_lines": lambda d: sum(line.lstrip().startswith(("•", "-")) for line in d.split_lines),
    "dotted_lines": lambda d: sum(line.rstrip().endswith(("...", "…")) for line in d.split_lines),
    "full_lines": lambda d: len(d.lines),
    "marked_lines": lambda d: sum(line.endswith(TERMINAL_MARKS) for line in d.lines),
    "feed_lines": lambda d: len(d.feed_lines),
    "repeated_feed_lines": lambda d: len(_repeated(d.feed_lines)),
    "repeated_feed_line_chars": lambda d: _length(_repeated(d.feed_lines)),
    "repeated_line_chars": lambda d: _length(_repeated(d.lines)),
    "blocks": lambda d: len(d.blocks),
    "repeated_blocks": lambda d: len(_repeated(d.blocks)),
    "repeated_block_chars": lambda d: _length(_repeated(d.blocks)),
}

LONGEST_SHORT_LINE = 255
"""The largest n of `short_lines_n`, the number of lines of up to n characters."""

NGRAM_STATISTICS: dict[str, Callable[[DocumentParts, int], int]] = {
    "top_ngram": top_ngram_chars,
    "repeated_top_ngram": repeated_top_ngram_chars,
    "duplicate_ngram": duplicate_ngram_chars,
    "top_lexeme_ngram": top_lexeme_ngram_chars,
    "duplicate_lexeme_ngram": duplicate_lexeme_ngram_chars,
}
"""By the name without n; for pairs of words, the full name is `top_ngram_2`."""

OF_LEXEMES = frozenset({"lexemes", "word_lexemes", "word_lexeme_chars", "letter_lexemes", "common_lexemes"})


def is_of_lexemes(name: str) -> bool:
    """Whether a statistic is one of lexemes."""
    return name in OF_LEXEMES or "_lexeme_ngram_" in name


def count_statistics(text: str, names: Iterable[str], language: str | None = None) -> dict[str, int]:
    """The statistics of a document by name. `language` ("ja", "zh") decides how ideographs are split into lexemes."""
    document = DocumentParts(text, language)
    return {name: _count_statistic(document, name) for name in names}


def _count_statistic(document: DocumentParts, name: str) -> int:
    if name in STATISTICS:
        return STATISTICS[name](document)
    family, _, n = name.rpartition("_")
    if family == "short_lines":
        return sum(len(line) <= int(n) for line in document.lines)
    return NGRAM_STATISTICS[family](document, int(n))
