"""Datasets of the hub, and TinyStories, from a server on this machine that plays the hub."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import DownloadError
from gristmill.download import HuggingFaceDownloadExtractStage, TinyStoriesDownloadExtractStage
from gristmill.text import JsonlWriter, Modify, QuotationUnifier, ScoreFilter, UnicodeReformatter, WordCountFilter
from tests.download.file_server import Shelf, open_shelf, rows_of

SHA = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
STORY = 'Once upon a time there was a mill. "Grind," said the miller. '


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    with open_shelf() as opened:
        monkeypatch.setenv("HF_ENDPOINT", opened.url)
        yield opened


def parquet(texts: list[str]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": texts, "n": list(range(len(texts)))}), out)
    return out.getvalue()


def put(shelf: Shelf, name: str, files: dict[str, bytes]) -> None:
    shelf.files[f"/api/datasets/{name}/revision/main"] = json.dumps({"sha": SHA}).encode()
    tree: list[dict[str, Any]] = [{"type": "directory", "path": "data"}]
    for path, body in files.items():
        shelf.files[f"/datasets/{name}/resolve/{SHA}/{path}"] = body
        oid = hashlib.sha256(body).hexdigest()
        tree.append(
            {"type": "file", "path": path, "size": len(body), **({"lfs": {"oid": oid}} if "parquet" in path else {})}
        )
    shelf.files[f"/api/datasets/{name}/tree/{SHA}"] = json.dumps(tree).encode()


def test_a_split_of_a_dataset_is_read(shelf: Shelf, tmp_path: Path) -> None:
    files = {"README.md": b"", "data/train-0.parquet": parquet(["a", "b"]), "data/test-0.parquet": parquet(["c"])}
    put(shelf, "me/set", files)
    rows, _ = rows_of(HuggingFaceDownloadExtractStage("me/set", "train", str(tmp_path)))
    assert rows == [{"text": text, "n": n, "file_name": f"{SHA}-data-train-0.parquet"} for n, text in enumerate("ab")]
    every, _ = rows_of(
        HuggingFaceDownloadExtractStage("me/set", download_dir=str(tmp_path), record_limit=1, add_filename_column=False)
    )
    assert [row["text"] for row in every] == ["c", "a"]


def test_what_does_not_fit_its_checksum_is_set_aside(shelf: Shelf, tmp_path: Path) -> None:
    put(shelf, "me/set", {"a.parquet": parquet(["a"]), "b.parquet": parquet(["b"])})
    shelf.files[f"/datasets/me/set/resolve/{SHA}/a.parquet"] += b"!"
    rows, result = rows_of(HuggingFaceDownloadExtractStage("me/set", download_dir=str(tmp_path)))
    assert [row["text"] for row in rows] == ["b"]
    assert "sha256" in result.quarantined()[0].error


def test_json_lines_and_bad_ones(shelf: Shelf, tmp_path: Path) -> None:
    put(shelf, "me/lines", {"train.jsonl": b'{"text": "a"}\n{"text": \n{"text": "c"}\n', "dataset_infos.json": b"{}"})
    rows, result = rows_of(HuggingFaceDownloadExtractStage("me/lines", download_dir=str(tmp_path), files="*.jsonl"))
    assert [row["text"] for row in rows] == ["a", "c"]
    assert len(result.quarantined()) == 1


def test_a_directory_is_read_without_the_hub(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-0.parquet").write_bytes(parquet(["a"]))
    (tmp_path / "data" / "test-0.parquet").write_bytes(parquet(["b"]))
    rows, _ = rows_of(HuggingFaceDownloadExtractStage(str(tmp_path), split="test"))
    assert [row["text"] for row in rows] == ["b"]
    with pytest.raises(ValueError, match="no Parquet or JSON lines"):
        HuggingFaceDownloadExtractStage(str(tmp_path), split="dev")


def test_what_is_not_there_is_told(shelf: Shelf, tmp_path: Path) -> None:
    put(shelf, "me/set", {"README.md": b""})
    with pytest.raises(DownloadError, match="no Parquet or JSON lines"):
        rows_of(HuggingFaceDownloadExtractStage("me/set", download_dir=str(tmp_path)))
    with pytest.raises(ValueError, match="owner/name"):
        HuggingFaceDownloadExtractStage("a b/c")


def test_stories_are_curated(shelf: Shelf, tmp_path: Path) -> None:
    """The example of the migration guide, with other imports."""
    end = "<|endoftext|>"
    raw = f"{STORY * 9}{end}\nToo short.\n{end}\n\n{end}".encode() + b"\xff\xfe" + f"{end}{STORY * 10}".encode()
    shelf.files["/datasets/roneneldan/TinyStories/resolve/main/TinyStories-valid.txt"] = raw
    raw_dir, curated_dir = tmp_path / "raw", str(tmp_path / "curated")
    stages = [
        TinyStoriesDownloadExtractStage(raw_dir, split="valid"),
        Modify(modifier_fn=QuotationUnifier()),
        Modify(modifier_fn=UnicodeReformatter()),
        ScoreFilter(filter_obj=WordCountFilter(min_words=80)),
        JsonlWriter(curated_dir),
    ]
    result = Pipeline(name="tinystories", description="Download and curation.", stages=stages).run(
        LocalExecutor(0), max_errors=None
    )
    rows = [json.loads(line) for file in Path(curated_dir).glob("*.jsonl") for line in file.read_text().splitlines()]
    assert [row["id"] for row in rows] == ["tinystories-valid-0", "tinystories-valid-2"]
    assert rows[0]["text"] == (STORY * 9).strip()
    assert len(result.quarantined()) == 1
    with pytest.raises(ValueError, match="train, valid"):
        TinyStoriesDownloadExtractStage(raw_dir, split="dev")
