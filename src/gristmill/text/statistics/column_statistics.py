"""Statistics of text columns: counted in C if the extension was built, otherwise in Python by `reference.py`.

Filters of the same text share the counts, which stay with the batch and with those of its rows that are kept. In
`setup`, stages announce the statistics that they will need. The first request for a column counts all announced ones
in one pass, except n-grams: they are expensive, and are counted later, only for the rows that are left by then.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Mapping

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.run.row_progress import in_turn
from gristmill.text.statistics import reference
from gristmill.text.statistics.word_segmentation import split_words

ColumnStatistics = Mapping[str, pa.Array]
"""One column for each statistic, by name."""

_NO_KERNELS_WARNING = (
    "gristmill._kernels was not built, so text is counted in Python, about 50 times slower. Install a C compiler "
    "(apt install gcc python3-dev) and reinstall gristmill"
)
_expected: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


def expect_statistics(field: str, names: Iterable[str], times: int = 1) -> None:
    """Announce that this process will need statistics of a column; `times=-1` takes that back."""
    with _lock:
        for name in names:
            _expected[field, name] += times
            if _expected[field, name] <= 0:
                del _expected[field, name]


def is_ngram_statistic(name: str) -> bool:
    return "_ngram_" in name


def count_column(
    texts: pa.Array, names: Iterable[str], rows: pa.BooleanArray | None = None, language: str | None = None
) -> dict[str, pa.Array]:
    """Statistics of a column of strings, by name. Rows that are false in `rows` are not counted and have 0.

    `language` ("ja", "zh") decides how ideographs are split into lexemes.
    """
    wanted = tuple(dict.fromkeys(names))
    if kernels is None:
        return _count_in_python(texts, wanted, rows, language)
    of_lexemes = [name for name in wanted if reference.is_of_lexemes(name)]
    names = (*wanted, "unspaced") if of_lexemes and "unspaced" not in wanted else wanted
    columns = kernels.text_stats(texts, rows, names)
    counts = {name: _int64(data, len(texts)) for name, data in zip(names, columns, strict=True)}
    if of_lexemes:
        _count_unspaced(texts, counts, of_lexemes, language)
    return {name: counts[name] for name in wanted}


def _count_unspaced(texts: pa.Array, counts: dict[str, pa.Array], names: list[str], language: str | None) -> None:
    """Count the lexemes of texts in scripts without spaces: of their words, with spaces between them."""
    unspaced = pc.equal(counts["unspaced"], literal(1, pa.int64()))
    spaced = [" ".join(split_words(text, language)) for text in in_turn(texts.filter(unspaced).to_pylist())]
    columns = kernels.text_stats(make_array(spaced, pa.string()), None, tuple(names)) if spaced else ()
    for name, data in zip(names, columns, strict=bool(spaced)):
        counts[name] = pc.replace_with_mask(counts[name], unspaced, _int64(data, len(spaced)))


def _int64(data: bytes, length: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), length, [None, pa.py_buffer(data)])


def _count_in_python(
    texts: pa.Array, names: tuple[str, ...], rows: pa.BooleanArray | None, language: str | None
) -> dict[str, pa.Array]:
    warn_without_kernels()
    flags = [True] * len(texts) if rows is None else rows.to_pylist()
    zeros = dict.fromkeys(names, 0)
    counted = [
        reference.count_statistics(text or "", names, language) if flag else zeros
        for text, flag in in_turn(zip(texts.to_pylist(), flags, strict=True))
    ]
    return {name: make_array([counts[name] for counts in counted], pa.int64()) for name in names}


_warned = False


def warn_without_kernels(seen: bool = False) -> None:
    """Warn once if the extension is missing. With `seen`, the planner has warned already, in another process."""
    global _warned  # noqa: PLW0603
    if kernels is None and not _warned and not seen:
        warnings.warn(_NO_KERNELS_WARNING, RuntimeWarning, stacklevel=2)
    _warned = True


def statistics_to_count(field: str, names: Iterable[str], known: Container[str]) -> list[str]:
    """What to count now: the missing statistics, and the announced ones of the same kind (n-grams or not)."""
    wanted = [name for name in names if name not in known]
    kinds = {is_ngram_statistic(name) for name in wanted}
    with _lock:
        expected = [name for column, name in _expected if column == field]
    return wanted + [name for name in expected if is_ngram_statistic(name) in kinds and name not in known]
