"""The quality filters of C4, Gopher and FineWeb.

The score of the Gopher and FineWeb filters is the name of the first rule that a document breaks, or empty, so that a
score column shows why a document was dropped. Words are those of `split_words`, also in languages that are written
without spaces. `GopherRepetitionFilter` is counted in C together with other heuristics; its words are separated by
white space only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.text.argument_checks import check_count, check_not_negative, check_ratio
from gristmill.text.document_filter import BoundedFilter, DocumentFilter, safe_ratio
from gristmill.text.modifiers.line_cleaners import LineCleaner
from gristmill.text.statistics import column_statistics, reference
from gristmill.text.statistics.reference import COMMON_WORDS, LOREM_IPSUM, MAX_NGRAM_WORDS
from gristmill.text.statistics.word_segmentation import split_words
from gristmill.text.text_columns import as_array, python_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gristmill.text.text_columns import Texts

_SENTENCE = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)|[。！？।؟]+")
_STOP_CHARS = (".", "'", '"', "!", "?", "”", "’", "…", "。", "！", "？", "।", "؟")
_TOP_N_GRAMS = {2: 0.2, 3: 0.18, 4: 0.16}
_DUP_N_GRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}


class C4QualityFilter(BoundedFilter):
    """The number of sentences in the lines that C4 would keep; keeps documents with at least `min_num_sentences`.

    It is 0 for documents with "lorem ipsum" or a curly bracket, which C4 drops. The lines are those that `LineCleaner`
    keeps; use that in `Modify` to drop the others from the text. A sentence ends with . ! ? or the equivalent of
    another script.
    """

    score_type = pa.int64()

    def __init__(
        self, min_num_sentences: int = 5, filter_curly_bracket: bool = True, filter_lorem_ipsum: bool = True
    ) -> None:
        check_count("C4QualityFilter", "min_num_sentences", min_num_sentences)
        self.min_num_sentences, self.filter_curly_bracket = min_num_sentences, filter_curly_bracket
        self.filter_lorem_ipsum = filter_lorem_ipsum
        self._cleaner = LineCleaner()

    def score_document(self, text: str) -> int:
        if self.filter_curly_bracket and "{" in text:
            return 0
        if self.filter_lorem_ipsum and LOREM_IPSUM in text.lower():
            return 0
        return sum(len(_SENTENCE.findall(line)) for line in self._cleaner.lines(text))

    def bounds(self) -> tuple[float, None]:
        return self.min_num_sentences, None


class C4ParagraphFilter(BoundedFilter):
    """The number of long paragraphs, which are lines here; keeps documents with at least `min_paragraphs`.

    A line is long when it has at least `min_paragraph_len` characters. This is a rule of multilingual C4.
    """

    score_type = pa.int64()

    def __init__(self, min_paragraphs: int = 3, min_paragraph_len: int = 200, line_delimiter: str = "\n") -> None:
        check_count("C4ParagraphFilter", "min_paragraphs", min_paragraphs)
        check_count("C4ParagraphFilter", "min_paragraph_len", min_paragraph_len)
        if not line_delimiter:
            raise ValueError("C4ParagraphFilter: line_delimiter is empty: give the text that separates lines")
        self.min_paragraphs, self.min_paragraph_len = min_paragraphs, min_paragraph_len
        self.line_delimiter = line_delimiter

    def score_document(self, text: str) -> int:
        return sum(len(line) >= self.min_paragraph_len for line in text.split(self.line_delimiter) if line)

    def bounds(self) -> tuple[float, None]:
        return self.min_paragraphs, None


class _FirstBrokenRuleFilter(DocumentFilter):
    """A filter whose score is the name of the first broken rule."""

    score_type = pa.string()

    def score_document(self, text: str) -> str:
        return next((name for name, broken in self._rules(text) if broken), "")

    def _rules(self, text: str) -> Iterator[tuple[str, bool]]:
        """The rules in order, each with whether it is broken. Rules after the first broken one are not evaluated."""
        raise NotImplementedError

    def keep_document(self, score: Any) -> bool:
        return bool(score == "")

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return make_array([score == "" for score in python_values(scores)], pa.bool_())


class GopherQualityFilter(_FirstBrokenRuleFilter):
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

    def _rules(self, text: str) -> Iterator[tuple[str, bool]]:
        words = split_words(text, self.language)
        count = len(words)
        yield "words", _outside(count, self.min_doc_words, self.max_doc_words)
        divisor = count or 1
        mean = sum(map(len, words)) / divisor
        yield "word_length", _outside(mean, self.min_avg_word_length, self.max_avg_word_length)
        yield "hashes", _outside(text.count("#") / divisor, None, self.max_symbol_word_ratio)
        ellipses = text.count("...") + text.count("…")
        yield "ellipses", _outside(ellipses / divisor, None, self.max_symbol_word_ratio)
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        bullets = sum(line.startswith(("•", "-", "‣", "●", "*")) for line in lines)
        yield "bullets", _outside(bullets / (len(lines) or 1), None, self.max_bullet_lines_ratio)
        trailing = sum(line.endswith(("...", "…")) for line in lines)
        yield "line_ellipses", _outside(trailing / (len(lines) or 1), None, self.max_ellipsis_lines_ratio)
        lettered = sum(any(map(str.isalpha, word)) for word in words)
        yield "letters", _outside(lettered / divisor, self.max_non_alpha_words_ratio, None)
        if self.min_stop_words is not None:
            stop_words = set(self.stop_words if self.stop_words is not None else COMMON_WORDS)
            yield "stop_words", len(stop_words.intersection(words)) < self.min_stop_words


class GopherRepetitionFilter(DocumentFilter):
    """The first repetition rule of Gopher that a document breaks, or "" if none; keeps "".

    In order: `lines` and `paragraphs` (share of those that occurred before), `line_chars` and `paragraph_chars` (the
    same by their characters), `top_2_gram` and so on (share of characters in the most frequent run of n words), and
    `duplicate_5_gram` and so on (share in runs that occurred before). None turns a rule off; `top_n_grams` and
    `dup_n_grams` map n to the largest share to keep. A run of words that occurs once is not a repetition, even in a
    short document. A blank document breaks no rule.
    """

    score_type = pa.string()

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

    def _repetition_rules(self) -> list[tuple[str, str, str, float | None]]:
        """Rules on repeated lines and paragraphs: name, statistic of distinct ones, of all, largest share to keep."""
        return [
            ("lines", "distinct_lines", "lines", self.dup_line_frac),
            ("paragraphs", "distinct_paragraphs", "paragraphs", self.dup_para_frac),
            ("line_chars", "distinct_line_chars", "line_chars", self.dup_line_char_frac),
            ("paragraph_chars", "distinct_paragraph_chars", "paragraph_chars", self.dup_para_char_frac),
        ]

    def statistics(self) -> tuple[str, ...]:
        rules = [rule for rule in self._repetition_rules() if rule[-1] is not None]
        names = [name for _, distinct, total, _ in rules for name in (distinct, total)]
        for n, _ in self._ngram_limits(self.top_n_grams):
            names += [f"repeated_top_ngram_{n}", f"duplicate_ngram_{n}"]
        names += [f"duplicate_ngram_{n}" for n, _ in self._ngram_limits(self.dup_n_grams)]
        return ("chars", *dict.fromkeys(names))

    def score_document(self, text: str) -> str:
        counts = reference.count_statistics(text, self.statistics())
        columns = {name: make_array([value], pa.int64()) for name, value in counts.items()}
        return str(self.score_counts(columns)[0].as_py())

    def score_batch(self, texts: Texts) -> pa.Array:
        return self.score_counts(column_statistics.count_column(as_array(texts), self.statistics()))

    def score_counts(self, counts: Mapping[str, Any]) -> pa.Array:
        first_broken = pa.repeat(literal("", pa.string()), len(counts["chars"]))
        for name, shares, max_share in reversed(list(self._shares(counts))):
            is_broken = pc.greater(shares, literal(float(max_share), pa.float64()))
            first_broken = pc.if_else(is_broken, literal(name, pa.string()), first_broken)
        return first_broken

    def _shares(self, counts: Mapping[str, pa.Array]) -> Iterator[tuple[str, pa.Array, float]]:
        """The rules in order, each with the shares of the documents and the largest share to keep."""
        for name, distinct, total, limit in self._repetition_rules():
            if limit is not None:
                yield name, safe_ratio(pc.subtract(counts[total], counts[distinct]), counts[total], 0.0), limit
        zero = literal(0, pa.int64())
        for n, max_share in self._ngram_limits(self.top_n_grams):
            is_repeated = pc.greater(counts[f"duplicate_ngram_{n}"], zero)
            chars = pc.if_else(is_repeated, counts[f"repeated_top_ngram_{n}"], zero)
            yield f"top_{n}_gram", safe_ratio(chars, counts["chars"], 0.0), max_share
        for n, max_share in self._ngram_limits(self.dup_n_grams):
            yield f"duplicate_{n}_gram", safe_ratio(counts[f"duplicate_ngram_{n}"], counts["chars"], 0.0), max_share

    def keep_document(self, score: Any) -> bool:
        return bool(score == "")

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return pc.equal(scores, literal("", pa.string())).fill_null(literal(False, pa.bool_()))


class FineWebQualityFilter(_FirstBrokenRuleFilter):
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
        char_duplicates_ratio: float = 0.1,
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

    def _rules(self, text: str) -> Iterator[tuple[str, bool]]:
        lines = [line for line in text.split("\n") if line.strip()]
        yield "empty", not lines
        ended = sum(line.rstrip().endswith(_STOP_CHARS) for line in lines) / len(lines)
        yield "line_punctuation", ended < self.line_punct_thr and not (ended == 0 and self.line_punct_exclude_zero)
        short = sum(len(line) <= self.short_line_length for line in lines) / len(lines)
        yield "short_lines", short > self.short_line_thr
        seen: set[str] = set()
        repeated = 0
        for line in lines:
            repeated += len(line) if line in seen else 0
            seen.add(line)
        yield "repeated_lines", repeated / len(text.replace("\n", "")) > self.char_duplicates_ratio
        words = split_words(text, self.language)
        yield "list", text.count("\n") / (len(words) or 1) > self.new_line_ratio


def _check_unless_none(name: str, check: Callable[[str, str, Any], None], **values: Any) -> None:
    """Check the values, except None, which turns a rule off."""
    for parameter, value in values.items():
        if value is not None:
            check(name, parameter, value)


def _outside(value: float, low: float | None, high: float | None) -> bool:
    return (low is not None and value < low) or (high is not None and value > high)
