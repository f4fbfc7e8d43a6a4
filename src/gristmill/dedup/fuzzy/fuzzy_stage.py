"""Fuzzy deduplication: of rows with nearly the same text, one is kept.

Rows stay in their sources. Only small keys move through exchanges (`io/exchange/verdict_stage.py`, `exchange_rows.py`):

    bands        each text has a MinHash signature, which is cut into bands
    candidates   texts that share a band are paired (`candidate_pairs.py`)
    send_texts   the first text of each pair, as a set of shingles or a signature, is sent to the second
    compare      pairs that are similar enough stay
    clusters     similar pairs make clusters, and one row of each is kept (`cluster_verdicts.py`)

A row is identified by a number that depends only on its file and its position there, so candidates, pairs and clusters
are the same however the input was cut into blocks.

Gives up some pairs: if many texts share a band, they are compared with the first of them and with their neighbours, not
each with each. Blank texts and null are never duplicates. A bucket of band keys (`document_sketch.BUCKETS`) is held in
memory as a whole, whatever `memory_gb` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.stage import Columns
from gristmill.core.task import digest
from gristmill.dedup.clusters.cluster_table import ID, ids, row_numbers
from gristmill.dedup.clusters.keep_policy import FIRST, Keep, policy
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, from_numbers, numbers
from gristmill.dedup.columns.batch_texts import texts_of
from gristmill.dedup.fuzzy.candidate_pairs import (
    EXACT,
    NONE,
    SIGNATURE,
    VERIFY,
    ComparePairs,
    FindCandidatePairs,
    FuzzyRound,
    SendFirstTexts,
)
from gristmill.dedup.fuzzy.cluster_verdicts import ClusterVerdicts
from gristmill.dedup.fuzzy.exchange_rows import (
    BAND,
    BODY,
    KIND,
    NODE,
    ORDER,
    OTHER,
    RANK,
    SAMPLE,
    TEXT,
    make_rows,
    pack_buckets,
)
from gristmill.dedup.fuzzy.fuzzy_index import BAND_LOOKUP, INDEX_TABLES, TEXT_LOOKUP, content_number, rows_to_add
from gristmill.dedup.index.dedup_index import DedupIndex
from gristmill.dedup.index.extend_index import DroppedRows, KeyTables
from gristmill.dedup.index.indexed_stage import IndexedStage
from gristmill.dedup.signatures.document_sketch import NO_BODY, SET_BODY, SIGNATURE_BODY, Sketches, buckets_of, sketch
from gristmill.dedup.signatures.lsh import choose_bands, format_s_curve, probability
from gristmill.dedup.signatures.minhash import Shingling
from gristmill.dedup.signatures.search_quality import in_sample, sample_share
from gristmill.io.exchange.exchange import Exchange
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.verdict_stage import ROW, TASK, identities

if TYPE_CHECKING:
    from gristmill.dedup.columns.normalisation import Normalisation

WORD_NGRAMS = 5

SIGNATURE_MARGIN = 0.04
"""How far an estimate may lie below the threshold: 95 % of the pairs just at the threshold are accepted."""

POOR_BAND_RECALL = 0.95
"""Plans warn if bands find a smaller share of the pairs just at the threshold."""

SLICE_BYTES, SLICE_ROWS = 2**28, 2**20
"""The part of a batch that is sketched at a time."""


class FuzzyDeduplicationStage(IndexedStage):
    """Drops rows whose text is nearly that of another row; of each cluster of similar rows, one is kept.

    Two texts are similar if the Jaccard similarity of their sets of shingles is at least `threshold`. Shingles are runs
    of `word_ngrams` words, or of `char_ngrams` characters if only that is given; by default of 5 words. In scripts
    without spaces each character is a word. At a threshold of 1, texts with the same shingles in any order are similar.
    Clusters are transitive: each dropped row is similar to some row of its cluster, not always to the kept one.

    `num_bands` and `minhashes_per_band` set how candidate pairs are found. By default they are chosen so that 99.5 % of
    the pairs just at the threshold are found, and more of more similar ones; this works from a threshold of 0.32 on, or
    of 0.69 with `verify="none"`. Below that fewer are found (see `curve`), and plans warn if it is less than 95 %.
    `verify` is how candidates are compared: by "exact" similarity; by "signature", an estimate that may lie 0.04 below
    the threshold, which moves less data and misjudges some pairs near the threshold; or "none", not at all.

    `keep` chooses the row of a cluster that is kept: the "first" in the order of the input, the "longest", the one with
    the "highest" or "newest" `score_field`, or a `Keep`. `normalize` lists differences between texts to ignore, as for
    `ExactDeduplicationStage`. `id_field` is the column that names rows in the cluster table. `use_64_bit_hash` makes
    signatures of 64-bit numbers. `bands_per_iteration` is accepted for compatibility and checked; all bands are always
    processed together. `memory_gb` is the memory that a worker may use for keys. Output files have the same names and
    order as without this stage.

    Rows similar to a row of an index in `against` are dropped too. Kept rows are added to the index `extend`, and are
    compared with it as well (`DedupIndex`).
    """

    index_kind = "fuzzy"

    def __init__(
        self,
        text_field: str = "text",
        word_ngrams: int | None = None,
        threshold: float = 0.8,
        char_ngrams: int | None = None,
        num_bands: int | None = None,
        minhashes_per_band: int | None = None,
        seed: int = 42,
        verify: str = EXACT,
        keep: str | Keep | Mapping[str, Any] = FIRST,
        id_field: str | None = None,
        num_partitions: int | None = None,
        *,
        score_field: str | None = None,
        normalize: Sequence[str] = (),
        use_64_bit_hash: bool = False,
        bands_per_iteration: int | None = None,
        memory_gb: float | None = None,
        against: Sequence[str | DedupIndex] = (),
        extend: str | DedupIndex | None = None,
    ) -> None:
        super().__init__()
        if verify not in VERIFY:
            raise ValueError(f"FuzzyDeduplicationStage: verify is {verify!r}, must be one of {', '.join(VERIFY)}")
        _check(threshold, char_ngrams, word_ngrams)
        if (num_bands is None) != (minhashes_per_band is None):
            raise ValueError("FuzzyDeduplicationStage: set both num_bands and minhashes_per_band, or neither")
        Exchange(num_partitions=num_partitions, memory_gb=memory_gb)  # raises for wrong numbers
        self.text_field, self.word_ngrams, self.char_ngrams = text_field, word_ngrams, char_ngrams
        self.threshold, self.num_bands, self.minhashes_per_band = threshold, num_bands, minhashes_per_band
        self.seed, self.verify, self.keep, self.score_field = seed, verify, keep, score_field
        self.id_field, self.num_partitions, self.memory_gb = id_field, num_partitions, memory_gb
        self.use_64_bit_hash, self.bands_per_iteration = use_64_bit_hash, bands_per_iteration
        self.normalize, self._form = normalize, None if normalize == () else _without(normalize)
        self.use_indexes(against, extend)
        words = word_ngrams or (None if char_ngrams else WORD_NGRAMS)
        self._shingling = Shingling("words", words, seed) if words else Shingling("chars", char_ngrams or 0, seed)
        self._policy = policy("FuzzyDeduplicationStage", keep, text_field, score_field)
        self._share = sample_share(None)
        self.key_share = 1.0 if verify == EXACT and not words else 0.6
        chosen = choose_bands(threshold, verified=verify != NONE)
        self._bands = chosen[0] if num_bands is None else num_bands
        self._rows = chosen[1] if minhashes_per_band is None else minhashes_per_band
        if self._bands < 1 or self._rows < 1:
            raise ValueError("FuzzyDeduplicationStage: num_bands and minhashes_per_band must be 1 or more")
        if bands_per_iteration is not None and not 1 <= bands_per_iteration <= self._bands:
            raise ValueError(f"FuzzyDeduplicationStage: bands_per_iteration must be 1 to {self._bands}, or None")

    def curve(self) -> str:
        """The S-curve as text: for each similarity the share of pairs that become candidates."""
        return format_s_curve(self._bands, self._rows, self.threshold)

    def _recall_warning(self) -> str | None:
        """A warning for plans, if the bands that were chosen miss many pairs at the threshold."""
        recall = float(probability(self.threshold, self._bands, self._rows))
        if self.num_bands is not None or recall >= POOR_BAND_RECALL:
            return None
        fix = "verify candidates" if self.verify == NONE else "set more num_bands, or fewer minhashes_per_band"
        return (
            f"stage {self.name!r}: {self._bands} bands of {self._rows} minhashes find only {recall:.0%} of the pairs "
            f"just at the threshold of {self.threshold}. To find more, {fix}, or raise the threshold"
        )

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {
            **{name: "" for name in (self._policy.field, self.id_field) if name},
            self.text_field: "string",
        }

    def keys(self, batch: Batch) -> pa.Table:
        texts = texts_of(self.name, batch.data, self.text_field)
        texts = self._form.apply(texts) if self._form else texts
        nodes, known, names = row_numbers(batch), identities(batch), ids(self.name, batch, self.id_field)
        ranks = self._policy.rank(batch.data, self.count)
        tables = []
        for start, count in _slices(texts):
            part, part_nodes = texts.slice(start, count), nodes[start : start + count]
            sketches = self._sketch(part, part_nodes)
            present = sketches.present
            about = {
                NODE: from_numbers(part_nodes).take(present),
                BODY: self._bodies(sketches, part),
                RANK: ranks.slice(start, count).take(present),
                ORDER: pa.repeat(literal(batch.lineage.order, pa.int64()), len(present)),
                ID: names.slice(start, count).take(present),
                TASK: known.column(TASK).slice(start, count).take(present),
                ROW: known.column(ROW).slice(start, count).take(present),
            }
            tables += [
                pack_buckets(BAND, sketches.entries, sketches.ends, 16),
                make_rows(TEXT, buckets_of(numbers(about[NODE])), **about),
                self._sample(sketches, part, part_nodes),
            ]
        return pa.concat_tables(tables)

    def _sketch(self, texts: pa.Array, nodes: Numbers) -> Sketches:
        bits = 64 if self.use_64_bit_hash else 32
        return sketch(texts, nodes, self._shingling, self._bands, self._rows, bits, self._body)

    def run_warning(self, stats: Any) -> str | None:
        return self._policy.run_warning(self.name, stats)

    def late(self, keys: pa.Table) -> pa.BooleanArray:
        return pc.equal(as_one_array(keys[KIND]), literal(TEXT, pa.int64()))

    @property
    def _body(self) -> int:
        if self.verify == SIGNATURE:
            return SIGNATURE_BODY
        return SET_BODY if self.verify == EXACT and self._shingling.unit == "words" else NO_BODY

    def _bodies(self, sketches: Sketches, texts: pa.Array) -> pa.Array:
        """What texts are compared by. For character shingles that is the text: their set would be larger."""
        if self.verify == EXACT and self._shingling.unit == "chars":
            return texts.take(sketches.present).cast(pa.binary())
        return sketches.bodies

    def _sample(self, sketches: Sketches, texts: pa.Array, nodes: Numbers) -> pa.Table:
        """The SAMPLE rows, by which recall is measured."""
        chosen, groups = in_sample(sketches.leasts, self._share)
        rows = from_numbers(np.flatnonzero(chosen))
        positions = sketches.present.take(rows)
        sampled = nodes[numbers(positions, np.int64)]
        sets = sketches.bodies.take(rows)
        if self._body != SET_BODY:
            sets = sketch(texts.take(positions), sampled, self._shingling, 0, 1, body=SET_BODY).bodies
        about = {NODE: from_numbers(sampled), OTHER: from_numbers(sketches.leasts[chosen].view(np.int64)), BODY: sets}
        return make_rows(SAMPLE, buckets_of(groups[chosen]), **about)

    def set_input_bytes(self, nbytes: int | None) -> None:
        self._share = sample_share(nbytes)

    def rounds(self) -> Sequence[KeyedStage]:
        accepted = {NONE: 0.0, SIGNATURE: self.threshold - SIGNATURE_MARGIN, EXACT: self.threshold}[self.verify]
        last = ClusterVerdicts(self.verify, self.threshold, self._bands, self._rows)
        last.plan_warning = self._recall_warning()
        steps: list[FuzzyRound] = [
            FindCandidatePairs(),
            SendFirstTexts(),
            ComparePairs(self.verify, accepted, self._shingling),
            last,
        ]
        steps[0].lookup, steps[1].lookup = BAND_LOOKUP, TEXT_LOOKUP
        for step in steps:
            step.indexes = self._indexes
        return self.named_rounds(steps)

    # -- the index ---------------------------------------------------------------------------------------

    def index_parameters(self) -> Mapping[str, Any]:
        words, bits = self._shingling.unit == "words", 64 if self.use_64_bit_hash else 32
        text = make_array(["Raw data in, training data out." + " 磨坊" * words], pa.string())
        sketches = self._sketch(text, np.zeros(1, np.int64))
        return {
            "shingles": self._shingling.unit,
            "ngrams": self._shingling.n,
            "seed": self.seed,
            "num_bands": self._bands,
            "minhashes_per_band": self._rows,
            "bits": bits,
            "verify": self.verify,
            "normalize": sorted(set(self.normalize)),
            "hash": digest([sketches.entries.hex(), str(sketches.bodies.to_pylist())]),  # changes with the algorithm
        }

    def index_tables(self) -> Sequence[pa.Schema]:
        return INDEX_TABLES

    def content(self, keys: pa.Table) -> int:
        return content_number(keys)

    def index_rows(self, keys: KeyTables, dropped: DroppedRows, salt: int) -> Iterator[pa.Table]:
        return rows_to_add(keys, dropped, salt)


def _check(threshold: float, char_ngrams: int | None, word_ngrams: int | None) -> None:
    if not 0 < threshold <= 1:
        raise ValueError(
            f"FuzzyDeduplicationStage: threshold is {threshold}, must be above 0 and at most 1. For identical texts "
            "use ExactDeduplicationStage"
        )
    for name, count in (("char_ngrams", char_ngrams), ("word_ngrams", word_ngrams)):
        if count is not None and count < 1:
            raise ValueError(f"FuzzyDeduplicationStage: {name} is {count}, must be 1 or more, or None")


def _without(normalize: Sequence[str]) -> Normalisation | None:
    from gristmill.dedup.columns.normalisation import normalisation_without

    return normalisation_without("FuzzyDeduplicationStage", normalize)


def _slices(texts: pa.Array) -> Iterator[tuple[int, int]]:
    """Start and length of parts of a column that are sketched at a time."""
    rows = min(SLICE_ROWS, max(1, SLICE_BYTES * len(texts) // max(texts.nbytes, 1)))
    for start in range(0, max(len(texts), 1), rows):
        yield start, min(rows, len(texts) - start)
