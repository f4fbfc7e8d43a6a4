"""Wikitext to plain text, in one linear pass for each kind of markup.

    WikitextCleaner(language="de").clean("'''Ein''' [[Satz (Musik)|Satz]].{{Belege}}")   ->  "Ein Satz."

What is left out: templates (but for those that hold text, `wikitext_names.py`), tables, references, galleries, media,
categories, links to other languages, comments, magic words, and headings of sections that are empty then. What is kept:
the words of links and headings, list items, code, and formulas as LaTeX between dollars.

It gives up expanding templates: those of a wiki are programs, and not in its articles. Hence a sentence may lack what a
template would have shown, and text is what people wrote in the page itself.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from gristmill.download.markup_gaps import GAP, close_gaps
from gristmill.download.wiki.wikitext_names import BY_LANGUAGE, CATEGORY, MEDIA, TEMPLATES

KEEP, DROP = "keep", "drop"
_OPEN, _SHUT = "\x02", "\x03"
_DEEPEST = 40
"""Nesting beyond this is not followed, as in MediaWiki: each level costs a copy of what is in it."""

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
    """Turns pages of one wiki into text. `namespaces` are further names of media and categories."""

    def __init__(self, language: str = "en", math: str = KEEP, namespaces: Iterable[str] = ()) -> None:
        if math not in (KEEP, DROP):
            raise ValueError(f"math is {math!r}, must be 'keep' or 'drop'")
        self.language = language
        self.math = math
        self.templates = {**TEMPLATES, **BY_LANGUAGE.get(language, {})}
        self.dropped = MEDIA | CATEGORY | {name.strip().lower() for name in namespaces}

    def clean(self, text: str, title: str = "") -> str:  # noqa: C901  a step for each kind of markup
        """The text of a page. It never fails, whatever the page holds."""
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
        broken = False
        if "{" in text or "}" in text:
            text, broken = self._braces(text, title)
        if "[" in text:
            text = _WEB.sub(lambda found: found[1].strip() or GAP, self._links(text))
        if "<" in text:
            text = _html(text)
        if "''" in text:
            text = _quotes(text)
        if "__" in text:
            text = _MAGIC.sub(lambda found: GAP if found[1] == found[1].upper() else found[0], text)
        text = _lines(_LEFTOVER.sub("", text), broken)
        if "&" in text:
            text = _entities(text)
        text = close_gaps(text)
        return _STASHED.sub(lambda found: stash[int(found[1])], text).strip() if stash else text

    def _opaque(self, text: str, stash: list[str]) -> str:
        """Without comments, and what is in tags that hold no wikitext, or none to be kept."""
        pieces: list[str] = []
        done = 0
        missing: set[str] = set()
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
        """Without templates and tables; and whether a table was not closed."""
        stack: list[tuple[str, list[str]]] = []
        out: list[str] = []
        pieces = out
        open_now = {"{{": 0, "{|": 0}
        done = at = 0
        while found := _BRACES.search(text, at):
            token, at = found.group(), found.end()
            if "|" in token and not _begins_line(text, found.start()):
                at -= 1
                continue
            pieces.append(text[done : found.start()])
            done = at
            if token in open_now:
                if len(stack) < _DEEPEST:
                    pieces = []
                    stack.append((token, pieces))
                    open_now[token] += 1
                continue
            opener = "{{" if token == "}}" else "{|"  # noqa: S105
            if not open_now[opener]:
                continue
            inside: list[str] = []
            while True:
                kind, held = stack.pop()
                open_now[kind] -= 1
                inside = held + inside
                if kind == opener:
                    break
            pieces = stack[-1][1] if stack else out
            pieces.append(self._template(inside, title) if opener == "{{" else GAP)
        for kind, held in stack:
            out += ["|", *held] if kind == "{|" else held
        out.append(text[done:])
        return "".join(out), open_now["{|"] > 0

    def _template(self, pieces: list[str], title: str) -> str:
        """What a template shows, if it is one that holds text; most do not."""
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
        """Chinese and others: `-{zh-hans:软件; zh-hant:軟體}-` is written for several scripts."""
        flags, bar, rest = found[1].partition("|")
        if bar and set(flags.strip()) & set("HTADR-"):
            if set(flags.strip()) & set("HT-"):
                return GAP
            flags = rest
        elif bar:
            flags = rest
        choices = [part.partition(":") for part in flags.split(";") if ":" in part]
        if not choices:
            return flags
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
                if len(stack) < _DEEPEST:
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
        """The words of a link: none for media, categories and other languages."""
        first = pieces[0]
        space, colon, _ = first.partition(":")
        if colon and space and space.strip().lower().replace("_", " ") in self.dropped:
            return GAP
        target, bar, words = "".join(pieces).partition("|")
        if bar:
            return words if words.strip() else re.sub(r"^[^:]*:|\s*\([^()]*\)$", "", target)
        if colon and space and _FOREIGN.match(first):
            return GAP
        return target.removeprefix(":").strip("\n")


def _parameters(body: str) -> list[str]:
    """The parts of a template between its bars, but for bars in links."""
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
    """Where a reference ends. One that was never closed ends with its line, or where the next begins."""
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
    """Tables begin and end at the start of a line, but for indents and lists."""
    line = text.rfind("\n", max(0, start - 20), start)
    return not text[line + 1 : start].strip(" :*#\x01") and (line >= 0 or start < 20)


def _quotes(text: str) -> str:
    """Without the marks of bold and italic. `l'''arbre''` holds an apostrophe: as in MediaWiki, the counts tell."""
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
    spared = -1
    if bold % 2 and italic % 2:
        threes = [start for start, length in runs if length == 3]
        single = [at for at in threes if at and line[at - 1].isalpha() and (at < 2 or line[at - 2] in " (\x01")]
        spared = next(iter([*single, *(at for at in threes if at and line[at - 1].isalpha())]), -1)

    def left(found: re.Match[str]) -> str:
        length = len(found.group())
        return "'" * (1 if length == 4 or found.start() == spared else max(length - 5, 0) % 2)

    return _QUOTES.sub(left, line)


def _lines(text: str, broken: bool) -> str:  # noqa: C901  a case for each first letter
    """Headings, lists and indents as plain lines. A heading waits until there is something under it."""
    out: list[str] = []
    waiting: list[tuple[int, str]] = []
    for raw in text.split("\n"):
        line = raw
        first = line[:1]
        if first == "=" and (found := _HEADING.match(line)):
            level = len(found[1])
            while waiting and waiting[-1][0] >= level:
                waiting.pop()
            waiting.append((level, found[2].strip(" \t=")))
            continue
        if first in ("*", "#", ":", ";"):
            words = line.lstrip("*#:; \t")
            line = f"- {words}" if set(line[: len(line) - len(words)]) & {"*", "#"} and words.strip(" \x01") else words
        elif first == " ":
            line = line.lstrip()
        elif first == "-" and line.startswith("----"):
            line = line.lstrip("-")
        elif broken and first in ("|", "!"):
            continue
        if line.strip(" \t\x01"):
            for _, heading in waiting:
                out += ["", heading, ""]
            waiting.clear()
            out.append(line.rstrip(" "))
        elif not line.strip(" "):
            out.append("")
    return "\n".join(out)


def _entities(text: str) -> str:
    """With characters for entities, which unlike those of HTML end with a semicolon."""
    text = _ENTITY.sub(lambda found: html.unescape(found.group()), text)
    return text.replace("\xa0", " ")
