"""Filters of several rules: each looks at one number of a document, its measure, and says in which range it must lie.

A document is kept if it breaks no rule. The measures are computed apart from the rules: once for a column of texts, by
`measure_batch` or from shared statistics, and all of them, also those after the first broken rule. So rejected rows
name the rule with its number and its limit, and `whatif` judges recorded measures by other limits without the text.

    RuleFilter             write `rules` and `measure`
    StatisticRuleFilter    write `rules`, `statistics` and `measure_counts`; counted in C, once for all such filters
    LexemeRuleFilter       the same for statistics of lexemes
    NumberedRuleFilter     either of them, with a score that is a number instead of the name of the first broken rule
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import Measures, Rule, rule_of_bounds
from gristmill.core.records.drop_reasons import limit_text
from gristmill.core.run.row_progress import in_turn
from gristmill.text.document_filter import BoundedFilter, DocumentFilter
from gristmill.text.statistics import column_statistics
from gristmill.text.statistics import kernel_reference as reference
from gristmill.text.statistics.word_segmentation import is_written_without_spaces
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from gristmill.text.text_columns import Texts

_DECIDES = ("score_document", "score_batch", "keep_document", "keep_batch", "keep_rows")


class RuleFilter(DocumentFilter):
    """A filter of several rules. Its score is the name of the first broken one, or "" if there is none; keeps ""."""

    score_type = pa.string()

    decides_by_rules: ClassVar[bool] = True
    """False for a subclass that overrides how documents are scored or kept, and not the rules."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__
        if "measure" in own and "measure_batch" not in own:
            cls.measure_batch = RuleFilter.measure_batch  # type: ignore[method-assign]
        if ("measure" in own or "measure_batch" in own) and "statistics" not in own:
            cls.statistics = DocumentFilter.statistics  # type: ignore[method-assign]
        if "rules" in own:
            cls.decides_by_rules = True
        elif any(name in own for name in _DECIDES):
            cls.decides_by_rules = False

    @abstractmethod
    def rules(self) -> Sequence[Rule]:
        """The rules, in order. One without a limit is off, and is measured all the same."""

    @abstractmethod
    def measure(self, text: str) -> Mapping[str, float]:
        """The number of each rule for one document, by the name of the rule. Blank documents have numbers too."""

    def measure_batch(self, texts: Texts) -> Measures:
        """The numbers of a column of strings. Override it where a whole column can be measured faster."""
        rows = [self.measure(text or "") for text in in_turn(texts.to_pylist())]
        return {rule.name: make_array([row[rule.name] for row in rows], rule.kind) for rule in self.rules()}

    def measure_counts(self, counts: Mapping[str, Any]) -> Measures:
        """The numbers, from columns of the statistics that `statistics` names."""
        raise NotImplementedError(f"{self.name} overrides statistics() without measure_counts(): write both")

    def score_measures(self, measures: Measures) -> pa.Array:
        """The scores of documents with these numbers."""
        rules = self.rules()
        score = pa.repeat(literal("", pa.string()), len(measures[rules[0].name])) if rules else None
        for rule in reversed(rules):
            if rule.is_on:
                score = pc.if_else(rule.holds(measures[rule.name]), score, literal(rule.name, pa.string()))
        return score

    def deciding_rules(self) -> Sequence[Rule]:
        return self.rules() if self.decides_by_rules else ()

    def score_document(self, text: str) -> Any:
        numbers = self.measure(text)
        columns = {rule.name: make_array([numbers[rule.name]], rule.kind) for rule in self.rules()}
        return self.score_measures(columns)[0].as_py()

    def score_batch(self, texts: Texts) -> pa.Array:
        return as_array(self.score_measures(self.measure_batch(texts)))

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        return as_array(self.score_measures(self.measure_counts(counts)))

    def keep_document(self, score: Any) -> bool:
        return bool(score == "")

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        if not pa.types.is_string(scores.type):
            return super().keep_batch(scores)
        return pc.equal(scores, literal("", pa.string())).fill_null(literal(False, pa.bool_()))


class StatisticRuleFilter(RuleFilter):
    """A filter of several rules whose numbers are computed from statistics of the text."""

    @abstractmethod
    def statistics(self) -> tuple[str, ...]:
        """The names of the statistics, which are defined in `statistics/kernel_reference.py`."""

    @abstractmethod
    def measure_counts(self, counts: Mapping[str, Any]) -> Measures:
        """The numbers, from columns of statistics."""

    def measure(self, text: str) -> Mapping[str, float]:
        counts = reference.count_statistics(text, self.statistics())
        columns = {name: make_array([value], pa.int64()) for name, value in counts.items()}
        return {name: column[0].as_py() for name, column in self.measure_counts(columns).items()}

    def measure_batch(self, texts: Texts) -> Measures:
        return self.measure_counts(column_statistics.count_column(as_array(texts), self.statistics()))


class LexemeRuleFilter(StatisticRuleFilter):
    """A filter of several rules whose numbers are computed from statistics of lexemes, in any script.

    `language` ("ja", "zh") decides how ideographs are split; without it that is seen in the text.
    """

    language: str | None = None

    @property
    def unspaced(self) -> bool:
        return self.language is not None and is_written_without_spaces(self.language)

    @abstractmethod
    def statistics(self) -> tuple[str, ...]:
        """The names of the statistics, which are defined in `statistics/kernel_reference.py`."""

    def measure(self, text: str) -> Mapping[str, float]:
        counts = reference.count_statistics(text, self.statistics(), self.language)
        columns = {name: make_array([value], pa.int64()) for name, value in counts.items()}
        return {name: column[0].as_py() for name, column in self.measure_counts(columns).items()}

    def measure_batch(self, texts: Texts) -> Measures:
        counts = column_statistics.count_column(as_array(texts), self.statistics(), language=self.language)
        return self.measure_counts(counts)


class NumberedRuleFilter(RuleFilter, BoundedFilter):
    """A filter of several rules whose score is a number, by which it can be seen whether a document breaks one."""

    @abstractmethod
    def score_measures(self, measures: Measures) -> pa.Array:
        """The scores of documents with these numbers: within `bounds` if they break no rule."""

    def threshold(self) -> str:
        rule = rule_of_bounds(self, *self.bounds())
        return ", ".join(
            limit_text(limit, name, is_low)
            for limit, name, is_low in ((rule.low, rule.low_name, True), (rule.high, rule.high_name, False))
            if limit is not None
        )

    def deciding_rules(self) -> Sequence[Rule]:
        return RuleFilter.deciding_rules(self)

    def keep_document(self, score: Any) -> bool:
        return BoundedFilter.keep_document(self, score)

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return BoundedFilter.keep_batch(self, scores)
