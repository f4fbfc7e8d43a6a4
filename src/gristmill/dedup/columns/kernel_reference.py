"""The reference implementation, in plain Python, of what the kernels in C compute for deduplication.

It is the definition, and the fallback where the extension could not be built, many times slower. All arithmetic is on
unsigned 64-bit integers.

    tokens       the characters of a text, or its words: what `str.split` gives, where each character of a script
                 without spaces is a word of its own
    shingles     runs of n tokens; a text of fewer tokens is one shingle, and a blank text has none
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import xxhash

ALL = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15

# -- hashes ------------------------------------------------------------------------------------------------


N = TypeVar("N", int, np.ndarray[Any, Any])


def scramble(x: N) -> N:
    """Mix the bits of a number, or of each number of an array, one to one (splitmix64)."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & ALL
    x = (x ^ x >> 27) * 0x94D049BB133111EB & ALL
    x ^= x >> 31
    return x


def xxh3(data: bytes, seed: int = 0) -> bytes:
    """XXH3 with 128 bits, the lowest byte first."""
    return xxhash.xxh3_128_digest(data, seed)[::-1]


# -- normal forms ------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _no_punctuation() -> dict[int, None]:
    codes = range(0x110000)
    found = [code for code in codes if chr(code) in string.punctuation or unicodedata.category(chr(code))[0] == "P"]
    return dict.fromkeys(found)


def normalise(text: str, unicode: str | None, lower: bool, punctuation: bool, space: bool) -> str:
    """A text in a Unicode normal form, in lower case, without punctuation, and with white space as single spaces."""
    if unicode:
        text = unicodedata.normalize(unicode, text)  # type: ignore[arg-type]
    if lower:
        text = text.lower()
    if punctuation:
        text = text.translate(_no_punctuation())
    return " ".join(text.split()) if space else text


# -- shingles and signatures -------------------------------------------------------------------------------


UNSPACED = [(0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF)]
UNSPACED += [(0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)]
"""Scripts without spaces: Thai and Lao, Burmese, Khmer, Japanese syllables, Chinese characters."""

UNSPACED_CLASS = "".join(f"{chr(first)}-{chr(last)}" for first, last in UNSPACED)
"""The same, for a regular expression."""

WORD = rf"[{UNSPACED_CLASS}]|[^\s{UNSPACED_CLASS}]+"


def words(text: str) -> list[str]:
    """The words of a text. Each character of a script without spaces is one."""
    return re.findall(WORD, text)


def shingles(text: str, unit: str, n: int, seed: int) -> np.ndarray[Any, Any]:
    """The shingles of a text, in order, each as one number: a polynomial of the hashes of its tokens."""
    if not text.strip():
        return np.zeros(0, np.uint64)
    key = scramble(seed + GOLDEN & ALL)
    tokens = words(text) if unit == "words" else text
    numbers = {token: _word(token.encode(), key) if unit == "words" else scramble(ord(token) ^ key) for token in tokens}
    values = np.array([numbers[token] for token in tokens], np.uint64)
    n = min(n, len(values))
    found = np.zeros(len(values) - n + 1, np.uint64)
    for place in range(n):
        found = found * np.uint64(0xD1342543DE82EF95) + values[place : place + len(found)]
    return found


def ngram_keys(text: str, n: int, seed: int) -> np.ndarray[Any, Any]:
    """A number for each run of n words of a text; runs of other lengths have other numbers."""
    if len(words(text)) < n:
        return np.zeros(0, np.uint64)
    found = scramble(shingles(text, "words", n, seed) + np.uint64(n * GOLDEN & ALL))
    found[found == 0] = 1
    return found


def _word(word: bytes, key: int) -> int:
    """The hash of a word, eight bytes at a time."""
    number = key ^ len(word)
    for start in range(0, len(word), 8):
        product = (number ^ int.from_bytes(word[start : start + 8], "little")) * 0xA0761D6478BD642F
        number = (product ^ product >> 64) & ALL
    return number


def signature(found: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """The MinHash signature of shingles: `size` bins, each with the least hash of the shingles in it.

    In each round every shingle falls into one bin; bins that were filled in an earlier round are not changed. A bin
    that is still empty after `size` rounds takes the least hash of all shingles in a round of its own.
    """
    bins = np.full(size, ALL, np.uint64)
    for turn in range(size):
        free = bins == ALL
        if not free.any():
            return bins
        places, values = _fall(found, turn, size)
        np.minimum.at(bins, places[free[places]], values[free[places]])
    for place in np.flatnonzero(bins == ALL):
        bins[place] = _fall(found, size + int(place), size)[1].min()
    return bins


def _fall(found: np.ndarray[Any, Any], turn: int, size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The bin and the hash of each shingle in a round."""
    hashes = scramble(found + np.uint64(turn * GOLDEN & ALL))
    places = (hashes >> np.uint64(32)) * np.uint64(size) >> np.uint64(32)
    return places.astype(np.int64), hashes << np.uint64(32) | hashes >> np.uint64(32)


def set_code(found: np.ndarray[Any, Any]) -> bytes:
    """A set of shingles as sorted numbers, whose gaps are Rice-coded.

    The numbers are the upper bits of the shingles: 10 bits more than the number of shingles needs, and 22 at least, so
    that different shingles rarely collide. They follow the least shingle, the count of distinct shingles and the count
    of numbers. Bits are filled from the lowest; 8 zero bytes are appended.
    """
    different = np.unique(found)
    bits = set_bits(len(different))
    values = np.unique(different >> np.uint64(64 - bits)).tolist()
    low = bits - (len(values) - 1).bit_length()
    code, used, before = 0, 0, 0
    for value in values:
        high, rest = divmod(value - before, 1 << low)
        code |= (1 | rest << 1) << used + high
        used += high + 1 + low
        before = value
    head = [int(different[0]).to_bytes(8, "little"), len(different).to_bytes(4, "little")]
    return b"".join([*head, len(values).to_bytes(4, "little"), code.to_bytes(-(-used // 8) + 8, "little")])


def set_bits(different: int) -> int:
    return max((different - 1).bit_length() + 10, 22)


def set_values(code: bytes) -> tuple[list[int], int]:
    """The numbers of a coded set, and how many bits each has."""
    different, count = (int.from_bytes(code[start : start + 4], "little") for start in (8, 12))
    bits = set_bits(different)
    low = bits - (count - 1).bit_length()
    rest, values, value = int.from_bytes(code[16:], "little"), [], 0
    for _ in range(count):
        high = (rest & -rest).bit_length() - 1
        value += high << low | rest >> high + 1 & (1 << low) - 1
        rest >>= high + 1 + low
        values.append(value)
    return values, bits


def set_jaccard(left: bytes, right: bytes) -> float:
    """The Jaccard similarity of two coded sets, by the bits that both have."""
    if not left or not right:
        return 0.0
    (one, bits), (other, more) = set_values(left), set_values(right)
    least = min(bits, more)
    a, b = {value >> bits - least for value in one}, {value >> more - least for value in other}
    return len(a & b) / len(a | b)


def simhash(found: np.ndarray[Any, Any]) -> int:
    """64 bits, each set if it is set in more than half of the hashes of shingles."""
    hashes = scramble(found)
    votes = [int((hashes >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(64)]
    return sum(1 << bit for bit, count in enumerate(votes) if 2 * count > len(found))


# -- repeated content --------------------------------------------------------------------------------------


def bloom(bits: bytearray | memoryview, hashes: bytes, probes: int, add: bool) -> bytes:
    """Whether all bits that each 16-byte hash selects are set; with `add` they are set then."""
    seen = bytearray()
    for start in range(0, len(hashes), 16):
        place = int.from_bytes(hashes[start : start + 8], "little")
        step = int.from_bytes(hashes[start + 8 : start + 16], "little") | 1
        places = [((place + probe * step & ALL) * len(bits) * 8) >> 64 for probe in range(probes)]
        found = True
        for at in places:
            found = found and bool(bits[at >> 3] >> (at & 7) & 1)
            if add:
                bits[at >> 3] |= 1 << (at & 7)
        seen.append(found)
    return bytes(seen)


def repeated_spans(texts: Iterable[str | bytes], n: int) -> list[tuple[int, int, int]]:
    """Row, start and end, in bytes, of the spans covered by windows of n bytes that occurred before.

    A span of text is shortened so that it does not begin or end within a character.
    """
    seen: set[bytes] = set()
    spans: list[tuple[int, int, int]] = []
    for row, text in enumerate(texts):
        data, found = text if isinstance(text, bytes) else text.encode(), list[list[int]]()
        for start in range(len(data) - n + 1):
            window = data[start : start + n]
            if window not in seen:
                seen.add(window)
            elif found and start <= found[-1][1]:
                found[-1][1] = start + n
            else:
                found.append([start, start + n])
        ends = range(len(data) + 1)
        whole = {len(text[:place].encode()) for place in range(len(text) + 1)} if isinstance(text, str) else {*ends}
        inner = [(min(whole & set(range(a, len(data) + 1))), max(whole & set(range(b + 1)))) for a, b in found]
        spans += [(row, a, b) for a, b in inner if a < b]
    return spans


def anchors(text: str, n: int, k: int) -> list[tuple[int, int, int, int]]:
    """First and last window of n bytes that share an anchor, the position of the anchor, and its hash.

    The anchor of a window is the run of k bytes in it with the least hash; of equal ones the last.
    """
    data, found = text.encode(), list[tuple[int, int, int, int]]()
    for first in range(len(data) - n + 1):
        places = range(first, first + n - k + 1)
        number, place = min((_bytes_number(data[at : at + k]), -at) for at in places)
        if found and found[-1][2] == -place:
            found[-1] = (found[-1][0], first, -place, number)
        else:
            found.append((first, first, -place, number))
    return found


def _bytes_number(data: bytes) -> int:
    number = 0
    for byte in data:
        number = number * 0xD1342543DE82EF95 + byte + 1 & ALL
    return scramble(number)


# -- graphs ------------------------------------------------------------------------------------------------


def components(edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The least node that each node of a graph is connected with."""
    parents: dict[int, int] = {}

    def root(node: int) -> int:
        while parents.setdefault(node, node) != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for u, v in edges:
        low, high = sorted((root(u), root(v)))
        parents[high] = low
    return {node: root(node) for node in parents}
