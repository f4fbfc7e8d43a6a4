"""Reading: archives in every state they are found in."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import BadRecordError, GristmillError, InputError
from gristmill.image import ImageReaderStage, WebDatasetReader
from gristmill.io.read.file_partitions import FilePartitioningStage
from tests.image.image_fixtures import Decode, archive, encoded, rows, run, samples


def test_a_sample_keeps_its_key_its_bytes_and_all_its_files(tmp_path: Path) -> None:
    image = encoded(1)
    files = [
        ("a/one.JPG", image),
        ("a/one.txt", "ein Fuß".encode()),
        ("a/one.json", b'{"x": [1, 2]}'),
        ("a/one.cls", b"7\n"),
        ("a/one.seg.png", b"a mask"),
        ("a/one.npy", b"\x00\x01"),
    ]
    [row] = rows(WebDatasetReader(str(archive(tmp_path / "shard.tar", files))))
    assert row == {
        "image_id": "a/one",
        "source": "shard.tar",
        "image": image,
        "extension": "JPG",
        "caption": "ein Fuß",
        "metadata": {"x": [1, 2]},
        "label": 7,
        "sidecars": [{"extension": "seg.png", "data": b"a mask"}, {"extension": "npy", "data": b"\x00\x01"}],
        "__position__": 0,
    }


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "gif", "bmp", "tiff", "avif"])
def test_every_format_is_found_by_its_extension(tmp_path: Path, kind: str) -> None:
    endings = {"jpeg": ["jpg", "jpeg"], "tiff": ["tif", "tiff"]}.get(kind, [kind])
    files = [(f"{ending}.{ending}", encoded(1, kind)) for ending in endings]
    found = rows(WebDatasetReader(str(archive(tmp_path / "t.tar", files))), Decode())
    assert [row["extension"] for row in found] == endings


@pytest.mark.parametrize(
    ("files", "kept", "reasons"),
    [
        ([], 0, []),
        ([("a.txt", b"x"), ("b.json", b"{}")], 0, ["'a' has no image, only .txt", "'b' has no image, only .json"]),
        ([("a.jpg", b""), ("b.jpg", b"x")], 1, ["'a': its image .jpg is empty"]),
        ([("a.jpg", b"1"), ("a.jpg", b"2")], 2, []),
        ([("a.jpg", b"1"), ("b.jpg", b"2"), ("a.jpg", b"3")], 3, []),
        ([("._a.jpg", b"1"), ("a.jpg", b"2")], 1, []),
        ([("x" * 150 + "/ü.jpg", b"1")], 1, []),
    ],
)
def test_odd_archives(tmp_path: Path, files: list[tuple[str, bytes]], kept: int, reasons: list[str]) -> None:
    result = run(WebDatasetReader(str(archive(tmp_path / "t.tar", files))))
    found = [row for batch in result for row in batch.to_rows()]
    assert len(found) == kept
    aside = [record.error for record in result.quarantined()]
    assert len(aside) == len(reasons)
    assert all(reason in error for reason, error in zip(reasons, aside, strict=True))
    assert all(row["image_id"] for row in found)


def test_what_cannot_be_read_of_a_sidecar_is_kept_as_it_is(tmp_path: Path) -> None:
    files = [("a.jpg", b"1"), ("a.txt", b"\xff"), ("a.json", b"{no")]
    [row] = rows(WebDatasetReader(str(archive(tmp_path / "t.tar", files))))
    assert row["caption"] is None
    assert row["metadata"] is None
    assert row["sidecars"] == [{"extension": "txt", "data": b"\xff"}, {"extension": "json", "data": b"{no"}]


def test_half_an_archive_gives_what_is_whole_and_says_where_it_ends(tmp_path: Path) -> None:
    path = archive(tmp_path / "t.tar", [(f"{i}.jpg", encoded(i)) for i in range(10)])
    with tarfile.open(path) as tar:
        last = tar.getmembers()[6]
    path.write_bytes(path.read_bytes()[: last.offset_data + 100])
    result = run(WebDatasetReader(str(path)))
    assert [row["image_id"] for batch in result for row in batch.to_rows()] == list("012345")
    [record] = result.quarantined()
    assert (record.stage, record.file, record.position) == ("read_webdataset", "t.tar", last.offset)
    assert "truncated in member '6.jpg', after 100 of" in record.error


def test_reading_goes_on_after_damage(tmp_path: Path) -> None:
    path = archive(tmp_path / "t.tar", [(f"{i}.jpg", encoded(i)) for i in range(5)])
    with tarfile.open(path) as tar:
        second = tar.getmembers()[1]
    data = bytearray(path.read_bytes())
    data[second.offset : second.offset + 50] = bytes(50)
    path.write_bytes(data)
    result = run(WebDatasetReader(str(path)))
    assert [row["image_id"] for batch in result for row in batch.to_rows()] == list("0234")
    assert [record.position for record in result.quarantined()] == [second.offset]


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz"])
def test_compressed_archives(tmp_path: Path, ending: str) -> None:
    path = archive(tmp_path / f"t{ending}", samples(20), "w:gz")
    assert len(rows(WebDatasetReader(str(tmp_path)))) == 20
    path.write_bytes(path.read_bytes()[:-400])
    result = run(WebDatasetReader(str(path)))
    assert 0 < sum(batch.num_items for batch in result) < 20
    assert "gzip stream is truncated" in [record.error for record in result.quarantined()][-1]


def test_archives_one_behind_the_other_are_read_to_the_end(tmp_path: Path) -> None:
    one = archive(tmp_path / "a.tar", [("1.jpg", b"1")]).read_bytes()
    (tmp_path / "a.tar").write_bytes(one + one.replace(b"1.jpg", b"1.jpg"))
    assert len(rows(WebDatasetReader(str(tmp_path)))) == 2


def test_links_are_told_and_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("a.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        image = tarfile.TarInfo("../../b.jpg")
        image.size = 1
        tar.addfile(image, io.BytesIO(b"x"))
    result = run(WebDatasetReader(str(path)))
    assert [row["image_id"] for batch in result for row in batch.to_rows()] == ["../../b"]
    assert "is a link or a device" in next(iter(result.quarantined())).error


def test_a_member_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "t.tar", [("a.jpg", b"x" * 2000), ("b.jpg", b"y")])
    result = run(WebDatasetReader(str(path), max_bytes=1000))
    assert [row["image_id"] for batch in result for row in batch.to_rows()] == ["b"]
    assert "more than max_bytes=1,000" in next(iter(result.quarantined())).error


@pytest.mark.parametrize("blocksize", [1, 5_000, 20_000, None])
def test_where_an_archive_is_cut_changes_nothing(tmp_path: Path, blocksize: int | None) -> None:
    archive(tmp_path / "t.tar", samples(30))
    whole = rows(WebDatasetReader(str(tmp_path)))
    assert len(whole) == 30
    assert rows(WebDatasetReader(str(tmp_path), blocksize=blocksize)) == whole


def test_a_large_archive_is_cut_between_samples(tmp_path: Path) -> None:
    archive(tmp_path / "t.tar", samples(30))
    [tasks] = FilePartitioningStage(str(tmp_path), blocksize=20_000).sources()
    assert len(tasks) > 3
    places = [(part.start, part.end) for task in tasks for part in task.parts()]
    assert [start for start, _ in places[1:]] == [end for _, end in places[:-1]]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"PAR1....", "looks like Parquet: use ParquetReader"), (b'{"a": 1}\n', "JSON lines: use JsonlReader")],
)
def test_what_is_no_archive_is_said_when_the_run_is_planned(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(InputError, match=message):
        Pipeline("p", stages=[WebDatasetReader(str(tmp_path))]).plan()


def test_bad_samples_stop_the_run_when_asked(tmp_path: Path) -> None:
    archive(tmp_path / "t.tar", [("a.jpg", b"")])
    with pytest.raises(GristmillError, match="its image .jpg is empty"):
        run(WebDatasetReader(str(tmp_path), on_bad_record="raise"))
    assert rows(WebDatasetReader(str(tmp_path), on_bad_record="skip")) == []


def test_images_that_cannot_be_decoded_are_set_aside_one_by_one(tmp_path: Path) -> None:
    files = [(f"{i}.jpg", encoded(i)) for i in range(10)]
    files[3] = ("3.jpg", files[3][1][:300])
    files[7] = ("7.jpg", b"<html>")
    result = run(WebDatasetReader(str(archive(tmp_path / "t.tar", files))), Decode())
    assert sum(batch.num_items for batch in result) == 8
    first, second = result.quarantined()
    assert (first.stage, first.file) == ("decode", "t.tar")
    assert first.error.startswith("image '3': jpeg that cannot be decoded")
    assert first.row is not None
    assert first.row["image"] == files[3][1]
    assert "image '7': not an image of a known format" in second.error
    assert second.position is not None


def test_with_on_error_raise_an_image_stops_the_run(tmp_path: Path) -> None:
    archive(tmp_path / "t.tar", [("a.jpg", b"<html>")])
    with pytest.raises(GristmillError, match="image 'a': not an image"):
        run(WebDatasetReader(str(tmp_path)), Decode(), on_error="raise")


# -- as in other pipelines ---------------------------------------------------------------------------------------


def test_the_first_stage_reads_the_archives_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path / "t.tar", samples(5))
    monkeypatch.chdir(tmp_path)
    stage = ImageReaderStage(task_batch_size=2, num_threads=16, num_gpus_per_worker=0.25)
    pipeline = Pipeline("p", stages=[stage, Decode()])
    text = pipeline.describe(verbose=True)
    assert "the working directory" in text
    assert "gpus" not in text
    assert [batch.num_items for batch in pipeline.run(LocalExecutor(num_workers=0))] == [2, 2, 1]


def test_without_archives_there_it_says_what_to_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"ImageReaderStage\(file_paths=\.\.\.\)"):
        Pipeline("p", stages=[ImageReaderStage()]).plan()


def test_it_reads_what_it_is_told(tmp_path: Path) -> None:
    archive(tmp_path / "t.tar", samples(3))
    text = ImageReaderStage(file_paths=str(tmp_path), dali_batch_size=1)
    assert len(rows(text)) == 3
    listed = FilePartitioningStage(str(tmp_path), files_per_partition=1, file_extensions=[".tar"])
    assert rows(listed, ImageReaderStage()) == rows(text)


def test_wrong_parameters() -> None:
    with pytest.raises(ValueError, match="task_batch_size is 0"):
        ImageReaderStage(task_batch_size=0)
    with pytest.raises(ValueError, match="num_threads is 0"):
        ImageReaderStage(num_threads=0)


def test_gzip_is_known_by_its_bytes(tmp_path: Path) -> None:
    path = archive(tmp_path / "t.tar", samples(3))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert len(rows(WebDatasetReader(str(path), blocksize=100))) == 3


def test_without_quarantine_bad_images_raise() -> None:
    from gristmill import ImageBatch
    from gristmill.image import decoded

    batch = ImageBatch({"image": [b"no"], "image_id": ["x"]})
    with pytest.raises(BadRecordError, match="image 'x': not an image"):
        decoded(batch)


def test_images_beside_an_image_are_sidecars_and_counted(tmp_path: Path) -> None:
    archive(tmp_path / "in.tar", [(f"trip.{number}.jpg", encoded(number)) for number in range(3)])
    result = run(WebDatasetReader(str(tmp_path / "in.tar")))
    [row] = [row for batch in result for row in batch.to_rows()]
    assert (row["image"], [one["extension"] for one in row["sidecars"]]) == (encoded(0), ["1.jpg", "2.jpg"])
    assert result.summary()["read_webdataset"].counts["further_images"] == 2


@pytest.mark.parametrize("blocksize", [None, 2048])
@pytest.mark.parametrize("left_out", [0, 100])
def test_an_archive_that_is_cut_between_members_is_told(tmp_path: Path, left_out: int, blocksize: int | None) -> None:
    path = archive(tmp_path / "in.tar", samples(6))
    with tarfile.open(path) as tar:
        gone = tar.getmember("s0002.jpg")
    path.write_bytes(path.read_bytes()[: gone.offset - left_out])  # in the padding, or just behind it
    result = run(WebDatasetReader(str(path), blocksize=blocksize))
    [record] = result.quarantined()
    assert "truncated here" in record.error
