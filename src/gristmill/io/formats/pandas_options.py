"""Options of pandas' readers and writers, as scripts written for pandas pass them in `read_kwargs` and `write_kwargs`.

Options that say what always applies here are taken, and have no effect; the same options with another value are
refused. `dtype` becomes `schema=`, `columns` becomes `fields=`. What is given up: all other options of pandas.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_ANY = object()
_READ: Mapping[str, tuple[Any, ...]] = {
    "lines": (True,),
    "orient": ("records", None),
    "typ": ("frame",),
    "engine": (_ANY,),
    "dtype_backend": (_ANY,),
    "dtype": (None, True, False),
    "encoding": ("utf-8", "utf8", "UTF-8", None),
    "compression": ("infer", None),
    "convert_dates": (False,),
    "precise_float": (_ANY,),
    "chunksize": (None,),
    "nrows": (None,),
    "columns": (None,),
    "filters": (None,),
    "use_threads": (_ANY,),
    "memory_map": (_ANY,),
}
_WRITE: Mapping[str, tuple[Any, ...]] = {
    "lines": (True,),
    "orient": ("records", None),
    "index": (False, None),
    "engine": ("pyarrow", "auto"),
    "mode": ("w",),
    "date_format": ("iso",),
    "double_precision": (10,),
    "default_handler": (_ANY,),
    "compression": ("infer", None),
    "force_ascii": (False,),
    "partition_cols": (None,),
}
_TYPES = {"str": "string", "object": "string", "string": "string", "int": "int64", "float": "float64", "bool": "bool"}


def without_read_options(stage: str, options: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """`read_kwargs` without what has no effect here; `own` are the options of the format."""
    return _without(f"stage {stage!r}: read_kwargs", options, _READ, own)


def without_write_options(writer: str, options: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """`write_kwargs` without what has no effect here; `own` are the options of the format."""
    return _without(f"{writer}: write_kwargs", options, _WRITE, own)


def _without(
    place: str, options: Mapping[str, Any], known: Mapping[str, tuple[Any, ...]], own: Collection[str]
) -> dict[str, Any]:
    left = {}
    for name, value in options.items():
        if name in own or name not in known:
            left[name] = value
        elif known[name][0] is not _ANY and not any(value is one or value == one for one in known[name]):
            allowed = " or ".join(dict.fromkeys(repr(one) for one in known[name]))
            raise ValueError(f"{place}[{name!r}] can only be {allowed}")
    return left


def types_of_dtype(dtype: Any) -> dict[str, str] | None:
    """`dtype={"id": str}` as `schema=`; None if it says nothing of single columns."""
    if not isinstance(dtype, Mapping) or not dtype:
        return None
    names = {column: getattr(kind, "__name__", None) or str(kind) for column, kind in dtype.items()}
    return {str(column): _TYPES.get(name, name.removesuffix("[pyarrow]").lower()) for column, name in names.items()}
