"""PDF to items: reading order, pictures as they are, limits, and files that are damaged or made to harm."""

from __future__ import annotations

import io
import json
import re
import zlib
from pathlib import Path

import pypdfium2
import pytest
from PIL import Image

from gristmill.interleaved import InterleavedPdfReader
from gristmill.interleaved.forms.pdf_items import PdfItems
from gristmill.interleaved.item_columns import PLACEHOLDER
from tests.interleaved.interleaved_fixtures import pdf, picture, rows, run

JPEG = picture(1, form="JPEG")
OTHER = picture(2, 60, 40, form="JPEG")


def article() -> bytes:
    first = [
        ("A report of what was seen", 50, 740),
        ("The first paragraph has two lines, and it", 50, 700),
        ("ends with this second one.", 50, 686),
        (JPEG, 50, 560, 120, 80),
        ("Below the picture there is more text.", 50, 520),
    ]
    return pdf(first, [("The second page has a line,", 50, 700), (OTHER, 50, 500, 60, 40)])


def test_text_and_pictures_are_in_reading_order(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(article())
    [row] = rows(InterleavedPdfReader(str(tmp_path)))
    shown = [item["text"] or item["bytes"] for item in row["items"]]
    assert shown == [
        "A report of what was seen",
        "The first paragraph has two lines, and it ends with this second one.",
        JPEG,
        "Below the picture there is more text.",
        "The second page has a line,",
        OTHER,
    ]
    assert row["text"].count(PLACEHOLDER) == 2
    assert [json.loads(item["meta"])["page"] for item in row["items"]] == [1, 1, 1, 1, 2, 2]
    assert (row["doc_id"], row["items"][2]["width"], row["items"][2]["mime"]) == ("a", 48, "image/jpeg")


def test_a_picture_stays_in_its_column() -> None:
    columns = [(f"left {at}", 50, 700 - 14 * at) for at in range(10)]
    columns += [(JPEG, 320, 600, 100, 80)]  # between the paragraphs of the right column
    right = [(f"right {at}", 320, 700 - 14 * at) for at in range(2)] + [("after", 320, 560)]
    [items] = PdfItems().pages(pdf([*columns, *right]))
    kinds = [(item["text"] if item["kind"] == "text" else "picture").partition(" ")[0] for item in items]
    assert kinds == ["left", "right", "picture", "after"]


def test_a_document_for_each_page(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(article())
    found = rows(InterleavedPdfReader(str(tmp_path), per="page", images=False))
    assert [(row["doc_id"], row["metadata"]) for row in found] == [
        ("a-00001", '{"page":1,"pages":2}'),
        ("a-00002", '{"page":2,"pages":2}'),
    ]
    assert PLACEHOLDER not in "".join(row["text"] for row in found)


def encrypted() -> bytes:
    """A file that says that it is encrypted, by a handler that nobody has."""
    whole = article()
    return whole.replace(
        b"/Root 1 0 R", b"/Root 1 0 R /Encrypt << /Filter /Standard /V 1 /R 2 /O <00> /U <00> /P -4 >>"
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a PDF"),
        (b"%PDF-1.4 nothing else", "damaged|encrypted"),
        (article()[:900], ""),
        (encrypted(), "encrypted|damaged"),
        (b"<html>" * 100, "not a PDF"),
        (pdf(*[[("x", 50, 700)]] * 5), "5 pages, more than the limit of 3"),
    ],
)
def test_bad_files_go_to_quarantine_and_the_others_are_read(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "bad.pdf").write_bytes(data)
    (tmp_path / "good.pdf").write_bytes(pdf([("good", 50, 700)]))
    done = run(InterleavedPdfReader(str(tmp_path), max_pages=3), max_errors=5)
    found = {row["doc_id"] for batch in done for row in batch.to_rows()}
    assert "good" in found
    aside = [record.error for record in done.quarantined()]
    if "bad" not in found:
        assert len(aside) == 1
    assert not reason or re.search(reason, aside[0])


def test_pictures_made_to_exhaust_memory_are_left_out(tmp_path: Path) -> None:
    """60,000 x 60,000 pixels that are compressed to a few kilobytes."""
    packed = zlib.compress(bytes(10_000_000), 9)
    with Image.open(io.BytesIO(JPEG)) as image:
        size = image.size
    whole = pdf([("text", 50, 700), (JPEG, 50, 500, 100, 100)])
    rest = "/ColorSpace /DeviceRGB /BitsPerComponent 8"
    head = f"/Width {size[0]} /Height {size[1]} {rest} /Filter /DCTDecode /Length {len(JPEG)}"
    bomb = f"/Width 60000 /Height 60000 {rest} /Filter /FlateDecode /Length {len(packed)}"
    reader = PdfItems()
    [items] = reader.pages(whole.replace(head.encode(), bomb.encode()).replace(JPEG, packed))
    assert [item["kind"] for item in items] == ["text"]
    assert reader.counts["pictures_left_out"] == 1


def test_a_page_of_many_lines_and_pictures_takes_little_time() -> None:
    lines = [(f"line {at}", 50 + at % 7, 780 - (at % 700)) for at in range(3_000)]
    pictures = [(JPEG, 300, 780 - at % 700, 5, 5) for at in range(300)]
    [items] = PdfItems(max_seconds=20).pages(pdf([*lines, *pictures]))
    assert sum(item["kind"] == "image" for item in items) == 300


def test_time_is_limited() -> None:
    from gristmill.download.documents.pdf import PdfError

    with pytest.raises(PdfError, match="max_seconds"):
        list(PdfItems(max_seconds=1e-6).pages(article()))


def test_pictures_that_are_no_jpeg_become_png() -> None:
    document = pypdfium2.PdfDocument.new()
    page = document.new_page(300, 300)
    with Image.open(io.BytesIO(picture(5))) as image:
        drawn = pypdfium2.PdfImage.new(document)
        drawn.set_bitmap(pypdfium2.PdfBitmap.from_pil(image.convert("RGB")))
        wanted = image.convert("RGB").tobytes()
    drawn.set_matrix(pypdfium2.PdfMatrix().scale(100, 100))
    page.insert_obj(drawn)
    page.gen_content()
    out = io.BytesIO()
    document.save(out)
    [[item]] = PdfItems().pages(out.getvalue())
    assert item["mime"] == "image/png"
    with Image.open(io.BytesIO(item["bytes"])) as again:
        assert again.convert("RGB").tobytes() == wanted
