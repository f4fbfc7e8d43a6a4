"""Flags and notes of rows: columns by which stages of transcripts tell each other what they found.

A row with text in `_skipme` is flagged: stages leave it alone, and `PreserveByValueStage("_skipme", "")` drops it.
`additional_notes` has a remark of each stage, under its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gristmill.audio.batch import AudioBatch
from gristmill.audio.waveforms import column_of
from gristmill.core.arrow.table_conversion import JSON, column_values, json_array
from gristmill.core.errors import ColumnError

SKIP_ME, NOTES = "_skipme", "additional_notes"
HALLUCINATION = "Hallucination"


def text_column(user: str, batch: AudioBatch, name: str) -> pa.Array:
    """A column of texts, as strings of one of two types."""
    column = column_of(user, batch, name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column
    if not pa.types.is_string_view(column.type) and not pa.types.is_null(column.type):
        raise ColumnError(f"{user!r}: column {name!r} is {column.type}, must be text")
    return column.cast(pa.large_string())


def text_values(user: str, batch: AudioBatch, name: str) -> list[str | None]:
    """The texts of a column."""
    values: list[str | None] = text_column(user, batch, name).to_pylist()
    return values


def values_of(batch: AudioBatch, name: str | None) -> list[Any]:
    """The values of a column; None for all rows if there is no such column."""
    if name is None or name not in batch.get_columns():
        return [None] * batch.num_items
    return list(column_values(batch.data.column(name)))


def noted(notes: Sequence[Any], stage: str, remarks: Sequence[str]) -> pa.Array:
    """The notes of rows, with a remark of a stage for each."""
    return nested([{**(old or {}), stage: remark} for old, remark in zip(notes, remarks, strict=True)])


def nested(values: Sequence[Any]) -> pa.Array:
    """A column of lists or dicts, stored as readers store them."""
    return json_array(values, JSON)
