"""Stages that note in which processes they work, and what tests of processes that rest need beside them."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gristmill import DocumentBatch, ProcessingStage, Shuffle
from gristmill.text import JsonlReader


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for part in range(3):
        lines = (json.dumps({"id": f"{part}-{row}", "text": "grist"}) + "\n" for row in range(20))
        (tmp_path / "in" / f"{part}.jsonl").write_text("".join(lines))
    return tmp_path


class Trace(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Notes in which process it is set up, works and is torn down."""

    max_retries = 0

    def __init__(self, folder: Path, step: int) -> None:
        self.name, self.folder, self.step = f"Trace {step}", folder, step

    def note(self, what: str) -> None:
        (self.folder / f"{what} {self.step} {os.getpid()} {time.monotonic_ns()}").touch()

    def setup(self, worker_metadata: Any = None) -> None:
        self.note("setup")

    def process(self, task: DocumentBatch) -> DocumentBatch:
        self.note("work")
        return task

    def teardown(self) -> None:
        self.note("teardown")


def noted(folder: Path, what: str, step: int) -> list[int]:
    return [int(path.name.split()[2]) for path in sorted(folder.glob(f"{what} {step} *"))]


def stages(corpus: Path, marks: Path, *middle: Any) -> list[Any]:
    marks.mkdir(exist_ok=True)
    first: list[Any] = [JsonlReader(corpus / "in"), Trace(marks, 0)]
    for step, stage in enumerate(middle, 1):
        first += [stage, Trace(marks, step)]
    return first


def shuffle() -> Shuffle:
    return Shuffle(num_partitions=2)


def rows(result: Any) -> list[str]:
    return sorted(row["id"] for task in result for row in task.to_rows())


EXPECTED = sorted(f"{part}-{row}" for part in range(3) for row in range(20))


LEFT = ["nothing", "memory", "a variable", "a directory", "a thread", "a process", "a mode"]
"""What a stage may leave in its process."""


class Leaves(Trace):
    """Leaves something behind in its process."""

    kept: ClassVar[list[bytes]] = []
    children: ClassVar[list[Any]] = []

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(folder, 0)
        self.what = what

    def setup(self, worker_metadata: Any = None) -> None:
        super().setup()
        if self.what == "memory":
            self.kept.append(b"x" * (400 * 2**20))
        elif self.what == "a variable":
            os.environ["GRIST"] = "mill"
        elif self.what == "a directory":
            os.chdir("/")
        elif self.what == "a thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
        elif self.what == "a mode":
            os.umask(0o077)
        elif self.what == "a process":
            self.children.append(subprocess.Popen(["sleep", "600"]))


class DiesInSetup(Trace):
    def setup(self, worker_metadata: Any = None) -> None:
        super().setup()
        os._exit(9)
