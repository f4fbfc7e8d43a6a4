"""LaTeX to text: one source, or the files of one archive.

    LatexCleaner().clean({"main.tex": r"\\newcommand{\\to}[1]{to #1}\\begin{document}Up \\to{here}.\\end{document}"})

Macros are expanded with their arguments (`latex_macros.py`), files of the archive put in where they are wanted, accents
and symbols become characters. What is left out: comments, the preamble but for the title, authors, bibliography,
pictures, tables but for their captions, citations and references. Formulas stay as LaTeX between dollars
(`math="keep"`), only those within sentences (`"inline"`), or none (`"drop"`).

It gives up being TeX: conditions, counters, and what packages of other archives define. Commands that it does not know
are left out, and what they are given is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gristmill.download.arxiv.latex_macros import MacroExpander, braced_group, read_argument
from gristmill.download.arxiv.latex_symbols import (
    ACCENTS,
    ARGUMENTS_DROPPED,
    FLOATS,
    FORMULAS,
    GAP_COMMANDS,
    LEFT_OUT,
    LITERAL,
    SECTIONS,
    STATEMENTS,
    SYMBOLS,
    accented,
)
from gristmill.download.markup_gaps import GAP, close_gaps
from gristmill.download.word_sets import word_set

KEEP, INLINE, DROP = MATH = ("keep", "inline", "drop")
MOST_FILES_IN = 200
MOST_TEXT = 16 * 2**20

_COMMENT = re.compile(r"\\begin\s*\{(verbatim|lstlisting|minted|Verbatim)\}|(?<!\\)((?:\\\\)*)%[^\n]*(?:\n[ \t]*)?")
_ENDS = re.compile(r"(?<![ \t])[ \t]*\r?\n|\r")
_IFFALSE, _FI = re.compile(r"\\iffalse(?![a-zA-Z])"), re.compile(r"\\fi(?![a-zA-Z])")
_INPUT = re.compile(r"\\(?:input|include|subfile)(?![a-zA-Z])\s*(?:\{([^{}]*)\}|([^\s{}\\]+))")
_PACKAGE = re.compile(r"\\usepackage\s*(?:\[[^\]]{0,1000}\])?\s*\{([^{}]*)\}")
_BEGIN_DOCUMENT, _END_DOCUMENT = re.compile(r"\\begin\s*\{document\}"), re.compile(r"\\end\s*\{document\}|\\bye\b")
_DOCUMENT = re.compile(r"\\document(?:class|style)|\\begin\s*\{document\}")
_TITLE = re.compile(r"\\(?:title|icmltitle|Title)\s*(?:\[[^\]]{0,1000}\])?\s*(?=\{)")
_TOKEN = re.compile(r"\\(?:([a-zA-Z@]+)\*?|(.)|$)|[{}~&]|\$\$?|--+|``|''|\n[ \t]*\n\s*|\n", re.DOTALL)
_DOLLAR = re.compile(r"(?<!\\)\$")
_DOLLARS = re.compile(r"(?<!\\)\$\$")
_LABEL = re.compile(r"\\(?:label|tag\*?|nonumber|notag)(?![a-zA-Z])\s*(?:\{[^{}]*\})?")
_OPTION = re.compile(r"[ \t]*\n?[ \t]*(?=\[)")
_LENGTH = re.compile(r"\s*=?\s*-?[0-9.]*\s*(?:pt|cm|mm|in|em|ex|\\[a-zA-Z]+)?")
_SKIPS = word_set("vskip hskip kern parindent parskip baselineskip textwidth textheight topmargin oddsidemargin")
_STASHED = re.compile("\x02([0-9]+)\x03")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class LatexCleaner:
    """Turns LaTeX sources into text."""

    def __init__(self, math: str = KEEP, captions: bool = True) -> None:
        if math not in MATH:
            raise ValueError(f"math is {math!r}, must be 'keep', 'inline' or 'drop'")
        self.math, self.captions = math, captions

    def clean(self, source: str | Mapping[str, str]) -> str:
        """The text of a paper: of one source, or of files by their names in the archive."""
        files = {"main.tex": source} if isinstance(source, str) else dict(source)
        return _Paper(self.math, self.captions).text(join_sources(files))


def join_sources(files: Mapping[str, str]) -> str:
    """One source of the files of an archive, without comments."""
    bare = {name: _without_comments(text) for name, text in files.items()}
    sources = {name: text for name, text in bare.items() if not name.endswith((".sty", ".cls"))}
    if not sources:
        return ""
    main = max(sources, key=lambda name: (len(_DOCUMENT.findall(sources[name])), len(sources[name]), name))
    text = _include_files(sources[main], bare, [main])
    packages = [name.strip() for found in _PACKAGE.finditer(text) for name in found[1].split(",")]
    local = [bare[f"{name}.sty"] for name in packages if f"{name}.sty" in bare]
    return "\n".join([*(_definitions(style) for style in local), text])[:MOST_TEXT]


def _without_comments(text: str) -> str:
    text = _CONTROL.sub("", _ENDS.sub("\n", text))
    if "%" in text:
        text = _uncommented(text)
    return _without_iffalse(text) if "\\iffalse" in text else text


def _uncommented(text: str) -> str:
    """Without comments, but for what looks like them in listings."""
    pieces: list[str] = []
    done = at = 0
    missing: set[str] = set()  # to look for the same end again and again would take for ever
    while found := _COMMENT.search(text, at):
        at = found.end()
        if not found[1]:
            pieces += [text[done : found.start()], found[2]]
            done = at
        elif found[1] not in missing:
            end = text.find(f"\\end{{{found[1]}}}", at)
            at = max(at, end)
            missing.update([found[1]] if end < 0 else [])
    return "".join([*pieces, text[done:]])


def _without_iffalse(text: str) -> str:
    pieces: list[str] = []
    done = 0
    while (found := _IFFALSE.search(text, done)) and (end := _FI.search(text, found.end())):
        pieces.append(text[done : found.start()])
        done = end.end()
    return "".join([*pieces, text[done:]])


def _definitions(style: str) -> str:
    """A package of the archive. What it does is not wanted, only the macros that it defines."""
    return "\n".join(
        line for line in style.split("\n") if re.match(r"\s*\\(?:new|renew|provide)command|\s*\\def", line)
    )


def _include_files(text: str, files: Mapping[str, str], path: list[str]) -> str:
    """With the files that it asks for in their places. A file is not put into itself."""
    left = [MOST_FILES_IN, MOST_TEXT]

    def wanted(found: re.Match[str], path: list[str]) -> str:
        name = (found[1] or found[2] or "").strip().removeprefix("./")
        known = next((known for known in (name, f"{name}.tex", f"{name}.TEX") if known in files), None)
        if known is None or known in path or len(path) > 20 or left[0] <= 0 or left[1] <= 0:
            return ""
        left[0] -= 1
        left[1] -= len(files[known])
        text = _INPUT.sub(lambda inner: wanted(inner, [*path, known]), files[known])
        return f"\n\n{text}\n\n" if "include" in found[0] else f"{text} "

    return _INPUT.sub(lambda found: wanted(found, path), text)


class _Paper:
    """The state of one conversion."""

    def __init__(self, math: str, captions: bool) -> None:
        self.math, self.captions = math, captions
        self.stash: list[str] = []
        self.out: list[str] = []
        self._missing: dict[str, str] = {}

    def text(self, source: str) -> str:
        expanded = MacroExpander().expand(source)
        begin = _BEGIN_DOCUMENT.search(expanded)
        end = _END_DOCUMENT.search(expanded, begin.end()) if begin else _END_DOCUMENT.search(expanded)
        body = expanded[begin.end() if begin else 0 : end.start() if end else len(expanded)]
        title = _TITLE.search(expanded)
        if title and (found := braced_group(expanded, title.end())):
            self._convert(found[0])
            self.out.append("\n\n")
            body = body if begin and title.start() < begin.end() else _TITLE.sub(r"\\relax", body)
        self._convert(body)
        text = close_gaps("".join(self.out))
        return _STASHED.sub(lambda found: self.stash[int(found[1])], text).strip() if self.stash else text

    def _convert(self, text: str, depth: int = 0) -> None:
        """Text to `out`. What is in brackets is not looked into apart: brackets and commands before them just go."""
        at = 0
        while found := _TOKEN.search(text, at):
            self.out.append(text[at : found.start()])
            at = found.end()
            mark = found.group()
            if found[1]:
                at = self._command(found[1], text, at, depth)
            elif mark[0] == "\\":
                at = self._symbol(found[2] or " ", text, at)
            elif mark[0] == "$":
                at = self._dollars(mark, text, at)
            else:
                self.out.append(_MARKS[mark] if mark in _MARKS else _dash(mark) if mark[0] == "-" else "\n\n")
        self.out.append(text[at:])

    def _command(self, name: str, text: str, at: int, depth: int) -> int:
        if name in _COMMANDS:
            return _COMMANDS[name](self, text, at, depth)
        if name in SYMBOLS:
            self.out.append(SYMBOLS[name])
            return _eat_space(text, at)
        if name in ACCENTS and len(name) == 1:
            return self._accent(name, text, at)
        if name in _SKIPS and (length := _LENGTH.match(text, at)):
            return length.end()
        return self._dropped(name, text, at) if name in ARGUMENTS_DROPPED else _after(text, at)

    def _end(self, text: str, at: int, depth: int) -> int:
        self.out.append("\n")
        return read_argument(text, at)[1]

    def _own_paragraph(self, text: str, at: int, depth: int) -> int:
        return self._between("\n\n", "\n\n", text, at, depth)

    def _in_brackets(self, text: str, at: int, depth: int) -> int:
        return self._between(" (", ")", text, at, depth)

    def _between(self, before: str, after: str, text: str, at: int, depth: int) -> int:
        words, at = read_argument(text, _options(text, at))
        self.out.append(before)
        self._deeper(words, depth)
        self.out.append(after)
        return at

    def _verbatim(self, text: str, at: int, depth: int) -> int:
        mark = text[at : at + 1]
        end = text.find(mark, at + 1)
        if not mark or end < 0:
            return _after(text, at)
        self._keep(text[at + 1 : end])
        return end + 1

    def _accent(self, mark: str, text: str, at: int) -> int:
        base, at = read_argument(text, at)
        self.out.append(accented(mark, base))
        return at

    def _dropped(self, name: str, text: str, at: int) -> int:
        self.out.append(GAP if name in GAP_COMMANDS else "")
        at = _options(text, at)
        for _ in range(ARGUMENTS_DROPPED[name]):
            start = _eat_space(text, at)
            if text[start : start + 1] != "{":
                break
            at = _options(text, read_argument(text, start)[1])
        return at

    def _deeper(self, text: str, depth: int) -> None:
        if depth < 30:
            self._convert(text, depth + 1)

    def _item(self, text: str, at: int, depth: int) -> int:
        self.out.append("\n- ")
        start = _eat_space(text, at)
        if text[start : start + 1] == "[" and (found := braced_group(text, start, "[]")):
            self._deeper(found[0], depth)
            self.out.append(" ")
            return found[1]
        return start

    def _symbol(self, mark: str, text: str, at: int) -> int:
        if (mark in ACCENTS and mark not in "=.") or (mark in "=." and text[at : at + 1].isalpha()):
            return self._accent(mark, text, at)
        if mark in "([":
            end = self._find("\\)" if mark == "(" else "\\]", text, at)
            if end >= 0:
                self._formula(text[at:end], display=mark == "[")
                return end + 2
            return at
        if mark == "\\":
            self.out.append("\n")
            return _options(text, at + 1 if text[at : at + 1] == "*" else at)
        if mark in "#$%&_{}":
            self._keep(mark)
        elif mark in " ,;:!>\n/":
            self.out.append("" if mark in "!/" else " ")
        return at

    def _find(self, mark: str, text: str, at: int) -> int:
        """Where the mark is; what is not in the rest of a text is looked for once."""
        if self._missing.get(mark) is text:
            return -1
        found = text.find(mark, at)
        if found < 0:
            self._missing[mark] = text
        return found

    def _dollars(self, mark: str, text: str, at: int) -> int:
        end = (_DOLLARS if mark == "$$" else _DOLLAR).search(text, at)
        inner = text[at : end.start()] if end else ""
        if end is None or (mark == "$" and "\n\n" in inner):
            return at  # a dollar that nothing closes
        if inner.strip():
            self._formula(inner, display=mark == "$$")
        return end.end()

    def _formula(self, inner: str, display: bool) -> None:
        inner = " ".join(_LABEL.sub("", inner).split())
        if not inner or self.math == DROP or (display and self.math == INLINE):
            self.out.append(GAP)
        elif display:
            self.out.append("\n")
            self._keep(f"$$ {inner} $$")
            self.out.append("\n")
        else:
            self._keep(f"${inner}$")

    def _keep(self, text: str) -> None:
        """Text that must not be changed by what follows."""
        self.stash.append(_STASHED.sub("", text))
        self.out.append(f"\x02{len(self.stash) - 1}\x03")

    def _environment(self, text: str, at: int, depth: int) -> int:
        full, at = read_argument(text, at)
        name = full.strip().rstrip("*")
        kind = FORMULAS | LITERAL | LEFT_OUT | FLOATS
        if name not in kind:
            at = _options(text, at)
            self.out.append(f"\n\n{STATEMENTS[name]}. " if name in STATEMENTS and name != "abstract" else "\n\n")
            return at
        end = self._find(f"\\end{{{full}}}", text, at)
        inner = text[at : end if end >= 0 else len(text)]
        if end < 0 and name not in LEFT_OUT:
            return at
        after = end + len(full) + 6 if end >= 0 else len(text)
        if name in FORMULAS:
            self._formula(inner.removeprefix("{").strip() if name == "alignat" else inner, display=name != "math")
        elif name in LITERAL:
            self.out.append("\n")
            self._keep(inner[_options(inner, 0) :].strip("\n"))
            self.out.append("\n")
        elif name in FLOATS and self.captions:
            self._captions(inner, depth)
        return after

    def _captions(self, inner: str, depth: int) -> None:
        for found in re.finditer(r"\\caption\*?(?![a-zA-Z])", inner):
            self._own_paragraph(inner, found.end(), depth)


_COMMANDS = {
    "begin": _Paper._environment,
    "end": _Paper._end,
    "item": _Paper._item,
    "footnote": _Paper._in_brackets,
    "footnotetext": _Paper._in_brackets,
    "verb": _Paper._verbatim,
    "lstinline": _Paper._verbatim,
    **dict.fromkeys((*SECTIONS, "caption"), _Paper._own_paragraph),
}
_MARKS = {"{": "", "}": "", "~": " ", "&": " ", "``": "“", "''": "”", "\n": " "}


def _dash(mark: str) -> str:
    return {2: "–", 3: "—"}.get(len(mark), mark)


def _options(text: str, at: int) -> int:
    """Where it goes on after options in square brackets."""
    for _ in range(3):
        found = _OPTION.match(text, at)
        inside = braced_group(text, found.end(), "[]") if found else None
        if inside is None:
            return at
        at = inside[1]
    return at


def _eat_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _after(text: str, at: int) -> int:
    """After a command that is not known: without its options, if it has arguments too."""
    end = _options(text, at)
    return end if end > at and text[end : end + 1] == "{" else _eat_space(text, at)
