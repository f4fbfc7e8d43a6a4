"""Pages: from a record of a WARC or WET file to a document, with its language.

The language is that of the text, not of the page with its markup. A page that gives no document is dropped with a
reason, and the summary of the run counts them: not_html, status_404, no_text, no_stop_list_xx.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import require
from gristmill.download.interfaces import DocumentExtractor
from gristmill.download.web.charset import decode_page
from gristmill.download.web.html_extractors import HTMLExtractorAlgorithm, ParagraphExtractor, make_algorithm
from gristmill.download.web.stop_lists import parse_stop_lists, stop_list
from gristmill.models.fasttext_model import UNKNOWN, FastTextModel

COLUMNS = ["url", "warc_id", "source_id", "language", "text"]

SAMPLE_CHARACTERS = 240
"""Characters that the language is told by."""

_HTML = ("text/html", "application/xhtml")


class CommonCrawlHTMLExtractor(DocumentExtractor):
    """The text of pages. `stop_lists` are words by language, as in {"en": {"the", ...}}; by default those that there
    are, and pages of other languages are dropped and counted."""

    def __init__(
        self,
        algorithm: HTMLExtractorAlgorithm | str | None = None,
        algorithm_kwargs: Mapping[str, Any] | None = None,
        stop_lists: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self.algorithm = make_algorithm(algorithm, algorithm_kwargs)
        self.stop_lists = parse_stop_lists(stop_lists)
        self._model = FastTextModel(None, "telling the language of pages")

    def setup(self) -> None:
        self.algorithm.setup()
        self._model.load()
        require("resiliparse.extract.html2text", "web", "telling the language of pages")

    def input_columns(self) -> list[str]:
        return ["url", "warc_id", "source_id", "content"]

    def output_columns(self) -> list[str]:
        return COLUMNS

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        found = self._text_of(record)
        if found is None:
            return None
        language, text = found
        known = {name: record.get(name) for name in COLUMNS[:3]}
        return {**known, "language": language, "text": text}

    def _text_of(self, record: Mapping[str, Any]) -> tuple[str, str] | None:
        content = record.get("content") or b""
        kind = (record.get("content_type") or "").lower()
        if record.get("warc_type") == "conversion":  # of a WET file: it is text already
            text = _as_text(content, kind).strip()
            return (self.language(_sample(text.split("\n"))), text) if text else self._dropped_because("no_text")
        if record.get("status") not in (None, 200):
            return self._dropped_because(f"status_{record['status']}")
        if kind and not kind.startswith(_HTML):
            return self._dropped_because("not_html")
        html = _as_text(content, kind)
        if "\0" in html:  # to look for it is many times as fast as to replace it
            html = html.replace("\0", "")
        return self._dropped_because("no_text") if not html or html.isspace() else self._extracted(html)

    def _extracted(self, html: str) -> tuple[str, str] | None:
        steps = self.algorithm if isinstance(self.algorithm, ParagraphExtractor) else None
        parts = steps.paragraphs(html) if steps else []
        sample = _sample(steps.texts(parts) if steps else _visible_text(html).split("\n"))
        language = self.language(sample)
        words = self.stop_words(language)
        if words is None:
            return self._dropped_because("no_text" if language == UNKNOWN else f"no_stop_list_{language}")
        if steps:
            chosen = steps.chosen(parts, words, language)
        else:
            chosen = self.algorithm.extract_text(html, words, language) or []
        text = "\n\n".join(chosen)
        if not text:
            return self._dropped_because("no_text")
        return (language if sample in text else self.language(_sample(chosen))), text

    def _dropped_because(self, reason: str) -> tuple[str, str] | None:
        """Nothing, for this reason."""
        self.count(reason)
        return None

    def stop_words(self, language: str) -> frozenset[str] | None:
        return stop_list(language) if self.stop_lists is None else self.stop_lists.get(language)

    def language(self, sample: str) -> str:
        """The code of the language of a text; "und" for one without letters."""
        if not any(map(str.isalpha, sample)):
            return UNKNOWN
        if sample.isupper():
            sample = sample.lower()
        [(language, _)] = self._model.best(make_array([" ".join(sample.split())], pa.string()))
        return language


def _sample(paragraphs: Sequence[str]) -> str:
    """What the language is told by: the beginning of the longest paragraph, or of all if none is long."""
    longest = max(paragraphs, key=len, default="")
    return (
        longest[:SAMPLE_CHARACTERS]
        if len(longest) >= SAMPLE_CHARACTERS // 2
        else "\n\n".join(paragraphs)[:SAMPLE_CHARACTERS]
    )


def _as_text(content: bytes | str, content_type: str) -> str:
    return content if isinstance(content, str) else decode_page(content, content_type)


def _visible_text(html: str) -> str:
    """All text of a page, with menus and without scripts: enough to tell its language by."""
    from resiliparse.extract.html2text import extract_plain_text

    return str(extract_plain_text(html, links=False))
