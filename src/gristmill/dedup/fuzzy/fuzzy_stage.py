"""Fuzzy deduplication: of all rows with nearly the same text one is kept.

Rows stay in their sources. What moves through exchanges is small (`io/exchange/verdict_stage.py`, `exchange_rows.py`):

    bands      each text has a MinHash signature, which is cut into bands; texts that share a band are candidates
    pairs      candidates of a band are paired, and the pairs are sent to the first text of each (`candidate_pairs.py`)
    compare    what the first text is compared by is sent on to the second; pairs that are similar enough stay. What is
               known of texts lies there since the beginning, and is read twice, not sent on
    clusters   pairs make clusters, and in each one row is kept (`cluster_verdicts.py`)

A row is known by a number that depends only on its file and its place there, so candidates, pairs and clusters are
the same however the input was cut into blocks.

What is given up: texts that nobody has compared. If many share a band they are compared with the first of them and
with their neighbours, not each with each. Blank texts and null are like no other. Memory, for very many: a bucket of
keys (`sketch.BUCKETS`) is looked at as a whole, whatever `memory_gb` says.
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
from gristmill.dedup.clusters.cluster_table import ID, ids
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
    row_numbers,
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
"""What an estimate may lie below the threshold: of pairs just at it, nineteen in twenty are found."""

POOR_BAND_RECALL = 0.95
"""Plans warn if a smaller share of the pairs just at the threshold is found."""

SLICE_BYTES, SLICE_ROWS = 2**28, 2**20
"""Of a batch, that are looked at together."""


class FuzzyDeduplicationStage(IndexedStage):
    """Drops each row whose text is nearly that of another; of those that are alike, one is kept.

    Alike are texts whose sets of shingles have a Jaccard similarity of at least `threshold`: runs of `word_ngrams`
    words, or of `char_ngrams` characters if only that is given; without either, of 5 words. In scripts without spaces
    each character is a word. Rows that are alike make clusters, and a row is also in a cluster with those that its own
    are alike; each row that is dropped is alike some row of its cluster.

    `num_bands` and `minhashes_per_band` say how candidates are found; without them they are chosen so that of pairs
    just at the threshold 995 in 1,000 are found, and of more similar ones more: from a threshold of 0.32 on, or of
    0.69 with `verify="none"`. Below there are fewer (`curve`), and plans warn of less than 0.95. At a threshold of 1
    the same shingles are alike, in whatever order. `verify` says how candidates are compared: by their "exact"
    similarity; by "signature", an estimate that may lie 0.04 below the threshold, which moves less and is wrong about
    some pairs near the threshold; or not at all ("none"). `keep` says which row of a cluster is kept: the "first" in
    the order of the input, the "longest", the "highest" or "newest" by `score_field`, or a `Keep`. `normalize` lists
    differences between texts that do not count, as for `ExactDeduplicationStage`. `id_field` names the rows in the
    cluster table. `use_64_bit_hash` makes signatures of 64-bit numbers. `bands_per_iteration` is for scripts that have
    it: all bands are looked at in one go. `memory_gb` is what a worker may use for keys. Output files are those that
    there would be without this stage, in the same order.

    Rows that are like one of an index of `against` are dropped too. Those that are kept are added to the index
    `extend`, with which they are compared as well (`DedupIndex`).
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
            raise ValueError("FuzzyDeduplicationStage: give num_bands and minhashes_per_band together, or none of them")
        Exchange(num_partitions=num_partitions, memory_gb=memory_gb)  # a wrong number is an error here
        self.text_field, self.word_ngrams, self.char_ngrams = text_field, word_ngrams, char_ngrams
        self.threshold, self.num_bands, self.minhashes_per_band = threshold, num_bands, minhashes_per_band
        self.seed, self.verify, self.keep, self.score_field = seed, verify, keep, score_field
        self.id_field, self.num_partitions, self.memory_gb = id_field, num_partitions, memory_gb
        self.use_64_bit_hash, self.bands_per_iteration = use_64_bit_hash, bands_per_iteration
        self.normalize, self._form = normalize, None if normalize == () else _without(normalize)
        self.use_indexes(against, extend)
        words = word_ngrams or (None if char_ngrams else WORD_NGRAMS)
        self._how = Shingling("words", words, seed) if words else Shingling("chars", char_ngrams or 0, seed)
        self._policy = policy("FuzzyDeduplicationStage", keep, text_field, score_field)
        self._share = sample_share(None)
        self.key_share = 1.0 if verify == EXACT and not words else 0.6
        chosen = choose_bands(threshold, verified=verify != NONE)
        self._bands = chosen[0] if num_bands is None else num_bands
        self._rows = chosen[1] if minhashes_per_band is None else minhashes_per_band
        if self._bands < 1 or self._rows < 1:
            raise ValueError("FuzzyDeduplicationStage: num_bands and minhashes_per_band must be 1 or more")
        if bands_per_iteration is not None and not 1 <= bands_per_iteration <= self._bands:
            raise ValueError(f"FuzzyDeduplicationStage: bands_per_iteration is from 1 to {self._bands}, or None")

    def curve(self) -> str:
        """The S-curve as text: for each similarity the share of pairs that become candidates."""
        return format_s_curve(self._bands, self._rows, self.threshold)

    def _doubt(self) -> str | None:
        """What there is to say of bands that were chosen and still miss many pairs."""
        found = float(probability(self.threshold, self._bands, self._rows))
        if self.num_bands is not None or found >= POOR_BAND_RECALL:
            return None
        way_out = "verify candidates" if self.verify == NONE else "give more num_bands, or fewer minhashes_per_band"
        return (
            f"stage {self.name!r}: of pairs just at the threshold of {self.threshold} only {found:.0%} are found with "
            f"{self._bands} bands of {self._rows}. To find more, {way_out}, or raise the threshold"
        )

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {
            **{name: "" for name in (self._policy.field, self.id_field) if name},
            self.text_field: "string",
        }

    def keys(self, batch: Batch) -> pa.Table:
        texts = texts_of(self.name, batch.data, self.text_field)
        texts = self._form.apply(texts) if self._form else texts
        nodes, known, named = row_numbers(batch), identities(batch), ids(self.name, batch, self.id_field)
        ranks = self._policy.rank(batch.data, self.count)
        tables = []
        for start, count in _slices(texts):
            some = texts.slice(start, count)
            mine = nodes[start : start + count]
            made = sketch(
                some, mine, self._how, self._bands, self._rows, 64 if self.use_64_bit_hash else 32, self._body
            )
            present = made.present
            about = {
                NODE: from_numbers(mine).take(present),
                BODY: self._bodies(made, some),
                RANK: ranks.slice(start, count).take(present),
                ORDER: pa.repeat(literal(batch.lineage.order, pa.int64()), len(present)),
                ID: named.slice(start, count).take(present),
                TASK: known.column(TASK).slice(start, count).take(present),
                ROW: known.column(ROW).slice(start, count).take(present),
            }
            tables += [
                pack_buckets(BAND, made.entries, made.ends, 16),
                make_rows(TEXT, buckets_of(numbers(about[NODE])), **about),
                self._sample(made, some, mine),
            ]
        return pa.concat_tables(tables)

    def run_warning(self, stats: Any) -> str | None:
        return self._policy.run_warning(self.name, stats)

    def late(self, keys: pa.Table) -> pa.BooleanArray:
        return pc.equal(as_one_array(keys[KIND]), literal(TEXT, pa.int64()))

    @property
    def _body(self) -> int:
        if self.verify == SIGNATURE:
            return SIGNATURE_BODY
        return SET_BODY if self.verify == EXACT and self._how.unit == "words" else NO_BODY

    def _bodies(self, made: Sketches, texts: pa.Array) -> pa.Array:
        """What texts are compared by. The set of runs of characters is larger than the text."""
        if self.verify == EXACT and self._how.unit == "chars":
            return texts.take(made.present).cast(pa.binary())
        return made.bodies

    def _sample(self, made: Sketches, texts: pa.Array, nodes: Numbers) -> pa.Table:
        """The rows by which quality is measured."""
        chosen, groups = in_sample(made.leasts, self._share)
        rows = from_numbers(np.flatnonzero(chosen))
        places = made.present.take(rows)
        mine = nodes[numbers(places, np.int64)]
        sets = made.bodies.take(rows)
        if self._body != SET_BODY:
            sets = sketch(texts.take(places), mine, self._how, 0, 1, body=SET_BODY).bodies
        about = {NODE: from_numbers(mine), OTHER: from_numbers(made.leasts[chosen].view(np.int64)), BODY: sets}
        return make_rows(SAMPLE, buckets_of(groups[chosen]), **about)

    def set_input_bytes(self, nbytes: int | None) -> None:
        self._share = sample_share(nbytes)

    def rounds(self) -> Sequence[KeyedStage]:
        least = {NONE: 0.0, SIGNATURE: self.threshold - SIGNATURE_MARGIN, EXACT: self.threshold}[self.verify]
        last = ClusterVerdicts(self.verify, self.threshold, self._bands, self._rows)
        last.plan_warning = self._doubt()
        steps: list[FuzzyRound] = [
            FindCandidatePairs(),
            SendFirstTexts(),
            ComparePairs(self.verify, least, self._how),
            last,
        ]
        steps[0].lookup, steps[1].lookup = BAND_LOOKUP, TEXT_LOOKUP
        for step in steps:
            step.known = self._known
            step.name = f"{self.name}_{type(step).__name__.lower()}"
            step.num_partitions = self.num_partitions
        return steps

    # -- the index ---------------------------------------------------------------------------------------

    def index_parameters(self) -> Mapping[str, Any]:
        words, bits = self._how.unit == "words", 64 if self.use_64_bit_hash else 32
        text = make_array(["Raw data in, training data out." + " 磨坊" * words], pa.string())
        made = sketch(text, np.zeros(1, np.int64), self._how, self._bands, self._rows, bits, self._body)
        return {
            "shingles": self._how.unit,
            "ngrams": self._how.n,
            "seed": self.seed,
            "num_bands": self._bands,
            "minhashes_per_band": self._rows,
            "bits": bits,
            "verify": self.verify,
            "normalize": sorted(set(self.normalize)),
            "hash": digest([made.entries.hex(), str(made.bodies.to_pylist())]),
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
            f"FuzzyDeduplicationStage: threshold is {threshold}, must be above 0 and at most 1, where texts have "
            "the same shingles; ExactDeduplicationStage finds the same texts"
        )
    for name, count in (("char_ngrams", char_ngrams), ("word_ngrams", word_ngrams)):
        if count is not None and count < 1:
            raise ValueError(f"FuzzyDeduplicationStage: {name} is {count}, too small: must be 1 or more, or None")


def _without(normalize: Sequence[str]) -> Normalisation | None:
    from gristmill.dedup.columns.normalisation import normalisation_without

    return normalisation_without("FuzzyDeduplicationStage", normalize)


def _slices(texts: pa.Array) -> Iterator[tuple[int, int]]:
    """Parts of a column that are not too large."""
    rows = min(SLICE_ROWS, max(1, SLICE_BYTES * len(texts) // max(texts.nbytes, 1)))
    for start in range(0, max(len(texts), 1), rows):
        yield start, min(rows, len(texts) - start)
