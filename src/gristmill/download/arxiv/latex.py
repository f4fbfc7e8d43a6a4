"""LaTeX to plain text, from one source file or all files of a paper.

    LatexCleaner().clean({"main.tex": r"\\newcommand{\\to}[1]{to #1}\\begin{document}Up \\to{here}.\\end{document}"})

Macros are expanded with their arguments (`latex_macros.py`), \\input and \\include are followed, accents and symbols
become characters. Comments, the preamble except the title, authors, bibliography, pictures, tables except their
captions, citations and references are removed. Formulas stay as LaTeX between dollar signs (`math="keep"`), only those
within sentences (`"inline"`), or not at all (`"drop"`).

Gives up: being TeX. Conditions, counters and the definitions of external packages are not evaluated. Unknown commands
are removed, but their arguments are kept.
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

KEEP, INLINE, DROP = MATH = ("keep", "inline", "drop")
MAX_INCLUDED_FILES = 200
MAX_TEXT = 16 * 2**20

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
_LENGTH_COMMANDS = frozenset(
    "vskip hskip kern parindent parskip baselineskip textwidth textheight topmargin oddsidemargin".split()  # noqa: SIM905
)
_STASHED = re.compile("\x02([0-9]+)\x03")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class LatexCleaner:
    """Turns LaTeX sources into plain text."""

    def __init__(self, math: str = KEEP, captions: bool = True) -> None:
        if math not in MATH:
            raise ValueError(f"math is {math!r}, must be 'keep', 'inline' or 'drop'")
        self.math, self.captions = math, captions

    def clean(self, source: str | Mapping[str, str]) -> str:
        """The text of a paper, given one source or the contents of its files by name."""
        files = {"main.tex": source} if isinstance(source, str) else dict(source)
        return _Paper(self.math, self.captions).text(join_sources(files))


def join_sources(files: Mapping[str, str]) -> str:
    """The files of a paper as one source without comments. The main file is the one that looks most like a document."""
    uncommented = {name: _without_comments(text) for name, text in files.items()}
    sources = {name: text for name, text in uncommented.items() if not name.endswith((".sty", ".cls"))}
    if not sources:
        return ""
    main = max(sources, key=lambda name: (len(_DOCUMENT.findall(sources[name])), len(sources[name]), name))
    text = _include_files(sources[main], uncommented, [main])
    packages = [name.strip() for found in _PACKAGE.finditer(text) for name in found[1].split(",")]
    local = [uncommented[f"{name}.sty"] for name in packages if f"{name}.sty" in uncommented]
    return "\n".join([*(_definitions(style) for style in local), text])[:MAX_TEXT]


def _without_comments(text: str) -> str:
    text = _CONTROL.sub("", _ENDS.sub("\n", text))
    if "%" in text:
        text = _remove_comments(text)
    return _without_iffalse(text) if "\\iffalse" in text else text


def _remove_comments(text: str) -> str:
    """Remove comments, but not what looks like them in listings."""
    pieces: list[str] = []
    done = at = 0
    missing: set[str] = set()  # ends that do not occur again: searching for each again would be quadratic
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
    """The macro definitions of a package that comes with the paper; the rest of it is not text."""
    return "\n".join(
        line for line in style.split("\n") if re.match(r"\s*\\(?:new|renew|provide)command|\s*\\def", line)
    )


def _include_files(text: str, files: Mapping[str, str], path: list[str]) -> str:
    """Replace \\input and \\include by the files they name. A file is not included in itself."""
    files_left, text_left = MAX_INCLUDED_FILES, MAX_TEXT

    def included(found: re.Match[str], path: list[str]) -> str:
        name = (found[1] or found[2] or "").strip().removeprefix("./")
        file = next((file for file in (name, f"{name}.tex", f"{name}.TEX") if file in files), None)
        nonlocal files_left, text_left
        if file is None or file in path or len(path) > 20 or files_left <= 0 or text_left <= 0:
            return ""
        files_left -= 1
        text_left -= len(files[file])
        text = _INPUT.sub(lambda inner: included(inner, [*path, file]), files[file])
        return f"\n\n{text}\n\n" if "include" in found[0] else f"{text} "

    return _INPUT.sub(lambda found: included(found, path), text)


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
        """Append the text to `out`. Braces and unknown commands are removed, the content of braces is kept."""
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
            return _skip_blanks(text, at)
        if name in ACCENTS and len(name) == 1:
            return self._accent(name, text, at)
        if name in _LENGTH_COMMANDS and (length := _LENGTH.match(text, at)):
            return length.end()
        return self._drop_arguments(name, text, at) if name in ARGUMENTS_DROPPED else _after_unknown(text, at)

    def _end(self, text: str, at: int, depth: int) -> int:
        self.out.append("\n")
        return read_argument(text, at)[1]

    def _own_paragraph(self, text: str, at: int, depth: int) -> int:
        return self._between("\n\n", "\n\n", text, at, depth)

    def _in_brackets(self, text: str, at: int, depth: int) -> int:
        return self._between(" (", ")", text, at, depth)

    def _between(self, before: str, after: str, text: str, at: int, depth: int) -> int:
        argument, at = read_argument(text, _options(text, at))
        self.out.append(before)
        self._convert_nested(argument, depth)
        self.out.append(after)
        return at

    def _verbatim(self, text: str, at: int, depth: int) -> int:
        mark = text[at : at + 1]
        end = text.find(mark, at + 1)
        if not mark or end < 0:
            return _after_unknown(text, at)
        self._keep(text[at + 1 : end])
        return end + 1

    def _accent(self, mark: str, text: str, at: int) -> int:
        base, at = read_argument(text, at)
        self.out.append(accented(mark, base))
        return at

    def _drop_arguments(self, name: str, text: str, at: int) -> int:
        self.out.append(GAP if name in GAP_COMMANDS else "")
        at = _options(text, at)
        for _ in range(ARGUMENTS_DROPPED[name]):
            start = _skip_blanks(text, at)
            if text[start : start + 1] != "{":
                break
            at = _options(text, read_argument(text, start)[1])
        return at

    def _convert_nested(self, text: str, depth: int) -> None:
        if depth < 30:
            self._convert(text, depth + 1)

    def _item(self, text: str, at: int, depth: int) -> int:
        self.out.append("\n- ")
        start = _skip_blanks(text, at)
        if text[start : start + 1] == "[" and (found := braced_group(text, start, "[]")):
            self._convert_nested(found[0], depth)
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
        """Like `text.find`, but a mark that does not occur again is searched for only once."""
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
            return at  # an unmatched dollar sign
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
        """Append text that later steps must not change."""
        self.stash.append(_STASHED.sub("", text))
        self.out.append(f"\x02{len(self.stash) - 1}\x03")

    def _environment(self, text: str, at: int, depth: int) -> int:
        full, at = read_argument(text, at)
        name = full.strip().rstrip("*")
        if name not in _HANDLED_ENVIRONMENTS:
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
_HANDLED_ENVIRONMENTS = FORMULAS | LITERAL | LEFT_OUT | FLOATS
_MARKS = {"{": "", "}": "", "~": " ", "&": " ", "``": "“", "''": "”", "\n": " "}


def _dash(mark: str) -> str:
    return {2: "–", 3: "—"}.get(len(mark), mark)


def _options(text: str, at: int) -> int:
    """The position after up to three options in square brackets."""
    for _ in range(3):
        found = _OPTION.match(text, at)
        inside = braced_group(text, found.end(), "[]") if found else None
        if inside is None:
            return at
        at = inside[1]
    return at


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _after_unknown(text: str, at: int) -> int:
    """The position after an unknown command: after its options, but only if arguments follow them."""
    end = _options(text, at)
    return end if end > at and text[end : end + 1] == "{" else _skip_blanks(text, at)
