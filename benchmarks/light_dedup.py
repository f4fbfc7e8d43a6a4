"""Figures: the lighter ways of deduplication, JSON lines to JSON lines, over the corpus whose duplicates are known.

    line, paragraph, sentence    units that several documents have are cut out of all but the first of them
    substring                    so are passages of 200 bytes or more
    simhash                      of documents whose hashes are alike the first is kept
    bloom                        documents that were there before are dropped, with one lost in a thousand at most

`mb_per_cpu_s` is the size of the input by the CPU seconds of all processes from start to end; `memory_mb` the most that
all of them had together. `left` is the share of the input, in bytes, that is in the output. Documents of the corpus
have few lines: here each has a new one after every twelfth word, and a new paragraph after every sixtieth.

    python benchmarks/light_dedup.py [DOCUMENTS] [ROUNDS] [--only line,bloom]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from dedup_corpus import dedup_corpus, megabytes
from process_measurement import WORK, measure, show, stable

OUT = WORK / "light"
SAMPLE_S = 0.05
LINE, PARAGRAPH = 12, 60
"""Words to a line, and to a paragraph."""

STAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "line": ("LineDeduplicationStage", {"unit": "line"}),
    "paragraph": ("LineDeduplicationStage", {"unit": "paragraph"}),
    "sentence": ("LineDeduplicationStage", {"unit": "sentence"}),
    "substring": ("SubstringDeduplicationStage", {"min_length": 200}),
    "simhash": ("SimHashDeduplicationStage", {}),
    "bloom": ("BloomDeduplicationStage", {}),
}


def light(rounds: int = 3, documents: int = 20_000, names: Sequence[str] = tuple(STAGES)) -> dict[str, Any]:
    corpus = lined(documents)
    size = megabytes(corpus)
    result: dict[str, Any] = {"documents": documents, "megabytes": round(size)}
    for name in names:
        runs = []
        for _ in range(rounds):
            shutil.rmtree(OUT, ignore_errors=True)
            OUT.mkdir(parents=True)
            command = [sys.executable, __file__, "--job", name, str(corpus / "jsonl"), str(OUT / name)]
            runs.append(measure(command, memory=True, sample_s=SAMPLE_S, log=OUT / f"{name}.log"))
            print(f"  {name}: {runs[-1].cpu:.2f} s of CPU, {runs[-1].together:.0f} MB", flush=True)
        left = sum(path.stat().st_size for path in (OUT / name).glob("*.jsonl")) / 1e6
        result |= {
            f"{name}_mb_per_cpu_s": stable([size / one.cpu for one in runs], 1),
            f"{name}_cpu_s": stable([one.cpu for one in runs]),
            f"{name}_memory_mb": stable([one.together for one in runs], 0),
            f"{name}_left": stable([left / size], 4),
        }
    return result


def lined(documents: int) -> Path:
    """The corpus with lines and paragraphs, made once."""
    source = dedup_corpus(documents)
    folder = source.with_name(f"{source.name}-lined")
    if not folder.exists():
        draft = folder.with_name("draft-lined")
        (draft / "jsonl").mkdir(parents=True, exist_ok=True)
        for path in sorted((source / "jsonl").iterdir()):
            rows = map(orjson.loads, path.read_bytes().splitlines())
            lines = (orjson.dumps({**row, "text": _broken(row["text"])}) + b"\n" for row in rows)
            (draft / "jsonl" / path.name).write_bytes(b"".join(lines))
        draft.rename(folder)
    return folder


def _broken(text: str) -> str:
    words = text.split(" ")
    lines = [" ".join(words[start : start + LINE]) for start in range(0, len(words), LINE)]
    each = PARAGRAPH // LINE
    return "\n\n".join("\n".join(lines[start : start + each]) for start in range(0, len(lines), each))


def job(name: str, folder: str, output: str) -> None:
    """What is measured: one run of one stage."""
    from gristmill import LocalExecutor, Pipeline, dedup
    from gristmill.text import JsonlReader, JsonlWriter

    kind, settings = STAGES[name]
    stages = [JsonlReader(folder), getattr(dedup, kind)(**settings), JsonlWriter(output)]
    Pipeline("measured", stages=stages).run(LocalExecutor(num_workers=2))
    print(json.dumps({}))


def main() -> None:
    if sys.argv[1:2] == ["--job"]:
        job(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("documents", type=int, nargs="?", default=20_000)
    parser.add_argument("rounds", type=int, nargs="?", default=1)
    parser.add_argument("--only", help="names of stages")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else tuple(STAGES)
    show(light(options.rounds, options.documents, names))


if __name__ == "__main__":
    main()
