"""Fuzzy deduplication: of all rows with nearly the same text one is kept.

Rows stay in their sources. What moves through exchanges is small (`io/verdicts.py`):

    bands      each text has a MinHash signature, which is cut into bands; texts that share a band are candidates
    pairs      candidates of a band are paired, and the pairs are sent to the first text of each
    compare    the first text's signature is sent on to the second; pairs that are similar enough stay
    clusters   pairs make clusters, and in each one row is kept

A row is known by a number that depends only on its file and its place there, so candidates, pairs and clusters are
the same however the input was cut into blocks.

What is given up: clusters are made in the memory of one worker, from the pairs that are left: about 150 bytes for each
row that has a duplicate; and all texts that share one band must fit into memory, at about 100 bytes each. If they are
many they are compared with the first of them and with their neighbours, not each with each. Blank texts and null are
like no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.columns import literal
from gristmill.core.compute import pc
from gristmill.core.errors import ColumnError
from gristmill.core.sample import row_ids
from gristmill.core.spread import column_of
from gristmill.core.stage import Columns
from gristmill.core.table import is_json, is_text
from gristmill.core.task import digest, order_key
from gristmill.dedup.clusters import CLUSTER, ID, PARTNER, SIMILARITY, CommitVerdicts, ids
from gristmill.dedup.columns import Numbers, from_numbers, numbers, whole
from gristmill.dedup.components import components
from gristmill.dedup.keep import Keep, choose_kept
from gristmill.dedup.lsh import band_hashes, bucket_pairs, choose_bands, distinct
from gristmill.dedup.minhash import SIZE, Shingling, matrix, signatures
from gristmill.dedup.quality import jaccard
from gristmill.io.exchange import CommitRuns, Exchange
from gristmill.io.keyed import KeyedStage
from gristmill.io.verdicts import KEEP, ROW, TASK, VerdictStage, identities

NONE, SIGNATURE, EXACT = VERIFY = ("none", "signature", "exact")
MARGIN = 0.04
"""What an estimate may lie below the threshold: of pairs just at it, nineteen in twenty are found."""

ALL_PAIRS = 8
"""Up to so many texts of a band are compared each with each."""

_KEY, _KIND, _NODE, _OTHER = "__key__", "__kind__", "__node__", "__other__"
_BODY, _RANK, _PLACE = "__body__", "__rank__", "__place__"
_BAND, _TEXT, _PAIR, _WANTED = range(4)
_COLUMNS = {
    _KEY: pa.binary(8),
    _KIND: pa.int8(),
    _NODE: pa.int64(),
    _OTHER: pa.int64(),
    _BODY: pa.binary(),
    _RANK: pa.float64(),
    _PLACE: pa.string(),
    ID: pa.string(),
    TASK: pa.string(),
    ROW: pa.int64(),
    SIMILARITY: pa.float64(),
}
_ABOUT = (_BODY, _RANK, _PLACE, ID, TASK, ROW)
"""What is known of a text."""


class FuzzyDeduplicationStage(VerdictStage):
    """Drops each row whose text is nearly that of another; of those that are alike, one is kept.

    Alike are texts whose sets of shingles have a Jaccard similarity of at least `threshold`: runs of `char_ngrams`
    characters, or of `word_ngrams` words if that is given. `num_bands` and `minhashes_per_band` say how candidates
    are found; without them they are chosen so that few pairs from the threshold on are missed. Candidates are
    compared by "signature" (an estimate, which may lie 0.04 below the threshold), by the "exact" similarity of
    their texts, which then move too, or not at all ("none"). `keep` is "first" in the order of the input, or a
    `Keep`. `id_field` names the rows in the cluster table. Output files are those that there would be without this
    stage, in the same order.
    """

    def __init__(
        self,
        text_field: str = "text",
        word_ngrams: int | None = None,
        threshold: float = 0.8,
        char_ngrams: int = 24,
        num_bands: int | None = None,
        minhashes_per_band: int | None = None,
        seed: int = 42,
        verify: str = SIGNATURE,
        keep: str | Keep = "first",
        id_field: str | None = None,
        num_partitions: int | None = None,
    ) -> None:
        super().__init__()
        if verify not in VERIFY:
            raise ValueError(f"FuzzyDeduplicationStage: verify is {verify!r}, must be one of {', '.join(VERIFY)}")
        if (num_bands is None) != (minhashes_per_band is None):
            raise ValueError("FuzzyDeduplicationStage: give num_bands and minhashes_per_band together, or none of them")
        Exchange(num_partitions=num_partitions)  # a wrong number is an error here
        self.text_field, self.word_ngrams, self.char_ngrams = text_field, word_ngrams, char_ngrams
        self.threshold, self.num_bands, self.minhashes_per_band = threshold, num_bands, minhashes_per_band
        self.seed, self.verify, self.keep = seed, verify, keep
        self.id_field, self.num_partitions = id_field, num_partitions
        self._how = Shingling("words", word_ngrams, seed) if word_ngrams else Shingling("chars", char_ngrams, seed)
        self._policy = Keep(keep, text_field if keep == "longest" else None) if isinstance(keep, str) else keep
        chosen = choose_bands(threshold)  # which checks the threshold
        self._bands = chosen[0] if num_bands is None else num_bands
        self._rows = chosen[1] if minhashes_per_band is None else minhashes_per_band
        if self._bands < 1 or self._rows < 1:
            raise ValueError("FuzzyDeduplicationStage: num_bands and minhashes_per_band must be 1 or more")

    def inputs(self) -> tuple[list[str], Columns]:
        named = [name for name in (self._policy.field, self.id_field) if name and name != self.text_field]
        return ["data"], [self.text_field, *named]

    def keys(self, batch: Batch) -> pa.Table:
        texts = whole(column_of(batch.data, self.text_field))
        if not (is_text(texts.type) or is_json(texts.type) or pa.types.is_null(texts.type)):
            raise ColumnError(f"stage {self.name!r} needs text in column {self.text_field!r}, which holds {texts.type}")
        texts = texts.cast(pa.string()) if is_json(texts.type) else texts
        size = max(self._bands * self._rows, SIZE)
        found = signatures(texts, self._how, size)
        present = pc.indices_nonzero(found.is_valid())
        found, nodes = found.take(present), _nodes(batch)[numbers(present, np.int64)]
        known = identities(batch).take(present)
        about = {
            _BODY: texts.take(present).cast(pa.binary()) if self.verify == EXACT else _short(matrix(found)),
            _RANK: self._policy.rank(batch.data.take(present)),
            _PLACE: pa.repeat(literal(_place(batch), pa.string()), len(present)),
            ID: ids(batch, self.id_field).take(present),
            TASK: known.column(TASK),
            ROW: known.column(ROW),
        }
        bands = band_hashes(found, self._bands, self._rows)
        of_bands = _table(_BAND, bands.reshape(-1), np.repeat(nodes, bands.shape[1]))
        return pa.concat_tables([of_bands, _table(_TEXT, nodes, nodes, **about)])

    def rounds(self) -> Sequence[KeyedStage]:
        least = {NONE: 0.0, SIGNATURE: self.threshold - MARGIN, EXACT: self.threshold}[self.verify]
        how = self._how if self.verify == EXACT else None
        steps = [Pairs(), Senders(), Compare(least, how), Clusters()]
        for step in steps:
            step.name = f"{self.name}_{type(step).__name__.lower()}"
            step.num_partitions = self.num_partitions
        return steps

    def commit(self, verdicts: Exchange) -> CommitRuns:
        return CommitVerdicts(verdicts, f"{self.name}_commit_verdicts")


class _Step(KeyedStage):
    """A round. What it gives is for the next round alone."""

    key: str | Sequence[str] = _KEY

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [_KEY]


class Pairs(_Step):
    """Pairs the texts of each band, and asks for what is known of both of each pair."""

    def process_groups(self, table: pa.Table) -> pa.Table:
        kinds = numbers(table[_KIND].cast(pa.int64()))
        bands = table.filter(from_numbers(kinds == _BAND))
        pairs = bucket_pairs(_key_numbers(bands), bands[_NODE], ALL_PAIRS)
        first, second = numbers(pairs["u"]), numbers(pairs["v"])
        return pa.concat_tables(
            [
                table.filter(from_numbers(kinds == _TEXT)),
                _table(_PAIR, first, first, **{_OTHER: from_numbers(second)}),
                _table(_WANTED, second, second),
            ]
        )


class Senders(_Step):
    """Sends what is known of the first text of each pair to the second, and keeps of the others what is asked for."""

    def process_groups(self, table: pa.Table) -> pa.Table:
        kinds = numbers(table[_KIND].cast(pa.int64()))
        texts = _texts(table, kinds)
        nodes = numbers(texts[_NODE])
        wanted = np.isin(nodes, numbers(table[_NODE])[kinds == _WANTED])
        asked = table.filter(from_numbers(kinds == _PAIR))
        pairs = distinct(numbers(asked[_NODE]), numbers(asked[_OTHER]))
        first, second = numbers(pairs["u"]), numbers(pairs["v"])
        places = np.searchsorted(nodes, first)
        about = texts.select(_ABOUT).take(from_numbers(places))
        sent = _table(_PAIR, second, first, **{name: about[name] for name in _ABOUT}, **{_OTHER: from_numbers(second)})
        return pa.concat_tables([texts.filter(from_numbers(wanted)), sent])


class Compare(_Step):
    """Compares the texts of each pair. Of those that are alike gives both, and the pair."""

    def __init__(self, least: float, how: Shingling | None) -> None:
        super().__init__()
        self.least, self.how = least, how

    def process_groups(self, table: pa.Table) -> pa.Table:
        kinds = numbers(table[_KIND].cast(pa.int64()))
        texts, pairs = _texts(table, kinds), table.filter(from_numbers(kinds == _PAIR))
        places = np.searchsorted(numbers(texts[_NODE]), numbers(pairs[_OTHER]))
        others = texts.take(from_numbers(places))
        found = self._similarity(whole(pairs[_BODY]), whole(others[_BODY]))
        self.count("pairs_compared", len(found))
        alike = from_numbers(found >= self.least)
        pairs, others = pairs.filter(alike), others.filter(alike)
        links = _without_body(pairs)
        at = links.column_names.index(SIMILARITY)
        links = links.set_column(at, SIMILARITY, from_numbers(found[found >= self.least]))
        return pa.concat_tables([links, _without_body(others)])

    def _similarity(self, one: pa.Array, other: pa.Array) -> Numbers:
        if self.how is not None:
            return numbers(jaccard(one.cast(pa.string()), other.cast(pa.string()), self.how))
        same: Numbers = (_matrix(one) == _matrix(other)).mean(axis=1)
        return (same - 1 / 256) / (1 - 1 / 256)  # numbers of 8 bits are the same by chance too


class Clusters(_Step):
    """Makes clusters of all pairs, and gives a verdict on each row that is in one."""

    key = ()

    def process_groups(self, table: pa.Table) -> pa.Table:
        _, first = np.unique(numbers(table[_NODE]), return_index=True)
        members = table.take(from_numbers(first)).sort_by([(_PLACE, "ascending"), (ROW, "ascending")])
        nodes = numbers(members[_NODE])
        order = np.argsort(nodes)
        links = table.filter(pc.is_valid(table[SIMILARITY]))
        u, v = (order[np.searchsorted(nodes[order], numbers(links[name]))] for name in (_NODE, _OTHER))
        pairs = pa.table([from_numbers(u), from_numbers(v), links[SIMILARITY]], ["u", "v", "similarity"])
        clusters = components(pairs["u"], pairs["v"])
        ranked = clusters.append_column("rank", members[_RANK].take(clusters["id"]))
        return _verdicts(choose_kept(ranked, pairs), members)


def _verdicts(chosen: pa.Table, members: pa.Table) -> pa.Table:
    rows = members.take(chosen["id"])
    partners = members[ID].take(chosen["partner"])
    return pa.table(
        [
            rows[TASK],
            rows[ROW],
            chosen["kept"],
            rows[ID],
            pc.if_else(chosen["kept"], rows[ID], partners),
            partners,
            chosen["similarity"],
        ],
        [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
    )


# -- tables --------------------------------------------------------------------------------------------------


def _table(kind: int, keys: Numbers, nodes: Numbers, **columns: Any) -> pa.Table:
    """Rows of a kind, with nulls in the columns that it has no use for."""
    count = len(nodes)
    made = {
        _KEY: pa.Array.from_buffers(pa.binary(8), count, [None, pa.py_buffer(np.ascontiguousarray(keys))]),
        _KIND: pa.repeat(literal(kind, pa.int8()), count),
        _NODE: from_numbers(nodes),
        **columns,
    }
    return pa.table({name: made[name] if name in made else pa.nulls(count, of) for name, of in _COLUMNS.items()})


def _texts(table: pa.Table, kinds: Numbers) -> pa.Table:
    """What is known of texts, in the order of their numbers, once each."""
    texts = table.filter(from_numbers(kinds == _TEXT))
    _, first = np.unique(numbers(texts[_NODE]), return_index=True)
    return texts.take(from_numbers(first))


def _without_body(table: pa.Table) -> pa.Table:
    at = table.column_names.index(_BODY)
    return table.set_column(at, _BODY, pa.nulls(table.num_rows, pa.binary()))


def _key_numbers(table: pa.Table) -> pa.Array:
    keys = whole(table[_KEY])
    return pa.Array.from_buffers(pa.uint64(), len(keys), [None, keys.buffers()[1]], offset=keys.offset)


def _short(found: Numbers) -> pa.Array:
    """Signatures with numbers of eight bits: enough to compare a pair."""
    low = np.ascontiguousarray((found & 0xFF).astype(np.uint8))
    ends = np.arange(len(low) + 1, dtype=np.int32) * np.int32(low.shape[1])
    return pa.Array.from_buffers(pa.binary(), len(low), [None, pa.py_buffer(ends), pa.py_buffer(low)])


def _matrix(bodies: pa.Array) -> Numbers:
    """Signatures as `_short` made them, a row each."""
    if not len(bodies):
        return np.zeros((0, 1), np.uint8)
    ends = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    return np.frombuffer(bodies.buffers()[2], np.uint8)[ends[0] : ends[-1]].reshape(len(bodies), -1)


def _place(batch: Batch) -> str:
    """Where a batch stands in the input, as text that sorts so."""
    number, parts = batch.lineage.order, order_key(batch.lineage.id)
    return ".".join([f"{number:012d}", *(f"{part:012d}" if isinstance(part, int) else part for _, part in parts)])


def _nodes(batch: Batch) -> Numbers:
    """A number for each row that depends on its file and its place there alone. Rows that share a place are told
    apart by their order."""
    owner, found = row_ids(batch)
    places = numbers(found, np.uint64)
    new = np.append(True, places[1:] != places[:-1])[: len(places)]
    starts = np.flatnonzero(new)
    again = np.arange(len(places)) - (starts[np.cumsum(new) - 1] if len(places) else 0)
    bits = places * np.uint64(0x9E3779B97F4A7C15) + np.uint64(int(digest(["row", owner]), 16))
    bits += again.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (bits ^ (bits >> np.uint64(31))).view(np.int64)
