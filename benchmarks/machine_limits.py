"""Limits: what one core of this machine can do with the same bytes, with nothing around it.

Megabytes per CPU second, the best of some turns, for each step that every curation system has to take: copying bytes
(into memory that is there already, and into new memory), finding lines, hashing, decompressing, parsing and writing
JSON, reading and writing Parquet; for the signatures of near duplicates and six modifiers, called over a column of
texts; for the language of texts by the library of fastText and by Gristmill's kernel, which remembers words, so also
over texts with new words; and of the disk, by the clock. Megabytes are those of the JSON lines, whatever of them is
looked at. The tables put Gristmill's own figures beside them: what is left between the two is what Gristmill itself
costs.

    python benchmarks/machine_limits.py [MEGABYTES]
"""

from __future__ import annotations

import gzip
import io
import os
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import xxhash
from corpus import corpus
from peer_comparison import SIX
from process_measurement import WORK, show, stable

import gristmill.text
from gristmill import _kernels
from gristmill.dedup.signatures.minhash import Shingling, signatures
from gristmill.models.fasttext_model import FastTextModel

TURNS = 3
Step = Callable[[], object]


def run(rounds: int = 1, megabytes: int = 50) -> dict[str, Any]:
    path = corpus(megabytes * 10**6)[0]
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, (size, step) in _steps(path.read_bytes()).items():
            found.setdefault(f"{name}_mb_per_cpu_s", []).append(size / 1e6 / _best(step))
        found.setdefault("read_mb_per_cpu_s", []).append(path.stat().st_size / 1e6 / _best(lambda: _read(str(path))))
        for name, speed in _disk(path).items():
            found.setdefault(name, []).append(speed)
    return {"megabytes": megabytes} | {name: stable(values, 1) for name, values in sorted(found.items())}


def _steps(data: bytes) -> dict[str, tuple[int, Step]]:
    """What is measured, and the bytes that go in."""
    lines = data.splitlines()
    rows = [orjson.loads(line) for line in lines]
    texts = pa.array([row["text"] for row in rows], pa.large_string())
    packed = gzip.compress(data, 6)
    zstd = pa.compress(data, codec="zstd", asbytes=True)
    table = pa.Table.from_pylist(rows)
    parquet = io.BytesIO()
    pq.write_table(table, parquet, compression="zstd")
    size, few = len(data), len(lines) // 10  # a library that takes long sees a tenth
    here, there = np.frombuffer(data, np.uint8), np.zeros(size, np.uint8)
    return {
        "memory": (size, lambda: np.copyto(there, here)),
        "copy": (size, lambda: bytearray(data)),
        "find_lines": (size, lambda: data.count(b"\n")),
        "split_lines": (size, data.splitlines),
        "hash128": (size, lambda: _kernels.hash128(texts, 0)),
        "xxh128": (size, lambda: xxhash.xxh3_128(data).digest()),
        "gunzip": (size, lambda: gzip.decompress(packed)),
        "unzstd": (size, lambda: pa.decompress(zstd, size, codec="zstd")),
        "orjson_parse": (size, lambda: [orjson.loads(line) for line in lines]),
        "orjson_write": (size, lambda: [orjson.dumps(row) for row in rows]),
        "arrow_parse": (size, lambda: pyarrow.json.read_json(io.BytesIO(data), pa.json.ReadOptions(use_threads=False))),
        "own_parse": (size, lambda: _kernels.json_columns(data)),
        "parquet_read": (size, lambda: pq.read_table(io.BytesIO(parquet.getvalue()), use_threads=False)),
        "signatures": (size, lambda: signatures(texts, Shingling("words", 5), 29 * 8)),
        "modifiers": (size, lambda: _modified(texts.cast(pa.string()))),
        "fasttext": (sum(map(len, lines[:few])), _languages(texts[:few])),
        "language": (size, _own_languages(texts)),
        "language_new": (size, _own_languages(_new_words(texts))),
        "parquet_write": (size, lambda: pq.write_table(table, io.BytesIO(), compression="zstd")),
    }


def _languages(texts: pa.Array) -> Step:
    """The library alone: a line for each text, and its best label."""
    import fasttext

    model = fasttext.load_model(str(FastTextModel(None, "limits").file()))
    lines = [text.replace("\n", " ") for text in texts.to_pylist()]
    return lambda: [model.predict(line) for line in lines]


def _own_languages(texts: pa.Array) -> Step:
    found = gristmill.text.FastTextLangId(min_langid_score=0.0)
    found.setup()
    return lambda: found.score_batch(texts)


def _new_words(texts: pa.Array) -> pa.Array:
    """Texts whose words have their letters in another order, each time another: few of them come again."""
    draw = random.Random(1)

    def shuffled(word: re.Match[str]) -> str:
        return "".join(draw.sample(word[0], len(word[0])))

    return pa.array([re.sub(r"\w{4,}", shuffled, text) for text in texts.to_pylist()], texts.type)


def _modified(texts: pa.Array) -> pa.Array:
    for name, arguments in SIX:
        texts = getattr(gristmill.text, name)(**arguments).modify_batch(texts)
    return texts


def _read(path: str) -> None:
    buffer = bytearray(2**20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _disk(path: Path) -> dict[str, float]:
    """Megabytes per second by the clock: writing until the disk has it, and reading what the cache has let go of."""
    data, copy = path.read_bytes(), WORK / "disk"
    written, read = [], []
    for _ in range(TURNS):
        with copy.open("wb", buffering=0) as file:
            began = time.perf_counter()
            file.write(data)
            os.fsync(file)
            written.append(time.perf_counter() - began)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        _read(str(copy))
        read.append(time.perf_counter() - began)
    copy.unlink()
    size = len(data) / 1e6
    return {"disk_write_mb_per_s": size / min(written), "disk_read_mb_per_s": size / min(read)}


def _best(step: Step) -> float:
    seconds = []
    for _ in range(TURNS):
        began = time.process_time()
        step()
        seconds.append(time.process_time() - began)
    return max(min(seconds), 1e-6)


if __name__ == "__main__":
    show(run(1, *map(int, sys.argv[1:])))
