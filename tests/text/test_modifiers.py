from __future__ import annotations

import pickle
import re
import sys

import ftfy
import pyarrow as pa
import pytest
from ftfy.badness import MOJIBAKE_CATEGORIES, is_bad
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.core.errors import MissingDependencyError
from gristmill.text import (
    DocumentModifier,
    HTMLBoilerplateFilter,
    HtmlRemover,
    Modify,
    NewlineNormalizer,
    QuotationUnifier,
    UnicodeReformatter,
    UrlRemover,
)
from gristmill.text.modifiers import removers

ROWS: list[tuple[DocumentModifier, str, str]] = [
    (UnicodeReformatter(), "", ""),
    (UnicodeReformatter(), "plain", "plain"),
    (UnicodeReformatter(), "schÃ¶n", "schön"),
    (UnicodeReformatter(), "a &amp; b", "a & b"),
    (UnicodeReformatter(), "<p>a &amp; b", "<p>a &amp; b"),
    (UnicodeReformatter(), "&lt;\n<p>é\n&lt;", "<\n<p>é\n&lt;"),
    (UnicodeReformatter(max_decode_length=2), "&#65;&lt;\nÃ¶Ã¶", "&#65;&lt;\nöö"),
    (UnicodeReformatter(max_decode_length=5), "&lt;x<\n&lt;", "<x<\n&lt;"),
    (UnicodeReformatter(), "\x1b[36;44mblue\x1b[0m", "blue"),
    (UnicodeReformatter(), "a\x00b\x7f", "ab"),
    (UnicodeReformatter(), "“curly” ﬁ ＬＯＵＤ e\u0301\r\n", "“curly” ﬁ ＬＯＵＤ e\u0301\r\n"),
    (UnicodeReformatter(uncurl_quotes=True), "“curly”", '"curly"'),
    (UnicodeReformatter(fix_line_breaks=True), "a\r\nb\rc", "a\nb\nc"),
    (UnicodeReformatter(normalization="NFC"), "e\u0301", "é"),
    (UnicodeReformatter(unescape_html=False), "a &amp; b", "a &amp; b"),
    (UnicodeReformatter(decode_inconsistent_utf8=False), "я schÃ¶n", "я schÃ¶n"),
    (NewlineNormalizer(), "", ""),
    (NewlineNormalizer(), "a\n\nb\nc", "a\n\nb\nc"),
    (NewlineNormalizer(), "a\n\n\nb\n\n\n\n\nc", "a\n\nb\n\nc"),
    (NewlineNormalizer(), "a\r\n\r\n\r\nb\r\n\r\n", "a\r\n\r\nb\r\n\r\n"),
    (QuotationUnifier(), "“It’s”, ‘he’ „said‟ ‚so‛ «x»", "\"It's\", 'he' \"said\" 'so' «x»"),
    (UrlRemover(), "see https://a.b/c?d=e, and www.f.g now", "see  and  now"),
    (UrlRemover(), "http://a\u00a0b", "\u00a0b"),
    (UrlRemover(), "https:// www. x", "https:// www. x"),
    (UrlRemover(), "see HTTPS://WWW.X.COM or Www.x.com, Http://x", "see  or  "),
]


@pytest.mark.parametrize(("one", "text", "wanted"), ROWS, ids=lambda value: repr(value)[:40])
def test_table(one: DocumentModifier, text: str, wanted: str) -> None:
    assert one.modify_document(text) == wanted
    assert one.modify_batch(pa.array([text], pa.string())).to_pylist() == [wanted]


ALL = [
    UnicodeReformatter(),
    UnicodeReformatter(
        fix_line_breaks=True, fix_latin_ligatures=True, fix_character_width=True, uncurl_quotes=True,
        unescape_html=True, normalization="NFKD",
    ),
    UnicodeReformatter(max_decode_length=5),
    UnicodeReformatter(fix_encoding=False, remove_control_chars=False, remove_terminal_escapes=False, explain=False),
    NewlineNormalizer(),
    QuotationUnifier(),
    UrlRemover(),
]  # fmt: skip

pieces = st.sampled_from(
    [
        "\n",
        "\r",
        "\r\n",
        "‘",
        "”",
        "„",
        "http://",
        "www.",
        "&amp;",
        "&lt",
        "<",
        ";",
        "\x1b[0m",
        "Ã¶",
        "â€œ",
        "\x85",
        "\x1c",
        " ",
    ]
)
ascii_text = st.text(st.characters(max_codepoint=127))
characters = st.characters(exclude_categories=["Cs"])
documents = st.none() | ascii_text | st.text(characters) | st.lists(pieces | characters, max_size=12).map("".join)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
@given(texts=st.lists(documents, max_size=6))
@example(texts=[])
@example(texts=[None, "", " ", None])
@example(texts=[None, None])
def test_the_batch_form_equals_the_document_form(one: DocumentModifier, texts: list[str | None]) -> None:
    column = pa.array(texts, pa.string())
    new = one.modify_batch(column)
    assert new.type == pa.string()
    assert new.to_pylist() == [None if text is None else one.modify_document(text) for text in texts]
    chunked = pa.chunked_array([column.slice(0, 2), column.slice(2)], pa.string())
    assert one.modify_batch(chunked).equals(new)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_a_column_of_many_pieces_is_as_one_of_a_single_piece(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array(["a “b” ‘c’", None, "", "“", "d", "’’", "“e"], pa.string()).slice(7 - count)
    whole = QuotationUnifier().modify_batch(column)
    monkeypatch.setattr(removers, "ROWS_PER_REPLACE", 3)
    assert QuotationUnifier().modify_batch(column).equals(whole)
    assert whole.to_pylist() == [text and re.sub("[‘’]", "'", re.sub("[“”]", '"', text)) for text in column.to_pylist()]


@pytest.mark.parametrize("one", ALL[:4], ids=["default", "all", "short", "little"])
def test_ascii_that_skips_ftfy_is_ascii_that_ftfy_leaves(one: UnicodeReformatter) -> None:
    plain = [chr(code) for code in range(128)]
    texts = [*plain, *(first + second for first in plain for second in plain)]
    fixed = [ftfy.fix_text(text, one._config) for text in texts]
    assert one.modify_batch(pa.array(texts)).to_pylist() == fixed


def test_lines_of_any_characters_that_skip_ftfy_are_lines_that_ftfy_leaves() -> None:
    one = UnicodeReformatter()
    upper = [chr(code) for code in range(0xA0, 0x100)]
    texts = [chr(code) for code in range(0x80, 0x3000)]
    texts += [f"a {first}{second} é" for first in upper[::2] for second in [*upper[::5], "€", "„", "œ"]]
    fixed = [ftfy.fix_text(text, one._config) for text in texts]
    assert one.modify_batch(pa.array(texts)).to_pylist() == fixed
    assert any(text != new for text, new in zip(texts, fixed, strict=True))


MARKS = sorted(set("".join(MOJIBAKE_CATEGORIES.values())))
PLAIN = ["", " ", "a", "Z", "0", ".", "-", "\n"]


def test_what_looks_like_mojibake_is_always_suspect() -> None:
    suspect = re.compile(UnicodeReformatter()._suspect)
    alone = [f"{before}{mark}{after}{other}" for mark in MARKS for before in PLAIN for after in PLAIN for other in " a"]
    assert [text for text in alone if is_bad(text) and not suspect.search(text)] == []


@given(st.lists(st.sampled_from([*MARKS, *PLAIN]), max_size=12).map("".join))
@settings(max_examples=300)
def test_mixtures_of_marks_come_out_as_from_ftfy(text: str) -> None:
    one = UnicodeReformatter()
    assert one.modify_batch(pa.array([text], pa.string())).to_pylist() == [ftfy.fix_text(text, one._config)]


@given(st.lists(st.tuples(documents, st.sampled_from(["latin-1", "cp1252", "cp1251", "utf-8"])), max_size=4))
def test_what_was_read_in_a_wrong_encoding_comes_out_as_from_ftfy(parts: list[tuple[str | None, str]]) -> None:
    text = "".join((one or "é").encode().decode(encoding, "replace") for one, encoding in parts)
    again = text.encode("utf-8").decode("latin-1")
    for one in (UnicodeReformatter(), UnicodeReformatter(unescape_html=True), UnicodeReformatter(max_decode_length=7)):
        fixed = [ftfy.fix_text(broken, one._config) for broken in (text, again)]
        assert one.modify_batch(pa.array([text, again], pa.string())).to_pylist() == fixed


def test_keywords_and_defaults_are_those_of_ftfy_but_five() -> None:
    ours, theirs = vars(UnicodeReformatter()), ftfy.TextFixerConfig()._asdict()
    assert ours.keys() == theirs.keys()
    assert {key: value for key, value in ours.items() if value != theirs[key]} == {
        "normalization": None,
        "uncurl_quotes": False,
        "fix_line_breaks": False,
        "fix_latin_ligatures": False,
        "fix_character_width": False,
    }


def test_a_missing_ftfy_is_told_by_the_planner_not_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    stage = Modify(UnicodeReformatter())
    with pytest.raises(MissingDependencyError, match=r"pip install 'gristmill\[text\]'"):
        stage.check()


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="NFX"):
        UnicodeReformatter(normalization="NFX")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 or more"):
        UnicodeReformatter(max_decode_length=0)


def test_modifiers_survive_pickling_after_use() -> None:
    one = UnicodeReformatter()
    one.setup()
    assert pickle.loads(pickle.dumps(one)).modify_document("schÃ¶n") == "schön"
    assert repr(UrlRemover()) == "UrlRemover()"


def test_a_short_modifier_is_whole() -> None:
    class Lower(DocumentModifier):
        def modify_document(self, text: str) -> str:
            return text.lower()

    assert Lower().modify_batch(pa.array(["A", None])).to_pylist() == ["a", None]
    assert Lower().name == "Lower"


def test_a_new_document_form_is_not_overruled_by_an_inherited_batch_form() -> None:
    class Marker(UrlRemover):
        def modify_document(self, text: str) -> str:
            return text.replace("www.", "W")

    assert Marker().modify_batch(pa.array(["www.a"])).to_pylist() == ["Wa"]


@pytest.mark.parametrize(
    "piece",
    [
        "<a ",
        "<!--",
        "<![",
        "</",
        "<?",
        "<!x",
        "<!-- x> ",
        "<a b='",
        "<script>",
        "</a </",
        "&a<",
        "<a b='>' ",
        "--> <!--",
    ],
)
def test_broken_html_takes_no_long_time(piece: str) -> None:
    text = "words " + piece * (300_000 // len(piece))
    assert HtmlRemover().modify_document(text).startswith("words")
    assert HTMLBoilerplateFilter(min_lang_content_num_chars=1).score_document(text + ">") > 0


def test_markup_without_an_end_is_text() -> None:
    remove = HtmlRemover().modify_document
    assert remove("<b>a</b> &amp; <i c") == "a & <i c"
    assert remove("a <!-- b <i>c</i> &lt; d") == "a <!-- b c < d"
    assert remove("a <!-- b --> c <!-- d") == "a c <!-- d"
    assert remove("a <script>b < c &amp;") == "a"
    assert remove('<p title="a>b">c</p> <p title="d>e') == "c\ne"
    assert remove("<p><![CDATA[a &amp; <b>b</b>]]> c <![CDATA[ d") == "a & b c <![CDATA[ d"
