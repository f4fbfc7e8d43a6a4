"""The pipeline that faults are injected into, and how it is started: as a script, or with the command `gristmill`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import gristmill.core.records.run_directory
from gristmill import LocalExecutor, Pipeline, ProcessingStage, RayActorPoolExecutor, RayDataExecutor, XennaExecutor
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.text import JsonlReader, JsonlWriter, Modify, ParquetWriter, ScoreFilter, UrlRemover, WordCountFilter
from tests.promises.fault_corpus import MIN_WORDS

ROOT = Path(__file__).parents[2]
MARK = "GRISTMILL_FAULTS"
"""The environment variable by which all processes of a run are found, whoever their parent is by now."""

PAUSE = 0.006
MAX_ERRORS = 0.5


ON_RAY: dict[str, Any] = {
    "ray-actors": RayActorPoolExecutor,
    "ray-data": RayDataExecutor,
    "xenna": XennaExecutor,
}


class SlowTarget(OutputDirectory):
    """A directory on a slow disk: there is time to be killed between one step and the next."""

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with super().create(path) as file:
            time.sleep(PAUSE)
            yield file
            time.sleep(PAUSE)

    def replace(self, path: str, name: str) -> None:
        super().replace(path, name)
        time.sleep(PAUSE)

    def remove(self, path: str) -> None:
        super().remove(path)
        time.sleep(PAUSE)


class SlowJsonlWriter(JsonlWriter):
    """Writes JSON lines to a slow disk."""

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        stages: list[Any] = super().decompose()
        for stage in stages:
            stage.target = SlowTarget(self.path)
        return stages


WRITERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "jsonl": (JsonlWriter, {}),
    "parquet": (ParquetWriter, {"write_kwargs": {"row_group_size": 100}}),
    "jsonl.gz": (JsonlWriter, {"compression": "gzip"}),
    "jsonl in parts": (JsonlWriter, {"target_file_size": 20_000}),
    "parquet in parts": (ParquetWriter, {"target_file_size": 10_000}),
    "slow jsonl": (SlowJsonlWriter, {}),
    "slow jsonl in parts": (SlowJsonlWriter, {"target_file_size": 20_000}),
}


class Nap(ProcessingStage[Any, Any]):
    """Takes its time over every row, so that there is a middle of the run to be killed in."""

    not_identity = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def process(self, task: Any) -> Any:
        time.sleep(self.seconds * task.num_items)
        return task


class Poison(ProcessingStage[Any, Any]):
    """Some rows raise, and some of those end the worker. Which ones, their ids say."""

    def __init__(self, one_in: int) -> None:
        self.one_in = one_in

    def process(self, task: Any) -> Any:
        for name in task.data["id"].to_pylist():
            if poisoned(name, self.one_in):
                if crc32(name.encode()) % 5 == 0:
                    os._exit(7)
                raise ValueError(f"{name} is poison")
        return task


def poisoned(name: str, one_in: int) -> bool:
    return one_in > 0 and crc32(name.encode()[::-1]) % one_in == 0


@dataclass(frozen=True)
class Mill:
    """One run: where it reads and writes, and how it works."""

    inputs: str
    output: str
    run_dir: str
    writer: str = "jsonl"
    workers: int = 2
    blocksize: int = 8000
    nap: float = 0.001
    flush: float = 1.0
    """Seconds between two objects of the ledger. Only a script can set it."""
    retries: int = 2
    """How many workers a task may outlive."""
    command: bool = False
    """Whether it is started with the command `gristmill`."""
    poison: int = 0
    """One row in so many is poison; none if 0."""
    executor: str = "local"
    """Where it runs: `local`, or one of `ON_RAY`, on the cluster of `RAY_ADDRESS`. Only a script can set it."""

    def pipeline(self) -> Pipeline:
        writer, options = WRITERS[self.writer]
        form = "parquet" if writer is ParquetWriter else "jsonl"
        patience = {"max_retries": self.retries}
        stages = [
            JsonlReader(self.inputs, blocksize=self.blocksize).with_({"read_jsonl": patience}),
            Modify(UrlRemover()).with_(**patience),
            Nap(self.nap).with_(**patience),
            *([Poison(self.poison).with_(**patience)] if self.poison else []),
            ScoreFilter(WordCountFilter(min_words=MIN_WORDS), score_field="words").with_(**patience),
            writer(self.output, **options).with_({f"write_{form}": patience, f"commit_{form}": patience}),
        ]
        return Pipeline("mill", stages=stages)

    def start(self, mark: str, folder: Path, **env: str) -> subprocess.Popen[bytes]:
        """Start the run in a session of its own. Recipe and messages go to the folder, temporary files below it."""
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TMPDIR": str(folder / "tmp")}
        quiet = {"GRISTMILL_PROGRESS": "off", "PYTHONDONTWRITEBYTECODE": ""}  # or each start compiles all anew
        with open(folder / "messages.txt", "wb") as messages:
            return subprocess.Popen(
                self._recipe_command(folder) if self.command else self._script(),
                env=os.environ | paths | quiet | {MARK: mark} | env,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,
            )

    def _script(self) -> list[str]:
        code = "import sys; from tests.promises.fault_pipeline import main; main(sys.argv[1])"
        return [sys.executable, "-c", code, json.dumps(asdict(self))]

    def _recipe_command(self, folder: Path) -> list[str]:
        from gristmill.recipes.pipeline_to_recipe import recipe_of

        recipe = folder / "recipe.yaml"
        recipe.write_text(recipe_of(self.pipeline()).to_yaml())
        options = ["--workers", str(self.workers), "--run-dir", self.run_dir, "--quiet"]
        options += ["--max-errors", str(MAX_ERRORS)]
        return [sys.executable, "-m", "gristmill.cli.main", "run", str(recipe), *options]

    def at(self, place: Path) -> Mill:
        """The same run with its output and its records below another folder."""
        return replace(self, output=str(place / "out"), run_dir=str(place / "run"))


def main(settings: str) -> None:
    mill = Mill(**json.loads(settings))
    assert hasattr(gristmill.core.records.run_directory, "FLUSH_SECONDS")
    gristmill.core.records.run_directory.FLUSH_SECONDS = mill.flush
    executor = ON_RAY[mill.executor]() if mill.executor in ON_RAY else LocalExecutor(mill.workers)
    mill.pipeline().run(executor, mill.run_dir, max_errors=MAX_ERRORS)
