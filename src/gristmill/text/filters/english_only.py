"""How many documents are not in English, where a filter is made for English. One warning at the end of a run tells.

Where there is a column `language`, as `IdentifyLanguage` makes it, that tells. Else it is seen from what the heuristics
count anyway, so it costs nothing: a text of some length without one of the eight most common words, or of which less
than half is ASCII. Each batch is looked at by the first such filter that it meets.

Gives up: telling other languages from what is no language, such as tables and lists of keywords.
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
from gristmill.text.text_columns import StageOrName, batch_column, batch_statistics

if TYPE_CHECKING:
    from gristmill.core.batch import Batch

ENGLISH_STATISTICS = ("words", "common_words", "chars", "plain")
counting_is_free = kernels is not None
"""Whether counting costs nothing."""

NOT_ENGLISH_COUNTER = "not_english"
LANGUAGE_COLUMN = "language"
_MIN_LENGTH = literal(50, pa.int64())
_NONE, _TWO = literal(0, pa.int64()), literal(2, pa.int64())
_MIN_DOCUMENTS, _MIN_SHARE = 10, 0.01
"""So many documents, and such a share of them, are worth a warning."""


def count_not_english(stage: StageOrName, batch: Batch, field: str) -> int:
    """Documents of a batch that are not in English. 0 if an earlier stage has counted them, or counting is costly."""
    seen = f"{field} {NOT_ENGLISH_COUNTER}"
    if not counting_is_free or not batch.num_items or seen in column_cache(batch):
        return 0
    column_cache(batch)[seen] = True
    codes = batch_column(stage, batch, LANGUAGE_COLUMN) if LANGUAGE_COLUMN in batch.get_columns() else None
    if codes is not None and is_text(codes.type):
        return sum(1 for code in codes.to_pylist() if isinstance(code, str) and not is_language(code, ("en", "eng")))
    found = batch_statistics(stage, batch, field, ENGLISH_STATISTICS)
    words, common, chars, plain = (found[name] for name in ENGLISH_STATISTICS)
    without = pc.and_(pc.greater_equal(words, _MIN_LENGTH), pc.equal(common, _NONE))
    script = pc.and_(pc.greater_equal(chars, _MIN_LENGTH), pc.less(pc.multiply(plain, _TWO), chars))
    return int(pc.or_(without, script).true_count)


def not_english_warning(stage: str, stats: Any) -> str | None:
    """What to tell of a stage that has met documents in other languages."""
    others, rows = int(stats.counts.get(NOT_ENGLISH_COUNTER, 0)), stats.rows_in
    if others < _MIN_DOCUMENTS or others < _MIN_SHARE * rows:
        return None
    return (
        f"stage {stage!r} is made for English, and {100 * others / rows:.3g}% of the documents that it met "
        f"({others:,} of {rows:,}) are in another language, or are no prose. Part the languages first "
        "(IdentifyLanguage, Route), or use filters for all of them, as the recipe heuristic-multilingual does"
    )
