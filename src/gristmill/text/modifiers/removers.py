"""Modifiers that remove or replace parts of a document: lines, quotes, Markdown, URLs, policies; one adds a label.

Where Arrow gives exactly the result of `modify_document`, a modifier changes the column at once. Otherwise it is
applied only to the rows in which a fast search of the column has found something.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.samples.argument_checks import check_count
from gristmill.text.document_modifier import DocumentModifier
from gristmill.text.statistics.kernel_reference import LOREM_IPSUM, POLICY_PHRASES
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.text.text_columns import Texts

ROWS_PER_REPLACE = 1024
"""Text is replaced in this many rows at a time, which bounds the memory of intermediate columns."""

REMOVED_URL = r"(?i)https?://\S+|www\.\S+"
"""What counts as a URL in `UrlRemover`, in any case. `SCORED_URL` of `statistics/kernel_reference.py` is stricter."""


def replace_patterns(texts: Texts, rules: Sequence[tuple[str, str]]) -> pa.Array:
    """The column with matches of RE2 patterns replaced, one pattern after the other."""
    column = as_array(texts)
    pieces = [column.slice(start, ROWS_PER_REPLACE) for start in range(0, len(column), ROWS_PER_REPLACE)]
    for index in range(len(pieces)):
        for pattern, new in rules:
            pieces[index] = pc.replace_substring_regex(pieces[index], pattern, new)
    return pa.concat_arrays(pieces) if pieces else column


def modify_matching_rows(texts: Texts, suspect: str, modify: Callable[[str], str]) -> pa.Array:
    """The column with `modify` applied to the rows that match the RE2 pattern `suspect`."""
    texts = as_array(texts)
    rows = pc.match_substring_regex(texts, suspect).fill_null(literal(False, pa.bool_()))
    if not rows.true_count:
        return texts
    return pc.replace_with_mask(texts, rows, make_array(map(modify, texts.filter(rows).to_pylist()), pa.string()))


def escape_for_re2(text: str) -> str:
    """A text as an RE2 pattern. RE2 does not accept all that `re.escape` returns."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


class LineRemover(DocumentModifier):
    """Removes the lines that are equal to one of the `patterns`, which are plain text. Lines end with \\n."""

    def __init__(self, patterns: Sequence[str]) -> None:
        if isinstance(patterns, str):
            raise TypeError(f"LineRemover: patterns must be a list of lines, as in patterns=[{patterns!r}]")
        bad = [line for line in patterns if "\n" in line]
        if bad:
            raise ValueError(
                f"LineRemover: {bad[0]!r} has several lines, so no line is equal to it: give each line by itself"
            )
        self.patterns = patterns

    def modify_document(self, text: str) -> str:
        patterns = frozenset(self.patterns)
        return "\n".join([line for line in text.split("\n") if line not in patterns])

    def modify_batch(self, texts: Texts) -> pa.Array:
        if not self.patterns:
            return as_array(texts)
        lines = "|".join(map(escape_for_re2, self.patterns))
        return modify_matching_rows(texts, f"(?m)^(?:{lines})$", self.modify_document)


class MarkdownRemover(DocumentModifier):
    """Removes the marks of bold (**), italic (*) and underlined (_) text and of links, in this order, line by line.

    As in NeMo Curator, a link `[label](url)` becomes its URL; `links="label"` keeps the label instead. Also as there,
    any two underscores of a line count as marks, so `snake_case_name` becomes `snakecasename`.
    """

    _MARKS = ((r"\*\*(.*?)\*\*", r"\1"), (r"\*(.*?)\*", r"\1"), (r"_(.*?)_", r"\1"))

    def __init__(self, links: Literal["url", "label"] = "url") -> None:
        if links not in ("url", "label"):
            raise ValueError(f"MarkdownRemover: links is {links!r}, must be 'url' or 'label'")
        self.links = links

    def _rules(self) -> tuple[tuple[str, str], ...]:
        return (*self._MARKS, (r"\[(.*?)\]\((.*?)\)", r"\2" if self.links == "url" else r"\1"))

    def modify_document(self, text: str) -> str:
        for pattern, inner in self._MARKS:
            text = re.sub(pattern, inner, text)
        return "\n".join(self._without_links(line) for line in text.split("\n")) if "](" in text else text

    def _without_links(self, line: str) -> str:
        """What the rule for links does, for which `re` would need cubic time."""
        pieces: list[str] = []
        at = 0
        while True:
            start = line.find("[", at)
            middle = line.find("](", start + 1) if start >= 0 else -1
            end = line.find(")", middle + 2) if middle >= 0 else -1
            if end < 0:
                return "".join([*pieces, line[at:]])
            link = line[middle + 2 : end] if self.links == "url" else line[start + 1 : middle]
            pieces += [line[at:start], link]
            at = end + 1

    def modify_batch(self, texts: Texts) -> pa.Array:
        return replace_patterns(texts, self._rules())


class QuotationRemover(DocumentModifier):
    """Removes the straight double quotes around a document.

    A document of several lines keeps them when its first line ends with a quote: then only that line is quoted. A
    document of only two quotes is not changed.
    """

    def modify_document(self, text: str) -> str:
        if len(text) <= 2 or text[0] != '"' or text[-1] != '"':
            return text
        first, line_end, _ = text.partition("\n")
        return text if line_end and first.endswith('"') else text[1:-1]

    def modify_batch(self, texts: Texts) -> pa.Array:
        return modify_matching_rows(texts, r'(?s)\A".+"\z', self.modify_document)


class Slicer(DocumentModifier):
    """Keeps the part of a document from `left` to `right`.

    A number is an index, as in Python. A string is searched for: the first `left` and the last `right`; a document
    without it becomes empty. With `include_left` and `include_right`, the string belongs to the part. With `strip`,
    white space is removed from the ends of the part.
    """

    def __init__(
        self,
        left: int | str = 0,
        right: int | str | None = None,
        include_left: bool = True,
        include_right: bool = True,
        strip: bool = True,
    ) -> None:
        for name, bound in (("left", left), ("right", right)):
            if bound is not None and not isinstance(bound, str):
                check_count("Slicer", name, bound, least=-(2**63))
            if bound == "":
                raise ValueError(f"Slicer: {name} is an empty string: give an index or some text")
        self.left, self.right, self.strip = left, right, strip
        self.include_left, self.include_right = include_left, include_right

    def modify_document(self, text: str) -> str:
        start, end = self.left, self.right
        if isinstance(start, str):
            index = text.find(start)
            if index < 0:
                return ""
            start = index if self.include_left else index + len(start)
        if isinstance(end, str):
            index = text.rfind(end)
            if index < 0:
                return ""
            end = index + len(end) if self.include_right else index
        part = text[start:end]
        return part.strip() if self.strip else part


class NewlineNormalizer(DocumentModifier):
    """Replaces three or more line ends in a row by two, for both \\n and \\r\\n."""

    _RULES = ((r"\n{3,}", "\n\n"), (r"(?:\r\n){3,}", "\r\n\r\n"))

    def modify_document(self, text: str) -> str:
        for pattern, line_ends in self._RULES:
            text = re.sub(pattern, line_ends, text)
        return text

    def modify_batch(self, texts: Texts) -> pa.Array:
        return replace_patterns(texts, self._RULES)


class QuotationUnifier(DocumentModifier):
    """Replaces curly quotes by straight ones: ‘ ’ ‚ ‛ become ', and “ ” „ ‟ become \". Guillemets are kept."""

    _RULES = (("[‘’‚‛]", "'"), ("[“”„‟]", '"'))

    def modify_document(self, text: str) -> str:
        for pattern, quote in self._RULES:
            text = re.sub(pattern, quote, text)
        return text

    def modify_batch(self, texts: Texts) -> pa.Array:
        return replace_patterns(texts, self._RULES)


class UrlRemover(DocumentModifier):
    """Removes URLs: `https?://\\S+|www\\.\\S+`, also in capitals. The white space around them is kept."""

    # \S of RE2 knows only ASCII white space; this is that of Python
    _SPACE = r"\x{9}-\x{d}\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"

    def modify_document(self, text: str) -> str:
        return re.sub(REMOVED_URL, "", text)

    def modify_batch(self, texts: Texts) -> pa.Array:
        return as_array(pc.replace_substring_regex(texts, REMOVED_URL.replace(r"\S", f"[^{self._SPACE}]"), ""))


class BoilerPlateStringModifier(DocumentModifier):
    """Removes paragraphs with a policy phrase, such as "privacy policy", from the top and bottom of a document.

    Paragraphs are separated by blank lines (\\n\\n). Those at the top, up to the first without such a phrase, and
    those at the bottom are removed; with `remove_if_at_top_or_bottom=False`, all others too. A document that contains
    "lorem ipsum" becomes empty. Case does not matter.
    """

    _SUSPECT = "(?i)" + "|".join([LOREM_IPSUM, *POLICY_PHRASES])

    def __init__(self, remove_if_at_top_or_bottom: bool = True) -> None:
        self.remove_if_at_top_or_bottom = remove_if_at_top_or_bottom

    def modify_document(self, text: str) -> str:
        if LOREM_IPSUM in text.lower():
            return ""
        paragraphs = text.split("\n\n")
        notices = [any(phrase in paragraph.lower() for phrase in POLICY_PHRASES) for paragraph in paragraphs]
        if not any(notices):
            return text
        first, last = 0, len(paragraphs)
        if self.remove_if_at_top_or_bottom:
            while first < last and notices[first]:
                first += 1
            while first < last and notices[last - 1]:
                last -= 1
            return "\n\n".join(paragraphs[first:last])
        return "\n\n".join([part for part, notice in zip(paragraphs, notices, strict=True) if not notice])

    def modify_batch(self, texts: Texts) -> pa.Array:
        return modify_matching_rows(texts, self._SUSPECT, self.modify_document)


class FastTextLabelModifier(DocumentModifier):
    """Turns a document into a line of a fastText training file: the label, a space, and the text on one line.

    Line feeds become spaces, and so does `__label__` in the text, which fastText would read as another label.
    """

    def __init__(self, label: str) -> None:
        if not label.strip() or label.split() != [label]:
            raise ValueError(f"FastTextLabelModifier: label is {label!r}, must be one word, such as '__label__hq'")
        self.label = label

    def modify_document(self, text: str) -> str:
        line = text.replace("\n", " ").replace("__label__", " ")
        return f"{self.label} {line}"

    def modify_batch(self, texts: Texts) -> pa.Array:
        lines = pc.replace_substring(pc.replace_substring(as_array(texts), "\n", " "), "__label__", " ")
        label, space = literal(self.label, pa.string()), literal(" ", pa.string())
        return as_array(pc.binary_join_element_wise(label, lines, space))
