"""What deduplication loads."""

from __future__ import annotations

import subprocess
import sys


def test_pandas_is_not_loaded() -> None:
    code = """
import sys
import pyarrow as pa
from gristmill.core.arrow.array_building import make_array
from gristmill.dedup.clusters import connected_components
from gristmill.dedup.clusters import keep_policy
from gristmill.dedup.columns import column_hashes
from gristmill.dedup.columns import normalisation
from gristmill.dedup.exact import bloom_filter
from gristmill.dedup.fuzzy import hash_distance_stages
from gristmill.dedup.signatures import lsh
from gristmill.dedup.signatures import minhash
from gristmill.dedup.signatures import search_quality
from gristmill.dedup.substring import substring_stage
from gristmill.dedup.substring import text_units

texts = make_array(["a b c é", "", None, "x y z " * 20, "x y z " * 20], pa.string())
column_hashes.hash_columns([texts, texts])
normalisation.Normalisation().apply(texts)
signed = minhash.signatures(texts)
rows = lsh.band_rows(make_array([1, 2, 3, 4, 5], pa.int64()), signed, 20, 13)
pairs = lsh.bucket_pairs(rows["key"], rows["id"])
clusters = connected_components.components(pairs["u"], pairs["v"])
pairs = pairs.append_column("similarity", minhash.similarity(signed[3:4], signed[4:5]))
print(keep_policy.choose_kept(clusters, pairs)["similarity"].to_pylist())
search_quality.measure_bands(texts, 0.8, 20, 13)
bloom_filter.BloomFilter(10).add(texts)
pieces = text_units.cut_units(texts)
pieces.without(text_units.repeated_pieces(pieces.keys()))
substring_stage.without_spans(texts, substring_stage.repeated_spans(texts, 10))
hash_distance_stages.near_pairs(hash_distance_stages.simhashes(texts))
connected_components.small_star(connected_components.by_larger_end(connected_components.large_star(connected_components.by_both_ends(pairs))[0]))
print([name for name in ("pandas", "torch", "ray") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[None, 1.0]\n[]\n", "")
