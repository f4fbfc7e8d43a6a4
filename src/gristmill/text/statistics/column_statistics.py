"""Statistics of text columns: counted in C if the extension was built, otherwise in Python by `kernel_reference.py`.

Filters of the same text share the counts, which stay with the batch and with those of its rows that are kept. In
`setup`, stages announce the statistics that they will need, in the order in which they run, and which columns they
change. The first request for a column counts in one pass all that is announced from that stage on to the next that
changes the column, except n-grams: they are expensive, and are counted later, only for the rows that are left by then.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.run.row_progress import in_turn
from gristmill.text.statistics import kernel_reference as reference
from gristmill.text.statistics.word_segmentation import split_words

ColumnStatistics = Mapping[str, pa.Array]
"""One column for each statistic, by name."""

_NO_KERNELS_WARNING = (
    "gristmill._kernels was not built, so text is counted in Python, about 50 times slower. Install a C compiler "
    "(apt install gcc python3-dev) and reinstall gristmill"
)


class Announcement(NamedTuple):
    """What a stage will do with a column: need statistics of it, or change it if there are none."""

    stage: object
    field: str
    names: tuple[str, ...]


_announced: list[Announcement] = []
_lock = threading.Lock()


def announce(stage: object, fields: Iterable[tuple[str, tuple[str, ...]]]) -> None:
    """Say which statistics of which columns a stage of this process will need; no names: it changes the column."""
    with _lock:
        _announced.extend(Announcement(stage, field, names) for field, names in fields)


def withdraw(stage: object) -> None:
    """Take back what a stage has announced."""
    with _lock:
        _announced[:] = [one for one in _announced if one.stage is not stage]


def _expected(stage: object, field: str) -> list[str]:
    """What is announced of a column from a stage on, until another one changes the column."""
    with _lock:
        places = [place for place, one in enumerate(_announced) if one.stage is stage and one.field == field]
        names: dict[str, None] = {}
        for one in _announced[places[0] if places else 0 :]:
            if one.field == field and not one.names:
                break
            names |= dict.fromkeys(one.names) if one.field == field else {}
        return list(names)


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


def statistics_to_count(stage: object, field: str, names: Iterable[str], known: Container[str]) -> list[str]:
    """What to count now: the missing statistics, and the announced ones of the same kind (n-grams or not)."""
    wanted = [name for name in names if name not in known]
    kinds = {is_ngram_statistic(name) for name in wanted}
    if not wanted:
        return []
    expected = [name for name in _expected(stage, field) if name not in wanted and name not in known]
    return wanted + [name for name in expected if is_ngram_statistic(name) in kinds]
