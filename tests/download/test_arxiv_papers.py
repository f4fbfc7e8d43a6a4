"""arXiv: archives of papers from a mirror on this machine and from a bucket, whole and damaged."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill.download import ArxivDownloadExtractStage
from gristmill.download.arxiv import paper_archive
from gristmill.download.arxiv.arxiv_papers import paper_id
from gristmill.io.fetch.http_client import Manners
from tests.download.file_server import Shelf, open_shelf, rows_of

ONE = b"\\documentclass{article}\\newcommand{\\by}[1]{by #1}\\begin{document}A paper \\by{hand}.\\end{document}"
TWO = {
    "main.tex": b"\\documentclass{a}\\begin{document}Whole: \\input{part} here.\\end{document}",
    "part.tex": b"a part",
    "fig.eps": b"%!PS",
}


def tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def archive() -> bytes:
    return tar(
        {
            "0001/hep-th0001001.gz": gzip.compress(ONE),
            "0001/math0001002.pdf": b"%PDF-1.4",
            "2401/2401.00003.gz": gzip.compress(ONE)[:-20] + b"damaged",
            "2401/2401.00004.gz": gzip.compress(tar(TWO)),
        }
    )


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with open_shelf() as opened:
        yield opened


def mirror(shelf: Shelf, body: bytes, checksum: str | None = None) -> str:
    shelf.files["/src/arXiv_src_0001_001.tar"] = body
    entry = (
        f"<filename>src/arXiv_src_0001_001.tar</filename><md5sum>{checksum or hashlib.md5(body).hexdigest()}</md5sum>"
    )
    shelf.files["/src/arXiv_src_manifest.xml"] = f"<arXivSRC><file>{entry}</file></arXivSRC>".encode()
    return f"{shelf.url}/src"


def papers(folder: Path, base: str, **more: Any) -> tuple[list[dict[str, Any]], Any]:
    more = {"manners": Manners(allow_private=True, backoff_s=0.01), **more}
    return rows_of(ArxivDownloadExtractStage(str(folder), base=base, **more))


def test_an_archive_becomes_papers(shelf: Shelf, tmp_path: Path) -> None:
    base = mirror(shelf, archive())
    shelf.faults = {"/src/arXiv_src_0001_001.tar": [503, "cut"]}
    rows, result = papers(tmp_path, base)
    name = "arXiv_src_0001_001.tar"
    assert rows == [
        {"text": "A paper by hand.", "id": "hep-th/0001001", "source_id": name, "file_name": name},
        {"text": "Whole: a part here.", "id": "2401.00004", "source_id": name, "file_name": name},
    ]
    assert [("2401.00003" in record.error, record.file) for record in result.quarantined()] == [(True, name)]
    assert result.summary()["extract"].counts["pdf_only"] == 1


def test_half_an_archive_gives_what_it_holds_and_says_so(shelf: Shelf, tmp_path: Path) -> None:
    whole = archive()
    for length in (2048, 2048 + 300, 2048 + 600):
        rows, result = papers(tmp_path / str(length), mirror(shelf, whole[:length]))
        assert rows[0]["id"] == "hep-th/0001001"
        assert any("truncated" in record.error or "cannot be read" in record.error for record in result.quarantined())


def test_a_wrong_checksum_sets_the_archive_aside(shelf: Shelf, tmp_path: Path) -> None:
    rows, result = papers(tmp_path, mirror(shelf, archive(), "0" * 32))
    assert rows == []
    assert "md5" in result.quarantined()[0].error


def test_without_a_manifest_the_listing_is_taken(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files["/src/a.tar"] = tar({"2401/2401.00001.gz": gzip.compress(ONE)})
    shelf.files["/src/"] = b'<a href="a.tar">a</a> <a href="b.txt">b</a>'
    rows, _ = papers(tmp_path, f"{shelf.url}/src", math="drop")
    assert [row["id"] for row in rows] == ["2401.00001"]


def test_a_bomb_is_told(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_archive, "MAX_UNPACKED_BYTES", 100_000)
    bomb = gzip.compress(tar({"a.tex": ONE, "b.eps": b"\0" * 200_000}))
    rows, result = papers(
        tmp_path, mirror(shelf, tar({"2401/2401.00001.gz": bomb, "2401/2401.00002.gz": gzip.compress(ONE)}))
    )
    assert [row["id"] for row in rows] == ["2401.00002"]
    assert "100,000 bytes when unpacked" in result.quarantined()[0].error


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("0001/hep-th0001001.gz", "hep-th/0001001"),
        ("math.AG0001001.gz", "math.AG/0001001"),
        ("2401.00001.pdf", "2401.00001"),
    ],
)
def test_ids_are_those_of_the_site(name: str, known: str) -> None:
    assert paper_id(name) == known


@pytest.mark.slow
def test_archives_come_from_a_bucket_whose_readers_pay(s3: dict[str, Any], tmp_path: Path) -> None:
    import s3fs

    system = s3fs.S3FileSystem(**s3)
    system.mkdir("arxiv")
    body = archive()
    system.pipe("arxiv/src/arXiv_src_0001_001.tar", body)
    entry = (
        f"<file><filename>src/arXiv_src_0001_001.tar</filename><md5sum>{hashlib.md5(body).hexdigest()}</md5sum></file>"
    )
    system.pipe("arxiv/src/arXiv_src_manifest.xml", entry.encode())
    (tmp_path / "arXiv_src_0001_001.tar.part").write_bytes(body[:1000])  # it goes on where it stopped
    rows, _ = papers(tmp_path, "s3://arxiv/src", storage_options=s3)
    assert len(rows) == 2
