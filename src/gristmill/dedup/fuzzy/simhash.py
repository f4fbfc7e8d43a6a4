"""SimHash: 64 bits per document, few of which differ between documents that are nearly the same.

It costs less room than MinHash and tells less: similarity counts repetitions, and a search finds only what differs
in a few bits. Blank documents and null have none.

`SimHashDeduplicationStage` sends the hash of each text by several keys, so that all that differ in a few bits meet
(`search_rows`), and makes clusters of those that do. All pairs are found.

What is given up: bounds on memory other than for sorting. All texts with a key in common are looked at together, and
clusters are made by one worker, from all pairs: about 200 bytes for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.batch import Batch
from gristmill.core.stage import Columns
from gristmill.core.task import id_sort_key
from gristmill.dedup.clusters.cluster_table import CLUSTER, ID, PARTNER, SIMILARITY, CommitVerdicts, ids
from gristmill.dedup.clusters.connected_components import components
from gristmill.dedup.clusters.keep_policy import Keep, choose_kept, policy
from gristmill.dedup.columns import reference
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_one_array, as_text, from_numbers, numbers
from gristmill.dedup.columns.batch_texts import texts_of
from gristmill.dedup.columns.column_hashes import hash64
from gristmill.dedup.signatures.lsh import bucket_pairs, distinct_pairs
from gristmill.dedup.signatures.minhash import Shingling
from gristmill.io.exchange.exchange import CommitShuffleFiles, Exchange
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK, VerdictStage, identities

WORDS = Shingling("words", 3)
MOST_PAIRS = 2**22
"""So many are compared at a time."""

_KEY, _NODE, _OTHER, _BITS, _RANK, _PLACE = "__key__", "__node__", "__other__", "__bits__", "__rank__", "__place__"
_ABOUT = [_NODE, _RANK, _PLACE, ID, TASK, ROW]
"""What is known of a text."""


def simhashes(column: Column, shingling: Shingling = WORDS) -> pa.UInt64Array:
    """The SimHash of each text; null for blank ones."""
    texts = as_text(column)
    if kernels is not None:
        data, bitmap = kernels.simhash(texts, shingling.unit, shingling.n, shingling.seed)
    else:
        found = [shingling.shingles(text or "") for text in texts.to_pylist()]
        data = np.array([reference.simhash(one) if len(one) else 0 for one in found], np.uint64).tobytes()
        bitmap = np.packbits(np.array([len(one) > 0 for one in found], np.bool_), bitorder="little").tobytes()
    return from_numbers(np.frombuffer(data, np.uint64), pa.py_buffer(bitmap))


def distance(left: Column, right: Column) -> pa.Int64Array:
    """In how many bits the hashes of each row differ."""
    return from_numbers(np.bitwise_count(numbers(left) ^ numbers(right)).astype(np.int64))


def search_rows(ids: Column, hashes: Column, within: int = 3, blocks: int = 6) -> pa.Table:
    """Rows `key` and `id`: documents whose hashes differ in at most `within` bits have a key in common.

    Hashes are cut into blocks. Of two that differ in so few bits, at least `blocks - within` blocks are equal,
    whichever these are; there is a key for each choice of as many. More blocks make more keys, with fewer documents to
    each.
    """
    if not 0 <= within < blocks <= 64:
        raise ValueError(f"within={within} must be less than blocks={blocks}, and blocks at most 64")
    present = as_one_array(hashes).is_valid()
    values, names = numbers(as_one_array(hashes).filter(present)), as_one_array(ids).filter(present)
    ends = [64 * block // blocks for block in range(blocks + 1)]
    masks = [np.uint64((1 << end) - (1 << start)) for start, end in pairwise(ends)]
    keys = []
    for number, chosen in enumerate(combinations(masks, blocks - within)):
        part = values & np.bitwise_or.reduce(np.array(chosen))
        keys.append(reference.scramble(part + np.uint64((number + 1) * reference.GOLDEN & reference.ALL)))
    found = np.stack(keys, axis=1)
    places = from_numbers(np.repeat(np.arange(len(values)), found.shape[1]))
    return pa.table([from_numbers(found.reshape(-1)), names.take(places)], ["key", "id"])


def near_pairs(hashes: Column, within: int = 3, blocks: int = 6) -> pa.Table:
    """All pairs of rows `u < v` whose hashes differ in at most `within` bits, in memory."""
    rows = search_rows(from_numbers(np.arange(len(hashes))), hashes, within, blocks)
    pairs = bucket_pairs(rows["key"], rows["id"], all_up_to=len(hashes))
    u, v = numbers(pairs["u"]), numbers(pairs["v"])
    values: Numbers = numbers(hashes)
    near = np.bitwise_count(values[u] ^ values[v]) <= within
    return distinct_pairs(u[near], v[near])


# -- as a stage ----------------------------------------------------------------------------------------------


class HashDistanceStage(VerdictStage):
    """Drops each row of which 64 bits are nearly those of another; of those that are alike, one is kept."""

    is_base: ClassVar[bool] = True
    radius: int
    id_field: str | None
    num_partitions: int | None
    _policy: Keep

    def hashes(self, batch: Batch) -> pa.Array:
        """The bits of each row, as uint64; null for one that is like no other."""
        raise NotImplementedError

    def keys(self, batch: Batch) -> pa.Table:
        hashes = self.hashes(batch)
        known = identities(batch)
        about = pa.table(
            [
                from_numbers(_numbered(known)),
                self._policy.rank(batch.data, self.count),
                pa.repeat(literal(_place(batch), pa.string()), batch.num_items),
                ids(self.name, batch, self.id_field),
                known[TASK],
                known[ROW],
            ],
            _ABOUT,
        )
        rows = search_rows(from_numbers(np.arange(batch.num_items)), hashes, self.radius, self.radius + 2)
        found = about.take(rows["id"]).append_column(_BITS, hashes.take(rows["id"]))
        key = pa.Array.from_buffers(pa.binary(8), len(rows), [None, as_one_array(rows["key"]).buffers()[1]])
        return found.append_column(_KEY, key)

    def run_warning(self, stats: Any) -> str | None:
        return self._policy.run_warning(self.name, stats)

    def rounds(self) -> Sequence[KeyedStage]:
        steps: list[KeyedStage] = [NearHashes(self.radius), NearClusters()]
        for step in steps:
            step.name = f"{self.name}_{type(step).__name__.lower()}"
            step.num_partitions = self.num_partitions
        return steps

    def thresholds(self) -> dict[str, str]:
        return {SIMILARITY: f"radius={self.radius}, at least {1 - self.radius / 64:g}"}

    def commit(self, verdicts: Exchange) -> CommitShuffleFiles:
        return CommitVerdicts(verdicts, f"{self.name}_commit_verdicts", memory_gb=self.memory_gb)


class SimHashDeduplicationStage(HashDistanceStage):
    """Drops each row whose text is nearly that of another, by 64 bits for each; of those that are alike, one is kept.

    Alike are texts whose SimHashes, of runs of `word_ngrams` words, differ in at most `radius` bits, and those that
    others link. In scripts without spaces each character is a word. At a radius of 3, texts of which one word in 200
    differs are found two times of three, at 6 nearly always; for more than that there is `FuzzyDeduplicationStage`.
    `keep` is "first" in the order of the input, "longest", the one with the "highest" or "newest" `score_field`, or a
    `Keep`. `id_field` names the rows in the cluster table, whose similarity is the share of equal bits. Blank texts
    and null are like no other. `memory_gb` is what a worker may use for sorting keys, and bounds nothing else. Output
    files are those that there would be without this stage, in the same order.
    """

    def __init__(
        self,
        text_field: str = "text",
        radius: int = 3,
        word_ngrams: int = 3,
        keep: str | Keep | Mapping[str, Any] = "first",
        score_field: str | None = None,
        id_field: str | None = None,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= radius <= 8:
            raise ValueError(f"SimHashDeduplicationStage: radius is {radius}, must be 0 to 8 bits")
        if word_ngrams < 1:
            raise ValueError(f"SimHashDeduplicationStage: word_ngrams is {word_ngrams}, must be 1 or more")
        Exchange(num_partitions=num_partitions, memory_gb=memory_gb)  # a wrong number is an error here
        self.text_field, self.radius, self.word_ngrams, self.keep = text_field, radius, word_ngrams, keep
        self.score_field, self.id_field = score_field, id_field
        self.num_partitions, self.memory_gb = num_partitions, memory_gb
        self._how = Shingling("words", word_ngrams)
        self._policy = policy("SimHashDeduplicationStage", keep, text_field, score_field)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {
            **{name: "" for name in (self._policy.field, self.id_field) if name},
            self.text_field: "string",
        }

    def hashes(self, batch: Batch) -> pa.Array:
        return simhashes(texts_of(self.name, batch.data, self.text_field), self._how)


def _numbered(known: pa.Table) -> Numbers:
    """A number for each row that no other has."""
    tasks = numbers(hash64(known[TASK]))
    found: Numbers = reference.scramble(tasks + numbers(known[ROW]).astype(np.uint64) * np.uint64(reference.GOLDEN))
    return found.view(np.int64)


def _place(batch: Batch) -> str:
    """Where a batch stands in the input, as text that sorts so."""
    parts = [part for _, part in id_sort_key(batch.lineage.id)]
    return ".".join(f"{part:012d}" if isinstance(part, int) else part for part in [batch.lineage.order, *parts])


class NearHashes(KeyedStage):
    """Pairs of texts with a key in common whose hashes differ in few bits: the first of each pair, with the other, and
    the other itself."""

    key = _KEY

    def __init__(self, radius: int) -> None:
        super().__init__()
        self.radius = radius

    def outputs(self) -> tuple[list[str], Columns]:
        return [], _ABOUT

    def process_groups(self, table: pa.Table) -> pa.Table:
        keys, bits = numbers(_as_numbers(table[_KEY])), numbers(table[_BITS])
        order = np.lexsort((bits, keys))
        same = (keys[order][1:] == keys[order][:-1]) & (bits[order][1:] == bits[order][:-1])
        u, v = [order[:-1][same]], [order[1:][same]]
        firsts = order[np.append(True, ~same)]
        for left, right in _pairs(keys[firsts]):
            one, other = firsts[left], firsts[right]
            near = np.bitwise_count(bits[one] ^ bits[other]) <= self.radius
            u.append(one[near])
            v.append(other[near])
        return _links(table, np.concatenate(u), np.concatenate(v), bits)


def _as_numbers(column: Column) -> pa.Array:
    keys = as_one_array(column)
    return pa.Array.from_buffers(pa.uint64(), len(keys), [None, keys.buffers()[1]], offset=keys.offset)


def _pairs(keys: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """All pairs of places with the same key, some at a time; equal keys are neighbours."""
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    sizes = np.diff(np.append(starts, len(keys)))
    for size in np.unique(sizes[sizes > 1]).tolist():
        begins = starts[sizes == size]
        if size * size > MOST_PAIRS:
            for begin in begins.tolist():
                for place in range(begin, begin + size - 1):
                    others = np.arange(place + 1, begin + size)
                    yield np.full(len(others), place), others
            continue
        left, right = np.triu_indices(size, 1)
        step = max(MOST_PAIRS // len(left), 1)
        for at in range(0, len(begins), step):
            some = begins[at : at + step, None]
            yield (some + left).reshape(-1), (some + right).reshape(-1)


def _links(table: pa.Table, u: Numbers, v: Numbers, bits: Numbers) -> pa.Table:
    about, other = (table.select(_ABOUT).take(from_numbers(rows)) for rows in (u, v))
    shares = from_numbers(1 - np.bitwise_count(bits[u] ^ bits[v]) / 64)
    links = about.append_column(_OTHER, other[_NODE]).append_column(SIMILARITY, shares)
    nothing = pa.nulls(len(v), pa.int64()), pa.nulls(len(v), pa.float64())
    others = other.append_column(_OTHER, nothing[0]).append_column(SIMILARITY, nothing[1])
    return pa.concat_tables([links, others])


class NearClusters(KeyedStage):
    """Makes clusters of all pairs, and gives a verdict on each row that is in one."""

    key = ()

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []  # what it gives is no part of the rows

    def process_groups(self, table: pa.Table) -> pa.Table:
        _, first = np.unique(numbers(table[_NODE]), return_index=True)
        members = table.take(from_numbers(first)).sort_by([(_PLACE, "ascending"), (ROW, "ascending")])
        nodes = numbers(members[_NODE])
        order = np.argsort(nodes)
        links = table.filter(pc.is_valid(table[SIMILARITY]))
        u, v = (order[np.searchsorted(nodes[order], numbers(links[name]))] for name in (_NODE, _OTHER))
        pairs = pa.table([from_numbers(u), from_numbers(v), links[SIMILARITY]], ["u", "v", "similarity"])
        clusters = components(pairs["u"], pairs["v"])
        chosen = choose_kept(clusters.append_column("rank", members[_RANK].take(clusters["id"])), pairs)
        rows, partners = members.take(chosen["id"]), members[ID].take(chosen["partner"])
        named = pc.if_else(chosen["kept"], rows[ID], partners)
        return pa.table(
            [rows[TASK], rows[ROW], chosen["kept"], rows[ID], named, partners, chosen["similarity"]],
            [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
        )
