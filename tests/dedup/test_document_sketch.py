"""Sketches: C equals the definition, and the sets of shingles have the similarity of the texts."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.dedup.columns.arrow_numpy import numbers
from gristmill.dedup.fuzzy import exchange_rows as rows_module
from gristmill.dedup.fuzzy.exchange_rows import distinct_rows
from gristmill.dedup.signatures import document_sketch as module
from gristmill.dedup.signatures import lsh, minhash
from gristmill.dedup.signatures.document_sketch import (
    BUCKETS,
    SET_BODY,
    SIGNATURE_BODY,
    buckets_of,
    entry_pairs,
    set_jaccard,
    sketch,
)
from gristmill.dedup.signatures.lsh import band_rows, bucket_pairs
from gristmill.dedup.signatures.minhash import Shingling, signatures
from gristmill.dedup.signatures.search_quality import jaccard
from tests.dedup.unicode_texts import columns

WORDS = Shingling("words", 5)
SIZES = ((7, 1), (300, 1), (300, 2), (5000, 1))


@settings(max_examples=40)
@given(
    columns,
    st.sampled_from([Shingling("words", 1), WORDS, Shingling("chars", 3)]),
    st.sampled_from([(1, 1), (3, 2), (29, 8)]),
    st.sampled_from([32, 64]),
    st.sampled_from([0, SET_BODY, SIGNATURE_BODY]),
    st.integers(0, 2),
)
@example(["", None, "one two three four five six", "one", "é" * 300, "a b c " * 999], WORDS, (4, 2), 32, SET_BODY, 0)
def test_c_sketches_as_the_definition_says(
    texts: list[str | None], how: Shingling, cut: tuple[int, int], bits: int, body: int, start: int
) -> None:
    column = pa.array(texts, pa.string()).slice(start)
    nodes = np.arange(len(column), dtype=np.int64) * 10**12 - 5
    found = sketch(column, nodes, how, *cut, bits, body)
    with pytest.MonkeyPatch.context() as patch:
        for known in (module, minhash, lsh):
            patch.setattr(known, "kernels", None)
        slowly = sketch(column, nodes, how, *cut, bits, body)
    assert found.entries == slowly.entries
    assert found.ends.tolist() == slowly.ends.tolist()
    assert found.present.equals(slowly.present)
    assert found.bodies.equals(slowly.bodies)
    assert found.leasts.tolist() == slowly.leasts.tolist()


def test_entries_are_the_bands_of_signatures_by_bucket() -> None:
    texts = pa.array([" ".join(random.Random(seed).choices("abcdefgh", k=30)) for seed in range(50)])
    found = sketch(texts, np.arange(50), WORDS, 4, 3)
    entries = np.frombuffer(found.entries, np.int64).reshape(-1, 2)
    wanted = band_rows(pa.array(range(50), pa.int64()), signatures(texts, WORDS, 12), 4, 3)
    pairs = zip(numbers(wanted["key"]).view(np.int64).tolist(), wanted["id"].to_pylist(), strict=True)
    assert sorted(map(tuple, entries.tolist())) == sorted(pairs)
    buckets = buckets_of(entries[:, 0])
    assert (np.diff(buckets) >= 0).all()
    assert np.cumsum(np.bincount(buckets, minlength=BUCKETS)).tolist() == found.ends.tolist()


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 20)), max_size=40), st.integers(1, 9))
def test_pairs_of_entries_are_those_of_buckets(rows: list[tuple[int, int]], all_up_to: int) -> None:
    entries = np.array(rows, np.int64).reshape(-1, 2)
    wanted = bucket_pairs(pa.array(entries[:, 0].view(np.uint64)), pa.array(entries[:, 1]), all_up_to)
    pairs = list(zip(wanted["u"].to_pylist(), wanted["v"].to_pylist(), strict=True))
    assert sorted(set(map(tuple, entry_pairs(entries.tobytes(), all_up_to).tolist()))) == pairs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "kernels", None)
        assert list(map(tuple, entry_pairs(entries.tobytes(), all_up_to).tolist())) == pairs


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)), max_size=60), st.booleans())
def test_pairs_are_put_in_order_once_each(rows: list[tuple[int, int]], swapped: bool) -> None:
    pairs = np.array(rows, np.int64).reshape(-1, 2)
    pairs = np.concatenate([pairs[:, ::-1] if swapped else pairs, pairs])
    assert list(map(tuple, distinct_rows(pairs).tolist())) == sorted(set(map(tuple, pairs.tolist())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "kernels", None)
        assert list(map(tuple, distinct_rows(pairs).tolist())) == sorted(set(map(tuple, pairs.tolist())))


def test_a_set_may_be_compared_with_several() -> None:
    """Those that were read are kept, also if they are of other sizes; the least bits of the longer one are left out."""
    texts = [" ".join(f"w{number * step}" for number in range(size)) for size, step in SIZES]
    column = sets(texts, Shingling("words", 1))
    one, other = (side.reshape(-1) for side in np.meshgrid(np.arange(len(texts)), np.arange(len(texts))))
    found = set_jaccard(column, column.slice(0), one, other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "kernels", None)
        assert set_jaccard(column, column, one, other).tolist() == found.tolist()
    assert 0 < np.median(found) < 1


def sets(texts: list[str], how: Shingling = WORDS) -> pa.Array:
    return sketch(pa.array(texts), np.arange(len(texts)), how, 0, 1).bodies


def changed(words: list[str], draw: random.Random) -> list[str]:
    copy = list(words)
    for _ in range(draw.randrange(1 + len(words) // 15)):
        copy[draw.randrange(len(copy))] = "changed"
    return copy[draw.randrange(3) :]


@pytest.mark.parametrize("length", [60, 600, 6000])
def test_sets_have_the_similarity_of_the_texts(length: int) -> None:
    draw = random.Random(length)
    left = [[f"w{draw.randrange(50000)}" for _ in range(draw.randrange(5, length))] for _ in range(3000 // length + 20)]
    right = [" ".join(changed(words, draw)) for words in left]
    texts = list(map(" ".join, left))
    found = set_jaccard(sets(texts), sets(right))
    true = numbers(jaccard(pa.array(texts), pa.array(right), WORDS))
    assert true.min() < 0.8 < true.max()
    assert np.abs(found - true).max() <= 0.001
    assert np.abs(found - true).mean() < 0.0001
    assert (found[true == 1.0] == 1.0).all()


@settings(max_examples=40)
@given(st.lists(st.text("ab \n", max_size=30), min_size=1, max_size=6))
def test_sets_are_compared_by_c_as_the_definition_says(texts: list[str]) -> None:
    there = [text for text in texts if text.strip()]
    one, other = sets(there, Shingling("words", 1)), sets(there[::-1], Shingling("words", 1))
    found = set_jaccard(one, other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "kernels", None)
        assert set_jaccard(one, other).tolist() == found.tolist()


def test_a_damaged_set_is_an_error_and_none_is_like_no_other() -> None:
    whole = sets(["one two three four five six seven"])[0].as_py()
    for wrong in (b"x", whole[:-9], whole[:12] + b"\xff" * 4 + whole[16:], whole[:16] + bytes(8)):
        with pytest.raises(ValueError, match="damaged"):
            set_jaccard(pa.array([wrong]), pa.array([whole]))
    assert set_jaccard(pa.array([None, b""], pa.binary()), pa.array([whole, whole])).tolist() == [0.0, 0.0]
