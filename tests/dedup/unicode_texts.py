"""Texts for property tests of the kernels: any Unicode, and pieces that make them look twice."""

from __future__ import annotations

import random

from hypothesis import strategies as st

# fmt: off
PIECES = [
    "a", "b", "the", "The", "ab", "abcdefgh", "abcdefghi", "é", "e\u0301", "ﬁ", "ß", "İ", "Σ", "中文", "😀", "…", "“",
    "«", " ", "  ", "\n", "\n\n", "\t", "\x1c", "\x85", "\u00a0", "\u3000", "\u200b", "\0", ".", "!", "$",
    "a b c d e f", "a中b", "磨", "カナ", "ไทย", "ລາວ", "ខ្មែរ", "မြန်မာ", "\U00020000", "한글", "々。",
]
# fmt: on
pieces = st.sampled_from(PIECES)
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(pieces, max_size=60).map("".join)
documents = st.none() | texts
columns = st.lists(documents, max_size=6)


def chinese(seed: int, changes: int = 0) -> str:
    """A text without spaces, of which some characters are others."""
    characters = random.Random(seed).choices([chr(0x4E00 + number) for number in range(2000)], k=600)
    for number in range(changes):
        characters[number * 17 % 600] = "改"
    return "".join(characters)
