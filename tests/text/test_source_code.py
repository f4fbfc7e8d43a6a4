"""Filters for source code: tables of code, score and verdict."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import InputError
from gristmill.text import (
    AlphaFilter,
    DocumentFilter,
    GeneralCommentToCodeFilter,
    HTMLBoilerplateFilter,
    NumberOfLinesOfCodeFilter,
    PerExtensionFilter,
    PythonCommentToCodeFilter,
    TokenizerFertilityFilter,
    XMLHeaderFilter,
)
from gristmill.text.filters.source_code import COMMENT_SYNTAX, LANGUAGE_OF_MIME_TYPE, SOURCE_FILE_RULES

PYTHON = PythonCommentToCodeFilter()
JAVA = GeneralCommentToCodeFilter("text/x-java-source")
HTML = HTMLBoilerplateFilter()
WORDS = "word " * 30

ROWS: list[tuple[DocumentFilter, str, float, bool]] = [
    (PYTHON, "", 0.0, False),
    (PYTHON, " \n", 0.0, False),
    (PYTHON, "x = 1", 0.0, False),
    (PYTHON, "x = 1 # one\n", 5 / 12, True),
    (PYTHON, '"""doc"""\n', 0.3, True),
    (PYTHON, 'def f():\n    "ab"\n    return "#"', 2 / 32, True),
    (PYTHON, "#" * 10, 1.0, False),
    (PYTHON, "def f(: # no", 0.0, False),
    (PYTHON, "print 'x' # two", 0.0, False),
    (PYTHON, "x = '\x00' #", 0.0, False),
    (PYTHON, "x = 'é' # ü\n", 3 / 12, True),
    (PYTHON, "x = '\\d' # d", 3 / 12, True),
    (PYTHON, "(" * 300 + "#", 0.0, False),
    (JAVA, "", 0.0, False),
    (JAVA, "int x;", 0.0, False),
    (JAVA, "int x; // ab", 3 / 12, True),
    (JAVA, "/* ab */", 0.5, True),
    (JAVA, "/*ab", 9999, False),
    (JAVA, 's = "// no"; // é', 2 / 17, True),
    (JAVA, "c = '\"'; // \"", 2 / 13, True),
    (JAVA, "/*a\n//b*/c", 5 / 10, True),
    (GeneralCommentToCodeFilter("text/x-c++"), "// Way far too much\n// comments!", 28 / 32, False),
    (PYTHON, "'ab'\ndef f():\n  'cd'\nclass C:\n  'e'\n#", 8 / 37, True),
    (HTML, f"<div>\n{' ' * 200}<p>{'a' * 99}</p></div>", 100 / 318, True),
    (HTML, f"<pre>\n{' ' * 200}</pre>", 201 / 212, True),
    (HTML, f"<p>a</p><template><b>{'a' * 200}</b></template>", 0.0, False),
    (HTML, f"<ruby>{'a' * 120}<rt>{'b' * 50}</rt></ruby>{'c' * 10}", 130 / 202, True),
    (HTML, f"<ruby>{'a' * 120}<rt>{'b' * 50}</ruby>{'c' * 10}", 130 / 197, True),
    (GeneralCommentToCodeFilter("python"), 'x = """\n# no""" # y\n', 2 / 20, True),
    (GeneralCommentToCodeFilter("text/x-shellscript"), "echo $# a#b # c\n", 2 / 16, True),
    (GeneralCommentToCodeFilter("html"), "<p>a<!-- b --></p>", 3 / 18, True),
    (GeneralCommentToCodeFilter("ruby"), "\n=begin\nab\n=end", 3 / 15, True),
    (GeneralCommentToCodeFilter("javascript"), "`// no` // y", 2 / 12, True),
    (GeneralCommentToCodeFilter("lua"), "--[[ a ]] -- b", 6 / 14, True),
    (GeneralCommentToCodeFilter("go"), "x := `/*` // y", 2 / 14, True),
    (GeneralCommentToCodeFilter("rust"), "fn f<'a>(x: &'a str) {} // y", 2 / 28, True),
    (NumberOfLinesOfCodeFilter(), "", 1, False),
    (NumberOfLinesOfCodeFilter(), "\n" * 9, 10, True),
    (NumberOfLinesOfCodeFilter(), "é\n" * 8, 9, False),
    (NumberOfLinesOfCodeFilter(max_lines=20), "\n" * 20, 21, False),
    (XMLHeaderFilter(), "", 0, True),
    (XMLHeaderFilter(), '<?xml version="1.0"?>', 1, False),
    (XMLHeaderFilter(), "é" * 86 + "<?xml version=", 1, False),
    (XMLHeaderFilter(), "é" * 87 + "<?xml version=", 0, True),
    (AlphaFilter(), "", 0.0, False),
    (AlphaFilter(), "   ", 0.0, False),
    (AlphaFilter(), "a123", 0.25, True),
    (AlphaFilter(), "aé日!", 0.75, True),
    (AlphaFilter(), "1234a", 0.2, False),
    (HTML, "x" * 99, 0.0, False),
    (HTML, "x" * 100, 1.0, True),
    (HTML, "", 0.0, False),
    (HTML, f"<p>{WORDS}</p>", 150 / 157, True),
    (HTML, "<p>short</p>", 0.0, False),
    (HTML, f"<script>{WORDS * 10}</script><p>{WORDS}</p>", 150 / 1674, False),
    (HTML, f"<style>p{{}}</style><!-- {WORDS} --><![if x]>{WORDS}", 150 / 336, True),
    (PerExtensionFilter("python", "py"), "", 0, False),
    (PerExtensionFilter("Python", ".py"), "x = value\n" * 5, 1, True),
    (PerExtensionFilter("python", "py"), "x" * 1001, 0, False),
    (PerExtensionFilter("python", "py"), "\n".join(["x" * 101] * 3), 0, False),
    (PerExtensionFilter("python", "py"), "()" * 20, 0, False),
    (PerExtensionFilter("lean", "lean"), "∀∃λ" * 20, 1, True),
    (PerExtensionFilter("json", "json"), '{"key": "' + "é" * 5000 + '"}', 1, True),
    (PerExtensionFilter("json", "json"), "[" + "1," * 500 + "]", 0, False),
]  # fmt: skip


@pytest.mark.parametrize(("one", "text", "score", "kept"), ROWS, ids=lambda value: repr(value)[:40])
def test_table(one: DocumentFilter, text: str, score: float, kept: bool) -> None:
    assert one.score_document(text) == pytest.approx(score, abs=1e-12)
    column = one.score_batch(pa.array([text, None]))
    assert column.type == one.score_type
    assert column.to_pylist() == [one.score_document(text), one.score_document("")]
    assert bool(one.keep_document(score)) is kept
    assert one.keep_batch(column)[0].as_py() is kept


ALL = list({repr(one): one for one, _, _, _ in ROWS}.values())
marks = st.sampled_from(
    ["#", "//", "/*", "*/", '"', "'", "`", "<!--", "-->", "<![", ">", "<script>", "\n", "\\", "def f(", "é"]
)


@given(texts=st.lists(st.none() | st.lists(marks | st.characters(exclude_categories=["Cs"]), max_size=10).map("".join)))
@settings(max_examples=40, deadline=None)
def test_any_text_has_a_score_in_both_forms(texts: list[str | None]) -> None:
    for one in ALL:
        scores = one.score_batch(pa.array(texts, pa.string()))
        assert scores.to_pylist() == [one.score_document(text or "") for text in texts]
        assert one.keep_batch(scores).to_pylist() == [bool(one.keep_document(score)) for score in scores.to_pylist()]


def test_characters_per_token(tmp_path: Path) -> None:
    one = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "aaaa": 1}, unk_token="[UNK]"))
    one.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    one.save(str(tmp_path / "tokenizer.json"))
    fertility = TokenizerFertilityFilter(str(tmp_path / "tokenizer.json"))
    assert fertility.score_batch(pa.array(["aaaa é", "a b", "", None])).to_pylist() == [3.0, 1.5, -1.0, -1.0]
    assert fertility.score_document("aaaa é") == 3.0
    assert fertility.keep_batch(pa.array([3.0, 2.5, 1.5, -1.0])).to_pylist() == [True, True, False, False]
    assert pickle.loads(pickle.dumps(fertility)).score_document("aaaa") == 4.0
    with pytest.raises(InputError, match="does not exist"):
        TokenizerFertilityFilter("/no/x.json").check()


def test_rules_of_ones_own(tmp_path: Path) -> None:
    table = tmp_path / "rules.csv"
    table.write_text("language,extension,max_line_length,min_alpha\nmine,x,3,0.5\n")
    one = PerExtensionFilter("mine", "x", str(table))
    one.check()
    assert [one.score_document(text) for text in ("abc", "abcd", "1 a")] == [1, 0, 0]
    with pytest.raises(ValueError, match="the language 'other' is not known"):
        PerExtensionFilter("other", "x", str(table)).check()
    with pytest.raises(InputError, match="cannot be read"):
        PerExtensionFilter("mine", "x", str(tmp_path / "none.csv")).check()
    table.write_text("language,extension,max_line_length\nmine,x,long\n")
    with pytest.raises(InputError, match="not a number"):
        PerExtensionFilter("mine", "x", str(table)).check()
    table.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column language, extension"):
        PerExtensionFilter("mine", "x", str(table)).check()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GeneralCommentToCodeFilter("text/x-jav"), "java"),
        (lambda: PerExtensionFilter("pyhton", "py"), "python"),
        (lambda: PerExtensionFilter("python", "rb"), "There are: py, pyi, pyw"),
        (lambda: NumberOfLinesOfCodeFilter(5, 1), "min at most max"),
        (lambda: XMLHeaderFilter(0), "1 or more"),
        (lambda: TokenizerFertilityFilter(""), "is empty"),
        (lambda: AlphaFilter(2), "from 0 to 1"),
    ],
)
def test_bad_parameters_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_tables_are_whole() -> None:
    assert set(LANGUAGE_OF_MIME_TYPE.values()) <= set(COMMENT_SYNTAX)
    assert len({language for language, _ in SOURCE_FILE_RULES}) >= 90
    for syntax in COMMENT_SYNTAX.values():
        assert syntax.comments("plain") == []
