"""Figures: semantic deduplication of embeddings, from Parquet to a table of rows to drop, against brute force.

    semantic   200,000 embeddings of 512 dimensions, at eps=0.05: which rows are dropped, held against a comparison of
               all rows with all (F1), and CPU seconds from start to end
    flat       all rows against all by a flat index of faiss (`range_search`): the CPU seconds of its search alone, of
               2,000 rows, times as many as there are
    blas       each row against all before it in rank, as products of matrices of float32, from start to end: half of
               the comparisons of `flat`. It says which rows are to be dropped; measured once for a corpus

Embeddings are made so that they look like those of a model: 64 directions that matter and some noise in all, topics of
many sizes, and areas of some topics. Rows have a cosine similarity of about 0.75 within a topic, 0.55 within an area
and 0.35 otherwise. A quarter of the rows are copies of others, changed by a cosine distance
between 0.002 and 0.12: as many just within eps as just beyond it.

    python benchmarks/semantic_dedup.py [ROWS] [ROUNDS]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from process_measurement import WORK, measure, show, stable

DIM, LATENT, EPS = 512, 64, 0.05
FILE_ROWS = 20_000
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SAMPLE_S = 0.1
FLAT_ROWS = 2_000
"""Of all rows, that are looked up in the flat index."""


def corpus(rows: int) -> Path:
    """Files of embeddings, made once."""
    folder = WORK / f"embeddings-{rows}"
    if folder.with_suffix(".done").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    matrix = embeddings(rows)
    scores = np.random.default_rng(2).permutation(rows).astype(np.float64)
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        part = matrix[start : start + FILE_ROWS]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), DIM)
        names = pa.array([f"row-{row:09}" for row in range(start, start + len(part))])
        table = pa.table({"id": names, "score": scores[start : start + len(part)], "embedding": lists})
        pq.write_table(table, folder / f"{number:03}.parquet", compression="none", use_dictionary=False)
    folder.with_suffix(".done").touch()
    return folder


def embeddings(rows: int, seed: int = 1) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    originals = rows * 3 // 4
    spectrum = np.arange(1, LATENT + 1) ** -0.25
    topics = max(originals // 300, 4)
    shares = rng.pareto(1.2, topics) + 0.1
    of = rng.choice(topics, originals, p=shares / shares.sum())
    area = rng.integers(max(topics // 10, 2), size=topics)

    def drawn(count: int) -> Any:
        return unit(rng.normal(size=(count, LATENT)) * spectrum)

    latent = 0.6 * drawn(1) + 0.45 * drawn(area.max() + 1)[area[of]] + 0.45 * drawn(topics)[of] + 0.5 * drawn(originals)
    basis = np.linalg.qr(rng.normal(size=(DIM, LATENT)))[0].T
    found = latent @ basis + 0.15 * unit(rng.normal(size=(originals, DIM)))
    found = unit(found)
    source = rng.integers(originals, size=rows - originals)
    source[: len(source) // 3] = source[rng.integers(len(source) // 10, size=len(source) // 3)]  # some have many copies
    copies = changed(found[source], rng.uniform(0.002, 0.12, len(source)), basis, spectrum, rng)
    return rng.permutation(np.concatenate([found, copies])).astype(np.float32)


def changed(rows: Any, distance: Any, basis: Any, spectrum: Any, rng: Any) -> Any:
    """Rows at a cosine distance from others, in directions of which half is where rows differ as a rule."""
    noise = unit((rng.normal(size=(len(rows), LATENT)) * spectrum) @ basis) + unit(rng.normal(size=rows.shape))
    noise -= np.einsum("ij,ij->i", noise, rows)[:, None] * rows
    cosine = (1 - distance)[:, None]
    return cosine * rows + np.sqrt(1 - cosine**2) * unit(noise)


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# -- jobs: each in a process of its own ----------------------------------------------------------------------


def own(folder: str, output: str, arguments: str) -> None:
    from gristmill.dedup import RankingStrategy, SemanticDeduplicationWorkflow

    workflow = SemanticDeduplicationWorkflow(
        folder,
        output,
        embedding_field="embedding",
        eps=EPS,
        ranking_strategy=RankingStrategy(["score"]),
        perform_removal=False,
        **json.loads(arguments),
    )
    summary = workflow.run().run.summary()
    print(json.dumps({name: value for stage in summary.stages for name, value in stage.counts.items()}))


def brute(folder: str, output: str) -> None:
    rows, names = _ranked(folder)
    least, kept, block = 1 - EPS, np.ones(len(rows), np.bool_), 1024
    for start in range(0, len(rows), block):
        mine = rows[start : start + block]
        near: list[tuple[Any, Any]] = []
        for before in range(0, start + len(mine), 4096):
            others = rows[before : min(before + 4096, start + len(mine))]
            found = mine @ others.T
            if found.max() >= least:
                v, u = np.nonzero(found >= least)
                near.append((v + start, u + before))
        v, u = (np.concatenate(part) for part in zip(*near, strict=True))
        v, u = v[u < v], u[u < v]
        order = np.argsort(v, kind="stable")
        for one, other in zip(v[order].tolist(), u[order].tolist(), strict=True):
            if kept[other]:
                kept[one] = False
    Path(output).write_text(json.dumps(names[~kept].tolist()))


def flat(folder: str) -> None:
    import faiss

    rows, _ = _ranked(folder)
    index = faiss.IndexFlatIP(DIM)
    index.add(rows)
    began = time.process_time()
    index.range_search(rows[:FLAT_ROWS], 1 - EPS)
    print(json.dumps((time.process_time() - began) * len(rows) / FLAT_ROWS))


def _ranked(folder: str) -> tuple[Any, Any]:
    table = pq.read_table(folder, columns=["id", "score", "embedding"]).sort_by("score").combine_chunks()
    column = table["embedding"].combine_chunks()
    return unit(column.flatten().to_numpy().reshape(-1, DIM)).astype(np.float32), np.array(table["id"].to_pylist())


# -- figures -------------------------------------------------------------------------------------------------


def run(rounds: int = 1, rows: int = 200_000, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    folder = corpus(rows)
    truth = WORK / f"embeddings-{rows}.json"
    output = WORK / "semantic-out"
    single = {**os.environ, **dict.fromkeys(ONE_THREAD, "1")}
    mine, theirs, flats, counts = [], [], [], {}
    for _ in range(rounds):
        theirs.append(_brute_seconds(folder, truth, single))
        shutil.rmtree(output, ignore_errors=True)
        mine.append(measure(_job("own", folder, output, json.dumps(arguments or {})), memory=True, sample_s=SAMPLE_S))
        counts = mine[-1].answer
        flats.append(measure(_job("flat", folder), env=single).answer)
    return {
        "rows": rows,
        "dimensions": DIM,
        "eps": EPS,
        **_agreement(output, truth),
        "estimated_recall": counts["estimated_recall"],
        "clusters": counts["n_clusters"],
        "sent_to_others": round(counts["rows_sent_to_other_clusters"] / rows, 3),
        "megabytes": round(rows * DIM * 4 / 1e6),
        "cpu_s": stable([one.cpu for one in mine]),
        "wall_s": stable([one.wall for one in mine]),
        "memory_mb": stable([one.together for one in mine], 0),
        "brute_cpu_s": stable(flats),
        "brute_cpu_ratio": stable([flat / own.cpu for flat, own in zip(flats, mine, strict=True)], 1),
        "blas_cpu_s": stable(theirs),
        "blas_cpu_ratio": stable([blas / own.cpu for blas, own in zip(theirs, mine, strict=True)], 1),
    }


def _brute_seconds(folder: Path, truth: Path, env: dict[str, str]) -> float:
    """CPU seconds of brute force, which is the same in every run: it is measured once."""
    noted = truth.with_suffix(".seconds")
    if not noted.exists():
        noted.write_text(str(measure(_job("brute", folder, truth), env=env).cpu))
    return float(noted.read_text())


def _agreement(output: Path, truth: Path) -> dict[str, Any]:
    """Which rows were dropped, by both."""
    found = pq.read_table(output / "clusters", columns=["id", "kept"]).to_pylist()
    dropped = {row["id"] for row in found if not row["kept"]}
    wanted = set(json.loads(truth.read_text()))
    both = len(dropped & wanted)
    precision, recall = both / max(len(dropped), 1), both / max(len(wanted), 1)
    return {
        "dropped": len(dropped),
        "brute_dropped": len(wanted),
        "precision": round(precision, 5),
        "recall": round(recall, 5),
        "f1": round(2 * precision * recall / max(precision + recall, 1e-9), 5),
    }


def _job(name: str, *arguments: object) -> list[str]:
    return [sys.executable, __file__, name, *map(str, arguments)]


JOBS = {"own": own, "brute": brute, "flat": flat}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in JOBS:
        JOBS[sys.argv[1]](*sys.argv[2:])
    else:
        given = sys.argv[1:]
        extra = json.loads(given[2]) if len(given) > 2 else {}
        show(run(int(given[1]) if len(given) > 1 else 1, int(given[0]) if given else 200_000, extra))
