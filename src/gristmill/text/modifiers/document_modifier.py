"""Modifiers: give a document another text.

To add one: subclass `DocumentModifier`, write `modify_document`, add rows to the table in
`tests/text/test_modifiers.py`. There is nothing to register. `modify_document` is the definition; override
`modify_batch` only where a whole column can be changed faster with exactly the same result. Null stays null.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import require
from gristmill.text.document_filter import as_array, check_count
from gristmill.text.modifiers.mojibake import SUSPECT_PATTERN, repair_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.document_filter import Texts

ROWS_PER_REPLACE = 1024
"""Rows in which text is replaced at a time: what Arrow makes on the way is as large as these, and not as the column."""

REMOVED_URL = r"https?://\S+|www\.\S+"
"""What counts as a URL in `UrlRemover`. Scores are stricter (`reference.py`)."""


def replace_patterns(texts: Texts, rules: Sequence[tuple[str, str]]) -> pa.Array:
    """The column with what matches RE2 patterns replaced, by one after the other."""
    column = as_array(texts)
    pieces = [column.slice(start, ROWS_PER_REPLACE) for start in range(0, len(column), ROWS_PER_REPLACE)]
    for place in range(len(pieces)):
        for pattern, new in rules:
            pieces[place] = pc.replace_substring_regex(pieces[place], pattern, new)
    return pa.concat_arrays(pieces) if pieces else column


class DocumentModifier(ABC):
    """A new text for each document. Constructors have no side effects."""

    name: str = "DocumentModifier"
    """The name of the class, unless set."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        # a subclass that only redefines the document form must not inherit another batch form
        if "modify_document" in cls.__dict__ and "modify_batch" not in cls.__dict__:
            cls.modify_batch = DocumentModifier.modify_batch  # type: ignore[method-assign]

    @abstractmethod
    def modify_document(self, text: str) -> str:
        """The new text. A modifier of several columns takes them as keywords instead of `text`."""

    def modify_batch(self, texts: Texts) -> pa.Array:
        """The new texts of a column of strings."""
        new = [None if text is None else self.modify_document(text) for text in texts.to_pylist()]
        return make_array(new, pa.string())

    def check(self) -> None:  # noqa: B027  (optional)
        """Raise if the modifier can be seen to fail, for example for want of a library. Called by the planner."""

    def setup(self) -> None:  # noqa: B027  (optional)
        """Once per worker, before the first document: load models here."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({arguments})"


class UnicodeReformatter(DocumentModifier):
    """Repairs text with ftfy: mojibake, HTML entities, control characters.

    The keywords are those of `ftfy.TextFixerConfig`. What changes good text is off here: normalization, curly
    quotes, line breaks, ligatures, character width. Leave `explain` on: without it, ftfy ignores
    `restore_byte_a0`, `replace_lossy_sequences` and `decode_inconsistent_utf8`.
    """

    def __init__(
        self,
        *,
        unescape_html: str | bool = "auto",
        remove_terminal_escapes: bool = True,
        fix_encoding: bool = True,
        restore_byte_a0: bool = True,
        replace_lossy_sequences: bool = True,
        decode_inconsistent_utf8: bool = True,
        fix_c1_controls: bool = True,
        fix_latin_ligatures: bool = False,
        fix_character_width: bool = False,
        uncurl_quotes: bool = False,
        fix_line_breaks: bool = False,
        fix_surrogates: bool = True,
        remove_control_chars: bool = True,
        normalization: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = None,
        max_decode_length: int = 1_000_000,
        explain: bool = True,
    ) -> None:
        if normalization not in ("NFC", "NFD", "NFKC", "NFKD", None):
            raise ValueError(
                f"UnicodeReformatter: normalization is {normalization!r}, must be NFC, NFD, NFKC, NFKD or None"
            )
        check_count("UnicodeReformatter", "max_decode_length", max_decode_length, least=1)
        self.unescape_html = unescape_html
        self.remove_terminal_escapes = remove_terminal_escapes
        self.fix_encoding = fix_encoding
        self.restore_byte_a0 = restore_byte_a0
        self.replace_lossy_sequences = replace_lossy_sequences
        self.decode_inconsistent_utf8 = decode_inconsistent_utf8
        self.fix_c1_controls = fix_c1_controls
        self.fix_latin_ligatures = fix_latin_ligatures
        self.fix_character_width = fix_character_width
        self.uncurl_quotes = uncurl_quotes
        self.fix_line_breaks = fix_line_breaks
        self.fix_surrogates = fix_surrogates
        self.remove_control_chars = remove_control_chars
        self.normalization = normalization
        self.max_decode_length = max_decode_length
        self.explain = explain

    def check(self) -> None:
        require("ftfy", "text", "UnicodeReformatter")

    def setup(self) -> None:
        self._config  # noqa: B018  (imports ftfy)

    @cached_property
    def _config(self) -> Any:
        ftfy = require("ftfy", "text", "UnicodeReformatter")
        return ftfy.TextFixerConfig(**{key: getattr(self, key) for key in ftfy.TextFixerConfig._fields})

    def modify_document(self, text: str) -> str:
        fixed: str = require("ftfy", "text", "UnicodeReformatter").fix_text(text, self._config)
        return fixed

    def modify_batch(self, texts: Texts) -> pa.Array:
        texts = as_array(texts)
        rows = pc.match_substring_regex(texts, self._suspect).fill_null(literal(False, pa.bool_()))
        suspects = texts.filter(rows).to_pylist()
        by_lines = self.fix_encoding and self.explain and not self._changes_good_text
        fixed = repair_texts(suspects, self._config) if by_lines else [self.modify_document(text) for text in suspects]
        return pc.replace_with_mask(texts, rows, make_array(fixed, pa.string()))

    @property
    def _changes_good_text(self) -> bool:
        changed = (self.fix_latin_ligatures, self.fix_character_width, self.uncurl_quotes, self.fix_line_breaks)
        return any(changed) or self.normalization is not None

    @property
    def _suspect(self) -> str:
        """Matches what ftfy might change. In printable ASCII, that is only an entity or a carriage return."""
        if not self._changes_good_text:
            return SUSPECT_PATTERN
        return r"[^\t\n\x0c -%'-~]" if self.fix_line_breaks else r"[^\t\n\r\x0c -%'-~]"


class NewlineNormalizer(DocumentModifier):
    """Three or more line ends in a row become two. Holds for \\n and for \\r\\n, which stay what they are."""

    _RULES = ((r"\n{3,}", "\n\n"), (r"(?:\r\n){3,}", "\r\n\r\n"))

    def modify_document(self, text: str) -> str:
        for pattern, line_ends in self._RULES:
            text = re.sub(pattern, line_ends, text)
        return text

    def modify_batch(self, texts: Texts) -> pa.Array:
        return replace_patterns(texts, self._RULES)


class QuotationUnifier(DocumentModifier):
    """Curly quotes become straight ones: ‘ ’ ‚ ‛ become ', and “ ” „ ‟ become \". Guillemets stay."""

    _RULES = (("[‘’‚‛]", "'"), ("[“”„‟]", '"'))

    def modify_document(self, text: str) -> str:
        for pattern, quote in self._RULES:
            text = re.sub(pattern, quote, text)
        return text

    def modify_batch(self, texts: Texts) -> pa.Array:
        return replace_patterns(texts, self._RULES)


class UrlRemover(DocumentModifier):
    """Removes URLs: `https?://\\S+|www\\.\\S+`. The white space around them stays."""

    # Arrow's \S knows ASCII only; this is the white space of Python
    _SPACE = r"\x{9}-\x{d}\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"

    def modify_document(self, text: str) -> str:
        return re.sub(REMOVED_URL, "", text)

    def modify_batch(self, texts: Texts) -> pa.Array:
        return as_array(pc.replace_substring_regex(texts, REMOVED_URL.replace(r"\S", f"[^{self._SPACE}]"), ""))
