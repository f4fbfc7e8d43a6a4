"""Parses times in the forms that crawls have, as Unix seconds. A time without a zone is UTC.

    times and dates    Arrow timestamps and dates, with a zone or without
    numbers            Unix time in seconds, or in milli-, micro- or nanoseconds if the number is large enough;
                       a year, `yyyymmdd` and `yyyymmddhhmmss`, as in web archives
    text               ISO 8601; dates of HTTP and mail (RFC 9110, RFC 2822); a month; numbers

The usual forms of text are parsed a column at a time, others one by one. Both give the same number, to the last bit, so
the result does not depend on what else is in a block. Values that cannot be parsed are null.

Gives up dates whose order of day and month depends on the country, such as 01/05/2024; names of months in other
languages than English; precision below a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import column_values, is_text
from gristmill.dedup.columns.arrow_numpy import Numbers, flags, from_numbers, numbers, validity

_EPOCH, _TICK = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_LARGE = (1e11, 1e14, 1e17)
"""Numbers from these on are milli-, micro- and nanoseconds. As seconds, the first is in the year 5138."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = r"[1-9]\d{3}-\d{2}-\d{2}"
_CLOCK = r"[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?"
_ZONE = r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)"
_HTTP = rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d{{2}} (?:{'|'.join(_MONTHS)}) [1-9]\d{{3}} \d{{2}}:\d{{2}}:\d{{2}} GMT"


def unix_seconds(column: pa.Array) -> pa.DoubleArray:
    """The time of each value; null if it has none, or it cannot be parsed."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _of_times(column)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        floats = column.cast(pa.float64(), safe=False)
        return from_numbers(_scaled(numbers(floats)), validity(floats))
    if is_text(kind):
        return _of_texts(column)
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return pa.nulls(len(column), pa.float64())
    return make_array([_second(value) for value in column_values(pa.chunked_array([column]))], pa.float64())


def _of_times(column: pa.Array) -> pa.DoubleArray:
    kind = column.type
    if pa.types.is_date32(kind):
        return from_numbers(numbers(column.view(pa.int32())) * 86400.0, validity(column))
    values = numbers(column.view(pa.int64()))
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    if unit == "ns":
        values, unit = values // 1000, "us"
    return from_numbers(values / _PER_SECOND[unit], validity(column))


def _scaled(values: Numbers) -> Numbers:
    """Numbers as seconds. Numbers that can be a calendar date are read as one: as Unix time, they would be before 1974
    or after 2286."""
    places = np.searchsorted(np.array(_LARGE), np.abs(values), "right")  # NaN is beyond all, and stays NaN
    found: Numbers = values / np.array([1.0, 1e3, 1e6, 1e9])[places]
    dates = np.zeros(len(values), np.bool_)
    for digits in (4, 8, 14):
        dates |= (values >= 10 ** (digits - 1)) & (values < 3 * 10 ** (digits - 1))
    dates &= values == np.floor(values)
    if dates.any():
        times, valid = _of_calendar(values[dates].astype(np.int64))
        found[dates] = np.where(valid, times, found[dates])
    return found


def _of_calendar(values: Numbers) -> tuple[Numbers, Numbers]:
    """The times of numbers yyyy, yyyymmdd and yyyymmddhhmmss; and whether each is a valid time."""
    has_clock = values >= 10**13
    clock = np.where(has_clock, values % 10**6, 0)
    days = np.where(has_clock, values // 10**6, np.where(values < 10**4, values * 10**4 + 101, values))
    months = (days // 10**4 - 1970).astype("M8[Y]").astype("M8[M]") + (days // 100 % 100 - 1)
    dates = months.astype("M8[D]") + (days % 100 - 1)
    hour, minute, second = clock // 10**4, clock // 100 % 100, clock % 100
    valid = (dates.astype("M8[M]") == months) & (days // 100 % 100 - 1 < 12) & (days // 100 % 100 > 0)
    valid &= (hour < 24) & (minute < 60) & (second < 60)
    return dates.astype("M8[s]").astype(np.int64) + hour * 3600.0 + minute * 60 + second, valid


# -- columns of text -----------------------------------------------------------------------------------------


def _of_texts(column: pa.Array) -> pa.DoubleArray:
    texts = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    found = pa.nulls(len(texts), pa.float64())
    for pattern, read in _FORMS:
        mask = pc.fill_null(pc.match_substring_regex(texts, f"^{pattern}$"), literal(False, pa.bool_()))
        if mask.true_count:
            with suppress(pa.ArrowInvalid):  # such as the 30th of February; then one by one
                found = pc.replace_with_mask(found, mask, unix_seconds(read(texts.filter(mask))))
    rest = from_numbers(flags(texts.is_valid()) & flags(found.is_null()))
    if not rest.true_count:
        return found
    return pc.replace_with_mask(found, rest, make_array(map(_second, texts.filter(rest).to_pylist()), pa.float64()))


def _without_zone(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.timestamp("us"))


def _with_zone(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.timestamp("us", "UTC"))


def _of_digits(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.float64())


def _of_http(texts: pa.Array) -> pa.Array:
    """`Wed, 01 Jan 2025 10:00:00 GMT`, which always has this length."""
    day, month, year, clock = (
        pc.utf8_slice_codeunits(texts, *where) for where in ((5, 7), (8, 11), (12, 16), (17, 25))
    )
    names = make_array(_MONTHS, pa.string()).cast(pa.large_string())
    digits = make_array([f"{number:02d}" for number in range(1, 13)], pa.string()).cast(pa.large_string())
    dates = pc.binary_join_element_wise(year, digits.take(pc.index_in(month, value_set=names)), day, _text("-"))
    return _without_zone(pc.binary_join_element_wise(dates, clock, _text("T")))


def _text(value: str) -> pa.Scalar:
    return literal(value, pa.string()).cast(pa.large_string())


_FORMS: tuple[tuple[str, Callable[[pa.Array], pa.Array]], ...] = (
    (f"{_DAY}(?:{_CLOCK})?", _without_zone),
    (f"{_DAY}{_CLOCK}{_ZONE}", _with_zone),
    (_HTTP, _of_http),
    (r"\d{9,13}(?:\.\d{1,9})?", _of_digits),
)


# -- one by one ----------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_ISO = re.compile(
    r"(\d{4})([-/.])(\d\d)(?:\2(\d\d))?(?:[T\s]\s*(\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?))?\s*"
    r"(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII | re.IGNORECASE,
)
_MOST = 100
"""Longer texts are not parsed."""


def _second(value: Any) -> float | None:
    with suppress(ValueError, TypeError, OverflowError, IndexError):
        if isinstance(value, str):
            return _read(value.strip())
        if isinstance(value, datetime):
            return _since(value)
        if isinstance(value, date):
            return _since(datetime(value.year, value.month, value.day, tzinfo=UTC))
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return _scaled_one(float(value))
    return None


def _scaled_one(value: float) -> float:
    return float(_scaled(np.array([value]))[0])


def _since(time: datetime) -> float:
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _TICK / 1e6


def _read(text: str) -> float:
    """The time of a text. Raises ValueError if it is none."""
    if len(text) > _MOST:
        raise ValueError
    if _NUMBER.fullmatch(text):
        return _scaled_one(float(text))
    if found := _ISO.fullmatch(text):
        return _written(found[1], found[3], found[4], found[5], found[6])
    with suppress(ValueError):
        return _since(datetime.fromisoformat(text.upper()))
    from email.utils import parsedate_to_datetime

    with suppress(ValueError):
        return _since(parsedate_to_datetime(text))
    return _since(parsedate_to_datetime(f"{text} 00:00:00"))  # 1 May 2024


def _written(year: str, month: str | None, day: str | None, clock: str | None, zone: str | None) -> float:
    zone = "+00:00" if zone is None or zone.isalpha() else zone
    return _since(datetime.fromisoformat(f"{year}-{month or '01'}-{day or '01'}T{clock or '00:00'}{zone}"))
