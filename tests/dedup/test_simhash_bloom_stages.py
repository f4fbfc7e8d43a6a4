"""SimHash and Bloom filters as stages."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.dedup import BloomDeduplicationStage, Keep, SimHashDeduplicationStage
from gristmill.dedup.columns.column_hashes import hash128
from gristmill.dedup.exact.bloom_filter import GrowingBloomFilter
from gristmill.dedup.fuzzy.hash_distance_stages import distance, simhashes
from gristmill.text import JsonlReader, JsonlWriter
from tests.dedup.unicode_texts import chinese

WORDS = [f"word{number}" for number in range(3000)]


def text(seed: int, changes: int = 0, size: int = 400) -> str:
    words = random.Random(seed).choices(WORDS, k=size)
    for number in range(changes):
        words[number * 17 % size] = f"other{seed}"
    return " ".join(words)


def kept(stage: Any, texts: list[Any], batch: int = 3, **columns: list[Any]) -> list[int]:
    rows = [{"id": index, "text": value} for index, value in enumerate(texts)]
    rows = [{**row, **{name: values[index] for name, values in columns.items()}} for index, row in enumerate(rows)]
    tasks = [DocumentBatch(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=tasks)
    return [row["id"] for task in result for row in task.to_rows()]


# -- SimHash -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "options", "wanted"),
    [
        ([], {}, []),
        ([text(1)], {}, [0]),
        ([text(1), text(2), text(3)], {}, [0, 1, 2]),
        ([text(1)] * 8, {}, [0]),
        ([text(1), text(2), text(1, 1), text(2, 1)], {"radius": 6}, [0, 1]),
        ([text(1), text(1, 1)], {"radius": 0}, [0, 1]),
        ([chinese(1), chinese(2), chinese(1, 1)], {"radius": 8}, [0, 1]),
        (["", " ", None, "", None, 7], {}, [0, 1, 2, 3, 4, 5]),
        (["a few words", "a few words", "other words here"], {}, [0, 2]),
        ([text(1), f"{text(1)} x", text(1)], {"keep": "longest", "radius": 6}, [1]),
        ([text(1), text(1), text(1)], {"keep": Keep("highest", "score")}, [1]),
    ],
)
def test_texts_that_differ_in_few_bits(texts: list[Any], options: dict[str, Any], wanted: list[int]) -> None:
    columns = {"score": [1, 5, 3]} if len(texts) == 3 else {}
    assert kept(SimHashDeduplicationStage(**options), texts, **columns) == wanted


def test_all_pairs_are_found(tmp_path: Path) -> None:
    """Against brute force; and the cluster table says how near they are."""
    texts = [text(seed, changes, 60) for seed in range(40) for changes in (0, 1, 2)]
    random.Random(1).shuffle(texts)
    hashes = simhashes(pa.array(texts))
    groups = {row: row for row in range(len(texts))}
    for left in range(len(texts)):
        near = distance(pa.array([hashes[left].as_py()] * len(texts), pa.uint64()), hashes).to_pylist()
        for right in (row for row, bits in enumerate(near) if bits <= 5):
            low, high = sorted((groups[left], groups[right]))
            groups = {row: low if group == high else group for row, group in groups.items()}
    wanted = sorted(set(groups.values()))
    assert len(wanted) < len(texts) - 10
    assert kept(SimHashDeduplicationStage(radius=5, num_partitions=3), texts, batch=17) == wanted
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    stages = [JsonlReader(tmp_path / "in.jsonl"), SimHashDeduplicationStage(radius=5), JsonlWriter(tmp_path / "out")]
    Pipeline("p", stages=stages).run(LocalExecutor(0), tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "clusters").to_pylist()
    assert sum(not row["kept"] for row in table) == len(texts) - len(wanted)
    assert all(row["similarity"] is None or 1 - 5 / 64 <= row["similarity"] <= 1 for row in table)


def test_no_words_are_refused() -> None:
    with pytest.raises(ValueError, match="SimHashDeduplicationStage: word_ngrams is 0, must be 1 or more"):
        SimHashDeduplicationStage(word_ngrams=0)


def test_a_radius_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="radius is 9, must be 0 to 8 bits"):
        SimHashDeduplicationStage(radius=9)


# -- Bloom filter ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "options", "wanted"),
    [
        ([], {}, []),
        (["a"], {}, [0]),
        (["a", "b", "a", "c", "b"], {}, [0, 1, 3]),
        (["a"] * 7, {}, [0]),
        (["", None, "", None, "x"], {}, [0, 1, 3, 4]),
        (["a", "A", " a "], {"normalize": ["case", "whitespace"]}, [0]),
        (["a", 7, "a"], {}, [0, 1]),
    ],
)
def test_texts_that_were_there_before(texts: list[Any], options: dict[str, Any], wanted: list[int]) -> None:
    assert kept(BloomDeduplicationStage(**options), texts) == wanted


def test_the_rate_of_error_holds_also_when_there_are_more_texts_than_room() -> None:
    rows = 20_000
    texts = [f"text {number}" for number in range(rows)]
    for capacity in (rows, rows // 10):
        left = kept(BloomDeduplicationStage(false_positive_rate=0.02, capacity=capacity), texts + texts[:100], 5000)
        assert max(left) < rows, "what was there is always known"
        assert 0 < rows - len(left) <= rows * 0.02


def test_a_filter_grows_at_the_same_text_however_texts_are_cut() -> None:
    hashes = hash128(pa.array([f"text {number % 700}" for number in range(1000)]))
    found = []
    for step in (1000, 7, 64):
        known = GrowingBloomFilter(100, 0.2)
        found.append([flag for at in range(0, 1000, step) for flag in known.add(hashes.slice(at, step)).tolist()])
        assert len(known.filters) == 3
    assert found[0] == found[1] == found[2]
    assert all(found[0][700:])


def test_rates_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="BloomDeduplicationStage: false_positive_rate=1.5"):
        BloomDeduplicationStage(false_positive_rate=1.5)
    with pytest.raises(ValueError, match="BloomDeduplicationStage: capacity=0 must be 1 or more"):
        BloomDeduplicationStage(capacity=0)
    with pytest.raises(TypeError, match=r"BloomDeduplicationStage: capacity=2.5 must be an integer"):
        BloomDeduplicationStage(capacity=2.5)  # type: ignore[arg-type]
