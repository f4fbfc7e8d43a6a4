"""Hostile input, killed runs, and what a run says about documents that it dropped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.image import ImageAspectRatioFilter
from gristmill.interleaved import (
    ChatJsonlReader,
    InterleavedBatch,
    InterleavedDocumentsWriter,
    InterleavedEach,
    InterleavedExplodeStage,
    InterleavedMaterializeStage,
    InterleavedParquetReader,
    InterleavedParquetWriterStage,
    InterleavedWebdatasetReader,
    InterleavedWebdatasetWriterStage,
)
from gristmill.interleaved.item_columns import as_items
from gristmill.report.whatif import whatif
from gristmill.report.why import why
from gristmill.text import Modify, ScoreFilter, WordCountFilter
from tests.interleaved.interleaved_fixtures import mint_files, picture, rows, run, tar_bytes, write_mint


def described(texts: Any, images: Any, **more: Any) -> bytes:
    return json.dumps({"texts": texts, "images": images, **more}).encode()


BAD = {
    "unequal": described(["a", "b"], [None]),
    "no_lists": b'{"title":"x"}',
    "no_object": b"[1,2]",
    "no_json": b"{",
    "numbers": described([1, 2], [None, None]),
    "text_is_text": described("abc", None),
    "own_items": described([], [], items=[{"kind": 3}]),
    "own_width": described([], [], items=[{"kind": "image", "width": 10**12}]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_description_goes_to_quarantine_and_others_are_read(name: str, tmp_path: Path) -> None:
    files = [
        *mint_files("a", ["good"], [None]).items(),
        ("bad.json", BAD[name]),
        *mint_files("c", ["too"], [None]).items(),
    ]
    (tmp_path / "a.tar").write_bytes(tar_bytes(files))
    done = run(InterleavedWebdatasetReader(str(tmp_path / "a.tar")), max_errors=5)
    assert [row["text"] for batch in done for row in batch.to_rows()] == ["good", "too"]
    [aside] = done.quarantined()
    assert aside.file == "a.tar"
    assert aside.position
    assert aside.error.startswith("bad.json: ")
    assert aside.error.count("bad.json") == 1


def test_a_text_that_is_called_tar_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "notes.tar").write_text("hello\n")
    done = run(InterleavedWebdatasetReader(str(tmp_path / "notes.tar")), max_errors=5)
    [aside] = done.quarantined()
    assert aside.error == f"{tmp_path}/notes.tar is not a tar archive: no header in its 6 bytes"


def test_pictures_without_a_description_and_descriptions_without_pictures(tmp_path: Path) -> None:
    files = {
        "a.json": described(["x", None], [None, "gone.jpg"]),
        "b.jpg": picture(),
        "c.json": described(["y"], [None]),
    }
    (tmp_path / "a.tar").write_bytes(tar_bytes(files))
    reader = InterleavedWebdatasetReader(str(tmp_path / "a.tar"))
    done = run(reader, max_errors=5)
    found = [row for batch in done for row in batch.to_rows()]
    assert [row["doc_id"] for row in found] == ["a", "c"]
    assert found[0]["items"][1]["meta"] == '{"missing":"gone.jpg"}'
    assert len(list(done.quarantined())) == 1
    lost = run(reader, InterleavedMaterializeStage(), max_errors=5)
    assert [row["doc_id"] for batch in lost for row in batch.to_rows()] == ["c"]
    assert len(list(lost.quarantined())) == 2
    for policy, left in (("drop_row", [1, 1]), ("warn", [2, 1])):
        kept = run(reader, InterleavedMaterializeStage(on_materialize_error=policy), max_errors=5)
        assert [len(row["items"]) for batch in kept for row in batch.to_rows()] == left


def test_ten_thousand_items_take_little_time(tmp_path: Path) -> None:
    count = 10_000
    texts = [f"part {at}" if at % 2 else None for at in range(count)]
    images = [None if at % 2 else f"a.{at}.png" for at in range(count)]
    small = picture(0, 16, 16)
    files = [("a.json", described(texts, images)), *((f"a.{at}.png", small) for at in range(0, count, 2))]
    (tmp_path / "a.tar").write_bytes(tar_bytes(files))
    started = time.process_time()
    stages = [
        InterleavedWebdatasetReader(str(tmp_path / "a.tar")),
        Modify(lambda text: text.replace("part", "piece")),
        InterleavedEach(ImageAspectRatioFilter(1.0, 2.0)),
        InterleavedExplodeStage(),
    ]
    assert len(rows(*stages)) == count + 1
    assert time.process_time() - started < 20


def test_a_truncated_tar_gives_its_whole_documents(tmp_path: Path) -> None:
    whole = tar_bytes({**mint_files("a", ["one"], [None]), **mint_files("b", ["x", None], [None, "b.png"])})
    (tmp_path / "a.tar").write_bytes(whole[: len(whole) // 2])
    done = run(InterleavedWebdatasetReader(str(tmp_path / "a.tar")), max_errors=5)
    assert "one" in [row["text"] for batch in done for row in batch.to_rows()]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../../../etc/passwd", "file:///etc/passwd", "link.png", "s3://bucket/x", "a::b", "x\0y"]
)
def test_rows_cannot_name_files_outside(path: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.png").symlink_to("/etc/passwd")
    items = [{"kind": "image", "ref": {"path": path}}]
    pq.write_table(InterleavedBatch([{"doc_id": "a", "items": items}]).data, folder / "a.parquet")
    [row] = rows(InterleavedParquetReader(str(folder)))
    assert row["items"][0]["ref"] is None
    part = {"type": "image_url", "image_url": {"url": path}}
    (folder / "a.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": [part]}]}) + "\n")
    [row] = rows(ChatJsonlReader(str(folder)))
    assert row["items"][0]["ref"] is None


def test_rows_may_name_files_of_folders_that_are_given(tmp_path: Path) -> None:
    source = write_mint(tmp_path / "mint")
    run(InterleavedWebdatasetReader(str(source)), InterleavedDocumentsWriter(str(tmp_path / "docs")))
    reader = InterleavedParquetReader(str(tmp_path / "docs"), ref_folders=[str(source)])
    found = rows(reader, InterleavedMaterializeStage())
    assert found[0]["items"][1]["bytes"] == picture(0)
    refused = rows(InterleavedParquetReader(str(tmp_path / "docs")))
    assert all(item["ref"] is None for row in refused for item in row["items"])


@pytest.mark.parametrize(
    "content",
    [
        5,
        [5],
        [{"type": 1}],
        [{"type": "text"}],
        [{"type": "image_url"}],
        [{"type": "image_url", "image_url": "data:x"}],
        [{"type": "input_audio", "input_audio": {"data": "???"}}],
    ],
)
def test_bad_conversations_go_to_quarantine(content: Any, tmp_path: Path) -> None:
    lines = [{"messages": [{"role": "user", "content": one}]} for one in ("good", content)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run(ChatJsonlReader(str(tmp_path)), max_errors=5)
    assert [row["text"] for batch in done for row in batch.to_rows()] == ["good"]
    assert len(list(done.quarantined())) == 1


def test_items_of_other_schemas_are_taken_as_far_as_they_go() -> None:
    column = pa.array([[{"kind": "text", "text": "a"}], None, []])
    assert as_items(column).to_pylist()[0][0]["text"] == "a"
    assert InterleavedBatch(pa.table({"items": column})).data.column("text").to_pylist() == ["a", "", ""]
    with pytest.raises(Exception, match="no kind"):
        InterleavedBatch(pa.table({"items": pa.array([[{"text": "a"}]])}))


# -- same bytes ----------------------------------------------------------------------------------------------------


def curated(source: str, target: Path, executor: Any, blocksize: int | None = None) -> dict[str, bytes]:
    for name, writer in (
        ("rows", InterleavedParquetWriterStage(str(target / "rows"))),
        ("tars", InterleavedWebdatasetWriterStage(str(target / "tars"), samples_per_tar=5)),
    ):
        stages = [
            InterleavedWebdatasetReader(source, blocksize=blocksize),
            Modify(lambda text: text.replace("goes on", "continues")),
            ScoreFilter(WordCountFilter(3)),
            InterleavedEach(ImageAspectRatioFilter(1.0, 2.0), min_items=1),
            writer,
        ]
        Pipeline(name, stages=stages).run(executor, run_dir=f"{target}/{name}.run")
    return {path.name: path.read_bytes() for folder in ("rows", "tars") for path in (target / folder).glob("*.*")}


CODE = """
import sys, time
from pathlib import Path
from gristmill import LocalExecutor
from tests.interleaved.test_interleaved_promises import curated
curated(sys.argv[1], Path(sys.argv[2]), LocalExecutor(num_workers=1))
"""


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    source = str(write_mint(tmp_path / "mint", documents=60, per_tar=2))
    wanted = curated(source, tmp_path / "whole", LocalExecutor(num_workers=0))
    target = tmp_path / "killed"
    root = Path(__file__).parents[2]
    for seconds in (0.9, 1.3):
        command = [sys.executable, "-c", CODE, source, str(target)]
        paths = {**os.environ, "PYTHONPATH": f"{root}/src:{root}"}
        started = subprocess.Popen(command, cwd=root, start_new_session=True, env=paths)
        time.sleep(seconds)
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    assert curated(source, target, LocalExecutor(num_workers=1)) == wanted


# -- what a run tells ----------------------------------------------------------------------------------------------


def test_dropped_documents_have_a_reason_and_what_if_judges_them(tmp_path: Path) -> None:
    def document(at: int) -> dict[str, Any]:
        wide, tall = picture(at, 10 * at, 30), picture(at, 30, 30 + at)
        return {"doc_id": f"doc{at}", "items": [{"kind": "image", "bytes": wide}, {"kind": "image", "bytes": tall}]}

    documents = [*map(document, range(1, 9)), {"doc_id": "text", "items": [{"kind": "text", "text": "x"}]}]
    pq.write_table(InterleavedBatch(documents).data, tmp_path / "in.parquet")

    def kept(name: str, low: float, high: float) -> list[str]:
        each = InterleavedEach(ImageAspectRatioFilter(low, high), on_drop="document")
        reader, writer = (
            InterleavedParquetReader(str(tmp_path / "in.parquet")),
            InterleavedDocumentsWriter(str(tmp_path / name)),
        )
        run(reader, each, writer, run_dir=str(tmp_path / f"{name}.run"), scores=True, rejected=True)
        return [row["doc_id"] for row in pq.read_table(tmp_path / name).to_pylist()]

    first = kept("first", 0.9, 2.0)
    assert first == ["doc3", "text"]
    wider = kept("wider", 0.4, 3.0)
    assert len(wider) == 8
    label = "each_ImageAspectRatioFilter"
    found = whatif(str(tmp_path / "first.run"), {f"{label}.min_ratio": 0.4, f"{label}.max_ratio": 3.0})
    assert found.exact
    assert found.after.rows == len(wider)
    [story] = why(str(tmp_path / "first.run"), "doc8")
    assert "max_ratio" in str(story) or "2.0" in str(story)
