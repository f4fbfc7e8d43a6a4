"""WARC files made with warcio, of pages that are real enough."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

MILL = (
    "The mill stands where the river bends, and it has been there for longer than anyone in the village can remember. "
    "In the morning the miller opens the gate, and the water falls on the wheel and turns it. "
)
MUEHLE = (
    "Die Mühle steht dort, wo der Fluss eine Biegung macht, und sie ist älter als alles, was die Leute im Dorf kennen. "
    "Am Morgen öffnet der Müller das Wehr, und das Wasser fällt auf das Rad und dreht es. "
)


def page(title: str, paragraphs: Sequence[str], head: str = "") -> str:
    body = "\n".join(f"<p>{text}</p>" for text in paragraphs)
    menu = "".join(f'<li><a href="/{name}">{name}</a></li>' for name in ("home", "news", "about", "contact"))
    return (
        f"<!DOCTYPE html><html><head>{head}<title>{title}</title><script>var secret = 'script text';</script></head>"
        f"<body><nav><ul>{menu}</ul></nav><!-- a comment nobody should read --><main><article><h1>{title}</h1>\n{body}"
        "</article></main><script>document.write('more script')</script><footer>© the miller</footer></body></html>"
    )


def english(number: int, size: int = 3) -> bytes:
    return page(f"Page {number}", [f"{MILL * 2} It is page {number} of the book." for _ in range(size)]).encode()


Page = tuple[str, bytes, str]
"""Address, body, Content-Type."""


def write_warc(path: Path, pages: Sequence[Page], gzip: bool = True, extra: Sequence[tuple[str, str]] = ()) -> Path:
    """A file as crawlers write it: about the file, then request, response and metadata of each page."""
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=gzip)
        writer.write_record(writer.create_warcinfo_record(path.name, {"software": "test"}))
        for url, body, kind in pages:
            asked = StatusAndHeaders("GET / HTTP/1.1", [("Host", "example.org")], is_http_request=True)
            headers = StatusAndHeaders("200 OK", [("Content-Type", kind), *extra], protocol="HTTP/1.1")
            writer.write_record(writer.create_warc_record(url, "request", http_headers=asked))
            writer.write_record(
                writer.create_warc_record(url, "response", payload=io.BytesIO(body), http_headers=headers)
            )
            writer.write_record(writer.create_warc_record(url, "metadata", payload=io.BytesIO(b"fetchTimeMs: 9")))
    return path


def write_wet(path: Path, texts: Sequence[tuple[str, str]]) -> Path:
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for url, text in texts:
            record = writer.create_warc_record(
                url, "conversion", payload=io.BytesIO(text.encode()), warc_content_type="text/plain"
            )
            writer.write_record(record)
    return path


def pages_of(count: int) -> list[Page]:
    return [(f"http://example.org/{number}", english(number), "text/html") for number in range(count)]
