"""Reads weights from files that cannot run code: safetensors, and PyTorch files with `weights_only`.

A safetensors file is a JSON table of names, types and offsets, followed by the numbers; it is memory-mapped, not
copied. Other pickles are refused.
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
_MAX_TABLE_BYTES = 100_000_000
"""The maximum size of the table: a damaged file may claim any."""


def weights_file(folder: Path) -> Path | None:
    """The file with the weights of a model in a folder, if there is one."""
    names = ("model.safetensors", "pytorch_model.bin")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_weights(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All tensors of a file by name. Half precision is converted to single precision."""
    if path.suffix == ".safetensors":
        return {name: _single(value) for name, value in _safetensors(path).items()}
    if path.suffix in (".pt", ".pth", ".bin"):
        torch = require("torch", "torch", f"reading {path.name}")
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise InputError(
                f"{path} is damaged or contains more than weights, so it is not loaded: {error}"
            ) from error
        return {name: value.float().numpy() for name, value in state.items() if hasattr(value, "numpy")}
    raise InputError(f"{path}: weights must be in a .safetensors, .pt, .pth or .bin file")


def _safetensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    raw = np.memmap(path, np.uint8, "r")
    try:
        (length,) = struct.unpack("<Q", raw[:8].tobytes())
        table = json.loads(raw[8 : 8 + min(length, _MAX_TABLE_BYTES)].tobytes())
        return {name: _tensor(raw[8 + length :], entry) for name, entry in table.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise InputError(f"{path} is not a safetensors file, or is damaged: {error}. Download it again") from error


def _tensor(data: np.ndarray[Any, Any], entry: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(data):
        raise ValueError("a tensor is outside of the file")
    raw = data[begin:end]
    if entry["dtype"] == "BF16":  # the upper 16 bits of a float32
        wide = raw.view("<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(entry["shape"])
    return raw.view(_TYPES[entry["dtype"]]).reshape(entry["shape"])


def _single(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return value.astype(np.float32) if value.dtype == np.float16 else value


def write_safetensors(path: Path, weights: Weights) -> None:
    """Write tensors of float32 as a safetensors file."""
    table: dict[str, Any] = {"__metadata__": {"format": "np"}}
    at = 0
    for name, value in weights.items():
        size = 4 * value.size
        table[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for value in weights.values():
            file.write(np.ascontiguousarray(value, "<f4").data)
