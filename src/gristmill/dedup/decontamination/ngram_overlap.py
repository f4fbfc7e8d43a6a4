"""Word n-gram overlap: which documents have runs of words in common with items of evaluation sets.

Texts are compared without case, punctuation, differences of white space and invisible characters such as soft hyphens.
In scripts without spaces each character is a word. A run of words is a 64-bit hash: when a trillion runs are looked up
among a million, there is a false match in one case in twenty.

    copy     an item is in a document if one of its runs of `ngram` words is, or a share of them (`min_overlap`)
    short    an item of fewer than `ngram` words must occur as a whole, and have `min_words` words
    fuzzy    an item with changed words is in a document if most of its runs of `fuzzy_ngram` words are, and at least
             as many as the shortest such item needs

Runs that more than `max_items` items have are common wording, and do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from math import ceil
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_text, from_numbers, numbers
from gristmill.dedup.columns.kernel_reference import UNSPACED_CLASS, WORD
from gristmill.dedup.columns.normalisation import Normalisation

SEED = 13
FORM = Normalisation(punctuation=True)
_HIT = np.dtype([("row", "<i8"), ("word", "<i8"), ("key", "<u8")])

_INVISIBLE = "\u00ad\u200b-\u200f\u2060-\u2064\ufeff"
"""Soft hyphens, zero-width spaces, joiners, direction marks and byte order marks."""

_HIDDEN = re.compile(f"[{_INVISIBLE}]")


def prepare_texts(column: Column) -> pa.Array:
    """Texts as normalised words separated by spaces; null stays null."""
    texts = as_text(column)
    special = pc.match_substring_regex(texts, f"[{_INVISIBLE}{UNSPACED_CLASS}]")
    rows = pc.fill_null(pc.and_(pc.invert(pc.string_is_ascii(texts)), special), literal(False, pa.bool_()))
    if rows.true_count:
        visible = pc.replace_substring_regex(texts.filter(rows), f"[{_INVISIBLE}]", "")
        texts = pc.replace_with_mask(texts, rows, pc.replace_substring_regex(visible, f"([{UNSPACED_CLASS}])", r" \1 "))
    return FORM.apply(texts)


def prepare_word(text: str) -> str:
    """A word, as it is in the prepared text."""
    return FORM.text(_HIDDEN.sub("", text))


def words_of(text: str) -> list[tuple[int, int]]:
    """The span in the text of each word of its prepared form."""
    return [found.span() for found in re.finditer(WORD, text) if prepare_word(found[0])]


def word_counts(texts: pa.Array) -> Numbers:
    """How many words each prepared text has."""
    spaces = numbers(pc.count_substring(texts, " ").cast(pa.int64()))
    return np.where(numbers(pc.binary_length(texts).cast(pa.int64())) > 0, spaces + 1, 0)


def word_runs(texts: pa.Array, lengths: Sequence[int], table: bytes = b"", keys: Numbers | None = None) -> Numbers:
    """The runs of words of prepared texts: row, first word and key. All of them, or those in a table of `keys`."""
    if kernels is not None:
        found = kernels.ngram_hits(texts, np.array(lengths, np.int64).tobytes(), table, SEED)
        return np.frombuffer(found, _HIT)
    hits = [
        (row, word, key)
        for row, text in enumerate(texts.to_pylist())
        for n in lengths
        for word, key in enumerate(reference.ngram_keys(text or "", n, SEED).tolist())
    ]
    runs = np.array(hits, _HIT)
    return runs if keys is None else runs[np.isin(runs["key"], keys)]


class ItemMatch(NamedTuple):
    """An item that is in a document."""

    row: int
    item: int
    share: float
    """The share of the runs of the item that are in the document, by the rule that finds most."""
    fuzzy: bool
    """Whether these are runs of `fuzzy_ngram` words."""
    words: list[tuple[int, int]]
    """The found runs, each by the number of its first word and of the word after its last."""


@fast_dataclass(frozen=True)
class OverlapRules:
    """When an item counts as contained in a document; see the top of this file."""

    ngram: int = 13
    min_overlap: float = 0.0
    min_words: int = 8
    fuzzy_ngram: int = 5
    fuzzy_threshold: float | None = 0.6
    max_items: int | None = 10

    def __post_init__(self) -> None:
        for name in ("ngram", "min_words", "fuzzy_ngram", "max_items"):
            number = getattr(self, name)
            if not isinstance(number, int) and (name != "max_items" or number is not None):
                raise ValueError(f"{name}={number!r} must be a whole number")
        if not 1 <= self.min_words <= self.ngram:
            raise ValueError(f"min_words={self.min_words} must be between 1 and ngram={self.ngram}")
        for name in ("min_overlap", "fuzzy_threshold"):
            share = getattr(self, name)
            if share is None and name == "fuzzy_threshold":
                continue
            if not isinstance(share, int | float) or not 0 <= share <= 1:
                raise ValueError(f"{name}={share!r} must be a share between 0 and 1")
        if self.fuzzy_threshold is not None and not 1 <= self.fuzzy_ngram < self.min_words:
            raise ValueError(
                f"fuzzy_ngram={self.fuzzy_ngram} must be 1 or more, and less than min_words={self.min_words}; "
                "fuzzy_threshold=None turns it off"
            )
        if self.max_items is not None and self.max_items < 1:
            raise ValueError(f"max_items={self.max_items} must be 1 or more, or None")

    @property
    def fuzzy_runs(self) -> int:
        """The least number of distinct runs for a fuzzy match: as many as the shortest item of this kind needs.

        Otherwise an item that repeats itself, or has few runs that count, would match with its first run.
        """
        return ceil((self.fuzzy_threshold or 0.0) * (self.ngram - self.fuzzy_ngram + 1))


def _different_texts(keys: Numbers, items: Numbers, texts: pa.Array) -> Numbers:
    """For each run of an item the number of different items that have it; equal items count once."""
    same = numbers(texts.dictionary_encode().indices, np.int64)[items]
    order = np.lexsort((same, keys))
    new = np.append(True, (np.diff(keys[order]) != 0) | (np.diff(same[order]) != 0))[: len(keys)]
    _, places = np.unique(keys, return_inverse=True)
    found: Numbers = np.bincount(places[order], new)[places] if len(keys) else np.zeros(0)
    return found


class OverlapIndex:
    """The runs of words of all items, in which documents are looked up."""

    def __init__(self, items: Column, rules: OverlapRules) -> None:
        self.rules = rules
        texts = prepare_texts(items)
        self.words = word_counts(texts)
        """How many words each item has."""
        found, lengths = self._runs_of_items(texts)
        order = np.lexsort((found["row"], found["key"]))
        keys, items_of, lengths = found["key"][order], found["row"][order], lengths[order]
        new = np.append(True, (keys[1:] != keys[:-1]) | (items_of[1:] != items_of[:-1]))[: len(keys)]
        keys, items_of, lengths = keys[new], items_of[new], lengths[new]
        self._all = np.bincount(items_of, minlength=len(texts))
        if rules.max_items is not None:
            rare = _different_texts(keys, items_of, texts) <= rules.max_items
            keys, items_of, lengths = keys[rare], items_of[rare], lengths[rare]
        self.keys, starts = np.unique(keys, return_index=True)
        self._starts = np.append(starts, len(keys))
        self._items, self._lengths = items_of, lengths[starts]
        fuzzy = self._is_fuzzy(lengths)
        self._totals = np.stack(
            [np.bincount(items_of[fuzzy == level], minlength=len(texts)) for level in (False, True)]
        )
        self.searched = np.unique(self._lengths).tolist()

    @cached_property
    def _table(self) -> bytes:
        return b"" if kernels is None else kernels.ngram_table(self.keys.tobytes())

    def _runs_of_items(self, texts: pa.Array) -> tuple[Numbers, Numbers]:
        rules = self.rules
        wanted = [(rules.ngram, self.words >= rules.ngram)]
        wanted += [(size, self.words == size) for size in range(rules.min_words, rules.ngram)]
        if rules.fuzzy_threshold is not None:
            wanted.append((rules.fuzzy_ngram, self.words >= rules.ngram))
        parts, lengths = [], []
        for size, mask in wanted:
            rows = np.flatnonzero(mask)
            found = word_runs(texts.take(from_numbers(rows)), [size]).copy() if len(rows) else np.zeros(0, _HIT)
            found["row"] = rows[found["row"]]
            parts.append(found)
            lengths.append(np.full(len(found), size))
        return np.concatenate(parts), np.concatenate(lengths)

    def _is_fuzzy(self, lengths: Numbers) -> Numbers:
        found: Numbers = lengths == (self.rules.fuzzy_ngram if self.rules.fuzzy_threshold is not None else -1)
        return found

    @property
    def too_short(self) -> Numbers:
        """Which items have too few words to be found."""
        return self.words < self.rules.min_words

    @property
    def too_common(self) -> Numbers:
        """Which items have mostly runs that do not count, because more than `max_items` items have them."""
        found: Numbers = self._totals.sum(axis=0) * 2 < self._all
        return found

    def matches(self, texts: Column) -> list[ItemMatch]:
        """The items that each text contains, sorted by row, and for each row by descending share."""
        if not len(self.keys):
            return []
        hits = word_runs(prepare_texts(texts), self.searched, self._table, self.keys)
        if not len(hits):
            return []
        places = np.searchsorted(self.keys, hits["key"])
        counts = self._starts[places + 1] - self._starts[places]
        which = np.repeat(np.arange(len(hits)), counts)
        items = self._items[
            np.repeat(self._starts[places] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        ]
        fuzzy = self._is_fuzzy(self._lengths[places[which]])
        codes = (hits["row"][which] * 2 + fuzzy) * len(self.words) + items
        found, inverse = np.unique(codes, return_inverse=True)
        runs_of = np.unique(inverse * len(self.keys) + places[which]) // len(self.keys)
        return self._judged(found, np.bincount(runs_of, minlength=len(found)), inverse, hits[which], places[which])

    def _judged(
        self, codes: Numbers, counts: Numbers, inverse: Numbers, hits: Numbers, places: Numbers
    ) -> list[ItemMatch]:
        rows, rest = np.divmod(codes, 2 * len(self.words))
        fuzzy, items = np.divmod(rest, len(self.words))
        shares = counts / self._totals[fuzzy, items]
        least = np.where(fuzzy == 1, self.rules.fuzzy_threshold or 0.0, self.rules.min_overlap)
        enough = (fuzzy == 0) | (counts >= self.rules.fuzzy_runs)
        good = np.flatnonzero((shares >= least) & enough)
        if not len(good):
            return []
        order = np.argsort(inverse, kind="stable")
        bounds = np.searchsorted(inverse[order], np.arange(len(codes) + 1))
        best: dict[tuple[int, int], ItemMatch] = {}
        for one in good.tolist():
            mine = order[bounds[one] : bounds[one + 1]]
            ends = hits["word"][mine] + self._lengths[places[mine]]
            words = list(zip(hits["word"][mine].tolist(), ends.tolist(), strict=True))
            row, item = int(rows[one]), int(items[one])
            match, known = ItemMatch(row, item, float(shares[one]), bool(fuzzy[one]), words), best.get((row, item))
            if known:  # the match as a copy, which stays if its share is as large
                both = words + known.words
                match = (match if match.share > known.share else known)._replace(words=both)
            best[row, item] = match
        return sorted(best.values(), key=lambda match: (match.row, -match.share, match.item))
