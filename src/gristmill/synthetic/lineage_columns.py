"""Where a synthetic row comes from, in columns of its own: the row, the model, the prompt, the seed.

    synthetic_source   `file.jsonl:1234`, the file and position of the row that it was made of
    synthetic_model    the name of the model that was asked
    synthetic_prompt   the name and version of the prompt, `rewrite-9a3c01d2`
    synthetic_seed     the seed that was sent
    synthetic_finish   how the answer ended: `stop`, or `length` if it was cut

They are null in rows that no model has made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.batch import SOURCE_FILE

if TYPE_CHECKING:
    from gristmill.models.llm.llm_request import Answer, LLMRequest
    from gristmill.models.llm.prompt import Prompt
    from gristmill.samples.batch import DocumentBatch

_PARTS = ("source", "model", "prompt", "seed", "finish")


def lineage_names(prefix: str | None) -> list[str]:
    """The names of the columns."""
    return [f"{prefix}_{part}" for part in _PARTS] if prefix else []


def row_names(batch: DocumentBatch) -> list[str | None]:
    """A name for each row of a batch: its file and position, or else its id."""
    columns = batch.get_columns()
    file = batch.metadata.get(SOURCE_FILE)
    if POSITION in columns:
        positions: list[int | None] = batch.data.column(POSITION).to_pylist()
        return [None if position is None else f"{file or ''}:{position}" for position in positions]
    if "id" in columns:
        return [None if value is None else str(value) for value in batch.data.column("id").to_pylist()]
    return [None] * batch.num_items


def add_lineage(
    batch: DocumentBatch,
    prefix: str | None,
    prompt: Prompt,
    requests: Sequence[LLMRequest | None],
    answers: Sequence[Answer | None],
    sources: Sequence[str | None] | None = None,
) -> DocumentBatch:
    """The batch with the lineage of rows that have an answer."""
    if not prefix:
        return batch
    name = f"{prompt.name or 'prompt'}-{prompt.version}"
    pairs = list(zip(requests, answers, row_names(batch) if sources is None else sources, strict=True))
    rows: list[list[Any]] = [[] for _ in _PARTS]
    for request, answer, source in pairs:
        made = request is not None and answer is not None
        seed = request.config.seed if request is not None else None
        values = (
            source,
            request.model if request is not None else None,
            name,
            None if seed is None or request is None else seed + request.sample,
            answer.finish_reason if answer is not None else None,
        )
        for column, value in zip(rows, values, strict=True):
            column.append(value if made else None)
    for part, column in zip(_PARTS, rows, strict=True):
        kind = pa.int64() if part == "seed" else pa.string()
        batch = batch.with_column(f"{prefix}_{part}", make_array(column, kind))
    return batch
