"""Writers of tokens, and several writers at once: killed with -9 and started again, they end with the same bytes."""

from __future__ import annotations

import glob
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from gristmill import LocalExecutor, Pipeline, ProcessingStage, Route
from gristmill.text import JsonlReader, JsonlWriter, MegatronTokenizerWriter, PackedSequenceWriter

ROOT = Path(__file__).parents[2]
FILES = 8


class Letters:
    """A token for each byte."""

    vocab_size = 257

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Nap(ProcessingStage[Any, Any]):
    """There is time to be killed while others have written and not committed."""

    def process(self, task: Any) -> Any:
        time.sleep(0.01)
        return task


def megatron(out: Path) -> ProcessingStage[Any, Any]:
    return MegatronTokenizerWriter(out, Letters(), append_eod=True, eod_token=256)


def all_at_once(out: Path) -> ProcessingStage[Any, Any]:
    packed = {
        form: PackedSequenceWriter(out / form, Letters(), 7, file_format=form, eod_token=256)  # type: ignore[arg-type]
        for form in ("npy", "parquet")
    }
    return Route("kind", {"megatron": megatron(out / "megatron"), **packed}, otherwise=JsonlWriter(out / "rest"))


WRITERS = {"megatron": megatron, "all at once": all_at_once}


def pipeline(folder: Path, out: Path, writer: str, blocksize: int = 700) -> Pipeline:
    return Pipeline("tokens", stages=[JsonlReader(folder / "in", blocksize=blocksize), Nap(), WRITERS[writer](out)])


def main(folder: str, writer: str, workers: str) -> None:
    place = Path(folder)
    pipeline(place, place / "out", writer).run(LocalExecutor(int(workers)), place / "run")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    draw = random.Random(4)
    (tmp_path / "in").mkdir()
    kinds = ["megatron", "npy", "parquet", "none"]
    for number in range(FILES):
        rows = [{"kind": draw.choice(kinds), "text": "grist" * draw.randrange(20)} for _ in range(40)]
        (tmp_path / "in" / f"part-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def contents(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = str(path.relative_to(out))
        found[name] = orjson.loads(path.read_bytes())["files"] if path.name[0] == "_" else path.read_bytes()
    return found


def start(folder: Path, writer: str, workers: int) -> subprocess.Popen[bytes]:
    code = "import sys; from tests.promises.test_token_writers import main; main(*sys.argv[1:])"
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "GRISTMILL_PROGRESS": "off"}
    command = [sys.executable, "-c", code, str(folder), writer, str(workers)]
    return subprocess.Popen(command, env=env, start_new_session=True)


def placed(out: Path) -> int:
    return len(glob.glob(f"{out}/part-*") + glob.glob(f"{out}/[!_]*/part-*"))


def kill_after(process: subprocess.Popen[bytes], out: Path, files: int, everything: bool) -> bool:
    """Kill a run when so many files are in place. False when it has ended before."""
    while process.poll() is None:
        if placed(out) >= files:
            os.killpg(process.pid, signal.SIGKILL) if everything else process.kill()
            process.wait()
            return True
        time.sleep(0.002)
    return False


@pytest.mark.parametrize(
    ("writer", "moments"), [("megatron", [1, 6]), pytest.param("all at once", [1, 5, 14], marks=pytest.mark.slow)]
)
def test_killed_and_started_again_they_end_with_the_same_bytes(corpus: Path, writer: str, moments: list[int]) -> None:
    pipeline(corpus, corpus / "fresh", writer, 10**6).run(LocalExecutor(0))
    kills = 0
    for number, files in enumerate(moments):
        kills += kill_after(start(corpus, writer, 1 + number % 2), corpus / "out", files, everything=number % 2 == 0)
    assert kills >= len(moments) - 1
    assert start(corpus, writer, 2).wait(120) == 0
    assert contents(corpus / "out") == contents(corpus / "fresh")
    assert not list(corpus.rglob("_tmp"))
