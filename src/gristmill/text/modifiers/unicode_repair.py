"""UnicodeReformatter: repairs text as ftfy does, but asks ftfy only about lines that may need it.

ftfy searches for mojibake with one large regular expression. Python evaluates it character by character; RE2, the
engine of Arrow, reads many lines at once and is about a hundred times as fast. So RE2 first finds the lines that may
hold mojibake, before and after each repair step, and ftfy sees only those. The expression is widened for RE2: it may
match more than that of ftfy, never less. The price is a call of a private function of ftfy, with a public fallback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import require
from gristmill.core.run.row_progress import in_turn
from gristmill.samples.argument_checks import check_count
from gristmill.text.document_modifier import DocumentModifier
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from gristmill.text.text_columns import Texts

REPAIRED_CHARACTERS = r"&\x00-\x08\x0b\x0e-\x1f\x7f-\x9f" + "\u206a-\u206f\ufeff\ufff9-\ufffc"
"""What ftfy repairs besides mojibake: entities, control characters and escapes."""

SUSPECT_PATTERN = rf"[{REPAIRED_CHARACTERS}ŒœÃÂØÙ]|[^\x00-\x7f][^\x00-\x7f]"
"""Matches all that ftfy may change: mojibake always has two adjacent non-ASCII characters, or one of these letters."""

_REGEX_PART = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.|\s+|#[^\n]*|.", re.DOTALL)
_WIDER_REGEX_PART = {r"\s": r"(?:.|\n)", r"\w": r"[^\x00-/:-@\[-^`{-\x7f]", ".": r"(?:.|\n)"}
_MAX_REPAIR_PASSES = 8


class UnicodeReformatter(DocumentModifier):
    """Repairs text with ftfy: mojibake, HTML entities, control characters.

    The keywords are those of `ftfy.TextFixerConfig`. Options that change good text are off by default: normalization,
    curly quotes, line breaks, ligatures, character width. Leave `explain` on: without it, ftfy ignores
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
        fixed = (
            repair_texts(suspects, self._config)
            if by_lines
            else [self.modify_document(text) for text in in_turn(suspects)]
        )
        return pc.replace_with_mask(texts, rows, make_array(fixed, pa.string()))

    @property
    def _changes_good_text(self) -> bool:
        changed = (self.fix_latin_ligatures, self.fix_character_width, self.uncurl_quotes, self.fix_line_breaks)
        return any(changed) or self.normalization is not None

    @property
    def _suspect(self) -> str:
        """Matches what ftfy may change. In printable ASCII, that is only an entity or a carriage return."""
        if not self._changes_good_text:
            return SUSPECT_PATTERN
        return r"[^\t\n\x0c -%'-~]" if self.fix_line_breaks else r"[^\t\n\r\x0c -%'-~]"


def repair_texts(texts: Sequence[str], config: Any) -> list[str]:
    """What `ftfy.fix_text` returns for each text, if `config` has `explain` and changes nothing in good text."""
    longest = config.max_decode_length
    line = re.compile(rf"[^\n]{{0,{longest - 1}}}\n|[^\n]{{1,{longest}}}")  # ftfy repairs line by line too
    documents = [line.findall(text) for text in texts]
    suspects = [(lines, *suspect) for lines in documents for suspect in _suspect_lines(lines, config.unescape_html)]
    repaired = _repair_lines([lines[index] for lines, index, _ in suspects], [html for *_, html in suspects], config)
    for (lines, index, _), new in zip(suspects, repaired, strict=True):
        lines[index] = new
    return ["".join(lines) for lines in documents]


def _suspect_lines(lines: Sequence[str], unescape: str | bool) -> Iterator[tuple[int, bool]]:
    """The indices of lines that ftfy may change, and whether it replaces entities there: with "auto", not in HTML."""
    suspect, html = re.compile(SUSPECT_PATTERN), bool(unescape)
    for index, line in enumerate(lines):
        html = html and not (unescape == "auto" and "<" in line)
        if suspect.search(line):
            yield index, html


def _repair_lines(lines: Sequence[str], unescape: Sequence[bool], config: Any) -> list[str]:
    """Each line as ftfy repairs it. Steps run over all lines at once; ftfy redoes the lines that need more."""
    ftfy = require("ftfy", "text", "UnicodeReformatter")
    unescaped = require("ftfy.fixes", "text", "UnicodeReformatter").unescape_html
    pairs = zip(lines, unescape, strict=True)
    new = [unescaped(line) if html and "&" in line else line for line, html in pairs]
    for _ in range(_MAX_REPAIR_PASSES):
        changed = False
        for index in _mojibake_candidates(new):
            before, new[index] = new[index], _repair_once(new[index], config)
            changed = changed or new[index] != before
        if not changed:
            break
    for index, html in enumerate(unescape):
        if _needs_full_repair(new[index], html and unescaped):
            new[index] = ftfy.fix_text(lines[index], config._replace(unescape_html=html))
    return new


def _needs_full_repair(line: str, unescaped: Any) -> bool:
    if not re.search(f"[{REPAIRED_CHARACTERS}]", line):
        return False
    return bool(re.search(f"[{REPAIRED_CHARACTERS[1:]}]", line)) or bool(unescaped and unescaped(line) != line)


def _repair_once(text: str, config: Any) -> str:
    """One step of `ftfy.fix_encoding`, or all steps if this version of ftfy lacks the private function."""
    ftfy = require("ftfy", "text", "UnicodeReformatter")
    step = getattr(ftfy, "_fix_encoding_one_step_and_explain", ftfy.fix_encoding_and_explain)
    repaired: str = step(text, config).text
    return repaired


def _mojibake_candidates(lines: Sequence[str]) -> Iterator[int]:
    """The indices of lines that may hold mojibake."""
    matches = pc.match_substring_regex(make_array(list(lines), pa.string()), _mojibake_regex())
    return iter(pc.indices_nonzero(matches).to_pylist())


@cache
def _mojibake_regex() -> str:
    """An RE2 expression that matches everything that the one of ftfy matches."""
    pattern: str = require("ftfy.badness", "text", "UnicodeReformatter").BADNESS_RE.pattern
    parts = (part for part in _REGEX_PART.findall(pattern) if not part.isspace() and not part.startswith("#"))
    return "".join(_WIDER_REGEX_PART.get(part, part) for part in parts)
