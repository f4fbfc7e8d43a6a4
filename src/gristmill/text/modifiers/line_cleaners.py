"""Modifiers that drop lines or paragraphs which are not prose."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gristmill.text.argument_checks import check_count
from gristmill.text.document_modifier import DocumentModifier
from gristmill.text.statistics.reference import POLICY_PHRASES

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE_END_MARKS = '.!?"”…。！？।؟'
"""What a line of prose ends with: the marks of C4, curly quotes, and the marks of other scripts."""

CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")


class LineCleaner(DocumentModifier):
    """Drops lines by the rules of C4, each of which can be turned off.

    A line is dropped when it does not end with one of `end_marks` (or ends with an ellipsis of three dots), has fewer
    than `min_words` words, has a word of more than `max_word_length` characters, or contains one of `substrings`, in
    any case. Citation marks such as [1] and [citation needed] are removed first. "" or None turns a rule off. White
    space at the ends of lines is removed.
    """

    def __init__(
        self,
        end_marks: str | None = LINE_END_MARKS,
        min_words: int = 3,
        max_word_length: int | None = 1000,
        substrings: Sequence[str] = ("javascript", *POLICY_PHRASES),
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
        return "\n".join(self.lines(text))

    def lines(self, text: str) -> list[str]:
        """The lines that are kept."""
        if self.remove_citations and "[" in text:
            text = CITATION.sub("", text)
        phrases = [phrase.lower() for phrase in self.substrings]
        return [line for line in map(str.strip, text.split("\n")) if self._is_prose(line, phrases)]

    def _is_prose(self, line: str, phrases: Sequence[str]) -> bool:
        if self.end_marks and (not line.endswith(tuple(self.end_marks)) or line.endswith("...")):
            return False
        words = line.split() if self.min_words or self.max_word_length else []
        if len(words) < self.min_words:
            return False
        longest = self.max_word_length
        if longest is not None and len(line) > longest and any(len(word) > longest for word in words):
            return False
        if not phrases:
            return True
        lower = line.lower()
        return not any(phrase in lower for phrase in phrases)


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
