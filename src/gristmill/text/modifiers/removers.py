"""Modifiers that take something off a document: lines, quotes, Markdown, all but a part; and one that adds a label.

Each works on a whole column where Arrow gives exactly the result of `modify_document`, or else only on the rows that
a cheap look over the column has found something in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.text.document_filter import as_array, check_count
from gristmill.text.modifiers.document_modifier import DocumentModifier, replace_patterns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.text.document_filter import Texts


def modify_matching_rows(texts: Texts, suspect: str, modify: Callable[[str], str]) -> pa.Array:
    """The column with `modify` applied to the rows that match the RE2 pattern `suspect`; the others as they are."""
    texts = as_array(texts)
    rows = pc.match_substring_regex(texts, suspect).fill_null(literal(False, pa.bool_()))
    if not rows.true_count:
        return texts
    return pc.replace_with_mask(texts, rows, make_array(map(modify, texts.filter(rows).to_pylist()), pa.string()))


def escape_for_re2(text: str) -> str:
    """Text as an RE2 pattern, which does not take all that `re.escape` gives."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


class LineRemover(DocumentModifier):
    """Removes the lines that are equal to one of the `patterns`, which are plain text. Lines end with \\n."""

    def __init__(self, patterns: Sequence[str]) -> None:
        if isinstance(patterns, str):
            raise TypeError(f"LineRemover: patterns must be a list of lines, as in patterns=[{patterns!r}]")
        bad = [line for line in patterns if "\n" in line]
        if bad:
            raise ValueError(f"LineRemover: {bad[0]!r} is more than a line, so no line is equal to it: give its lines")
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

    As in NeMo Curator, a link `[label](url)` becomes its URL: `links="label"` keeps the label instead. Also as there,
    any two underscores of a line are taken for marks, so `snake_case_name` becomes `snakecasename`.
    """

    _MARKS = ((r"\*\*(.*?)\*\*", r"\1"), (r"\*(.*?)\*", r"\1"), (r"_(.*?)_", r"\1"))

    def __init__(self, links: Literal["url", "label"] = "url") -> None:
        if links not in ("url", "label"):
            raise ValueError(f"MarkdownRemover: links is {links!r}, must be 'url' or 'label'")
        self.links = links

    def _rules(self) -> tuple[tuple[str, str], ...]:
        return (*self._MARKS, (r"\[(.*?)\]\((.*?)\)", r"\2" if self.links == "url" else r"\1"))

    def modify_document(self, text: str) -> str:
        for pattern, inner in self._rules():
            text = re.sub(pattern, inner, text)
        return text

    def modify_batch(self, texts: Texts) -> pa.Array:
        return replace_patterns(texts, self._rules())


class QuotationRemover(DocumentModifier):
    """Removes the straight double quotes around a document.

    A document of several lines keeps them when its first line ends with a quote: then that line is quoted, not the
    whole. One that consists of the two quotes stays as it is.
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

    A number is an index, as in Python. A string is searched: the first `left` and the last `right`; a document without
    it becomes empty. `include_left` and `include_right` say whether a string that was found belongs to the part, and
    `strip` whether white space is taken off the ends of the part.
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
                raise ValueError(f"Slicer: {name} is empty text, which is everywhere: give an index or some text")
        self.left, self.right, self.strip = left, right, strip
        self.include_left, self.include_right = include_left, include_right

    def modify_document(self, text: str) -> str:
        start, end = self.left, self.right
        if isinstance(start, str):
            found = text.find(start)
            if found < 0:
                return ""
            start = found if self.include_left else found + len(start)
        if isinstance(end, str):
            found = text.rfind(end)
            if found < 0:
                return ""
            end = found + len(end) if self.include_right else found
        part = text[start:end]
        return part.strip() if self.strip else part


class FastTextLabelModifier(DocumentModifier):
    """Makes a line of a fastText training file: the label, a space, and the text on one line.

    Line feeds become spaces, and so does `__label__` in the text, which fastText would take for another label.
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
