"""Batches of documents, for tests of stages."""

from typing import Any

import pyarrow as pa

from gristmill import DocumentBatch

TEXTS = ["one two three.", "one", None, "four five six", ""]


def docs(texts: Any = TEXTS, **columns: Any) -> DocumentBatch:
    text = texts if isinstance(texts, pa.Array | pa.ChunkedArray) else pa.array(texts, pa.string())
    return DocumentBatch({"text": text, **columns})


def texts(batch: Any, field: str = "text") -> list[Any]:
    values: list[Any] = batch.data.column(field).to_pylist()
    return values


def shout(text: str) -> str:
    return text.upper()
