"""The fault table: of a hundred tasks one does harm, and the other ninety-nine come out, on every executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill import Pipeline, Task
from tests.conformance import failing_stages
from tests.conformance.executor_params import make, params
from tests.conformance.small_stages import AddOne, CountTo, Trouble
from tests.ray_cluster import left_over

FAULTS = {
    "raises": ("raise", "raised"),
    "exits": ("exit", "crashed"),
    "is killed": ("kill", "crashed"),
    "hangs": ("hang", "timed out"),
    "exhausts memory": ("memory", "raised"),
}


class Harm(Trouble):
    """Does something bad, each time or once, on one number."""

    name = "Harm"
    timeout_s = 2.0

    def process(self, task: Task[int]) -> Task[int]:
        if task.data == self.at and self._this_time():
            failing_stages.misbehave(self.what)
        return task


@pytest.fixture(params=params("local-2"), ids=str)
def executor(request: pytest.FixtureRequest) -> Any:
    made = make(request)
    yield made
    if request.param != "local-2":
        assert left_over(request.getfixturevalue("cluster")) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_ninety_nine_of_a_hundred_come_out(executor: Any, fault: str) -> None:
    what, kind = FAULTS[fault]
    result = Pipeline("p", stages=[CountTo(100), Harm(what, 37), AddOne()]).run(executor, max_errors=1)
    assert [task.data for task in result] == [number + 1 for number in range(100) if number != 37]
    assert [(record.kind, record.content) for record in result.quarantined()] == [(kind, "37")]
    line = result.summary()["Harm"]
    assert (line.rows_in, line.rows_out, line.quarantined) == (100, 99, 1)


def test_what_exits_once_comes_out(executor: Any, tmp_path: Path) -> None:
    result = Pipeline("p", stages=[CountTo(100), Harm("exit", 37, tmp_path), AddOne()]).run(executor, max_errors=0)
    assert [task.data for task in result] == list(range(1, 101))
    assert result.quarantined() == []
