"""Modifiers that take something off: tables of text before and after, and the batch form held to the document form."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.text import (
    BoilerPlateStringModifier,
    DocumentModifier,
    FastTextLabelModifier,
    HtmlEntityDecoder,
    HtmlRemover,
    LineCleaner,
    LineRemover,
    MarkdownRemover,
    ParagraphCleaner,
    QuotationRemover,
    Slicer,
)

LINES = LineRemover(["* * *", "a.b", ""])
POLICY = "Please read our Privacy Policy."
TEXT = "This is some text."

ROWS: list[tuple[DocumentModifier, str, str]] = [
    (LINES, "", ""),
    (LINES, "one\n* * *\ntwo", "one\ntwo"),
    (LINES, "one\n\ntwo\n", "one\ntwo"),
    (LINES, "acb\na.b\n a.b\na.b ", "acb\n a.b\na.b "),
    (LINES, "* * *", ""),
    (LineRemover(["é\\"]), "é\\\né", "é"),
    (LineRemover([]), "a\n\nb", "a\n\nb"),
    (MarkdownRemover(), "", ""),
    (MarkdownRemover(), "plain text", "plain text"),
    (MarkdownRemover(), "**bold** and *italic* and _under_", "bold and italic and under"),
    (MarkdownRemover(), "see [the page](https://a.b/c) now", "see https://a.b/c now"),
    (MarkdownRemover("label"), "see [the page](https://a.b/c) now", "see the page now"),
    (MarkdownRemover(), "**not\nbold**", "not\nbold"),  # the two stars of each line are an empty italic
    (MarkdownRemover(), "*not\nitalic*", "*not\nitalic*"),
    (MarkdownRemover(), "snake_case_name 日_本_語", "snakecasename 日本語"),
    (MarkdownRemover(), "2 * 3", "2 * 3"),
    (QuotationRemover(), "", ""),
    (QuotationRemover(), '"', '"'),
    (QuotationRemover(), '""', '""'),
    (QuotationRemover(), '"a"', "a"),
    (QuotationRemover(), '"é"', "é"),
    (QuotationRemover(), '"a', '"a'),
    (QuotationRemover(), '"a"\nsaid "b"', '"a"\nsaid "b"'),
    (QuotationRemover(), '"a\nb"', "a\nb"),
    (QuotationRemover(), '"a"\n', '"a"\n'),
    (Slicer(), "", ""),
    (Slicer(), " a ", "a"),
    (Slicer(strip=False), " a ", " a "),
    (Slicer(1, 3), "naïve", "aï"),
    (Slicer(-3), "abcdef", "def"),
    (Slicer("<", ">"), "a <b> c> d", "<b> c>"),
    (Slicer("<", ">", include_left=False, include_right=False), "a < b> c> d", "b> c"),
    (Slicer("<", ">", include_left=False, include_right=False, strip=False), "a < b >", " b "),
    (Slicer("x"), "abc", ""),
    (Slicer(0, "x"), "abc", ""),
    (Slicer("c", "a"), "abc", ""),
    (BoilerPlateStringModifier(), "", ""),
    (BoilerPlateStringModifier(), " ", " "),
    (BoilerPlateStringModifier(), f"{POLICY}\n\n{TEXT}\n\n{POLICY}", TEXT),
    (BoilerPlateStringModifier(), f"{POLICY}\n\n{POLICY}\n\n{TEXT}", TEXT),
    (BoilerPlateStringModifier(), f"{TEXT}\n\n{POLICY}\n\n{TEXT}", f"{TEXT}\n\n{POLICY}\n\n{TEXT}"),
    (BoilerPlateStringModifier(False), f"{TEXT}\n\n{POLICY}\n\n{TEXT}", f"{TEXT}\n\n{TEXT}"),
    (BoilerPlateStringModifier(), POLICY, ""),
    (BoilerPlateStringModifier(), f"{TEXT}\n\nLorem Ipsum dolor", ""),
    (BoilerPlateStringModifier(), f"{TEXT}\n{TEXT}", f"{TEXT}\n{TEXT}"),
    (FastTextLabelModifier("__label__hq"), "", "__label__hq "),
    (FastTextLabelModifier("__label__hq"), "a\nb é", "__label__hq a b é"),
    (FastTextLabelModifier("__label__hq"), "x __label__cc y", "__label__hq x  cc y"),
    (HtmlEntityDecoder(), "", ""),
    (HtmlEntityDecoder(), "R&D a & b", "R&D a & b"),
    (HtmlEntityDecoder(), "a &amp; b &eacute; &#8217; &#x41;", "a & b é ’ A"),
    (HtmlEntityDecoder(), "&amp;quot;", "&quot;"),
    (HtmlEntityDecoder(2), "&amp;quot;", '"'),
    (HtmlRemover(), "", ""),
    (HtmlRemover(), "a < b and  c > d\n", "a < b and  c > d\n"),
    (HtmlRemover(), "I <3 you", "I <3 you"),
    (HtmlRemover(), "<p>Hello <b>wo</b>rld</p><p>Next&nbsp;one", "Hello world\nNext one"),
    (HtmlRemover(), "a<br>b<br/>c", "a\nb\nc"),
    (HtmlRemover(), "<style>p {}</style><script>if (a < b) x()</script>text<!-- no -->!", "text!"),
    (HtmlRemover(), "<table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>", "1\t2\n3"),
    (HtmlRemover(), "<pre>a\n  b</pre>", "a\nb"),
    (HtmlRemover(), "<![if IE]>日本<![endif]> &lt;tag&gt;", "日本 <tag>"),
    (LineCleaner(), "", ""),
    (LineCleaner(), " \n ", ""),
    (LineCleaner(), "Home\nThis is a line.\n  So is this one!  \nBut not this", "This is a line.\nSo is this one!"),
    (LineCleaner(), "Too short.\nHe waited and waited...", ""),
    (LineCleaner(), "Please enable JavaScript in your browser.\nWe Use Cookies here.", ""),
    (LineCleaner(), "Water is wet.[1][citation needed]", "Water is wet."),
    (LineCleaner(remove_citations=False), "Water is wet.[1]", ""),
    (LineCleaner(max_word_length=4), "Some long words.\nA few are.", "A few are."),
    (LineCleaner(None, 0, None, ()), " a \n\nb", "a\n\nb"),
    (LineCleaner(min_words=1), "彼は眠った。", "彼は眠った。"),
    (ParagraphCleaner(), "", ""),
    (ParagraphCleaner(), " \n\n \n", ""),
    (ParagraphCleaner(), "a\nb\n\n\n\nc\n \nd", "a\nb\n\nc\n\nd"),
    (ParagraphCleaner(), "a\n\nb\n\na", "a\n\nb"),
    (ParagraphCleaner(drop_repeated=False), "a\n\nb\n\na", "a\n\nb\n\na"),
    (ParagraphCleaner(min_words=2), "one\n\none two\n\nthree", "one two"),
    (ParagraphCleaner(min_characters=3), "äöü\n\nab", "äöü"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "text", "wanted"), ROWS, ids=lambda value: repr(value)[:40])
def test_table(one: DocumentModifier, text: str, wanted: str) -> None:
    assert one.modify_document(text) == wanted
    assert one.modify_batch(pa.array([text], pa.string())).to_pylist() == [wanted]


ALL = list({repr(one): one for one, _, _ in ROWS}.values())
marks = st.sampled_from(
    ["\n", "\n\n", "**", "*", "_", "[", "](", ")", '"', "<", ">", "* * *", "a.b", "&amp", ";", "<p>", "</p>", "<![",
     "]>", "<!--", "-->", "<script>", "privacy policy", "Lorem İpsum", "lorem ipſum", "__label__", "[1]", ". ", "\x1c",
     "\r", "K", "use cooKies", " "]
)  # fmt: skip
characters = st.characters(exclude_categories=["Cs"])
documents = st.none() | st.text(characters, max_size=8) | st.lists(marks | characters, max_size=12).map("".join)


@pytest.mark.parametrize("one", ALL, ids=lambda one: repr(one)[:40])
@given(texts=st.lists(documents, max_size=5))
@example(texts=[])
@example(texts=[None, None])
@settings(max_examples=20, deadline=None)
def test_the_batch_form_equals_the_document_form(one: DocumentModifier, texts: list[str | None]) -> None:
    column = pa.array(texts, pa.string())
    new = one.modify_batch(column)
    assert new.type == pa.string()
    assert new.to_pylist() == [None if text is None else one.modify_document(text) for text in texts]
    chunked = pa.chunked_array([column.slice(0, 2), column.slice(2)], pa.string())
    assert one.modify_batch(chunked).equals(new)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LineRemover("abc"), "list of lines"),
        (lambda: LineRemover(["a\nb"]), "several lines"),
        (lambda: MarkdownRemover("both"), "'url' or 'label'"),
        (lambda: Slicer(""), "left is an empty"),
        (lambda: FastTextLabelModifier("a b"), "one word"),
        (lambda: HtmlEntityDecoder(0), "1 or more"),
        (lambda: LineCleaner(substrings="x"), "must be a list"),
        (lambda: LineCleaner(min_words=-1), "0 or more"),
        (lambda: ParagraphCleaner(min_words=-1), "0 or more"),
    ],
)
def test_bad_parameters_are_refused(make, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_they_survive_pickling_after_use() -> None:
    for one in ALL:
        one.modify_document("a")
        assert repr(pickle.loads(pickle.dumps(one))) == repr(one)
