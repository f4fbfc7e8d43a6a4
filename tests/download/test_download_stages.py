"""The framework of sources, with sources of a test's own, on a server of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import PlanError
from gristmill.download import (
    DocumentDownloader,
    DocumentDownloadExtractStage,
    DocumentExtractor,
    DocumentIterator,
    HttpDownloader,
    URLGenerator,
)
from gristmill.io.fetch.http_client import Manners
from gristmill.text import JsonlWriter
from tests.download.faulty_server import Web, cut, status

INLINE = LocalExecutor(0)


class Listed(URLGenerator):
    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def generate_urls(self) -> list[str]:
        return self.urls


class Lines(DocumentIterator):
    def iterate(self, file_path: str) -> Iterator[dict[str, Any]]:
        for line in Path(file_path).read_text().splitlines():
            if line == "broken":
                raise ValueError("a line that is broken")
            yield {"line": line, "raw": line.encode(), "more": {"words": line.split()}}


class Words(DocumentExtractor):
    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        if "drop" in record["line"]:
            self.count("dropped_on_purpose")
            return None
        if "fail" in record["line"]:
            raise KeyError("no such word")
        return {"text": record["line"], "words": len(record["more"]["words"]), "same": record["raw"].decode()}


def source(web: Web, tmp_path: Path, names: list[str], **settings: Any) -> DocumentDownloadExtractStage:
    manners = Manners(allow_private=True, backoff_s=0.01, max_retries=1)
    settings.setdefault("extractor", Words())
    return DocumentDownloadExtractStage(
        Listed([f"{web.url}/{name}" for name in names]),
        HttpDownloader(str(tmp_path / "files"), manners=manners),
        Lines(),
        **settings,
    )


def run(stage: Any, *more: Any, **settings: Any) -> Any:
    return Pipeline("source", stages=[stage, *more]).run(INLINE, **{"max_errors": None, **settings})


def rows_of(result: Any) -> list[dict[str, Any]]:
    return [row for batch in result for row in batch.to_rows()]


def test_documents_come_with_the_name_of_their_file(web: Web, tmp_path: Path) -> None:
    web.files |= {"/a.txt": b"one two\nthree", "/b.txt": b"four"}
    found = run(source(web, tmp_path, ["a.txt", "b.txt"]))
    assert [(row["text"], row["words"], row["same"], row["file_name"]) for row in rows_of(found)] == [
        ("one two", 2, "one two", "a.txt"),
        ("three", 1, "three", "a.txt"),
        ("four", 1, "four", "b.txt"),
    ]


def test_without_an_extractor_records_are_rows(web: Web, tmp_path: Path) -> None:
    web.files["/a.txt"] = b"one two\nthree"
    rows = rows_of(run(source(web, tmp_path, ["a.txt"], extractor=None, add_filename_column="from_file")))
    rows[0].pop(POSITION)
    assert rows[0] == {"line": "one two", "raw": b"one two", "more": {"words": ["one", "two"]}, "from_file": "a.txt"}


def test_limits(web: Web, tmp_path: Path) -> None:
    web.files |= {"/a.txt": b"one\ntwo\nthree", "/b.txt": b"four"}
    found = run(source(web, tmp_path, ["a.txt", "b.txt"], url_limit=1, record_limit=2, add_filename_column=False))
    assert [(row["text"], "file_name" in row) for row in rows_of(found)] == [("one", False), ("two", False)]
    assert web.times("/b.txt") == 0
    with pytest.raises(ValueError, match="record_limit is 0"):
        source(web, tmp_path, ["a.txt"], record_limit=0)


def test_what_cannot_be_fetched_is_in_quarantine(web: Web, tmp_path: Path) -> None:
    web.files |= {"/a.txt": b"one", "/c.txt": b"three"}
    web.faults["/c.txt"] = [status(503), cut(2)]
    found = run(source(web, tmp_path, ["a.txt", "gone.txt", "c.txt"]))
    assert [row["text"] for row in rows_of(found)] == ["one"]
    asides = {one.files[0].rpartition("/")[2]: one for one in found.quarantined()}
    assert set(asides) == {"gone.txt", "c.txt"}
    assert "404" in asides["gone.txt"].error
    assert asides["gone.txt"].stage == "download"


def test_the_rest_of_a_file_is_set_aside_with_its_place(web: Web, tmp_path: Path) -> None:
    web.files["/a.txt"] = b"one\ntwo\nbroken\nfour"
    found = run(source(web, tmp_path, ["a.txt"]))
    assert [row["text"] for row in rows_of(found)] == ["one", "two"]
    [aside] = found.quarantined()
    assert (aside.stage, aside.file, aside.position) == ("iterate", "a.txt", 1)
    assert "a line that is broken (the rest of the file, after 2 records, is lost)" in aside.error


def test_a_record_that_fails_is_set_aside_and_drops_are_counted(web: Web, tmp_path: Path) -> None:
    web.files["/a.txt"] = b"one\nfail\ndrop this\nfour"
    found = run(source(web, tmp_path, ["a.txt"]))
    assert [row["text"] for row in rows_of(found)] == ["one", "four"]
    [aside] = found.quarantined()
    assert (aside.stage, aside.position, aside.row["line"]) == ("extract", 1, "fail")
    [extract] = [line for line in found.summary().stages if line.name == "extract"]
    assert extract.counts["dropped_on_purpose"] == 1


def test_a_second_run_fetches_nothing_and_gives_the_same_bytes(web: Web, tmp_path: Path) -> None:
    names = [f"{number}.txt" for number in range(4)]
    web.files |= {f"/{name}": f"one {name}\ntwo".encode() for name in names}
    web.faults["/2.txt"] = [status(404)]

    def write(place: str, **settings: Any) -> dict[str, bytes]:
        run(source(web, tmp_path, names), JsonlWriter(str(tmp_path / place)), **settings)
        return {one.name: one.read_bytes() for one in (tmp_path / place).glob("*.jsonl")}

    first = write("out", run_dir=str(tmp_path / "run"))
    assert len(first) == 3
    again = write("out", run_dir=str(tmp_path / "run"), replay=True)
    assert len(again) == 4
    assert {name: again[name] for name in first} == first
    assert write("other") == again
    assert [web.times(f"/{name}") for name in names] == [1, 1, 2, 1]
    assert json.loads(min(again.values()).splitlines()[0])["text"].startswith("one")


def test_two_addresses_of_one_file_name_are_refused(web: Web, tmp_path: Path) -> None:
    class Same(DocumentDownloader):
        def _get_output_filename(self, url: str) -> str:
            return "same"

        def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
            Path(path).write_text("x")
            return True, None

    stage = DocumentDownloadExtractStage(Listed(["http://a/x", "http://b/x"]), Same(str(tmp_path)), Lines())
    with pytest.raises(PlanError, match="would both be saved as"):
        Pipeline("source", stages=[stage]).plan()
    with pytest.raises(PlanError, match="returned no URLs"):
        Pipeline("s", stages=[DocumentDownloadExtractStage(Listed([]), Same(str(tmp_path)), Lines())]).plan()


def test_a_downloader_of_ones_own(tmp_path: Path) -> None:
    class Own(DocumentDownloader):
        def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
            if "bad" in url:
                return False, "it is bad"
            Path(path).write_text(f"from {url}")
            return True, None

    stage = DocumentDownloadExtractStage(Listed(["x://h/good", "x://h/bad"]), Own(str(tmp_path)), Lines(), Words())
    found = run(stage)
    assert [row["text"] for row in rows_of(found)] == ["from x://h/good"]
    assert [one.error for one in found.quarantined()] == ["x://h/bad: it is bad"]
    assert [one.name for one in tmp_path.iterdir()] == ["good"]
