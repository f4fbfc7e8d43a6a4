"""Weights from files that cannot run code: safetensors, and what PyTorch reads with `weights_only`.

A safetensors file is a JSON table of names, types and places, and then the numbers: it is mapped, not copied. Other
pickles are refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import InputError, require

Weights = Mapping[str, np.ndarray[Any, Any]]

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}
_LONGEST = 100_000_000
"""Bytes of a table that is believed."""


def read_weights(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All tensors of a file, by name. Half precision becomes single precision."""
    if path.suffix == ".safetensors":
        return {name: _single(value) for name, value in _safetensors(path).items()}
    if path.suffix in (".pt", ".pth", ".bin"):
        torch = require("torch", "torch", f"reading {path.name}")
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise InputError(f"{path} holds more than weights, or is damaged, so it is not loaded: {error}") from error
        return {name: value.float().numpy() for name, value in state.items() if hasattr(value, "numpy")}
    raise InputError(f"{path}: weights are read from .safetensors, .pt, .pth or .bin files")


def _safetensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    raw = np.memmap(path, np.uint8, "r")
    try:
        (length,) = struct.unpack("<Q", raw[:8].tobytes())
        table = json.loads(raw[8 : 8 + min(length, _LONGEST)].tobytes())
        return {name: _tensor(raw[8 + length :], told) for name, told in table.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise InputError(f"{path} is no safetensors file, or is damaged: {error}. Fetch it again") from error


def _tensor(data: np.ndarray[Any, Any], told: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    begin, end = told["data_offsets"]
    if not 0 <= begin <= end <= len(data):
        raise ValueError("a tensor lies beyond its end")
    cut = data[begin:end]
    if told["dtype"] == "BF16":  # the upper half of a float
        wide = cut.view("<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(told["shape"])
    return cut.view(_TYPES[told["dtype"]]).reshape(told["shape"])


def _single(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return value.astype(np.float32) if value.dtype == np.float16 else value
