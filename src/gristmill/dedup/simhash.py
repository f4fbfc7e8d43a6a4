"""SimHash: 64 bits per document, few of which differ between documents that are nearly the same.

It costs less room than MinHash and tells less: similarity counts repetitions, and a search finds only what differs
in a few bits. Blank documents and null have none.
"""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pyarrow as pa

from gristmill.core.native import kernels
from gristmill.dedup import reference
from gristmill.dedup.columns import Column, Numbers, as_text, from_numbers, numbers, whole
from gristmill.dedup.lsh import bucket_pairs, distinct
from gristmill.dedup.minhash import Shingling

WORDS = Shingling("words", 3)


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
    present = whole(hashes).is_valid()
    values, names = numbers(whole(hashes).filter(present)), whole(ids).filter(present)
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
    return distinct(u[near], v[near])
