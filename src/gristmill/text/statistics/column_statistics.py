"""Statistics of text columns: counted in C where the extension is there, else by `reference.py`.

Filters that share a text share the counting. What was counted stays with the batch, and with the rows of it that
are kept. Stages say when they are set up what they will ask for; who asks first has it all counted at once, the
n-grams apart from the rest: they are the costly part, and are counted only for rows that are left by then.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Mapping

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.native_kernels import kernels
from gristmill.text.statistics import reference

ColumnStatistics = Mapping[str, pa.Array]
"""Statistics by name, one column each."""

_NO_KERNELS_WARNING = (
    "gristmill._kernels was not built, so text is counted in Python, about 50 times slower. Install a C compiler "
    "(apt install gcc python3-dev) and install gristmill again"
)
_expected: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


def expect_statistics(field: str, names: Iterable[str], times: int = 1) -> None:
    """Statistics of a field will be asked for in this process; with `times=-1`, no longer."""
    with _lock:
        for name in names:
            _expected[field, name] += times
            if _expected[field, name] <= 0:
                del _expected[field, name]


def is_ngram_statistic(name: str) -> bool:
    return "_ngram_" in name


def count_column(texts: pa.Array, names: Iterable[str], rows: pa.BooleanArray | None = None) -> dict[str, pa.Array]:
    """Statistics of a column of strings, by name. What `rows` leaves out is not looked at and has 0."""
    wanted = tuple(dict.fromkeys(names))
    if kernels is None:
        return _count_in_python(texts, wanted, rows)
    columns = kernels.text_stats(texts, rows, wanted)
    return {name: _int64(data, len(texts)) for name, data in zip(wanted, columns, strict=True)}


def _int64(data: bytes, length: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), length, [None, pa.py_buffer(data)])


def _count_in_python(texts: pa.Array, names: tuple[str, ...], rows: pa.BooleanArray | None) -> dict[str, pa.Array]:
    warn_without_kernels()
    flags = [True] * len(texts) if rows is None else rows.to_pylist()
    nothing = dict.fromkeys(names, 0)
    found = [
        reference.count_statistics(text or "", names) if flag else nothing
        for text, flag in zip(texts.to_pylist(), flags, strict=True)
    ]
    return {name: make_array([counts[name] for counts in found], pa.int64()) for name in names}


_warned = False


def warn_without_kernels(seen: bool = False) -> None:
    """Say that there is no extension, if there is none; not if the user has `seen` it, from the planner."""
    global _warned  # noqa: PLW0603
    if kernels is None and not _warned and not seen:
        warnings.warn(_NO_KERNELS_WARNING, RuntimeWarning, stacklevel=2)
    _warned = True


def statistics_to_count(field: str, names: Iterable[str], known: Container[str]) -> list[str]:
    """What is to be counted now, when some statistics of a field are asked for and some are known."""
    wanted = [name for name in names if name not in known]
    kinds = {is_ngram_statistic(name) for name in wanted}
    with _lock:
        expected = [name for place, name in _expected if place == field]
    return wanted + [name for name in expected if is_ngram_statistic(name) in kinds and name not in known]
