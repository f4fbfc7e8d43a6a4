"""Filters from the user's rules and lists, by vocabulary, and the presets of C4, Gopher and FineWeb."""

from __future__ import annotations

import gzip
import math
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import InputError
from gristmill.text import (
    C4BadWordsFilter,
    C4ParagraphFilter,
    C4QualityFilter,
    DocumentFilter,
    DocumentJoiner,
    FineWebQualityFilter,
    FlaggedWordsFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    HTMLBoilerplateFilter,
    IdentifyLanguage,
    LambdaFilter,
    LineCleaner,
    PackedSequenceWriter,
    ParagraphCleaner,
    RegexFilter,
    Slicer,
    StopWordRatioFilter,
    TokenizerFertilityFilter,
    TrainTestSplit,
    UnigramLogProbFilter,
    UrlBlocklistFilter,
    write_unigrams,
)
from gristmill.text.statistics.word_segmentation import split_words

BLOCK = UrlBlocklistFilter(
    ["bad.com", "0.0.0.0 ads.net", "https://WWW.worse.org/x"], ["http://ok.com/page/"], ["casino"], ["xxx"]
)
SOFT = UrlBlocklistFilter(soft_words=["free", "cash", "now"])
FLAGGED = FlaggedWordsFilter(["Darn", "heck"], max_ratio=0.3)
BAD = C4BadWordsFilter(["darn", "Bad Phrase", "c++"])
STOP = StopWordRatioFilter()
LOGS = UnigramLogProbFilter({"the": 3, "cat": 1}, logprobs_threshold=-2)
C4 = C4QualityFilter()
LINE = "This is a good line. "
GOPHER, FINE = GopherQualityFilter(), FineWebQualityFilter()
REPEATS = GopherRepetitionFilter()
PROSE = "The quick brown fox jumps over the lazy dog and runs to the hills. " * 4
LINES = "\n".join(f"This is line number {number} of a document that is long enough to be kept." for number in range(9))

JAPANESE = "\n".join(
    f"彼は{number}回よく眠ったので、次の日の朝はとても早く起きて元気に出かけた。" for number in range(9)
)

# filter, text, score, kept
ROWS: list[tuple[DocumentFilter, str, Any, bool]] = [
    (RegexFilter(r"\d+"), "", 0, True),
    (RegexFilter(r"\d+"), "a 1 b 22", 2, False),
    (RegexFilter(r"(?i)É", 1, None), "é É", 2, True),
    (RegexFilter(r"(?i)É", 1, None), "e", 0, False),
    (RegexFilter("a|b", 1, 2), "abab", 4, False),
    (LambdaFilter(str.isupper), "ABC", True, True),
    (LambdaFilter(str.isupper), "", False, False),
    (LambdaFilter(len), "é", 1.0, True),
    (BLOCK, "", "", True),
    (BLOCK, "no url at all", "", True),
    (BLOCK, "http://bad.com", "domains", False),
    (BLOCK, "https://a.b.BAD.com:80/x?y", "domains", False),
    (BLOCK, "bad.com/x", "domains", False),
    (BLOCK, "http://notbad.com/bad.com", "", True),
    (BLOCK, "http://ads.net.example.org", "", True),
    (BLOCK, "http://www.ads.net/", "domains", False),
    (BLOCK, "http://worse.org", "domains", False),
    (BLOCK, "https://www.ok.com/page#top", "urls", False),
    (BLOCK, "https://ok.com/page2", "", True),
    (BLOCK, "http://x.org/best-Casino-online", "words", False),
    (BLOCK, "http://x.org/casinos", "", True),
    (BLOCK, "http://fooxxxbar.org", "subwords", False),
    (BLOCK, "http://x-x.xorg/", "subwords", False),
    (SOFT, "http://x.org/free/free", "", True),
    (SOFT, "http://x.org/Free_cash", "soft_words", False),
    (BLOCK, "http://[bad", "", True),
    (BLOCK, "http://пример.рф/é", "", True),
    (FLAGGED, "", 0.0, True),
    (FLAGGED, " !! ", 0.0, True),
    (FLAGGED, "Darn, what the HECK!", 0.5, False),
    (FLAGGED, "darned", 0.0, True),
    (FlaggedWordsFilter(["é"], 0.5), "É a", 0.5, True),
    (BAD, "", 0, True),
    (BAD, "Oh DARN.", 1, False),
    (BAD, "darned, undarn", 0, True),
    (BAD, "a bad phrase here", 1, False),
    (BAD, "c++, c+", 1, False),
    (C4BadWordsFilter(["悪"], lang="ja"), "最悪だ", 1, False),
    (C4BadWordsFilter(["悪"]), "最悪だ", 0, True),
    (C4BadWordsFilter(["darn"], keep_fraction=1.0), "darn", 0, True),
    (C4BadWordsFilter([]), "anything", 0, True),
    (STOP, "", 0.0, False),
    (STOP, "-- !", 0.0, False),
    (STOP, "The cat, and THE dog", 0.6, True),
    (STOP, "buy cheap watches online", 0.0, False),
    (StopWordRatioFilter("de"), "der Hund und die Katze", 0.6, True),
    (StopWordRatioFilter("ja"), "私は東京に行った", 2 / 6, True),
    (StopWordRatioFilter("xx", words=["foo"]), "Foo bar", 0.5, True),
    (LOGS, "", math.log(1e-9), False),
    (LOGS, "The cat", (math.log(0.75) + math.log(0.25)) / 2, True),
    (LOGS, "the zebra!", (math.log(0.75) + math.log(1e-9)) / 2, False),
    (C4, "", 0, False),
    (C4, " \n", 0, False),
    (C4, LINE * 5, 5, True),
    (C4, LINE * 4, 4, False),
    (C4, f"{LINE * 5}\nHome page\n{{", 5, True),
    (C4, f"{LINE * 5}\nint main() {{ return 0; }}", 5, True),
    (C4, f"{LINE * 5}\nThis is a {{ curly }} line.", -1, False),
    (C4QualityFilter(0), f"{LINE * 5}\nThis is a {{ curly }} line.", -1, False),
    (C4, f"{LINE * 5}\nA {{ in JavaScript code.", 5, True),
    (C4QualityFilter(filter_javascript=False), f"{LINE * 5}\nA {{ in JavaScript code.", -1, False),
    (C4, f"{LINE * 4}\nThere is no mark here", 4, False),
    (C4QualityFilter(filter_no_terminal_punct=False), f"{LINE * 4}\nThere is no mark here\nor here", 5, True),
    (C4, f"{LINE * 4}\n" + "x" * 1001 + " is long.", 4, False),
    (C4QualityFilter(max_word_length=None), f"{LINE * 4}\n" + "x" * 1001 + " is long.", 5, True),
    (C4, f"{LINE * 4}\nWe use cookies here.", 4, False),
    (C4QualityFilter(filter_policy=False), f"{LINE * 4}\nWe use cookies here.", 5, True),
    (C4QualityFilter(min_words_per_line=1), f"{LINE * 4}\nShort.", 5, True),
    (C4QualityFilter(remove_citations=False), f"{LINE * 4}\nIt is known.[1]", 4, False),
    (C4, f"{LINE * 4}\nIt is known.[1]", 5, True),
    (C4QualityFilter(filter_curly_bracket=False), f"{LINE * 5}\n{{", 5, True),
    (C4, f"{LINE * 5} Lorem Ipsum.", -1, False),
    (C4QualityFilter(1), "彼は とても よく眠った。そして起きた。", 2, True),
    (C4ParagraphFilter(), "", 0, False),
    (C4ParagraphFilter(), "\n".join(["é" * 200] * 3), 3, True),
    (C4ParagraphFilter(), "\n".join(["é" * 199] * 3), 0, False),
    (GOPHER, "", "words", False),
    (GOPHER, PROSE, "", True),
    (GOPHER, PROSE.replace("quick", "#"), "", True),
    (GOPHER, "the quick brown fox, and a dog; " * 7, "words", False),
    (GOPHER, "the quick, brown, and, lazy, dog; " * 12, "letters", False),
    (GOPHER, PROSE + "# " * 20, "hashes", False),
    (GOPHER, PROSE + "... " * 20, "ellipses", False),
    (GOPHER, "a b " * 30, "word_length", False),
    (GOPHER, "\n".join(["- the quick fox and dog"] * 12), "bullets", False),
    (GOPHER, "\n".join(["the quick brown fox and the lazy dog ran to it…"] * 6), "line_ellipses", False),
    (GOPHER, "the and 1234 " * 30, "letters", False),
    (GOPHER, "schnelle braune Füchse springen " * 15, "stop_words", False),
    (GopherQualityFilter(min_stop_words=None), "schnelle braune Füchse springen " * 15, "", True),
    (GopherQualityFilter(stop_words=["und", "der"]), "der Hund und eine Katze " * 15, "", True),
    (REPEATS, "", "", True),
    (REPEATS, " \n \n\n", "lines", False),
    (REPEATS, "two words", "", True),
    (REPEATS, " ".join(f"word{number}" for number in range(99)), "", True),
    (REPEATS, "a\na\nb", "lines", False),
    (REPEATS, "a\n\nb\n\nc\n\nd\n\ne\n\na", "", True),
    (REPEATS, "a x\n\nb\n\na y\n\nb\n\nb", "paragraphs", False),
    (GopherRepetitionFilter(dup_line_frac=None), "a\n\nb\n\na\n\nb", "paragraphs", False),
    (REPEATS, "one\ntwo\nthree\nfour\na longer line than those\na longer line than those", "line_chars", False),
    (GopherRepetitionFilter(0.9, 0.9, None, 0.2, {}, {}), "one\n\ntwo\n\ntwo", "paragraph_chars", False),
    (REPEATS, "so long " + " so long ".join(f"word{number}" for number in range(20)), "top_2_gram", False),
    (REPEATS, "aa bb cc dd ee ff gg hh ii jj " * 2 + "x" * 99, "duplicate_9_gram", False),
    (GopherRepetitionFilter(top_n_grams=None, dup_n_grams=None), "so long " * 20, "", True),
    (GopherRepetitionFilter(top_n_grams={1: 0.3}), "a b c a a a a a", "top_1_gram", False),
    (FINE, "", "empty", False),
    (FINE, " \n", "empty", False),
    (FINE, LINES, "", True),
    (FINE, LINES.replace(".", ""), "line_punctuation", False),
    (FineWebQualityFilter(line_punct_exclude_zero=True), LINES.replace(".", ""), "", True),
    (FINE, "\n".join(["Short."] * 9), "short_lines", False),
    (FINE, "\n".join([LINES.split("\n")[0]] * 9), "repeated_lines", False),
    (FINE, "\n".join("x" * (31 + number) + "." for number in range(9)), "list", False),
    (FINE, JAPANESE, "", True),
]  # fmt: skip


@pytest.mark.parametrize(("one", "text", "score", "kept"), ROWS, ids=lambda value: repr(value)[:30])
def test_table(one: DocumentFilter, text: str, score: Any, kept: bool) -> None:
    found = one.score_document(text)
    assert found == (pytest.approx(score, abs=1e-12) if isinstance(score, float) else score)
    column = one.score_batch(pa.array([text, None]))
    assert column.to_pylist()[1] == one.score_document("")
    assert bool(one.keep_document(found)) is kept
    assert one.keep_batch(column)[0].as_py() is kept


ALL = list({repr(one): one for one, _, _, _ in ROWS}.values())
texts = st.none() | st.lists(
    st.sampled_from(["\n", ". ", "...", "- ", "# ", "the ", "Darn ", "//", "日本", "{"]) | st.text(max_size=4),
    max_size=9,
).map("".join)


@given(documents=st.lists(texts.filter(lambda text: text is None or text.isprintable() or "\n" in text), max_size=4))
@settings(max_examples=40, deadline=None)
def test_any_text_has_a_score_in_both_forms(documents: list[str | None]) -> None:
    for one in ALL:
        try:
            column = pa.array(documents, pa.string())
        except UnicodeEncodeError:  # a lone surrogate is no text
            return
        scores = one.score_batch(column)
        assert scores.to_pylist() == [one.score_document(text or "") for text in documents]
        assert one.keep_batch(scores).to_pylist() == [bool(one.keep_document(score)) for score in scores.to_pylist()]


def test_lists_come_from_files_too(tmp_path: Path) -> None:
    plain, packed = tmp_path / "words.txt", tmp_path / "words.txt.gz"
    plain.write_text("\ufeff# comment\n\n  Darn \nhéck\n", encoding="utf-8")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        one = FlaggedWordsFilter(str(path))
        one.check()
        assert one.score_document("darn héck oh # comment") == 0.5
        assert UrlBlocklistFilter(words=path).score_document("http://a.b/darn") == "words"
    for make in (
        FlaggedWordsFilter,
        C4BadWordsFilter,
        UrlBlocklistFilter,
        lambda path: StopWordRatioFilter(words=path),
    ):
        with pytest.raises(InputError, match="/no/such does not exist"):
            make("/no/such").check()
    plain.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        FlaggedWordsFilter(str(plain)).score_document("x")


_URL_PARTS = [
    "http://",
    "www.",
    "Sex",
    "sexy",
    "ads",
    "-",
    "_",
    "/",
    ".",
    "x",
    "K\u212a",
    "\u017f",
    "É",
    "é",
    "xx",
    " ",
    "S E X",
]
_URL_WORDS = st.sets(st.sampled_from(["sex", "k", "é", "a b", "c++", "ſ", "ads", "\ud800"]))


@given(
    st.lists(st.none() | st.lists(st.sampled_from(_URL_PARTS)).map("".join) | st.text()),
    _URL_WORDS,
    _URL_WORDS,
    _URL_WORDS,
    st.sets(st.sampled_from(["ads.x", "x"])),
)
def test_a_column_of_urls_is_measured_as_each_url(
    urls: list[str | None], words: set[str], soft: set[str], subwords: set[str], domains: set[str]
) -> None:
    one = UrlBlocklistFilter(domains, words={"never", *words}, soft_words=soft, subwords=subwords)
    found = one.measure_batch(pa.array(urls, pa.string()))
    rows = [one.measure(url or "") for url in urls]
    assert {name: column.to_pylist() for name, column in found.items()} == {
        rule.name: [row[rule.name] for row in rows] for rule in one.rules()
    }


def test_a_long_list_of_words_of_urls_is_compared_too() -> None:
    one = UrlBlocklistFilter(words=[f"word{number}" for number in range(5000)])
    assert one.score_batch(pa.array(["http://a.b/word4999", "http://a.b/word5000"])).to_pylist() == ["words", ""]


def test_a_share_of_bad_documents_may_pass_and_always_the_same() -> None:
    one, other = (C4BadWordsFilter(["darn"], keep_fraction=0.3, seed=seed) for seed in (0, 1))
    documents = [f"darn {number}" for number in range(1000)]
    fates = [one.score_document(text) for text in documents]
    assert abs(sum(fates) - 700) < 60
    assert fates == [pickle.loads(pickle.dumps(one)).score_document(text) for text in documents]
    assert fates != [other.score_document(text) for text in documents]


def test_a_table_of_words_from_a_corpus(tmp_path: Path) -> None:
    path = tmp_path / "unigrams.tsv"
    write_unigrams(["The cat. The dog!", "the É"], path)
    assert path.read_text(encoding="utf-8") == "the\t3\ncat\t1\ndog\t1\né\t1\n"
    one = UnigramLogProbFilter(str(path))
    one.check()
    assert one.score_document("THE é") == pytest.approx((math.log(3 / 6) + math.log(1 / 6)) / 2)
    assert pickle.loads(pickle.dumps(one)).score_document("the") == pytest.approx(math.log(0.5))
    write_unigrams(["a a b"], path, min_count=2)
    assert path.read_text() == "a\t2\n"
    for content, message in [("", "no words"), ("a b\n", "line 1, has no tab"), ("a\tx\n", "not a number")]:
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            UnigramLogProbFilter(str(path)).setup()
    with pytest.raises(InputError, match="write_unigrams"):
        UnigramLogProbFilter("/no/such").check()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RegexFilter("("), "not a regular expression"),
        (lambda: RegexFilter("a", 2, 1), "min at most max"),
        (lambda: LambdaFilter("x"), "takes a function"),
        (UrlBlocklistFilter, "nothing to block"),
        (lambda: FlaggedWordsFilter([], 2), "max_ratio is 2"),
        (lambda: C4BadWordsFilter([], keep_fraction=-1), "keep_fraction"),
        (lambda: StopWordRatioFilter("tlh"), "Give words"),
        (lambda: C4QualityFilter(-1), "0 or more"),
        (lambda: C4ParagraphFilter(line_delimiter=""), "line_delimiter is empty"),
        (lambda: C4ParagraphFilter(min_paragraphs=float("nan")), "C4ParagraphFilter: min_paragraphs is nan"),
        (lambda: C4QualityFilter(2.5), "must be a whole number"),
        (lambda: GopherQualityFilter(max_symbol_word_ratio=10), "max_symbol_word_ratio is 10, must be a number"),
        (lambda: GopherQualityFilter(min_doc_words=-5), "GopherQualityFilter: min_doc_words is -5"),
        (lambda: GopherQualityFilter(min_avg_word_length="3"), "min_avg_word_length is '3', must be a number"),
        (lambda: FineWebQualityFilter(line_punct_thr=12), "FineWebQualityFilter: line_punct_thr is 12"),
        (lambda: FineWebQualityFilter(short_line_length=300), "must be at most 255"),
        (lambda: FineWebQualityFilter(new_line_ratio=-1), "new_line_ratio is -1, must be 0 or more"),
        (lambda: LineCleaner(min_words=float("nan")), "LineCleaner: min_words is nan"),
        (lambda: ParagraphCleaner(min_words=-1), "ParagraphCleaner: min_words is -1"),
        (lambda: UnigramLogProbFilter({"a": 1}, "x"), "logprobs_threshold is 'x'"),
        (lambda: UnigramLogProbFilter({"the": 0}), "all counts are 0"),
        (lambda: UnigramLogProbFilter({"the": -1}), "the count of 'the' is -1"),
        (lambda: C4BadWordsFilter(["x"], seed="1"), "seed is '1'"),
        (lambda: TrainTestSplit({"a": float("nan"), "b": 1}), "TrainTestSplit: parts\\['a'\\] is nan"),
        (lambda: Slicer(1.5), "Slicer: left is 1.5"),
        (lambda: DocumentJoiner(max_length=float("nan")), "DocumentJoiner: max_length is nan"),
        (lambda: IdentifyLanguage(max_characters=0.5), "IdentifyLanguage: max_characters is 0.5"),
        (lambda: IdentifyLanguage(min_scores={"en": 2}), "IdentifyLanguage: en is 2"),
        (lambda: HTMLBoilerplateFilter(min_lang_content_num_chars=-1), "min_lang_content_num_chars is -1"),
        (lambda: TokenizerFertilityFilter("x", "2"), "min_char_to_token_ratio is '2'"),
        (lambda: PackedSequenceWriter("o", "x", sequence_length=1.5), "sequence_length is 1.5"),
        (lambda: PackedSequenceWriter("o", "x", pad_token=-1), "pad_token is -1"),
        (lambda: GopherQualityFilter(stop_words="the"), "must be a list"),
        (lambda: GopherRepetitionFilter(top_n_grams={33: 0.1}), "from 1 to 32"),
        (lambda: GopherRepetitionFilter(dup_n_grams={5: 2}), "a share from 0 to 1"),
    ],
)
def test_bad_parameters_are_refused(make, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_the_table_of_words_knows_no_case() -> None:
    assert UnigramLogProbFilter({"The": 5, "the": 95}).score_document("the The") == 0


def test_an_ideograph_does_not_change_what_else_is_a_word() -> None:
    assert split_words("a - b") == ["a", "-", "b"]
    assert split_words("a - b 漢，字") == ["a", "-", "b", "漢", "字"]
