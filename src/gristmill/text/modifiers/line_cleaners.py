"""Modifiers that drop lines or paragraphs which are not prose."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import is_text
from gristmill.samples.argument_checks import check_count
from gristmill.text.document_modifier import DocumentModifier
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.text.text_columns import Texts

LINE_END_MARKS = ".!?\"'。！？।؟"
"""What a line of prose ends with: the marks of C4, and those of other scripts."""

ELLIPSIS = "..."
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
MAX_KERNEL_RULES = 64
JAVASCRIPT = "javascript"
C4_POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
"""The phrases by which C4 knows lines about policies, in lower case."""


class LineCleaner(DocumentModifier):
    """Drops lines by the rules of C4, each of which can be turned off.

    A line is dropped when it has a word of more than `max_word_length` characters or fewer than `min_words` words, does
    not end with one of `end_marks` (or ends with an ellipsis of three dots), or contains one of `substrings`, in any
    case. Citation marks such as [1] and [citation needed] are removed. "" or None turns a rule off. White space at the
    ends of lines is removed.
    """

    def __init__(
        self,
        end_marks: str | None = LINE_END_MARKS,
        min_words: int = 3,
        max_word_length: int | None = 1000,
        substrings: Sequence[str] = (JAVASCRIPT, *C4_POLICY_PHRASES),
        remove_citations: bool = True,
    ) -> None:
        if isinstance(substrings, str):
            raise TypeError(f"LineCleaner: substrings must be a list, as in substrings=[{substrings!r}]")
        check_count("LineCleaner", "min_words", min_words)
        if max_word_length is not None:
            check_count("LineCleaner", "max_word_length", max_word_length, least=1)
        self.end_marks, self.min_words, self.max_word_length = end_marks, min_words, max_word_length
        self.substrings, self.remove_citations = substrings, remove_citations

    def modify_document(self, text: str) -> str:
        phrases = [phrase.lower() for phrase in self.substrings]
        return "\n".join(line for line in self.prose_lines(text) if not contains_any(line, phrases)).strip()

    def modify_batch(self, texts: Texts) -> pa.Array:
        texts = as_array(texts)
        rules = self.kernel_rules(self.substrings)
        if rules is None or not is_text(texts.type):
            return super().modify_batch(texts)
        ends, data, odd = kernels.clean_lines(texts, rules)
        sizes = pa.py_buffer(ends), pa.py_buffer(data)
        cleaned = pa.Array.from_buffers(pa.large_string(), len(texts), [None, *sizes]).cast(pa.string())
        if texts.null_count:
            cleaned = pc.if_else(pc.is_valid(texts), cleaned, literal(None, pa.string()))
        if 1 not in odd:
            return cleaned
        rows = make_array([flag == 1 for flag in odd], pa.bool_())
        return pc.replace_with_mask(cleaned, rows, super().modify_batch(texts.filter(rows)))

    def kernel_rules(self, phrases: Sequence[str]) -> tuple[str, int, int, bool, tuple[bytes, ...]] | None:
        """The rules as `_kernels` takes them, with these phrases; None if it cannot take them, or was not built."""
        lowered = [phrase.lower() for phrase in phrases]
        can = len(lowered) <= MAX_KERNEL_RULES and len(self.end_marks or "") <= MAX_KERNEL_RULES
        if kernels is None or not can or not all(map(str.isascii, lowered)) or "" in lowered:
            return None
        longest = -1 if self.max_word_length is None else min(self.max_word_length, 2**62)
        encoded = tuple(phrase.encode() for phrase in lowered)
        return self.end_marks or "", min(self.min_words, 2**62), longest, bool(self.remove_citations), encoded

    def prose_lines(self, text: str) -> Iterator[str]:
        """The lines that are kept unless they contain one of `substrings`."""
        marks = tuple(self.end_marks or "")
        for line in map(str.strip, text.splitlines()):
            words = line.split()
            if len(words) < self.min_words or self._has_long_word(line, words):
                continue
            bare = CITATION.sub("", line) if self.remove_citations and "[" in line else line
            if not marks or (bare.endswith(marks) and not bare.endswith(ELLIPSIS)):
                yield bare

    def _has_long_word(self, line: str, words: Sequence[str]) -> bool:
        longest = self.max_word_length
        return longest is not None and len(line) > longest and any(len(word) > longest for word in words)


def contains_any(line: str, phrases: Sequence[str]) -> bool:
    """Whether a line contains one of some phrases, which are in lower case."""
    lower = line.lower()
    return any(phrase in lower for phrase in phrases)


class ParagraphCleaner(DocumentModifier):
    """Drops paragraphs that are short or repeated.

    Paragraphs are separated by blank lines. A paragraph is dropped when it has fewer than `min_words` words or
    `min_characters` characters, or, with `drop_repeated`, when it occurred before in the document. The others are not
    changed and are separated by one blank line.
    """

    _BREAK = re.compile(r"\n[^\S\n]*\n\s*")

    def __init__(self, min_words: int = 0, min_characters: int = 0, drop_repeated: bool = True) -> None:
        check_count("ParagraphCleaner", "min_words", min_words)
        check_count("ParagraphCleaner", "min_characters", min_characters)
        self.min_words, self.min_characters, self.drop_repeated = min_words, min_characters, drop_repeated

    def modify_document(self, text: str) -> str:
        kept: list[str] = []
        seen: set[str] = set()
        for paragraph in self._BREAK.split(text):
            bare = paragraph.strip()
            short = len(bare) < self.min_characters or len(bare.split()) < self.min_words
            if not bare or short or (self.drop_repeated and bare in seen):
                continue
            seen.add(bare)
            kept.append(paragraph.strip("\n"))
        return "\n\n".join(kept)
