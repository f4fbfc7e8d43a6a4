"""Extracts the text of HTML pages, without menus, scripts and comments.

    JusTextExtractor       jusText: classifies paragraphs by stop words, length, links and neighbours
    ResiliparseExtractor   Resiliparse: fast rules on the tree of the page
    TrafilaturaExtractor   trafilatura: rules with several fallbacks, repeated segments removed

The text is that of the library. `ResiliparseExtractor` and `TrafilaturaExtractor` then keep only paragraphs in which
the share of stop words is at least `required_stopword_density`; 0 keeps all. Pages with more than `max_depth` nested
elements go to quarantine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from gristmill.core.errors import did_you_mean, require
from gristmill.download.web import trafilatura_shortcuts
from gristmill.download.web.justext_paragraphs import clean_tree, paragraphs_of, revise_classes
from gristmill.download.web.page_limits import MAX_DEPTH, MAX_DEPTH_TRAFILATURA, check_depth, check_max_depth
from gristmill.download.web.stop_lists import UNSPACED, stop_word_counter


class HTMLExtractorAlgorithm(ABC):
    """Extracts the paragraphs of a page that are content. A page for which it raises goes to quarantine."""

    def setup(self) -> None:  # noqa: B027  optional
        """Called once per worker: import what is expensive."""

    @abstractmethod
    def extract_text(self, html: str, stop_words: frozenset[str], language: str) -> list[str] | None:
        """The paragraphs that are content. `language` is the language of the whole page."""


class ParagraphExtractor(HTMLExtractorAlgorithm):
    """An algorithm in two steps: paragraphs, then a choice by language. The language is detected in between, from the
    paragraphs, so the page is parsed once."""

    @abstractmethod
    def paragraphs(self, html: str) -> list[Any]:
        """All paragraphs, in a form of the algorithm's own."""

    @abstractmethod
    def texts(self, paragraphs: list[Any]) -> list[str]:
        """The text of each paragraph."""

    @abstractmethod
    def chosen(self, paragraphs: list[Any], stop_words: frozenset[str], language: str) -> list[str]:
        """The text of the paragraphs that are content."""

    def extract_text(self, html: str, stop_words: frozenset[str], language: str) -> list[str] | None:
        return self.chosen(self.paragraphs(html), stop_words, language)


class JusTextExtractor(ParagraphExtractor):
    """jusText. `is_boilerplate=False` keeps boilerplate; None keeps it only in languages without spaces."""

    def __init__(
        self,
        length_low: int = 70,
        length_high: int = 200,
        stopwords_low: float = 0.30,
        stopwords_high: float = 0.32,
        max_link_density: float = 0.2,
        max_heading_distance: int = 200,
        no_headings: bool = False,
        is_boilerplate: bool | None = None,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self.max_depth = check_max_depth("JusTextExtractor", max_depth)
        self.length_low, self.length_high = length_low, length_high
        self.stopwords_low, self.stopwords_high = stopwords_low, stopwords_high
        self.max_link_density, self.max_heading_distance = max_link_density, max_heading_distance
        self.no_headings, self.is_boilerplate = no_headings, is_boilerplate

    def setup(self) -> None:
        require("justext", "web", "JusTextExtractor")

    def paragraphs(self, html: str) -> list[Any]:
        from justext import core
        from lxml.etree import ParserError

        check_depth(html, self.max_depth)
        try:
            return paragraphs_of(clean_tree(html), core.PARAGRAPH_TAGS)
        except ParserError:  # an empty page
            return []

    def texts(self, paragraphs: list[Any]) -> list[str]:
        return [paragraph.text for paragraph in paragraphs]

    def chosen(self, paragraphs: list[Any], stop_words: frozenset[str], language: str) -> list[str]:
        from justext import core

        drop = language not in UNSPACED if self.is_boilerplate is None else self.is_boilerplate
        if not drop:
            return self.texts(paragraphs)
        core.classify_paragraphs(
            paragraphs,
            stop_words,
            self.length_low,
            self.length_high,
            self.stopwords_low,
            self.stopwords_high,
            self.max_link_density,
            self.no_headings,
        )
        revise_classes(paragraphs, self.max_heading_distance)
        return [paragraph.text for paragraph in paragraphs if not paragraph.is_boilerplate]


class _StopWordDensityExtractor(ParagraphExtractor):
    """Base for libraries that do not use stop words: paragraphs with too few of them are dropped afterwards."""

    required_stopword_density: float

    def texts(self, paragraphs: list[Any]) -> list[str]:
        return paragraphs

    def chosen(self, paragraphs: list[Any], stop_words: frozenset[str], language: str) -> list[str]:
        if language in UNSPACED or self.required_stopword_density <= 0:
            return paragraphs
        count = stop_word_counter(stop_words)
        return [paragraph for paragraph in paragraphs if self._is_dense(*count(paragraph))]

    def _is_dense(self, stop_words: int, words: int) -> bool:
        return bool(words) and stop_words >= self.required_stopword_density * words


class ResiliparseExtractor(_StopWordDensityExtractor):
    """Resiliparse. `main_content=False` keeps the whole page, `alt_texts` adds the alternative texts of images."""

    def __init__(
        self,
        required_stopword_density: float = 0.32,
        main_content: bool = True,
        alt_texts: bool = False,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self.max_depth = check_max_depth("ResiliparseExtractor", max_depth)
        self.required_stopword_density = required_stopword_density
        self.main_content, self.alt_texts = main_content, alt_texts

    def setup(self) -> None:
        require("resiliparse.extract.html2text", "web", "ResiliparseExtractor")

    def paragraphs(self, html: str) -> list[Any]:
        from resiliparse.extract.html2text import extract_plain_text

        check_depth(html, self.max_depth)
        text = extract_plain_text(html, main_content=self.main_content, alt_texts=self.alt_texts)
        return [line for line in text.split("\n") if line]


class TrafilaturaExtractor(_StopWordDensityExtractor):
    """trafilatura. Further arguments are passed to `trafilatura.extract`; repeated segments are removed unless
    `deduplicate=False`."""

    def __init__(
        self,
        required_stopword_density: float = 0.32,
        min_extracted_size: int = 250,
        min_extracted_comm_size: int = 1,
        min_output_size: int = 1,
        min_output_comm_size: int = 1,
        max_tree_size: int | None = None,
        min_duplcheck_size: int = 100,
        max_repetitions: int = 2,
        max_depth: int = MAX_DEPTH_TRAFILATURA,
        **extract_kwargs: Any,
    ) -> None:
        self.max_depth = check_max_depth("TrafilaturaExtractor", max_depth)
        self.required_stopword_density = required_stopword_density
        self.min_extracted_size, self.min_extracted_comm_size = min_extracted_size, min_extracted_comm_size
        self.min_output_size, self.min_output_comm_size = min_output_size, min_output_comm_size
        self.max_tree_size, self.min_duplcheck_size = max_tree_size, min_duplcheck_size
        self.max_repetitions, self.extract_kwargs = max_repetitions, {"deduplicate": True, **extract_kwargs}
        self._config: Any = None
        self._options: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_config": None, "_options": None}

    def setup(self) -> None:
        self.config()
        trafilatura_shortcuts.extract_function()

    def config(self) -> Any:
        """trafilatura's default settings, updated with the parameters of this extractor."""
        if self._config is None:
            from copy import deepcopy

            self._config = deepcopy(require("trafilatura.settings", "web", "TrafilaturaExtractor").DEFAULT_CONFIG)
            settings = {
                "MIN_EXTRACTED_SIZE": self.min_extracted_size,
                "MIN_EXTRACTED_COMM_SIZE": self.min_extracted_comm_size,
                "MIN_OUTPUT_SIZE": self.min_output_size,
                "MIN_OUTPUT_COMM_SIZE": self.min_output_comm_size,
                "MAX_TREE_SIZE": self.max_tree_size,
                "MIN_DUPLCHECK_SIZE": self.min_duplcheck_size,
                "MAX_REPETITIONS": self.max_repetitions,
            }
            self._config["DEFAULT"].update({name: str(value) for name, value in settings.items() if value is not None})
        return self._config

    def _arguments(self) -> dict[str, Any]:
        """The arguments of `trafilatura.extract`. Its options are slow to build, so they are built once."""
        if set(self.extract_kwargs) != {"deduplicate"}:
            return {"config": self.config(), **self.extract_kwargs}
        if self._options is None:
            from trafilatura.settings import Extractor

            self._options = Extractor(config=self.config(), dedup=self.extract_kwargs["deduplicate"])
        return {"options": self._options}

    def paragraphs(self, html: str) -> list[Any]:
        from trafilatura.deduplication import LRU_TEST

        check_depth(html, self.max_depth)
        LRU_TEST.clear()  # otherwise the text of a page depends on the pages this worker saw before it
        text = trafilatura_shortcuts.extract_function()(html, **self._arguments())
        return [line for line in (text or "").split("\n") if line]


_ALGORITHMS: dict[str, type[HTMLExtractorAlgorithm]] = {
    "justext": JusTextExtractor,
    "resiliparse": ResiliparseExtractor,
    "trafilatura": TrafilaturaExtractor,
}


def make_algorithm(
    given: HTMLExtractorAlgorithm | str | None, kwargs: Mapping[str, Any] | None = None
) -> HTMLExtractorAlgorithm:
    """The given algorithm, or the one of this name; jusText by default."""
    if isinstance(given, HTMLExtractorAlgorithm):
        if kwargs:
            raise ValueError(
                f"html_extraction_kwargs need an extractor given by name; pass them to {type(given).__name__} instead"
            )
        return given
    name = "justext" if given is None else given
    if name not in _ALGORITHMS:
        raise ValueError(
            f"html_extraction is {name!r}, must be one of {', '.join(_ALGORITHMS)} or an HTMLExtractorAlgorithm."
            f"{did_you_mean(str(name), _ALGORITHMS)}"
        )
    return _ALGORITHMS[name](**(kwargs or {}))
