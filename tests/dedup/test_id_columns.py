"""Columns that cannot name rows are told with the stage that was given them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.errors import ErrorBudgetError, GristmillError
from gristmill.dedup import (
    ExactDeduplicationStage,
    FuzzyDeduplicationStage,
    PerceptualHashDeduplicationStage,
    SemanticDeduplicationStage,
    SimHashDeduplicationStage,
    TextDuplicatesRemovalStage,
)

STAGES: dict[str, Any] = {
    "exact": lambda _: ExactDeduplicationStage(id_field="name"),
    "exact, with an index": lambda folder: ExactDeduplicationStage(id_field="name", extend=str(folder / "index")),
    "fuzzy": lambda _: FuzzyDeduplicationStage(id_field="name"),
    "simhash": lambda _: SimHashDeduplicationStage(id_field="name"),
    "perceptual": lambda _: PerceptualHashDeduplicationStage("hash", id_field="name"),
    "semantic": lambda _: SemanticDeduplicationStage("name", "embedding", n_clusters=1),
    "removal": lambda folder: TextDuplicatesRemovalStage(str(folder / "gone.parquet"), "name"),
}


def run(stage: Any, names: pa.Array, folder: Path) -> None:
    pq.write_table(pa.table({"id": ["a"]}), folder / "gone.parquet")
    table = pa.table({"name": names, "text": ["a b c"] * len(names)})
    table = table.append_column("hash", pa.array([1] * len(names), pa.uint64()))
    table = table.append_column("embedding", pa.array([[1.0, 0.0]] * len(names), pa.list_(pa.float32())))
    Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=[DocumentBatch(table)])


@pytest.mark.parametrize("name", STAGES)
def test_lists_are_no_names(tmp_path: Path, name: str) -> None:
    stage = STAGES[name](tmp_path)
    message = f"stage '{stage.name}', column 'name': values of type list.* choose a column of text or numbers"
    with pytest.raises(GristmillError, match=message):
        run(stage, pa.array([[1], [2]]), tmp_path)


def test_bytes_that_are_no_text_are_told_with_their_column(tmp_path: Path) -> None:
    with pytest.raises(ErrorBudgetError, match="stage 'ExactDeduplicationStage', column 'name': .*UTF8"):
        run(STAGES["exact"](tmp_path), pa.array([b"\xff\x01", b"b"]), tmp_path)


def test_a_table_whose_ids_are_lists(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ids": [["a"]]}), tmp_path / "lists.parquet")
    stage = TextDuplicatesRemovalStage(str(tmp_path / "lists.parquet"), "name", "ids")
    with pytest.raises(GristmillError, match="stage 'TextDuplicatesRemovalStage', column 'ids': values of type list"):
        run(stage, pa.array(["a"]), tmp_path)
