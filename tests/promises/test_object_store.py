"""Input, output and run directory in an object store: killed and started again, a run ends as it would on a disk."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.promises.fault_corpus import Corpus, make_corpus
from tests.promises.fault_pipeline import Mill
from tests.promises.fault_scenarios import undisturbed
from tests.promises.output_checks import comparable
from tests.promises.run_processes import outlasting

BUCKET = "mill"
INPUT, OUTPUT, RUN = f"{BUCKET}/raw data ü", f"{BUCKET}/out – 石臼", f"{BUCKET}/run é 1"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return make_corpus(tmp_path / "in", seed=3, rows=250)


@pytest.fixture
def bucket(s3: dict[str, Any], corpus: Corpus) -> Iterator[Any]:
    import s3fs

    system = s3fs.S3FileSystem(**s3, use_listings_cache=False)
    system.mkdir(BUCKET)
    for path in corpus.folder.rglob("*.jsonl*"):
        system.pipe(f"{INPUT}/{path.relative_to(corpus.folder)}", path.read_bytes())
    yield system
    system.rm(BUCKET, recursive=True)


@pytest.fixture
def env(s3: dict[str, Any]) -> dict[str, str]:
    """What users set to reach a server of their own."""
    return {
        "AWS_ENDPOINT_URL": s3["client_kwargs"]["endpoint_url"],
        "AWS_ACCESS_KEY_ID": s3["key"],
        "AWS_SECRET_ACCESS_KEY": s3["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def objects(bucket: Any, folder: str) -> dict[str, bytes]:
    return {name.removeprefix(f"{folder}/"): bucket.cat(name) for name in bucket.find(folder)}


def kill_when_something_is_recorded(process: subprocess.Popen[bytes], bucket: Any) -> None:
    deadline = time.monotonic() + 30
    while not bucket.find(f"{RUN}/ledger") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    assert process.wait() == -9


@pytest.mark.parametrize("writer", ["jsonl", pytest.param("parquet", marks=pytest.mark.slow)])
def test_killed_and_started_again(
    corpus: Corpus, bucket: Any, env: dict[str, str], tmp_path: Path, writer: str
) -> None:
    local = Mill(str(corpus.folder), "", "", writer, blocksize=20_000, nap=0.004, flush=0.0)
    there = replace(local, inputs=f"s3://{INPUT}", output=f"s3://{OUTPUT}", run_dir=f"s3://{RUN}")
    whole = undisturbed(replace(local, nap=0.0), tmp_path / "local").whole
    mark = secrets.token_hex(8)

    kill_when_something_is_recorded(there.start(mark, tmp_path, **env), bucket)
    assert outlasting(mark, 10) == []
    assert "manifest.json" not in objects(bucket, f"{OUTPUT}.run")
    assert any(name.startswith("ledger/") for name in objects(bucket, RUN))

    again = replace(there, workers=1, blocksize=8000, nap=0.0).start(mark, tmp_path, **env)
    assert again.wait(60) == 0, (tmp_path / "messages.txt").read_text()
    assert comparable(objects(bucket, OUTPUT)) == whole
    assert 0 < rows_read(bucket) < corpus.rows
    assert verify(env) == 0


def rows_read(bucket: Any) -> int:
    """Rows that the last attempt has read: what was done before is not read again."""
    stages = json.loads(bucket.cat(f"{RUN}/metrics.json"))["attempt_stages"]
    return next(int(stage["rows_out"]) for stage in stages if stage["name"] == "read_jsonl")


def verify(env: dict[str, str]) -> int:
    command = [sys.executable, "-m", "gristmill.cli.main", "verify", f"s3://{OUTPUT}"]
    return subprocess.run(command, env=os.environ | env, timeout=60).returncode
