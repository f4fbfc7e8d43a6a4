"""A stage and a payload for tests of the flow: nothing is run, and what is held may be lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gristmill import ProcessingStage, Task

RETRIES = 3


class Step(ProcessingStage[Task[Any], Task[Any]]):
    max_retries = RETRIES

    def process(self, task: Task[Any]) -> Task[Any]:
        return task


@dataclass
class Ref:
    """A payload that may be lost. What enters the pipeline is not."""

    name: str
    there: bool = True

    def discard(self) -> None:
        self.there = False
