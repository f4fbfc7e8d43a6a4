"""Started again with the same run_dir, a run does what is left, and ends as if nothing had happened."""

from __future__ import annotations

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

from gristmill import LocalExecutor, Pipeline, ProcessingStage
from gristmill.core.errors import GristmillError
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.manifest import check_manifest
from gristmill.text import (
    Filter,
    JsonlReader,
    JsonlWriter,
    Modify,
    ParquetWriter,
    ScoreFilter,
    UrlRemover,
    WordCountFilter,
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        write_file(folder / f"part-{number:02}.jsonl", number)
    return folder


def write_file(path: Path, seed: int, rows: int = 60) -> None:
    rng = random.Random(seed)
    lines = [{"id": f"{seed}-{row}", "text": " ".join(["grist"] * rng.randrange(60))} for row in range(rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def pipeline(corpus: Path, out: Path, min_words: int = 20, writer: Any = JsonlWriter, **options: Any) -> Pipeline:
    stages = [
        JsonlReader(str(corpus), blocksize=1500),
        Modify(UrlRemover()),
        ScoreFilter(WordCountFilter(min_words=min_words), score_field="words"),
        writer(str(out), **options),
    ]
    return Pipeline("resumed", stages=stages)


def contents(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    manifest = folder.with_name(f"{folder.name}.run") / "manifest.json"
    return {**found, "manifest": orjson.dumps(orjson.loads(manifest.read_bytes())["files"])}


def rows_in(folder: Path) -> list[str]:
    return [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def rows_read(result: Any) -> int:
    return int(result.summary(attempt=True)["read_jsonl"].rows_out)


def test_a_finished_run_is_not_done_again(corpus: Path, tmp_path: Path) -> None:
    first = pipeline(corpus, tmp_path / "out").run(LocalExecutor(2), tmp_path / "run")
    before = contents(tmp_path / "out")
    again = pipeline(corpus, tmp_path / "out").run(LocalExecutor(0, fuse=False), tmp_path / "run")
    assert rows_read(first) == 720
    assert rows_read(again) == 0
    assert again.files() == first.files()
    assert [task.id for task in again] == [task.id for task in first]
    assert contents(tmp_path / "out") == before


def test_a_run_directory_that_is_a_file_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("notes")
    with pytest.raises(GristmillError, match="run is a file: a run directory must be a directory"):
        pipeline(corpus, tmp_path / "out").run(LocalExecutor(2), tmp_path / "run")
    assert not (tmp_path / "out").exists()


def test_new_and_changed_inputs_are_done_and_explained(corpus: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    pipeline(corpus, out).run(LocalExecutor(0), run)
    write_file(corpus / "part-03.jsonl", 99, rows=10)
    write_file(corpus / "part-99.jsonl", 100, rows=5)
    changes, left, done = pipeline(corpus, out).left_to_do(run)
    assert (changes, done) == ([], 11)
    assert [(lineage.files[0].rpartition("/")[2], why) for lineage, why in left] == [
        ("part-03.jsonl", "the input has changed"),
        ("part-99.jsonl", "it is new, or was not finished"),
    ]
    assert rows_read(pipeline(corpus, out).run(LocalExecutor(0), run)) == 15
    pipeline(corpus, tmp_path / "fresh").run(LocalExecutor(0))
    assert contents(out) == contents(tmp_path / "fresh")


def test_output_that_was_deleted_is_written_again(corpus: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    pipeline(corpus, out).run(LocalExecutor(0), run)
    before = contents(out)
    next(out.glob("part-05*")).unlink()
    assert [why for _, why in pipeline(corpus, out).left_to_do(run)[1]] == ["its output is gone"]
    assert rows_read(pipeline(corpus, out).run(LocalExecutor(0), run)) == 60
    assert contents(out) == before


def test_a_changed_pipeline_is_explained_and_done_again(corpus: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    pipeline(corpus, out).run(LocalExecutor(0), run)
    changed = pipeline(corpus, out, min_words=59)
    changes, left, done = changed.left_to_do(run)
    assert changes == [
        "stage 'WordCountFilter': filter_obj.min_words was 20, and is now 59",
    ]
    assert (len(left), done) == (12, 0)
    changed.run(LocalExecutor(2), run)
    pipeline(corpus, tmp_path / "fresh", min_words=59).run(LocalExecutor(0))
    assert contents(out) == contents(tmp_path / "fresh")


def test_another_format_takes_the_place_of_the_old_and_another_place_leaves_it(corpus: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    pipeline(corpus, out).run(LocalExecutor(0), run)
    pipeline(corpus, out, writer=ParquetWriter).run(LocalExecutor(0), run)
    assert {path.suffix for path in out.glob("part-*")} == {".parquet"}
    pipeline(corpus, tmp_path / "elsewhere", writer=ParquetWriter).run(LocalExecutor(0), run)
    assert len(list(out.glob("part-*"))) == len(list((tmp_path / "elsewhere").glob("part-*"))) == 12


def test_settings_that_change_no_output_do_not_matter(corpus: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    pipeline(corpus, out).run(LocalExecutor(0), run)
    other = pipeline(corpus, out)
    other.stages[0] = JsonlReader(str(corpus), blocksize=333)
    other.stages[2] = other.stages[2].with_(batch_size=4, num_workers=2, max_retries=5)
    assert rows_read(other.run(LocalExecutor(2), run)) == 0


@pytest.mark.parametrize("mode", ["overwrite", "error", "append", "ignore"])
def test_every_mode_can_be_resumed(corpus: Path, tmp_path: Path, mode: str) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    out.mkdir()
    if mode != "error":
        (out / "older.jsonl").write_text('{"id":0}\n')

    class Stop(ProcessingStage[Any, Any]):
        max_retries = 0

        def process(self, task: Any) -> Any:
            if not (tmp_path / "go").exists() and "part-07" in task.lineage.files[0]:
                raise RuntimeError("stop here")
            return task

    whole = pipeline(corpus, out, mode=mode)
    whole.stages.insert(2, Stop())
    with pytest.raises(Exception, match="stop here"):
        whole.run(LocalExecutor(0), run, on_error="raise")
    done = sorted(path.name for path in out.glob("part-0[0-6]*"))
    assert len(done) == 7
    (tmp_path / "go").touch()
    assert rows_read(whole.run(LocalExecutor(2), run)) == 5 * 60
    assert (out / "older.jsonl").exists() == (mode in ("append", "ignore"))
    assert len(list(out.glob("part-*"))) == 12
    assert set(done) <= {path.name for path in out.iterdir()}
    assert not (tmp_path / "out.run" / "_tmp").exists()


def test_a_source_that_now_gives_nothing_leaves_nothing_behind(corpus: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    pipeline(corpus, out).run(LocalExecutor(0), run)
    pipeline(corpus, out, min_words=1000).run(LocalExecutor(0), run)
    assert list(out.iterdir()) == []


def test_the_manifest_tells_what_is_wrong(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pipeline(corpus, out, writer=ParquetWriter).run(LocalExecutor(2))
    manifest, problems = check_manifest(OutputDirectory(str(out)))
    assert problems == []
    assert manifest["rows"] == sum(entry["rows"] for entry in manifest["files"])
    files = sorted(out.glob("part-*"))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1])
    raw = bytearray(files[2].read_bytes())
    raw[len(raw) // 2] ^= 1
    files[2].write_bytes(raw)
    (out / "stranger.parquet").touch()
    size = files[1].stat().st_size
    assert [line.split(" ", 1)[1].split(":")[0] for line in check_manifest(OutputDirectory(str(out)))[1]] == [
        "is missing",
        f"has {size:,} bytes instead of {size + 1:,}",
        "has changed",
        "is not in the manifest",
    ]


SCRIPT = """
import sys
from gristmill import LocalExecutor
from tests.promises.test_resume import pipeline
from pathlib import Path
corpus, out, run, workers, nap = sys.argv[1:]

from gristmill import ProcessingStage
class Nap(ProcessingStage):
    def process(self, task):
        import time
        time.sleep(float(nap))
        return task

whole = pipeline(Path(corpus), Path(out))
whole.stages.insert(2, Nap())
whole.run(LocalExecutor(int(workers)), run)
"""


def start(tmp_path: Path, workers: int, nap: float) -> subprocess.Popen[bytes]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": f"{root}/src:{root}", "GRISTMILL_PROGRESS": "off"}
    args = [str(tmp_path / "in"), str(tmp_path / "out"), str(tmp_path / "run"), str(workers), str(nap)]
    return subprocess.Popen([sys.executable, str(script), *args], env=env, start_new_session=True)


def test_killed_at_random_moments_it_ends_with_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    """The driver, or driver and workers, are killed again and again; another number of workers goes on each time."""
    pipeline(corpus, tmp_path / "fresh").run(LocalExecutor(0))
    rng = random.Random(11)
    kills = 0
    for attempt in range(40):
        process = start(tmp_path, rng.choice([1, 2, 3]), 0.01)
        try:
            process.wait(timeout=rng.uniform(0.4, 1.1) if attempt < 8 else 60)
        except subprocess.TimeoutExpired:
            kills += 1
            if rng.random() < 0.5:
                os.kill(process.pid, signal.SIGKILL)
            else:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(rng.uniform(0, 0.1))
            continue
        assert process.returncode == 0
        break
    assert kills >= 3
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    assert not (tmp_path / "out.run" / "_tmp").exists()
    assert check_manifest(OutputDirectory(str(tmp_path / "out")))[1] == []


def test_a_value_that_a_function_closes_over_is_part_of_the_pipeline(tmp_path: Path) -> None:
    source, run, out = tmp_path / "in.jsonl", tmp_path / "run", tmp_path / "out"
    source.write_text("".join(f'{{"id": {number}, "text": "x"}}\n' for number in range(20)))

    def above(limit: int) -> Pipeline:
        stages = [JsonlReader(str(source)), Filter(lambda value: value > limit, "id"), JsonlWriter(str(out))]
        return Pipeline("above", stages=stages)

    above(5).run(LocalExecutor(0), run_dir=run)
    assert len(rows_in(out)) == 14
    changes, left, _ = above(15).left_to_do(run)
    assert changes == ["stage 'Filter': filter_fn.closure.limit was 5, and is now 15"]
    assert len(left) == 1
    above(15).run(LocalExecutor(0), run_dir=run)
    assert len(rows_in(out)) == 4
