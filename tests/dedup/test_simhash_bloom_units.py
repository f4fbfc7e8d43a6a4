"""SimHash, Bloom filters, and parts of documents that come again."""

from __future__ import annotations

import random
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.dedup.columns.normalisation import Normalisation
from gristmill.dedup.exact import bloom_filter
from gristmill.dedup.exact.bloom_filter import BloomFilter
from gristmill.dedup.fuzzy import hash_distance_stages
from gristmill.dedup.fuzzy.hash_distance_stages import distance, near_pairs, search_rows, simhashes
from gristmill.dedup.signatures.minhash import Shingling
from gristmill.dedup.substring import substring_stage
from gristmill.dedup.substring.substring_stage import repeated_spans, without_spans
from gristmill.dedup.substring.text_units import cut_units, repeated_pieces
from tests.dedup.unicode_texts import columns, documents

# -- SimHash -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(columns, st.sampled_from([Shingling("chars", 4), Shingling("words", 1)]), st.integers(0, 2))
@example(["a b " * 500], Shingling("chars", 4), 0)
def test_simhash_is_the_same_from_c_and_python(texts: list[str | None], how: Shingling, start: int) -> None:
    column = pa.array(texts, pa.string()).slice(start)
    found = simhashes(column, how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_distance_stages, "kernels", None)
        assert found.equals(simhashes(column, how))
    assert [one is None for one in found.to_pylist()] == [not (text or "").strip() for text in column.to_pylist()]


def test_small_changes_change_few_bits() -> None:
    draw = random.Random(1)
    words = [f"w{draw.randrange(3000)}" for _ in range(500)]
    other = [f"w{draw.randrange(3000)}" for _ in range(500)]
    found = simhashes(pa.array([" ".join(words), " ".join(words[:-2]), " ".join(other)]))
    near, far = distance(found[:2], found[1:]).to_pylist()
    assert near < 8
    assert far > 15


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=8), st.integers(0, 4), st.data())
def test_all_hashes_that_differ_in_few_bits_are_found(values: list[int], within: int, data: st.DataObject) -> None:
    for value in list(values):
        bits = data.draw(st.lists(st.integers(0, 63), max_size=5))
        values.append(value ^ sum(1 << bit for bit in set(bits)))
    found = near_pairs(pa.array(values, pa.uint64()), within, blocks=within + 3)
    pairs = list(zip(found["u"].to_pylist(), found["v"].to_pylist(), strict=True))
    size = len(values)
    assert pairs == [
        (u, v) for u in range(size) for v in range(u + 1, size) if (values[u] ^ values[v]).bit_count() <= within
    ]


def test_blank_documents_are_near_to_none() -> None:
    assert near_pairs(simhashes(pa.array(["", None, " "]))).num_rows == 0
    with pytest.raises(ValueError, match="must be less than blocks"):
        search_rows(pa.array([1]), pa.array([1], pa.uint64()), 4, 4)


# -- Bloom filter ------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(documents, max_size=12), st.integers(1, 20), st.integers(0, 3))
def test_the_filter_is_the_same_from_c_and_python(texts: list[str | None], capacity: int, start: int) -> None:
    column = pa.array(texts, pa.string()).slice(start)
    fast, slow = BloomFilter(capacity, 0.3), BloomFilter(capacity, 0.3)
    known = fast.add(column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bloom_filter, "kernels", None)
        assert known.equals(slow.add(column))
        assert slow.seen(column).to_pylist() == [text is not None for text in column.to_pylist()]
    assert fast.to_bytes() == slow.to_bytes()


def test_nothing_is_forgotten_and_few_are_taken_for_known() -> None:
    found = BloomFilter(20_000, 0.01)
    texts = pa.array([f"text {number}" for number in range(20_000)])
    first = sum(found.add(texts).to_pylist())
    assert first < 100
    assert all(found.seen(texts).to_pylist())
    others = sum(found.seen(pa.array([f"other {number}" for number in range(20_000)])).to_pylist())
    assert 100 < others < 300
    assert found.added == 20_000 - first


def test_the_second_of_two_is_known_and_null_never() -> None:
    assert BloomFilter(10).add(pa.array(["a", "b", "a", None, None, ""])).to_pylist() == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]


def test_filters_are_kept_and_merged() -> None:
    one, other = BloomFilter(100), BloomFilter(100)
    one.add(pa.array(["a"]))
    other.add(pa.array(["b"]))
    again = BloomFilter.from_bytes(one.to_bytes())
    again.merge(other)
    assert again.seen(pa.array(["a", "b", "c"])).to_pylist() == [True, True, False]
    assert again.added == 2
    with pytest.raises(ValueError, match="make both with the same arguments"):
        again.merge(BloomFilter(99))
    with pytest.raises(ValueError, match="earlier version, with other hashes: rebuild it"):
        BloomFilter.from_bytes(b"GRISTBLM" + one.to_bytes()[8:])
    for broken in (b"nothing", one.to_bytes()[:-1]):
        with pytest.raises(ValueError, match="Bloom filter"):
            BloomFilter.from_bytes(broken)
    for wrong in ({"capacity": 0}, {"capacity": 5, "false_positive_rate": 1.0}):
        with pytest.raises(ValueError, match="must be 1 or more|between 0 and 1"):
            BloomFilter(**wrong)


# -- lines, paragraphs and sentences ------------------------------------------------------------------------

CUTS = {"line": r"[^\n]*\n|[^\n]+", "paragraph": r"(?s:.*?)(?:\n(?:[^\S\n]*\n)+|\Z)"}


@settings(max_examples=60)
@given(columns, st.sampled_from(["line", "paragraph", "sentence"]), st.integers(0, 2))
@example(["\n\n0", "a\n", "\nb\n\n", "\n\n\n", "\n", None, "c\n\n\nd"], "paragraph", 0)
@example(["a\r\n\r\nb\r\nc\n \t\nd\n\u3000\u00a0\n", "\r\n\r\n", " \ne\n ", "\n"], "paragraph", 0)
@example(["One. Two!\n", " Three? “Four.” Five.", "一。二！三"], "sentence", 0)
def test_pieces_joined_are_the_document(texts: list[str | None], unit: str, start: int) -> None:
    column = pa.array(texts, pa.string()).slice(start)
    pieces = cut_units(column, unit)
    parts: list[list[str]] = [[] for _ in column]
    for row, place, piece in zip(pieces.rows.tolist(), pieces.places.tolist(), pieces.texts.to_pylist(), strict=True):
        assert place == len(parts[row])
        parts[row].append(piece)
    assert ["".join(one) for one in parts] == [text or "" for text in column.to_pylist()]
    assert pieces.without(np.zeros(len(pieces.texts), np.bool_)).to_pylist() == column.to_pylist()
    if unit in CUTS:
        assert parts == [[part for part in re.findall(CUTS[unit], text or "") if part] for text in column.to_pylist()]


def test_sentences() -> None:
    found = cut_units(
        pa.array(['He said "No." Then, 3.5 km on… he left!\nA list\n一。二！三']), "sentence"
    ).texts.to_pylist()
    assert found == ['He said "No." ', "Then, 3.5 km on… ", "he left!\n", "A list\n", "一。", "二！", "三"]


@settings(max_examples=60)
@given(
    st.lists(st.none() | st.lists(st.sampled_from(["a", "b ", " ", "", "c", "b"]), max_size=6), max_size=6),
    st.integers(2, 3),
)
def test_lines_that_come_again_are_left_out(rows: list[list[str] | None], at_least: int) -> None:
    texts = [None if row is None else "".join(line + "\n" for line in row) for row in rows]
    pieces = cut_units(pa.array(texts, pa.string()))
    found = pieces.without(repeated_pieces(pieces.keys(), at_least)).to_pylist()
    counts = Counter(line.strip() for row in rows for line in row or [])
    seen, wanted = set(), []
    for row in rows:
        kept = []
        for line in row or []:
            if not line.strip() or line.strip() not in seen or counts[line.strip()] < at_least:
                kept.append(line + "\n")
            seen.add(line.strip())
        wanted.append(None if row is None else "".join(kept))
    assert found == wanted


def test_lines_may_be_known_again_by_their_normal_form() -> None:
    pieces = cut_units(pa.array(["Read  more\n", "read MORE"]))
    assert not repeated_pieces(pieces.keys()).any()
    assert repeated_pieces(pieces.keys(Normalisation())).tolist() == [False, True]
    with pytest.raises(ValueError, match="line, paragraph, sentence"):
        cut_units(pa.array(["a"]), "word")


# -- substrings --------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(columns, st.sampled_from([1, 2, 3, 5, 8]), st.integers(0, 2))
@example(["aaaaaaaa", "aaaa"], 3, 0)
@example(["é中é中", "中é"], 2, 0)
def test_spans_are_the_same_from_c_and_python(texts: list[str | None], n: int, start: int) -> None:
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(texts, kind).slice(start)
        found = repeated_spans(column, n)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(substring_stage, "kernels", None)
            assert found.equals(repeated_spans(column, n))
        wanted = [None if text is None else text.encode() for text in column.to_pylist()]
        for span in reversed(found.to_pylist()):
            data = wanted[span["row"]]
            assert data is not None
            wanted[span["row"]] = data[: span["start"]] + data[span["end"] :]
        left = without_spans(column, found).to_pylist()
        assert left == [None if data is None else data.decode() for data in wanted]


def test_what_comes_again_is_found_where_it_does() -> None:
    common = "This sentence stands in both documents, word for word."
    texts = pa.array([f"First. {common} End.", "nothing here", f"Second, {common}"])
    found = repeated_spans(texts, 40)
    assert found.to_pylist() == [{"row": 2, "start": 7, "end": 8 + len(common)}]
    assert without_spans(texts, found).to_pylist()[2] == "Second,"
    assert repeated_spans(texts, 60).num_rows == 0
    with pytest.raises(ValueError, match="n=0 must be 1 byte or more"):
        repeated_spans(texts, 0)


def test_documents_and_their_paragraphs_can_both_be_deduplicated() -> None:
    texts = pa.array(["one\n\ntwo\n\n", "one\n\nthree\n\n"])
    pieces = cut_units(texts, "paragraph")
    assert pieces.without(repeated_pieces(pieces.keys())).to_pylist() == ["one\n\ntwo\n\n", "three\n\n"]
