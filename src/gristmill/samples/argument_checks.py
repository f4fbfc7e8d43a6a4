"""Checks of constructor arguments. Each raises an error that names the class, the parameter and its value."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from gristmill.core.errors import did_you_mean


def check_number(name: str, parameter: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise TypeError(f"{name}: {parameter} is {value!r}, must be a number")


def check_not_negative(name: str, parameter: str, value: Any) -> None:
    check_number(name, parameter, value)
    if value < 0:
        raise ValueError(f"{name}: {parameter} is {value!r}, must be 0 or more")


def check_count(name: str, parameter: str, value: Any, least: int = 0) -> None:
    check_number(name, parameter, value)
    if value < least or not isinstance(value, Integral):
        raise ValueError(f"{name}: {parameter} is {value!r}, must be a whole number, {least} or more")


def check_positive(name: str, parameter: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: {parameter} is {value!r}, must be a whole number, 1 or more")


def check_bounds(name: str, quantity: str, low: float, high: float) -> None:
    check_number(name, f"min_{quantity}", low)
    check_number(name, f"max_{quantity}", high)
    if not 0 <= low <= high:
        raise ValueError(
            f"{name}: min_{quantity}={low} and max_{quantity}={high} must be 0 or more, and min at most max"
        )


def check_ratio(name: str, parameter: str, ratio: float) -> None:
    check_number(name, parameter, ratio)
    if not 0 <= ratio <= 1:
        raise ValueError(f"{name}: {parameter} is {ratio!r}, must be a number from 0 to 1")


def check_language(name: str, lang: str) -> None:
    if not isinstance(lang, str) or not re.fullmatch(r"[a-z]{2,3}(?:[_-][A-Za-z]{2,4})?", lang):
        raise ValueError(f"{name}: lang is {lang!r}, must be a language code, such as 'en', 'zh' or 'tha'")


def check_choice(name: str, parameter: str, value: Any, choices: Iterable[str]) -> None:
    known = list(choices)
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise ValueError(f"{name}: {parameter} is {value!r}, must be one of: {', '.join(known)}.{hint}")


def check_output_path(name: str, path: str | os.PathLike[str]) -> None:
    if not os.fspath(path):
        raise ValueError(f"{name}: path is empty: name the directory to write to")
