"""Shards: a pipeline as several runs, each of a part of the input, ends with the bytes of one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Route
from gristmill.cli.main import app
from gristmill.core.errors import PlanError
from gristmill.core.records.sharded_run import open_shard
from gristmill.dedup import ExactDeduplicationStage
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.manifest import check_manifest
from gristmill.text import JsonlReader, JsonlWriter, ParquetWriter, ScoreFilter, WordCountFilter

HERE = LocalExecutor(0)
FILES = 7


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        lines = [json.dumps({"text": "a " * (row % 5), "id": f"{number}-{row}"}) for row in range(20)]
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join(lines))
    recipe = {
        "name": "sharded",
        "stages": [
            {"JsonlReader": {"file_paths": str(tmp_path / "in")}},
            {"ScoreFilter": {"filter_obj": {"WordCountFilter": {"min_words": 2}}, "score_field": "words"}},
            {"ParquetWriter": {"path": str(tmp_path / "out")}},
        ],
        "executor": {"LocalExecutor": {"num_workers": 0}},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    return tmp_path


def pipeline(place: Path, writer: Any = None, *more: ProcessingStage[Any, Any]) -> Pipeline:
    stages = [JsonlReader(place / "in"), ScoreFilter(WordCountFilter(2), score_field="words"), *more]
    return Pipeline("sharded", stages=[*stages, writer or ParquetWriter(place / "out")])


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def one_run(place: Path) -> dict[str, bytes]:
    pipeline(place, ParquetWriter(place / "whole")).run(HERE)
    return files_of(place / "whole")


def start(place: Path, shard: str, **env: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gristmill.cli.main", "run", str(place / "recipe.yaml")]
    command += ["--run-dir", str(place / "run"), "--shard", shard, "-q"]
    return subprocess.Popen(command, env={**os.environ, **env})


def shards_command(place: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["shards", str(place / "run"), *options])
    return result.exit_code, result.output


def test_three_processes_write_the_bytes_of_one_run(place: Path) -> None:
    array = {"SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "4"}
    jobs = [start(place, "slurm", SLURM_ARRAY_TASK_ID=str(index), **array) for index in (4, 5, 6)]
    assert [job.wait(120) for job in jobs] == [0, 0, 0]
    assert files_of(place / "out") == one_run(place)
    assert shards_command(place) == (0, "3 of 3 shards are done\n")
    manifest, problems = check_manifest(OutputDirectory(str(place / "out")))
    assert problems == []
    assert (len(manifest["files"]), manifest["rows"]) == (FILES, FILES * 12)


SLOW = """
import os, sys, time
from pathlib import Path
from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage
from gristmill.text import JsonlReader, ParquetWriter, ScoreFilter, WordCountFilter

place = Path(sys.argv[1])

class WaitAfterFirst(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, batch):
        if (place / "run/shard-00002-of-00003/ledger").exists() and (place / "slow").exists():
            (place / "waiting").touch()
            time.sleep(600)
        time.sleep(1.2)  # until the ledger is flushed
        return batch

if __name__ == "__main__":
    stages = [JsonlReader(place / "in"), ScoreFilter(WordCountFilter(2), score_field="words"), WaitAfterFirst()]
    pipeline = Pipeline("sharded", stages=[*stages, ParquetWriter(place / "out")])
    pipeline.run(LocalExecutor(0), run_dir=place / "run", shard="2/3")
"""


def test_a_shard_that_was_killed_is_found_and_repeated(place: Path) -> None:
    (place / "slow").touch()
    (place / "slow.py").write_text(SLOW)
    command = [sys.executable, str(place / "slow.py"), str(place)]
    job = subprocess.Popen(command)
    for _ in range(600):
        if (place / "waiting").exists() or job.poll() is not None:
            break
        time.sleep(0.1)
    job.send_signal(signal.SIGKILL)
    assert job.wait(10) == -signal.SIGKILL
    pipeline(place).run(HERE, run_dir=place / "run", shard="1/3")
    code, found = shards_command(place)
    assert code == 1
    assert "1 of 3 shards are done" in found
    assert "2/3  begun, not done" in found
    assert "3/3  not begun" in found
    assert shards_command(place, "-q") == (1, "2,3\n")
    _, problems = check_manifest(OutputDirectory(str(place / "out")))
    assert "shard 2 of 3 is not done" in problems
    (place / "slow").unlink()
    subprocess.run(command, check=True, timeout=120)
    pipeline(place).run(HERE, run_dir=place / "run", shard="3/3")
    assert shards_command(place)[0] == 0
    assert files_of(place / "out") == one_run(place)
    assert not any((place / "out.run" / "tmp").glob("*"))


def test_a_shard_resumes_as_that_shard(place: Path) -> None:
    result = CliRunner().invoke(
        app, ["run", str(place / "recipe.yaml"), "--run-dir", str(place / "run"), "--shard", "1/3", "-q"]
    )
    assert result.exit_code == 0, result.output
    before = files_of(place / "out")
    assert len(before) == 3
    directory = str(place / "run" / "shard-00001-of-00003")
    assert CliRunner().invoke(app, ["resume", directory, "-q"]).exit_code == 0
    assert files_of(place / "out") == before
    assert "0 of 3" not in CliRunner().invoke(app, ["resume", directory, "--dry-run"]).output


def test_there_may_be_more_shards_than_files(place: Path) -> None:
    for number in range(1, 10):
        pipeline(place).run(HERE, run_dir=place / "run", shard=f"{number}/9")
    assert files_of(place / "out") == one_run(place)
    assert shards_command(place)[0] == 0


def test_part_of_an_array_is_submitted_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the second array describe only the jobs in it."""
    given = {"ID": "0", "COUNT": "5", "MIN": "0", "STEP": "2"}
    for name, value in given.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    pipeline(place).run(HERE, run_dir=place / "run", shard="slurm")
    assert shards_command(place, "-q") == (1, "2,4,6,8\n")
    for name, value in {"ID": "6", "COUNT": "2", "MIN": "6", "STEP": "2"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    assert str(open_shard("slurm", place / "run")) == "4/5"
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    with pytest.raises(PlanError, match="job 7 is not one of 5 jobs from 0 on in steps of 2"):
        open_shard("slurm", place / "run")


def test_an_input_that_changes_between_shards_is_refused(place: Path) -> None:
    pipeline(place).run(HERE, run_dir=place / "run", shard="1/3")
    (place / "in" / "0a.jsonl").write_text('{"text": "one two three"}\n')
    with pytest.raises(PlanError, match="the input is not what the first shard"):
        pipeline(place).run(HERE, run_dir=place / "run", shard="2/3")
    with pytest.raises(PlanError, match="holds the records of 3 shards"):
        pipeline(place).run(HERE, run_dir=place / "run", shard="2/4")


def test_columns_that_differ_between_shards_are_said(place: Path) -> None:
    (place / "in" / "1.jsonl").write_text('{"text": "one two three", "id": "5", "more": 1}\n')
    for number in (1, 2, 3):
        pipeline(place).run(HERE, run_dir=place / "run", shard=f"{number}/3")
    code, found = shards_command(place)
    assert code == 1
    assert "other columns or types" in found


def test_all_outputs_of_a_route_are_shared(place: Path) -> None:
    def routed(name: str) -> Pipeline:
        sinks = {kind: [JsonlWriter(place / name / kind)] for kind in ("long", "other")}
        route = Route(lambda row: "long" if row["words"] > 3 else "other", sinks)
        return pipeline(place, route)

    routed("whole").run(HERE)
    for number in (1, 2, 3):
        routed("out").run(HERE, run_dir=place / "run", shard=f"{number}/3")
    for kind in ("long", "other"):
        assert files_of(place / "out" / kind) == files_of(place / "whole" / kind)


def test_a_run_without_shards_takes_over_their_manifest(place: Path) -> None:
    pipeline(place).run(HERE, run_dir=place / "run", shard="1/2")
    pipeline(place).run(HERE)
    manifest, problems = check_manifest(OutputDirectory(str(place / "out")))
    assert (len(manifest["files"]), problems) == (FILES, [])
    assert not list((place / "out.run").glob("manifest-*"))


class Passed(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, batch: DocumentBatch) -> DocumentBatch:
        return batch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard": "0/3"}, "from 1/10 to 10/10"),
        ({"shard": "4/3"}, "from 1/10 to 10/10"),
        ({"shard": "one"}, "from 1/10 to 10/10"),
        ({"shard": "slurm"}, "SLURM_ARRAY_TASK_ID is ''"),
        ({"run_dir": None}, "give run_dir too"),
        ({"rejected": "aside"}, "shared by all shards"),
        ({"writer": {"mode": "overwrite"}}, "depends on the files of the others"),
        ({"writer": {"mode": "append"}}, "depends on the files of the others"),
        ({"writer": {"split": "train"}}, "numbers all files"),
        ({"more": ExactDeduplicationStage()}, "needs the rows of all shards"),
    ],
)
def test_what_cannot_be_divided_is_refused(place: Path, change: dict[str, Any], message: str) -> None:
    writer = ParquetWriter(place / "out", **change.pop("writer", {}))
    more = [change.pop("more")] if "more" in change else []
    options = {"shard": "1/3", "run_dir": place / "run", **change}
    with pytest.raises((PlanError, ValueError), match=message):
        pipeline(place, writer, *more).run(HERE, **options)
    assert not (place / "out").exists()


def test_initial_tasks_are_not_divided(place: Path) -> None:
    batch = DocumentBatch(data=[{"text": "one"}])
    with pytest.raises(PlanError, match="must begin with a reader"):
        Pipeline("p", stages=[Passed()]).run(HERE, [batch], run_dir=place / "run", shard="1/2")
