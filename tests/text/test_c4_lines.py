"""The lines that C4 keeps: what the kernel does to columns equals the definition in Python."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill import _kernels
from gristmill.text import C4QualityFilter, LineCleaner

# fmt: off
PIECES = st.sampled_from([
    "one two three", "is", "word", ".", "!", "?", '"', "'", "”", "…", "...", "。", "[1]", "[12]", "[]", "[٣]",
    "[edit]", "[citation needed]", "[x]", "[", "]", "javascript", "JavaScript", "Terms of Use", "privacy policy",
    "uses coo\u212aies",
    "javascr\u0130pt", "lorem Ipsum", "{", "}", "x" * 12, "é" * 12, "日本。語です", "e.g.", "Mr. X",
    "$ <", "\n", "\n", "\r\n",
    "\u2028", "\x0c", "\x85", " ", " ", "\t", "\u00a0", "\u3000", "\0",
])
# fmt: on
DOCUMENTS = st.none() | st.lists(PIECES, max_size=40).map("".join) | st.lists(PIECES, max_size=40).map(" ".join)
CLEANERS = [
    LineCleaner(),
    LineCleaner(end_marks=None),
    LineCleaner("。x", 1, 11, ("Word",), remove_citations=False),
    LineCleaner(None, 0, None, ()),
    LineCleaner(substrings=("ß", "é")),
    LineCleaner(substrings=("",)),
]
FILTERS = [
    C4QualityFilter(),
    C4QualityFilter(filter_no_terminal_punct=False),
    C4QualityFilter(max_word_length=11, min_words_per_line=1, remove_citations=False),
    C4QualityFilter(max_word_length=None, min_words_per_line=0, filter_javascript=False, filter_policy=False),
]


@pytest.mark.parametrize("cleaner", CLEANERS, ids=repr)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(DOCUMENTS, max_size=5))
@example(texts=["[1] a b c.", " a b c.[1] \n", "a [1] b c"])
def test_columns_are_cleaned_as_documents_are(cleaner: LineCleaner, texts: list[str | None]) -> None:
    for kind in (pa.string(), pa.large_string()):
        found = cleaner.modify_batch(pa.array(texts, kind).slice(0))
        assert found.to_pylist() == [None if text is None else cleaner.modify_document(text) for text in texts]


@pytest.mark.parametrize("one", FILTERS, ids=repr)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(DOCUMENTS, max_size=5))
def test_columns_are_measured_as_documents_are(one: C4QualityFilter, texts: list[str | None]) -> None:
    measures = one.measure_batch(pa.array(texts, pa.string()))
    wanted = [one.measure(text or "") for text in texts]
    assert [dict(zip(measures, row, strict=True)) for row in zip(*measures.values(), strict=True)] == [
        {name: pa.scalar(value) for name, value in row.items()} for row in wanted
    ]


def test_what_is_cleaned_has_the_sentences_that_were_counted() -> None:
    text = "One. Two! There is a third one\nWe use cookies.\nIt is known.[1] So is this"
    one = C4QualityFilter(filter_no_terminal_punct=False)
    assert one.score_document(text) == one.score_document(LineCleaner(end_marks="").modify_document(text)) == 5


def test_wrong_arguments_are_refused() -> None:
    rules = (".", 3, -1, True, (b"a", b"b"))
    for kernel, more in ((_kernels.clean_lines, ()), (_kernels.measure_lines, (True,))):
        with pytest.raises(TypeError, match="a column of strings"):
            kernel(pa.array([1]), rules, *more)
        with pytest.raises(ValueError, match="too many"):
            kernel(pa.array(["a"]), ("." * 65, *rules[1:]), *more)
    with pytest.raises(ValueError, match="two phrases"):
        _kernels.measure_lines(pa.array(["a"]), (*rules[:4], ()), True)
