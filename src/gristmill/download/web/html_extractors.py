"""HTML: the text of pages, without menus, scripts and comments.

    JusTextExtractor       jusText: paragraphs by their stop words, length, links and neighbours
    ResiliparseExtractor   Resiliparse: fast rules on the tree of the page
    TrafilaturaExtractor   trafilatura: rules with several fallbacks, and without repeated segments

Each gives what the library gives. `ResiliparseExtractor` and `TrafilaturaExtractor` then keep paragraphs of which a
share of `required_stopword_density` are stop words; 0 keeps all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from gristmill.core.errors import did_you_mean, require
from gristmill.download.web import trafilatura_shortcuts
from gristmill.download.web.justext_paragraphs import clean_tree, paragraphs_of
from gristmill.download.web.stop_lists import UNSPACED, stop_word_counter


class HTMLExtractorAlgorithm(ABC):
    """Gives the paragraphs of a page that are text. What it raises sets the page aside."""

    def setup(self) -> None:  # noqa: B027  some have nothing to load
        """Once per worker: import what is heavy."""

    @abstractmethod
    def extract_text(self, html: str, stop_words: frozenset[str], language: str) -> list[str] | None:
        """The paragraphs that are text. The language is that of all text of the page."""


class ParagraphExtractor(HTMLExtractorAlgorithm):
    """One that can make paragraphs before it knows their language: a page is then parsed once."""

    @abstractmethod
    def paragraphs(self, html: str) -> list[Any]:
        """All paragraphs, before stop words are asked for."""

    @abstractmethod
    def texts(self, paragraphs: list[Any]) -> list[str]:
        """What they say."""

    @abstractmethod
    def chosen(self, paragraphs: list[Any], stop_words: frozenset[str], language: str) -> list[str]:
        """Those of them that are text."""

    def extract_text(self, html: str, stop_words: frozenset[str], language: str) -> list[str] | None:
        return self.chosen(self.paragraphs(html), stop_words, language)


class JusTextExtractor(ParagraphExtractor):
    """jusText. `is_boilerplate=False` keeps boilerplate too; None keeps it only for languages without spaces."""

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
    ) -> None:
        self.length_low, self.length_high = length_low, length_high
        self.stopwords_low, self.stopwords_high = stopwords_low, stopwords_high
        self.max_link_density, self.max_heading_distance = max_link_density, max_heading_distance
        self.no_headings, self.is_boilerplate = no_headings, is_boilerplate

    def setup(self) -> None:
        require("justext", "web", "JusTextExtractor")

    def paragraphs(self, html: str) -> list[Any]:
        from justext import core
        from lxml.etree import ParserError

        try:
            return paragraphs_of(clean_tree(html), core.PARAGRAPH_TAGS)
        except ParserError:  # a page without anything in it
            return []

    def texts(self, paragraphs: list[Any]) -> list[str]:
        return [one.text for one in paragraphs]

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
        core.revise_paragraph_classification(paragraphs, self.max_heading_distance)
        return [one.text for one in paragraphs if not one.is_boilerplate]


class _DenseParagraphs(ParagraphExtractor):
    """What the two share that know nothing of stop words: paragraphs without enough of them are left out after it."""

    required_stopword_density: float

    def texts(self, paragraphs: list[Any]) -> list[str]:
        return paragraphs

    def chosen(self, paragraphs: list[Any], stop_words: frozenset[str], language: str) -> list[str]:
        if language in UNSPACED or self.required_stopword_density <= 0:
            return paragraphs
        count = stop_word_counter(stop_words)
        return [one for one in paragraphs if self._dense(*count(one))]

    def _dense(self, stops: int, words: int) -> bool:
        return bool(words) and stops >= self.required_stopword_density * words


class ResiliparseExtractor(_DenseParagraphs):
    """Resiliparse."""

    def __init__(
        self, required_stopword_density: float = 0.32, main_content: bool = True, alt_texts: bool = False
    ) -> None:
        self.required_stopword_density = required_stopword_density
        self.main_content, self.alt_texts = main_content, alt_texts

    def setup(self) -> None:
        require("resiliparse.extract.html2text", "web", "ResiliparseExtractor")

    def paragraphs(self, html: str) -> list[Any]:
        from resiliparse.extract.html2text import extract_plain_text

        text = extract_plain_text(html, main_content=self.main_content, alt_texts=self.alt_texts)
        return [line for line in text.split("\n") if line]


class TrafilaturaExtractor(_DenseParagraphs):
    """trafilatura. Further arguments go to `trafilatura.extract`; repeated segments are removed unless
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
        **extract_kwargs: Any,
    ) -> None:
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
        """trafilatura's own settings with ours in them, made once."""
        if self._config is None:
            from copy import deepcopy

            self._config = deepcopy(require("trafilatura.settings", "web", "TrafilaturaExtractor").DEFAULT_CONFIG)
            names = ("min_extracted_size", "min_extracted_comm_size", "min_output_size", "min_output_comm_size",
                     "max_tree_size", "min_duplcheck_size", "max_repetitions")  # fmt: skip
            for name in names:
                if getattr(self, name) is not None:
                    self._config["DEFAULT"][name.upper()] = str(getattr(self, name))
        return self._config

    def _arguments(self) -> dict[str, Any]:
        """What `trafilatura.extract` is called with; as a rule its options, made once: that takes it a while."""
        if set(self.extract_kwargs) != {"deduplicate"}:
            return {"config": self.config(), **self.extract_kwargs}
        if self._options is None:
            from trafilatura.settings import Extractor

            self._options = Extractor(config=self.config(), dedup=self.extract_kwargs["deduplicate"])
        return {"options": self._options}

    def paragraphs(self, html: str) -> list[Any]:
        from trafilatura.deduplication import LRU_TEST

        LRU_TEST.clear()  # else what a page gives depends on the pages that this worker saw before it
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
    """An extractor, from its name, or the one that was given; by default jusText."""
    if isinstance(given, HTMLExtractorAlgorithm):
        if kwargs:
            raise ValueError(f"html_extraction_kwargs are for an extractor given by name; set them on {given!r} itself")
        return given
    name = "justext" if given is None else given
    if name not in _ALGORITHMS:
        raise ValueError(
            f"html_extraction is {name!r}.{did_you_mean(str(name), _ALGORITHMS)} There are: {', '.join(_ALGORITHMS)}, or an "
            "HTMLExtractorAlgorithm"
        )
    return _ALGORITHMS[name](**(kwargs or {}))
