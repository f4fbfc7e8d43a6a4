"""Which document of a cluster is kept, and the table that says so.

A policy gives each document a rank; in each cluster the highest is kept, and of equal ones the one with the least
id. So the choice does not depend on how documents arrived. Rank where the documents are, and send ranks, not texts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.columns import make_array
from gristmill.core.compute import pc
from gristmill.core.table import is_json, is_text, table_to_rows
from gristmill.dedup.columns import Numbers, flags, from_numbers, numbers, validity, values_of, whole

FIRST, LONGEST, HIGHEST, NEWEST, SOURCE = POLICIES = ("first", "longest", "highest", "newest", "source")


@dataclass(frozen=True)
class Keep:
    """Which document of a cluster is kept.

    first: the first in the order of the input.
    longest: the longest text, of the column `field`.
    highest: the highest number in the column `field`, such as a score.
    newest: the latest time in the column `field`: timestamps, dates, numbers, or ISO 8601 text.
    source: by the column `field`: the value that stands first in `order`.

    Null is lowest, as is what cannot be read or is not in `order`. Of equal ones the first is kept.
    """

    policy: str = "first"
    field: str | None = None
    order: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"keep={self.policy!r} is unknown; it is one of {', '.join(POLICIES)}")
        if self.policy != FIRST and not self.field:
            raise ValueError(f"keep={self.policy!r} needs the column that it looks at: field='...'")
        if self.policy == SOURCE and not self.order:
            raise ValueError("keep='source' needs the values of its column, the best first: order=[...]")

    def rank(self, table: pa.Table) -> pa.DoubleArray:
        """The rank of each row: the higher the better, null the lowest."""
        if self.policy == FIRST:
            return from_numbers(np.zeros(table.num_rows))
        if self.field not in table.column_names:
            raise ValueError(f"keep={self.policy!r} looks at {self.field!r}; there are {', '.join(table.column_names)}")
        column = whole(table[self.field])
        if self.policy == LONGEST:
            return pc.utf8_length(values_of(column).cast(pa.large_string())).cast(pa.float64())
        if self.policy == NEWEST:
            return _without_nan(_times(column))
        if self.policy == SOURCE:
            places = {value: -float(place) for place, value in reversed(list(enumerate(self.order)))}
            return make_array([_place(places, value) for value in _python(column)], pa.float64())
        return _without_nan(_scores(column))


def policy(stage: str, keep: str | Keep | Mapping[str, Any], text: str | None, score_field: str | None = None) -> Keep:
    """What the `keep` of a stage means: a policy by its name, or one with all that belongs to it, in a recipe too.

    `text` is the column that the longest is chosen by, and `score_field` goes with "highest" and "newest".
    """
    if not isinstance(keep, str):
        if score_field is not None:
            raise ValueError(f"{stage}: a Keep names its own column: leave out score_field")
        return Keep(**keep) if isinstance(keep, Mapping) else keep
    if keep not in POLICIES:
        raise ValueError(f"{stage}: keep is {keep!r}, must be one of {', '.join(POLICIES)}, or a Keep(...)")
    if keep in (HIGHEST, NEWEST) and score_field is None:
        raise ValueError(f"{stage}: keep={keep!r} goes with the column to look at, score_field=...")
    if keep not in (HIGHEST, NEWEST) and score_field is not None:
        raise ValueError(f"{stage}: score_field goes with keep='highest' or keep='newest', not with {keep!r}")
    if keep == SOURCE or (keep == LONGEST and text is None):
        order = ", order=[...]" if keep == SOURCE else ""
        raise ValueError(f"{stage}: keep={keep!r} needs its column: keep=Keep({keep!r}, field=...{order})")
    return Keep(keep, text if keep == LONGEST else score_field)


def _python(column: pa.Array) -> list[Any]:
    """The values of a column; those of JSON as what they stand for."""
    return [row["value"] for row in table_to_rows(pa.table({"value": column}))]


def _place(places: Mapping[Any, float], value: Any) -> float | None:
    return places.get(value) if isinstance(value, Hashable) else None


def _scores(column: pa.Array) -> pa.DoubleArray:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return _ranked(column)
    return make_array([_score(value) for value in _python(column)], pa.float64())


def _score(value: Any) -> float | None:
    if isinstance(value, int) and not isinstance(value, bool) and _EXACT < abs(value) < 2**63:
        return float(_ranked(make_array([value], pa.int64()))[0].as_py())
    with suppress(ValueError, TypeError, OverflowError):
        return float(_ranked(make_array([float(value)], pa.float64()))[0].as_py())
    return None


_EXACT, _FINE, _MOST = 2**53, 2**61, 2**63 - 1
"""Up to the first of them all whole numbers are floats; up to the second each has a rank of its own."""


def _ranked(column: pa.Array) -> pa.DoubleArray:
    """Numbers as floats that are in the same order: whole ones that a float cannot tell apart become neighbours."""
    floats = column.cast(pa.float64(), safe=False)
    values = numbers(floats)
    large = np.abs(values) >= _EXACT
    if not large.any():
        return floats
    steps = _steps(_sizes(column, values))
    if not pa.types.is_integer(column.type):
        more = np.abs(values).view(np.int64) - np.array([2.0**63]).view(np.int64)[0]
        steps = np.where(more >= 0, _steps(np.array([_MOST])) + more // 16, steps)
    start = np.array([float(_EXACT)]).view(np.int64)[0]
    return from_numbers(np.where(large, np.sign(values) * (start + steps).view(np.float64), values), validity(column))


def _sizes(column: pa.Array, values: Numbers) -> Numbers:
    """The numbers without sign and fraction, as far as 64 bits hold them."""
    found: Numbers = np.minimum(np.nan_to_num(np.abs(values)), 2.0**63 - 1024).astype(np.int64)
    if pa.types.is_signed_integer(column.type):
        found = np.abs(np.maximum(numbers(column, np.int64), -_MOST))
    elif pa.types.is_unsigned_integer(column.type):
        found = np.minimum(numbers(column, np.uint64), np.uint64(_MOST)).astype(np.int64)
    return found


def _steps(sizes: Numbers) -> Numbers:
    """How many floats after the first that is large each has its place."""
    found: Numbers = np.minimum(sizes, _FINE) - _EXACT + np.maximum(sizes - _FINE, 0) // 4
    return found


def _without_nan(ranks: pa.DoubleArray) -> pa.DoubleArray:
    return pc.if_else(pc.is_nan(ranks), pa.nulls(len(ranks), pa.float64()), ranks)


def _times(column: pa.Array) -> pa.DoubleArray:
    kind = column.type
    if is_text(kind) or is_json(kind):
        return make_array([_seconds(value) for value in _python(column)], pa.float64())
    if pa.types.is_temporal(kind):
        column = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return _ranked(column)


def _seconds(text: Any) -> float | None:
    if isinstance(text, int | float):
        return float(text)
    with suppress(ValueError, TypeError, OverflowError, AttributeError):
        time = datetime.fromisoformat((text or "").strip())
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return None


def choose_kept(clusters: pa.Table, pairs: pa.Table | None = None) -> pa.Table:
    """The cluster table: `id, cluster, kept, partner, similarity`, in order of cluster and then from the kept one down.

    `clusters` has `id` and `cluster`, whole clusters only, and perhaps `rank`. The partner of a document that is not
    kept is the one that is. Their similarity is taken from `pairs` (`u, v, similarity`, ids of 64 bits); it is null
    where these two were never compared, because others link them.
    """
    columns = [name for name in ("id", "cluster", "rank") if name in clusters.column_names]
    keys = [("cluster", "ascending"), ("rank", "descending"), ("id", "ascending")]
    ordered = clusters.select(columns).sort_by([key for key in keys if key[0] in columns])
    codes = numbers(whole(ordered["cluster"]).dictionary_encode().indices, np.int64)
    kept = np.append(True, codes[1:] != codes[:-1])[: len(codes)]
    keepers = np.flatnonzero(kept)[np.cumsum(kept) - 1] if len(kept) else np.zeros(0, np.int64)
    ids = whole(ordered["id"])
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
    """A number for each pair of nodes, whichever comes first."""
    low, high = np.searchsorted(nodes, np.minimum(one, other)), np.searchsorted(nodes, np.maximum(one, other))
    return low * np.int64(len(nodes)) + high


def removed(table: pa.Table) -> pa.Array:
    """The ids of a cluster table that are not kept."""
    return whole(table["id"]).filter(from_numbers(~flags(table["kept"])))
