"""Downloads as scripts for NeMo Curator write them: its names and parameters, and what its downloaders return."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import PlanError
from gristmill.core.task import FileGroupTask
from gristmill.download import (
    CommonCrawlWARCDownloader,
    CommonCrawlWarcIterator,
    DocumentDownloader,
    DocumentDownloadExtractStage,
    DocumentDownloadStage,
    DocumentExtractor,
    DocumentIterateExtractStage,
    DocumentIterator,
    HttpDownloader,
    MainCommonCrawlUrlGenerator,
    NewsCommonCrawlUrlGenerator,
    ObjectDownloader,
    URLGenerationStage,
    URLGenerator,
    WikipediaDownloader,
)
from gristmill.io.fetch.http_client import Manners
from gristmill.observe import PlainProgress
from tests.download.faulty_server import Web

INLINE = LocalExecutor(0)
QUICK = Manners(allow_private=True, backoff_s=0.01, max_retries=0)


class OneFile(URLGenerator):
    def generate_urls(self) -> list[str]:
        return ["book://1"]


class Copier(DocumentDownloader):
    """As the documentation of NeMo Curator writes one."""

    def _get_output_filename(self, url: str) -> str:
        return url.rpartition("/")[2]

    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
        if "bad" in url:
            return False, "the server is away"
        Path(path).write_text("first line\nsecond line\n")
        return True, None


class Lines(DocumentIterator):
    def iterate(self, file_path: str) -> Iterator[dict[str, Any]]:
        for line in Path(file_path).read_text().splitlines():
            yield {"line": line}

    def output_columns(self) -> list[str]:
        return ["line"]


class Shout(DocumentExtractor):
    def extract(self, record: dict[str, str]) -> dict[str, Any] | None:
        return {"text": record["line"].upper()} if "first" in record["line"] else None


def test_a_download_that_fails_returns_none_and_says_why(tmp_path: Path, web: Web) -> None:
    downloader = Copier(str(tmp_path))
    assert downloader.download("book://bad") is None
    assert "the server is away" in str(downloader.failure)
    assert downloader.download("book://good") == str(tmp_path / "good")
    assert downloader.failure is None
    over_http = HttpDownloader(str(tmp_path), manners=QUICK)
    assert over_http.download(f"{web.url}/gone.txt") is None
    assert "404" in str(over_http.failure)


@pytest.mark.parametrize("kind", ["own", "http", "object", "wikipedia"])
def test_an_empty_file_is_downloaded_again(tmp_path: Path, web: Web, kind: str) -> None:
    web.files["/a.txt"] = b"content"
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a.txt").write_bytes(b"content")
    downloaders: dict[str, tuple[DocumentDownloader, str]] = {
        "own": (Copier(str(tmp_path / "own")), "book://a.txt"),
        "http": (HttpDownloader(str(tmp_path / "http"), manners=QUICK), f"{web.url}/a.txt"),
        "object": (ObjectDownloader(str(tmp_path / "object")), f"file://{tmp_path}/store/a.txt"),
        "wikipedia": (WikipediaDownloader(str(tmp_path / "wikipedia"), manners=QUICK), f"{web.url}/a.txt"),
    }
    downloader, url = downloaders[kind]
    path = Path(downloader.path_of(url))
    path.parent.mkdir(parents=True)
    path.touch()
    assert downloader.download(url) == str(path)
    assert path.stat().st_size
    path.write_bytes(b"mine")
    downloader.download(url)
    assert path.read_bytes() == b"mine"


def test_the_stages_of_a_source_one_by_one(tmp_path: Path) -> None:
    stages = [
        URLGenerationStage(url_generator=OneFile(), limit=1),
        DocumentDownloadStage(downloader=Copier(str(tmp_path), verbose=True)),
        DocumentIterateExtractStage(iterator=Lines(), extractor=Shout(), record_limit=5, add_filename_column="file"),
    ]
    [batch] = Pipeline("book", stages=stages).run(INLINE)
    assert [(row["text"], row["file"]) for row in batch.to_rows()] == [("FIRST LINE", "1")]


def test_records_of_files_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first\nsecond\n")
    stage = DocumentIterateExtractStage(Lines(), record_limit=1, add_filename_column=False, max_calls_per_worker=3)
    tasks = [FileGroupTask([str(tmp_path / "a.txt")])]
    [batch] = Pipeline("records", stages=[stage]).run(INLINE, initial_tasks=tasks)
    assert [row["line"] for row in batch.to_rows()] == ["first"]


def test_the_lists_of_common_crawl(web: Web) -> None:
    for folder in ("CC-MAIN-2024-10", "CC-NEWS/2024/05", "CC-NEWS/2024/06"):
        names = "".join(f"crawl-data/{folder}/{number}.warc.gz\n" for number in range(3))
        web.files[f"/crawl-data/{folder}/warc.paths.gz"] = gzip.compress(names.encode())
    main = MainCommonCrawlUrlGenerator(
        start_snapshot_str="2024-10", end_snapshot_str="2024-10", data_prefix=web.url, index_prefix=web.url, limit=2
    )
    [listing] = main.generate_path_urls()
    assert listing == f"{web.url}/crawl-data/CC-MAIN-2024-10/warc.paths.gz"
    wanted = [f"{web.url}/crawl-data/CC-MAIN-2024-10/{number}.warc.gz" for number in range(2)]
    assert main.generate_urls() == main.generate_data_urls(listing) == main.generate_data_urls([listing]) == wanted
    news = NewsCommonCrawlUrlGenerator(start_snapshot_str="2024-05", end_snapshot_str="2024-06", data_prefix=web.url)
    assert len(news.generate_urls()) == 6
    with pytest.raises(ValueError, match="is after end_snapshot"):
        NewsCommonCrawlUrlGenerator("2024-06", "2024-05")
    with pytest.raises(PlanError, match="no such snapshot"):
        MainCommonCrawlUrlGenerator("2024-11", "2024-11", data_prefix=web.url).generate_urls()


def test_the_downloader_of_common_crawl(web: Web, tmp_path: Path) -> None:
    web.files["/crawl-data/CC/1.warc.gz"] = b"content"
    downloader = CommonCrawlWARCDownloader(str(tmp_path), use_aws_to_download=False, verbose=True, manners=QUICK)
    path = downloader.download(f"{web.url}/crawl-data/CC/1.warc.gz")
    assert path == str(tmp_path / "crawl-data-CC-1.warc.gz")
    assert Path(path).read_bytes() == b"content"


@pytest.mark.parametrize("content_type", ["", "Content-Type: text/html\r\n", "Content-Type: application/http\r\n"])
def test_the_http_head_of_a_response_is_not_its_content(tmp_path: Path, content_type: str) -> None:
    block = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>page</html>"
    head = (
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Target-URI: http://x.org/\r\n"
        f"{content_type}Content-Length: {len(block)}\r\n\r\n"
    )
    path = tmp_path / "a.warc"
    path.write_bytes(f"{head}{block}\r\n\r\n".encode())
    [record] = CommonCrawlWarcIterator().iterate(str(path))
    assert isinstance(record, dict)
    assert (record["content"], record["status"], record["content_type"]) == (b"<html>page</html>", 200, "text/html")


def test_a_run_that_downloads_shows_its_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its source lists URLs, and no files whose sizes are known."""
    stage = DocumentDownloadExtractStage(OneFile(), Copier(str(tmp_path)), Lines())
    result = Pipeline("shown", stages=[stage]).run(INLINE, observer=PlainProgress(0.0))
    assert [row["line"] for task in result for row in task.to_rows()] == ["first line", "second line"]
    assert "rows" in capsys.readouterr().err
