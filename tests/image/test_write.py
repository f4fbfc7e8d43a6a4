"""Writing: shards with an index, the same bytes however they were made."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill import ImageBatch, LocalExecutor
from gristmill.cli.main import app
from gristmill.core.errors import GristmillError
from gristmill.image import (
    ImageDirectoryReader,
    ImageDirectoryWriter,
    ImageParquetWriter,
    ImageWriterStage,
    WebDatasetReader,
)
from tests.image.image_fixtures import INLINE, Decode, archive, contents, encoded, rows, run, samples

PHOTOS = Path(__file__).parents[2] / "examples" / "images" / "photos"


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        infos = tar.getmembers()
        assert len({info.name for info in infos}) == len(infos)
        assert all((info.mtime, info.uid, info.uname) == (0, 0, "") for info in infos)
        return {info.name: tar.extractfile(info).read() for info in infos}  # type: ignore[union-attr]


def test_what_was_read_is_written_with_all_its_files(tmp_path: Path) -> None:
    files = samples(5)
    archive(tmp_path / "in.tar", files)
    run(WebDatasetReader(str(tmp_path / "in.tar")), ImageWriterStage(output_dir=str(tmp_path / "out")))
    [tar] = (tmp_path / "out").glob("*.tar")
    assert members(tar) == dict(files)


def test_files_beside_an_image_keep_every_letter(tmp_path: Path) -> None:
    beside = {
        "a.json": b'{"b": 1.50,\n "n": 123456789012345678901, "b": 2}\n',
        "a.cls": b"5",
        "b.json": b'{"a": NaN}',
        "b.cls": b"007",
        "c.cls": b"dog",
        "c.json": b"null",
    }
    files = [(f"{key}.jpg", encoded(1)) for key in "abc"] + list(beside.items())
    archive(tmp_path / "in.tar", sorted(files))
    for size in (1, 100):  # labels of one type in each batch, and mixed
        out = tmp_path / f"out{size}"
        run(WebDatasetReader(str(tmp_path / "in.tar"), task_batch_size=size), ImageWriterStage(out))
        [tar] = out.glob("*.tar")
        assert members(tar) == dict(files)
        assert [row["label"] for row in rows(WebDatasetReader(str(tar)))] == [5, "007", "dog"]


def test_shards_have_so_many_images_and_an_index_each(tmp_path: Path) -> None:
    archive(tmp_path / "in.tar", samples(25))
    out = tmp_path / "out"
    run(
        WebDatasetReader(str(tmp_path / "in.tar"), task_batch_size=7),
        Decode(),
        ImageWriterStage(out, images_per_tar=10),
    )
    tars, indexes = sorted(out.glob("*.tar")), sorted(out.glob("*.parquet"))
    assert [path.stem for path in tars] == [path.stem for path in indexes]
    tables = [pq.read_table(path) for path in indexes]
    assert [table.num_rows for table in tables] == [10, 10, 5]
    assert set(tables[0].column_names) >= {"image_id", "key", "offset", "size", "brightness", "caption", "metadata"}
    for tar, table in zip(tars, tables, strict=True):
        data, inside = tar.read_bytes(), members(tar)
        for row in table.to_pylist():
            assert data[row["offset"] : row["offset"] + row["size"]] == inside[f"{row['key']}.jpg"]


@pytest.mark.parametrize("executor", [INLINE, LocalExecutor(num_workers=1), LocalExecutor(num_workers=2)])
def test_the_bytes_are_the_same_whoever_writes_them(tmp_path: Path, executor: Any) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        archive(tmp_path / "in" / f"{number}.tar", samples(12, f"{number}-"))
    first = ImageWriterStage(tmp_path / "first", images_per_tar=5)
    run(WebDatasetReader(str(tmp_path / "in")), Decode(), first)
    other = ImageWriterStage(tmp_path / "other", images_per_tar=5)
    reader = WebDatasetReader(str(tmp_path / "in"), task_batch_size=4, blocksize=10_000)
    run(reader, Decode(), other, executor=executor)
    assert contents(tmp_path / "first") == contents(tmp_path / "other")
    assert len(contents(tmp_path / "first")) == 18


def one_batch(columns: dict[str, Any]) -> list[ImageBatch]:
    return [ImageBatch(pa.table(columns))]


def test_equal_keys_are_all_written(tmp_path: Path) -> None:
    archive(
        tmp_path / "in.tar",
        [("a.jpg", encoded(1)), ("b.jpg", encoded(2)), ("a.jpg", encoded(3)), ("a_2.jpg", encoded(4))],
    )
    run(WebDatasetReader(str(tmp_path / "in.tar")), ImageWriterStage(tmp_path / "out"))
    [tar] = (tmp_path / "out").glob("*.tar")
    assert members(tar) == {
        "a.jpg": encoded(1), "b.jpg": encoded(2), "a_2.jpg": encoded(3), "a_2_2.jpg": encoded(4)
    }  # fmt: skip
    index = pq.read_table(tar.with_suffix(".parquet"))
    assert index.column("image_id").to_pylist() == ["a", "b", "a", "a_2"]


@pytest.mark.parametrize(
    ("image_id", "extension", "kind", "name"),
    [
        ("v1.2/photo.final", "jpg", "jpeg", "v1.2/photo_final.jpg"),
        ("../../etc/x", "jpg", "jpeg", "__/__/etc/x.jpg"),
        ("/abs", "JPEG", "jpeg", "abs.JPEG"),
        ("wrong", "jpg", "png", "wrong.png"),
        ("compound", "cam.png", "png", "compound.cam.png"),
        (None, None, "webp", "image.webp"),
        ("", "gif", "gif", "image.gif"),
    ],
)
def test_names_are_fit_for_a_tar(
    tmp_path: Path, image_id: str | None, extension: str | None, kind: str, name: str
) -> None:
    columns = {"image_id": pa.array([image_id], pa.string()), "extension": pa.array([extension], pa.string())}
    tasks = one_batch({**columns, "image": pa.array([encoded(1, kind)], pa.large_binary())})
    run(ImageWriterStage(tmp_path / "out"), initial_tasks=tasks)
    [tar] = (tmp_path / "out").glob("*.tar")
    assert list(members(tar)) == [name]


def test_a_run_that_was_written_is_read_again_as_it_was(tmp_path: Path) -> None:
    archive(tmp_path / "in.tar", samples(6))
    before = rows(WebDatasetReader(str(tmp_path / "in.tar")))
    run(WebDatasetReader(str(tmp_path / "in.tar")), ImageWriterStage(tmp_path / "out"))
    after = rows(WebDatasetReader(str(tmp_path / "out")))
    known = ("image_id", "image", "extension", "caption", "metadata", "label", "sidecars")
    assert [{name: row[name] for name in known} for row in after] == [
        {name: row[name] for name in known} for row in before
    ]


def test_a_run_with_nothing_left_leaves_no_old_shards(tmp_path: Path) -> None:
    archive(tmp_path / "in.tar", samples(4))
    run(WebDatasetReader(str(tmp_path / "in.tar")), ImageWriterStage(tmp_path / "out", images_per_tar=2))
    assert len(contents(tmp_path / "out")) == 4
    archive(tmp_path / "in.tar", samples(1))
    run(WebDatasetReader(str(tmp_path / "in.tar")), ImageWriterStage(tmp_path / "out", images_per_tar=2))
    assert len(contents(tmp_path / "out")) == 2
    archive(tmp_path / "in.tar", [])
    run(WebDatasetReader(str(tmp_path / "in.tar")), ImageWriterStage(tmp_path / "out", images_per_tar=2))
    assert not contents(tmp_path / "out")


def test_any_file_system_will_do(tmp_path: Path) -> None:
    import fsspec

    archive(tmp_path / "in.tar", samples(4))
    run(WebDatasetReader(str(tmp_path / "in.tar")), ImageWriterStage("memory://shards", images_per_tar=3))
    assert len(rows(WebDatasetReader("memory://shards"))) == 4
    fsspec.filesystem("memory").rm("/shards", recursive=True)


def test_images_go_to_parquet_and_back(tmp_path: Path) -> None:
    archive(tmp_path / "in.tar", samples(4))
    run(WebDatasetReader(str(tmp_path / "in.tar")), ImageParquetWriter(tmp_path / "out"))
    [file] = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(file).column("image").to_pylist() == [encoded(number) for number in range(4)]


def test_images_go_to_directories_with_an_index(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for count in (4, 2):  # what is no longer there does not stay
        archive(tmp_path / "in.tar", samples(count))
        run(WebDatasetReader(str(tmp_path / "in.tar")), ImageDirectoryWriter(out))
        [index] = out.glob("*.parquet")
        files = {path.name: path.read_bytes() for path in index.with_suffix("").iterdir()}
        assert files == dict(samples(count))
        assert pq.read_table(index).column("image_id").to_pylist() == [f"s{number:04}" for number in range(count)]
    again = rows(ImageDirectoryReader(str(out)))
    assert [row["image"] for row in again] == [encoded(0), encoded(1)]
    archive(tmp_path / "in.tar", [])
    run(WebDatasetReader(str(tmp_path / "in.tar")), ImageDirectoryWriter(out))
    assert not contents(out)


def test_rows_without_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GristmillError, match="'image'"):
        run(ImageWriterStage(tmp_path / "out"), initial_tasks=one_batch({"image_id": ["a"]}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"images_per_tar": 0}, "images_per_tar is 0"), ({"mode": "no"}, "mode is 'no'"), ({"output_dir": ""}, "empty")],
)
def test_wrong_parameters(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageWriterStage(**{"output_dir": "out", **settings})


def test_files_of_images_are_verified_and_pushed(tmp_path: Path) -> None:
    out, target = tmp_path / "out", tmp_path / "pushed"
    run(ImageDirectoryReader(str(PHOTOS)), ImageDirectoryWriter(out))

    def command(*arguments: Path | str) -> Any:
        return CliRunner().invoke(app, [*map(str, arguments)])

    assert command("verify", out).exit_code == 0
    for _ in range(2):
        assert command("push", out, target, "--no-card").exit_code == 0
    files = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(target) for path in target.rglob("*") if path.is_file())
    assert all((out / file).read_bytes() == (target / file).read_bytes() for file in files)
    next(out.glob("*/*.jpg")).unlink()
    assert "is missing" in command("verify", out).stdout
    assert "is not as it was written" in command("push", out, tmp_path / "other").stderr


def test_parquet_files_are_named_as_on_the_hub(tmp_path: Path) -> None:
    writer = ImageParquetWriter(tmp_path / "out", split="train", target_file_size="50KB")
    run(ImageDirectoryReader(str(PHOTOS)), writer)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"train-{number:05}-of-{len(names):05}.parquet" for number in range(len(names))]
    assert len(names) > 1
    with pytest.raises(ValueError, match="split is"):
        ImageParquetWriter(tmp_path / "out", split="a b")
