"""Word and character error rates of many pairs of texts, in percent of the reference.

A rate is the least number of words, or of characters, to replace, leave out and put in, in percent of how many the
reference has; it may be above 100. Null counts as the empty text. Against a blank reference a blank text has 0, and any
other 100. Runs of white space count as one space.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.errors import require

if TYPE_CHECKING:
    import numpy.typing as npt

    Rates = npt.NDArray[np.float64]

Texts = Any
"""A list of texts, or a column of strings."""

WITHOUT_SPACES = frozenset({"bo", "dz", "ja", "km", "lo", "my", "th", "yue", "zh"})
"""Languages that do not put spaces between words: their words are counted by character."""


def _distances(references: Sequence[Any], others: Sequence[Any]) -> npt.NDArray[np.int64]:
    distance = require("rapidfuzz.distance.Levenshtein", "audio", "error rates of transcripts").distance
    pairs = zip(references, others, strict=True)
    return np.fromiter((0 if one == two else distance(one, two) for one, two in pairs), np.int64, len(references))


def _rates(references: Sequence[Any], others: Sequence[Any]) -> Rates:
    errors = _distances(references, others).astype(np.float64)
    return _shares(errors, np.fromiter(map(len, references), np.float64, len(references)))


def _shares(errors: Rates, lengths: Rates) -> Rates:
    return np.where(lengths > 0, errors / np.maximum(lengths, 1.0), np.minimum(errors, 1.0)) * 100.0


def word_error_rates(references: Texts, others: Texts) -> Rates:
    """The word error rate of each text against its reference."""
    if kernels is None:
        one, two = ([words_of(text) for text in _listed(texts)] for texts in (references, others))
        return _rates(one, two)
    found = kernels.word_distances(_column(references), _column(others))
    errors, lengths, _ = np.frombuffer(found, np.int64).reshape(-1, 3).T.astype(np.float64)
    return _shares(errors, lengths)


def _column(texts: Texts) -> pa.Array:
    return texts if isinstance(texts, pa.Array) else make_array(texts, pa.large_string())


def _listed(texts: Texts) -> Sequence[str | None]:
    return list(texts.to_pylist() if isinstance(texts, pa.Array) else texts)


def character_error_rates(references: Texts, others: Texts) -> Rates:
    """The character error rate of each text against its reference."""
    return _rates([one_spaced(text) for text in _listed(references)], [one_spaced(text) for text in _listed(others)])


def words_of(text: str | None) -> list[str]:
    return text.split() if text else []


def one_spaced(text: str | None) -> str:
    return " ".join(text.split()) if text else ""


class ErrorCounts(NamedTuple):
    """How one sequence differs from another, as shares of the reference."""

    rate: float
    tokens: int
    inserted: float
    deleted: float
    substituted: float


def error_counts(reference: Sequence[Any], other: Sequence[Any]) -> ErrorCounts:
    """What must be put in, left out and replaced in the reference. The reference must not be empty."""
    levenshtein = require("rapidfuzz.distance.Levenshtein", "audio", "error rates of transcripts")
    tags = [tag for tag, _, _ in levenshtein.editops(reference, other)]
    size = len(reference)
    shares = (tags.count(kind) / size for kind in ("insert", "delete", "replace"))
    return ErrorCounts(len(tags) / size, size, *shares)


def edge_errors(reference: str | None, other: str | None) -> tuple[int, int]:
    """How many characters, of whichever text has more, are wrong before the first word that both have at the same
    place, and after the last one."""
    one, two = words_of(reference), words_of(other)
    if one == two:
        return 0, 0
    levenshtein = require("rapidfuzz.distance.Levenshtein", "audio", "error rates of transcripts")
    blocks = [block for block in levenshtein.opcodes(one, two) if block.tag == "equal"]
    if not blocks:
        whole = max(len(" ".join(one)), len(" ".join(two)))
        return whole, whole
    first, last = blocks[0], blocks[-1]
    begin = max(len(" ".join(one[: first.src_start])), len(" ".join(two[: first.dest_start])))
    end = max(len(" ".join(one[last.src_end :])), len(" ".join(two[last.dest_end :])))
    return begin, end


def word_match_rates(references: Sequence[str | None], others: Sequence[str | None]) -> Rates:
    """How many words of each reference the other text has in the same order, in percent; 100 for a blank reference
    and a blank text, 0 for a blank reference alone."""
    similarity = require("rapidfuzz.distance.LCSseq", "audio", "error rates of transcripts").similarity
    found = np.empty(len(references))
    for row, (reference, other) in enumerate(zip(references, others, strict=True)):
        one, two = words_of(reference), words_of(other)
        found[row] = 100.0 * similarity(one, two) / len(one) if one else 100.0 * (not two)
    return found


class _Punctuation(dict[int, Any]):
    """For `str.translate`: punctuation and symbols as spaces, typographic apostrophes as plain ones."""

    def __missing__(self, code: int) -> Any:
        char = chr(code)
        kind = unicodedata.category(char)[0]
        found = "'" if char in "'’‘ʼʻ" else " " if kind in "PSC" else code
        self[code] = found
        return found


_PUNCTUATION = _Punctuation()
_OUTER_APOSTROPHES = re.compile(r"(?<!\w)'+|'+(?!\w)")


def plain_words(text: str | None) -> str:
    """A text as error rates are best compared: lower case, without punctuation and symbols, one space between words."""
    if not text:
        return ""
    spaced = unicodedata.normalize("NFKC", text).lower().translate(_PUNCTUATION)
    return " ".join(_OUTER_APOSTROPHES.sub(" ", spaced).split())
