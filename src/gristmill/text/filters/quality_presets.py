"""The quality filters of Gopher and FineWeb.

The score is the name of the first rule that a document breaks, or empty, so that a score column shows why a document
was dropped. The numbers of all rules are counted in C, in one pass that these filters share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import Measures, Rule
from gristmill.core.run.row_progress import in_turn
from gristmill.samples.argument_checks import check_count, check_not_negative, check_ratio
from gristmill.text.document_filter import safe_ratio
from gristmill.text.rule_filter import LexemeRuleFilter, StatisticRuleFilter
from gristmill.text.statistics import column_statistics
from gristmill.text.statistics import kernel_reference as reference
from gristmill.text.statistics.kernel_reference import LONGEST_SHORT_LINE, MAX_NGRAM_WORDS
from gristmill.text.statistics.lexemes import found_lexemes
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.text.text_columns import Texts

_TOP_N_GRAMS = {2: 0.2, 3: 0.18, 4: 0.16}
_REPETITION_RULES = (
    ("paragraphs", "dup_para_frac", "repeated_blocks", "blocks"),
    ("paragraph_chars", "dup_para_char_frac", "repeated_block_chars", "chars"),
    ("lines", "dup_line_frac", "repeated_feed_lines", "feed_lines"),
    ("line_chars", "dup_line_char_frac", "repeated_feed_line_chars", "chars"),
)
"""Rules on repeated lines and paragraphs: the name, the parameter, and the statistics of which it is the ratio."""

_QUALITY_STATISTICS = (
    *("lexemes", "word_lexemes", "word_lexeme_chars", "letter_lexemes", "common_lexemes"),
    *("hashes", "ellipses", "split_lines", "dash_lines", "dotted_lines"),
)
_DUP_N_GRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}


class GopherQualityFilter(LexemeRuleFilter):
    """The first rule of Gopher that a document breaks, or "" if none; keeps "".

    Words are lexemes (`statistics/lexemes.py`), so that punctuation marks are words as well, as in datatrove. In order:
    `words` (their number without marks), `word_length` (its mean, without marks), `hashes` and `ellipses` (per word),
    `bullets` (share of lines that begin with • or -), `line_ellipses` (share of lines that end with one), `letters`
    (share of words with a letter too small) and `stop_words` (fewer than `min_stop_words` of the, be, to, of, and,
    that, have, with, or of `stop_words`). None turns a rule off: documents in another language need their own
    `stop_words`.
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

    def statistics(self) -> tuple[str, ...]:
        return _QUALITY_STATISTICS if self.stop_words is None else ()

    def measure_counts(self, counts: Mapping[str, pa.Array]) -> Measures:
        words, lines = counts["lexemes"], counts["split_lines"]
        return {
            "words": counts["word_lexemes"],
            "word_length": safe_ratio(counts["word_lexeme_chars"], counts["word_lexemes"], 0.0),
            "hashes": safe_ratio(counts["hashes"], words, 0.0),
            "ellipses": safe_ratio(counts["ellipses"], words, 0.0),
            "bullets": safe_ratio(counts["dash_lines"], lines, 0.0),
            "line_ellipses": safe_ratio(counts["dotted_lines"], lines, 0.0),
            "letters": safe_ratio(counts["letter_lexemes"], words, 0.0),
            "stop_words": counts["common_lexemes"],
        }

    def measure(self, text: str) -> Mapping[str, float]:
        counts = reference.count_statistics(text, _QUALITY_STATISTICS, self.language)
        columns = {name: make_array([value], pa.int64()) for name, value in counts.items()}
        measures = self.measure_counts({**columns, **self._own_stop_words(pa.array([text]))})
        return {name: column[0].as_py() for name, column in measures.items()}

    def measure_batch(self, texts: Texts) -> Measures:
        counts = column_statistics.count_column(as_array(texts), _QUALITY_STATISTICS, language=self.language)
        return self.measure_counts({**counts, **self._own_stop_words(texts)})

    def _own_stop_words(self, texts: Texts) -> dict[str, pa.Array]:
        """How many stop words of a user's list each text has."""
        if self.stop_words is None:
            return {}
        stop_words = frozenset(self.stop_words)
        found = [len(found_lexemes(text or "", stop_words, self.language)) for text in in_turn(texts.to_pylist())]
        return {"common_lexemes": make_array(found, pa.int64())}


class GopherRepetitionFilter(StatisticRuleFilter):
    """The first repetition rule of Gopher that a document breaks, or "" if none; keeps "".

    In order: `paragraphs` (share of those that occurred before) and `paragraph_chars` (their share of the characters),
    `lines` and `line_chars` (the same of lines), `top_2_gram` and so on (share of characters in the most frequent run
    of n words), and `duplicate_5_gram` and so on (share in runs that occurred before). Words are lexemes, as in
    `GopherQualityFilter`. None turns a rule off; `top_n_grams` and `dup_n_grams` map n to the largest share to keep. A
    run of words that occurs once is not a repetition, even in a short document. An empty document breaks no rule.
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
            *(_at_most(name, parameter, getattr(self, parameter)) for name, parameter, *_ in _REPETITION_RULES),
            *(
                _at_most(f"top_{n}_gram", f"top_n_grams[{n}]", share, {"top_n_grams": n})
                for n, share in self._ngram_limits(self.top_n_grams)
            ),
            *(
                _at_most(f"duplicate_{n}_gram", f"dup_n_grams[{n}]", share, {"dup_n_grams": n})
                for n, share in self._ngram_limits(self.dup_n_grams)
            ),
        ]

    def statistics(self) -> tuple[str, ...]:
        names = [name for _, _, part, total in _REPETITION_RULES for name in (part, total)]
        names += [f"top_lexeme_ngram_{n}" for n, _ in self._ngram_limits(self.top_n_grams)]
        names += [f"duplicate_lexeme_ngram_{n}" for n, _ in self._ngram_limits(self.dup_n_grams)]
        return tuple(dict.fromkeys(names))

    def measure_counts(self, counts: Mapping[str, pa.Array]) -> Measures:
        shares = {name: safe_ratio(counts[part], counts[total], 0.0) for name, _, part, total in _REPETITION_RULES}
        chars = counts["chars"]
        for n, _ in self._ngram_limits(self.top_n_grams):
            shares[f"top_{n}_gram"] = safe_ratio(counts[f"top_lexeme_ngram_{n}"], chars, 0.0)
        for n, _ in self._ngram_limits(self.dup_n_grams):
            shares[f"duplicate_{n}_gram"] = safe_ratio(counts[f"duplicate_lexeme_ngram_{n}"], chars, 0.0)
        return shares


class FineWebQualityFilter(LexemeRuleFilter):
    """The first rule of FineWeb that a document breaks, or "" if none; keeps "".

    Blank lines do not count. In order: `empty` (no line), `line_punctuation` (the share of lines that end with . ! ? or
    the equivalent of another script is below `line_punct_thr`; 0 passes with `line_punct_exclude_zero`), `short_lines`
    (the share of lines of up to `short_line_length` characters is above `short_line_thr`), `repeated_lines` (the share
    of characters in lines that occurred before is above `char_duplicates_ratio`) and `list` (line feeds per word are
    above `new_line_ratio`; words are lexemes, as in `GopherQualityFilter`).
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
        if short_line_length > LONGEST_SHORT_LINE:
            raise ValueError(
                f"{self.name}: short_line_length is {short_line_length}, must be at most {LONGEST_SHORT_LINE}"
            )
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
            Rule("empty", low=1, kind=pa.int64()),
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

    def statistics(self) -> tuple[str, ...]:
        short = f"short_lines_{self.short_line_length}"
        return ("chars", "line_feeds", "full_lines", "marked_lines", short, "repeated_line_chars", "lexemes")

    def measure_counts(self, counts: Mapping[str, pa.Array]) -> Measures:
        lines = counts["full_lines"]
        without_feeds = pc.subtract(counts["chars"], counts["line_feeds"])
        return {
            "empty": lines,
            "line_punctuation": safe_ratio(counts["marked_lines"], lines, 0.0),
            "short_lines": safe_ratio(counts[f"short_lines_{self.short_line_length}"], lines, 0.0),
            "repeated_lines": safe_ratio(counts["repeated_line_chars"], without_feeds, 0.0),
            "list": safe_ratio(counts["line_feeds"], counts["lexemes"], 0.0),
        }


def _check_unless_none(name: str, check: Callable[[str, str, Any], None], **values: Any) -> None:
    """Check the values, except None, which turns a rule off."""
    for parameter, value in values.items():
        if value is not None:
            check(name, parameter, value)


def _at_most(name: str, parameter: str, limit: float | None, measured_with: Mapping[str, Any] | None = None) -> Rule:
    return Rule(name, high=limit, high_name=parameter, measured_with=measured_with)
