"""From pages to text: what the libraries give, in the right charset and language, whatever the page claims."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import LocalExecutor, Pipeline
from gristmill.download import (
    CommonCrawlHTMLExtractor,
    HTMLExtractorAlgorithm,
    JusTextExtractor,
    ResiliparseExtractor,
    TrafilaturaExtractor,
    WarcReader,
    get_stop_list_dict,
)
from gristmill.download.web.charset import decode_page
from gristmill.download.web.stop_lists import _NAMES, count_stop_words, stop_word_counter
from tests.download.warc_fixtures import MILL, MUEHLE, english, page, pages_of, write_warc

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # warcio leaves files open

LONG = page("The old mill", [MILL * 3, MILL * 2])


def record(html: bytes | str, **more: Any) -> dict[str, Any]:
    raw = html.encode() if isinstance(html, str) else html
    found = {"content_type": "text/html", "status": 200, "warc_type": "response"}
    return {"url": "http://x/", "warc_id": "1", "source_id": "a.warc", "content": raw, **found, **more}


@pytest.fixture(scope="module", params=["justext", "resiliparse", "trafilatura"])
def extractor(request: pytest.FixtureRequest) -> CommonCrawlHTMLExtractor:
    made = CommonCrawlHTMLExtractor(request.param)
    made.setup()
    return made


def test_a_page_becomes_its_text(extractor: CommonCrawlHTMLExtractor) -> None:
    row = extractor.extract(record(LONG))
    assert row is not None
    assert list(row) == ["url", "warc_id", "source_id", "language", "text"]
    assert row["language"] == "en"
    assert MILL.strip() in row["text"]
    for unwanted in ("script", "comment", "contact", "©"):
        assert unwanted not in row["text"]


def test_the_language_is_that_of_the_text_not_of_the_markup(extractor: CommonCrawlHTMLExtractor) -> None:
    markup = '<html lang="en"><meta name="description" content="' + "this is an english description of it " * 40 + '">'
    html = markup + page("Mühle", [MUEHLE * 3, MUEHLE * 2])
    row = extractor.extract(record(html))
    assert row is not None
    assert (row["language"], "Müller" in row["text"]) == ("de", True)


def test_why_pages_are_dropped_is_counted(extractor: CommonCrawlHTMLExtractor) -> None:
    extractor.take_counts()
    tigrinya = page("x", ["ትግርኛ ቋንቋ እዩ። እዚ ጽሑፍ ብትግርኛ ዝተጻሕፈ እዩ። " * 30])
    rows = [
        record(b"\x89PNG", content_type="image/png"),
        record(LONG, status=404),
        record(b""),
        record("<html><body></body></html>"),
        record("\0\0"),
        record(tigrinya),
    ]
    assert [extractor.extract(one) for one in rows] == [None] * 6
    counts = extractor.take_counts()
    assert counts.pop("not_html") == 1
    assert counts.pop("status_404") == 1
    assert counts.pop("no_text") == 3
    [(reason, number)] = counts.items()
    assert reason.startswith("no_stop_list_")
    assert number == 1


def test_the_text_is_what_the_bare_libraries_give() -> None:
    import justext
    import trafilatura
    from resiliparse.extract.html2text import extract_plain_text

    words = get_stop_list_dict(["English"])["en"]
    for html in (LONG, english(3).decode(), page("Short", ["A few words.", MILL * 4, "Copyright"])):
        bare = [one.text for one in justext.justext(html, words) if not one.is_boilerplate]
        assert JusTextExtractor().extract_text(html, words, "en") == bare
        lines = [line for line in extract_plain_text(html, main_content=True).split("\n") if line]
        assert ResiliparseExtractor(required_stopword_density=0).extract_text(html, words, "en") == lines
        lines = [line for line in (trafilatura.extract(html) or "").split("\n") if line]
        ours = TrafilaturaExtractor(required_stopword_density=0, deduplicate=False)
        assert ours.extract_text(html, words, "en") == lines


NAMES = [
    "p",
    "div",
    "b",
    "a",
    "br",
    "h2",
    "td",
    "table",
    "tr",
    "li",
    "span",
    "select",
    "script",
    "form",
    "!--x--",
    "x:y",
    "h1",
    "body",
    "head",
    "iframe",
    "object",
    "param",
    "input",
    "?php",
]
XHTML = '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><body>{}</body></html>'
PIECES = st.one_of(
    st.sampled_from([f"<{name}>" for name in NAMES] + [f"</{name}>" for name in NAMES if name[0] != "!"]),
    st.sampled_from(
        ["the mill and the river ", " ", "\n\t", "\u00a0 ", "\r\n", "©", "&copy; ", "word" * 30, "\u2028x", "&nbsp;"]
    ),
)


@settings(max_examples=100)
@given(st.lists(PIECES, max_size=60), st.sampled_from(["<html><body>{}</body></html>", "{}", XHTML]))
def test_the_paragraphs_of_any_page_are_those_of_justext(pieces: list[str], around: str) -> None:
    import justext
    from lxml.etree import ParserError

    html = around.format("".join(pieces))
    words = frozenset(("the", "and"))
    try:
        bare = justext.justext(html, words, length_low=10, length_high=20)
    except ParserError:
        bare = []
    extractor = JusTextExtractor(length_low=10, length_high=20)
    ours = extractor.paragraphs(html)
    assert [(one.text, one.dom_path) for one in ours] == [(one.text, one.dom_path) for one in bare]
    assert [one.chars_count_in_links for one in ours] == [one.chars_count_in_links for one in bare]
    assert extractor.chosen(ours, words, "en") == [one.text for one in bare if not one.is_boilerplate]


def test_what_trafilatura_gives_does_not_depend_on_the_pages_before() -> None:
    extractor = TrafilaturaExtractor()
    words = get_stop_list_dict(["en"])["en"]
    first = extractor.extract_text(LONG, words, "en")
    assert first
    assert [extractor.extract_text(LONG, words, "en") for _ in range(4)] == [first] * 4


def test_languages_without_spaces_keep_their_paragraphs() -> None:
    text = "磨坊主在日出之前就起床了，走到溪边去看那个从秋天起就停着不动的水轮。他答应过傍晚以前把粮食磨好。" * 5
    for name in ("justext", "resiliparse"):
        extractor = CommonCrawlHTMLExtractor(name)
        row = extractor.extract(record(page("磨坊", [text])))
        assert row is not None
        assert (row["language"], text in row["text"]) == ("zh", True)


def test_stop_lists_of_ones_own() -> None:
    extractor = CommonCrawlHTMLExtractor("resiliparse", stop_lists={"ENGLISH": {"nowhere"}})
    assert extractor.extract(record(LONG)) is None, "too few of the words are in the list"
    loose = CommonCrawlHTMLExtractor("resiliparse", {"required_stopword_density": 0.1}, {"en": {"the", "and"}})
    assert loose.extract(record(LONG)) is not None
    with pytest.raises(ValueError, match="Did you mean 'English'"):
        CommonCrawlHTMLExtractor(stop_lists={"Englisch": {"the"}})
    with pytest.raises(ValueError, match="Did you mean 'justext'"):
        CommonCrawlHTMLExtractor("justtext")


CHARACTERS = st.sampled_from([*"aTke'ΣσÜé\u212aİ \x1c\u2028\u00a0\n\0\U0001f600", "the ", "AND ", "x" * 16])


@given(st.lists(CHARACTERS, max_size=40).map("".join), st.frozensets(st.lists(CHARACTERS, max_size=3).map("".join)))
def test_stop_words_are_counted_alike_in_c_and_in_python(text: str, words: frozenset[str]) -> None:
    words |= frozenset(text.lower().split()[::2])
    assert stop_word_counter(words)(text) == count_stop_words(words, text)


def test_there_are_stop_lists_for_many_languages() -> None:
    lists = get_stop_list_dict()
    assert len(lists) > 85
    assert {"en", "de", "th", "zh", "ja", "ko"} <= set(lists)
    assert "la" not in lists
    assert {word for words in lists.values() for word in words if word != word.lower()} == set()


def test_stop_lists_are_found_by_the_names_of_curator() -> None:
    lists = get_stop_list_dict()
    assert lists["ENGLISH"] == lists["English"] == lists["en"] == lists.get("ENGLISH")
    assert lists["NORWEGIAN_N"] == lists["nn"]
    assert "HAITIAN_CREOLE" in lists
    assert "KLINGON" not in lists
    assert lists.get("KLINGON") is None
    with pytest.raises(KeyError, match="KLINGON"):
        lists["KLINGON"]
    with pytest.raises(KeyError, match="xx"):
        lists["xx"]
    custom = {"ENGLISH": lists["ENGLISH"] | {"nowhere"}, "THAI": ["ที่"], "NORWEGIAN": lists["NORWEGIAN"]}
    assert set(CommonCrawlHTMLExtractor(stop_lists=custom).stop_lists or ()) == {"en", "th", "no"}


def test_stop_lists_are_those_of_justext_though_it_is_not_imported() -> None:
    import justext

    for code, words in get_stop_list_dict().items():
        if code not in ("th", "zh", "ja"):
            assert words == justext.get_stoplist(_NAMES[code])
    code = "import sys; from gristmill.download import WarcReader, get_stop_list_dict; get_stop_list_dict(['en', 'de'])"
    unwanted = "sys.exit(' '.join(sys.modules.keys() & {'justext', 'lxml', 'http.client'}) or 0)"
    done = subprocess.run([sys.executable, "-c", f"{code}; {unwanted}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("raw", "content_type", "text"),
    [
        ("Mühle".encode(), "", "Mühle"),
        ("Mühle".encode("latin-1"), "text/html; charset=ISO-8859-1", "Mühle"),
        ("„Mühle“ €".encode("cp1252"), "text/html; charset=iso-8859-1", "„Mühle“ €"),
        (b'<meta charset="windows-1251">' + "мельница".encode("cp1251"), "", '<meta charset="windows-1251">мельница'),
        ("Mühle am Fluß".encode(), "text/html; charset=iso-8859-1", "Mühle am Fluß"),
        (b"\xef\xbb\xbf" + "Mühle".encode(), "text/html; charset=latin-1", "Mühle"),
        ("Mühle".encode("utf-16"), "text/html; charset=utf-8", "Mühle"),
        ("水車小屋の朝".encode("shift_jis"), "text/html; charset=Shift_JIS", "水車小屋の朝"),
        ("水車小屋の朝".encode("iso-2022-jp"), "text/html; charset=iso-2022-jp", "水車小屋の朝"),
        (b"plain", "text/html; charset=no-such-thing", "plain"),
    ],
)
def test_charsets(raw: bytes, content_type: str, text: str) -> None:
    assert decode_page(raw, content_type) == text


def test_a_charset_that_is_a_lie_does_not_count() -> None:
    german = (MUEHLE * 5).encode("cp1252")
    assert decode_page(b'<meta charset="utf-8">' + german, "text/html; charset=utf-8").endswith(MUEHLE * 5)
    russian = "Мельница стоит там, где река поворачивает, и никто в деревне не помнит, когда её построили. " * 5
    assert decode_page(russian.encode("cp1251"), "text/html; charset=utf-8") == russian
    assert decode_page(russian.encode("koi8-r"), "") == russian
    assert "\ufffd" in decode_page(b"\xff\xfe\xfa" * 3 + b"\x81\x8d" * 30, "text/html; charset=utf-8")


class Hangs(HTMLExtractorAlgorithm):
    """A page that a library never comes back from."""

    def extract_text(self, html: str, stop_words: frozenset[str], language: str) -> list[str] | None:
        while "Page 3" in html:
            time.sleep(0.1)
        return ["text"]


@pytest.mark.slow
def test_a_page_that_never_returns_is_set_aside(tmp_path: Path) -> None:
    write_warc(tmp_path / "a.warc.gz", pages_of(6))
    reader = WarcReader(str(tmp_path), extractor=Hangs()).with_({"extract": {"timeout_s": 1.0, "max_retries": 0}})
    found = Pipeline("hang", stages=[reader]).run(LocalExecutor(1), max_errors=None)
    rows = [row for batch in found for row in batch.to_rows()]
    assert [row["url"][-1] for row in rows] == ["0", "1", "2", "4", "5"]
    [aside] = found.quarantined()
    assert aside.row["url"] == "http://example.org/3"
    assert aside.kind == "timed out"
