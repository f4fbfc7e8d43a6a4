"""The soak: random scenarios with random faults, one after another, until the time is up. `make soak` runs it;
`make soak EXECUTOR=ray` does it on a Ray cluster of two nodes, with the three executors in turn (`ray_ordeals.py`).

Each scenario is drawn from a seed of its own, which is printed. `--seed N --minutes 0` does that one again; what
the clock of the machine adds to it, it cannot do again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.promises.fault_corpus import Corpus, make_corpus
from tests.promises.fault_injection import ENDING, PASSING
from tests.promises.fault_pipeline import WRITERS, Mill
from tests.promises.fault_scenarios import Ordeal, Reference, Tally, draw_faults, undisturbed

CORPORA = 6
WEIGHTS = {
    "driver": 5,
    "everything": 3,
    "terminate": 1,
    "interrupt": 1,
    "zygote": 1,
    "worker": 5,
    "workers": 2,
    "hail": 1,
    "pause": 2,
}
assert WEIGHTS.keys() == ENDING.keys() | PASSING.keys()


@dataclass
class Shelf:
    """Corpora and what undisturbed runs make of them, each made when it is first needed."""

    folder: Path
    corpora: dict[int, Corpus] = field(default_factory=dict)
    references: dict[tuple[int, str, int], Reference] = field(default_factory=dict)

    def corpus(self, seed: int) -> Corpus:
        if seed not in self.corpora:
            self.corpora[seed] = make_corpus(self.folder / f"in {seed}", seed, rows=500 * (seed + 1))
        return self.corpora[seed]

    def reference(self, seed: int, writer: str, poison: int) -> Reference:
        key = seed, writer, poison
        if key not in self.references:
            mill = Mill(str(self.corpus(seed).folder), "", "", writer, nap=0.001 / (seed + 1), poison=poison)
            self.references[key] = undisturbed(mill, self.folder / f"reference {seed} {writer} {poison}")
        return self.references[key]


def one_run(rng: random.Random, shelf: Shelf, folder: Path, poison: int = 0, retries: int = 30) -> list[Ordeal]:
    """A run that suffers one to six faults."""
    seed, writer = rng.randrange(CORPORA), rng.choice(list(WRITERS))
    corpus, reference = shelf.corpus(seed), shelf.reference(seed, writer, poison)
    mill = Mill(
        str(corpus.folder),
        "",
        "",
        writer,
        workers=rng.choice([1, 2, 3]),
        blocksize=rng.choice([3000, 8000, 50_000]),
        nap=0.001 / (seed + 1),
        flush=rng.choice([0.0, 0.1, 1.0]),
        retries=retries,
        command=rng.random() < 0.3,
        poison=poison,
    )
    weights = {kind: weight for kind, weight in WEIGHTS.items() if PASSING.get(kind, 0) <= retries}
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.randint(1, 6))
    faults = draw_faults(rng, kinds, reference.seconds)
    return [Ordeal(corpus, reference, mill, folder, faults, rng.randrange(2**32))]


def two_runs(rng: random.Random, shelf: Shelf, folder: Path) -> list[Ordeal]:
    """Two runs at the same time, each with faults of its own."""
    return [*one_run(rng, shelf, folder / "one"), *one_run(rng, shelf, folder / "two")]


def poisoned_run(rng: random.Random, shelf: Shelf, folder: Path) -> list[Ordeal]:
    """A run with records that raise or end their worker, which suffers faults all the same."""
    return one_run(rng, shelf, folder, poison=rng.choice([60, 200]), retries=6)


Scenarios = dict[Callable[[random.Random, Shelf, Path], list[Ordeal]], int]
SCENARIOS: Scenarios = {one_run: 3, two_runs: 1, poisoned_run: 2}
"""Ways to draw ordeals from a seed, and how often each comes."""


def soak(minutes: float, seed: int, folder: Path, scenarios: Scenarios) -> Tally:
    """Run scenarios until the time is up or something is wrong; always one."""
    began = time.monotonic()
    shelf, total = Shelf(folder), Tally()
    while not total.seconds or (time.monotonic() - began < 60 * minutes and not total.violated):
        total.add(scenario(seed, shelf, folder / f"scenario {seed}", scenarios))
        seed += 1
    total.seconds = time.monotonic() - began
    return total


def scenario(seed: int, shelf: Shelf, folder: Path, scenarios: Scenarios) -> Tally:
    rng = random.Random(seed)
    draw = rng.choices(list(scenarios), list(scenarios.values()))[0]
    ordeals = draw(rng, shelf, folder)
    with ThreadPoolExecutor(len(ordeals)) as threads:
        tallies = list(threads.map(Ordeal.run, ordeals))
    tally = Tally()
    for each in tallies:
        tally.add(each)
    faults = "; ".join(", ".join(ordeal.history) for ordeal in ordeals)
    verdict = "VIOLATED" if tally.violated else "ok"
    print(f"seed {seed}  {draw.__name__}  {tally.runs} runs  {tally.seconds:.1f} s  {verdict}  {faults}", flush=True)
    if tally.violated:
        print(*tally.problems, sep="\n")
        print(f"{tally.lost} lost, {tally.duplicated} duplicated; {folder} is kept")
        where = "" if scenarios is SCENARIOS else " --executor ray"
        print(f"to do it again: python -m tests.promises.soak --minutes 0 --seed {seed}{where}")
    else:
        shutil.rmtree(folder)
    return tally


def summary(total: Tally) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in total.faults.most_common())
    line = (
        f"soak: {total.seconds / 60:.1f} min, {total.runs:,} runs, {total.faults.total():,} faults ({kinds}), "
        f"{total.records:,} records checked, {total.lost:,} lost, {total.duplicated:,} duplicated"
    )
    if total.gave_up:
        line += f"; {total.gave_up} runs ended with an error after a fault, and were started again"
    return f"{line}; {len(total.orphaned)} temporary folders of killed runs were left" if total.orphaned else line


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill runs at random moments and check that nothing is lost.")
    parser.add_argument("--minutes", type=float, default=15, help="how long; 0 runs one scenario")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first scenario; another one each time by default"
    )
    parser.add_argument("--executor", choices=["local", "ray"], default="local")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    if options.executor == "ray":
        from tests.promises.ray_ordeals import ray_scenarios

        with ray_scenarios() as scenarios:
            total = soak(options.minutes, seed, folder, scenarios)
    else:
        total = soak(options.minutes, seed, folder, SCENARIOS)
    print(summary(total))
    if total.violated:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
