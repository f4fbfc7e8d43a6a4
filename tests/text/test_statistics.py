"""The statistics: what is counted in C equals the definition in Python, for any text and any form of column."""

from __future__ import annotations

import os
import string
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gristmill import _kernels
from gristmill.text.statistics import column_statistics
from gristmill.text.statistics import kernel_reference as reference

SHORT = ("short_lines_0", "short_lines_3", "short_lines_255")
NGRAMS = tuple(f"{family}_{n}" for family in reference.NGRAM_STATISTICS for n in (1, 2, 3, 4, 5, 10, 32))
NAMES = (*reference.STATISTICS, *NGRAMS, *SHORT)
LEXEMES = (*sorted(reference.OF_LEXEMES), "top_lexeme_ngram_2", "duplicate_lexeme_ngram_5")
CLASSES: dict[str, Callable[[str], bool]] = {
    "plain": reference.PLAIN_CHARACTERS.__contains__,
    "digits": string.digits.__contains__,
    "white": reference.WHITE_SPACE.__contains__,
    "brackets": reference.BRACKETS.__contains__,
    "letters": str.isalpha,
    "capitals": str.isupper,
    "spaces": str.isspace,
    "punctuation": string.punctuation.__contains__,
    "alphabetic_words": reference.is_alphabetic,
}

characters = st.characters(exclude_categories=["Cs"])
# fmt: off
PIECES = [
    "the", "be", "with", "The", "é", "“", "…", "...", "[...]", "(...)", "-»", "[…]", "#", "#a#", "##", "a#b#",
    "read", "more", "read-more..", "aaaaaaaa", "aaaaaaaab", "aaaaaaaaaaaaaaaaaa", "a", "b", "http://a.b/c%20d",
    "https://porn.x/%", "http://", "https://é", "xhttp://a", "www.a", "•", "○x", "-", "⟨", "(", "}", "ß", ".", "?",
    "!", "'", "Ⅳ", "ⓐ", "कि", "ि", "१", "😀", "𝔸", "privacy", "Policy", "İ", "a b", "Read More", "read more..",
    "Terms of Use", "PRIVACY & Cookies policy", "lorem Ipsum", "coo\u212aie policy", "uses cookies", '"', "\ud7ff",
    "\ue000", "\ufffd", "\U0010ffff", "e\u0301", "\u0301", "\u212a", "\0", "\x1c", "\x85", "\u00a0", "\u3000",
    "\u200b", " ", "  ", "\n", "\n\n", "\n\n\n", "\r\n", "\t", "\b", "\x0b", *reference.NOTICE_PHRASES[-3:],
    "don't", "CAN’T", "they'll", "I'd", "cannot", "id", "Mr.", "e.g.", "U.S.", "end.", "(x):", "$5", "5%", "5+", "+5",
    "..",     "64-bit", "a-b", "a--b", "a—b", "3-4", "a/b", "a,b", "x:y", "foo.Bar", "foo.bar", "a@b.com", "b.org/x?y",
    "x.y:80",     "…z", "a…b", "☎", "中文", "日本語です", "ไทย", "\u2028", "\x0c", "-x", "a's", "’s",
    "John’s", "«a»", "end.)", "A1.", "AB.",
]
# fmt: on
pieces = st.sampled_from(PIECES)
documents = st.none() | st.text(characters) | st.lists(pieces | st.just(" "), max_size=60).map("".join)


def counted(texts: Sequence[str | None], names: Sequence[str] = NAMES) -> list[dict[str, int]]:
    return [reference.count_statistics(text or "", names) for text in texts]


def rows(columns: dict[str, pa.Array]) -> list[dict[str, int]]:
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*(c.to_pylist() for c in columns.values()), strict=True)]


def test_the_extension_is_there() -> None:
    assert column_statistics.kernels is _kernels


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(documents, max_size=4))
@example(["", None, " ", "\n\n", "\n\n\n", "one", "é"])
@example(["x" * 62 + "\u3000 y", "x" * 63 + "\u3000 y", "x" * 62 + "\u3000the"])  # a space across 64 bytes
@example(["http://a", "http://a%2g", "http://a%g2", "http://a%2", "http://a%2f"])
def test_what_c_counts_is_what_the_definition_says(texts: list[str | None]) -> None:
    for kind in (pa.string(), pa.large_string()):
        assert rows(column_statistics.count_column(pa.array(texts, kind), NAMES)) == counted(texts)


@given(st.lists(documents, max_size=4), st.sampled_from([("letters",), ("letters", "capitals"), ("capitals", "words")]))
@example(["aÉ" * 50, "A" * 63 + "É" + "B" * 70, "A" * 62 + "\U0001d400" * 2, "a1" * 200], ("letters", "capitals"))
def test_letters_are_counted_alone_as_with_everything_else(texts: list[str | None], names: tuple[str, ...]) -> None:
    found = column_statistics.count_column(pa.array(texts, pa.string()), names)
    assert rows(found) == [reference.count_statistics(text or "", names) for text in texts]


def test_words_are_split_alike_wherever_they_are_in_blocks_of_bytes() -> None:
    piece = " words don't split well-known Mr. id cannot\u3000the (to) É.é of vs. and/or ab"
    texts = ["x" * size + piece * 3 for size in range(70)]
    found = column_statistics.count_column(pa.array(texts), LEXEMES)
    assert rows(found) == [reference.count_statistics(text, LEXEMES) for text in texts]


def test_every_character_is_in_the_classes_that_python_says() -> None:
    texts = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    found = column_statistics.count_column(pa.array(texts), CLASSES)
    for name, test in CLASSES.items():
        assert found[name].equals(pa.array(map(test, texts), pa.bool_()).cast(pa.int64())), name


HUGE = [
    "(" * 10**5 + "a" + ")." * 10**5,
    "a-" * 10**5,
    "a." * 10**5 + "Co",
    "'d" * 10**5,
    "@" * 10**5,
    "\r" * 10**5,
    ("a" * 999 + " é\n") * 10**4,  # 10 MB
    "é" * 10**5,
    "\n" * 10**6,
    "\n\n \n" * 10**5,
    "a b " * 10**5,
    "#" * 10**5,
    "%" * 10**5,
    "http://" * 10**5,
    ":" * 10**5,
    "e\u0301\u0302" * 10**5,
    "\0" * 10**5,
    " ".join(map(str, range(10**5))),
    "\n".join(str(number % 1000) for number in range(10**5)),
    "privacy " * 10**5,
]


@pytest.mark.parametrize("text", HUGE, ids=lambda text: repr(text[:8]))
def test_huge_and_odd_documents(text: str) -> None:
    names = (*reference.STATISTICS, "top_ngram_2", "repeated_top_ngram_3", "duplicate_ngram_5")
    assert rows(column_statistics.count_column(pa.array([text]), names)) == counted([text], names)


def test_a_million_different_words() -> None:
    text = " ".join(map(str, range(10**6)))
    [found] = rows(
        column_statistics.count_column(pa.array([text]), ("words", "duplicate_ngram_1", "repeated_top_ngram_1"))
    )
    assert found == {"words": 10**6, "duplicate_ngram_1": 0, "repeated_top_ngram_1": 1}


@given(st.lists(documents, max_size=8), st.integers(0, 8), st.integers(0, 8), st.data())
def test_slices_and_masks_show_what_they_show(
    texts: list[str | None], start: int, size: int, data: st.DataObject
) -> None:
    names = ("chars", "words", "distinct_lines", "top_ngram_1")
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(texts, kind).slice(start, size)
        wanted = counted(column.to_pylist(), names)
        assert rows(column_statistics.count_column(column, names)) == wanted
        flags = data.draw(st.lists(st.booleans(), min_size=len(column) + 3, max_size=len(column) + 3))
        mask = pa.array(flags, pa.bool_()).slice(3)
        nothing = dict.fromkeys(names, 0)
        masked = [row if flag else nothing for row, flag in zip(wanted, flags[3:], strict=True)]
        assert rows(column_statistics.count_column(column, names, mask)) == masked


@pytest.mark.parametrize("kind", [pa.int64(), pa.binary(), pa.string_view()])
def test_other_columns_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match="a column of strings, not of Arrow format"):
        _kernels.text_stats(pa.nulls(2, kind), None, ("chars",))


def test_wrong_arguments_are_refused() -> None:
    texts = pa.array(["a", "b"])
    for name in ("nothing", "top_ngram_0", "top_ngram_33", "top_ngram_2x", "top_ngram_", "duplicate_ngram_99999999999"):
        with pytest.raises(KeyError, match="there is no statistic"):
            _kernels.text_stats(texts, None, (name,))
    with pytest.raises(TypeError, match="one boolean per row"):
        _kernels.text_stats(texts, pa.array([True]), ("chars",))
    with pytest.raises(AttributeError):
        _kernels.text_stats(["a"], None, ("chars",))


def test_without_the_extension_python_counts_and_says_so_once() -> None:
    code = """
import sys, warnings
sys.modules["gristmill._kernels"] = None
import pyarrow as pa
from gristmill.text import WordCountFilter, RepeatingTopNGramsFilter
from gristmill.text.statistics import column_statistics
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(WordCountFilter().score_batch(pa.array(["a b", None])).to_pylist())
    print(RepeatingTopNGramsFilter(2).score_batch(pa.array(["a b a b"])).to_pylist())
    texts, rows = pa.array(["a", "b c"]), pa.array([False, True])
    print(column_statistics.count_column(texts, ["words"], rows)["words"].to_pylist())
[warning] = caught
assert "Install a C compiler" in str(warning.message), warning
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[2, 0]\n[0.8571428571428571]\n[0, 2]\n", "")


def test_a_run_without_the_extension_gives_the_same_and_one_notice(tmp_path: Path) -> None:
    code = """
import sys
if sys.argv[1] == "without":
    sys.modules["gristmill._kernels"] = None
from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.text import JsonlReader, JsonlWriter, RepeatedLinesFilter, ScoreFilter, WordCountFilter
make = DocumentBatch([{"text": "word " * number, "n": number, "meta": [number]} for number in range(20)])
Pipeline("make", stages=[JsonlWriter("in")]).run(LocalExecutor(0), initial_tasks=[make])
stages = [ScoreFilter(WordCountFilter(3), score_field="w"), ScoreFilter(RepeatedLinesFilter()), JsonlWriter("out")]
Pipeline("p", stages=[JsonlReader("in"), *stages]).run(LocalExecutor(0))
"""
    notices, outputs = [], []
    for form in ("with", "without"):
        folder = tmp_path / form
        folder.mkdir()
        command = [sys.executable, "-c", code, form]
        env = {**os.environ, "GRISTMILL_PROGRESS": "off"}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
        notices.append(done.stderr.count("was not built"))
        outputs.append({path.name: path.read_bytes() for path in sorted((folder / "out").glob("*.jsonl"))})
    assert notices == [0, 1]
    assert outputs[0] == outputs[1]
    assert sum(raw.count(b"\n") for raw in outputs[0].values()) == 17
