"""Hashes and normal forms: C equals the definition, and the definition is what it says."""

from __future__ import annotations

import unicodedata
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill import _kernels
from gristmill.dedup.columns import arrow_numpy as columns_module
from gristmill.dedup.columns import column_hashes, normalisation
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.column_hashes import hash64, hash128, hash_columns
from gristmill.dedup.columns.normalisation import Normalisation, normalise_url, normalise_urls
from tests.dedup.unicode_texts import columns

SEEDS = st.integers(0, 2**64 - 1)
FORMS = [
    Normalisation(),
    Normalisation(None, lower=False, space=False),
    Normalisation("NFKC", punctuation=True),
    Normalisation(None, space=False, punctuation=True),
]


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_hashes, "kernels", None)
    monkeypatch.setattr(normalisation, "kernels", None)


def test_the_extension_is_there() -> None:
    assert column_hashes.kernels is normalisation.kernels is _kernels


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "99aa06d3014798d86001c324468d497f"),
        (b"hello", "b5e9c1ad071b3e7fc779cfaa5e523818"),
        (b"The quick brown fox jumps over the lazy dog", "ddd650205ca3e7fa24a1cc2e3a8a7651"),
    ],
)
def test_the_hash_is_xxh3(data: bytes, wanted: str) -> None:
    assert reference.xxh3(data)[::-1].hex() == wanted


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 5, 2**64 - 1])
def test_c_hashes_each_size_as_the_definition_says(seed: int) -> None:
    """Up to 3, 8, 16, 128 and 240 bytes are hashed each in another way; longer data 1024 bytes at a time."""
    random = Random(seed)
    rows = [random.randbytes(size) for size in (*range(600), *range(1020, 1100), *range(2040, 2120), 9_999, 70_000)]
    assert hash128(pa.array(rows, pa.binary()), seed).to_pylist() == [reference.xxh3(row, seed) for row in rows]


@settings(max_examples=50)
@given(st.lists(st.none() | st.binary(max_size=70), max_size=6), st.integers(0, 3), SEEDS)
def test_c_hashes_bytes_as_the_definition_says(rows: list[bytes | None], start: int, seed: int) -> None:
    for kind in (pa.binary(), pa.large_binary()):
        column = pa.array(rows, kind).slice(start)
        wanted = [None if row is None else reference.xxh3(row, seed) for row in column.to_pylist()]
        assert hash128(column, seed).to_pylist() == wanted
        halves = [None if one is None else int.from_bytes(one[:8], "little") for one in wanted]
        assert hash64(column, seed).to_pylist() == halves


@settings(max_examples=50)
@given(columns)
def test_strings_have_the_hash_of_their_bytes_in_any_form_of_column(rows: list[str | None]) -> None:
    wanted = [None if row is None else reference.xxh3(row.encode()) for row in rows]
    plain = pa.array(rows, pa.string())
    forms = [plain, plain.cast(pa.large_string()), plain.cast(pa.string_view()), plain.dictionary_encode()]
    for form in [*forms, pa.chunked_array([plain[:1], plain[1:]], pa.string())]:
        assert hash128(form).to_pylist() == wanted


@settings(max_examples=50)
@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.integers(-9, 9)), max_size=8))
def test_rows_of_several_columns_are_equal_when_all_values_are(rows: list[tuple[str | None, int | None]]) -> None:
    table = pa.table(
        {"a": pa.array([a for a, _ in rows], pa.string()), "b": pa.array([b for _, b in rows], pa.int64())}
    )
    found = hash_columns([table["a"], table["b"]]).to_pylist()
    for one, its in zip(rows, found, strict=True):
        assert (its is None) == (one == (None, None))
        assert all((its == other) == (one == row) for row, other in zip(rows, found, strict=True))


@given(
    st.lists(st.integers(0, 9) | st.integers(0, 2**64 - 1), max_size=40), st.sampled_from([8, 16]), st.integers(0, 3)
)
def test_c_finds_the_keys_that_begin_alike(firsts: list[int], width: int, start: int) -> None:
    keys = pa.array([first.to_bytes(8, "little") + bytes(width - 8) for first in firsts], pa.binary(width)).slice(start)
    found = columns_module.repeated_keys(keys)
    assert found.to_pylist() == [firsts[start:].count(first) > 1 for first in firsts[start:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "kernels", None)
        assert columns_module.repeated_keys(keys) == found


def test_values_do_not_run_into_each_other() -> None:
    first, second = pa.array(["ab", "a", None, ""]), pa.array(["c", "bc", "", None])
    assert len(set(hash_columns([first, second]).to_pylist())) == 4


@settings(max_examples=50)
@given(columns, st.sampled_from(FORMS))
@example(["A b", " é  É ", None, "", "ASCII,  only.", " \n", "ﬁ"], FORMS[2])
def test_c_normalises_as_the_definition_says(rows: list[str | None], form: Normalisation) -> None:
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(rows, kind)
        wanted = [None if row is None else form.text(row) for row in rows]
        assert form.apply(column).to_pylist() == wanted
        assert form.apply(column.slice(1)).to_pylist() == wanted[1:]


@pytest.mark.parametrize("form", [FORMS[0], FORMS[2], Normalisation("NFD", punctuation=True)])
def test_every_character_becomes_what_python_says(form: Normalisation) -> None:
    codes = [*range(0xD800), *range(0xE000, 0x10000), *range(0x1F000, 0x1FC00)]
    rows = [f"A{chr(code)} {chr(code)}e{chr(code)}" for code in codes]
    rows += [f"{chr(code)}{mark}" for code in range(0x3400) for mark in "\u0301\u3099"]
    rows += [f"{begun}{chr(jamo)}" for begun in "\u1100\uac00\uac01" for jamo in range(0x1100, 0x1200)]
    assert form.apply(pa.array(rows)).to_pylist() == [form.text(row) for row in rows]


def test_what_is_normalised() -> None:
    assert Normalisation().text("  The\n END\u00a0e\u0301 ") == "the end é"
    assert Normalisation(punctuation=True).text("“Hear!” — hear: $5") == "hear hear 5"
    assert unicodedata.is_normalized("NFKC", Normalisation("NFKC").text("ﬁ ½"))
    with pytest.raises(ValueError, match="NFKD"):
        Normalisation("NFX")


def test_python_does_the_same(in_python: None, request: pytest.FixtureRequest) -> None:
    column: Any = pa.array(["A  b", None, "É", ""])
    assert Normalisation().apply(column).to_pylist() == ["a b", None, "é", ""]
    assert hash128(column).to_pylist()[1:] == [None, reference.xxh3("É".encode()), reference.xxh3(b"")]
    assert hash64(column).to_pylist()[1] is None


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("https://www.Example.com/a/?b=1&a=2#part", "http://example.com:80/a?a=2&b=1"),
        ("https://example.com/", "http://example.com"),
        ("https://example.com:443/x?utm_source=a&gclid=1", "//www.example.com/x"),
        ("http://example.com/%7euser/%e9", "http://example.com/~user/%E9"),
        ("http://user:pw@example.com//a//b", "http://example.com/a/b"),
    ],
)
def test_urls_of_one_page_are_equal(url: str, same: str) -> None:
    found = normalise_urls(pa.array([url, None, same])).to_pylist()
    assert found[0] == found[2] == normalise_url(same)
    assert found[1] is None


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("http://example.com/a", "http://example.com/A"),
        ("http://example.com/?p=1", "http://example.com/?p=2"),
        ("http://example.com:8080/", "http://example.com/"),
        ("http://example.com/a%2Fb", "http://example.com/a/b"),
        ("http://example.com/?sid=1", "http://example.com/?sid=2"),
        ("not a url", "nor this"),
    ],
)
def test_urls_of_two_pages_are_not(url: str, other: str) -> None:
    assert normalise_url(url) != normalise_url(other)
