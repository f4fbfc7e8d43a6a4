"""What holds for every run, shown for films: same bytes, killed and started again, kept, dropped or set aside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.video import (
    ClipTranscodingStage,
    ClipWriterStage,
    FixedStrideExtractorStage,
    VideoDurationFilter,
    VideoParquetReader,
    VideoParquetWriter,
    VideoReader,
    VideoScore,
    VideoScoreFilter,
    VideoWebDatasetReader,
    VideoWebDatasetWriter,
)
from tests.audio.test_audio_promises import contents, ledger_entries
from tests.video.film_fixtures import FILM, film, rows_of
from tests.video.test_one_pass import BrightnessFilter

KILLED = """
import sys, time
from gristmill import LocalExecutor, Pipeline, ProcessingStage
from tests.video.test_video_promises import stages

class Nap(ProcessingStage):
    not_identity = ("seconds",)

    def __init__(self, seconds):
        self.seconds = seconds

    def process(self, task):
        time.sleep(self.seconds)
        return task

root, out, kind, pause, workers = sys.argv[1:]
steps = stages(root, out, kind)
steps.insert(2, Nap(float(pause)))
Pipeline("killed", stages=steps).run(LocalExecutor(num_workers=int(workers)), run_dir=f"{out}-run", max_errors=100)
"""


def stages(root: str, out: str, kind: str) -> list[Any]:
    writers: dict[str, Any] = {
        "folders": lambda: ClipWriterStage(out), "tars": lambda: VideoWebDatasetWriter(out, 2),
        "tables": lambda: VideoParquetWriter(out),
    }  # fmt: skip
    return [
        VideoReader(f"{root}/in"),
        FixedStrideExtractorStage(0.7, 0.9, 0.3),
        VideoScoreFilter(VideoDurationFilter(0.35), "seconds"),
        VideoScore([BrightnessFilter(fps=4.0), BrightnessFilter()], ["some", "all"]),
        ClipTranscodingStage(num_clips_per_chunk=2),
        writers[kind](),
    ]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six films, one that is none and one that is cut short."""
    root = tmp_path_factory.mktemp("films")
    for number in range(5):
        film(root / "in" / f"{number}.mp4", 60 + 5 * number, shots=number + 1, sound=number % 2 == 0, gop=10)
    content = film(None, 96, container="mkv", gop=10)
    (root / "in" / "short.mkv").write_bytes(content[: len(content) // 2])
    (root / "in" / "none.mp4").write_bytes(b"PK\3\4" + bytes(400))
    return root


@pytest.fixture(scope="module")
def undisturbed(films: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    found = {}
    for kind in ("folders", "tars", "tables"):
        out = tmp_path_factory.mktemp("reference") / "out"
        Pipeline("killed", stages=stages(str(films), str(out), kind)).run(LocalExecutor(num_workers=0), max_errors=100)
        found[kind] = without_place(contents(out), out)
    return found


def without_place(files: dict[str, bytes], out: Path) -> dict[str, bytes]:
    """Files with the name of the output left out of metadata."""
    return {
        name: data.replace(str(out).encode(), b"OUT") if name.endswith("json") else data for name, data in files.items()
    }


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["folders", "tars", "tables"])
def test_the_bytes_do_not_depend_on_the_workers(
    films: Path, undisturbed: dict[str, dict[str, bytes]], tmp_path: Path, kind: str, workers: int
) -> None:
    out = tmp_path / "out"
    Pipeline("killed", stages=stages(str(films), str(out), kind)).run(
        LocalExecutor(num_workers=workers), max_errors=100
    )
    assert without_place(contents(out), out) == undisturbed[kind]
    assert len(undisturbed[kind]) >= 5


def test_stages_in_workers_of_their_own_give_the_same_bytes(
    films: Path, undisturbed: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    steps = [
        stage.with_(num_workers=1 + at % 2) if at in (2, 3, 4) else stage
        for at, stage in enumerate(stages(str(films), str(out), "tables"))
    ]
    Pipeline("killed", stages=steps).run(LocalExecutor(num_workers=3), max_errors=100)
    assert contents(out) == undisturbed["tables"]


@pytest.mark.parametrize("kind", ["folders", "tables"])
def test_a_run_that_is_killed_and_started_again_ends_with_the_same_bytes(
    films: Path, undisturbed: dict[str, dict[str, bytes]], tmp_path: Path, kind: str
) -> None:
    out, run_dir = tmp_path / "out", tmp_path / "out-run"
    for workers in (2, 1):
        process = start(films, out, kind, 0.4, workers)
        before, until = ledger_entries(run_dir), time.monotonic() + 60
        while ledger_entries(run_dir) <= before and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert process.poll() is None, "it ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert without_place(contents(out), out) != undisturbed[kind]
    assert start(films, out, kind, 0.0, 2).wait(120) == 0
    assert without_place(contents(out), out) == undisturbed[kind]


def start(root: Path, out: Path, kind: str, pause: float, workers: int) -> subprocess.Popen[bytes]:
    arguments = [str(root), str(out), kind, str(pause), str(workers)]
    quiet = {"GRISTMILL_PROGRESS": "off", "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.Popen([sys.executable, "-c", KILLED, *arguments], env=os.environ | quiet, start_new_session=True)


def test_the_folders_hold_what_users_of_curator_expect(tmp_path: Path) -> None:
    shutil.copy(FILM, tmp_path / "bunny.mp4")
    stages = [VideoReader(str(tmp_path / "bunny.mp4")), FixedStrideExtractorStage(), ClipWriterStage(tmp_path / "out")]
    Pipeline("split", stages=stages).run(LocalExecutor(num_workers=0))
    metas = [json.loads(path.read_text()) for path in sorted((tmp_path / "out/metas/v0").glob("*.json"))]
    assert sorted(meta["duration_span"] for meta in metas) == [[0.0, 10.0], [10.0, 20.0]]
    for meta in metas:
        assert meta["valid"] is True
        assert meta["num_frames"] == 240
        assert (meta["width_source"], meta["height_source"], meta["framerate_source"]) == (640, 360, 24.0)
        assert Path(meta["clip_location"]).stat().st_size == meta["num_bytes"]
        assert Path(meta["clip_location"]).stem == meta["span_uuid"]
    done = json.loads((tmp_path / "out/processed_videos/bunny.json").read_text())
    assert sorted(done["clips"]) == sorted(meta["span_uuid"] for meta in metas)
    [table] = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(table).column("clip_id").to_pylist() == done["clips"]


def test_a_run_with_other_cuts_leaves_no_clips_of_the_last_one(tmp_path: Path) -> None:
    film(tmp_path / "in" / "one.mp4", 96)
    for length in (2.0, 1.0):
        stages = [
            VideoReader(str(tmp_path / "in")),
            FixedStrideExtractorStage(length, length),
            ClipWriterStage(tmp_path / "out"),
        ]
        Pipeline("split", stages=[*stages[:1], FixedStrideExtractorStage(length, length, 0.5), *stages[2:]]).run(
            LocalExecutor(num_workers=0)
        )
        clips = {path.stem for path in (tmp_path / "out" / "clips").iterdir()}
        assert len(clips) == 4 / length
        assert clips == {path.stem for path in (tmp_path / "out" / "metas" / "v0").iterdir()}


def test_without_clips_only_metadata_is_written(tmp_path: Path) -> None:
    film(tmp_path / "in" / "one.mp4", 48)
    stages = [
        VideoReader(str(tmp_path / "in")),
        FixedStrideExtractorStage(1, 1, 0.5),
        ClipWriterStage(tmp_path / "out", upload_clips=False),
    ]
    Pipeline("split", stages=stages).run(LocalExecutor(num_workers=0))
    assert not (tmp_path / "out" / "clips").exists()
    metas = [json.loads(path.read_text()) for path in (tmp_path / "out/metas/v0").iterdir()]
    assert [meta["clip_location"] for meta in metas] == [None, None]


def test_what_is_written_can_be_read_again(tmp_path: Path) -> None:
    film(tmp_path / "in" / "one.mp4", 48, sound=True)
    (tmp_path / "in" / "one.txt").write_text("a square")
    split = [VideoReader(str(tmp_path / "in")), FixedStrideExtractorStage(1, 1, 0.5)]
    clips = rows_of(split)
    for writer, reader in ((VideoWebDatasetWriter, VideoWebDatasetReader), (VideoParquetWriter, VideoParquetReader)):
        out = tmp_path / writer.__name__
        Pipeline("split", stages=[*split, writer(out)]).run(LocalExecutor(num_workers=0))
        rows = rows_of([reader(str(out)), VideoScore(BrightnessFilter(), "s")])
        assert [row["video_id"] for row in rows] == [row["clip_id"] for row in clips]
        assert [row["caption"] for row in rows] == ["a square"] * 2
        assert all(row["s"] > 1 and row["audio_codec"] == "aac" for row in rows)


def test_clips_go_to_object_stores(tmp_path: Path) -> None:
    import fsspec

    film(tmp_path / "in" / "one.mp4", 48)
    stages = [
        VideoReader(str(tmp_path / "in")),
        FixedStrideExtractorStage(1, 1, 0.5),
        ClipWriterStage("memory://layout/out"),
    ]
    Pipeline("split", stages=stages).run(LocalExecutor(num_workers=0), run_dir=str(tmp_path / "run"))
    memory = fsspec.filesystem("memory")
    assert len(memory.ls("/layout/out/clips", detail=False)) == 2
    assert len(memory.ls("/layout/out/metas/v0", detail=False)) == 2
