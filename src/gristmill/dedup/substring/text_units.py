"""Cuts documents into lines, paragraphs or sentences.

The pieces of a document, joined, are the document: each ends with its line feeds. So pieces share the memory of their
column, and what is left after some are dropped keeps its layout. Blank pieces have no key, and are never repeated.

Gives up grammar: a sentence ends at a mark and a space, also after an abbreviation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_one_array, as_text, from_numbers, numbers, validity
from gristmill.dedup.columns.column_hashes import HASH_TYPE, hash128
from gristmill.dedup.columns.normalisation import Normalisation

UNITS = ("line", "paragraph", "sentence")

_SPACE, _MARK, _CLOSER = (np.isin(np.arange(256), list(characters)) for characters in (b" \t\r\n", b".!?", b"\"')]"))
_ELLIPSIS, _FULL_STOP = b"\xe2\x80\xa6", b"\xe3\x80\x82"
_LONG_CLOSERS = (b"\xe2\x80\x99", b"\xe2\x80\x9d", b"\xc2\xbb")
_LONG_MARKS = (_FULL_STOP, b"\xef\xbc\x81", b"\xef\xbc\x9f")


@fast_dataclass(frozen=True)
class TextPieces:
    """The pieces of a column of documents."""

    texts: pa.LargeStringArray
    """All pieces, in order."""
    bounds: Numbers
    """Where each piece starts, and where the last one ends."""
    firsts: Numbers
    """The number of the first piece of each document, and at the end the number of pieces."""
    valid: pa.Buffer | None
    """Which documents are not null."""

    @property
    def rows(self) -> Numbers:
        """The document of each piece."""
        return np.repeat(np.arange(len(self.firsts) - 1), np.diff(self.firsts))

    @property
    def places(self) -> Numbers:
        """The number of each piece in its document."""
        places: Numbers = np.arange(len(self.texts)) - np.repeat(self.firsts[:-1], np.diff(self.firsts))
        return places

    def keys(self, normalisation: Normalisation | None = None) -> pa.FixedSizeBinaryArray:
        """The hash of each piece without the white space around it; null for blank pieces."""
        bare = pc.utf8_trim_whitespace(normalisation.apply(self.texts) if normalisation else self.texts)
        blank = pc.equal(pc.binary_length(bare), literal(0, pa.int64()))
        return pc.if_else(blank, pa.nulls(len(bare), HASH_TYPE), hash128(bare))

    def without(self, drop: Numbers) -> pa.LargeStringArray:
        """The documents without the pieces of the mask `drop`; null stays null."""
        kept = self.texts.filter(from_numbers(~drop))
        sizes = np.where(drop, 0, np.diff(self.bounds))
        ends = np.append(0, np.cumsum(sizes))[self.firsts].astype(np.int64)
        buffers = [self.valid, pa.py_buffer(ends), kept.buffers()[2] or pa.py_buffer(b"")]
        return pa.Array.from_buffers(pa.large_string(), len(self.firsts) - 1, buffers)


class StringLayout(NamedTuple):
    """The bytes of a column of strings, row after row, and none for null."""

    offsets: Numbers
    """Where each row starts, and where the last one ends."""
    data: Numbers
    valid: pa.Buffer | None


def string_layout(column: Column) -> StringLayout:
    """The bytes of a column of strings."""
    texts = as_text(column).cast(pa.large_string())
    valid = validity(texts)
    if texts.null_count:
        texts = pc.fill_null(texts, literal("", pa.string()).cast(pa.large_string()))
    if not len(texts):
        return StringLayout(np.zeros(1, np.int64), np.zeros(0, np.uint8), valid)
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
    size = int(offsets[-1] - offsets[0])
    data = np.frombuffer(texts.buffers()[2], np.uint8, size, int(offsets[0])) if size else np.zeros(0, np.uint8)
    return StringLayout(offsets - offsets[0], data, valid)


def cut_units(column: Column, unit: str = "line") -> TextPieces:
    """Cut documents into lines, paragraphs (ended by blank lines, whatever white space those hold) or sentences."""
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r} is unknown, must be one of {', '.join(UNITS)}")
    found = string_layout(column)
    if unit == "sentence":
        return cut_at_bytes(found, _sentence_ends(found))
    lines = cut_at_bytes(found, np.flatnonzero(found.data == ord("\n")) + 1)
    return lines if unit == "line" else cut_at_bytes(found, _paragraph_ends(found, lines))


def _paragraph_ends(found: StringLayout, lines: TextPieces) -> Numbers:
    """Where paragraphs end: after blank lines that follow another line of the document."""
    starts, ends = lines.bounds[:-1], lines.bounds[1:]
    first = found.data[starts]
    perhaps = np.flatnonzero(((first <= ord(" ")) | (first >= 0x80)) & (found.data[ends - 1] == ord("\n")))
    bare = pc.utf8_trim_whitespace(lines.texts.take(from_numbers(perhaps)))
    blank = np.zeros(len(starts) + 1, np.bool_)
    blank[perhaps[numbers(pc.binary_length(bare)) == 0]] = True
    blank[lines.firsts] = False  # the first line of a document ends no paragraph
    return ends[blank[:-1] & ~blank[1:]]


def _sentence_ends(found: StringLayout) -> Numbers:
    """Where sentences end: after a mark, closing quotes and white space; a full-width mark; or the end of a line."""
    data = np.append(found.data, np.zeros(4, np.uint8))
    limits = found.offsets[1:]
    marks = np.flatnonzero(_MARK[data]) + 1
    places = np.sort(np.concatenate([marks, _after(data, _ELLIPSIS)]), kind="stable")
    starts, places = places, _behind_closers(data, places)
    words = np.append(np.flatnonzero(~_SPACE[data[: len(found.data)]]), len(found.data))
    ends = words[np.searchsorted(words, places)]
    limit = limits[np.searchsorted(limits, starts - 1, "right")] if len(starts) else ends
    ends = np.minimum(ends, limit)
    good = ends > places
    starts, ends = starts[good], ends[good]
    feeds = np.flatnonzero(found.data == ord("\n")) + 1
    inside = np.searchsorted(starts, feeds, "left")  # in the white space after a mark, which ends the sentence
    feeds = feeds[(inside == 0) | (np.append(0, ends)[inside] < feeds)]
    limit = limits[np.searchsorted(limits, feeds - 1, "right")] if len(feeds) else feeds
    blank = np.minimum(words[np.searchsorted(words, feeds)], limit)  # the end of the white space after each line feed
    last = np.append(blank[1:] != blank[:-1], True)[: len(feeds)]  # of line feeds with only white space between them
    last |= np.isin(feeds, limits)
    return np.concatenate([ends, feeds[last], *(_after(data, mark) for mark in _LONG_MARKS)])


def _after(data: Numbers, mark: bytes) -> Numbers:
    """Where each occurrence of a mark ends."""
    starts = np.flatnonzero(data == mark[0])
    for offset, byte in enumerate(mark[1:], 1):
        starts = starts[data[starts + offset] == byte]
    return starts + len(mark)


def _behind_closers(data: Numbers, places: Numbers) -> Numbers:
    """Positions, each moved after the closing quotes and brackets there."""
    closing = np.zeros(len(data), np.bool_)
    closing[np.flatnonzero(_CLOSER[data])] = True
    for mark in _LONG_CLOSERS:
        for back in range(1, len(mark) + 1):
            closing[_after(data, mark) - back] = True
    others = np.flatnonzero(~closing)
    return others[np.searchsorted(others, places)]


def cut_at_bytes(found: StringLayout, ends: Numbers) -> TextPieces:
    """Documents cut at byte positions, counted from the first byte of the first document, and at their ends."""
    bounds = np.sort(np.concatenate([found.offsets, ends.astype(np.int64)]), kind="stable")  # fast for sorted runs
    bounds = bounds[np.append(True, bounds[1:] != bounds[:-1])]
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(found.data)]
    pieces = pa.Array.from_buffers(pa.large_string(), len(bounds) - 1, buffers)
    return TextPieces(pieces, bounds, np.searchsorted(bounds, found.offsets), found.valid)


def repeated_pieces(keys: Column, at_least: int = 2) -> Numbers:
    """Which keys occur `at_least` times and are not the first of their kind; null is never repeated."""
    codes = as_one_array(keys).dictionary_encode().indices.cast(pa.int64())
    numbered = numbers(pc.fill_null(codes, literal(-1, pa.int64())))
    _, firsts, inverse, counts = np.unique(numbered, return_index=True, return_inverse=True, return_counts=True)
    again = counts[inverse] >= at_least
    again[firsts] = False
    return again & (numbered >= 0)
