"""Whatever is killed, and whenever: a run that is started again ends with the same bytes, each record once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.promises.fault_corpus import Corpus, make_corpus
from tests.promises.fault_injection import Fault
from tests.promises.fault_pipeline import Mill
from tests.promises.fault_scenarios import Ordeal, Reference, Tally, draw_faults, undisturbed

KILLS = [*["driver"] * 3, *["worker"] * 3, *["workers"] * 2, *["everything"] * 2]

References = Callable[[str], Reference]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "in", seed=1, rows=800)


@pytest.fixture(scope="module")
def reference(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> References:
    @cache
    def of(writer: str) -> Reference:
        return undisturbed(mill(corpus, writer), tmp_path_factory.mktemp("reference"))

    return of


def mill(corpus: Corpus, writer: str = "jsonl") -> Mill:
    return Mill(str(corpus.folder), "", "", writer, nap=0.0008, flush=0.1)


def at_once(ordeals: Sequence[Ordeal]) -> list[Tally]:
    """Run them two at a time. Starting keeps one core busy, and there are two."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(Ordeal.run, ordeals))


def check(tally: Tally, faults: int) -> None:
    assert tally.problems == []
    assert (tally.lost, tally.duplicated) == (0, 0)
    assert sum(tally.faults.values()) == faults
    assert tally.records > 0


@pytest.mark.slow
def test_killed_at_twenty_moments(corpus: Corpus, reference: References, tmp_path: Path) -> None:
    ordeals = []
    for seed, writer in enumerate(["slow jsonl", "parquet"]):
        faults = draw_faults(random.Random(seed), KILLS, reference(writer).seconds)
        ordeals.append(Ordeal(corpus, reference(writer), mill(corpus, writer), tmp_path / str(seed), faults, seed))
    for tally in at_once(ordeals):
        check(tally, 10)


@pytest.mark.slow
def test_other_faults_in_a_folder_with_a_strange_name(corpus: Corpus, reference: References, tmp_path: Path) -> None:
    """SIGTERM, Ctrl-C, a worker that stands still for a while, and the process that starts workers killed."""
    kinds = ["terminate", "interrupt", "pause", "zygote"]
    writer = "slow jsonl in parts"
    faults = draw_faults(random.Random(5), kinds, reference(writer).seconds)
    place = tmp_path / "läuft & steht [*] 石臼"
    check(Ordeal(corpus, reference(writer), mill(corpus, writer), place, faults, 5).run(), 4)


def test_of_two_runs_at_once_one_is_killed(corpus: Corpus, reference: References, tmp_path: Path) -> None:
    """They read the same files at the same time, and know nothing of each other."""
    kills = [Fault("driver", "commit", 2), Fault("driver", "fragment")]
    killed, spared = at_once(
        [
            Ordeal(corpus, reference("jsonl"), mill(corpus), tmp_path / "killed", kills, 6),
            Ordeal(corpus, reference("jsonl"), mill(corpus), tmp_path / "spared", [], 6),
        ]
    )
    check(killed, 2)
    check(spared, 0)
    assert spared.runs == 1
    assert killed.orphaned == []


def test_a_worker_is_killed_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    """What it had handed on when it was killed counts, and does not come again."""
    streamed = make_corpus(tmp_path / "in", seed=2, rows=400, packed=0.9)
    once = replace(mill(streamed), workers=1, blocksize=3000, nap=0.002)
    faults = [Fault("worker", "fragment", 8), Fault("worker", "fragment", 16)]
    check(Ordeal(streamed, undisturbed(once, tmp_path / "reference"), once, tmp_path / "it", faults, 9).run(), 2)


def test_one_worker_after_another_is_killed(corpus: Corpus, reference: References, tmp_path: Path) -> None:
    """The disk is slow, so many are killed between two steps of writing."""
    writer = "slow jsonl"
    patient = replace(mill(corpus, writer), retries=20)
    faults = [Fault("hail", "worker"), Fault("hail", "fragment")]
    check(Ordeal(corpus, reference(writer), patient, tmp_path, faults, 10).run(), 2)


def test_when_all_processes_are_killed_the_next_attempt_removes_their_temporary_files(
    corpus: Corpus, reference: References, tmp_path: Path
) -> None:
    tally = Ordeal(corpus, reference("jsonl"), mill(corpus), tmp_path, [Fault("everything", "commit")], 8).run()
    assert tally.orphaned == []
