"""What a source of documents implements: three small interfaces, and a downloader from `downloaders.py`.

    URLGenerator         generate_urls()              lists the files to download
    DocumentDownloader   _download_to_path(url, path) downloads one of them
    DocumentIterator     iterate(file_path)           yields the records of a file
    DocumentExtractor    extract(record)              turns a record into a row, or drops it

`DocumentDownloadExtractStage` (`download_stages.py`) turns the four into stages of a pipeline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gristmill.io.storage.file_input import BadRecord


class URLGenerator(ABC):
    """Lists the files to download."""

    @abstractmethod
    def generate_urls(self) -> Iterable[str]:
        """All URLs, in the same order in every run."""


class DocumentIterator(ABC):
    """Yields the records of a file one by one. Memory must not grow with the size of the file."""

    @abstractmethod
    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | BadRecord]:
        """The records of a file. A record may state its position in the file under the key `__position__`
        (`table_conversion.POSITION`); positions must increase. Otherwise its position is its index. Yield a `BadRecord`
        for a record that cannot be read: it goes to quarantine."""

    def output_columns(self) -> list[str]:
        """The columns of the records, if they are known in advance."""
        return []

    def parts(self, file_path: str) -> Sequence[tuple[int, int]]:
        """Byte ranges (start, end) of the file that several workers can read at the same time. Empty if the file cannot
        be split."""
        return ()

    def iterate_part(self, file_path: str, start: int, end: int) -> Iterator[dict[str, Any] | BadRecord]:
        """The records of one of the `parts`. Required if `parts` returns any."""
        raise NotImplementedError(f"{type(self).__name__}.iterate_part({file_path!r}, {start}, {end})")


class DocumentExtractor(ABC):
    """Turns a record into a row."""

    _counts: Counter[str] | None = None

    @abstractmethod
    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The columns of the row, or None to drop the record. A record that raises goes to quarantine. Call `count`
        with the reason for a drop, and the summary of the run shows it."""

    def input_columns(self) -> list[str]:
        return []

    def output_columns(self) -> list[str]:
        """The columns that `extract` returns, if they are known in advance."""
        return []

    def setup(self) -> None:  # noqa: B027  optional
        """Called once per worker: import and load what is expensive."""

    def count(self, name: str, value: int = 1) -> None:
        if self._counts is None:
            self._counts = Counter()
        self._counts[name] += value

    def take_counts(self) -> dict[str, int]:
        """The counts since the last call. Called by the stage."""
        counts = self._counts
        if counts is None:
            return {}
        del self._counts  # back to the class default: the extractor looks as before it was used
        return dict(counts)
