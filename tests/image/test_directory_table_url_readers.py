"""Other sources of images: directories, tables, addresses; and what leaves the world of images."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, ImageBatch, LocalExecutor, Pipeline
from gristmill.core.errors import ColumnError, InputError
from gristmill.dedup import ImageDuplicatesRemovalStage
from gristmill.image import (
    ConvertImageBatchToDocumentBatchStage,
    ImageDirectoryReader,
    ImageDownloadStage,
    ImageFileSizeFilter,
    ImageParquetReader,
    ImageParquetWriter,
    ImageScoreFilter,
    WebDatasetReader,
)
from gristmill.report.whatif import whatif
from gristmill.samples.download import opts_out
from tests.image.image_fixtures import Decode, archive, encoded, rows, run, samples

# -- directories -------------------------------------------------------------------------------------------------


def folder(place: Path) -> Path:
    files = {
        "a/one.v2.jpg": encoded(1),
        "a/one.v2.txt": b"a caption",
        "a/one.v2.json": b'{"n": 1}',
        "a/one.v2.bin": b"\x00",
        "a/two.PNG": encoded(2, "png"),
        "b/two.jpg": encoded(3),
        "b/two.webp": encoded(3, "webp"),
        "b/two.cls": b"cat",
        "b/empty.jpg": b"",
        "README.md": b"no image",
    }
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def test_scores_of_images_of_directories_are_kept_and_judged_anew(tmp_path: Path) -> None:
    kept = ImageScoreFilter(ImageFileSizeFilter(min_bytes=2**20))
    stages = [ImageDirectoryReader(str(folder(tmp_path / "in")), 2), kept, ImageParquetWriter(str(tmp_path / "out"))]
    place = tmp_path / "run"
    Pipeline("p", stages=stages).run(LocalExecutor(num_workers=0), run_dir=place, scores=True, max_errors=9)
    found = pq.read_table(place / "scores").sort_by("source").to_pylist()
    assert [row["source"] for row in found] == ["a/one.v2.jpg", "a/two.PNG", "b/two.jpg", "b/two.webp"]
    assert len({(row["file"], row["position"]) for row in found}) == 4
    assert all(row["ImageFileSizeFilter"] > 0 and row["dropped_by"] == "ImageFileSizeFilter" for row in found)
    assert whatif(str(place), {"ImageFileSizeFilter.min_bytes": 1}).after.rows == 4


def test_images_of_directories_have_what_lies_beside_them(tmp_path: Path) -> None:
    result = run(ImageDirectoryReader(str(folder(tmp_path))), Decode())
    found = [row for batch in result for row in batch.to_rows()]
    assert [(row["image_id"], row["extension"], row["source"]) for row in found] == [
        ("a/one.v2", "jpg", "a/one.v2.jpg"),
        ("a/two", "PNG", "a/two.PNG"),
        ("b/two", "jpg", "b/two.jpg"),
        ("b/two", "webp", "b/two.webp"),
    ]
    assert (found[0]["caption"], found[0]["metadata"]) == ("a caption", {"n": 1})
    assert found[0]["sidecars"] == [{"extension": "bin", "data": b"\x00"}]
    assert [row["label"] for row in found[2:]] == ["cat", "cat"]
    assert "'b/empty': its image .jpg is empty" in next(iter(result.quarantined())).error


@pytest.mark.parametrize("settings", [{"files_per_partition": 1}, {"blocksize": 1}, {"task_batch_size": 1}])
def test_how_a_directory_is_shared_out_changes_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder(tmp_path)
    text = [
        [(row["image_id"], row["image"]) for row in rows(ImageDirectoryReader(str(tmp_path), **one))]
        for one in ({}, settings)
    ]
    assert text[0] == text[1]


def test_a_directory_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("x")
    with pytest.raises(InputError, match="no file that ends in .jpg"):
        Pipeline("p", stages=[ImageDirectoryReader(str(tmp_path))]).plan()


# -- tables ------------------------------------------------------------------------------------------------------


def test_parquet_with_bytes(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"id": [7, 8], "picture": [encoded(1), encoded(2, "png")], "n": [1, 2]}), tmp_path / "x.parquet"
    )
    found = rows(ImageParquetReader(str(tmp_path), image_field="picture"), Decode())
    assert [(row["image_id"], row["extension"], row["n"], row["image"]) for row in found] == [
        ("7", "jpg", 1, encoded(1)),
        ("8", "png", 2, encoded(2, "png")),
    ]


def test_parquet_of_hugging_face(tmp_path: Path) -> None:
    images = [{"bytes": encoded(1), "path": "a/cat.jpg"}, {"bytes": None, "path": "gone.jpg"}, {"bytes": encoded(2)}]
    pq.write_table(pa.table({"image": images, "text": ["x", "y", "z"]}), tmp_path / "train.parquet")
    result = run(ImageParquetReader(str(tmp_path), caption_field="text"))
    found = [row for batch in result for row in batch.to_rows()]
    assert [(row["image_id"], row["caption"]) for row in found] == [("a/cat", "x"), ("train-00000002", "z")]
    [record] = result.quarantined()
    assert (record.position, record.error) == (1, "no image, only the path 'gone.jpg'")


def test_what_was_written_as_parquet_is_read_as_it_was(tmp_path: Path) -> None:
    archive(tmp_path / "in.tar", samples(3))
    run(WebDatasetReader(str(tmp_path / "in.tar")), ImageParquetWriter(tmp_path / "out"))
    again = rows(ImageParquetReader(str(tmp_path / "out")))
    before = rows(WebDatasetReader(str(tmp_path / "in.tar")))
    for row in (*again, *before):
        del row["__position__"]
    assert again == before


def test_the_right_column_is_asked_for(tmp_path: Path) -> None:
    pq.write_table(pa.table({"pic": [b"x"]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="There are: pic"):
        Pipeline("p", stages=[ImageParquetReader(str(tmp_path))]).plan()


# -- addresses ---------------------------------------------------------------------------------------------------


class Site(BaseHTTPRequestHandler):
    """A server with images, and with everything that goes wrong on the web."""

    calls: ClassVar[dict[str, int]] = {}

    def do_GET(self) -> None:
        count = self.calls[self.path] = self.calls.get(self.path, 0) + 1
        status, headers, body = 200, [("Content-Type", "image/jpeg")], encoded(1)
        if self.path == "/page":
            headers, body = [("Content-Type", "text/html")], b"<html></html>"
        elif self.path == "/gone":
            status, body = 404, b""
        elif self.path == "/shy" and count == 1:
            status, body = 503, b""
        elif self.path == "/noai":
            headers += [("X-Robots-Tag", "otherbot: all"), ("X-Robots-Tag", "NoAI, nofollow")]
        elif self.path == "/moved":
            status, body = 302, b""
            headers = [("Location", "/a.jpg")]
        elif self.path == "/large":
            body = encoded(1) + bytes(300_000)
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def download(urls: list[str | None], **settings: Any) -> tuple[list[dict[str, Any]], list[str]]:
    tasks = [ImageBatch(pa.table({"url": pa.array(urls, pa.string())}))]
    result = run(ImageDownloadStage(**{"retries": 0, "timeout": 5.0, **settings}), initial_tasks=tasks)
    return [row for batch in result for row in batch.to_rows()], [record.error for record in result.quarantined()]


def test_images_are_fetched_and_what_fails_is_set_aside_with_its_reason(site: str) -> None:
    paths = ["/a.jpg", "/page", "/gone", "/noai", "/moved", "/large"]
    urls = [*(site + path for path in paths), None, "ftp://x/y"]
    found, failed = download(urls, allow_private=True, max_bytes=100_000, images_per_batch=3)
    assert [row["image_id"] for row in found] == [site + "/a.jpg", site + "/moved"]
    assert all((row["image"], row["extension"]) == (encoded(1), "jpg") for row in found)
    reasons = ["no image, but text/html", "404", "X-Robots-Tag: noai", "max_bytes", "no URL", "only http"]
    assert len(failed) == len(reasons)
    assert all(any(reason in error for error in failed) for reason in reasons)


def test_opting_out_can_be_ignored_and_failures_that_pass_are_tried_again(site: str) -> None:
    settings = {"allow_private": True, "respect_opt_out": False, "retries": 2}
    found, failed = download([site + "/noai", site + "/shy"], **settings)
    assert (len(found), failed) == (2, [])


def test_private_addresses_are_refused(site: str) -> None:
    found, failed = download([site + "/a.jpg", "http://[::1]/x", "http://localhost/x"])
    assert not found
    assert all("private" in error for error in failed)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], None),
        (["all"], None),
        (["noimageai"], "noimageai"),
        (["nofollow", "NOAI"], "noai"),
        (["otherbot: noai"], None),
        (["gristmill: noindex"], "noindex"),
        (["*: noimageindex"], "noimageindex"),
        (["unavailable_after: 25 Jun 2030 15:00:00 PST"], None),
        (["noai, unavailable_after: Tue, 25 Jun 2030 15:00:00 PST"], "noai"),
        (["unavailable_after: Tue, 25 Jun 2030 15:00:00 PST, noai"], "noai"),
        (["otherbot: nofollow, noindex"], None),
        (["otherbot: noindex, gristmill: noai"], "noai"),
        (["max-image-preview: large, none"], "none"),
    ],
)
def test_opting_out(values: list[str], said: str | None) -> None:
    assert opts_out(values, ImageDownloadStage.opt_out) == said


# -- and on ------------------------------------------------------------------------------------------------------


def test_images_become_documents(tmp_path: Path) -> None:
    path = str(archive(tmp_path / "in.tar", samples(3)))
    [batch] = run(WebDatasetReader(path), ConvertImageBatchToDocumentBatchStage(fields=["image_id", "caption"]))
    assert type(batch) is DocumentBatch
    assert batch.get_columns() == ["image_id", "caption", "__position__"]
    [batch] = run(WebDatasetReader(path), ConvertImageBatchToDocumentBatchStage())
    assert "image" not in batch.get_columns()
    assert "metadata" in batch.get_columns()
    with pytest.raises(ColumnError, match="'nope'"):
        run(WebDatasetReader(path), ConvertImageBatchToDocumentBatchStage(fields=["nope"]))


def test_duplicates_are_removed_by_their_ids(tmp_path: Path) -> None:
    path = str(archive(tmp_path / "in.tar", samples(4)))
    (tmp_path / "ids").mkdir()
    pq.write_table(pa.table({"id": ["s0001", "s0003"]}), tmp_path / "ids" / "x.parquet")
    found = rows(WebDatasetReader(path), ImageDuplicatesRemovalStage(str(tmp_path / "ids"), duplicate_id_field="id"))
    assert [row["image_id"] for row in found] == ["s0000", "s0002"]
    with pytest.raises(InputError, match="removal_parquets_dir"):
        Pipeline("p", stages=[WebDatasetReader(path), ImageDuplicatesRemovalStage(str(tmp_path / "no"))]).plan()
