"""Figures: deduplication, JSON lines to JSON lines, beside other systems, over a corpus whose duplicates are known.

    exact     what has the same text; polars beside it, and what others do about it
    fuzzy     what has nearly the same text: by runs of 5 words, from a Jaccard similarity of 0.8 on. `own` has
              the bands that Gristmill chooses, and verifies; `same` has 14 of 8, and does not, as all others
    start     exact duplicates of so few documents that it is mostly starting and ending
    large_exact, large_fuzzy    the same over 200,000 documents, 550 MB
    huge_exact                  exact duplicates of 800,000, 2.2 GB, where starting weighs little
    growth    both over 1, 4 and 16 times as many documents: what each further document costs
    bound     both over 2,000,000 documents, 6 GB, with `memory_gb=0.5`: the most memory of all processes together

CPU seconds are those of all processes from start to end, of what takes less than five of them the median of three runs;
`ratio` is another's over Gristmill's in the same round.
Of near duplicates, recall is the share of pairs of a known similarity of which one is removed, of those that are like
no third document; precision is the share of removed documents that have another one like them, from a similarity of
0.8, 0.7 or 0.5 on. Of exact ones, recall is the share of surplus copies that are removed, and precision the share of
removed documents of whose text a copy is left.
NeMo Curator's deduplication needs GPUs, so it is not among them. A system that fails is named, and left out.

    python benchmarks/dedup_systems.py start | exact | fuzzy | large_exact | ... [DOCUMENTS] [ROUNDS] [--systems all]
    python benchmarks/dedup_systems.py growth | bound [DOCUMENTS] [ROUNDS]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from dedup_corpus import PAIR, dedup_corpus, many_times, megabytes
from peers.install import interpreter
from process_measurement import HERE, WORK, Measured, measure, short_message, show, stable

OUT = WORK / "dedup"
SAME_BANDS = {"num_bands": 14, "minhashes_per_band": 8, "verify": "none"}
TENTHS = (0.5, 0.6, 0.7, 0.8, 0.9)
LEVELS = (0.8, 0.7, 0.5)
SAMPLE_S, SHORT_S = 0.05, 5.0
TURNS = 3
"""How often a round runs what is short."""

_ID = re.compile(rb'"id": ?"(doc-\d{9})"')


@dataclass(frozen=True)
class System:
    """One that is measured: a job of its own interpreter, or Gristmill with some arguments of its stage."""

    name: str
    peer: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

    def command(self, kind: str, folder: Path, output: Path) -> list[str]:
        if self.peer is None:
            job = [sys.executable, HERE / "peers" / "gristmill_jobs.py", kind]
            return [*map(str, job), str(folder), str(output), json.dumps(self.arguments)]
        job = [interpreter(self.peer), HERE / "peers" / "dedup_jobs.py", f"{self.name}_{kind}"]
        return [*map(str, job), str(folder), str(output)]


WORDS = {"word_ngrams": 5, "threshold": 0.8}
EXACT = (
    System("own"),
    System("polars", "polars"),
    System("polars_any", "polars"),
    System("text_dedup", "text-dedup"),
    System("dolma", "dolma"),
    System("datatrove", "datatrove"),
    System("data_juicer", "py-data-juicer"),
)
FUZZY = (
    System("own", arguments=WORDS),
    System("same", arguments={**WORDS, **SAME_BANDS}),
    System("rensa", "rensa"),
    System("text_dedup", "text-dedup"),
    System("data_juicer", "py-data-juicer"),
    System("datatrove", "datatrove"),
)


def exact(rounds: int = 3, documents: int = 50_000, systems: Sequence[str] = ("all",)) -> dict[str, Any]:
    return _side_by_side("exact", rounds, documents, chosen(EXACT, systems))


def fuzzy(rounds: int = 3, documents: int = 50_000, systems: Sequence[str] = ("all",)) -> dict[str, Any]:
    return _side_by_side("fuzzy", rounds, documents, chosen(FUZZY, systems))


def large_exact(rounds: int = 3, documents: int = 200_000, systems: Sequence[str] = ("all",)) -> dict[str, Any]:
    return exact(rounds, documents, systems)


def huge_exact(rounds: int = 3, documents: int = 800_000, systems: Sequence[str] = ("all",)) -> dict[str, Any]:
    return exact(rounds, documents, systems)


def large_fuzzy(rounds: int = 3, documents: int = 200_000, systems: Sequence[str] = ("all",)) -> dict[str, Any]:
    return fuzzy(rounds, documents, systems)


def start(rounds: int = 3, documents: int = 400, systems: Sequence[str] = ("all",)) -> dict[str, Any]:
    return exact(rounds, documents, systems)


def chosen(known: Sequence[System], names: Sequence[str]) -> list[System]:
    """Those that are named, or all; and always Gristmill, since the others' figures are given over its own."""
    return [one for one in known if one.name == "own" or one.name in names or "all" in names]


def peers_of(names: Sequence[str]) -> list[str]:
    """What must be installed for these systems, or all."""
    return list(dict.fromkeys(one.peer for one in chosen((*EXACT, *FUZZY), names) if one.peer))


def _side_by_side(kind: str, rounds: int, documents: int, systems: Sequence[System]) -> dict[str, Any]:
    corpus = dedup_corpus(documents)
    found: dict[str, list[Measured]] = {}
    left: dict[str, set[str]] = {}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        for system in systems:
            if system.name in failed:
                continue
            try:
                found.setdefault(system.name, []).append(run(system, kind, corpus))
                left[system.name] = kept(OUT / system.name)
            except (OSError, RuntimeError) as error:  # cannot be installed, or did not end well
                if system.name == "own":  # which the others' figures are given over
                    raise
                failed[system.name] = short_message(error)
                found.pop(system.name, None)
                print(f"  {system.name} failed: {error}", flush=True)
    result: dict[str, Any] = {"documents": documents, "megabytes": round(megabytes(corpus))}
    for name, runs in found.items():
        result |= _figures(name, runs, found["own"], megabytes(corpus))
        judged = judge_exact(corpus, left[name]) if kind == "exact" else judge(corpus, left[name])
        result |= {f"{name}_{what}": value for what, value in judged.items()}
        if kind == "exact" and name != "own":
            result[f"{name}_as_own"] = left[name] == left["own"]
    return result | ({"failed": [f"{name}: {why}" for name, why in failed.items()]} if failed else {})


def run(system: System, kind: str, corpus: Path, **more: Any) -> Measured:
    """One run of one system; if it is short, the middle one of some, since single ones vary with the state of the
    machine's memory. What it wrote stays until its next one."""
    runs = [_run(system, kind, corpus, **more)]
    if runs[0].cpu < SHORT_S:
        runs += [_run(system, kind, corpus, **more) for _ in range(TURNS - 1)]
    return sorted(runs, key=lambda one: one.cpu)[len(runs) // 2]


def _run(system: System, kind: str, corpus: Path, **more: Any) -> Measured:
    output = OUT / system.name
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = system.command(kind, corpus / "jsonl", output)
    read_once(corpus / "jsonl")
    env = {name: value for name, value in os.environ.items() if system.peer is None or name != "PYTHONPATH"}
    env |= dict.fromkeys(("HF_HOME", "DATA_JUICER_CACHE_HOME"), str(output / "cache"))  # empty in each round
    env |= dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "UV_OFFLINE", "PIP_NO_INDEX"), "1")  # no downloads
    done = measure(command, memory=True, sample_s=SAMPLE_S, env=env, log=OUT / f"{system.name}.log", **more)
    print(f"  {system.name}: {done.cpu:.2f} s of CPU, {done.wall:.2f} s, {done.together:.0f} MB", flush=True)
    return done


def read_once(folder: Path) -> None:
    """Have files in the machine's cache: else the system that is measured first would pay for reading the disk."""
    room = bytearray(2**22)
    for path in folder.iterdir():
        with open(path, "rb", buffering=0) as file:
            while file.readinto(room):
                pass


def _figures(name: str, runs: list[Measured], own: list[Measured], size: float) -> dict[str, Any]:
    found = {
        f"{name}_cpu_s": stable([one.cpu for one in runs]),
        f"{name}_wall_s": stable([one.wall for one in runs]),
        f"{name}_mb_per_cpu_s": stable([size / one.cpu for one in runs], 1),
        f"{name}_memory_mb": stable([one.together for one in runs], 0),
    }
    if name != "own":
        found[f"{name}_cpu_ratio"] = stable([one.cpu / mine.cpu for one, mine in zip(runs, own, strict=True)])
        found[f"{name}_own_cpu_s"] = stable([mine.cpu for mine in own])  # stays with it, if only some are measured anew
    return found


# -- what was found ------------------------------------------------------------------------------------------


def kept(output: Path) -> set[str]:
    """The ids of the documents in a folder, whatever files they are in."""
    folder = output / "kept" if (output / "kept").exists() else output
    found: list[str] = []
    for path in folder.iterdir():
        if path.suffix == ".jsonl":
            found += (name.decode() for name in _ID.findall(path.read_bytes()))
        elif path.suffix == ".arrow":
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                found += stream.read_all()["id"].to_pylist()
    if len(set(found)) != len(found) or not found:
        raise RuntimeError(f"{output} has {len(found)} documents, {len(set(found))} of them different")
    return set(found)


@lru_cache(1)
def texts(corpus: Path) -> dict[str, bytes]:
    """What tells the text of each document from all others, by its id."""
    records = (orjson.loads(line) for path in (corpus / "jsonl").iterdir() for line in path.open("rb"))
    return {record["id"]: hashlib.sha256(record["text"].encode()).digest() for record in records}


def judge_exact(corpus: Path, left: set[str]) -> dict[str, Any]:
    """How many documents are left, and whether of each text one copy is."""
    known = texts(corpus)
    distinct, kept_texts = len(set(known.values())), len({known[name] for name in left})
    surplus, removed = len(known) - distinct, len(known) - len(left)
    rightly = removed - (distinct - kept_texts)
    return {
        "left": len(left),
        "recall": stable([rightly / max(surplus, 1)], 4),
        "precision": stable([rightly / max(removed, 1)], 4),
    }


def judge(corpus: Path, left: set[str]) -> dict[str, Any]:
    """How many documents are left, how many of the known duplicates were found, and how many others removed."""
    truth = pq.read_table(corpus / "truth.parquet")
    u, v = (np.array(truth[name].to_pylist()) for name in ("u", "v"))
    similar = truth["words"].to_numpy()
    removed = set(pq.read_table(corpus / "documents.parquet")["id"].to_pylist()) - left
    result: dict[str, Any] = {"left": len(left)}
    alone = np.array(truth["kind"]) == PAIR
    caught = np.array([not (a in left and b in left) for a, b in zip(u, v, strict=True)])
    for low in TENTHS:
        here = alone & (similar >= low) & (similar < low + 0.1 + (low == TENTHS[-1]))
        result[f"recall_{low}"] = stable([caught[here].mean()], 4)
    for least in LEVELS:
        pairs = similar >= least
        like_another = {*u[pairs].tolist(), *v[pairs].tolist()}
        result[f"precision_{least}"] = stable([len(removed & like_another) / max(len(removed), 1)], 4)
    return result


# -- Gristmill alone -----------------------------------------------------------------------------------------


def growth(rounds: int = 3, documents: int = 12_500) -> dict[str, Any]:
    """What a further document costs, from 4 to 16 times as many, over what it costs from 1 to 4 times.

    Starting, which varies as much as small corpora cost, falls out of both.
    """
    result: dict[str, Any] = {"documents": documents}
    for kind, system in (("exact", EXACT[0]), ("fuzzy", FUZZY[0])):
        seconds: dict[int, list[float]] = {}
        for _ in range(rounds):
            for times in (1, 4, 16):
                seconds.setdefault(times, []).append(run(system, kind, dedup_corpus(times * documents)).cpu)
        result |= {f"{kind}_{times}x_cpu_s": stable(found) for times, found in seconds.items()}
        slopes = [
            [
                1e6 * (more - less) / ((high - low) * documents)
                for more, less in zip(seconds[high], seconds[low], strict=True)
            ]
            for low, high in ((1, 4), (4, 16))
        ]
        result[f"{kind}_early_us"], result[f"{kind}_late_us"] = (stable(found, 1) for found in slopes)
        result[f"{kind}_growth"] = stable([late / early for early, late in zip(*slopes, strict=True)])
    return result


def bound(rounds: int = 1, documents: int = 2_000_000, memory_gb: float = 0.5) -> dict[str, Any]:
    corpus = many_times(documents // 10, 10)
    result: dict[str, Any] = {"documents": documents, "megabytes": round(megabytes(corpus)), "memory_gb": memory_gb}
    for kind, system in (("exact", EXACT[0]), ("fuzzy", FUZZY[0])):
        bounded = System("own", arguments={**system.arguments, "memory_gb": memory_gb})
        runs = [run(bounded, kind, corpus) for _ in range(rounds)]
        result[f"{kind}_memory_mb"] = stable([one.together for one in runs], 0)
        result[f"{kind}_worker_mb"] = stable([one.peak("worker") for one in runs], 0)
        result[f"{kind}_mb_per_cpu_s"] = stable([megabytes(corpus) / one.cpu for one in runs], 1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    many = ("large_exact", "large_fuzzy", "huge_exact")
    parser.add_argument("figure", choices=("exact", "fuzzy", "start", *many, "growth", "bound"))
    parser.add_argument("documents", type=int, nargs="?")
    parser.add_argument("rounds", type=int, nargs="?", default=1)
    parser.add_argument("--systems", help="names of those beside Gristmill, or all")
    options = parser.parse_args()
    more: dict[str, Any] = {"documents": options.documents} if options.documents else {}
    if options.systems:
        more["systems"] = options.systems.split(",")
    show(globals()[options.figure](options.rounds, **more))


if __name__ == "__main__":
    main()
