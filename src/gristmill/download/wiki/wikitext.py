"""Wikitext to plain text, in one linear pass for each kind of markup.

    WikitextCleaner(language="de").clean("'''Ein''' [[Satz (Musik)|Satz]].{{Belege}}")   ->  "Ein Satz."

Removes templates (except those that hold text, see `wikitext_names.py`), tables, references, galleries, media,
categories, links to other languages, comments, magic words, and headings of sections that are then empty. Keeps the
text of links and headings, list items, code, and formulas as LaTeX between dollar signs.

Gives up: expanding templates, which are programs and not part of the page. A sentence may lack what a template would
have shown.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from gristmill.download.markup_gaps import GAP, close_gaps
from gristmill.download.wiki.wikitext_names import BY_LANGUAGE, CATEGORY, MEDIA, TEMPLATES

KEEP, DROP = "keep", "drop"
_OPEN, _SHUT = "\x02", "\x03"  # enclose the index of a piece of text that later steps must not change
_MAX_DEPTH = 40
"""Nesting beyond this is not followed, as in MediaWiki: each level costs a copy of its content."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TAGS = (
    "abbr|b|bdi|bdo|big|blockquote|br|caption|center|cite|code|col|colgroup|data|dd|del|dfn|div|dl|dt|em|font|h[1-6]|hr|i|"
    "ins|kbd|li|link|mark|meta|ol|p|poem|q|rb|rbc|rp|rt|rtc|ruby|s|samp|small|span|strike|strong|sub|sup|table|td|th|time|"
    "tr|tt|u|ul|var|wbr|noinclude|includeonly|onlyinclude|section|langconvert|tvar|translate|ref|references|nowiki|pre|"
    "math|"
    "source|syntaxhighlight|gallery|chem|ce"
)
_LITERAL = ("nowiki", "pre", "source", "syntaxhighlight")
_FORMULA = ("math", "chem", "ce")
_LEFT_OUT = (
    "ref", "references", "gallery", "timeline", "imagemap", "score", "mapframe", "maplink", "graph", "hiero",
    "inputbox", "categorytree", "templatedata", "templatestyles", "indicator", "section", "dynamicpagelist",
    "includeonly", "rss",
)  # fmt: skip
_OPAQUE = re.compile(rf"<!--|<({'|'.join((*_LITERAL, *_FORMULA, *_LEFT_OUT))})\b([^<>]*)>", re.IGNORECASE)
_CLOSE = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in (*_LITERAL, *_FORMULA, *_LEFT_OUT)}
_REF = re.compile(r"<(/?)ref\b[^<>]*>", re.IGNORECASE)
_PARAMETER = re.compile(r"\{\{\{[^{}|]*(?:\|([^{}]*))?\}\}\}")
_BRACES = re.compile(r"\{\{|\}\}|\{\||\|\}(?!\}(?!\}))")
_PLAIN_LINK = re.compile(r"\[\[(?:[^\[\]|:]*\|([^\[\]|]+)|([^\[\]|:]+))\]\]")
_BRACKETS = re.compile(r"\[\[|\]\]")
_BAR = re.compile(r"\[\[|\]\]|\|")
_WEB = re.compile(r"\[(?:[a-z][a-z0-9+.-]{1,20}:|//)[^\s\[\]]*+([^\[\]\n]*+)\]", re.IGNORECASE)
_HIDDEN = re.compile(r"<(span|div)\b[^<>]{0,300}display\s{0,9}:\s{0,9}none[^<>]{0,300}>[^<>]*</\1\s*>", re.IGNORECASE)
_RAISED = re.compile(r"<su([bp])\b[^<>]*>([0-9+\-−=()n]{1,8})</su\1\s*>", re.IGNORECASE)
_BREAK = re.compile(r"<(br|hr|p|/p|li|/li|/div|/blockquote|/tr|h[1-6]|/h[1-6])\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(rf"</?(?:{_TAGS})\b[^<>]*>", re.IGNORECASE)
_QUOTES = re.compile(r"'{2,}")
_HEADING = re.compile(r"(={1,6})(.+?)\1[\s\x01]*$")
_MAGIC = re.compile(r"__([^\W\d_](?:\w*[^\W_])?)__")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_STASHED = re.compile(f"{_OPEN}([0-9]+){_SHUT}")
_VARIANT = re.compile(r"-\{([^{}]*)\}-")
_LEFTOVER = re.compile(r"\{\{+|\}\}+|\[\[+|\]\]+|\{\||\|\}")
_FOREIGN = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?:[^\s|]")
_UP = str.maketrans("0123456789+-−=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿ")
_DOWN = str.maketrans("0123456789+-−=()n", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₙ")


class WikitextCleaner:
    """Turns pages of one wiki into text. `namespaces` are the wiki's own names for media and categories."""

    def __init__(self, language: str = "en", math: str = KEEP, namespaces: Iterable[str] = ()) -> None:
        if math not in (KEEP, DROP):
            raise ValueError(f"math is {math!r}, must be 'keep' or 'drop'")
        self.language = language
        self.math = math
        self.templates = {**TEMPLATES, **BY_LANGUAGE.get(language, {})}
        self.dropped = MEDIA | CATEGORY | {name.strip().lower() for name in namespaces}

    def clean(self, text: str, title: str = "") -> str:  # noqa: C901  a step for each kind of markup
        """The text of a page. Never raises, whatever the page contains."""
        if GAP in text or _OPEN in text or _SHUT in text:
            text = _CONTROL.sub("", text)
        text = text.replace("\r\n", "\n").replace("\t", " ").replace("\xa0", " ")
        stash: list[str] = []
        if "<" in text:
            text = self._opaque(text, stash)
        if "-{" in text:
            text = _VARIANT.sub(self._variant, text)
        if "{{{" in text:
            text = _PARAMETER.sub(lambda found: found[1] or "", text)
        unclosed_table = False
        if "{" in text or "}" in text:
            text, unclosed_table = self._braces(text, title)
        if "[" in text:
            text = _WEB.sub(lambda found: found[1].strip() or GAP, self._links(text))
        if "<" in text:
            text = _html(text)
        if "''" in text:
            text = _quotes(text)
        if "__" in text:
            text = _MAGIC.sub(lambda found: GAP if found[1] == found[1].upper() else found[0], text)
        text = _lines(_LEFTOVER.sub("", text), unclosed_table)
        if "&" in text:
            text = _entities(text)
        text = close_gaps(text)
        return _STASHED.sub(lambda found: stash[int(found[1])], text).strip() if stash else text

    def _opaque(self, text: str, stash: list[str]) -> str:
        """Remove comments and the content of tags that is not wikitext or not kept; stash what is kept as it is."""
        pieces: list[str] = []
        done = 0
        missing: set[str] = set()  # ends that do not occur again: searching for each again would be quadratic
        while found := _OPAQUE.search(text, done):
            start, end = found.span()
            pieces.append(text[done:start])
            name = (found[1] or "").lower()
            if not name:
                close = text.find("-->", end) if "-->" not in missing else -1
                missing.update(["-->"] if close < 0 else [])
                done = close + 3 if close >= 0 else end
                continue
            if name == "ref":
                done = end if found[2].endswith("/") else _end_of_ref(text, end)
                pieces.append(GAP)
                continue
            shut = None if found[2].endswith("/") or name in missing else _CLOSE[name].search(text, end)
            if shut is None:
                if not found[2].endswith("/"):
                    missing.add(name)
                done = end
                continue
            done = shut.end()
            pieces.append(self._enclosed(name, text[end : shut.start()], stash))
        pieces.append(text[done:])
        return "".join(pieces)

    def _enclosed(self, name: str, content: str, stash: list[str]) -> str:
        if name in _LEFT_OUT or (name in _FORMULA and self.math == DROP) or not content.strip():
            return GAP
        content = _entities(content)
        if name in _FORMULA:
            content = f"${' '.join(content.split())}$"
        stash.append(content)
        mark = f"{_OPEN}{len(stash) - 1}{_SHUT}"
        return mark if name not in ("pre", "source", "syntaxhighlight") or "\n" not in content else f"\n{mark}\n"

    def _braces(self, text: str, title: str) -> tuple[str, bool]:
        """Replace templates by their text, and remove tables. Also returns whether a table is unclosed."""
        stack: list[tuple[str, list[str]]] = []
        out: list[str] = []
        pieces = out
        open_counts = {"{{": 0, "{|": 0}
        done = at = 0
        while found := _BRACES.search(text, at):
            token, at = found.group(), found.end()
            if "|" in token and not _begins_line(text, found.start()):
                at -= 1
                continue
            pieces.append(text[done : found.start()])
            done = at
            if token in open_counts:
                if len(stack) < _MAX_DEPTH:
                    pieces = []
                    stack.append((token, pieces))
                    open_counts[token] += 1
                continue
            opener = "{{" if token == "}}" else "{|"  # noqa: S105
            if not open_counts[opener]:
                continue
            inside: list[str] = []
            while True:
                kind, held = stack.pop()
                open_counts[kind] -= 1
                inside = held + inside
                if kind == opener:
                    break
            pieces = stack[-1][1] if stack else out
            pieces.append(self._template(inside, title) if opener == "{{" else GAP)
        for kind, held in stack:
            out += ["|", *held] if kind == "{|" else held
        out.append(text[done:])
        return "".join(out), open_counts["{|"] > 0

    def _template(self, pieces: list[str], title: str) -> str:
        """The text that a template shows, or a gap: most templates hold no text."""
        name = pieces[0].partition("|")[0].strip().lower().replace("_", " ")
        if name in ("pagename", "fullpagename", "pagetitle"):
            return title
        function, colon, rest = name.partition(":")
        shown = self.templates.get(name)
        if shown is None and name.startswith("lang-"):
            shown = self.templates["lang"]
        if shown is None:
            kept = colon and function in ("formatnum", "lc", "uc", "lcfirst", "ucfirst")
            return pieces[0].partition(":")[2].strip() if kept and rest else GAP
        args: list[str] = []
        named: dict[str, str] = {}
        for part in _parameters("".join(pieces))[1:]:
            key, equals, value = part.partition("=")
            if equals and "[" not in key and "<" not in key and len(key) < 30:
                named[key.strip().lower()] = value.strip()
            else:
                args.append(part.strip())
        for number in range(len(args) + 1, 10):
            if str(number) not in named:
                break
            args.append(named[str(number)])
        return shown(args, named) or GAP

    def _variant(self, found: re.Match[str]) -> str:
        """Language variants, as in Chinese: `-{zh-hans:软件; zh-hant:軟體}-` has one text for each script."""
        flags, bar, content = found[1].partition("|")
        if not bar:
            content = flags
        elif set(flags.strip()) & set("HT-"):  # hidden: a rule or a title, not text
            return GAP
        choices = [part.partition(":") for part in content.split(";") if ":" in part]
        if not choices:
            return content
        named = {key.strip().lower(): value.strip() for key, _, value in choices}
        for key in (f"{self.language}-hans", f"{self.language}-cn", self.language):
            if key in named:
                return named[key]
        return next(iter(named.values()))

    def _links(self, text: str) -> str:
        stack: list[list[str]] = []
        out: list[str] = []
        pieces = out
        done = 0
        text = _PLAIN_LINK.sub(r"\1\2", text)
        for found in _BRACKETS.finditer(text):
            pieces.append(text[done : found.start()])
            done = found.end()
            if found.group() == "[[":
                if len(stack) < _MAX_DEPTH:
                    pieces = []
                    stack.append(pieces)
            elif stack:
                held = stack.pop()
                pieces = stack[-1] if stack else out
                pieces.append(self._link(held))
        for held in stack:
            out += held
        out.append(text[done:])
        return "".join(out)

    def _link(self, pieces: list[str]) -> str:
        """The text of a link, or a gap for media, categories and other languages."""
        first = pieces[0]
        space, colon, _ = first.partition(":")
        if colon and space and space.strip().lower().replace("_", " ") in self.dropped:
            return GAP
        target, bar, label = "".join(pieces).partition("|")
        if bar:
            return label if label.strip() else re.sub(r"^[^:]*:|\s*\([^()]*\)$", "", target)
        if colon and space and _FOREIGN.match(first):
            return GAP
        return target.removeprefix(":").strip("\n")


def _parameters(body: str) -> list[str]:
    """Split the body of a template at bars, except bars inside links."""
    parts: list[str] = []
    start = depth = 0
    for found in _BAR.finditer(body):
        if found.group() != "|":
            depth = depth + 1 if found.group() == "[[" else max(depth - 1, 0)
        elif not depth:
            parts.append(body[start : found.start()])
            start = found.end()
    return [*parts, body[start:]]


def _end_of_ref(text: str, start: int) -> int:
    """The end of a reference. One that is never closed ends with its line, or where the next begins."""
    found = _REF.search(text, start)
    if found and found[1]:
        return found.end()
    line = text.find("\n", start)
    ends = [end for end in (found.start() if found else -1, line) if end >= 0]
    return min(ends, default=start)


def _html(text: str) -> str:
    text = _HIDDEN.sub(GAP, text)
    text = _RAISED.sub(lambda found: found[2].translate(_UP if found[1] in "pP" else _DOWN), text)
    return _TAG.sub("", _BREAK.sub("\n", text))


def _begins_line(text: str, start: int) -> bool:
    """Whether only indents and list marks precede: tables begin and end at the start of a line."""
    line = text.rfind("\n", max(0, start - 20), start)
    return not text[line + 1 : start].strip(" :*#\x01") and (line >= 0 or start < 20)


def _quotes(text: str) -> str:
    """Remove the marks of bold and italic. In `l'''arbre''` one quote is an apostrophe, found as MediaWiki does it."""
    pieces: list[str] = []
    done = 0
    while (found := text.find("''", done)) >= 0:
        start = max(text.rfind("\n", done, found), done)
        end = text.find("\n", found)
        end = len(text) if end < 0 else end
        pieces += [text[done:start], _line_quotes(text[start:end])]
        done = end
    return "".join([*pieces, text[done:]])


def _line_quotes(line: str) -> str:
    runs = [(found.start(), found.end() - found.start()) for found in _QUOTES.finditer(line)]
    bold = sum(length in (3, 4) or length >= 5 for _, length in runs)
    italic = sum(length == 2 or length >= 5 for _, length in runs)
    apostrophe = -1  # where a run of three quotes is an apostrophe and italic
    if bold % 2 and italic % 2:
        threes = [start for start, length in runs if length == 3]
        single = [at for at in threes if at and line[at - 1].isalpha() and (at < 2 or line[at - 2] in " (\x01")]
        apostrophe = next(iter([*single, *(at for at in threes if at and line[at - 1].isalpha())]), -1)

    def remaining(found: re.Match[str]) -> str:
        length = len(found.group())
        return "'" * (1 if length == 4 or found.start() == apostrophe else max(length - 5, 0) % 2)

    return _QUOTES.sub(remaining, line)


def _lines(text: str, unclosed_table: bool) -> str:  # noqa: C901  a case for each first character
    """Headings, lists and indents as plain lines. Headings of empty sections are removed."""
    out: list[str] = []
    pending: list[tuple[int, str]] = []  # headings without text so far: level, heading
    for raw in text.split("\n"):
        line = raw
        first = line[:1]
        if first == "=" and (found := _HEADING.match(line)):
            level = len(found[1])
            while pending and pending[-1][0] >= level:
                pending.pop()
            pending.append((level, found[2].strip(" \t=")))
            continue
        if first in ("*", "#", ":", ";"):
            words = line.lstrip("*#:; \t")
            line = f"- {words}" if set(line[: len(line) - len(words)]) & {"*", "#"} and words.strip(" \x01") else words
        elif first == " ":
            line = line.lstrip()
        elif first == "-" and line.startswith("----"):
            line = line.lstrip("-")
        elif unclosed_table and first in ("|", "!"):
            continue
        if line.strip(" \t\x01"):
            for _, heading in pending:
                out += ["", heading, ""]
            pending.clear()
            out.append(line.rstrip(" "))
        elif not line.strip(" "):
            out.append("")
    return "\n".join(out)


def _entities(text: str) -> str:
    """Replace entities by characters. Unlike in HTML, entities must end with a semicolon."""
    text = _ENTITY.sub(lambda found: html.unescape(found.group()), text)
    return text.replace("\xa0", " ")
