"""Kernels refuse what they cannot read, and do not guess."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from gristmill import _kernels

HOW = ("words", 5, 42)
CALLS: dict[str, tuple[Any, ...]] = {
    "hash128": (0,),
    "normalise": (bytes(4 * 0x3100), True, True),
    "minhash": (*HOW, 260, False),
    "simhash": HOW,
    "similar_pairs": (*HOW, 0.5),
    "repeated_spans": (10,),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [pa.int64(), pa.string_view(), pa.list_(pa.string())])
def test_columns_that_are_no_strings(name: str, kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match=f"{name} takes a column of strings"):
        getattr(_kernels, name)(pa.nulls(2, kind), *CALLS[name])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("minhash", ("lines", 5, 42, 260, False), "'chars' or 'words'"),
        ("minhash", ("words", 0, 42, 260, False), "1 or more"),
        ("minhash", (*HOW, 0, False), "from 1 to"),
        ("normalise", (bytes(8), True, True), "a table of 12544 characters"),
    ],
)
def test_arguments_that_cannot_be(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(_kernels, name)(pa.array(["a"]), *arguments)


def test_buffers_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="two columns of strings, of one length"):
        _kernels.jaccard(pa.array(["a"]), pa.array(["a", "b"]), *HOW)
    with pytest.raises(ValueError, match="as many 64-bit integers"):
        _kernels.components(bytes(8), bytes(16))
    with pytest.raises(ValueError, match="pieces of one size"):
        _kernels.hash_pieces(bytes(9), 8, 1, 0, 8)
    with pytest.raises(ValueError, match="hashes of 16 bytes"):
        _kernels.bloom(bytearray(8), bytes(15), 3, True)
