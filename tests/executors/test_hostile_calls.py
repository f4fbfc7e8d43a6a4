"""Stages that fork, or close what is not theirs: the right stage is blamed, and no row comes out twice."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage


class Pass(ProcessingStage[DocumentBatch, DocumentBatch]):
    """The first stage of the group, which was blamed."""

    name = "pass"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class Fork(Pass):
    """Forks a child that returns, or raises, as if it were the worker."""

    name = "fork"

    def __init__(self, raises: bool) -> None:
        self.raises = raises

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if (child := os.fork()) == 0:
            if self.raises:
                raise ValueError("in the child")
            return task
        assert os.waitpid(child, 0)[1] == 256
        return task


class Close(Pass):
    """Closes all file descriptors when it sees a row, and may open others in their place."""

    name = "close"
    max_retries = 0

    def __init__(self, opens: bool) -> None:
        self.opens = opens

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if 3 in task.data.column("id").to_pylist():
            os.closerange(3, 1000)
            for _ in range(100 if self.opens else 0):
                os.open(os.devnull, os.O_RDONLY)
        return task


def batch() -> list[Any]:
    return [DocumentBatch(pa.table({"id": list(range(8))}))]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("raises", [False, True])
def test_a_forked_child_that_comes_back_from_a_stage_is_ended(
    workers: int, raises: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    done = Pipeline("p", stages=[Pass(), Fork(raises), Pass()]).run(LocalExecutor(workers), batch())
    assert [row for task in done for row in task.data.column("id").to_pylist()] == list(range(8))
    assert done.quarantined() == []
    assert "a process that stage 'fork' forked returned from process and was ended" in capfd.readouterr().err


@pytest.mark.parametrize("opens", [False, True])
def test_a_stage_that_closes_the_channel_of_its_worker_is_blamed(opens: bool) -> None:
    done = Pipeline("p", stages=[Pass(), Close(opens), Pass()]).run(LocalExecutor(1), batch(), max_errors=1)
    assert sum(task.num_rows for task in done) == 7
    [record] = done.quarantined()
    assert (record.stage, record.row) == ("close", {"id": 3})
    assert "the stage closed file descriptors that it had not opened" in record.error
