"""Bands, buckets and pairs, and the true similarity that they are held against."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import combinations, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.dedup.clusters.connected_components import components
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.signatures import lsh, search_quality
from gristmill.dedup.signatures.document_sketch import entry_pairs
from gristmill.dedup.signatures.lsh import (
    band_rows,
    bucket_pairs,
    choose_bands,
    format_s_curve,
    probability,
    s_curve,
)
from gristmill.dedup.signatures.minhash import Shingling, signature_matrix, signatures
from tests.dedup.unicode_texts import columns

WORDS = Shingling("words", 5)


def test_a_key_is_the_hash_of_its_band() -> None:
    signed = signatures(pa.array(["some text", None, "other text"]), Shingling("words", 1), 12)
    found = band_rows(pa.array([0, 1, 2], pa.int64()), signed, 3, 4)
    rows = signature_matrix(signed)
    wanted = {
        (int.from_bytes(reference.xxh3(rows[row][4 * band : 4 * band + 4].tobytes(), band)[:8], "little"), row)
        for row in (0, 2)
        for band in range(3)
    }
    assert set(zip(found["key"].to_pylist(), found["id"].to_pylist(), strict=True)) == wanted


@settings(max_examples=30)
@given(columns, st.sampled_from([(1, 1), (3, 2), (2, 5)]), st.sampled_from([32, 64]), st.integers(0, 2))
def test_bands_are_the_same_from_c_and_python_all_at_once_or_not(
    texts: list[str | None], cut: tuple[int, int], bits: int, start: int
) -> None:
    bands, rows = cut
    signed = signatures(pa.array(texts, pa.string()), Shingling("words", 1), 11, bits).slice(start)
    ids = pa.array(range(len(signed)), pa.int64())
    found = band_rows(ids, signed, bands, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lsh, "kernels", None)
        assert found.equals(band_rows(ids, signed, bands, rows))
    parts = [band_rows(ids, signed, bands, rows, range(band, band + 1)) for band in range(bands)]
    assert found.sort_by([("id", "ascending"), ("key", "ascending")]).equals(
        pa.concat_tables(parts).sort_by([("id", "ascending"), ("key", "ascending")])
    )
    assert set(found["id"].to_pylist()) == {row for row in range(len(signed)) if signed[row].is_valid}


def test_equal_numbers_in_different_bands_have_different_keys() -> None:
    ones = pa.array([[1] * 8], pa.list_(pa.uint32(), 8))
    assert len(set(lsh.band_hashes(ones, 4, 2).reshape(-1).tolist())) == 4


def test_bands_that_do_not_fit_are_refused() -> None:
    signed = signatures(pa.array(["a"]), size=10)
    with pytest.raises(ValueError, match="4 bands of 3 rows do not fit a signature of 10"):
        band_rows(pa.array([1]), signed, 4, 3)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 12)), max_size=30), st.integers(1, 9))
@example([], 2)
@example([(0, 1), (0, 1)], 2)
@example([(0, node) for node in range(9)] + [(1, 3), (1, 3), (1, 1)], 4)
def test_buckets_give_pairs(rows: list[tuple[int, int]], all_up_to: int) -> None:
    keys, ids = pa.array([key for key, _ in rows], pa.uint64()), pa.array([node for _, node in rows], pa.int64())
    found = bucket_pairs(keys, ids, all_up_to)
    buckets: dict[int, set[int]] = defaultdict(set)
    for key, node in rows:
        buckets[key].add(node)
    wanted = set()
    for bucket in buckets.values():
        nodes = sorted(bucket)
        if len(nodes) <= all_up_to:
            wanted |= set(combinations(nodes, 2))
        else:
            wanted |= {(nodes[0], node) for node in nodes[1:]} | set(pairwise(nodes))
    assert list(zip(found["u"].to_pylist(), found["v"].to_pylist(), strict=True)) == sorted(wanted)


def test_no_document_of_a_large_bucket_has_too_many_pairs() -> None:
    count = 3000
    entries = np.stack([np.zeros(count, np.int64), np.arange(count)[::-1] * 7], axis=1)
    found = entry_pairs(np.ascontiguousarray(entries).tobytes(), 8)
    twin = bucket_pairs(pa.array(entries[:, 0].view(np.uint64)), pa.array(entries[:, 1]), 8)
    pairs = sorted(set(map(tuple, found.tolist())))
    assert pairs == list(zip(twin["u"].to_pylist(), twin["v"].to_pylist(), strict=True))
    assert len(pairs) < 2 * count
    assert np.bincount(found.reshape(-1) // 7).max() < 300
    assert set(components(twin["u"], twin["v"])["cluster"].to_pylist()) == {0}


def test_the_curve() -> None:
    assert probability(0.8, 20, 13) == pytest.approx(0.677, abs=0.001)
    assert [point for point, _ in s_curve(20, 13)] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert "20 bands of 13 rows" in format_s_curve(20, 13)
    assert "100.00%" in format_s_curve(20, 13).splitlines()[-1]
    assert "are found; 67.7% at 0.8, the threshold" in format_s_curve(20, 13, 0.8)


@pytest.mark.parametrize("size", [64, 128, 260])
@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9])
def test_chosen_bands_find_what_is_above_the_threshold(size: int, threshold: float) -> None:
    bands, rows = choose_bands(threshold, size)
    assert bands * rows <= size
    above = np.linspace(threshold, 1, 50)
    assert probability(above, bands, rows).mean() > (0.98 if size == 260 else 0.9)
    assert probability(threshold / 2, bands, rows) <= 0.05
    strict = choose_bands(threshold, size, 0.9, 0.1, sure=0)
    assert probability(threshold - 0.1, *strict) < probability(threshold - 0.1, bands, rows)


@pytest.mark.parametrize("threshold", [0.32, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 0.99, 1.0])
def test_of_pairs_just_at_the_threshold_as_many_are_found_as_is_said(threshold: float) -> None:
    bands, rows = choose_bands(threshold)
    assert probability(threshold, bands, rows) >= lsh.SURE_PROBABILITY
    assert bands * rows <= 2 * lsh.SIZE
    assert probability(threshold / 2, bands, rows) <= 0.5


def test_low_thresholds_find_what_they_can() -> None:
    found = [float(probability(threshold, *choose_bands(threshold))) for threshold in (0.05, 0.1, 0.2, 0.26, 0.3)]
    assert found == sorted(found)
    assert [share > least for share, least in zip(found, (0.7, 0.9, 0.93, 0.95, 0.99), strict=True)] == [True] * 5


def test_what_is_not_verified_is_seldom_found_in_vain() -> None:
    for threshold in (0.1, 0.3, 0.5, 0.68):
        assert probability(threshold / 2, *choose_bands(threshold, verified=False)) <= 0.05


@pytest.mark.parametrize("verified", [True, False])
def test_bands_of_high_thresholds(verified: bool) -> None:
    wanted = {0.7: (62, 7), 0.75: (37, 7), 0.8: (29, 8), 0.85: (25, 10), 0.9: (19, 13), 0.95: (12, 20), 0.99: (5, 42)}
    assert {threshold: choose_bands(threshold, verified=verified) for threshold in wanted} == wanted


def test_thresholds_that_cannot_be_are_refused() -> None:
    for wrong in (0.0, 1.01, 80):
        with pytest.raises(ValueError, match="must be above 0 and at most 1"):
            choose_bands(wrong)


# -- true similarity ---------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(columns, st.sampled_from([Shingling("chars", 2), Shingling("words", 1), WORDS]), st.integers(0, 2))
def test_similarity_is_the_same_from_c_and_python(texts: list[str | None], how: Shingling, start: int) -> None:
    left = pa.array(texts, pa.string()).slice(start)
    right = pa.array(texts[::-1], pa.large_string()).slice(start)
    sets = [set(how.shingles(text or "").tolist()) for text in left.to_pylist()]
    pairs, compared = search_quality.similar_pairs(left, 0.3, how), search_quality.jaccard(left, right, how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_quality, "kernels", None)
        assert pairs.equals(search_quality.similar_pairs(left, 0.3, how))
        assert compared.equals(search_quality.jaccard(left, right, how))
    wanted = [
        (u, v)
        for u, v in combinations(range(len(sets)), 2)
        if sets[u] and len(sets[u] & sets[v]) / len(sets[u] | sets[v]) >= 0.3
    ]
    assert list(zip(pairs["u"].to_pylist(), pairs["v"].to_pylist(), strict=True)) == wanted


def test_what_similarity_is() -> None:
    left = pa.array(["a b c", "a b c", "", "x", None, "a a a b"])
    right = pa.array(["a b d", "c b a", "", "x", None, "b a"])
    assert search_quality.jaccard(left, right, Shingling("words", 1)).to_pylist() == [0.5, 1.0, 0.0, 1.0, 0.0, 1.0]


def near_copies(documents: int, draw: random.Random) -> list[str]:
    """Texts in pairs: each second one is the one before with some words changed."""
    found = []
    for _ in range(documents // 2):
        words = [f"w{draw.randrange(5000)}" for _ in range(draw.randrange(60, 300))]
        copy = list(words)
        for _ in range(draw.randrange(1 + len(words) // 20)):
            copy[draw.randrange(len(copy))] = "changed"
        found += [" ".join(words), " ".join(copy)]
    return found


def test_quality_is_measured_against_brute_force() -> None:
    texts = near_copies(600, random.Random(5))
    bands, rows = choose_bands(0.8, 260)
    found = search_quality.measure_bands(pa.array(texts), 0.8, bands, rows, WORDS)
    assert found.documents == 600
    assert found.true_pairs > 100
    assert found.recall > 0.98
    assert found.verified_precision > found.precision
    blind = search_quality.measure_bands(pa.array(texts), 0.8, 1, 260, WORDS)
    assert blind.recall < 0.6
    assert blind.precision == 1.0


@pytest.mark.parametrize("texts", [[], ["one"], ["", None, " "], ["a b", "c d"]])
def test_there_may_be_nothing_to_find(texts: list[str | None]) -> None:
    found = search_quality.measure_bands(pa.array(texts, pa.string()), 0.8, 20, 13, WORDS)
    assert (found.true_pairs, found.candidates, found.recall, found.precision) == (0, 0, 1.0, 1.0)


def test_all_the_same() -> None:
    found = search_quality.measure_bands(pa.array(["the same text"] * 30), 0.8, 20, 13)
    assert (found.true_pairs, found.found, found.right) == (435, 435, 435)
