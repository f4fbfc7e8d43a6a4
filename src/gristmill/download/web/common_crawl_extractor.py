"""Turns a record of a WARC or WET file into a document with its text and language.

The language is detected from the extracted text, not from the page with its markup. A page without a document is
dropped with a reason that the summary of the run counts: not_html, status_404, no_text, no_stop_list_xx.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import require
from gristmill.download.source_interfaces import DocumentExtractor
from gristmill.download.web.charset import decode_page
from gristmill.download.web.html_extractors import HTMLExtractorAlgorithm, ParagraphExtractor, make_algorithm
from gristmill.download.web.stop_lists import parse_stop_lists, stop_list
from gristmill.models.fasttext_model import UNKNOWN, FastTextModel

COLUMNS = ["url", "warc_id", "source_id", "language", "text"]

SAMPLE_CHARACTERS = 240
"""Characters of a page from which its language is detected."""

_HTML = ("text/html", "application/xhtml")


class CommonCrawlHTMLExtractor(DocumentExtractor):
    """Extracts the text of pages. `stop_lists` are stop words by language, as in {"en": {"the", ...}}; by default all
    built-in lists. Pages in other languages are dropped and counted."""

    def __init__(
        self,
        algorithm: HTMLExtractorAlgorithm | str | None = None,
        algorithm_kwargs: Mapping[str, Any] | None = None,
        stop_lists: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self.algorithm = make_algorithm(algorithm, algorithm_kwargs)
        self.stop_lists = parse_stop_lists(stop_lists)
        self._model = FastTextModel(None, "detecting the language of pages")

    def setup(self) -> None:
        self.algorithm.setup()
        self._model.load()
        require("resiliparse.extract.html2text", "web", "detecting the language of pages")

    def input_columns(self) -> list[str]:
        return ["url", "warc_id", "source_id", "content"]

    def output_columns(self) -> list[str]:
        return COLUMNS

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        extracted = self._language_and_text(record)
        if extracted is None:
            return None
        language, text = extracted
        return {**{name: record.get(name) for name in COLUMNS[:3]}, "language": language, "text": text}

    def _language_and_text(self, record: Mapping[str, Any]) -> tuple[str, str] | None:
        content = record.get("content") or b""
        content_type = (record.get("content_type") or "").lower()
        if record.get("warc_type") == "conversion":  # of a WET file, already text
            text = _decode(content, content_type).strip()
            return (self.language(_sample(text.split("\n"))), text) if text else self._dropped_because("no_text")
        if record.get("status") not in (None, 200):
            return self._dropped_because(f"status_{record['status']}")
        if content_type and not content_type.startswith(_HTML):
            return self._dropped_because("not_html")
        html = _decode(content, content_type)
        if "\0" in html:  # searching is many times faster than replacing
            html = html.replace("\0", "")
        return self._dropped_because("no_text") if not html or html.isspace() else self._extract_html(html)

    def _extract_html(self, html: str) -> tuple[str, str] | None:
        two_step = self.algorithm if isinstance(self.algorithm, ParagraphExtractor) else None
        paragraphs = two_step.paragraphs(html) if two_step else []
        sample = _sample(two_step.texts(paragraphs) if two_step else _visible_text(html).split("\n"))
        language = self.language(sample)
        stop_words = self.stop_words(language)
        if stop_words is None:
            return self._dropped_because("no_text" if language == UNKNOWN else f"no_stop_list_{language}")
        if two_step:
            chosen = two_step.chosen(paragraphs, stop_words, language)
        else:
            chosen = self.algorithm.extract_text(html, stop_words, language) or []
        text = "\n\n".join(chosen)
        if not text:
            return self._dropped_because("no_text")
        # the sample may have been boilerplate, such as a cookie notice in another language
        return (language if sample in text else self.language(_sample(chosen))), text

    def _dropped_because(self, reason: str) -> tuple[str, str] | None:
        """Count the reason, and return None."""
        self.count(reason)
        return None

    def stop_words(self, language: str) -> frozenset[str] | None:
        return stop_list(language) if self.stop_lists is None else self.stop_lists.get(language)

    def language(self, sample: str) -> str:
        """The language code of a text; "und" for a text without letters."""
        if not any(map(str.isalpha, sample)):
            return UNKNOWN
        if sample.isupper():
            sample = sample.lower()
        [(language, _)] = self._model.best(make_array([" ".join(sample.split())], pa.string()))
        return language


def _sample(paragraphs: Sequence[str]) -> str:
    """The beginning of the longest paragraph, or of all together if none is long."""
    longest = max(paragraphs, key=len, default="")
    return (
        longest[:SAMPLE_CHARACTERS]
        if len(longest) >= SAMPLE_CHARACTERS // 2
        else "\n\n".join(paragraphs)[:SAMPLE_CHARACTERS]
    )


def _decode(content: bytes | str, content_type: str) -> str:
    return content if isinstance(content, str) else decode_page(content, content_type)


def _visible_text(html: str) -> str:
    """All text of a page, including menus but not scripts: good enough to detect the language."""
    from resiliparse.extract.html2text import extract_plain_text

    return str(extract_plain_text(html, links=False))
