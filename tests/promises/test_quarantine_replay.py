"""Runs with records in quarantine can be killed, gone on with, mended and replayed; in the end nothing shows of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill import LocalExecutor, Pipeline, ProcessingStage
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.manifest import check_manifest
from gristmill.text import JsonlReader, JsonlWriter
from tests.conformance.failing_stages import Filter
from tests.promises.test_no_silent_loss import clean, ids, numbers, pipeline, write_file
from tests.promises.test_resume import contents

POISON = {3: "raise", 4: "exit", 110: "raise", 399: "raise", 480: "kill", 590: "raise"}
FILES = {f"{number}.jsonl": range(60 * number, 60 * number + 60) for number in range(10)}


class Nap(ProcessingStage[Any, Any]):
    def process(self, task: Any) -> Any:
        time.sleep(0.01)
        return task


class Mended(Filter):
    """Fails until the file `fixed` is there. That is not part of what it computes, so the plan stays the same."""

    not_identity = ("fixed",)

    def __init__(self, bad: Any, fixed: Path) -> None:
        super().__init__(bad)
        self.fixed = fixed

    def look(self, number: int) -> bool:
        return number % 7 != 0 if self.fixed.exists() else super().look(number)


def poisoned(folder: Path, out: str = "out", source: str = "in") -> Pipeline:
    return pipeline(folder / source, folder / out, Nap(), Mended(POISON, folder / "fixed"), blocksize=1500)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name, rows in FILES.items():
        write_file(tmp_path / "in" / name, rows)
    return tmp_path


SCRIPT = """
import sys
from pathlib import Path
from gristmill import LocalExecutor
from tests.promises.test_quarantine_replay import poisoned
folder, workers, replay = sys.argv[1:]
executor = LocalExecutor(int(workers))
poisoned(Path(folder)).run(executor, f"{folder}/run", max_errors=None, replay=replay == "replay")
"""


def run_and_kill(folder: Path, rng: random.Random, replay: str = "", kills: int = 3) -> int:
    """Run in another process, killed a few times and started again with other workers. How often it was killed."""
    (folder / "script.py").write_text(SCRIPT)
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": f"{root}/src:{root}", "GRISTMILL_PROGRESS": "off"}
    for attempt in range(20):
        args = [sys.executable, str(folder / "script.py"), str(folder), str(rng.choice([1, 2, 3])), replay]
        process = subprocess.Popen(args, env=env, start_new_session=True)
        began = time.monotonic()
        while attempt < kills and process.poll() is None and not _has_begun(folder, attempt):
            assert time.monotonic() - began < 60
            time.sleep(0.01)
        try:
            process.wait(timeout=rng.uniform(0.05, 0.5) if attempt < kills else 60)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            continue
        assert process.returncode == 0
        return attempt
    raise AssertionError("it never ended")


def _has_begun(folder: Path, attempt: int) -> bool:
    plan = folder / "run" / "plan.json"
    return plan.exists() and plan.stat().st_mtime > time.time() - 5


def test_killed_and_resumed_it_ends_with_the_same_bytes_and_the_same_quarantine(corpus: Path) -> None:
    expected = clean(corpus, FILES, POISON)
    fresh = poisoned(corpus, "fresh").run(LocalExecutor(2), corpus / "other", max_errors=None)
    assert contents(corpus / "fresh") == expected
    assert numbers(fresh.quarantined()) == sorted(POISON)
    assert run_and_kill(corpus, random.Random(3)) >= 2
    assert contents(corpus / "out") == expected
    assert ids(corpus / "run") == sorted(record.id for record in fresh.quarantined())
    assert check_manifest(OutputDirectory(str(corpus / "out")))[1] == []


@pytest.mark.slow
def test_replay_after_a_fix_leaves_no_trace(corpus: Path) -> None:
    expected = clean(corpus, FILES, ())
    first = poisoned(corpus).run(LocalExecutor(2), corpus / "run", max_errors=None)
    assert len(first.quarantined()) == len(POISON)
    before = contents(corpus / "out")
    again = poisoned(corpus).run(LocalExecutor(0), corpus / "run", max_errors=None)
    assert again.summary(attempt=True)["read_jsonl"].rows_out == 0
    assert again.quarantined() == first.quarantined()
    in_vain = poisoned(corpus).run(LocalExecutor(3), corpus / "run", max_errors=None, replay=True)
    assert in_vain.summary()["read_jsonl"].rows_out == 5 * 60
    assert sorted(record.id for record in in_vain.quarantined()) == sorted(record.id for record in first.quarantined())
    assert contents(corpus / "out") == before
    (corpus / "fixed").touch()
    mended = poisoned(corpus).run(LocalExecutor(2), corpus / "run", replay=True)
    assert mended.summary()["read_jsonl"].rows_out == 5 * 60
    assert mended.quarantined() == []
    assert contents(corpus / "out") == expected
    nothing = poisoned(corpus).run(LocalExecutor(0), corpus / "run", replay=True)
    assert nothing.summary()["read_jsonl"].rows_out == 0
    assert contents(corpus / "out") == expected


@pytest.mark.slow
def test_a_replay_that_is_killed_is_gone_on_with(corpus: Path) -> None:
    expected = clean(corpus, FILES, ())
    poisoned(corpus).run(LocalExecutor(2), corpus / "run", max_errors=None)
    (corpus / "fixed").touch()
    run_and_kill(corpus, random.Random(4), "replay", kills=2)
    assert contents(corpus / "out") == expected
    assert ids(corpus / "run") == []


def test_without_a_run_directory_the_records_lie_beside_the_output(corpus: Path) -> None:
    """And a second run into the same output tells only of its own."""
    bad = [number for number, what in POISON.items() if what == "raise"]
    whole = pipeline(corpus / "in", corpus / "out", Mended(bad, corpus / "fixed"))
    first = whole.run(LocalExecutor(0), max_errors=None)
    assert numbers(first.quarantined()) == bad
    assert ids(corpus / "out.run") == sorted(record.id for record in first.quarantined())
    for name in list(FILES)[:3]:
        (corpus / "in" / name).unlink()
    second = whole.run(LocalExecutor(2), max_errors=None)
    assert numbers(second.quarantined()) == [399, 590]
    assert len(ids(corpus / "out.run")) == 2
    (corpus / "fixed").touch()
    third = whole.run(LocalExecutor(0), max_errors=None)
    assert third.quarantined() == ids(corpus / "out.run") == []


def sacks(folder: Path, number: Any, factor: int = 1) -> Pipeline:
    """Multiplies a number, which `number` reads from its text."""

    class Weigh(ProcessingStage[Any, Any]):
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def process(self, task: Any) -> Any:
            texts = task.data.column("text").to_pylist()
            return task.with_column("kg", pa.array([number(text) * self.factor for text in texts]))

    return Pipeline("sacks", stages=[JsonlReader(folder / "in"), Weigh(factor), JsonlWriter(folder / "out")])


def test_a_replay_after_a_fix_of_code_does_again_only_the_files_of_quarantined_records(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, text in (("good", "3"), ("bad", "1,5")):
        (tmp_path / "in" / f"{name}.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for _ in range(2)))

    def rows(number: Any, factor: int = 1, replay: bool = True) -> int:
        return run(sacks(tmp_path, number, factor), tmp_path, replay).summary(attempt=True)["read_jsonl"].rows_out

    def run(which: Pipeline, folder: Path, replay: bool) -> Any:
        return which.run(LocalExecutor(0), run_dir=folder / "run", replay=replay, max_errors=None)

    def fixed(text: str) -> float:
        return float(text.replace(",", "."))

    assert rows(float, replay=False) == 4
    assert rows(fixed) == 2
    assert rows(fixed, replay=False) == 0  # the replayed run is what a later attempt goes on with
    assert rows(fixed, factor=2) == 4  # a parameter has changed, so all rows have
    assert rows(lambda text: float(text.replace(",", ".")), factor=2, replay=False) == 4
