"""Expands the macros of LaTeX sources: \\newcommand with arguments and a default, \\def, \\let, \\DeclareMathOperator.

The numbers of expansions and of added characters are limited, so recursive macros end; beyond the limits macros stay as
written.

Gives up: programs, that is, conditions other than \\iffalse, counters, and delimited arguments of \\def.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

MAX_EXPANSIONS = 50_000
MAX_ADDED_TEXT = 4 * 2**20
"""Characters that expansions may add to a source."""

_MAX_DEPTH = 100
_COMMAND = re.compile(r"\\([a-zA-Z@]+)\*?")
_PARAMETER = re.compile(r"#+([1-9])")
_SPACE = re.compile(r"[ \t]*\n?[ \t]*")
_DEFINES = {"newcommand", "renewcommand", "providecommand", "DeclareRobustCommand", "newcommandx"}
_TEX_DEFINES = {"def", "gdef", "edef", "xdef"}
_OPERATORS = {"DeclareMathOperator"}
_NAME = re.compile(r"\{?\s*\\([a-zA-Z@]+|.)\s*\}?", re.DOTALL)
_COUNT = re.compile(r"\s*\[(\d)\]")
_PATTERN = re.compile(r"((?:#[1-9])*)\s*(?=\{)")
_LET = re.compile(r"\s*\\([a-zA-Z@]+)\s*=?\s*(\\[a-zA-Z@]+|\S)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SQUARE = re.compile(r"\\.|[{}\[\]]|\n[ \t]*\n", re.DOTALL)
_NEAR, _LONGEST_OPTION = 400, 1000


class LatexMacro(NamedTuple):
    body: str
    arity: int = 0
    default: str | None = None


def braced_group(text: str, start: int, pair: str = "{}") -> tuple[str, int] | None:
    """The text between the bracket at `start` and the one that closes it, and the position after that."""
    if pair == "[]":
        return _options(text, start)
    depth = 0
    for found in _BRACE.finditer(text, start, start + _NEAR):
        mark = found.group()
        depth += (mark == "{") - (mark == "}")
        if depth == 0 and mark == "}":
            return text[start + 1 : found.start()], found.end()
    end = _closing_braces(text).get(start) if start + _NEAR < len(text) else None
    return None if end is None else (text[start + 1 : end], end + 1)


@lru_cache(4)
def _closing_braces(text: str) -> dict[int, int]:
    """The position of the closing brace of each open one, found in one pass: a search for each would be quadratic."""
    closed: dict[int, int] = {}
    opened: list[int] = []
    for found in _BRACE.finditer(text):
        if found.group() == "{":
            opened.append(found.start())
        elif found.group() == "}" and opened:
            closed[opened.pop()] = found.start()
    return closed


def _options(text: str, start: int) -> tuple[str, int] | None:
    """The text in square brackets, if it is short and within one paragraph, and the position after it."""
    depth = inner = 0
    for found in _SQUARE.finditer(text, start, start + _LONGEST_OPTION):
        mark = found.group()
        if mark[0] == "\n" or (mark == "}" and not inner):
            return None
        inner += (mark == "{") - (mark == "}")
        if not inner:
            depth += (mark == "[") - (mark == "]")
            if depth == 0 and mark == "]":
                return text[start + 1 : found.start()], found.end()
    return None


class MacroExpander:
    """Expands the macros of one source. A definition holds from its position to the end."""

    def __init__(self) -> None:
        self.macros: dict[str, LatexMacro] = {}
        self._expansions_left = MAX_EXPANSIONS
        self._text_left = MAX_ADDED_TEXT

    def expand(self, text: str) -> str:
        """The text with macros replaced and without their definitions."""
        out: list[str] = []
        frames: list[tuple[str, int]] = [(text, 0)]  # the texts being read, innermost last, and the position in each
        while frames:
            current, at = frames.pop()
            found = _COMMAND.search(current, at)
            if found is None:
                out.append(current[at:])
                continue
            out.append(current[at : found.start()])
            name, end = found[1], found.end()
            defined = self._define(name, current, end)
            if defined is not None:
                frames.append((current, defined))
                continue
            macro = self.macros.get(name)
            if macro is None or self._expansions_left <= 0 or self._text_left <= 0 or len(frames) > _MAX_DEPTH:
                out.append(found.group())
                frames.append((current, end))
                continue
            if found.group().endswith("*"):
                end -= 1
            body, end = self._apply(macro, current, end, frames)
            self._expansions_left -= 1
            self._text_left -= len(body)
            if end < len(current):
                frames.append((current, end))
            frames.append((body, 0))
            if body[-1:].isalpha() and current[end : end + 1].isalpha() and _COMMAND.search(body[-30:]):
                frames[-1] = (body + " ", 0)  # with \def\x{\alpha}, "\x b" must not become "\alphab"
        return "".join(out)

    def _define(self, name: str, text: str, at: int) -> int | None:
        """Store a definition and return the position after it; None if this is not a definition."""
        if name in _DEFINES or name in _OPERATORS:
            return self._newcommand(text, at, operator=name in _OPERATORS)
        if name in _TEX_DEFINES:
            return self._def(text, at)
        if name == "let" and (found := _LET.match(text, at)):
            target = self.macros.get(found[2][1:]) if found[2].startswith("\\") else None
            self.macros[found[1]] = target or LatexMacro(found[2])
            if found[2] == f"\\{found[1]}":
                del self.macros[found[1]]
            return found.end()
        return None

    def _newcommand(self, text: str, at: int, operator: bool) -> int | None:
        found = _NAME.match(text, at)
        if not found:
            return None
        at = found.end()
        count, default = 0, None
        if number := _COUNT.match(text, at):
            count, at = int(number[1]), number.end()
            start = _skip(text, at)
            if text[start : start + 1] == "[" and (given := braced_group(text, start, "[]")):
                default, at = given
        start = _skip(text, at)
        body = braced_group(text, start) if text[start : start + 1] == "{" else None
        if body is None:
            return None
        self.macros[found[1]] = LatexMacro(f"\\operatorname{{{body[0]}}}" if operator else body[0], count, default)
        return body[1]

    def _def(self, text: str, at: int) -> int | None:
        found = _NAME.match(text, at)
        pattern = _PATTERN.match(text, found.end()) if found else None
        if not found or not pattern:  # delimited arguments, whose extent depends on the text around them
            return None
        body = braced_group(text, pattern.end())
        if body is None:
            return None
        self.macros[found[1]] = LatexMacro(body[0], len(pattern[1]) // 2)
        return body[1]

    def _apply(self, macro: LatexMacro, text: str, at: int, frames: list[tuple[str, int]]) -> tuple[str, int]:
        """The body with its arguments filled in, and the position after the call. As in TeX, a macro without arguments
        swallows the space after it."""
        if not macro.arity:
            end = at
            while end < len(text) and text[end] in " \t":
                end += 1
            return macro.body, end
        args: list[str] = []
        if macro.default is not None:
            start = _skip(text, at)
            given = braced_group(text, start, "[]") if text[start : start + 1] == "[" else None
            args.append(given[0] if given else macro.default)
            at = given[1] if given else at
        while len(args) < macro.arity:
            if _skip(text, at) >= len(text) and frames:  # a macro at the end of another reads on after it
                text_after, at_after = frames.pop()
                value, after = read_argument(text_after, at_after)
                frames.append((text_after, after))
            else:
                value, at = read_argument(text, at)
            args.append(value)
        return _PARAMETER.sub(
            lambda found: args[int(found[1]) - 1] if int(found[1]) <= len(args) else "", macro.body
        ), at


def read_argument(text: str, at: int) -> tuple[str, int]:
    """One argument, that is, a group, a command or a character, and the position after it."""
    start = _skip(text, at)
    if text[start : start + 1] == "{":
        return braced_group(text, start) or ("", start + 1)
    if found := _COMMAND.match(text, start):
        return found.group(), found.end()
    return text[start : start + 1], min(start + 1, len(text))


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
