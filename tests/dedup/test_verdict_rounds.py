"""Rows stay, keys move: a stage of one's own with several keys for each row, two rounds, and columns that are added."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill import DocumentBatch, KeyedStage, LocalExecutor, Pipeline, VerdictStage
from gristmill.core.errors import ContractError, StageError
from gristmill.dedup import ExactDeduplicationStage
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK, BlockVerdicts, identities
from gristmill.text import JsonlReader


class SameWord(KeyedStage):
    """Of the rows that share a word all but the first are like that one."""

    key = "word"
    num_partitions = 3

    def reduce(self, key: Any, rows: Any) -> list[dict[str, Any]]:
        first = next(rows)
        return [{TASK: row[TASK], ROW: row[ROW], "like": first["n"]} for row in rows]


class OneVerdict(KeyedStage):
    """One verdict for each row: those that are like several others are dropped, others are kept and told."""

    key = (TASK, ROW)
    num_partitions = 2

    def reduce(self, key: Any, rows: Any) -> dict[str, Any]:
        like = sorted({row["like"] for row in rows})
        return {TASK: key[0], ROW: key[1], KEEP: len(like) < 2, "like": like[0], "others": len(like)}


class SharedWords(VerdictStage):
    adds = ("like",)

    def keys(self, batch: DocumentBatch) -> pa.Table:
        known = identities(batch).to_pylist()
        rows = [
            {"word": word, "n": row["n"], **identity}
            for row, identity in zip(batch.to_rows(), known, strict=True)
            for word in row["text"].split()
        ]
        return pa.Table.from_pylist(rows) if rows else identities(batch).slice(0, 0).append_column("word", pa.nulls(0))

    def rounds(self) -> Sequence[KeyedStage]:
        return [SameWord(), OneVerdict()]


ROWS = [
    [{"n": 0, "text": "mill stone"}, {"n": 1, "text": "brook"}],
    [],
    [
        {"n": 2, "text": "mill wheel"},
        {"n": 3, "text": "stone brook"},
        {"n": 4, "text": ""},
        {"n": 5, "text": "wheel mill"},
    ],
]


@pytest.mark.parametrize("workers", [0, 2])
def test_several_keys_and_rounds(workers: int) -> None:
    tasks = [DocumentBatch(rows) for rows in ROWS]
    pipeline = Pipeline("p", stages=[SharedWords()])
    assert len(pipeline.plan(tasks).segments) == 4
    result = pipeline.run(LocalExecutor(workers), tasks)
    found = [(row["n"], row["text"], row.get("like")) for task in result for row in task.to_rows()]
    assert found == [(0, "mill stone", None), (1, "brook", None), (2, "mill wheel", 0), (4, "", None)]
    line = result.summary()["SharedWords"]
    assert (line.rows_in, line.dropped) == (6, 2)


@pytest.mark.parametrize("rows", [[0, 3], [-1, 0], [1, 1], [None, 2]])
def test_verdicts_on_rows_that_are_not_there_are_told(rows: list[int | None]) -> None:
    verdicts = pa.table({ROW: pa.array(rows, pa.int64()), KEEP: [True, False]})
    with pytest.raises(ContractError, match="2 verdicts are on 1 rows"):
        BlockVerdicts.from_table(3, verdicts)


def test_verdicts_find_their_rows_in_any_order() -> None:
    verdicts = pa.table({ROW: [4, 1, 2], KEEP: [False, True, None], "near": [0.4, 0.1, None]})
    found = BlockVerdicts.from_table(5, verdicts)
    assert found.keep().to_pylist() == [True, True, None, True, False]
    assert found.score("near").to_pylist() == [None, 0.1, None, None, 0.4]
    assert BlockVerdicts.from_table(5, verdicts.drop_columns(KEEP)).keep().to_pylist() == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_two_verdicts_on_one_row_are_told() -> None:
    class Twice(SharedWords):
        def rounds(self) -> Sequence[KeyedStage]:
            return [SameWord()]

    with pytest.raises(StageError, match="verdicts are on .* rows: return at most one"):
        Pipeline("p", stages=[Twice()]).run(LocalExecutor(0), [DocumentBatch(rows) for rows in ROWS])


def test_keys_must_say_which_rows_they_belong_to() -> None:
    class Odd(SharedWords):
        def keys(self, batch: DocumentBatch) -> pa.Table:
            return pa.table({"word": ["a"]})

    with pytest.raises(StageError, match=r"keys\(\) returned 1 rows for 2.*identities\(batch\)"):
        Pipeline("p", stages=[Odd()]).run(LocalExecutor(0), [DocumentBatch(rows) for rows in ROWS])


def test_people_see_one_stage_and_not_the_parts_that_it_is_made_of(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"text": "one"}\n')
    stages = [JsonlReader(str(tmp_path / "in.jsonl")), ExactDeduplicationStage(), ExactDeduplicationStage()]
    result = Pipeline("p", stages=stages).run(LocalExecutor(0))
    lines = [(line.name, line.rows_in, line.rows_out, line.dropped) for line in result.summary().stages[2:]]
    assert lines == [("ExactDeduplicationStage", 3, 2, 1), ("ExactDeduplicationStage", 2, 2, 0)]
