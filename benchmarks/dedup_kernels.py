"""Figures: what deduplication computes, in megabytes of text per second of CPU, and how many duplicates it finds.

The first table is over generated web text (corpus.py), in one process, without files. The second is over pairs of
documents with a known Jaccard similarity: the share of them that bands find, beside what the S-curve says, what
independent hashes of 64 bits give, and what a family of 32-bit multiplications and additions gives. `--save` writes
results/dedup_kernels.json.

    python benchmarks/dedup_kernels.py [--megabytes 30] [--rounds 3] [--pairs 1000] [--save]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from corpus import corpus, sentences
from process_measurement import HERE, show, stable

from gristmill.dedup.clusters.connected_components import components
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import from_numbers, numbers
from gristmill.dedup.columns.column_hashes import hash128
from gristmill.dedup.columns.normalisation import Normalisation
from gristmill.dedup.exact.bloom_filter import BloomFilter
from gristmill.dedup.fuzzy.hash_distance_stages import simhashes
from gristmill.dedup.signatures import lsh, search_quality
from gristmill.dedup.signatures.minhash import Shingling, signature_matrix, signatures
from gristmill.dedup.substring import text_units
from gristmill.dedup.substring.substring_stage import repeated_spans

WORDS, CHARS = Shingling("words", 5), Shingling("chars", 24)
LEVELS = (0.7, 0.8, 0.9)
BANDS = ((20, 13), (28, 9))
SEEDS = 10


def speeds(megabytes: int, rounds: int) -> dict[str, Any]:
    texts = load(megabytes)
    size = texts.nbytes / 1e6
    signed = signatures(texts, WORDS)
    ids = from_numbers(np.arange(len(texts)))
    some = texts[: len(texts) // 2]
    other = texts[len(texts) - len(some) :]
    draw = np.random.default_rng(1)
    u, v = (from_numbers(draw.integers(0, 10**6, 10**6)) for _ in range(2))
    jobs: dict[str, tuple[float, Callable[[], Any]]] = {
        "hash128": (size, lambda: hash128(texts)),
        "normalise": (size, lambda: Normalisation().apply(texts)),
        "minhash 24 chars x 260": (size, lambda: signatures(texts, CHARS)),
        "minhash 5 words x 260": (size, lambda: signatures(texts, WORDS)),
        "minhash 5 words x 112": (size, lambda: signatures(texts, WORDS, 112)),
        "bands 20 x 13": (size, lambda: lsh.band_rows(ids, signed, 20, 13)),
        "simhash 3 words": (size, lambda: simhashes(texts)),
        "jaccard 5 words": (2 * some.nbytes / 1e6, lambda: search_quality.jaccard(some, other, WORDS)),
        "bloom filter": (size, lambda: BloomFilter(len(texts)).add(texts)),
        "lines": (size, lambda: text_units.repeated_pieces(text_units.cut_units(texts).keys())),
        "spans of 100 bytes": (size, lambda: repeated_spans(texts, 100)),
        "components, million edges": (1.0, lambda: components(u, v)),
    }
    return {name: stable([amount / cpu(job) for _ in range(rounds)], 1) for name, (amount, job) in jobs.items()}


def load(megabytes: int) -> pa.Array:
    rows = corpus(megabytes * 10**6)[0].read_bytes().splitlines()
    return pa.array([orjson.loads(row)["text"] for row in rows])


def cpu(job: Callable[[], Any]) -> float:
    began = time.process_time()
    job()
    return time.process_time() - began


# -- recall --------------------------------------------------------------------------------------------------


def recall(pairs: int) -> list[dict[str, Any]]:
    found = []
    for level in LEVELS:
        left, right, true = make_pairs(level, pairs)
        seeds = [Shingling("words", 5, seed) for seed in range(SEEDS)]  # all pairs share the luck of one
        ours = [np.concatenate([signature_matrix(signatures(side, seed)) for seed in seeds]) for side in (left, right)]
        free = [independent(side, scrambled) for side in (left, right)]
        short = [independent(side, multiplied) for side in (left, right)]
        error = (ours[0] == ours[1]).mean(axis=1) - np.tile(true, SEEDS)
        for bands, rows in BANDS:
            row = {
                "jaccard": level,
                "pairs": len(true),
                "bands": f"{bands} x {rows}",
                "curve": lsh.probability(true, bands, rows).mean(),
                "gristmill": share(*ours, bands, rows),
                "independent": share(*free, bands, rows),
                "multiply_add_32": share(*short, bands, rows),
                "bias": error.mean(),
                "spread": error.std(),
            }
            found.append({name: round(float(one), 4) if isinstance(one, float) else one for name, one in row.items()})
    return found


def make_pairs(level: float, count: int) -> tuple[pa.Array, pa.Array, Any]:
    """Texts of the corpus, each with one that is about as similar to it as asked."""
    draw = random.Random(int(100 * level))
    pool = [sentence.split() for sentence in sentences()["en"]]
    left, right = [], []
    while len(left) < 8 * count:
        words: list[str] = []
        wanted = draw.randrange(100, 500)
        while len(words) < wanted:
            words += draw.choice(pool)
        copy = list(words)
        for _ in range(round(len(words) * (1 - level) / (1 + level) / 5 * draw.uniform(0.8, 1.4))):
            copy[draw.randrange(len(copy))] = f"new{draw.randrange(10**6)}"
        left.append(" ".join(words))
        right.append(" ".join(copy))
    true = numbers(search_quality.jaccard(pa.array(left), pa.array(right), WORDS))
    chosen = np.flatnonzero(abs(true - level) < 0.01)[:count]
    return pa.array(left).take(from_numbers(chosen)), pa.array(right).take(from_numbers(chosen)), true[chosen]


def independent(texts: pa.Array, family: Callable[[Any], Any], size: int = 260) -> Any:
    """Signatures by the book: for each of 260 hash functions the least hash of all shingles."""
    found = np.zeros((len(texts), size), np.uint64)
    for row, text in enumerate(texts.to_pylist()):
        found[row] = family(np.unique(WORDS.shingles(text))).min(axis=1)
    return found


_DRAW = np.random.default_rng(7)
_KEYS = _DRAW.integers(0, 2**64, (260, 1), np.uint64)
_FACTORS = _DRAW.integers(0, 2**31, (260, 1), np.uint64) * np.uint64(2) + np.uint64(1)
_TERMS = _DRAW.integers(0, 2**32, (260, 1), np.uint64)


def scrambled(shingles: Any) -> Any:
    return reference.scramble(shingles ^ _KEYS)


def multiplied(shingles: Any) -> Any:
    return (shingles & np.uint64(0xFFFFFFFF)) * _FACTORS + _TERMS & np.uint64(0xFFFFFFFF)


def share(left: Any, right: Any, bands: int, rows: int) -> float:
    """The share of pairs with a band in common."""
    same = (left == right)[:, : bands * rows].reshape(len(left), bands, rows)
    return float(same.all(axis=2).any(axis=1).mean())


def brute_force(documents: int) -> dict[str, Any]:
    """A sample with near copies, compared pair by pair."""
    parts = [make_pairs(level, documents // 6) for level in LEVELS]
    texts = pa.concat_arrays([side for left, right, _ in parts for side in (left, right)])
    found = search_quality.measure_bands(texts, 0.8, *lsh.choose_bands(0.8), WORDS)
    names = ("recall", "precision", "verified_recall", "verified_precision")
    return {"documents": len(texts), "true_pairs": found.true_pairs} | {name: getattr(found, name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    result = {"mb_per_cpu_s": speeds(options.megabytes, options.rounds), "recall": recall(options.pairs)}
    result["brute_force"] = brute_force(options.pairs)
    show(result["mb_per_cpu_s"])
    for row in result["recall"]:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    show(result["brute_force"])
    if options.save:
        (HERE / "results" / "dedup_kernels.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
