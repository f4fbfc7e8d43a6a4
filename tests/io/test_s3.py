"""Reading from and writing to a real S3 server on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import InputError
from gristmill.core.records.run_record_store import RecordStore
from gristmill.dedup import ExactDeduplicationStage
from gristmill.io.read.file_listing import list_files
from gristmill.io.storage.output_directory import OutputDirectory
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
    files = bucket.find("mill/out")
    assert len(files) == 3
    rows = [json.loads(line) for file in files for line in bucket.cat(file).splitlines()]
    assert sorted(row["id"] for row in rows) == sorted(f"{i}-{n}" for i in range(3) for n in range(40, 50))
    assert result.summary().rows_out == 30


def test_a_missing_bucket_is_told_at_once(s3: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="s3://nowhere"):
        Pipeline("s3", stages=[JsonlReader("s3://nowhere/x", storage_options=s3)]).plan()


LOOKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "names": lambda s3: OutputDirectory("s3://mill/out", s3).names(),
    "sizes": lambda s3: OutputDirectory("s3://mill/out", s3).sizes(),
    "exists": lambda s3: OutputDirectory("s3://mill/out", s3).exists("s3://mill/out/late.jsonl"),
    "records": lambda s3: list(RecordStore("s3://mill", s3).lines("out")),
    "listing": lambda s3: list_files("s3://mill/out", [".jsonl"], s3),
    "glob": lambda s3: list_files("s3://mill/out/*.jsonl", [".jsonl"], s3),
}


@pytest.mark.parametrize("look", LOOKS)
def test_what_others_write_after_a_look_is_seen(s3: dict[str, Any], bucket: Any, look: str) -> None:
    other = type(bucket)(**s3, skip_instance_cache=True)
    other.pipe({"mill/out/a.jsonl": b"{}\n", "mill/out/b.jsonl": b"{}\n"})
    LOOKS[look](s3)
    other.pipe({"mill/out/a.jsonl": b'{"a": 1}\n', "mill/out/late.jsonl": b"{ }\n"})
    target = OutputDirectory("s3://mill/out", s3)
    paths = [target.file(name) for name in ("a.jsonl", "late.jsonl")]
    found = [target.open(path).read() for path in paths]
    assert found == [b'{"a": 1}\n', b"{ }\n"]
    LOOKS[look](s3)
    assert [target.size(path) for path in paths] == [9, 4]
    assert [file.size for file in list_files(paths, [".jsonl"], s3)] == [9, 4]


def test_what_somebody_has_listed_before_does_not_matter(s3: dict[str, Any], bucket: Any) -> None:
    bucket.ls("mill/raw data")  # which the run's file system knows, too: it is the same
    type(bucket)(**s3, skip_instance_cache=True).pipe("mill/raw data/late.jsonl", b"30\n")
    assert OutputDirectory("s3://mill/raw data", s3).size("s3://mill/raw data/late.jsonl") == 3
    bucket.ls("mill/raw data")
    assert len(list_files("s3://mill/raw data/late.jsonl", [".jsonl"], s3)) == 1


def test_listings_are_forgotten_once_and_not_for_each_of_many_paths(
    s3: dict[str, Any], bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"s3://mill/many/{number}.jsonl" for number in range(5)]
    bucket.pipe(dict.fromkeys(paths, b"1\n"))
    forgotten = list[str | None]()
    forget = type(bucket).invalidate_cache

    def note(system: Any, path: str | None = None) -> None:
        forgotten.append(path)
        forget(system, path)

    monkeypatch.setattr(type(bucket), "invalidate_cache", note)
    assert len(list_files(paths, [".jsonl"], s3)) == 5
    assert len(forgotten) == 2


def test_a_run_that_is_started_again_reads_what_its_workers_have_written_since(
    s3: dict[str, Any], bucket: Any, tmp_path: Path
) -> None:
    def run() -> list[dict[str, Any]]:
        reader = JsonlReader("s3://mill/raw data", storage_options=s3)
        stages = [reader, ExactDeduplicationStage(num_partitions=2), JsonlWriter(str(tmp_path / "out"))]
        Pipeline("s3", stages=stages).run(LocalExecutor(1), "s3://mill/run", storage_options=s3)
        files = sorted((tmp_path / "out").glob("*.jsonl"))
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    whole = run()
    bucket.invalidate_cache()
    lost = bucket.find("mill/run/segments/1")[0]
    bucket.rm(lost)
    for name in bucket.find("mill/run/ledger"):  # as if it had been killed in the first segment
        lines = bucket.cat(name).splitlines(keepends=True)
        left = [line for line in lines if not json.loads(line)["source"].startswith(("segment", Path(lost).stem))]
        bucket.pipe(name, b"".join(left))
    assert run() == whole
