"""The quality filters of C4 and multilingual C4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.deciding_stage import Measures, Rule
from gristmill.samples.argument_checks import check_count
from gristmill.text.document_filter import BoundedFilter
from gristmill.text.modifiers.line_cleaners import C4_POLICY_PHRASES, JAVASCRIPT, LINE_END_MARKS, LineCleaner
from gristmill.text.rule_filter import NumberedRuleFilter
from gristmill.text.statistics.kernel_reference import LOREM_IPSUM
from gristmill.text.statistics.lexemes import count_sentences
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from gristmill.text.text_columns import Texts

_DROPPED = -1
"""The score of documents that C4 drops for what is in them."""


class C4QualityFilter(NumberedRuleFilter):
    """The number of sentences in the lines that C4 would keep; keeps documents with at least `min_num_sentences`.

    It is -1 for documents with "lorem ipsum" or a curly bracket in a line of prose, which C4 drops. Without
    `filter_no_terminal_punct`, lines need not end with a punctuation mark. The lines are those that a `LineCleaner`
    with the same rules keeps; use that in `Modify` to drop the others from the text. A sentence ends with . ! ? or the
    equivalent of another script, or with its line.
    """

    score_type = pa.int64()

    def __init__(
        self,
        min_num_sentences: int = 5,
        filter_curly_bracket: bool = True,
        filter_lorem_ipsum: bool = True,
        *,
        filter_no_terminal_punct: bool = True,
        min_words_per_line: int = 3,
        max_word_length: int | None = 1000,
        remove_citations: bool = True,
        filter_javascript: bool = True,
        filter_policy: bool = True,
    ) -> None:
        check_count("C4QualityFilter", "min_num_sentences", min_num_sentences)
        check_count("C4QualityFilter", "min_words_per_line", min_words_per_line)
        self.min_num_sentences, self.filter_curly_bracket = min_num_sentences, filter_curly_bracket
        self.filter_lorem_ipsum, self.filter_no_terminal_punct = filter_lorem_ipsum, filter_no_terminal_punct
        self.min_words_per_line, self.max_word_length = min_words_per_line, max_word_length
        self.remove_citations, self.filter_javascript = remove_citations, filter_javascript
        self.filter_policy = filter_policy
        self._cleaner = LineCleaner(
            LINE_END_MARKS if filter_no_terminal_punct else None,
            min_words_per_line,
            max_word_length,
            [*([JAVASCRIPT] if filter_javascript else ()), *(C4_POLICY_PHRASES if filter_policy else ())],
            remove_citations,
        )

    def rules(self) -> Sequence[Rule]:
        lines = {name: value for name, value in vars(self._cleaner).items() if not name.startswith("_")}
        return (
            _no_more_than_none("lorem_ipsum", "filter_lorem_ipsum", self.filter_lorem_ipsum, lines),
            _no_more_than_none("curly_brackets", "filter_curly_bracket", self.filter_curly_bracket, lines),
            Rule(
                "sentences",
                low=self.min_num_sentences,
                low_name="min_num_sentences",
                measured_with=lines,
                kind=pa.int64(),
            ),
        )

    def measure(self, text: str) -> Mapping[str, float]:
        numbers = {"lorem_ipsum": 0, "curly_brackets": 0, "sentences": 0}
        policies = C4_POLICY_PHRASES if self.filter_policy else ()
        for line in self._cleaner.prose_lines(text):
            lower = line.lower()
            numbers["lorem_ipsum"] += LOREM_IPSUM in lower
            if self.filter_javascript and JAVASCRIPT in lower:
                continue
            numbers["curly_brackets"] += "{" in line
            if not any(phrase in lower for phrase in policies):
                numbers["sentences"] += count_sentences(line)
        return numbers

    def measure_batch(self, texts: Texts) -> Measures:
        texts = as_array(texts)
        phrases = [LOREM_IPSUM, JAVASCRIPT, *(C4_POLICY_PHRASES if self.filter_policy else ())]
        rules = self._cleaner.kernel_rules(phrases)
        if rules is None:
            return super().measure_batch(texts)
        *columns, odd = (
            pa.Array.from_buffers(pa.int64(), len(texts), [None, pa.py_buffer(column)])
            for column in kernels.measure_lines(texts, rules, bool(self.filter_javascript))
        )
        measures = dict(zip(("lorem_ipsum", "curly_brackets", "sentences"), columns, strict=True))
        rows = pc.equal(odd, literal(1, pa.int64()))
        again = super().measure_batch(texts.filter(rows))
        return {name: pc.replace_with_mask(column, rows, again[name]) for name, column in measures.items()}

    def score_measures(self, measures: Measures) -> pa.Array:
        score, dropped = measures["sentences"], literal(_DROPPED, pa.int64())
        for name, filters in (("curly_brackets", self.filter_curly_bracket), ("lorem_ipsum", self.filter_lorem_ipsum)):
            if filters:
                score = pc.if_else(pc.greater(measures[name], literal(0, pa.int64())), dropped, score)
        return score

    def bounds(self) -> tuple[float, None]:
        return self.min_num_sentences, None


def _no_more_than_none(name: str, parameter: str, is_on: bool, measured_with: Mapping[str, object]) -> Rule:
    """The rule that something does not occur, if a flag says so."""
    named = f"{parameter}={is_on}"
    return Rule(name, high=0 if is_on else None, high_name=named, measured_with=measured_with, kind=pa.int64())


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
