"""Repeat: an attempt that leaves out what an earlier one has sent, and makes sure that it is the same.

A call of one item streams, and if it fails it is run again. That rests on stages giving the same answers again. When
they do not, rows would be lost and doubled without a trace; so what is left out is compared with what was sent.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import StageError
from gristmill.core.fast_dataclass import fast_dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.core.stage import ProcessingStage
    from gristmill.core.task import Lineage, Task


@fast_dataclass(slots=True)
class SentDigest:
    """Which tasks have left an item, in order: how many, and a sum over their ids."""

    count: int = 0
    total: int = 0

    def add(self, task_id: str) -> None:
        self.count += 1
        self.total = zlib.crc32(task_id.encode("utf-8", "surrogatepass"), self.total)


class RetryCheck:
    """One attempt of an item of which `sent` has left already."""

    def __init__(self, sent: SentDigest, stages: Sequence[ProcessingStage[Any, Any]], lineage: Lineage) -> None:
        self.sent, self.stage, self.lineage = replace(sent), stages[-1].name, lineage
        self.again = SentDigest()

    @property
    def lags(self) -> bool:
        """Whether some of what was sent has not come again yet."""
        return self.again.count < self.sent.count

    def leaves_out(self, task: Task[Any]) -> bool:
        """Whether a task that comes out now has been sent before."""
        if not self.lags:
            return False
        self.again.add(task.id)
        if self.again.count == self.sent.count:
            self.check()
        return True

    def rest(self, outputs: Iterable[Task[Any]]) -> Iterator[Task[Any]]:
        for task in outputs:
            if not self.leaves_out(task):
                yield task
        self.check()

    def check(self) -> None:
        """At the end at the latest: what was sent must have come again."""
        if self.again != self.sent:
            error = StageError(
                self.stage,
                self.lineage.id,
                self.lineage.files,
                "after a failure, the same task was not turned into the same outputs as before, so rows would be lost "
                "or doubled. Does this stage, or one before it, depend on chance, on time, or on what it saw earlier?",
            )
            error.hopeless = True
            raise error
