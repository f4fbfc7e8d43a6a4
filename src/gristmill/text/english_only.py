"""Counts documents in other languages where a filter is made for English, and warns once at the end of a run.

A column `language`, as `IdentifyLanguage` adds it, is used if there is one. Otherwise a document counts as not English
if it is long and has none of the eight most common words, or if less than half of it is ASCII. These are statistics
that the heuristics need anyway, so the check costs nothing. The first such filter counts each batch.

Gives up: telling other languages from text without language, such as tables and lists of keywords.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import is_text
from gristmill.core.batch import column_cache
from gristmill.text.language_identification import is_language
from gristmill.text.text_columns import batch_column, batch_statistics

if TYPE_CHECKING:
    from gristmill.core.batch import Batch
    from gristmill.core.stage import ProcessingStage

ENGLISH_STATISTICS = ("words", "common_words", "chars", "plain")
counting_is_free = kernels is not None
"""Without the C extension, counting is slow, and there is no warning."""

NOT_ENGLISH_COUNTER = "not_english"
LANGUAGE_COLUMN = "language"
_MIN_LENGTH = literal(50, pa.int64())
_NONE, _TWO = literal(0, pa.int64()), literal(2, pa.int64())
_MIN_DOCUMENTS, _MIN_SHARE = 10, 0.01
"""The smallest number and share of documents that cause a warning."""


def count_not_english(stage: ProcessingStage[Any, Any], batch: Batch, field: str) -> int:
    """How many documents of a batch are not in English; 0 if an earlier stage has counted them, or counting is slow."""
    memo_key = f"{field} {NOT_ENGLISH_COUNTER}"
    if not counting_is_free or not batch.num_items or memo_key in column_cache(batch):
        return 0
    column_cache(batch)[memo_key] = True
    codes = batch_column(stage, batch, LANGUAGE_COLUMN) if LANGUAGE_COLUMN in batch.get_columns() else None
    if codes is not None and is_text(codes.type):
        codes_with_rows = pc.value_counts(codes.drop_null()).to_pylist()
        return sum(one["counts"] for one in codes_with_rows if not is_language(one["values"], ("en", "eng")))
    counts = batch_statistics(stage, batch, field, ENGLISH_STATISTICS)
    words, common, chars, plain = (counts[name] for name in ENGLISH_STATISTICS)
    no_common_words = pc.and_(pc.greater_equal(words, _MIN_LENGTH), pc.equal(common, _NONE))
    mostly_not_ascii = pc.and_(pc.greater_equal(chars, _MIN_LENGTH), pc.less(pc.multiply(plain, _TWO), chars))
    return int(pc.or_(no_common_words, mostly_not_ascii).true_count)


def not_english_warning(stage: str, stats: Any) -> str | None:
    """The warning of a stage that got many documents in other languages."""
    others, rows = int(stats.counts.get(NOT_ENGLISH_COUNTER, 0)), stats.rows_in
    if others < _MIN_DOCUMENTS or others < _MIN_SHARE * rows:
        return None
    return (
        f"stage {stage!r} is made for English, and {100 * others / rows:.3g}% of its documents "
        f"({others:,} of {rows:,}) are in another language, or are not prose. Separate the languages first "
        "(IdentifyLanguage, Route), or use filters for all languages, as the recipe heuristic-multilingual does"
    )
