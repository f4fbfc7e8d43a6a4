"""Hashes are those of the bytes of each text, wherever it lies."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dedup.hashes import hash128


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.none() | st.text(max_size=6), max_size=20),
    st.sampled_from([pa.string(), pa.large_string()]),
    st.integers(0, 20),
    st.booleans(),
)
def test_hashes_are_those_of_the_bytes(texts: list[Any], kind: pa.DataType, start: int, chunked: bool) -> None:
    column: Any = pa.array(texts, kind).slice(start)
    if chunked:
        column = pa.chunked_array([column.slice(0, 3), column.slice(3)], kind)
    wanted = [
        None if text is None else hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for text in texts[start:]
    ]
    assert hash128(column).to_pylist() == wanted
