"""Common Crawl as it lies on its servers, small, on a server of this machine and on an S3 server."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import PlanError
from gristmill.download import CommonCrawlDownloadExtractStage, CommonCrawlUrlGenerator, CommonCrawlWARCReader
from gristmill.download.web.warc import read_warc
from gristmill.io.fetch.http_client import Manners
from gristmill.samples.batch import DocumentBatch
from tests.download.faulty_server import Web, status
from tests.download.warc_fixtures import Page, english, write_warc, write_wet

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # warcio leaves files open
INLINE = LocalExecutor(0)


def pages(snapshot: str, count: int = 2) -> list[Page]:
    return [(f"http://{snapshot}.org/{number}", english(number), "text/html") for number in range(count)]


def archive(folder: Path) -> dict[str, bytes]:
    """Two snapshots of the main crawl and a month of news, as paths and bytes."""
    files: dict[str, bytes] = {}
    for snapshot in ("CC-MAIN-2024-10", "CC-MAIN-2024-18", "CC-NEWS/2024/05"):
        name = f"crawl-data/{snapshot}/segments/1/warc/{snapshot.replace('/', '-')}-0.warc.gz"
        path = write_warc(folder / "x.warc.gz", pages(snapshot.replace("/", "-").lower()))
        files[name] = path.read_bytes()
        files[f"crawl-data/{snapshot}/warc.paths.gz"] = gzip.compress(f"{name}\n".encode())
    wet = "crawl-data/CC-MAIN-2024-10/segments/1/wet/0.warc.wet.gz"
    text = "This is what is left of a page when all of its markup is gone, and it is enough for us."
    files[wet] = write_wet(folder / "x.wet.gz", [("http://wet.org/0", text)]).read_bytes()
    files["crawl-data/CC-MAIN-2024-10/wet.paths.gz"] = gzip.compress(f"{wet}\n".encode())
    names = ["CC-MAIN-2024-18", "CC-MAIN-2024-10", "CC-MAIN-2023-50", "CC-MAIN-2009-2010"]
    files["collinfo.json"] = json.dumps([{"id": name} for name in names]).encode()
    return files


@pytest.fixture
def crawl(web: Web, tmp_path: Path) -> Web:
    web.files |= {f"/{name}": body for name, body in archive(tmp_path).items()}
    return web


def stage(web: Web, tmp_path: Path, start: str, end: str, **settings: Any) -> CommonCrawlDownloadExtractStage:
    settings = {"html_extraction": "resiliparse", "base_url": web.url, "index_url": web.url, **settings}
    return CommonCrawlDownloadExtractStage(start, end, str(tmp_path / "files"), allow_private=True, **settings)


def urls_of(stage: Any) -> list[str]:
    found = Pipeline("crawl", stages=[stage]).run(INLINE, max_errors=None)
    return [row["url"] for batch in found for row in batch.to_rows()]


def test_one_snapshot(crawl: Web, tmp_path: Path) -> None:
    found = Pipeline("crawl", stages=[stage(crawl, tmp_path, "2024-10", "2024-10")]).run(INLINE)
    rows = [row for batch in found for row in batch.to_rows()]
    assert [row["url"] for row in rows] == ["http://cc-main-2024-10.org/0", "http://cc-main-2024-10.org/1"]
    assert list(rows[0])[:6] == ["url", "warc_id", "source_id", "language", "text", "file_name"]
    assert "The mill stands" in rows[0]["text"]
    assert crawl.times("/collinfo.json") == 0


@pytest.mark.parametrize(
    ("start", "end", "settings", "hosts"),
    [
        ("2024-01", "2024-20", {}, ["cc-main-2024-10", "cc-main-2024-10", "cc-main-2024-18", "cc-main-2024-18"]),
        ("2024-01", "2024-20", {"url_limit": 1, "record_limit": 1}, ["cc-main-2024-10"]),
        ("2024-05", "2024-05", {"crawl_type": "news"}, ["cc-news-2024-05", "cc-news-2024-05"]),
        ("2024-10", "2024-10", {"file_type": "wet"}, ["wet"]),
    ],
)
def test_snapshots(crawl: Web, tmp_path: Path, start: str, end: str, settings: Any, hosts: list[str]) -> None:
    found = urls_of(stage(crawl, tmp_path, start, end, **settings))
    assert [url.removeprefix("http://").partition(".")[0] for url in found] == hosts


def test_news_of_several_months() -> None:
    made = CommonCrawlUrlGenerator("2015-11", "2016-10", "news")
    assert made._news() == ["CC-NEWS/2016/08", "CC-NEWS/2016/09", "CC-NEWS/2016/10"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("2024-60", "2024-61", "main"), "a year and a week"),
        (("2024-13", "2024-14", "news"), "a year and a month"),
        (("2024-18", "2024-10", "main"), "is after"),
        (("2014-01", "2014-02", "news"), "news crawl begins with 2016-08"),
        (("2024-10", "2024-10", "blogs"), "'main' or 'news'"),
        (("2024-05", "2024-05", "news", "wet"), "file_type"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CommonCrawlUrlGenerator(*arguments)


def test_a_snapshot_that_is_not_there_is_told_before_the_run(crawl: Web, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such snapshot"):
        Pipeline("crawl", stages=[stage(crawl, tmp_path, "2024-11", "2024-11")]).plan()
    with pytest.raises(PlanError, match=r"the latest are: 2023-50, 2024-10, 2024-18"):
        Pipeline("crawl", stages=[stage(crawl, tmp_path, "2024-30", "2024-40")]).plan()


@pytest.mark.slow
def test_from_s3(s3: dict[str, Any], tmp_path: Path) -> None:
    import s3fs

    system = s3fs.S3FileSystem(**s3)
    system.mkdir("commoncrawl")
    for name, body in archive(tmp_path).items():
        system.pipe(f"commoncrawl/{name}", body)
    made = CommonCrawlDownloadExtractStage(
        "2024-10", "2024-10", str(tmp_path / "files"), html_extraction="resiliparse", use_aws_to_download=True,
        storage_options=s3,
    )  # fmt: skip
    assert len(urls_of(made)) == 2
    [name] = [name for name in archive(tmp_path) if name.endswith("10-0.warc.gz")]
    places = [
        one for one in read_warc((tmp_path / "files" / name.replace("/", "-")).open("rb")) if one.kind == "response"
    ]
    rows = {"warc_filename": [name], "warc_record_offset": [places[1].offset], "warc_record_length": [9999]}
    reader = CommonCrawlWARCReader(use_s3=True, storage_options=s3)
    found = Pipeline("ranges", stages=[reader]).run(INLINE, initial_tasks=[DocumentBatch(rows)])
    assert [row["binary_content"] for row in found[0].to_rows()] == [english(1)]
    system.rm("commoncrawl", recursive=True)


def test_pages_by_their_places(crawl: Web, tmp_path: Path) -> None:
    name = next(name for name in crawl.files if name.endswith("2024-10-0.warc.gz"))
    (tmp_path / "a.warc.gz").write_bytes(crawl.files[name])
    with (tmp_path / "a.warc.gz").open("rb") as file:
        all_records = list(read_warc(file))
    spans = [(one.offset, after.offset - one.offset) for one, after in pairwise(all_records) if one.kind == "response"]
    crawl.faults[name] = [status(503)]
    index = {
        "id": [0, 1, 2, 3],
        "warc_filename": [name[1:], name[1:], "nowhere.warc.gz", name[1:]],
        "warc_record_offset": [spans[0][0], spans[1][0], 0, 5],
        "warc_record_length": [spans[0][1], spans[1][1], 10, 100],
    }
    settings: dict[str, Any] = {"base_url": crawl.url, "allow_private": True}
    pipeline = Pipeline("ranges", stages=[CommonCrawlWARCReader(**settings)])
    found = pipeline.run(INLINE, initial_tasks=[DocumentBatch(index)], max_errors=None)
    assert [row["binary_content"] for row in found[0].to_rows()] == [english(0), english(1)]
    assert {one.row["warc_filename"]: one.error.partition(":")[0] for one in found.quarantined()} == {
        "nowhere.warc.gz": "DownloadError",
        name[1:]: "ValueError",
    }
    pipeline = Pipeline("ranges", stages=[CommonCrawlWARCReader(drop_failed=False, **settings)])
    rows = pipeline.run(INLINE, initial_tasks=[DocumentBatch(index)])[0].to_rows()
    assert [row["binary_content"] is None for row in rows] == [False, False, True, True]


def test_manners_travel_with_the_stage(crawl: Web, tmp_path: Path) -> None:
    made = stage(crawl, tmp_path, "2024-10", "2024-10", requests_per_second=3.0)
    assert made.downloader().manners == Manners(requests_per_second=3.0, allow_private=True)
