"""Runs that are killed in the middle of a deduplication go on where they were, and end with the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import (
    BloomDeduplicationStage,
    FuzzyDeduplicationStage,
    LineDeduplicationStage,
    SimHashDeduplicationStage,
    SubstringDeduplicationStage,
)
from gristmill.text import JsonlReader, JsonlWriter

STAGES: dict[str, Callable[[], Any]] = {
    "bloom": lambda: BloomDeduplicationStage(capacity=2000),
    "lines": lambda: LineDeduplicationStage(min_length=5),
    "simhash": lambda: SimHashDeduplicationStage(num_partitions=3),
    "substring": lambda: SubstringDeduplicationStage(min_length=60),
    "rounds": lambda: FuzzyDeduplicationStage(word_ngrams=3, num_partitions=3, memory_gb=1e-3),
}
SCRIPT = """
import sys
from gristmill import LocalExecutor
from tests.dedup.test_killed_dedup_runs import pipeline
pipeline(sys.argv[1], sys.argv[2], sys.argv[3]).run(LocalExecutor(2), sys.argv[4])
"""


def pipeline(stage: str, source: str, out: str) -> Pipeline:
    return Pipeline("p", stages=[JsonlReader(source, blocksize="20KB"), STAGES[stage](), JsonlWriter(out)])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(3)
    texts = [[f"w{rng.randrange(9999)}" for _ in range(60)] for _ in range(150)]
    for part in range(8):
        rows = [[*rng.choice(texts), f"end{rng.randrange(2)}"] for _ in range(60)]
        lines = [json.dumps({"text": "A menu that all pages have\n" + " ".join(words)}) for words in rows]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
    return folder


def kill_in(segment: int, stage: str, corpus: Path, folder: Path) -> None:
    """Start a run, and kill it when a segment has written something, or let it end if that was so before."""
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": f"{root}/src:{root}", "GRISTMILL_PROGRESS": "off"}
    places = [stage, str(corpus), str(folder / "out"), str(folder / "run")]
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *places], env=env)
    try:
        while process.poll() is None and not list((folder / "run" / "segments" / str(segment)).glob("*.runs")):
            time.sleep(0.01)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_run_that_is_killed_again_and_again_gives_the_same(stage: str, corpus: Path, tmp_path: Path) -> None:
    whole = pipeline(stage, str(corpus), str(tmp_path / "whole")).run(LocalExecutor(0))
    dropped = 8 * 60 - sum(task.num_rows for task in whole)
    assert dropped > 50 or stage in ("lines", "substring")
    for segment in (1, 2, 3, 5):
        kill_in(segment, stage, corpus, tmp_path)
    pipeline(stage, str(corpus), str(tmp_path / "out")).run(LocalExecutor(0), tmp_path / "run")
    wanted, found = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.jsonl")} for name in ("whole", "out")
    )
    assert found == wanted
