"""A worker that is killed after its work is done has lost nothing, unless a stage of the user had something to do."""

from __future__ import annotations

import os
import signal
from typing import Any

import pyarrow as pa
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage
from gristmill.core.errors import WorkerLostError


class Own(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Its worker is killed in teardown."""

    name = "own"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task

    def teardown(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class OfTheCatalogue(Own):
    """The same as a stage of Gristmill."""

    def teardown(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


OfTheCatalogue.__module__ = OfTheCatalogue.teardown.__module__ = "gristmill.text.of_a_test"


def run(stage: Any) -> Any:
    batch: Any = [DocumentBatch(pa.table({"id": list(range(8))}))]
    return Pipeline("p", stages=[stage]).run(LocalExecutor(1), batch)


def test_a_worker_that_is_killed_when_its_work_is_done_does_not_fail_the_run() -> None:
    assert sum(task.num_rows for task in run(OfTheCatalogue())) == 8


def test_a_teardown_of_the_user_that_did_not_happen_is_told() -> None:
    with pytest.raises(WorkerLostError, match="in teardown, its worker was killed"):
        run(Own())
