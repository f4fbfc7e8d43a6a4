"""The files of clips are recorded with their table: `verify`, a run that is started again and `push` know them all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.task import GatherTask, Lineage, WrittenFile
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import WriteFragments
from gristmill.io.write.manifest import check_manifest, read_manifest
from gristmill.io.write.push_files import push_files, verified_output
from gristmill.report.run_records import Records
from gristmill.video import ClipWriterStage, FixedStrideExtractorStage, VideoReader
from gristmill.video.batch import PREVIEW, VideoBatch
from gristmill.video.transcode.clip_layout import ClipLayoutFormat, CommitClips
from tests.video.film_fixtures import film

FOLDERS = ("clips", "metas/v0", "processed_clip_chunks", "processed_videos")


def run(root: Path, length: float = 1.0, out: Path | str | None = None) -> dict[str, Any]:
    """Cut the films in `in`. Returns the report."""
    stages = [
        VideoReader(str(root / "in")),
        FixedStrideExtractorStage(length, length, 0.5),
        ClipWriterStage(out or root / "out"),
    ]
    Pipeline("split", stages=stages).run(LocalExecutor(num_workers=0), run_dir=root / "run")
    report: dict[str, Any] = json.loads((root / "run" / "report.json").read_text())
    return report


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def problems_of(out: Path | str) -> list[str]:
    return check_manifest(OutputDirectory(out))[1]


def a_clip(root: Path) -> Path:
    return min((root / "out" / "clips").iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two films of two clips each, which were written."""
    for name in ("one", "more/two"):
        film(tmp_path / "in" / f"{name}.mp4", 48)
    run(tmp_path)
    return tmp_path


def test_the_manifest_lists_all_files_with_size_and_checksum(root: Path) -> None:
    target, there = OutputDirectory(root / "out"), files_in(root / "out")
    entries = {entry["name"]: entry for entry in read_manifest(target)["files"]}
    assert entries.keys() == there.keys()
    assert {name.rpartition("/")[0] for name in entries} == {
        "",
        *FOLDERS,
        "processed_videos/more",
        f"{FOLDERS[2]}/more",
    }
    for name, content in there.items():
        assert entries[name]["bytes"] == len(content)
        assert entries[name]["checksum"] == target.checksum(target.file(name))
    assert problems_of(root / "out") == []


def test_the_report_counts_all_files_and_bytes(root: Path) -> None:
    there = files_in(root / "out")
    for _ in range(2):  # the second time nothing is left to do
        report = run(root)
        assert (report["files"], report["bytes"]) == (len(there), sum(map(len, there.values())))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_file_that_is_gone_is_missed_and_written_again(root: Path, folder: str) -> None:
    before = files_in(root / "out")
    gone = min(path for path in (root / "out" / folder).iterdir() if path.is_file())
    gone.unlink()
    assert problems_of(root / "out") == [f"{folder}/{gone.name} is missing"]
    assert run(root)["done_before"] == 1
    assert files_in(root / "out") == before
    assert problems_of(root / "out") == []


def test_a_clip_that_was_cut_short_or_changed_is_found(root: Path) -> None:
    clip = a_clip(root)
    content = clip.read_bytes()
    clip.write_bytes(content[:-1] + b"?")
    assert problems_of(root / "out") == [f"clips/{clip.name} has changed: its checksum differs"]
    clip.write_bytes(content[:-1])
    [problem] = problems_of(root / "out")
    assert f"has {len(content) - 1:,} bytes" in problem
    run(root)
    assert clip.read_bytes() == content


def test_a_clip_that_no_run_has_written_is_named(root: Path) -> None:
    shutil.copy(a_clip(root), root / "out" / "clips" / "other.mp4")
    (root / "out" / "clips" / "notes.txt").write_text("mine")
    assert problems_of(root / "out") == ["clips/other.mp4 is not in the manifest"]


def test_other_cuts_leave_no_file_or_entry_of_the_last_ones(root: Path) -> None:
    before = files_in(root / "out").keys()
    run(root, 2.0)
    there = files_in(root / "out").keys()
    assert len(there) < len(before)
    assert not {name for name in before & there if name.startswith("clips/")}
    assert {entry["name"] for entry in read_manifest(OutputDirectory(root / "out"))["files"]} == there
    assert problems_of(root / "out") == []


def test_clips_are_pushed(root: Path) -> None:
    source, entries = verified_output(str(root / "out"))
    pushed = push_files(source, entries, OutputDirectory(root / "copy"))
    assert pushed.copied == len(entries)
    assert files_in(root / "copy") == files_in(root / "out")
    assert push_files(source, entries, OutputDirectory(root / "copy")).kept == len(entries)


def test_films_of_one_name_share_a_list_that_is_listed_once(tmp_path: Path) -> None:
    film(tmp_path / "in" / "one.mp4", 48)
    film(tmp_path / "in" / "one.mkv", 72, container="mkv")
    there: list[dict[str, bytes]] = []
    for number in range(2):
        report = run(tmp_path)
        there.append(files_in(tmp_path / "out"))
        assert report["files"] == len(there[-1])
        assert report["done_before"] == 2 * number
        assert problems_of(tmp_path / "out") == []
    assert there[0] == there[1]


def test_an_output_of_which_only_tables_were_recorded_is_still_known(root: Path) -> None:
    for path in (root / "run" / "ledger").iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["written"] = [{name: file[name] for name in file if name != "attached"} for file in line["written"]]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = root / "out.run" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["files"] = [entry for entry in content["files"] if "/" not in entry["name"]]
    manifest.write_text(json.dumps(content))
    assert problems_of(root / "out") == []
    before = files_in(root / "out")
    assert run(root)["done_before"] == 2
    assert {entry["name"] for entry in read_manifest(OutputDirectory(root / "out"))["files"]} == before.keys()
    a_clip(root).unlink()
    assert run(root)["done_before"] == 1
    assert files_in(root / "out") == before


def test_clips_in_object_stores_are_missed_too(tmp_path: Path) -> None:
    import fsspec

    film(tmp_path / "in" / "one.mp4", 48)
    out, memory = "memory://clip-records/out", fsspec.filesystem("memory")
    run(tmp_path, out=out)
    assert problems_of(out) == []
    gone = memory.ls("/clip-records/out/clips", detail=False)[0]
    memory.rm_file(gone)
    assert problems_of(out) == [f"clips/{gone.rpartition('/')[2]} is missing"]
    assert run(tmp_path, out=out)["done_before"] == 0
    assert problems_of(out) == []


def test_the_output_of_a_film_is_its_table(root: Path) -> None:
    records = Records(str(root / "run"))
    [path] = records.output_paths("one.mp4")
    assert path.startswith(f"{root}/out/one-")
    assert path.endswith(".parquet")


def test_a_commit_that_is_done_again_keeps_the_clips(tmp_path: Path) -> None:
    """A worker may end between the commit of a source and the news of it: its temporary files are gone by then."""
    target, form = OutputDirectory(tmp_path / "out"), ClipLayoutFormat(embeddings=True)
    rows = pa.table(
        {
            "video_id": ["one"],
            "clip_id": ["first"],
            "video": [b"bytes of a film"],
            PREVIEW: [b"a picture"],
            "clip_embedding": [[0.5, 1.0]],
        }
    )
    write = WriteFragments(target, form)
    write.prepare_run({})
    lineage = Lineage("1", "1", ("one.mp4",), 0)
    gathered = GatherTask([write.process(VideoBatch(rows).named(lineage)).named(lineage)]).named(lineage)
    first, again = (CommitClips(target, form).process(gathered) for _ in range(2))
    assert (tmp_path / "out" / "clips" / "first.mp4").read_bytes() == b"bytes of a film"
    attached = {one.name for one in first.written[0].attached_files()}
    assert attached == files_in(tmp_path / "out").keys() - {"task-1.parquet"}
    assert {name.rpartition("/")[0] for name in attached} == {*FOLDERS, "previews", "ce1_embd_parquet"}
    assert again.written == first.written


def test_the_ledger_stays_small_with_many_clips() -> None:
    from gristmill.core.task import AttachedFile, pack_attached

    random = np.random.default_rng(1)
    names = [random.bytes(16).hex() for _ in range(1000)]
    files = [
        AttachedFile(f"{folder}/{name}", int(random.integers(10**7)), f"xxh128:{random.bytes(16).hex()}")
        for name in names
        for folder in ("clips", "metas/v0")
    ]
    packed = pack_attached(files)
    assert len(packed) < 60 * len(files)
    assert WrittenFile("out/a.parquet", 1, "", attached=packed).attached_files() == sorted(
        files, key=lambda one: one.name
    )
