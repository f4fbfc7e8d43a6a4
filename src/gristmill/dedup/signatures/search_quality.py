"""Recall and precision of a search by bands, measured on a sample.

All pairs of a sample are compared by brute force, and compared with what the bands find: recall is the share of true
pairs that are found, precision the share of found pairs that are true.

Gives up pairs with a document outside of the sample; a sample that keeps similar documents together (`in_sample`) has
more pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Protocol

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_text, from_numbers, numbers
from gristmill.dedup.signatures.document_sketch import set_jaccard
from gristmill.dedup.signatures.lsh import band_rows, bucket_pairs, probability
from gristmill.dedup.signatures.minhash import Shingling, signatures, similarity

_PAIR = np.dtype([("u", "<i8"), ("v", "<i8"), ("jaccard", "<f8")])


def jaccard(left: Column, right: Column, shingling: Shingling | None = None) -> pa.DoubleArray:
    """The Jaccard similarity of the texts of each row; 0 where one of them is blank or null."""
    how, one, other = shingling or Shingling(), as_text(left), as_text(right)
    if kernels is not None:
        found = np.frombuffer(kernels.jaccard(one, other, how.unit, how.n, how.seed), np.float64)
    else:
        sets = ([set(how.shingles(text or "").tolist()) for text in side.to_pylist()] for side in (one, other))
        found = np.array([_jaccard(a, b) for a, b in zip(*sets, strict=True)], np.float64)
    return from_numbers(found)


def similar_pairs(column: Column, least: float, shingling: Shingling | None = None) -> pa.Table:
    """All pairs of rows `u < v` with a Jaccard similarity of `least` or more, by brute force, for samples."""
    how, texts = shingling or Shingling(), as_text(column)
    if kernels is not None:
        found = np.frombuffer(kernels.similar_pairs(texts, how.unit, how.n, how.seed, least), _PAIR)
    else:
        found = _compare_slowly(texts, least, how)
    found = found[np.lexsort((found["v"], found["u"]))]
    return pa.table({name: from_numbers(found[name]) for name in _PAIR.names or ()})


def _compare_slowly(texts: pa.Array, least: float, how: Shingling) -> Numbers:
    sets = [set(how.shingles(text or "").tolist()) for text in texts.to_pylist()]
    pairs = [(u, v, _jaccard(sets[u], sets[v])) for u, v in combinations(range(len(sets)), 2) if sets[u] & sets[v]]
    return np.array([pair for pair in pairs if pair[2] >= least], _PAIR)


def _jaccard(one: set[int], other: set[int]) -> float:
    return len(one & other) / len(one | other) if one and other else 0.0


@fast_dataclass(frozen=True)
class BandQuality:
    """The result of a search by bands in a sample, compared with brute force."""

    documents: int
    threshold: float
    true_pairs: int
    """Pairs at or above the threshold, by brute force."""
    candidates: int
    """Pairs that share a band."""
    found: int
    """True pairs that are candidates."""
    accepted: int
    """Candidates at or above the threshold by their signatures."""
    right: int
    """Accepted pairs that are true ones."""

    @property
    def recall(self) -> float:
        """The share of true pairs that are found; 1 if there are none."""
        return self.found / self.true_pairs if self.true_pairs else 1.0

    @property
    def precision(self) -> float:
        """The share of candidates that are true pairs; 1 if there are none."""
        return self.found / self.candidates if self.candidates else 1.0

    @property
    def verified_recall(self) -> float:
        """The share of true pairs among all, after candidates were verified by their signatures."""
        return self.right / self.true_pairs if self.true_pairs else 1.0

    @property
    def verified_precision(self) -> float:
        """The share of true pairs among the candidates that were accepted by their signatures."""
        return self.right / self.accepted if self.accepted else 1.0


def measure_bands(
    column: Column, threshold: float, bands: int, rows: int, shingling: Shingling | None = None, bits: int = 32
) -> BandQuality:
    """Measure how well bands find the similar pairs of a sample of texts."""
    texts, how = as_text(column), shingling or Shingling()
    true = similar_pairs(texts, threshold, how)
    signed = signatures(texts, how, bands * rows, bits)
    keyed = band_rows(from_numbers(np.arange(len(texts))), signed, bands, rows)
    candidates = bucket_pairs(keyed["key"], keyed["id"], all_up_to=len(texts))
    scores = numbers(similarity(signed.take(candidates["u"]), signed.take(candidates["v"])))
    wanted = _codes(true, len(texts))
    proposed = _codes(candidates, len(texts))
    is_true = np.isin(proposed, wanted)
    accepted = scores >= threshold
    return BandQuality(
        documents=len(texts),
        threshold=threshold,
        true_pairs=len(wanted),
        candidates=len(proposed),
        found=int(is_true.sum()),
        accepted=int(accepted.sum()),
        right=int((is_true & accepted).sum()),
    )


def _codes(pairs: pa.Table, rows: int) -> Numbers:
    return numbers(pairs["u"]) * np.int64(rows) + numbers(pairs["v"])


# -- in a run ------------------------------------------------------------------------------------------------

SAMPLE_BYTES, SAMPLE_SHARE = 16 * 2**20, 1 / 64
"""The size of the sample of a run, and the least share of its texts that are in it."""

SAMPLE_GROUP = 32
"""At most so many texts with the same least shingle are compared."""


def sample_share(nbytes: int | None) -> float:
    """The share of documents in the sample of a run that reads `nbytes` bytes."""
    return 1 / 16 if nbytes is None else min(1.0, max(SAMPLE_SHARE, SAMPLE_BYTES / max(nbytes, 1)))


def in_sample(leasts: Numbers, share: float) -> tuple[Numbers, Numbers]:
    """Which documents are in the sample, by their least shingles, and a number for each least shingle.

    Similar documents mostly have the same least shingle, and so are in the sample together. If one document in a
    hundred were drawn independently, only one pair in ten thousand would be in the sample.
    """
    mixed = reference.scramble(leasts)
    return mixed <= np.uint64(min(int(share * 2**64), 2**64 - 1)), reference.scramble(mixed)


def sample_pairs(leasts: Numbers, nodes: Numbers, sets: pa.Array) -> tuple[Numbers, Numbers, Numbers]:
    """All pairs of documents with the same least shingle, and their similarity."""
    order = np.lexsort((nodes, leasts))
    starts = np.flatnonzero(np.append(True, np.diff(leasts[order]) != 0)[: len(order)])
    sizes = np.minimum(np.diff(np.append(starts, len(order))), SAMPLE_GROUP)
    u, v = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for size in np.unique(sizes[sizes > 1]).tolist():
        left, right = np.triu_indices(size, 1)
        begin = starts[sizes == size][:, None]
        u.append(order[begin + left].reshape(-1))
        v.append(order[begin + right].reshape(-1))
    one, other = np.concatenate(u), np.concatenate(v)
    found = set_jaccard(sets, sets, one, other)
    return nodes[one], nodes[other], found


SIZES = (2, 3, 5, 10, 100, 1000)
"""Clusters are counted by size, in ranges that start at each of these."""

_WEIGHT, _FOUND, _PROMISED, _KEPT, _RIGHT, _LARGEST = "_all", "_found", "_promised", "_kept", "_right", "_largest "


@fast_dataclass(frozen=True)
class ClusterCounters:
    """Counts clusters and sample pairs as sums over partitions; `summarise_counts` turns the sums into shares.

    More similar pairs are in the sample more often, so pairs are weighted by the inverse of their similarity.
    """

    threshold: float = 0.0
    bands: int = 1
    rows: int = 1

    def count_sizes(self, stage: CountingStage, sizes: Numbers, largest: bool = True) -> None:
        """Count clusters of these sizes."""
        if not len(sizes):
            return
        stage.count("clusters", len(sizes))
        for low, high in zip(SIZES, [*SIZES[1:], np.inf], strict=True):
            count = int(((sizes >= low) & (sizes < high)).sum())
            if count:
                upper = "" if high == np.inf else f"_to_{int(high) - 1}"
                stage.count(f"clusters_of_{low}{upper if int(low) + 1 != high else ''}", count)
        if largest:
            self.count_largest(stage, int(sizes.max()))

    def count_largest(self, stage: CountingStage, size: int) -> None:
        stage.count(f"{_LARGEST}{size}")

    def count_sample_pairs(
        self, stage: CountingStage, similarity: Numbers, once: Numbers, same: Numbers, kept: Numbers
    ) -> None:
        """Count pairs of the sample, each in both directions. `once` is true for one direction, `same` if both rows are
        in one cluster, and `kept` if the first was dropped and the second is the row that was kept."""
        alike = similarity >= self.threshold
        weights = 1 / np.maximum(similarity, 1e-3)
        true = once & alike
        if true.any():
            stage.count("sample_pairs", int(true.sum()))
            stage.count("sample_pairs_found", int((true & same).sum()))
            stage.count(_WEIGHT, float(weights[true].sum()))
            stage.count(_FOUND, float(weights[true & same].sum()))
            promised = probability(similarity[true], self.bands, self.rows)
            stage.count(_PROMISED, float((weights[true] * promised).sum()))
        if kept.any():
            stage.count("sample_dropped", int(kept.sum()))
            stage.count(_KEPT, float(weights[kept].sum()))
            stage.count(_RIGHT, float(weights[kept & alike].sum()))


class CountingStage(Protocol):
    """An object that counts, as stages do."""

    def count(self, name: str, value: float = 1) -> None: ...


def summarise_counts(counts: Mapping[str, float]) -> dict[str, float]:
    """The counters for display: without internal sums, with shares and the largest cluster."""
    shown = {name: value for name, value in counts.items() if not name.startswith("_")}
    sizes = [int(name.removeprefix(_LARGEST)) for name in counts if name.startswith(_LARGEST)]
    if sizes:
        shown["largest_cluster"] = max(sizes)
    shares = [("estimated_recall", _FOUND, _WEIGHT), ("expected_recall", _PROMISED, _WEIGHT)]
    for name, part, total in [*shares, ("estimated_precision", _RIGHT, _KEPT)]:
        if counts.get(total):
            shown[name] = round(counts.get(part, 0.0) / counts[total], 4)
    return shown
