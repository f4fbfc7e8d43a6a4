"""What holds for every run, shown for images: killed and started again, kept, dropped or set aside."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill import ImageBatch, ProcessingStage
from gristmill.image import ImageWriterStage, WebDatasetReader, decoded
from tests.image.image_fixtures import archive, contents, encoded, run, samples

KILLED = """
import sys, time
from gristmill import LocalExecutor

PAUSE = float(sys.argv[3])
from gristmill.image import ImageWriterStage, WebDatasetReader
from tests.image.image_fixtures import Decode, run

class Slow(Decode):
    def process(self, task):
        time.sleep(PAUSE)
        return super().process(task)

run(
    WebDatasetReader(sys.argv[1] + "/in", task_batch_size=4),
    Slow(),
    ImageWriterStage(sys.argv[2], images_per_tar=5),
    executor=LocalExecutor(num_workers=int(sys.argv[4])),
    run_dir=sys.argv[1] + "/run-" + sys.argv[2].rpartition("/")[2],
)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_and_started_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(6):
        archive(tmp_path / "in" / f"{number}.tar", samples(12, f"{number}-"))

    def start(out: str, pause: str, workers: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(tmp_path / out), pause, workers])

    assert start("whole", "0", "1").wait(120) == 0
    first = start("killed", "0.3", "2")
    until = time.monotonic() + 60
    while not list((tmp_path / "killed").glob("*.tar")) and time.monotonic() < until:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert len(list((tmp_path / "killed").glob("*.tar"))) < 18
    assert start("killed", "0", "1").wait(120) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


class Bright(ProcessingStage[ImageBatch, ImageBatch]):
    """Keeps some, drops some, and cannot decode some."""

    name = "bright"

    def process(self, task: ImageBatch) -> ImageBatch:
        batch = decoded(task, self)
        return batch.take([index for index in range(batch.num_items) if index % 2])


def test_each_row_is_kept_dropped_or_set_aside_and_only_one_of_these(tmp_path: Path) -> None:
    files = [(f"{number}.jpg", encoded(number) if number % 4 else b"no image") for number in range(12)]
    archive(tmp_path / "in.tar", files)
    result = run(
        WebDatasetReader(str(tmp_path / "in.tar")),
        Bright(),
        ImageWriterStage(tmp_path / "out"),
        run_dir=str(tmp_path / "run"),
        rejected=True,
    )
    kept, dropped = (
        [name for path in folder.glob("*.parquet") for name in pq.read_table(path)["image_id"].to_pylist()]
        for folder in (tmp_path / "out", tmp_path / "run" / "rejected")
    )
    aside = [record.row["image_id"] for record in result.quarantined() if record.row]
    assert aside == ["0", "4", "8"]
    assert sorted([*kept, *dropped, *aside], key=int) == [str(number) for number in range(12)]
