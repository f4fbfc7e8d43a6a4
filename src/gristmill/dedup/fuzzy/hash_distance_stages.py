"""Deduplication by 64-bit hashes that differ in few bits: SimHash of texts, perceptual hashes of images.

    SimHashDeduplicationStage          computes a SimHash of each text
    PerceptualHashDeduplicationStage   reads a column of perceptual hashes

Each hash is sent under several keys, so that hashes that differ in few bits have a key in common (`search_rows`); pairs
are verified, and similar rows make clusters. All pairs within the radius are found. A SimHash is smaller than a MinHash
signature and tells less: its similarity counts repetitions, and only texts with few changes are found. Blank texts and
null have none.

Gives up bounded memory other than for sorting: all rows with a key in common are held together, and one worker makes
the clusters from all pairs, at about 200 bytes for each. Clusters are transitive, so a large radius may link images
that differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.hash_partitioning import required_column
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import is_text
from gristmill.core.batch import Batch
from gristmill.core.errors import ColumnError, printable
from gristmill.core.stage import Columns
from gristmill.core.task import id_sort_key
from gristmill.dedup.clusters.cluster_table import CLUSTER, ID, PARTNER, SIMILARITY, CommitVerdicts, ids
from gristmill.dedup.clusters.connected_components import components
from gristmill.dedup.clusters.keep_policy import FIRST, Keep, choose_kept, policy
from gristmill.dedup.columns import kernel_reference as reference
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
"""Pairs that are compared at a time."""

MAX_PERCEPTUAL_RADIUS = 12

_KEY, NODE, OTHER, _BITS, _RANK, _PLACE = "__key__", "__node__", "__other__", "__bits__", "__rank__", "__place__"
ABOUT = [NODE, _RANK, _PLACE, ID, TASK, ROW]
"""The columns that describe a row."""


def simhashes(column: Column, shingling: Shingling = WORDS) -> pa.UInt64Array:
    """The SimHash of each text; null for blank ones."""
    texts = as_text(column)
    if kernels is not None:
        data, bitmap = kernels.simhash(texts, shingling.unit, shingling.n, shingling.seed)
    else:
        shingles = [shingling.shingles(text or "") for text in texts.to_pylist()]
        data = np.array([reference.simhash(one) if len(one) else 0 for one in shingles], np.uint64).tobytes()
        bitmap = np.packbits(np.array([len(one) > 0 for one in shingles], np.bool_), bitorder="little").tobytes()
    return from_numbers(np.frombuffer(data, np.uint64), pa.py_buffer(bitmap))


def distance(left: Column, right: Column) -> pa.Int64Array:
    """The number of bits in which the hashes of each row differ."""
    return from_numbers(np.bitwise_count(numbers(left) ^ numbers(right)).astype(np.int64))


def search_rows(ids: Column, hashes: Column, within: int = 3, blocks: int = 6) -> pa.Table:
    """Rows `key` and `id`: documents whose hashes differ in at most `within` bits have a key in common.

    Hashes are cut into blocks. Two hashes that differ in so few bits have at least `blocks - within` equal blocks;
    there is a key for each choice of that many blocks. More blocks make more keys, with fewer documents for each.
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
    matrix = np.stack(keys, axis=1)
    rows = from_numbers(np.repeat(np.arange(len(values)), matrix.shape[1]))
    return pa.table([from_numbers(matrix.reshape(-1)), names.take(rows)], ["key", "id"])


def near_pairs(hashes: Column, within: int = 3, blocks: int = 6) -> pa.Table:
    """All pairs of rows `u < v` whose hashes differ in at most `within` bits, in memory."""
    rows = search_rows(from_numbers(np.arange(len(hashes))), hashes, within, blocks)
    pairs = bucket_pairs(rows["key"], rows["id"], all_up_to=len(hashes))
    u, v = numbers(pairs["u"]), numbers(pairs["v"])
    values: Numbers = numbers(hashes)
    near = np.bitwise_count(values[u] ^ values[v]) <= within
    return distinct_pairs(u[near], v[near])


# -- stages --------------------------------------------------------------------------------------------------


class PairClusteringStage(VerdictStage):
    """Drops rows that are similar to another: finds pairs, makes clusters of them, and keeps one row of each."""

    is_base: ClassVar[bool] = True

    def __init__(
        self,
        text_field: str | None,
        keep: str | Keep | Mapping[str, Any],
        score_field: str | None,
        id_field: str | None,
        num_partitions: int | None,
        memory_gb: float | None,
    ) -> None:
        super().__init__()
        Exchange(num_partitions=num_partitions, memory_gb=memory_gb)  # raises for wrong numbers
        self.keep, self.score_field, self.id_field = keep, score_field, id_field
        self.num_partitions, self.memory_gb = num_partitions, memory_gb
        self._policy = policy(type(self).__name__, keep, text_field, score_field)

    def pair_stages(self) -> list[KeyedStage]:
        """The stages that find pairs. The last one answers with the columns that `NearClusters` needs."""
        raise NotImplementedError

    def rounds(self) -> Sequence[KeyedStage]:
        return self.named_rounds([*self.pair_stages(), NearClusters()])

    def run_warning(self, stats: Any) -> str | None:
        return self._policy.run_warning(self.name, stats)

    def commit(self, verdicts: Exchange) -> CommitShuffleFiles:
        return CommitVerdicts(verdicts, f"{self.name}_commit_verdicts", memory_gb=self.memory_gb)


class HashDistanceStage(PairClusteringStage):
    """Drops rows whose 64-bit hash is nearly that of another; of each cluster, one row is kept."""

    is_base: ClassVar[bool] = True
    radius: int

    def hashes(self, batch: Batch) -> pa.Array:
        """The hash of each row, as uint64; null for a row that is never a duplicate."""
        raise NotImplementedError

    def keys(self, batch: Batch) -> pa.Table:
        hashes = self.hashes(batch)
        about = about_rows(self, batch, self._policy, self.id_field)
        rows = search_rows(from_numbers(np.arange(batch.num_items)), hashes, self.radius, self.radius + 2)
        keyed = about.take(rows["id"]).append_column(_BITS, hashes.take(rows["id"]))
        key = pa.Array.from_buffers(pa.binary(8), len(rows), [None, as_one_array(rows["key"]).buffers()[1]])
        return keyed.append_column(_KEY, key)

    def pair_stages(self) -> list[KeyedStage]:
        return [NearHashes(self.radius)]

    def thresholds(self) -> dict[str, str]:
        return {SIMILARITY: f"radius={self.radius}, at least {1 - self.radius / 64:g}"}


class SimHashDeduplicationStage(HashDistanceStage):
    """Drops rows whose text is nearly that of another row, by a 64-bit SimHash of each text.

    Two texts are similar if their SimHashes, of runs of `word_ngrams` words, differ in at most `radius` bits; clusters
    of similar rows are transitive, and one row of each is kept. In scripts without spaces each character is a word. At
    a radius of 3, texts of which one word in 200 differs are found two times in three, at 6 nearly always. Use
    `FuzzyDeduplicationStage` for larger differences.

    `keep` is "first" in the order of the input, "longest", the one with the "highest" or "newest" `score_field`, or a
    `Keep`. `id_field` is the column that names rows in the cluster table, where similarity is the share of equal bits.
    Blank texts and null are never duplicates. `memory_gb` is the memory that a worker may use for sorting keys; nothing
    else is bounded. Output files have the same names and order as without this stage.
    """

    def __init__(
        self,
        text_field: str = "text",
        radius: int = 3,
        word_ngrams: int = 3,
        keep: str | Keep | Mapping[str, Any] = FIRST,
        score_field: str | None = None,
        id_field: str | None = None,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
    ) -> None:
        super().__init__(text_field, keep, score_field, id_field, num_partitions, memory_gb)
        if not 0 <= radius <= 8:
            raise ValueError(f"SimHashDeduplicationStage: radius is {radius}, must be 0 to 8 bits")
        if word_ngrams < 1:
            raise ValueError(f"SimHashDeduplicationStage: word_ngrams is {word_ngrams}, must be 1 or more")
        self.text_field, self.radius, self.word_ngrams = text_field, radius, word_ngrams
        self._shingling = Shingling("words", word_ngrams)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {
            **{name: "" for name in (self._policy.field, self.id_field) if name},
            self.text_field: "string",
        }

    def hashes(self, batch: Batch) -> pa.Array:
        return simhashes(texts_of(self.name, batch.data, self.text_field), self._shingling)


class PerceptualHashDeduplicationStage(HashDistanceStage):
    """Drops rows whose perceptual hash is nearly that of another row; of each cluster, one row is kept.

    `hash_field` is a column of 64-bit hashes, as `ImagePerceptualHashStage` makes it: integers, eight bytes, or sixteen
    hexadecimal digits. Two rows are similar if their hashes differ in at most `radius` bits, 0 to 12; clusters are
    transitive. Copies that were resized or recompressed differ in up to about 6 bits, different images in 20 to 40.

    `keep` is "first" in the order of the input, the one with the "highest" or "newest" `score_field`, such as width, or
    a `Keep`. `id_field` is the column that names rows in the cluster table, where similarity is the share of equal
    bits. Null is never a duplicate. Output files have the same names and order as without this stage.
    """

    def __init__(
        self,
        hash_field: str = "phash",
        radius: int = 6,
        keep: str | Keep | Mapping[str, Any] = FIRST,
        score_field: str | None = None,
        id_field: str | None = None,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
    ) -> None:
        super().__init__(None, keep, score_field, id_field, num_partitions, memory_gb)
        if isinstance(radius, bool) or not isinstance(radius, int) or not 0 <= radius <= MAX_PERCEPTUAL_RADIUS:
            raise ValueError(
                f"PerceptualHashDeduplicationStage: radius is {radius!r}, must be 0 to {MAX_PERCEPTUAL_RADIUS} bits"
            )
        self.hash_field, self.radius = hash_field, radius

    def inputs(self) -> tuple[list[str], Columns]:
        named = [self.hash_field, self._policy.field, self.id_field]
        return ["data"], list(dict.fromkeys(name for name in named if name))

    def hashes(self, batch: Batch) -> pa.Array:
        column = as_one_array(required_column(batch.data, self.hash_field))
        kind = column.type
        if kind == pa.uint64():
            return column
        if pa.types.is_integer(kind):
            return column.cast(pa.int64()).view(pa.uint64())
        if pa.types.is_null(kind):
            return column.cast(pa.uint64())
        if is_text(kind):
            return make_array([_bits(value) for value in column.to_pylist()], pa.uint64())
        if pa.types.is_fixed_size_binary(kind) and kind.byte_width == 8:
            values = (None if value is None else int.from_bytes(value, "big") for value in column.to_pylist())
            return make_array(list(values), pa.uint64())
        raise ColumnError(
            f"stage {self.name!r} needs 64-bit hashes in column {self.hash_field!r}, which holds {printable(kind)}. "
            "Set hash_field to the column that ImagePerceptualHashStage has added"
        )


def _bits(text: str | None) -> int | None:
    """The number that 16 hexadecimal digits stand for; any other text raises, and its row goes to quarantine."""
    if text is None:
        return None
    if len(text) != 16:
        raise ValueError(f"{text[:40]!r} is not a 64-bit hash of 16 hexadecimal digits")
    return int(text, 16)


def about_rows(stage: VerdictStage, batch: Batch, keep: Keep, id_field: str | None) -> pa.Table:
    """The columns that describe each row, for `NearClusters`."""
    known = identities(batch)
    columns = [
        from_numbers(row_numbers(known)),
        keep.rank(batch.data, stage.count),
        pa.repeat(literal(sortable_position(batch), pa.string()), batch.num_items),
        ids(stage.name, batch, id_field),
        known[TASK],
        known[ROW],
    ]
    return pa.table(columns, ABOUT)


def row_numbers(known: pa.Table) -> Numbers:
    """A unique 64-bit number for each row."""
    tasks = numbers(hash64(known[TASK]))
    mixed: Numbers = reference.scramble(tasks + numbers(known[ROW]).astype(np.uint64) * np.uint64(reference.GOLDEN))
    return mixed.view(np.int64)


def sortable_position(batch: Batch) -> str:
    """The position of a batch in the input, as text that sorts in that order."""
    parts = [part for _, part in id_sort_key(batch.lineage.id)]
    return ".".join(f"{part:012d}" if isinstance(part, int) else part for part in [batch.lineage.order, *parts])


class NearHashes(KeyedStage):
    """Finds rows with a key in common whose hashes differ in few bits.

    For each pair it outputs the first row, linked with the other, and the other row.
    """

    step_name = "near_hashes"
    key = _KEY

    def __init__(self, radius: int) -> None:
        super().__init__()
        self.radius = radius

    def outputs(self) -> tuple[list[str], Columns]:
        return [], ABOUT

    def process_groups(self, table: pa.Table) -> pa.Table:
        keys, bits = numbers(as_numbers(table[_KEY])), numbers(table[_BITS])
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


def as_numbers(column: Column) -> pa.Array:
    keys = as_one_array(column)
    return pa.Array.from_buffers(pa.uint64(), len(keys), [None, keys.buffers()[1]], offset=keys.offset)


def _pairs(keys: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """All pairs of positions with the same key, at most `MOST_PAIRS` at a time if possible; keys are sorted."""
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    sizes = np.diff(np.append(starts, len(keys)))
    for size in np.unique(sizes[sizes > 1]).tolist():
        begins = starts[sizes == size]
        if size * size > MOST_PAIRS:
            for begin in begins.tolist():
                for position in range(begin, begin + size - 1):
                    others = np.arange(position + 1, begin + size)
                    yield np.full(len(others), position), others
            continue
        left, right = np.triu_indices(size, 1)
        step = max(MOST_PAIRS // len(left), 1)
        for at in range(0, len(begins), step):
            group_starts = begins[at : at + step, None]
            yield (group_starts + left).reshape(-1), (group_starts + right).reshape(-1)


def _links(table: pa.Table, u: Numbers, v: Numbers, bits: Numbers) -> pa.Table:
    about, other = (table.select(ABOUT).take(from_numbers(rows)) for rows in (u, v))
    shares = from_numbers(1 - np.bitwise_count(bits[u] ^ bits[v]) / 64)
    links = about.append_column(OTHER, other[NODE]).append_column(SIMILARITY, shares)
    nothing = pa.nulls(len(v), pa.int64()), pa.nulls(len(v), pa.float64())
    others = other.append_column(OTHER, nothing[0]).append_column(SIMILARITY, nothing[1])
    return pa.concat_tables([links, others])


class NearClusters(KeyedStage):
    """Makes clusters of all pairs, and gives a verdict on each row of a cluster."""

    step_name = "clusters"
    key = ()

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []  # verdicts are no columns of the rows

    def process_groups(self, table: pa.Table) -> pa.Table:
        _, first = np.unique(numbers(table[NODE]), return_index=True)
        members = table.take(from_numbers(first)).sort_by([(_PLACE, "ascending"), (ROW, "ascending")])
        nodes = numbers(members[NODE])
        order = np.argsort(nodes)
        links = table.filter(pc.is_valid(table[SIMILARITY]))
        u, v = (order[np.searchsorted(nodes[order], numbers(links[name]))] for name in (NODE, OTHER))
        pairs = pa.table([from_numbers(u), from_numbers(v), links[SIMILARITY]], ["u", "v", "similarity"])
        clusters = components(pairs["u"], pairs["v"])
        chosen = choose_kept(clusters.append_column("rank", members[_RANK].take(clusters["id"])), pairs)
        rows, partners = members.take(chosen["id"]), members[ID].take(chosen["partner"])
        named = pc.if_else(chosen["kept"], rows[ID], partners)
        return pa.table(
            [rows[TASK], rows[ROW], chosen["kept"], rows[ID], named, partners, chosen["similarity"]],
            [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
        )
