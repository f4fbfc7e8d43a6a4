"""What deduplication loads."""

from __future__ import annotations

import subprocess
import sys


def test_pandas_is_not_loaded() -> None:
    code = """
import sys
import pyarrow as pa
from gristmill.core.columns import make_array
from gristmill.dedup import bloom, components, digest, keep, lines, lsh, minhash, normalise, quality, simhash, substring

texts = make_array(["a b c é", "", None, "x y z " * 20, "x y z " * 20], pa.string())
digest.hash_columns([texts, texts])
normalise.Normalisation().apply(texts)
signed = minhash.signatures(texts)
rows = lsh.band_rows(make_array([1, 2, 3, 4, 5], pa.int64()), signed, 20, 13)
pairs = lsh.bucket_pairs(rows["key"], rows["id"])
clusters = components.components(pairs["u"], pairs["v"])
pairs = pairs.append_column("similarity", minhash.similarity(signed[3:4], signed[4:5]))
print(keep.choose_kept(clusters, pairs)["similarity"].to_pylist())
quality.measure(texts, 0.8, 20, 13)
bloom.BloomFilter(10).add(texts)
pieces = lines.cut(texts)
pieces.without(lines.repeated(pieces.keys()))
substring.without_spans(texts, substring.repeated_spans(texts, 10))
simhash.near_pairs(simhash.simhashes(texts))
components.small_star(components.by_larger_end(components.large_star(components.by_both_ends(pairs))[0]))
print([name for name in ("pandas", "torch", "ray") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[None, 1.0]\n[]\n", "")
