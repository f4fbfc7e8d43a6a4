"""Dumps of Wikipedia from a server on this machine: several languages, damage, faults of the server."""

# ruff: noqa: E501  rows of tables

from __future__ import annotations

import bz2
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import DownloadError
from gristmill.download import WikipediaDownloadExtractStage
from gristmill.download.wiki.wiki_dump import parse_page, read_pages, split_dump
from gristmill.io.fetch.http_client import Manners
from gristmill.io.storage.file_input import BadRecord
from gristmill.text import JsonlWriter
from tests.download.file_server import Shelf, open_shelf, rows_of

NAMES = {
    "de": ("Medium", "Datei", "Kategorie"),
    "en": ("Media", "File", "Category"),
    "gsw": ("Medium", "Bildli", "Grubb"),
}
ARTICLES = {
    "de": [("Hund", "Der '''Hund''' ist ein [[Haustier]].[[Datei:Hund.jpg|mini|Ein Hund]]\n[[Kategorie:Hund]]")],
    "gsw": [("Hund", "Dr '''Hund''' isch e [[Tier]].[[Bildli:Hund.jpg|mini|E Hund]]\n[[Grubb:Hund]]")],
    "en": [(f"Page {n}", f"'''Page {n}''' & [[text]].{{{{cn}}}}\n== Empty ==") for n in range(25)],
}


def page_xml(number: int, title: str, text: str, namespace: int = 0, redirect: bool = False) -> str:
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>\n"
        + ('    <redirect title="x" />\n' if redirect else "")
        + f"    <revision>\n      <id>{number}9</id>\n      <contributor><id>7</id></contributor>\n"
        + f"      <model>wikitext</model>\n      <text bytes='9' xml:space='preserve'>{escape(text)}</text>\n"
        + "    </revision>\n  </page>\n"
    )


def streams(language: str, per_stream: int = 4) -> list[bytes]:
    media, file, category = NAMES[language]
    head = (
        f'<mediawiki xml:lang="{language}">\n  <siteinfo>\n    <namespaces>\n'
        f'      <namespace key="-2" case="first-letter">{media}</namespace>\n      <namespace key="0" case="first-letter" />\n'
        f'      <namespace key="6" case="first-letter">{file}</namespace>\n'
        f'      <namespace key="14" case="first-letter">{category}</namespace>\n    </namespaces>\n  </siteinfo>\n'
    )
    pages = [page_xml(number, title, text) for number, (title, text) in enumerate(ARTICLES[language], 1)]
    pages.insert(1, page_xml(900, "Alias", "#REDIRECT [[Hund]]", redirect=True))
    pages.append(page_xml(901, f"{category}:Dogs", "about dogs", namespace=14))
    groups = ["".join(pages[start : start + per_stream]) for start in range(0, len(pages), per_stream)]
    return [bz2.compress(part.encode()) for part in (head, *groups, "</mediawiki>\n")]


def put_dump(shelf: Shelf, language: str, date: str = "20240601", status: str = "done") -> str:
    """A dump on the shelf; its file's path."""
    wiki = f"{language}wiki"
    name = f"{wiki}-{date}-pages-articles-multistream.xml.bz2"
    body = b"".join(streams(language))
    path = f"/{wiki}/{date}/{name}"
    shelf.files[path] = body
    facts = {"size": len(body), "url": path, "sha1": hashlib.sha1(body).hexdigest(), "md5": "0" * 32}
    index = {"size": 3, "url": path.replace(".xml", "-index.txt"), "sha1": "0" * 40}
    jobs = {
        "articlesmultistreamdump": {"status": status, "files": {name.replace(".xml", "-index.txt"): index, name: facts}}
    }
    shelf.files[f"/{wiki}/{date}/dumpstatus.json"] = json.dumps({"version": "0.8", "jobs": jobs}).encode()
    listing = shelf.files.get(f"/{wiki}/", b"<a href='../'>..</a>")
    shelf.files[f"/{wiki}/"] = listing + f'\n<a href="{date}/">{date}/</a>'.encode()
    return path


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with open_shelf() as opened:
        yield opened


def stage(shelf: Shelf, folder: Path, language: str = "en", **more: object) -> WikipediaDownloadExtractStage:
    quick = Manners(allow_private=True, backoff_s=0.01)
    more = {"wikidumps_index_prefix": shelf.url, "manners": quick, **more}
    return WikipediaDownloadExtractStage(language, str(folder), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("language", "text"), [("de", "Der Hund ist ein Haustier."), ("gsw", "Dr Hund isch e Tier.")])
def test_a_dump_becomes_articles(shelf: Shelf, tmp_path: Path, language: str, text: str) -> None:
    path = put_dump(shelf, language)
    rows, result = rows_of(stage(shelf, tmp_path, language))
    name = path.rsplit("/", 1)[-1]
    assert rows == [
        {
            "text": text,
            "title": "Hund",
            "id": "1",
            "url": f"https://{language}.wikipedia.org/wiki/Hund",
            "language": language,
            "source_id": name,
            "file_name": name,
        }
    ]
    counts = result.summary()["extract"].counts
    assert (counts["redirects"], counts["other_namespaces"]) == (1, 1)


def test_the_newest_complete_dump_is_taken(shelf: Shelf, tmp_path: Path) -> None:
    put_dump(shelf, "en", "20240601")
    put_dump(shelf, "en", "20240620", status="in-progress")
    shelf.files["/enwiki/"] += b'<a href="20240701/">'  # no status yet
    rows, _ = rows_of(stage(shelf, tmp_path, record_limit=3))
    assert [row["title"] for row in rows] == ["Page 0", "Page 1"]
    assert rows[0]["file_name"].startswith("enwiki-20240601")


def test_a_date_that_is_not_complete_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    put_dump(shelf, "en", "20240620", status="in-progress")
    with pytest.raises(DownloadError, match="use another dump_date"):
        rows_of(stage(shelf, tmp_path, dump_date="20240620"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"language": "EN/.."}, "code in a wiki's host name"),
        ({"dump_date": "June"}, "20240601"),
        ({"url_limit": 0}, "url_limit"),
    ],
)
def test_wrong_settings_are_told_at_once(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WikipediaDownloadExtractStage(**settings)  # type: ignore[arg-type]


def test_faults_of_the_server_are_waited_out_and_checksums_verified(shelf: Shelf, tmp_path: Path) -> None:
    path = put_dump(shelf, "de")
    shelf.faults = {"/dewiki/": [503], path: [429, "cut"]}
    rows, _ = rows_of(stage(shelf, tmp_path / "a", "de"))
    assert len(rows) == 1
    shelf.files[path] = shelf.files[path][:-1] + b"!"
    rows, result = rows_of(stage(shelf, tmp_path / "b", "de"))
    assert rows == []
    assert "sha1" in result.quarantined()[0].error


def test_parts_of_a_file_give_what_the_whole_gives(tmp_path: Path) -> None:
    file = tmp_path / "dump.bz2"
    file.write_bytes(b"".join(streams("en")))
    whole = list(read_pages(str(file)))
    assert len(whole) == 27
    for size in (50, 300, 1000):
        parts = [page for start, end in split_dump(str(file), size) for page in read_pages(str(file), start, end)]
        assert parts == whole
    assert [page.position for page in whole if not isinstance(page, BadRecord)] == sorted(
        {page.position for page in whole}
    )
    plain = tmp_path / "dump.xml"
    plain.write_bytes(bz2.decompress(file.read_bytes()))
    assert [page.text for page in read_pages(str(plain))] == [page.text for page in whole]  # type: ignore[union-attr]
    assert split_dump(str(plain), 50) == ()


def test_damage_costs_its_stream_and_is_told(tmp_path: Path) -> None:
    good = streams("en")
    file = tmp_path / "dump.bz2"
    broken = bytearray(good[3])
    broken[40] ^= 255
    file.write_bytes(b"".join([*good[:3], bytes(broken), *good[4:6]]) + good[6][:30])
    pages = list(read_pages(str(file)))
    bad = [page for page in pages if isinstance(page, BadRecord)]
    assert [record.position for record in bad] == [sum(map(len, good[:3])), sum(map(len, good[:6]))]
    assert "truncated" in bad[1].reason
    assert len(pages) - len(bad) == 4 * 4


def test_a_page_that_is_no_xml_costs_itself(tmp_path: Path) -> None:
    bomb = '<page><!DOCTYPE x [<!ENTITY a "aaaa">]><title>&a;</title></page>'
    text = page_xml(1, "a", "x") + bomb + "<page><title>b</page>" + page_xml(2, "c", "y")
    file = tmp_path / "dump.xml"
    file.write_text(f"<mediawiki>{text}</mediawiki>")
    pages = list(read_pages(str(file)))
    assert [isinstance(page, BadRecord) for page in pages] == [False, True, True, False]
    with pytest.raises(ValueError, match="document type"):
        parse_page(b'<!DOCTYPE page [<!ENTITY a "aaaa">]><page><title>&a;</title></page>', 0)


@pytest.mark.slow
def test_a_file_is_read_by_several_workers(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.download.wiki.wikipedia.PART", 400)
    put_dump(shelf, "en")
    outputs = []
    for workers in (0, 2):
        out = tmp_path / f"out{workers}"
        Pipeline("wiki", stages=[stage(shelf, tmp_path / "in"), JsonlWriter(str(out))]).run(LocalExecutor(workers))
        outputs.append([file.read_bytes() for file in sorted(out.glob("*.jsonl"))])
    assert outputs[0] == outputs[1]
    assert outputs[0][0].count(b"\n") == 25


def test_pages_that_go_on_in_the_next_stream_are_whole_and_come_once(tmp_path: Path) -> None:
    raw = b"".join(bz2.decompress(one) for one in streams("en"))
    whole = tmp_path / "whole.xml"
    whole.write_bytes(raw)
    titles = [page.title for page in read_pages(str(whole)) if not isinstance(page, BadRecord)]
    path = tmp_path / "a.xml.bz2"
    for size in (900, 1017, 1100):
        pieces = [bz2.compress(raw[start : start + size]) for start in range(0, len(raw), size)]
        path.write_bytes(b"".join(pieces))
        half = len(b"".join(pieces[: len(pieces) // 2]))
        found = [*read_pages(str(path), 0, half), *read_pages(str(path), half)]
        assert [page.title for page in found if not isinstance(page, BadRecord)] == titles
        assert not any(isinstance(page, BadRecord) for page in found)


def test_a_page_that_breaks_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(page_xml(1, "a", "x") + page_xml(2, "b", "y")[:-40])
    [page, bad] = read_pages(str(path))
    assert page.title == "a"  # type: ignore[union-attr]
    assert isinstance(bad, BadRecord)
    assert "not valid XML" in bad.reason
