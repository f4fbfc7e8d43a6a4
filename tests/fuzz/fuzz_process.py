"""One process that reads damaged files of one kind, number after number: `python -m tests.fuzz.fuzz_process`.

Which number it is at stands in a file, so that whoever watches knows which input a crash or a hang belongs to.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import shutil
import sys
import traceback
import warnings
from pathlib import Path

from tests.fuzz.file_mutations import damaged
from tests.fuzz.fuzz_targets import REFUSALS, Target, Wrong, targets

MEMORY_BYTES = 6 * 2**30
"""Of address space: Arrow reserves much that it never uses."""


def input_bytes(target: Target, seed: int, number: int, corpus: list[bytes]) -> bytes:
    return damaged(random.Random(f"{seed} {target.name} {number}"), corpus)


def try_one(target: Target, data: bytes, corpus: list[bytes], folder: Path, home: Path) -> str | None:
    """Read one file. What went wrong, or None."""
    scratch = folder / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    path = scratch / f"a{target.suffix}"
    path.write_bytes(data)
    if (home / "run.tar").exists():
        shutil.copy(home / "run.tar", scratch / "run.tar")
    try:
        read, aside = target.check(path, scratch)
        if target.framed and not aside and any(one.startswith(data) and one != data for one in corpus) and data:
            raise Wrong(f"a file that is cut short was read without a word, {read} records")
    except REFUSALS:
        return None
    except Exception:
        return traceback.format_exc()
    return None


def make_corpus(target: Target, home: Path) -> list[bytes]:
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    return list(target.corpus(home))


def main(name: str, seed: str, first: str, count: str, out: str) -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    target = next(one for one in targets() if one.name == name)
    folder = Path(out) / name
    home = folder / "corpus"
    corpus = make_corpus(target, home)
    for number in range(int(first), int(first) + int(count)):
        (folder / "at").write_text(str(number))
        data = input_bytes(target, int(seed), number, corpus)
        wrong = try_one(target, data, corpus, folder, home)
        if wrong:
            failures = folder / "failures"
            failures.mkdir(exist_ok=True)
            (failures / f"{seed}-{number}{target.suffix}").write_bytes(data)
            (failures / f"{seed}-{number}.txt").write_text(wrong)
    (folder / "at").write_text(str(int(first) + int(count)))


if __name__ == "__main__":
    main(*sys.argv[1:])
