"""Reading from and writing to a real S3 server on this machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import InputError
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter


@pytest.fixture
def bucket(s3: dict[str, Any]) -> Any:
    import s3fs

    system = s3fs.S3FileSystem(**s3)
    system.mkdir("mill")
    for index in range(3):
        lines = [json.dumps({"id": f"{index}-{row}", "text": "word " * row}) for row in range(50)]
        system.pipe(f"mill/raw data/ä {index}.jsonl", "\n".join(lines).encode())
    yield system
    system.rm("mill", recursive=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pipeline_from_s3_to_s3(s3: dict[str, Any], bucket: Any, workers: int) -> None:
    stages = [
        JsonlReader("s3://mill/raw data/*.jsonl", storage_options=s3, blocksize=2000),
        ScoreFilter(WordCountFilter(min_words=40)),
        JsonlWriter("s3://mill/out", storage_options=s3),
    ]
    result = Pipeline("s3", stages=stages).run(LocalExecutor(workers))
    bucket.invalidate_cache()
    files = [name for name in bucket.find("mill/out") if not name.endswith("_manifest.json")]
    assert len(files) == 3
    rows = [json.loads(line) for file in files for line in bucket.cat(file).splitlines()]
    assert sorted(row["id"] for row in rows) == sorted(f"{i}-{n}" for i in range(3) for n in range(40, 50))
    assert result.summary().rows_out == 30


def test_a_missing_bucket_is_told_at_once(s3: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="s3://nowhere"):
        Pipeline("s3", stages=[JsonlReader("s3://nowhere/x", storage_options=s3)]).plan()
