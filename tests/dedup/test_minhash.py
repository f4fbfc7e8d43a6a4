"""Signatures: C equals the definition, and they estimate what they should."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.signatures import minhash
from gristmill.dedup.signatures.minhash import Shingling, signature_matrix, signatures, similarity
from tests.dedup.unicode_texts import columns

SHINGLINGS = st.builds(
    Shingling, st.sampled_from(["chars", "words"]), st.sampled_from([1, 2, 3, 5, 24, 200]), st.integers(0, 2**64 - 1)
)


@settings(max_examples=40)
@given(columns, SHINGLINGS, st.sampled_from([1, 2, 7, 64, 260]), st.sampled_from([32, 64]), st.integers(0, 3))
@example(["", None, " \u3000\n", "one", "é" * 30], Shingling(), 260, 32, 0)
@example(["a b " * 400, "😀 x\u00a0y " * 30], Shingling("words", 5), 260, 64, 0)
def test_c_signs_as_the_definition_says(
    rows: list[str | None], shingling: Shingling, size: int, bits: int, start: int
) -> None:
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(rows, kind).slice(start)
        found = signatures(column, shingling, size, bits)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(minhash, "kernels", None)
            assert found.equals(signatures(column, shingling, size, bits))
        assert [row is None for row in found.to_pylist()] == [not (row or "").strip() for row in column.to_pylist()]


def test_each_character_of_a_script_without_spaces_is_a_word() -> None:
    codes = [code for code in range(0x34000) if not 0xD800 <= code < 0xE000]
    column, spaced = (pa.array([form.format(chr(code)) for code in codes]) for form in ("a{}b", "a {} b"))
    how = Shingling("words", 5)
    same = (signature_matrix(signatures(column, how, 1)) == signature_matrix(signatures(spaced, how, 1)))[:, 0].tolist()
    spaces = [code for code in codes if chr(code).isspace()]
    wanted = [code for first, last in reference.UNSPACED for code in range(first, last + 1)]
    assert [code for code, one in zip(codes, same, strict=True) if one] == sorted(wanted + spaces)
    assert reference.words("Zwei磨坊 三\u3000ไท,한글") == ["Zwei", "磨", "坊", "三", "ไ", "ท", ",한글"]


@pytest.mark.parametrize("piece", ["磨坊", "磨 坊", "a磨", "磨a", "磨\u3000", "\U00020000é", "ไa b"])
def test_words_may_lie_anywhere_in_a_block(piece: str) -> None:
    texts = pa.array([("x" * start + piece * times)[:200] for start in range(66) for times in (1, 2, 40)])
    how = Shingling("words", 2)
    found = signatures(texts, how, 4, 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minhash, "kernels", None)
        assert found.equals(signatures(texts, how, 4, 64))


def test_short_signatures_are_the_halves_of_long_ones() -> None:
    texts = pa.array(["some text of some words", None, "another " * 50])
    short, long = signatures(texts), signatures(texts, bits=64)
    assert (signature_matrix(long) >> np.uint64(32) == signature_matrix(short)).all()


def test_the_seed_changes_every_number() -> None:
    texts = pa.array(["some text of some words"])
    assert not (signature_matrix(signatures(texts)) == signature_matrix(signatures(texts, Shingling(seed=43)))).any()


def test_repetition_and_order_do_not_matter_but_shingles_do() -> None:
    once, often, turned, other = (pa.array([text]) for text in ("a b c d", "a b c d a b c d", "d c b a", "a b c e"))
    words = Shingling("words", 1)
    assert signatures(once, words).equals(signatures(often, words))
    assert signatures(once, words).equals(signatures(turned, words))
    assert not signatures(once, Shingling("words", 2)).equals(signatures(turned, Shingling("words", 2)))
    assert 0.3 < similarity(signatures(once, words), signatures(other, words))[0].as_py() < 0.9  # 3 of 5


@pytest.mark.parametrize("words", [3, 12, 60, 400, 1500])
@pytest.mark.parametrize("jaccard", [0.3, 0.8])
def test_the_estimate_has_no_bias_and_spreads_no_more_than_independent_hashes(words: int, jaccard: float) -> None:
    draw = random.Random(words)
    common = round(words * jaccard)
    left, right = [], []
    for _ in range(300):
        names = [f"{draw.getrandbits(60):x}" for _ in range(words)]
        middle = common + (words - common) // 2
        left.append(" ".join(names[:middle]))
        right.append(" ".join(names[:common] + names[middle:]))
    how = Shingling("words", 1)
    found = np.array(
        similarity(signatures(pa.array(left), how, 128), signatures(pa.array(right), how, 128)).to_pylist()
    )
    true = common / words
    spread = (true * (1 - true) / 128) ** 0.5
    assert abs(found.mean() - true) < 4 * spread / 300**0.5
    assert found.std() < 1.15 * spread


def test_slices_of_signatures_are_compared_with_what_they_show() -> None:
    found = signatures(pa.array(["a", "b", None, "a", ""]), Shingling("words", 1), 16)
    assert similarity(found[3:], found[:2]).to_pylist() == [1.0, 0.0]
    assert similarity(found[2:3], found[2:3]).to_pylist() == [0.0]
    assert similarity(pa.chunked_array([found[:1], found[3:4]]), found[:2]).to_pylist() == [1.0, 0.0]
    assert signature_matrix(found[:0]).shape == (0, 16)


def test_arguments_that_cannot_be_are_refused() -> None:
    texts = pa.array(["a"])
    for wrong in (lambda: Shingling("lines"), lambda: Shingling(n=0)):
        with pytest.raises(ValueError, match="chars"):
            wrong()
    for arguments in ({"bits": 16}, {"size": 0}):
        with pytest.raises(ValueError, match="=(16|0) is n"):
            signatures(texts, **arguments)
