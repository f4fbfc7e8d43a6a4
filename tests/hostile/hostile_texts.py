"""Texts on which a function that is not linear takes long: few characters, repeated, wrapped, nested and mixed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

Pattern = Callable[[int], str]
"""The text of about so many characters."""

_PLAIN = [
    "a", "A", "1", " ", "\n", "\t", "-", "_", ".", "é", "中", "\u200b", "\xa0", "\r", "\x00", "\x1c", "😀", "́",
]  # fmt: skip
_WORDS = [
    "a ", "a\n", "aB1 ", "a, ", "a. ", "...", "…", "1 ", "1-", "1.1.", "0x", "+1 ", "the ", "a\n\n", "def a(", "a_",
    "中 ",
]  # fmt: skip
_MARKS = [
    "<", ">", "&", "&amp", "&#", "&lt;", "{", "}", "[", "]", "(", ")", "|", "=", '"', "'", "“", "\\", "$", "%", "`",
    "*", "#",
]  # fmt: skip
_MARKUP = [
    "<a", "<a ", "<a b=", "<a b='", "<!--", "-->", "<div>", "</div>", "<p>", "<br>", "<a>", "<![CDATA[", "<?",
    "<script>", "<!", "{{", "}}", "{|", "|}", "|-", "[[", "]]", "[[a|", "'''", "''", "==", "\n==", "<ref", "<ref>",
    "<ref />", "<nowiki>", "[http://a ", "![", "](", "[a](", "![a](b", "**", "__", "~~", "```", "\n> ", "\n- ",
    "\n# ", "\n1. ", "\n    a", "\n|a|", "\n\n\n", "\\a", "\\a{", "\\begin{a}", "\\end{a}", "\\def\\a{\\a}",
    "\\newcommand{\\a}[1]{#1#1}", "\\a{b}", "\\item ", "$$", "\\[", "\\(", "\\\\", "\\iffalse ", "\\fi ",
    "\\input{a}", "\\verb|", "\n%", '"""', "/*", "*/", "//", "#!", "# a\n", "<?xml ",
]  # fmt: skip
_NAMES = [
    "http://", "http://a.", "https://a/", "www.", "www.a", "a@", "a@b.", "a@b.c ", "@", "mailto:", "a.b.", "/a",
    "a/", "?a=b&", "127.", "1.2.3.4 ", "::", "a:", "1:", "ab:cd:", "4111 ", "4111-", "4", "DE89", "GB82 ", "(1) ",
    "+49 ", "00", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "AKIA", "ghp_", "sk-", "eyJ", "eyJa.", "key=",
    "password: '", "Ã©", "â€", "â€œ", "ï¿½", "ﬁ", "{lorem", "lorem ipsum ", "javascript ", "cookie ", "read more",
    "privacy policy", "__label__", "\n• ", "\nimport a", "#a",
]  # fmt: skip
UNITS = [*_PLAIN, *_WORDS, *_MARKS, *_MARKUP, *_NAMES]
_PAIRS = [
    ("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"), ("{{", "}}"), ("{|\n", "\n|}"), ("[[", "]]"), ("[[a|", "]]"),
    ("{{a|", "}}"), ("<div>", "</div>"), ("<a>", "</a>"), ("<b><i>", "</b></i>"), ("<ref>", "</ref>"),
    ("<!--", "-->"), ("<table><tr><td>", "</td>"), ("\\a{", "}"), ("\\begin{a}", "\\end{a}"), ("$", "$"),
    ("/*", "*/"), ("'''", "''"), ('"', '"'), ("**", "**"), ("![", "](a)"), ("&lt;", "&gt;"), ("&amp;", ""),
    ("http://", " "), ("\n> ", ""), ("\\if", "\\fi"), ("[http://a ", "]"), ("<a href='", "'>"),
]  # fmt: skip


def _repeated(unit: str, before: str = "", after: str = "") -> Pattern:
    return lambda size: before + unit * (size // len(unit)) + after


def _nested(first: str, last: str) -> Pattern:
    return lambda size: first * (size // len(first + last)) + last * (size // len(first + last))


def patterns(mixed: int) -> Iterator[tuple[str, Pattern]]:
    """Each unit alone and between letters; pairs, nested; and `mixed` alternations of units, always the same ones."""
    for unit in UNITS:
        yield repr(unit), _repeated(unit)
        yield f"a{unit!r}b", _repeated(unit, "a", "b")
    for first, last in _PAIRS:
        yield f"{first!r} in {last!r}", _nested(first, last)
        yield f"{first!r}a{last!r}", _repeated(f"{first}a{last}")
    draw = random.Random(1)
    for _ in range(mixed):
        unit = "".join(draw.choices(UNITS, k=draw.randrange(2, 5)))
        before, after = draw.choices(["", "a", "<", "[", "{", '"', "\n", " "], k=2)
        yield f"{before!r} {unit!r} {after!r}", _repeated(unit, before, after)
