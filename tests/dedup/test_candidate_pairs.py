"""What is known of a text goes once to each partition that has a pair of it, however many there are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gristmill.core.arrow.hash_partitioning import partition_numbers
from gristmill.dedup.columns.arrow_numpy import from_numbers, numbers
from gristmill.dedup.fuzzy import exchange_rows
from gristmill.dedup.fuzzy.candidate_pairs import SendFirstTexts, _paired_texts
from gristmill.dedup.signatures.document_sketch import buckets_of
from gristmill.io.exchange.exchange import Exchange

BY = [(name, "ascending") for name in (exchange_rows.KEY, exchange_rows.KIND, exchange_rows.NODE, exchange_rows.BODY)]


@pytest.mark.parametrize("memory_gb", [None, 1e-4, 1e-6])
@pytest.mark.parametrize("partitions", [1, 7, 4096])
def test_a_text_is_sent_to_every_partition_with_a_pair_of_it(partitions: int, memory_gb: float | None) -> None:
    draw = np.random.default_rng(3)
    firsts, seconds = (np.unique(draw.integers(-(2**63), 2**63 - 1, 300)) for _ in range(2))
    pairs = np.stack([np.repeat(firsts, 40), draw.choice(seconds, 40 * len(firsts))], axis=1)
    bodies = pa.array([str(node).encode() for node in firsts.tolist()], pa.binary())
    texts = exchange_rows.make_rows(
        exchange_rows.TEXT, buckets_of(firsts), **{exchange_rows.NODE: from_numbers(firsts), exchange_rows.BODY: bodies}
    )
    stage = SendFirstTexts()
    stage.memory_gb = memory_gb
    stage._spool = Exchange([exchange_rows.KEY], partitions)  # type: ignore[assignment]
    truth = exchange_rows.pack_links(exchange_rows.TRUTH, firsts[:2], firsts[2:4], np.ones(2))
    table = pa.concat_tables([texts, exchange_rows.pack(exchange_rows.PAIR, buckets_of(pairs[:, 0]), pairs), truth])
    parts = list(stage.process_parts(table))
    assert (len(parts) > 1) == (memory_gb is not None and partitions > 1)
    rows = pa.concat_tables(parts)
    in_order = list(
        stage.process_sorted(iter([table.sort_by(exchange_rows.KEY)]))
    )  # if a partition does not fit into memory
    assert list(map(len, in_order)) == list(map(len, parts))
    assert pa.concat_tables(in_order).sort_by(BY).equals(rows.sort_by(BY))
    assert exchange_rows.select_kind(rows, exchange_rows.TRUTH).equals(truth)
    assert (
        exchange_rows.distinct_rows(
            exchange_rows.unpack(exchange_rows.select_kind(rows, exchange_rows.PAIR), 2)
        ).tolist()
        == np.unique(pairs, axis=0).tolist()
    )
    sent = exchange_rows.select_kind(rows, exchange_rows.SENT_TEXT)
    there = numbers(partition_numbers(sent, [exchange_rows.KEY], partitions)).tolist()
    keys = pa.table([exchange_rows.keys_of(buckets_of(pairs[:, 1]))], [exchange_rows.KEY])
    wanted = zip(
        pairs[:, 0].tolist(), numbers(partition_numbers(keys, [exchange_rows.KEY], partitions)).tolist(), strict=True
    )
    assert sorted(zip(sent[exchange_rows.NODE].to_pylist(), there, strict=True)) == sorted(set(wanted))
    assert sent[exchange_rows.BODY].to_pylist() == [str(node).encode() for node in sent[exchange_rows.NODE].to_pylist()]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_texts_that_are_in_no_pair_are_left_out(side: int, size: int) -> None:
    nodes, pairs = np.arange(-50, 50), np.array([[-50, 7], [-3, 49], [-3, 7], [200, 300]])
    rows = exchange_rows.pack(exchange_rows.PAIR, buckets_of(pairs[:, side]), pairs)
    truth = exchange_rows.pack_links(exchange_rows.TRUTH, nodes[:2], nodes[2:4], np.ones(2))
    texts = exchange_rows.make_rows(exchange_rows.TEXT, buckets_of(nodes), **{exchange_rows.NODE: from_numbers(nodes)})
    table = pa.concat_tables([rows, truth, texts]).combine_chunks()
    blocks = (table.slice(start, size) for start in range(0, table.num_rows, size))
    left = pa.concat_tables(_paired_texts(blocks, side))
    assert (
        numbers(exchange_rows.select_kind(left, exchange_rows.TEXT)[exchange_rows.NODE]).tolist()
        == [[-50, -3], [7, 49]][side]
    )
    for kind in (exchange_rows.PAIR, exchange_rows.TRUTH):
        assert exchange_rows.select_kind(left, kind).equals(exchange_rows.select_kind(table, kind))
    none = pa.concat_tables(_paired_texts([texts], side))
    assert not none.num_rows
