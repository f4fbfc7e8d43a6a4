"""Keep: the policy that chooses which document of a cluster is kept.

A policy gives each document a rank, where the document is; only ranks are sent. The document with the highest rank of a
cluster is kept, of equal ones that with the least id, so the choice does not depend on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import column_values, is_json, is_text, json_text
from gristmill.core.errors import ColumnError, did_you_mean, shorten
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, flags, from_numbers, numbers, validity, values_of

FIRST, LONGEST, HIGHEST, NEWEST, SOURCE = POLICIES = ("first", "longest", "highest", "newest", "source")
UNREADABLE, MISSING = "keep_unreadable", "keep_missing"
"""Counters of a stage: rows whose value the policy cannot use, and rows without a value."""

_SMALLEST = 0.001
"""The share of rows that cannot be ranked from which on a run warns."""

_FORMS = "2024-05-01, 2024-05-01T10:00:00Z or Wed, 01 May 2024 10:00:00 GMT"
_WANTED = {
    LONGEST: ("text", "Name a column of text"),
    HIGHEST: ("number", "Name a column of numbers, or convert its values to numbers first"),
    NEWEST: ("time", f"Times are dates, timestamps, Unix time, or text as in {_FORMS}"),
    SOURCE: ("value of its order", "Check how the values are spelled"),
}
"""What each policy expects in its column, and what to do if it is not there."""


@dataclass(frozen=True)
class Keep:
    """The policy that chooses which document of a cluster is kept.

    first: the first in the order of the input.
    longest: the longest text in the column `field`.
    highest: the highest number in the column `field`, such as a score.
    newest: the latest time in the column `field`: timestamps, dates, Unix time, or text (`timestamp_parsing.py`).
    source: the document whose value in the column `field` comes first in `order`.

    Null ranks lowest, as do values that cannot be read or are not in `order`; such rows are counted. Of equal documents
    the first is kept.
    """

    policy: str = "first"
    field: str | None = None
    order: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"keep={self.policy!r} is unknown, must be one of {', '.join(POLICIES)}")
        if self.policy != FIRST and not self.field:
            raise ValueError(f"keep={self.policy!r} needs a column: field='...'")
        if self.field is not None and not isinstance(self.field, str):
            raise TypeError(f"keep={self.policy!r}: field must be the name of a column, not {self.field!r}")
        self._check_order()

    def _check_order(self) -> None:
        if not isinstance(self.order, list | tuple):
            shown = [self.order] if isinstance(self.order, str) else ["...", "..."]
            raise TypeError(
                f"keep={self.policy!r}: order must be a list of values, the best first, as in order={shown!r}, "
                f"not {self.order!r}"
            )
        if self.policy == SOURCE and not self.order:
            raise ValueError("keep='source' needs the values of its column, the best first: order=[...]")
        if self.policy != SOURCE and self.order:
            raise ValueError(f"order goes with keep='source', not with keep={self.policy!r}")
        for value in self.order:
            if not isinstance(value, Hashable):
                raise TypeError(f"keep='source': order holds text, numbers and the like, not {value!r}")

    def rank(self, table: pa.Table, count: Callable[[str, int], None] | None = None) -> pa.DoubleArray:
        """The rank of each row: higher is better, null is lowest. `count` counts the rows that cannot be ranked."""
        if self.policy == FIRST:
            return from_numbers(np.zeros(table.num_rows))
        if self.field not in table.column_names:
            columns = shorten([name for name in table.column_names if not name.startswith("__")], 12)
            raise ColumnError(f"keep={self.policy!r} needs the column {self.field!r}; the columns are {columns}")
        column = as_one_array(table[self.field])
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        ranks = _without_nan(values := self._values(column))
        if count is not None and ranks.null_count:
            absent = _absent(column) | (flags(ranks.is_null()) & flags(values.is_valid()))  # NaN counts as no value
            missing = int((absent & flags(ranks.is_null())).sum())
            for name, rows in ((MISSING, missing), (UNREADABLE, ranks.null_count - missing)):
                if rows:
                    count(name, rows)
        return ranks

    def _values(self, column: pa.Array) -> pa.DoubleArray:
        if self.policy == LONGEST:
            return _lengths(column)
        if self.policy == NEWEST:
            from gristmill.dedup.clusters.timestamp_parsing import unix_seconds

            return unix_seconds(column)
        if self.policy == SOURCE:
            ranks = {value: -float(position) for position, value in reversed(list(enumerate(self.order)))}
            return make_array([_lookup(ranks, value) for value in _python_values(column)], pa.float64())
        return _scores(column)

    def run_warning(self, stage: str, stats: Any) -> str | None:
        """A warning for the end of a run, if too many rows could not be ranked."""
        unread, missing = (int(stats.counts.get(name, 0)) for name in (UNREADABLE, MISSING))
        rows, (expected, fix) = stats.rows_in - stats.quarantined, _WANTED.get(self.policy, ("", ""))
        subject = f"stage {stage!r}: keep={self.policy!r} found no {expected} in column {self.field!r}"
        if rows and unread + missing >= rows:
            return (
                f"{subject} in any of {rows:,} rows ({unread:,} have another value, {missing:,} have none), so the "
                f"first row of each cluster was kept. {fix}"
            )
        is_usual = self.policy == SOURCE  # to have values that are not in `order`
        if is_usual or unread < max(_SMALLEST * rows, 1):
            return None
        return (
            f"{subject} in {100 * unread / rows:.3g}% of the rows ({unread:,} of {rows:,}), which have another value "
            f"and rank last. {fix}"
        )


def policy(stage: str, keep: str | Keep | Mapping[str, Any], text: str | None, score_field: str | None = None) -> Keep:
    """The `Keep` for the parameter `keep` of a stage: the name of a policy, a `Keep`, or a mapping, as in recipes.

    `text` is the column for "longest", and `score_field` that for "highest" and "newest".
    """
    if isinstance(keep, Keep | Mapping):
        if score_field is not None:
            raise ValueError(f"{stage}: a Keep has its own column: leave out score_field")
        return keep if isinstance(keep, Keep) else _from_mapping(stage, keep)
    if not isinstance(keep, str):
        raise TypeError(f"{stage}: keep is {keep!r}, must be one of {', '.join(POLICIES)}, or a Keep(...)")
    if keep not in POLICIES:
        raise ValueError(f"{stage}: keep is {keep!r}, must be one of {', '.join(POLICIES)}, or a Keep(...)")
    if keep in (HIGHEST, NEWEST) and score_field is None:
        raise ValueError(f"{stage}: keep={keep!r} needs the column to compare: score_field=...")
    if keep not in (HIGHEST, NEWEST) and score_field is not None:
        raise ValueError(f"{stage}: score_field is for keep='highest' and keep='newest', not for {keep!r}")
    if keep == SOURCE or (keep == LONGEST and text is None):
        order = ", order=[...]" if keep == SOURCE else ""
        raise ValueError(f"{stage}: keep={keep!r} needs a column: keep=Keep({keep!r}, field=...{order})")
    return Keep(keep, text if keep == LONGEST else score_field)


def _from_mapping(stage: str, given: Mapping[str, Any]) -> Keep:
    known = ("policy", "field", "order")
    for name in given:
        if name not in known:
            raise ValueError(f"{stage}: keep has no {name!r}.{did_you_mean(name, known)} Its keys: {', '.join(known)}")
    try:
        return Keep(**given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{stage}: {error}") from None


def _python_values(column: pa.Array) -> list[Any]:
    """The values of a column as Python objects; JSON is parsed."""
    return column_values(pa.chunked_array([column]))


def _absent(column: pa.Array) -> Numbers:
    """Which rows have no value: null, or blank text."""
    absent = flags(column.is_null())
    if is_text(column.type) or is_json(column.type):
        texts = column.storage if is_json(column.type) else column
        blank = pc.match_substring_regex(texts.cast(pa.large_string()), r'^"?\s*"?$')
        absent = absent | flags(blank)
    return absent


def _lookup(ranks: Mapping[Any, float], value: Any) -> float | None:
    return ranks.get(value) if isinstance(value, Hashable) else None


def _lengths(column: pa.Array) -> pa.DoubleArray:
    """The length of each value: characters of text, bytes of binary, characters of the JSON of anything else."""
    kind = column.type
    if pa.types.is_nested(kind):
        texts: Any = ((None if value is None else json_text(value)) for value in _python_values(column))
        return make_array([None if text is None else float(len(text)) for text in texts], pa.float64())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.binary_length(column).cast(pa.float64())
    return pc.utf8_length(values_of(column).cast(pa.large_string())).cast(pa.float64())


def _scores(column: pa.Array) -> pa.DoubleArray:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return _ranked(column)
    values = _python_values(column)
    ranks = _ranked(make_array([_float(value) for value in values], pa.float64()))
    integers = [int(value) if isinstance(value, int | Decimal) else 0 for value in values]
    large = [_EXACT < abs(value) < 2**64 for value in integers]
    if not any(large):
        return ranks
    selected = [value for value, is_large in zip(integers, large, strict=True) if is_large]
    sizes = numbers(_ranked(make_array(list(map(abs, selected)), pa.uint64())))
    signed = from_numbers(np.where([value < 0 for value in selected], -sizes, sizes))
    return pc.replace_with_mask(ranks, make_array(large, pa.bool_()), signed)


def _float(value: Any) -> float | None:
    with suppress(ValueError, TypeError, OverflowError):
        return float(value)
    return None


_EXACT, _FINE, _COARSE = 2**53, 2**61, 2**63
"""Up to `_EXACT` all integers are floats. Above it, up to `_FINE` each has a rank of its own, up to `_COARSE` four
share one, and then 128 do."""


def _ranked(column: pa.Array) -> pa.DoubleArray:
    """Numbers as floats in the same order. Large integers that would become equal floats get adjacent ones."""
    floats = column.cast(pa.float64(), safe=False)
    values = numbers(floats)
    large = np.abs(values) >= _EXACT
    if not large.any():
        return floats
    steps = _steps(_sizes(column, values))
    if not pa.types.is_integer(column.type):
        more = np.abs(values).view(np.int64) - np.array([2.0**64]).view(np.int64)[0]
        steps = np.where(more >= 0, _steps(np.array([2**64 - 1], np.uint64)) + 1 + more // 16, steps)
    start = np.array([float(_EXACT)]).view(np.int64)[0]
    return from_numbers(np.where(large, np.sign(values) * (start + steps).view(np.float64), values), validity(column))


def _sizes(column: pa.Array, values: Numbers) -> Numbers:
    """The numbers without sign and fraction, limited to 64 bits."""
    if pa.types.is_unsigned_integer(column.type):
        return numbers(column, np.uint64)
    if pa.types.is_signed_integer(column.type):
        return np.abs(numbers(column, np.int64)).view(np.uint64)
    found: Numbers = np.minimum(np.nan_to_num(np.abs(values)), 2.0**64 - 2048).astype(np.uint64)
    return found


def _steps(sizes: Numbers) -> Numbers:
    """The rank of each large number, counted in floats from `_EXACT` on."""
    fine, coarse = np.clip(sizes, _EXACT, _FINE) - _EXACT, np.clip(sizes, _FINE, _COARSE) - _FINE
    found: Numbers = fine + coarse // 4 + (np.maximum(sizes, _COARSE) - _COARSE) // 128
    return found.astype(np.int64)


def _without_nan(ranks: pa.DoubleArray) -> pa.DoubleArray:
    return pc.if_else(pc.is_nan(ranks), pa.nulls(len(ranks), pa.float64()), ranks)


def choose_kept(clusters: pa.Table, pairs: pa.Table | None = None) -> pa.Table:
    """The cluster table: `id, cluster, kept, partner, similarity`, sorted by cluster, the kept document first.

    `clusters` has whole clusters, with `id`, `cluster` and optionally `rank`. The partner of a dropped document is the
    kept one. Their similarity is taken from `pairs` (`u, v, similarity`, with 64-bit ids); it is null if the two were
    never compared, because other documents link them.
    """
    columns = [name for name in ("id", "cluster", "rank") if name in clusters.column_names]
    keys = [("cluster", "ascending"), ("rank", "descending"), ("id", "ascending")]
    ordered = clusters.select(columns).sort_by([key for key in keys if key[0] in columns])
    codes = numbers(as_one_array(ordered["cluster"]).dictionary_encode().indices, np.int64)
    kept = np.append(True, codes[1:] != codes[:-1])[: len(codes)]
    keepers = np.flatnonzero(kept)[np.cumsum(kept) - 1] if len(kept) else np.zeros(0, np.int64)
    ids = as_one_array(ordered["id"])
    partners = pc.if_else(from_numbers(kept), pa.nulls(len(ids), ids.type), ids.take(from_numbers(keepers)))
    found = _similarities(ids, partners, kept, pairs)
    return pa.table(
        {
            "id": ids,
            "cluster": ordered["cluster"],
            "kept": from_numbers(kept),
            "partner": partners,
            "similarity": found,
        }
    )


def _similarities(ids: pa.Array, partners: pa.Array, kept: Numbers, pairs: pa.Table | None) -> pa.DoubleArray:
    if pairs is None or not pairs.num_rows or kept.all():
        return pa.nulls(len(ids), pa.float64())
    one, other = numbers(ids, np.int64), numbers(partners, np.int64)
    u, v = numbers(pairs["u"], np.int64), numbers(pairs["v"], np.int64)
    nodes = np.unique(one)
    inside = np.isin(u, nodes) & np.isin(v, nodes)
    scores = numbers(pairs["similarity"], np.float64)[inside]
    known = _codes(u[inside], v[inside], nodes)
    order = np.argsort(known, kind="stable")
    known, scores = known[order], scores[order]
    wanted = np.where(kept, -1, _codes(one, np.where(kept, one, other), nodes))
    places = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    there = (known[places] == wanted) if len(known) else np.zeros(len(one), np.bool_)
    valid = pa.py_buffer(np.packbits(there, bitorder="little"))
    return from_numbers(scores[places] if len(known) else np.zeros(len(one)), valid)


def _codes(one: Numbers, other: Numbers, nodes: Numbers) -> Numbers:
    """A number for each pair of nodes, the same in both directions."""
    low, high = np.searchsorted(nodes, np.minimum(one, other)), np.searchsorted(nodes, np.maximum(one, other))
    return low * np.int64(len(nodes)) + high
