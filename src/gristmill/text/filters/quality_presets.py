"""The quality filters of Gopher and FineWeb.

The score of the Gopher and FineWeb filters is the name of the first rule that a document breaks, or empty, so that a
score column shows why a document was dropped. Words are those of `split_words`, also in languages that are written
without spaces. `GopherRepetitionFilter` is counted in C together with other heuristics; its words are separated by
white space only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import Rule
from gristmill.text.argument_checks import check_count, check_not_negative, check_ratio
from gristmill.text.document_filter import safe_ratio
from gristmill.text.rule_filter import Measures, RuleFilter, StatisticRuleFilter
from gristmill.text.statistics.reference import COMMON_WORDS, MAX_NGRAM_WORDS
from gristmill.text.statistics.word_segmentation import split_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_STOP_CHARS = (".", "'", '"', "!", "?", "”", "’", "…", "。", "！", "？", "।", "؟")
_TOP_N_GRAMS = {2: 0.2, 3: 0.18, 4: 0.16}
_REPETITION_RULES = (
    ("lines", "distinct_lines", "lines"),
    ("paragraphs", "distinct_paragraphs", "paragraphs"),
    ("line_chars", "distinct_line_chars", "line_chars"),
    ("paragraph_chars", "distinct_paragraph_chars", "paragraph_chars"),
)
"""Rules on repeated lines and paragraphs: the name, and the statistics of distinct ones and of all."""

_DUP_N_GRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}


class GopherQualityFilter(RuleFilter):
    """The first rule of Gopher that a document breaks, or "" if none; keeps "".

    In order: `words` (their number), `word_length` (its mean), `hashes` and `ellipses` (per word), `bullets` (share of
    lines that begin with •, ‣, ●, * or -), `line_ellipses` (share of lines that end with one), `letters` (share of
    words with a letter too small) and `stop_words` (fewer than `min_stop_words` of the, be, to, of, and, that, have,
    with, or of `stop_words`). None turns a rule off: documents in another language need their own `stop_words`.
    """

    def __init__(
        self,
        min_doc_words: int | None = 50,
        max_doc_words: int | None = 100_000,
        min_avg_word_length: float | None = 3,
        max_avg_word_length: float | None = 10,
        max_symbol_word_ratio: float | None = 0.1,
        max_bullet_lines_ratio: float | None = 0.9,
        max_ellipsis_lines_ratio: float | None = 0.3,
        max_non_alpha_words_ratio: float | None = 0.8,
        min_stop_words: int | None = 2,
        stop_words: Sequence[str] | None = None,
        language: str | None = None,
    ) -> None:
        if isinstance(stop_words, str):
            raise TypeError(f"GopherQualityFilter: stop_words must be a list, as in stop_words=[{stop_words!r}]")
        _check_unless_none(
            self.name,
            check_count,
            min_doc_words=min_doc_words,
            max_doc_words=max_doc_words,
            min_stop_words=min_stop_words,
        )
        _check_unless_none(
            self.name,
            check_not_negative,
            min_avg_word_length=min_avg_word_length,
            max_avg_word_length=max_avg_word_length,
        )
        _check_unless_none(
            self.name,
            check_ratio,
            max_symbol_word_ratio=max_symbol_word_ratio,
            max_bullet_lines_ratio=max_bullet_lines_ratio,
            max_ellipsis_lines_ratio=max_ellipsis_lines_ratio,
            max_non_alpha_words_ratio=max_non_alpha_words_ratio,
        )
        self.min_doc_words, self.max_doc_words = min_doc_words, max_doc_words
        self.min_avg_word_length, self.max_avg_word_length = min_avg_word_length, max_avg_word_length
        self.max_symbol_word_ratio, self.max_bullet_lines_ratio = max_symbol_word_ratio, max_bullet_lines_ratio
        self.max_ellipsis_lines_ratio = max_ellipsis_lines_ratio
        self.max_non_alpha_words_ratio = max_non_alpha_words_ratio
        self.min_stop_words, self.stop_words, self.language = min_stop_words, stop_words, language

    @property
    def english_only(self) -> bool:
        return bool(self.min_stop_words) and self.stop_words is None

    def rules(self) -> Sequence[Rule]:
        language = {"language": self.language}
        stop_words = {**language, "stop_words": None if self.stop_words is None else sorted(set(self.stop_words))}
        words = self.min_doc_words, self.max_doc_words, "min_doc_words", "max_doc_words"
        lengths = self.min_avg_word_length, self.max_avg_word_length, "min_avg_word_length", "max_avg_word_length"
        return (
            Rule("words", *words, measured_with=language, kind=pa.int64()),
            Rule("word_length", *lengths, measured_with=language),
            _at_most("hashes", "max_symbol_word_ratio", self.max_symbol_word_ratio, language),
            _at_most("ellipses", "max_symbol_word_ratio", self.max_symbol_word_ratio, language),
            _at_most("bullets", "max_bullet_lines_ratio", self.max_bullet_lines_ratio),
            _at_most("line_ellipses", "max_ellipsis_lines_ratio", self.max_ellipsis_lines_ratio),
            Rule(
                "letters",
                low=self.max_non_alpha_words_ratio,
                low_name="max_non_alpha_words_ratio",
                measured_with=language,
            ),
            Rule(
                "stop_words",
                low=self.min_stop_words,
                low_name="min_stop_words",
                measured_with=stop_words,
                kind=pa.int64(),
            ),
        )

    def measure(self, text: str) -> Mapping[str, float]:
        words = split_words(text, self.language)
        divisor = len(words) or 1
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        line_divisor = len(lines) or 1
        stop_words = set(self.stop_words if self.stop_words is not None else COMMON_WORDS)
        return {
            "words": len(words),
            "word_length": sum(map(len, words)) / divisor,
            "hashes": text.count("#") / divisor,
            "ellipses": (text.count("...") + text.count("…")) / divisor,
            "bullets": sum(line.startswith(("•", "-", "‣", "●", "*")) for line in lines) / line_divisor,
            "line_ellipses": sum(line.endswith(("...", "…")) for line in lines) / line_divisor,
            "letters": sum(any(map(str.isalpha, word)) for word in words) / divisor,
            "stop_words": len(stop_words.intersection(words)),
        }


class GopherRepetitionFilter(StatisticRuleFilter):
    """The first repetition rule of Gopher that a document breaks, or "" if none; keeps "".

    In order: `lines` and `paragraphs` (share of those that occurred before), `line_chars` and `paragraph_chars` (the
    same by their characters), `top_2_gram` and so on (share of characters in the most frequent run of n words), and
    `duplicate_5_gram` and so on (share in runs that occurred before). None turns a rule off; `top_n_grams` and
    `dup_n_grams` map n to the largest share to keep. A run of words that occurs once is not a repetition, even in a
    short document. A blank document breaks no rule.
    """

    def __init__(
        self,
        dup_line_frac: float | None = 0.3,
        dup_para_frac: float | None = 0.3,
        dup_line_char_frac: float | None = 0.2,
        dup_para_char_frac: float | None = 0.2,
        top_n_grams: Mapping[int, float] | None = _TOP_N_GRAMS,
        dup_n_grams: Mapping[int, float] | None = _DUP_N_GRAMS,
    ) -> None:
        self.dup_line_frac, self.dup_para_frac = dup_line_frac, dup_para_frac
        self.dup_line_char_frac, self.dup_para_char_frac = dup_line_char_frac, dup_para_char_frac
        self.top_n_grams, self.dup_n_grams = top_n_grams, dup_n_grams
        for n, max_share in [*self._ngram_limits(top_n_grams), *self._ngram_limits(dup_n_grams)]:
            if not 1 <= n <= MAX_NGRAM_WORDS or not 0 <= max_share <= 1:
                raise ValueError(
                    f"GopherRepetitionFilter: {n}: {max_share} must map a number of words from 1 to {MAX_NGRAM_WORDS} "
                    "to a share from 0 to 1"
                )

    @staticmethod
    def _ngram_limits(shares: Mapping[Any, float] | None) -> list[tuple[int, float]]:
        return [(int(n), max_share) for n, max_share in (shares or {}).items()]  # recipes have n as text

    def rules(self) -> Sequence[Rule]:
        return [
            _at_most("lines", "dup_line_frac", self.dup_line_frac),
            _at_most("paragraphs", "dup_para_frac", self.dup_para_frac),
            _at_most("line_chars", "dup_line_char_frac", self.dup_line_char_frac),
            _at_most("paragraph_chars", "dup_para_char_frac", self.dup_para_char_frac),
            *(_at_most(f"top_{n}_gram", f"top_n_grams[{n}]", top) for n, top in self._ngram_limits(self.top_n_grams)),
            *(
                _at_most(f"duplicate_{n}_gram", f"dup_n_grams[{n}]", share)
                for n, share in self._ngram_limits(self.dup_n_grams)
            ),
        ]

    def statistics(self) -> tuple[str, ...]:
        names = [name for _, distinct, total in _REPETITION_RULES for name in (distinct, total)]
        for n, _ in self._ngram_limits(self.top_n_grams):
            names += [f"repeated_top_ngram_{n}", f"duplicate_ngram_{n}"]
        names += [f"duplicate_ngram_{n}" for n, _ in self._ngram_limits(self.dup_n_grams)]
        return ("chars", *dict.fromkeys(names))

    def measure_counts(self, counts: Mapping[str, pa.Array]) -> Measures:
        shares = {
            name: safe_ratio(pc.subtract(counts[total], counts[distinct]), counts[total], 0.0)
            for name, distinct, total in _REPETITION_RULES
        }
        zero = literal(0, pa.int64())
        for n, _ in self._ngram_limits(self.top_n_grams):
            is_repeated = pc.greater(counts[f"duplicate_ngram_{n}"], zero)
            chars = pc.if_else(is_repeated, counts[f"repeated_top_ngram_{n}"], zero)
            shares[f"top_{n}_gram"] = safe_ratio(chars, counts["chars"], 0.0)
        for n, _ in self._ngram_limits(self.dup_n_grams):
            shares[f"duplicate_{n}_gram"] = safe_ratio(counts[f"duplicate_ngram_{n}"], counts["chars"], 0.0)
        return shares


class FineWebQualityFilter(RuleFilter):
    """The first rule of FineWeb that a document breaks, or "" if none; keeps "".

    Blank lines do not count. In order: `empty` (no line), `line_punctuation` (the share of lines that end with
    punctuation is below `line_punct_thr`; 0 passes with `line_punct_exclude_zero`), `short_lines` (the share of lines
    of up to `short_line_length` characters is above `short_line_thr`), `repeated_lines` (the share of characters in
    lines that occurred before is above `char_duplicates_ratio`) and `list` (line feeds per word are above
    `new_line_ratio`).
    """

    def __init__(
        self,
        line_punct_thr: float = 0.12,
        line_punct_exclude_zero: bool = False,
        short_line_thr: float = 0.67,
        short_line_length: int = 30,
        char_duplicates_ratio: float = 0.01,
        new_line_ratio: float = 0.3,
        language: str | None = None,
    ) -> None:
        check_count(self.name, "short_line_length", short_line_length)
        check_ratio(self.name, "line_punct_thr", line_punct_thr)
        check_ratio(self.name, "short_line_thr", short_line_thr)
        check_ratio(self.name, "char_duplicates_ratio", char_duplicates_ratio)
        check_not_negative(self.name, "new_line_ratio", new_line_ratio)
        self.line_punct_thr, self.line_punct_exclude_zero = line_punct_thr, line_punct_exclude_zero
        self.short_line_thr, self.short_line_length = short_line_thr, short_line_length
        self.char_duplicates_ratio, self.new_line_ratio = char_duplicates_ratio, new_line_ratio
        self.language = language

    def rules(self) -> Sequence[Rule]:
        short = {"short_line_length": self.short_line_length}
        return (
            Rule("empty", low=1, low_name="lines", kind=pa.int64()),
            Rule(
                "line_punctuation",
                low=self.line_punct_thr,
                low_name="line_punct_thr",
                spared=0 if self.line_punct_exclude_zero else None,
            ),
            _at_most("short_lines", "short_line_thr", self.short_line_thr, short),
            _at_most("repeated_lines", "char_duplicates_ratio", self.char_duplicates_ratio),
            _at_most("list", "new_line_ratio", self.new_line_ratio, {"language": self.language}),
        )

    def measure(self, text: str) -> Mapping[str, float]:
        lines = [line for line in text.split("\n") if line.strip()]
        divisor = len(lines) or 1
        seen: set[str] = set()
        repeated = 0
        for line in lines:
            repeated += len(line) if line in seen else 0
            seen.add(line)
        return {
            "empty": len(lines),
            "line_punctuation": sum(line.rstrip().endswith(_STOP_CHARS) for line in lines) / divisor,
            "short_lines": sum(len(line) <= self.short_line_length for line in lines) / divisor,
            "repeated_lines": repeated / (len(text.replace("\n", "")) or 1),
            "list": text.count("\n") / (len(split_words(text, self.language)) or 1),
        }


def _check_unless_none(name: str, check: Callable[[str, str, Any], None], **values: Any) -> None:
    """Check the values, except None, which turns a rule off."""
    for parameter, value in values.items():
        if value is not None:
            check(name, parameter, value)


def _at_most(name: str, parameter: str, limit: float | None, measured_with: Mapping[str, Any] | None = None) -> Rule:
    return Rule(name, high=limit, high_name=parameter, measured_with=measured_with)
