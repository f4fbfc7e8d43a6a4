"""PDF, EPUB and DOCX, made here, whole and damaged; and lists of addresses of all of them."""

# ruff: noqa: E501  rows of tables

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.download import DocxExtractor, EpubExtractor, PdfExtractor, UrlListDownloadExtractStage
from gristmill.download.documents.docx_epub import ZipDocumentError
from gristmill.download.documents.pdf import PdfError, clean_page_text
from gristmill.download.web.url_list import content_kind
from gristmill.io.fetch.http_client import Manners
from tests.download.file_server import Shelf, open_shelf, rows_of

LONG = "This is a line of a paragraph that goes on in the line that fol-"


def pdf(*pages: list[str]) -> bytes:
    """A PDF with lines of text on its pages, written by hand."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, lines in enumerate(pages):
        shown = " ".join(f"({line}) Tj 0 -14 Td" for line in lines)
        content = f"BT /F1 12 Tf 50 700 Td {shown} ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    )
    return out + f"{end}startxref\n{len(out)}\n%%EOF\n".encode()


def zipped(files: dict[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data, zipfile.ZIP_STORED if name == "mimetype" else None)
    return out.getvalue()


def epub(chapter: str = "<p>One &amp; two.</p>") -> bytes:
    page = f"<html><head><title>x</title><style>p {{}}</style></head><body><h1>Title</h1>{chapter}</body></html>"
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
            "OEBPS/book.opf": '<package><metadata><title>A Book</title></metadata><manifest><item id="b" href="b.xhtml"/>'
            '<item id="a" href="text/a%20b.xhtml"/></manifest><spine><itemref idref="a"/><itemref idref="b"/></spine></package>',
            "OEBPS/text/a b.xhtml": page,
            "OEBPS/b.xhtml": "<html><body><p>Last\n  chapter.</p></body></html>",
        }
    )


def docx(
    body: str = "<w:p><w:r><w:t>Hello</w:t></w:r><w:r><w:t xml:space='preserve'> world</w:t></w:r></w:p>",
) -> bytes:
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    row = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    gone = "<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:r><w:t>kept</w:t></w:r></w:p>"
    return zipped({"word/document.xml": f"<w:document {space}><w:body>{body}{row}{gone}</w:body></w:document>"})


def test_a_pdf_becomes_text_with_its_words_whole() -> None:
    data = pdf([LONG, "lows it here.", "", "Short."], ["Page two."])
    row = PdfExtractor().extract({"content": data, "id": "x"})
    assert row is not None
    assert (row["pages"], row["id"]) == (2, "x")
    assert "in the line that follows it here." in row["text"]
    assert row["text"].endswith("\n\nPage two.")
    paged = PdfExtractor(per_page=True).extract({"content": data})
    assert paged is not None
    assert paged["text"].count("\f") == 1


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("a co-\r\noperation", "a cooperation"), ("Jean-\nPaul", "Jean-\nPaul"), ("oﬃce ﬂow", "office flow"),
        ("a\x00b", "ab"), ("\n\n\n\na\n\n\n\nb", "a\n\nb"), ("", ""),
        (f"{'x' * 60} one\ntwo\n{'y' * 60} end.\n1. item", f"{'x' * 60} one two\n{'y' * 60} end.\n1. item"),
    ],
)  # fmt: skip
def test_lines_of_a_page(raw: str, text: str) -> None:
    assert clean_page_text(raw) == text


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        (b"hello", {}, "not a PDF"), (b"%PDF-1.4 nothing", {}, "damaged"), (pdf(["a"], ["b"]), {"max_pages": 1}, "max_pages"),
        (pdf(["a"]), {"max_bytes": 10}, "max_bytes"),
    ],
)  # fmt: skip
def test_a_pdf_that_cannot_be_used_says_why(data: bytes, settings: dict[str, int], message: str) -> None:
    with pytest.raises(PdfError, match=message):
        PdfExtractor(**settings).extract({"content": data})  # type: ignore[arg-type]


def test_books_and_documents() -> None:
    assert EpubExtractor().extract({"content": epub()}) == {
        "text": "Title\n\nOne & two.\n\nLast chapter.",
        "title": "A Book",
    }
    assert DocxExtractor().extract({"content": docx(), "n": 1}) == {"text": "Hello world\n\na\tb\t\nkept", "n": 1}


def test_a_book_of_broken_markup_takes_no_long_time() -> None:
    for piece in ("<!-- ", "<a b='", "<a b='>' ", "<? ", "<![if "):
        text = EpubExtractor().extract({"content": epub("words " + piece * 100_000)})["text"]
        assert text.startswith("Title\n\nwords")


def absurd_version() -> bytes:
    """An EPUB that says that version 25.5 of zip is needed."""
    head, mark, rest = epub().partition(b"PK\x01\x02")
    return head + mark + rest[:2] + b"\xff" + rest[3:]


ENTITY = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">]>'


@pytest.mark.parametrize(
    ("extractor", "data", "message"),
    [
        (EpubExtractor(), b"PK\x03\x04nothing", "damaged"), (EpubExtractor(), absurd_version(), "damaged"), (EpubExtractor(), docx(), "container.xml"),
        (EpubExtractor(max_bytes=100), epub(), "zip bomb"), (DocxExtractor(max_bytes=1000), docx("x" * 10_000), "zip bomb"),
        (DocxExtractor(), zipped({"word/document.xml": f"{ENTITY}<x>&a;</x>"}), "document type"),
        (DocxExtractor(), zipped({"word/document.xml": f"{ENTITY}<x>&a;</x>".encode("utf-16")}), "document type"),
        (DocxExtractor(), zipped({"word/document.xml": f"{ENTITY}<x>&a;</x>".encode("utf-16-le")}), "document type"),
        (DocxExtractor(), zipped({"word/document.xml": f"{ENTITY}<x>&a;</x>".encode("utf-16-be")}), "document type"),
        (DocxExtractor(), zipped({"word/document.xml": f" {ENTITY}<x>&a;</x>".encode("utf-16-le")}), "null characters"),
        (DocxExtractor(), zipped({"word/document.xml": "<x>"}), "not valid XML"),
        (EpubExtractor(), zipped({"META-INF/rights.xml": "", "META-INF/container.xml": ""}), "rights"),
    ],
)  # fmt: skip
def test_documents_that_cannot_be_used_say_why(
    extractor: EpubExtractor | DocxExtractor, data: bytes, message: str
) -> None:
    with pytest.raises(ZipDocumentError, match=message):
        extractor.extract({"content": data})


@pytest.mark.parametrize(
    ("content", "message", "kind"),
    [
        (pdf(["a"]), "text/html", "pdf"), (epub(), "", "epub"), (docx(), "", "docx"), (b"  <!DOCTYPE HTML><p>", "", "html"),
        (b"<p>x", "text/html; charset=x", "html"), (b"words", "text/plain", "text"), (b"words", "", "text"), (b"\0\1", "", "unknown"),
        (b"\x89PNG", "image/png", "png"),
    ],
)  # fmt: skip
def test_kinds_of_content(content: bytes, message: str, kind: str) -> None:
    assert content_kind(content, message) == kind


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with open_shelf() as opened:
        yield opened


def test_a_list_of_addresses_becomes_documents(shelf: Shelf, tmp_path: Path) -> None:
    words = (
        "The mill stands where the river bends, and it has been there for longer than anyone in the village can say. "
    )
    shelf.files |= {
        "/a.pdf": pdf(["Words of a page."]), "/b": epub(), "/c.docx": docx(), "/d.txt": "Größe".encode(), "/e.png": b"\x89PNG\0",
        "/f": f"<html><body><p>{words * 4}</p></body></html>".encode(), "/broken.pdf": b"%PDF-1.4 nothing",
    }  # fmt: skip
    shelf.types |= {"/d.txt": "text/plain; charset=utf-8", "/e.png": "image/png", "/f": "text/html; charset=utf-8"}
    names = ["a.pdf", "b", "c.docx", "d.txt", "e.png", "f", "gone", "broken.pdf"]
    listed = tmp_path / "urls.txt"
    listed.write_text("# ours\n" + "\n".join(f"{shelf.url}/{name}" for name in names) + "\nnot an address\n")
    manners = Manners(allow_private=True, backoff_s=0.01, max_retries=1)
    rows, result = rows_of(UrlListDownloadExtractStage(str(listed), manners=manners))
    assert [(row["kind"], row["url"].rsplit("/", 1)[-1]) for row in rows] == [
        ("pdf", "a.pdf"), ("epub", "b"), ("docx", "c.docx"), ("text", "d.txt"), ("html", "f"),
    ]  # fmt: skip
    assert rows[3]["text"] == "Größe"
    assert rows[4]["text"].startswith("The mill stands")
    errors = " ".join(record.error for record in result.quarantined())
    assert len(result.quarantined()) == 3
    assert "404" in errors
    assert "not an address" in errors
    assert "PdfError: damaged" in errors
    assert result.summary()["extract"].counts["no_text_of_png"] == 1


def test_a_tree_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.download.documents.docx_epub.MAX_TAGS", 1000)
    with pytest.raises(ZipDocumentError, match="tags, more than the limit"):
        DocxExtractor().extract({"content": docx("<w:p/>" * 2000)})
