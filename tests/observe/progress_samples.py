"""A plan, moments of its run and a terminal: what tests of progress start from."""

from __future__ import annotations

import io
from typing import Any

from gristmill import DocumentBatch, FileGroupTask, Pipeline, ProcessingStage
from gristmill.core.executor import PoolProgress, Progress
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.stage_roles import GatherRole
from gristmill.observe.run_snapshot import ProgressTracker, RunSnapshot


class Read(ProcessingStage[FileGroupTask, DocumentBatch]):
    def process(self, task: FileGroupTask) -> DocumentBatch:
        return DocumentBatch(data=[{"text": name} for name in task.data * 5])


class Halve(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task.slice(0, task.num_items // 2)


class Untold(ProcessingStage[Any, Any]):
    def process(self, task: Any) -> Any:
        return task


class Write(ProcessingStage[DocumentBatch, FileGroupTask]):
    def process(self, task: DocumentBatch) -> FileGroupTask:
        return FileGroupTask(data=["out"])


class Commit(ProcessingStage[Any, FileGroupTask], GatherRole):
    def process(self, task: Any) -> Any:
        return task.data[0]


def plan() -> Any:
    pipeline = Pipeline("shown", stages=[Read(), Untold(), Halve(), Write(), Commit()])
    return pipeline.plan([FileGroupTask(data=["a"])])


def look(*moments: Progress, plan: Any = None) -> RunSnapshot:
    """What is seen after these moments of a run."""
    watch = ProgressTracker(plan)
    for moment in moments:
        watch.update(moment)
    return watch.snapshot()


def some_progress(**changes: Any) -> Progress:
    stages = [("List", 0, 0), ("Read", 0, 2000), ("Halve", 2000, 1000), ("Write", 1000, 1000), ("Drop", 1000, 0)]
    return Progress(
        stages=[(name, StageStats(rows_in=taken, rows_out=given)) for name, taken, given in stages],
        pools=[PoolProgress("Read + Halve", 2, 1), PoolProgress("Write", 2, 2, 7, 100)],
        **{"sources_seen": 8, "sources_done": 2, "listing_done": True, "seconds": 20.0} | changes,
    )


def failing_progress() -> Progress:
    """Ten records could not be read, and three rows were too much for a stage."""
    progress = some_progress()
    progress.stages[1][1].quarantined = 10
    progress.stages[2] = ("Halve", StageStats(rows_in=2000, rows_out=1000, quarantined=3))
    return progress


class FakeTerminal(io.StringIO):
    def __init__(self, tty: bool = True) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty
