"""What deduplication computes: the definition of each function, in plain Python.

`_kernels` computes the same in C, many times faster. This file says what is right, and does the work where the
extension could not be built. All arithmetic is that of unsigned 64-bit numbers.
"""

from __future__ import annotations

import string
import unicodedata
from functools import lru_cache

ALL = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15

# -- hashes ------------------------------------------------------------------------------------------------


def rotate(x: int, by: int) -> int:
    return (x << by | x >> 64 - by) & ALL


def scramble(x: int) -> int:
    """Sends each number to another one, without an order that can be seen."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & ALL
    x = (x ^ x >> 27) * 0x94D049BB133111EB & ALL
    return x ^ x >> 31


def murmur(data: bytes, seed: int = 0) -> bytes:
    """MurmurHash3, the 128-bit form for 64-bit machines."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    a = b = seed
    padded = data + bytes(-len(data) % 16)
    for start in range(0, len(padded), 16):
        first = int.from_bytes(padded[start : start + 8], "little")
        second = int.from_bytes(padded[start + 8 : start + 16], "little")
        a ^= rotate(first * c1 & ALL, 31) * c2 & ALL
        b_mixed = rotate(second * c2 & ALL, 33) * c1 & ALL
        if start + 16 > len(data):  # what is left at the end is mixed in, and no more
            b ^= b_mixed
            break
        a = ((rotate(a, 27) + b) * 5 + 0x52DCE729) & ALL
        b ^= b_mixed
        b = ((rotate(b, 31) + a) * 5 + 0x38495AB5) & ALL
    a ^= len(data)
    b ^= len(data)
    a = a + b & ALL
    b = a + b & ALL
    a, b = _finish(a), _finish(b)
    a = a + b & ALL
    b = a + b & ALL
    return a.to_bytes(8, "little") + b.to_bytes(8, "little")


def _finish(x: int) -> int:
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & ALL
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & ALL
    return x ^ x >> 33


# -- normal forms ------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _no_punctuation() -> dict[int, None]:
    codes = range(0x110000)
    found = [code for code in codes if chr(code) in string.punctuation or unicodedata.category(chr(code))[0] == "P"]
    return dict.fromkeys(found)


def normalise(text: str, unicode: str | None, lower: bool, punctuation: bool, space: bool) -> str:
    """A text in Unicode's normal form, in lower case, without punctuation, and with one space for white space."""
    if unicode:
        text = unicodedata.normalize(unicode, text)  # type: ignore[arg-type]
    if lower:
        text = text.lower()
    if punctuation:
        text = text.translate(_no_punctuation())
    return " ".join(text.split()) if space else text
