"""Fuzzy deduplication keeps one row of those that are nearly the same, and tells which."""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.dedup import FuzzyDeduplicationStage, Keep
from gristmill.dedup.fuzzy import candidate_pairs
from gristmill.dedup.signatures.lsh import band_hashes
from gristmill.dedup.signatures.minhash import Shingling, signatures
from gristmill.dedup.signatures.search_quality import similar_pairs
from gristmill.text import JsonlReader, JsonlWriter
from tests.dedup.unicode_texts import chinese

WORDS = [f"word{number}" for number in range(3000)]


def text(seed: int, changes: int = 0) -> str:
    rng = random.Random(seed)
    words = [rng.choice(WORDS) for _ in range(100)]
    for number in range(changes):
        words[number * 17 % 100] = f"other{seed}"
    return " ".join(words)


def kept(texts: list[Any], columns: dict[str, list[Any]] | None = None, batch: int = 4, **options: Any) -> list[int]:
    rows = [{"id": index, "text": value} for index, value in enumerate(texts)]
    for name, values in (columns or {}).items():
        rows = [{**row, name: value} for row, value in zip(rows, values, strict=True)]
    tasks = [DocumentBatch(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    stage = FuzzyDeduplicationStage(word_ngrams=5, **options)
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=tasks)
    return [row["id"] for task in result for row in task.to_rows()]


@pytest.mark.parametrize("verify", ["none", "signature", "exact"])
@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ([text(1)], [0]),
        ([text(1), text(2), text(3)], [0, 1, 2]),
        ([text(1)] * 9, [0]),
        ([text(1, 1), text(2), text(1)], [0, 1]),
        ([text(1), text(2), text(1, 1), text(3), text(2, 1), text(2, 2)], [0, 1, 3]),
        ([chinese(1), chinese(2), chinese(1, 1), chinese(2, 3)], [0, 1]),
        (["", "  ", None, "", None], [0, 1, 2, 3, 4]),
        (["short", "short", "other"], [0, 2]),
        (["short", 7, "short", None], [0, 1, 3]),
    ],
)
def test_which_rows_are_kept(texts: list[Any], wanted: list[int], verify: str) -> None:
    assert kept(texts, threshold=0.7, verify=verify) == wanted


@pytest.mark.parametrize(
    ("keep", "wanted"),
    [
        ("first", [0]),
        ("longest", [2]),
        (Keep("highest", "score"), [1]),
        (Keep("newest", "date"), [3]),
        (Keep("source", "from", ["book", "web"]), [2]),
    ],
)
def test_which_of_a_cluster_is_kept(keep: Any, wanted: list[int]) -> None:
    texts = [text(1), text(1), text(1) + " and more", text(1)]
    columns = {
        "score": [1, 9, 3, None],
        "date": ["2024-01-02", "2024-01-01", None, "2025-01-01"],
        "from": ["web", "news", "book", "book"],
    }
    assert kept(texts, columns, keep=keep, threshold=0.7) == wanted


def test_pairs_below_the_threshold_stay() -> None:
    close, far = text(1, 1), text(1, 8)
    assert kept([text(1), close, far], threshold=0.8, verify="exact") == [0, 2]
    assert kept([text(1), close, far], threshold=0.3, verify="exact") == [0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threshold": 1.5}, "FuzzyDeduplicationStage: threshold is 1.5, .* at most 1.*ExactDeduplicationStage"),
        ({"threshold": 0}, "FuzzyDeduplicationStage: threshold is 0, must be above 0"),
        ({"threshold": 80, "num_bands": 20, "minhashes_per_band": 13}, "FuzzyDeduplicationStage: threshold is 80"),
        ({"word_ngrams": 0}, "FuzzyDeduplicationStage: word_ngrams is 0, must be 1 or more"),
        ({"verify": "never"}, "verify"),
        ({"num_bands": 20}, "set both"),
        ({"num_bands": 0, "minhashes_per_band": 3}, "1 or more"),
        ({"keep": "best"}, "keep"),
        ({"keep": "highest"}, "score_field"),
        ({"char_ngrams": 0}, "must be 1 or more, or None"),
        ({"num_partitions": 0}, "num_partitions"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FuzzyDeduplicationStage(**options)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 rows of 250 texts in three files; copies differ in up to three words."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(7)
    rows = [(seed, 0) for seed in range(250)] + [(rng.randrange(250), rng.randrange(4)) for _ in range(150)]
    rng.shuffle(rows)
    lines = [json.dumps({"id": f"{seed}-{n}", "text": text(seed, copy)}) for n, (seed, copy) in enumerate(rows)]
    for part in range(3):
        (folder / f"{part}.jsonl").write_text("\n".join(lines[part::3]) + "\n")
    return folder


def run(corpus: Path, place: Path, executor: LocalExecutor, **reader: Any) -> tuple[dict[str, bytes], list[Any]]:
    stage = FuzzyDeduplicationStage(word_ngrams=5, threshold=0.7, id_field="id")
    stages = [JsonlReader(corpus, **reader), stage, JsonlWriter(place / "out", mode="overwrite")]
    Pipeline("fuzzy", stages=stages).run(executor, place / "run")
    output = {path.name: path.read_bytes() for path in sorted((place / "out").glob("*.jsonl"))}
    return output, pq.read_table(place / "run" / "clusters").sort_by("id").to_pylist()


def test_the_same_rows_however_it_ran(corpus: Path, tmp_path: Path) -> None:
    ways: list[tuple[LocalExecutor, dict[str, Any]]] = [
        (LocalExecutor(0), {}),
        (LocalExecutor(2), {"blocksize": "30KB"}),
        (LocalExecutor(0), {"blocksize": "5KB"}),
    ]
    found = [run(corpus, tmp_path / str(number), how, **reader) for number, (how, reader) in enumerate(ways)]
    assert all(output == found[0][0] for output, _ in found), "the output"
    assert all(table == found[0][1] for _, table in found), "the cluster table"
    rows = [json.loads(line) for data in found[0][0].values() for line in data.splitlines()]
    assert sorted(int(row["id"].partition("-")[0]) for row in rows) == list(range(250))


def test_the_cluster_table_tells_which_rows_are_alike(corpus: Path, tmp_path: Path) -> None:
    _, table = run(corpus, tmp_path, LocalExecutor(0))
    seeds: dict[str, set[str]] = {}
    for row in table:
        seeds.setdefault(row["cluster"], set()).add(row["id"].partition("-")[0])
        assert (row["partner"] is None) == row["kept"]
        assert row["kept"] or 0.7 <= row["similarity"] <= 1.0
    assert all(len(found) == 1 for found in seeds.values())
    assert all(not a & b for a, b in combinations(seeds.values(), 2))
    assert sum(not row["kept"] for row in table) == 150


def test_the_partner_is_the_row_that_is_kept_or_else_the_most_similar(tmp_path: Path) -> None:
    words = WORDS[:140]
    chain = [" ".join(words[start : start + 100]) for start in (0, 8, 16)]  # 0.85 from one to the next, 0.71 over two
    texts = {"a": chain[0], "b": chain[1], "c": chain[2], "d": text(1, 1), "e": text(1), "f": text(1)}
    lines = [json.dumps({"id": name, "text": value}) for name, value in texts.items()]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    stages = [
        JsonlReader(tmp_path / "in.jsonl"),
        FuzzyDeduplicationStage(word_ngrams=5, id_field="id"),
        JsonlWriter(tmp_path / "out"),
    ]
    Pipeline("chain", stages=stages).run(LocalExecutor(0), tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "clusters").sort_by("id").to_pylist()
    assert [(row["id"], row["cluster"], row["partner"]) for row in table] == [
        ("a", "a", None),
        ("b", "a", "a"),
        ("c", "a", "b"),
        ("d", "d", None),
        ("e", "d", "d"),
        ("f", "d", "d"),
    ]
    assert [round(row["similarity"], 2) for row in table if not row["kept"]] == [0.85, 0.85, 0.98, 0.98]


# -- against brute force -------------------------------------------------------------------------------------


def near_threshold(count: int, shingles: int, least: float = 0.7, most: float = 0.9) -> list[str]:
    """Texts in pairs, each of which has from 0.7 to 0.9 of its shingles in common with the other."""
    draw = random.Random(11)
    texts = []
    for _ in range(count):
        words = [f"w{draw.randrange(10**6)}" for _ in range(shingles + 4)]
        similar = draw.uniform(least, most)
        tail = round(shingles * (1 - similar) / (1 + similar))
        texts += [" ".join(words), " ".join([*words[:-tail], *(f"x{draw.randrange(10**6)}" for _ in range(tail))])]
    return texts


@pytest.mark.parametrize("how", [{"word_ngrams": 5}, {}])
def test_near_the_threshold_what_is_dropped_is_alike_and_hardly_a_pair_is_missed(how: dict[str, int]) -> None:
    texts = near_threshold(400, 120)
    shingling = Shingling("words", 5) if how else Shingling()
    true = similar_pairs(pa.array(texts), 0.8, shingling)
    wanted = set(true["v"].to_pylist())
    assert 120 < len(wanted) < 280
    rows = [{"id": index, "text": value} for index, value in enumerate(texts)]
    stage = FuzzyDeduplicationStage(**how)
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=[DocumentBatch(rows)])
    dropped = set(range(len(texts))) - {row["id"] for task in result for row in task.to_rows()}
    assert len(dropped & wanted) >= 0.99 * len(wanted), "recall"
    assert len(dropped & wanted) >= 0.995 * len(dropped), "precision"


@pytest.mark.parametrize(("threshold", "verify"), [(0.4, "exact"), (0.5, "exact"), (0.6, "exact"), (0.6, "signature")])
def test_pairs_just_at_a_low_threshold_are_found(threshold: float, verify: str) -> None:
    texts = near_threshold(400, 120, threshold + 0.01, threshold + 0.03)
    assert len(kept(texts, batch=1000, threshold=threshold, verify=verify)) <= 400 + (4 if verify == "exact" else 40)


def test_at_a_threshold_of_1_the_same_shingles_are_alike() -> None:
    texts = ["a b c d e", "a  b c d\ne", "a b c d e a", "a b c d e f", text(1), text(1, 1), text(1)]
    assert kept(texts, threshold=1.0) == [0, 2, 3, 4, 5]
    assert kept(texts, threshold=1.0, num_bands=20, minhashes_per_band=13) == [0, 2, 3, 4, 5]


def test_plans_tell_what_is_found_at_the_threshold_and_warn_if_it_is_little() -> None:
    def plan(**options: Any) -> str:
        pipeline = Pipeline("p", stages=[FuzzyDeduplicationStage(**options)])
        return pipeline.plan([DocumentBatch([{"text": "a"}])]).describe(verbose=True)

    assert "83 bands of 4 rows" in plan(threshold=0.5)
    assert "99.5% at 0.5, the threshold" in plan(threshold=0.5)
    with pytest.warns(
        RuntimeWarning, match=r"FuzzyDeduplicationStage': .* find only 94% of the pairs just at the threshold of 0.2"
    ):
        assert "93.8% at 0.2, the threshold" in plan(threshold=0.2)
    with pytest.warns(
        RuntimeWarning, match=r"52 bands of 5 minhashes find only 81% of .* To find more, verify candidates"
    ):
        plan(threshold=0.5, verify="none")
    assert "67.7% at 0.8" in plan(num_bands=20, minhashes_per_band=13)  # as they were asked for


def counts(texts: list[str], **options: Any) -> dict[str, float]:
    rows = [{"id": index, "text": value} for index, value in enumerate(texts)]
    stage = FuzzyDeduplicationStage(word_ngrams=5, **options)
    stage._share = 1.0
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=[DocumentBatch(rows)])
    return {name: value for line in result.summary().stages for name, value in line.counts.items()}


def test_the_run_tells_how_well_it_went() -> None:
    counted = counts(near_threshold(200, 60), threshold=0.75)
    assert counted["pairs_alike"] <= counted["pairs_compared"] == counted["candidate_pairs"]
    assert counted["clusters"] == counted["clusters_of_2"] == counted["pairs_alike"]
    assert counted["largest_cluster"] == 2
    assert 60 < counted["sample_pairs"] <= counted["pairs_alike"]
    assert counted["estimated_recall"] == 1.0
    assert 0.99 < counted["expected_recall"] <= 1.0


def test_bands_that_miss_pairs_are_told_of() -> None:
    with pytest.warns(RuntimeWarning, match="4 bands of 20 minhashes found only .* Use more bands"):
        counted = counts(near_threshold(200, 60), num_bands=4, minhashes_per_band=20)
    assert counted["estimated_recall"] < 0.5
    assert abs(counted["estimated_recall"] - counted["expected_recall"]) < 0.15


def test_the_curve_is_there_to_look_at() -> None:
    assert "29 bands of 8 rows" in FuzzyDeduplicationStage().curve()


def test_each_band_finds_pairs_of_its_own() -> None:
    bands, rows, pairs = 4, 2, [(text(seed), text(seed, 8)) for seed in range(60)]
    alone: dict[int, tuple[str, str]] = {}
    for pair in pairs:
        signed = signatures(pa.array(pair), Shingling("words", 5), bands * rows)
        one, other = band_hashes(signed, bands, rows)
        if (one == other).sum() == 1:
            alone[int((one == other).argmax())] = pair
    assert sorted(alone) == list(range(bands))
    for band, pair in alone.items():
        found = kept(list(pair), num_bands=bands, minhashes_per_band=rows, verify="none")
        assert found == [0], f"band {band}"


# -- size ----------------------------------------------------------------------------------------------------


def test_partitions_that_do_not_fit_into_memory_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text(seed, copy) for seed in range(30) for copy in (0, 1, 2)]
    wanted = kept(texts, threshold=0.7)
    assert len(wanted) == 30
    monkeypatch.setattr(candidate_pairs, "sort_memory_bytes", lambda _: 5000)
    assert kept(texts, threshold=0.7) == wanted
    assert kept(texts[:6], threshold=0.7, memory_gb=1e-4, num_partitions=1) == wanted[:2]


@pytest.mark.slow
def test_a_cluster_of_twenty_thousand() -> None:
    words = [f"w{number}" for number in range(150)]
    texts = [" ".join([*words, f"copy{number}"]) for number in range(20_000)]
    found = kept([*texts, "another text"], batch=5000)
    assert found == [0, 20_000]


@pytest.mark.parametrize(
    ("options", "unit", "count"),
    [
        ({}, "words", 5),
        ({"char_ngrams": 24}, "chars", 24),
        ({"word_ngrams": 3, "char_ngrams": 24}, "words", 3),
    ],
)
def test_runs_of_which_texts_are_compared(options: dict[str, Any], unit: str, count: int) -> None:
    found = FuzzyDeduplicationStage(**options).index_parameters()
    assert (found["shingles"], found["ngrams"]) == (unit, count)
