from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch
from gristmill.text import (
    BoilerPlateStringFilter,
    BulletsFilter,
    CommonEnglishWordsFilter,
    DocumentFilter,
    EllipsisFilter,
    IncompleteStoryFilter,
    LongWordFilter,
    MeanWordLengthFilter,
    NonAlphaNumericFilter,
    NumbersFilter,
    ParenthesesFilter,
    PornographicUrlsFilter,
    PunctuationFilter,
    RepeatedLinesByCharFilter,
    RepeatedLinesFilter,
    RepeatedParagraphsByCharFilter,
    RepeatedParagraphsFilter,
    RepeatingDuplicateNGramsFilter,
    RepeatingTopNGramsFilter,
    ScoreFilter,
    SubstringFilter,
    SymbolsToWordsFilter,
    UrlsFilter,
    WhiteSpaceFilter,
    WordCountFilter,
    WordsWithoutAlphabetsFilter,
)

COMPLETE = IncompleteStoryFilter()

# filter, text, score, kept
ROWS: list[tuple[DocumentFilter, str, float, bool]] = [
    (WordCountFilter(), "", 0, False),
    (WordCountFilter(), " \n\t\u3000", 0, False),
    (WordCountFilter(), "word " * 49, 49, False),
    (WordCountFilter(), "word " * 50, 50, True),
    (WordCountFilter(max_words=60), "word " * 60, 60, True),
    (WordCountFilter(max_words=60), "word " * 61, 61, False),
    (WordCountFilter(min_words=0), "", 0, True),
    (WordCountFilter(min_words=2), "a\u00a0b\x1cc\u200bd", 3, True),  # zero-width space is no space
    (MeanWordLengthFilter(), "", 0.0, False),
    (MeanWordLengthFilter(), "  \n ", 0.0, False),
    (MeanWordLengthFilter(), "one two", 3.0, True),
    (MeanWordLengthFilter(), "on two", 2.5, False),
    (MeanWordLengthFilter(), "a" * 10, 10.0, True),
    (MeanWordLengthFilter(), "a" * 11, 11.0, False),
    (MeanWordLengthFilter(), "naïve größe", 5.0, True),
    (SubstringFilter("ab", "prefix"), "abc", 1, True),
    (SubstringFilter("ab", "prefix"), "cab", 0, False),
    (SubstringFilter("ab", "suffix"), "cab", 1, True),
    (SubstringFilter("ab", "suffix"), "abc", 0, False),
    (SubstringFilter("ab", "any"), "cabc", 1, True),
    (SubstringFilter("ab", "any"), "ba", 0, False),
    (SubstringFilter("é.", "any"), "cafe\u0301.", 0, False),
    (SubstringFilter("ab", "any"), "", 0, False),
    (COMPLETE, "", 0, False),
    (COMPLETE, " \n", 0, False),
    (COMPLETE, "The end.", 1, True),
    (COMPLETE, "The end.\n\n \u3000", 1, True),
    (COMPLETE, "The end", 0, False),
    (COMPLETE, "The end,", 0, False),
    (COMPLETE, "Really?!", 1, True),
    (COMPLETE, 'She said, "Good night."', 1, True),
    (COMPLETE, "She said, “Good night.”", 1, True),
    (COMPLETE, "Er sagte: „Gute Nacht.“", 1, True),
    (COMPLETE, "Er sagte: »Gute Nacht!«", 1, True),
    (COMPLETE, "Elle dit : « Bonne nuit. »", 1, True),
    (COMPLETE, "(She slept (well).)", 1, True),
    (COMPLETE, 'She said, "Good night"', 0, False),
    (COMPLETE, 'She slept. "', 0, False),
    (COMPLETE, '"', 0, False),
    (COMPLETE, "»", 0, False),
    (COMPLETE, "And then…", 1, True),
    (COMPLETE, "彼は眠った。", 1, True),
    (COMPLETE, "他说：「晚安。」", 1, True),
    (COMPLETE, "वह सो गया।", 1, True),
    (COMPLETE, "هل نام؟", 1, True),
    (COMPLETE, "وہ سو گیا۔", 1, True),
    (NonAlphaNumericFilter(), "", 1.0, False),
    (NonAlphaNumericFilter(), "    ", 1.0, False),
    (NonAlphaNumericFilter(), "abc ", 0.25, True),
    (NonAlphaNumericFilter(), "ab  ", 0.5, False),
    (NonAlphaNumericFilter(), "aZ09\n?!,.", 0.0, True),
    (NonAlphaNumericFilter(0.3), "abcdefg###", 0.3, True),
    (NonAlphaNumericFilter(), "aéé😀", 0.75, False),
    (UrlsFilter(), "", 1.0, False),
    (UrlsFilter(), "   ", 0.0, True),
    (UrlsFilter(), "no links here", 0.0, True),
    (UrlsFilter(), "http://ab xxxxxxxxxx", 0.45, False),
    (UrlsFilter(), "http://a " + "x" * 31, 0.2, True),
    (UrlsFilter(), "https:// www.ab x", 0.0, True),
    (UrlsFilter(), "http://a\u00a0b", 0.8, False),
    (UrlsFilter(), 'http://a"', 8 / 9, False),
    (UrlsFilter(), "http://a%20b%2", 12 / 14, False),
    (UrlsFilter(), "xhttps://a/http://b", 18 / 19, False),
    (UrlsFilter(url_regex=r"(ftp)://(\S+)"), "ftp://ab http://ab x", 0.4, False),
    (PornographicUrlsFilter(), "", 0, True),
    (PornographicUrlsFilter(), "porn http://a.b/porn", 1, False),
    (PornographicUrlsFilter(), "porn http://a.b/PORN www.porn", 0, True),
    (PornographicUrlsFilter(url_regex=r"www\.\S+"), "www.porn.x", 1, False),
    (NumbersFilter(), "", 1.0, False),
    (NumbersFilter(), "   ", 0.0, True),
    (NumbersFilter(), "abcdefgh12", 0.2, False),
    (NumbersFilter(0.5), "१2ab²½", 1 / 6, True),
    (WhiteSpaceFilter(), "", 1.0, False),
    (WhiteSpaceFilter(), "a b c d e", 4 / 9, False),
    (WhiteSpaceFilter(), "abc\u00a0\x0b\bdef", 1 / 9, True),
    (ParenthesesFilter(), "", 1.0, False),
    (ParenthesesFilter(), "f(x) and more text", 2 / 18, False),
    (ParenthesesFilter(), "⟨" + "x" * 9, 0.1, True),
    (LongWordFilter(), "", 0, True),
    (LongWordFilter(), "é" * 1000, 1000, True),
    (LongWordFilter(), "a " + "é" * 1001, 1001, False),
    (SymbolsToWordsFilter(), "", 1.0, False),
    (SymbolsToWordsFilter(), " \n", 1.0, False),
    (SymbolsToWordsFilter(), "a ... b # #c ## read more", 2 / 8, False),
    (SymbolsToWordsFilter(), "[…] #é#é# a…" + " word" * 17, 0.1, True),
    (WordsWithoutAlphabetsFilter(), "", 0.0, False),
    (WordsWithoutAlphabetsFilter(), "a1 é ß 漢 12", 0.8, True),
    (WordsWithoutAlphabetsFilter(), "1 2 a Ⅳ", 0.5, False),
    (CommonEnglishWordsFilter(), "", 0, False),
    (CommonEnglishWordsFilter(), "the The THE", 1, False),
    (CommonEnglishWordsFilter(), "the cat and the dog", 2, True),
    (CommonEnglishWordsFilter(stop_at_false=False), "the cat and the dog", 3, True),
    (BulletsFilter(), "", 1.0, False),
    (BulletsFilter(), "• a\n\n  ◦b\n- c\n* d", 0.5, True),
    (BulletsFilter(), "• a\n\t‣ b", 1.0, False),
    (PunctuationFilter(), "", 1.0, False),
    (PunctuationFilter(), 'a.\nb"  \nc\n \nd', 0.5, True),
    (PunctuationFilter(), "a\nb", 1.0, False),
    (EllipsisFilter(), "", 1.0, False),
    (EllipsisFilter(), "a...\nb […]\nRead More \nd", 0.75, False),
    (EllipsisFilter(), "a..\nb…\nc\nd", 0.25, True),
    (BoilerPlateStringFilter(), "", 0.0, True),
    (BoilerPlateStringFilter(), "See our Terms of Use\n\na\n\nb", 1 / 3, True),
    (BoilerPlateStringFilter(), "This site uses cookies, and its privacy policy\n\na", 0.5, False),
    (BoilerPlateStringFilter(), "a\n\nb\n\nc\n\nLorem ipsum dolor", 1.0, False),
    (BoilerPlateStringFilter(), "uses\ncookies", 0.0, True),
    (RepeatedLinesFilter(), "", 0.0, False),
    (RepeatedLinesFilter(), "a\n\nb\na\na ", 0.75, True),
    (RepeatedLinesFilter(), "a\na", 0.5, False),
    (RepeatedParagraphsFilter(), "", 1.0, True),
    (RepeatedParagraphsFilter(), "\n\n", 0.5, False),
    (RepeatedParagraphsFilter(), "a\n\nb\n\na\n\nc", 0.75, True),
    (RepeatedLinesByCharFilter(), "", 0.0, False),
    (RepeatedLinesByCharFilter(), "a\na\néééééééé", 0.9, True),
    (RepeatedLinesByCharFilter(), "ab\nab", 0.5, False),
    (RepeatedParagraphsByCharFilter(), "", 0.0, False),
    (RepeatedParagraphsByCharFilter(), "\n\n", 0.0, False),
    (RepeatedParagraphsByCharFilter(), "a\n\na\n\néééééééé", 0.9, True),
    (RepeatingTopNGramsFilter(), "", 1.0, False),
    (RepeatingTopNGramsFilter(), "one", 1.0, False),
    (RepeatingTopNGramsFilter(), "a b a b c", 6 / 9, False),
    (RepeatingTopNGramsFilter(), "a\nb a\nb " + "x" * 100, 0.0, True),  # never with a space between
    (RepeatingTopNGramsFilter(3, 0.5), "a b c xa b cx", 10 / 13, False),  # also inside longer words
    (RepeatingDuplicateNGramsFilter(), "one", 1.0, False),
    (RepeatingDuplicateNGramsFilter(), "a b c d", 0.0, True),
    (RepeatingDuplicateNGramsFilter(), "a b a b", 3 / 7, False),
    (RepeatingDuplicateNGramsFilter(2, 0.5), "a a a a", 5 / 7, False),
    (RepeatingDuplicateNGramsFilter(3), "a b c d a b c d", 7 / 15, False),
]


@pytest.mark.parametrize(("one", "text", "score", "kept"), ROWS, ids=lambda value: repr(value)[:40])
def test_table(one: DocumentFilter, text: str, score: float, kept: bool) -> None:
    assert one.score_document(text) == score
    assert one.keep_document(score) is kept
    scores = one.score_batch(pa.array([text], pa.string()))
    assert scores.to_pylist() == [score]
    assert one.keep_batch(scores).to_pylist() == [kept]


ALL = [
    WordCountFilter(2, 3),
    MeanWordLengthFilter(),
    SubstringFilter("a", "prefix"),
    SubstringFilter(".", "suffix"),
    SubstringFilter("é", "any"),
    IncompleteStoryFilter(),
    NonAlphaNumericFilter(0.4),
    UrlsFilter(),
    UrlsFilter(url_regex=r"\w+://\S*"),
    PornographicUrlsFilter(),
    PornographicUrlsFilter(url_regex=r"\w+://\S*"),
    NumbersFilter(),
    WhiteSpaceFilter(),
    ParenthesesFilter(),
    LongWordFilter(3),
    SymbolsToWordsFilter(),
    WordsWithoutAlphabetsFilter(),
    CommonEnglishWordsFilter(),
    BulletsFilter(),
    PunctuationFilter(),
    EllipsisFilter(),
    BoilerPlateStringFilter(),
    RepeatedLinesFilter(),
    RepeatedParagraphsFilter(),
    RepeatedLinesByCharFilter(),
    RepeatedParagraphsByCharFilter(),
    RepeatingTopNGramsFilter(),
    RepeatingDuplicateNGramsFilter(3),
]

words = st.sampled_from(
    [
        "http://a.b/c",
        "https://",
        "www.",
        "www.é",
        "a",
        ".",
        "»",
        " ",
        "\n",
        "\x1c",
        "\x85",
        "\u00a0",
        "é",
        "“",
        "。",
        "\0",
    ]
)
characters = st.characters(exclude_categories=["Cs"])
documents = st.none() | st.text(characters) | st.lists(words | characters, max_size=12).map("".join)


@pytest.mark.parametrize("one", ALL, ids=repr)
@settings(max_examples=30)
@given(texts=st.lists(documents, max_size=6))
@example(texts=[])
@example(texts=[None, "", " ", "\n\n", None])
def test_the_batch_form_equals_the_document_form(one: DocumentFilter, texts: list[str | None]) -> None:
    column = pa.array(texts, pa.string())
    wanted = [one.score_document(text or "") for text in texts]
    scores = one.score_batch(column)
    assert scores.type == one.score_type
    assert scores.to_pylist() == wanted
    chunked = pa.chunked_array([column.slice(0, 2), column.slice(2)], pa.string())
    assert one.score_batch(chunked).equals(scores)
    keep = one.keep_batch(scores)
    assert keep.type == pa.bool_()
    assert keep.to_pylist() == [one.keep_document(score) for score in wanted]


@given(scores=st.lists(st.none() | st.floats() | st.integers(-(2**63), 2**63 - 1)))
def test_bounds_agree_on_any_number_and_drop_null(scores: list[float | None]) -> None:
    numbers = [None if score is None else float(score) for score in scores]
    one = MeanWordLengthFilter()
    wanted = [score is not None and one.keep_document(score) for score in numbers]
    assert one.keep_batch(pa.array(numbers, pa.float64())).to_pylist() == wanted


@pytest.mark.parametrize("kind", [pa.null(), pa.int64(), pa.float32()])
def test_null_scores_of_any_type_are_not_kept(kind: pa.DataType) -> None:
    assert WordCountFilter(0).keep_batch(pa.nulls(2, kind)).to_pylist() == [False, False]


def test_arguments_are_attributes_and_survive_pickling() -> None:
    for one in (*ALL, WordCountFilter(min_words=80, lang="de")):
        assert vars(pickle.loads(pickle.dumps(one))) == vars(one)
    assert repr(WordCountFilter(min_words=80)) == "WordCountFilter(min_words=80, max_words=100000, lang='en')"
    assert WordCountFilter().name == "WordCountFilter"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WordCountFilter(min_words=10, max_words=5), "min_words=10 and max_words=5"),
        (lambda: WordCountFilter(min_words=-1), "0 or more"),
        (lambda: WordCountFilter(lang="klingon"), "WordCountFilter: lang is 'klingon'.*a language code"),
        (lambda: WordCountFilter(lang=None), "lang is None"),  # type: ignore[arg-type]
        (lambda: WordCountFilter("5"), "WordCountFilter: min_words is '5', must be a number"),  # type: ignore[arg-type]
        (lambda: WordCountFilter(max_words=float("nan")), "max_words is nan, must be a number"),  # type: ignore[arg-type]
        (lambda: UrlsFilter("0.2"), "UrlsFilter: max_url_to_text_ratio is '0.2'"),  # type: ignore[arg-type]
        (lambda: RepeatedLinesFilter(None), "RepeatedLinesFilter: max_repeated_line_fraction is None"),  # type: ignore[arg-type]
        (lambda: MeanWordLengthFilter(5, 4), "min_mean_word_length=5"),
        (lambda: SubstringFilter("a", "middle"), "'prefix', 'suffix' or 'any'"),  # type: ignore[arg-type]
        (lambda: SubstringFilter("", "any"), "empty"),
        (lambda: NonAlphaNumericFilter(25), "from 0 to 1"),
        (lambda: UrlsFilter(-0.1), "from 0 to 1"),
        (lambda: UrlsFilter(url_regex="("), "UrlsFilter: url_regex .* is not a regular expression"),
        (lambda: PornographicUrlsFilter("("), "not a regular expression"),
        (lambda: NumbersFilter(15), "max_number_to_text_ratio is 15, must be a number from 0 to 1"),
        (lambda: LongWordFilter(-1), "0 or more"),
        (lambda: CommonEnglishWordsFilter(-1), "0 or more"),
        (lambda: RepeatingTopNGramsFilter(0), "n is 0, must be a whole number from 1 to 32"),
        (lambda: RepeatingDuplicateNGramsFilter(2.0), "n is 2.0"),  # type: ignore[arg-type]
    ],
)
def test_bad_parameters_are_refused(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


# words of these are found in the text: filter, text, score
UNSPACED = [
    (WordCountFilter(lang="th"), "สวัสดีชาวโลก", 8),
    (WordCountFilter(lang="zho"), "你好，世界。 a - b", 7),
    (WordCountFilter(lang="zh_Hans"), "你好", 2),
    (WordCountFilter(lang="ja"), "東京へ行く", 4),
    (WordCountFilter(lang="en"), "你好，世界。", 1),
    (MeanWordLengthFilter(lang="ja"), "東京へ行く", 1.25),
    (LongWordFilter(lang="zho"), "你好 gristmill", 9),
    (WordsWithoutAlphabetsFilter(lang="zho"), "你好 12", 2 / 3),
    (SymbolsToWordsFilter(lang="zho"), "你好 # ...", 0.5),
    (RepeatingTopNGramsFilter(lang="zho"), "你好你好你好", 9 / 11),
    (RepeatingDuplicateNGramsFilter(lang="zho"), "你好你好", 3 / 7),
    (WordCountFilter(lang="zho"), "", 0),
    (WordCountFilter(lang="zh"), "我喜欢学习中文。", 5),
    (WordCountFilter(lang="zh"), "你好，世界。 a\n- b", 7),
    (WordCountFilter(lang="zh"), " ", 0),
    (MeanWordLengthFilter(lang="zh"), "我喜欢学习中文。", 1.6),
    (LongWordFilter(lang="zh"), "你好 gristmill", 9),
]


@pytest.mark.parametrize(("one", "text", "score"), UNSPACED)
def test_words_of_languages_without_spaces_are_counted(one: Any, text: str, score: float) -> None:
    assert one.score_document(text) == score
    assert one.score_batch(pa.array([text, None])).to_pylist() == [score, one.score_document("")]
    both = ScoreFilter([WordCountFilter(0), one], score_field=["words", "score"], invert=[False, False])
    seen = both.decide(DocumentBatch({"text": [text]})).scores
    assert [column.to_pylist() for column in seen.values()] == [[len(text.split())], [score]]


class ShoutFilter(DocumentFilter):
    """The share of letters that are capitals."""

    def __init__(self, max_share: float = 0.5) -> None:
        self.max_share = max_share

    def score_document(self, text: str) -> float:
        return sum(map(str.isupper, text)) / (len(text) or 1)

    def keep_document(self, score: float) -> bool:
        return score <= self.max_share


def test_a_ten_line_filter_is_whole() -> None:
    one = ShoutFilter()
    scores = one.score_batch(pa.array(["HEY you", "HEY", None, ""]))
    assert scores.to_pylist() == [3 / 7, 1.0, 0.0, 0.0]
    assert one.keep_batch(scores).to_pylist() == [True, False, True, True]
    assert one.name == "ShoutFilter"


def test_the_type_of_scores_does_not_depend_on_the_rows() -> None:
    class Mixed(ShoutFilter):
        def score_document(self, text: str) -> float:
            return len(text) / 2 if text else 0

    assert Mixed().score_batch(pa.array([""])).type == pa.float64()
    assert Mixed().score_batch(pa.array(["", "abc"])).type == pa.float64()


def test_scores_may_be_lists() -> None:
    class Language(DocumentFilter):
        def score_document(self, text: str) -> list[Any]:
            return [0.9, "en"]

        def keep_document(self, score: list[Any]) -> bool:
            return score[1] == "en" and score[0] > 0.5

    scores = Language().score_batch(pa.array(["a", "b"]))
    assert Language().keep_batch(scores).to_pylist() == [True, True]


def test_a_new_document_form_is_not_overruled_by_an_inherited_batch_form() -> None:
    class Lines(WordCountFilter):
        def score_document(self, text: str) -> int:
            return len(text.splitlines())

        def keep_document(self, score: float) -> bool:
            return score == 2

    one = Lines()
    assert one.score_batch(pa.array(["a b c\nd"])).to_pylist() == [2]
    assert one.keep_batch(pa.array([2, 60])).to_pylist() == [True, False]
    assert one.name == "Lines"


def test_a_filter_without_its_two_methods_cannot_be_made() -> None:
    class Half(DocumentFilter):
        def score_document(self, text: str) -> float:
            return 0.0

    with pytest.raises(TypeError, match="keep_document"):
        Half()  # type: ignore[abstract]
