"""Extract the text of pages and notebooks with their formulas, on a CPU and in the process.

    MathContentExtractor   bytes of a page, a notebook or a text to text
    MathExtractStage       runs an extractor on the rows of a batch, as after CommonCrawlWARCReader

Formulas of HTML become LaTeX (`html_math.py`); the text is then that of the whole page, or with `main_content` that of
its content, by Resiliparse.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from gristmill.core.arrow.table_conversion import POSITION, rows_to_table, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import BadRecordError, require
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.download.source_interfaces import DocumentExtractor
from gristmill.download.web.charset import decode_page
from gristmill.download.web.page_limits import MAX_DEPTH, check_depth, check_max_depth
from gristmill.math.html_math import with_latex
from gristmill.samples.batch import DocumentBatch

HTML, NOTEBOOK, TEXT = "html", "notebook", "text"
_HTML_TYPES = frozenset(
    {"text/html", "application/xhtml+xml", "text/xml", "application/xml", "text/x-server-parsed-html"}
)
_TEXT_TYPES = frozenset(
    {"text/plain", "text/markdown", "text/x-markdown", "text/csv", "application/json", "text/x-tex"}
)
_HTML_START = re.compile(
    r"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,2000}?-->\s*)*<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
_BINARY = (b"%PDF-", b"PK\x03\x04", b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"\x1f\x8b", b"\x7fELF")


class MathContentExtractor(DocumentExtractor):
    """Extracts the text of pages and notebooks in `binary_column`, with formulas as LaTeX.

    The kind is found by the content, the `mime_type_column` and the address. `main_content=True` leaves out menus and
    the like. Bytes that are no text are dropped and counted (`not_text`). `lynx_timeout_sec` changes nothing: no
    program is started.
    """

    def __init__(
        self,
        binary_column: str = "binary_content",
        url_column: str = "url",
        mime_type_column: str = "mime_type",
        lynx_timeout_sec: int = 20,
        main_content: bool = False,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self.binary_column, self.url_column, self.mime_type_column = binary_column, url_column, mime_type_column
        self.lynx_timeout_sec, self.main_content = lynx_timeout_sec, main_content
        self.max_depth = check_max_depth("MathContentExtractor", max_depth)

    def setup(self) -> None:
        require("resiliparse.extract.html2text", "web", "MathContentExtractor")

    def input_columns(self) -> list[str]:
        return [self.binary_column]

    def output_columns(self) -> list[str]:
        return ["text", self.url_column, "type", "magic_mime_type"]

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        data, url = record.get(self.binary_column), record.get(self.url_column)
        if not isinstance(data, bytes | bytearray) or not data:
            self.count("empty")
            return None
        if data.startswith(_BINARY) or b"\0" in data[:1024]:
            self.count("not_text")
            return None
        content = decode_page(bytes(data))
        kind, magic = document_type(content, record.get(self.mime_type_column), url)
        text = content if kind == TEXT else notebook_text(content) if kind == NOTEBOOK else self.html_text(content)
        return {"text": text, self.url_column: url, "type": kind, "magic_mime_type": magic}

    def html_text(self, html: str) -> str:
        """The text of a page, with formulas as LaTeX."""
        from resiliparse.extract.html2text import extract_plain_text

        check_depth(html, self.max_depth)
        text = extract_plain_text(with_latex(html), main_content=self.main_content, preserve_formatting=True)
        return "\n".join(line.rstrip() for line in text.split("\n")).strip()


def document_type(content: str, mime_type: str | None, url: str | None) -> tuple[str, str]:
    """What a text is, and the type that its beginning shows."""
    if content.lstrip()[:1] == "{" and _notebook(content) is not None:
        return NOTEBOOK, "application/json"
    if _HTML_START.match(content):
        return HTML, "text/html"
    magic = "application/json" if content.lstrip()[:1] in "{[" else "text/plain"
    if mime_type in _TEXT_TYPES or (mime_type is None and (url or "").endswith((".txt", ".md", ".tex"))):
        return TEXT, magic
    tags = mime_type in _HTML_TYPES or re.search(
        r"<(?:p|div|br|table|span|math|h\d)\b", content[:20_000], re.IGNORECASE
    )
    return (HTML if tags else TEXT), ("text/html" if tags else magic)


def _notebook(content: str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    whole = isinstance(found, dict) and "nbformat" in found and isinstance(found.get("cells"), list)
    return found if whole else None


def notebook_text(content: str) -> str:
    """The cells of a notebook and the text of their outputs, with an empty line between them."""
    parts: list[str] = []
    for cell in (_notebook(content) or {}).get("cells", ()):
        if not isinstance(cell, dict) or cell.get("cell_type") not in ("code", "markdown", "raw"):
            continue
        parts.append(_joined(cell.get("source")))
        outputs = cell.get("outputs") if cell["cell_type"] == "code" else None
        for output in outputs if isinstance(outputs, list) else ():
            if isinstance(output, dict):
                data = output.get("data")
                parts.append(
                    _joined(output.get("text") or (data.get("text/plain") if isinstance(data, dict) else None))
                )
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())


def _joined(source: Any) -> str:
    return source if isinstance(source, str) else "".join(map(str, source)) if isinstance(source, list) else ""


class MathExtractStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Runs an extractor on each row. Rows for which it returns nothing are dropped and counted; one on which it fails
    goes to quarantine. `add_filename_column` keeps the column with the name of the file: "file_name", or the given one.
    """

    takes_empty = True

    def __init__(self, extractor: DocumentExtractor, add_filename_column: bool | str = False) -> None:
        super().__init__()
        self.extractor, self.add_filename_column = extractor, add_filename_column
        if not self._own_name:
            self.name = f"extract_{type(extractor).__name__.lower()}"

    @property
    def _file_column(self) -> str | None:
        return "file_name" if self.add_filename_column is True else self.add_filename_column or None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], self.extractor.input_columns()

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [*self.extractor.output_columns(), *([self._file_column] if self._file_column else [])]

    def setup(self, worker_metadata: Any = None) -> None:
        self.extractor.setup()

    def process(self, task: DocumentBatch) -> DocumentBatch:
        kept = [POSITION, *([self._file_column] if self._file_column else [])]
        names = [*self.extractor.output_columns(), *(name for name in kept if name in task.get_columns())]
        rows = []
        for row in table_to_rows(task.data):
            try:
                found = self.extractor.extract(row)
            except (ValueError, BadRecordError) as error:
                position = row.pop(POSITION, None)
                self.set_aside(error, row=row, file=task.metadata.get(SOURCE_FILE), position=position)
                continue
            if found is not None:
                rows.append({**found, **{name: row[name] for name in kept if name in row}})
        for name, number in self.extractor.take_counts().items():
            self.count(name, number)
        ordered = [name for name in names if name != POSITION] + [name for name in names if name == POSITION]
        table = rows_to_table(rows, ordered)
        return DocumentBatch(table, dataset_name=task.dataset_name, metadata=dict(task.metadata))
