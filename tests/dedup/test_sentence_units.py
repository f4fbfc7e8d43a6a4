"""Where sentences end is found in all documents at once, and is what a regular expression finds in each."""

from __future__ import annotations

import re
from itertools import accumulate

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.dedup.substring.text_units import cut_units

SENTENCE = re.compile("(?:[.!?…])[\"')\\]’”»]*[ \t\r\n]+|[。！？]|\n(?:[ \t\r]*\n)*")

texts = st.lists(st.text(st.sampled_from(list(".!?…\"')]’”»。！？ \t\r\nab“«—Ω")), max_size=12) | st.none(), max_size=6)


@settings(max_examples=200, deadline=None)
@given(texts)
@example(["a.", '" b', ".\n", "\n\n", " c"])
@example(["A list\r\n\r\nB\n  ", "\n", "c\n \t\nd"])
@example(["a. \n  b.”» c\n\nd", "", "…' 。!\n", '."'])
def test_sentences_end_where_the_expression_says(documents: list[str | None]) -> None:
    given_ = [document or "" for document in documents]
    starts = [0, *accumulate(len(document.encode()) for document in given_)]
    wanted = {
        start + len(document[: match.end()].encode())
        for start, document in zip(starts, given_, strict=False)
        for match in SENTENCE.finditer(document)
    }
    pieces = cut_units(pa.array(documents, pa.string()), "sentence")
    assert pieces.bounds.tolist() == sorted(wanted | set(starts))
    assert np.diff(pieces.firsts).sum() == len(pieces.texts)
