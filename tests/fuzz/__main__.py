"""Fuzz all readers and the kernels, and go on where the last time stopped: `make fuzz`.

    make fuzz                         a quarter of an hour
    make fuzz MINUTES=60              longer
    make fuzz INPUTS=1000             so many inputs of each kind, however long it takes
    python -m tests.fuzz --replay parquet 1234 [--seed N]     one input again
    python -m tests.fuzz --only csv jsonl                     some kinds only

Progress and the inputs that failed, with what was said, are in `out/fuzz`. Exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.fuzz_process import input_bytes, make_corpus, try_one
from tests.fuzz.fuzz_targets import targets
from tests.fuzz.sanitized_kernels import build_kernels, run_kernels

HANG_SECONDS = 60
BLOCK = 200
"""Inputs of one kind in a row. A process reads one block."""

KERNELS = "kernels"


def load_progress(path: Path, seed: int | None) -> dict[str, Any]:
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if seed in (None, found["seed"]):
            return found
    return {"seed": random.randrange(2**31) if seed is None else seed, "done": {}}


def read_block(name: str, seed: int, first: int, count: int, out: Path) -> int:
    """Let a process read some inputs, and start another one after an input that ends it. How many inputs failed."""
    folder, end = out / name, first + count
    folder.mkdir(parents=True, exist_ok=True)
    before = failures_of(folder)
    while first < end:
        (folder / "at").write_text(str(first))
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.fuzz_process",
            name,
            str(seed),
            str(first),
            str(end - first),
            str(out),
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            said = watch(process, folder / "at")
        first = int((folder / "at").read_text() or first)
        if said is None:
            break
        (folder / "failures").mkdir(exist_ok=True)
        (folder / "failures" / f"{seed}-{first}.txt").write_text(said)
        first += 1
    return failures_of(folder) - before


def failures_of(folder: Path) -> int:
    return len(list((folder / "failures").glob("*.txt")))


def watch(process: subprocess.Popen[str], at: Path) -> str | None:
    """Wait for a process that must go on from input to input. Why it ended early, or None."""
    last, since = "", time.monotonic()
    while True:
        try:
            said = process.communicate(timeout=2)[1]
        except subprocess.TimeoutExpired:
            now = at.read_text()
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > HANG_SECONDS:
                process.kill()
                return f"a hang of more than {HANG_SECONDS} s"
            continue
        return None if process.returncode == 0 else f"exit code {process.returncode}\n{said[-5000:]}"


def replay(name: str, number: int, seed: int, out: Path) -> int:
    target = next(one for one in targets() if one.name == name)
    home = out / name / "corpus"
    corpus = make_corpus(target, home)
    data = input_bytes(target, seed, number, corpus)
    path = out / name / f"replayed{target.suffix}"
    path.write_bytes(data)
    wrong = try_one(target, data, corpus, out / name, home)
    print(f"{path}: {len(data):,} bytes\n{wrong or 'nothing is wrong'}")
    return 1 if wrong else 0


def fuzz(minutes: float, inputs: int | None, only: list[str], progress: dict[str, Any], out: Path) -> int:
    seed, done, failed = progress["seed"], progress["done"], 0
    names = [name for name in [*(one.name for one in targets()), KERNELS] if not only or name in only]
    print(f"seed {seed}; progress and failures in {out}", flush=True)
    extension = build_kernels(out) if KERNELS in names else None
    ends = time.monotonic() + 60 * minutes
    begun = dict(done)
    while names and (inputs is not None or time.monotonic() < ends):
        for name in list(names):
            first = done.get(name, 0)
            left = BLOCK if inputs is None else min(BLOCK, begun.get(name, 0) + inputs - first)
            if left <= 0:
                names.remove(name)
                continue
            if name == KERNELS:
                assert extension
                left, bad = run_kernels(extension, 10.0, seed + first, out / KERNELS)
            else:
                bad = read_block(name, seed, first, left, out)
            failed += bad
            done[name] = first + left
            (out / "progress.json").write_text(json.dumps(progress, indent=1))
            if inputs is None and time.monotonic() > ends:
                break
    for name, count in sorted(done.items()):
        print(f"{name:12} {count - begun.get(name, 0):8,} inputs now, {count:10,} in all")
    print(f"{failed} failed" + (f": see {out}/*/failures" if failed else ""))
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--replay", nargs=2, metavar=("KIND", "NUMBER"))
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    progress = load_progress(given.out / "progress.json", given.seed)
    if given.replay:
        return replay(given.replay[0], int(given.replay[1]), progress["seed"], given.out)
    return fuzz(given.minutes, given.inputs, given.only, progress, given.out)


if __name__ == "__main__":
    sys.exit(main())
