"""Fault injection: a run is disturbed, killed and started again, and must end as if nothing had happened.

A fault that ends the driver is followed by another attempt with the same run directory, and with other workers and
blocks. A run that comes to its end before all faults have come is checked, and the rest of them come to a new run.
All is drawn from a seed, but for what the clock of the machine adds.
"""

from __future__ import annotations

import random
import secrets
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.promises.fault_corpus import Corpus
from tests.promises.fault_injection import ENDING, MOMENTS, NEEDS_WORKERS, PASSING, Attempt, Fault
from tests.promises.fault_pipeline import WRITERS, Mill, poisoned
from tests.promises.output_checks import (
    SHARED,
    changed,
    contents,
    half_files,
    ids,
    left_over,
    quarantined,
    recorded,
    wrong_output,
)
from tests.promises.run_processes import kill_at_once, marked, outlasting

PATIENCE = 60.0
"""Seconds after which a run is said to hang."""

GRACE = 15.0
"""Seconds in which a driver ends that was told to, and its workers with it."""


@dataclass
class Tally:
    """What was done, and what came of it."""

    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    records: int = 0
    lost: int = 0
    duplicated: int = 0
    gave_up: int = 0
    """Runs that said what they had lost, and were started again."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    orphaned: list[str] = field(default_factory=list)
    """Temporary files of attempts that were killed, which no later attempt has removed."""

    @property
    def violated(self) -> bool:
        return bool(self.problems or self.lost or self.duplicated or self.orphaned)

    def add(self, other: Tally) -> None:
        self.runs += other.runs
        self.faults += other.faults
        self.records += other.records
        self.lost += other.lost
        self.duplicated += other.duplicated
        self.gave_up += other.gave_up
        self.seconds += other.seconds
        self.problems += other.problems
        self.orphaned += other.orphaned


@dataclass(frozen=True)
class Reference:
    """A run that nobody disturbed: how long it took, and what it wrote."""

    seconds: float
    whole: dict[str, bytes]


def undisturbed(mill: Mill, folder: Path) -> Reference:
    began = time.monotonic()
    mill = mill.at(folder)
    code = mill.start(secrets.token_hex(8), folder).wait(PATIENCE)
    assert code == 0, (folder / "messages.txt").read_text()
    return Reference(time.monotonic() - began, contents(Path(mill.output)))


def draw_faults(rng: random.Random, kinds: Sequence[str], seconds: float) -> list[Fault]:
    """A fault of each of the kinds, spread over the life of a run that takes so many seconds."""
    faults = []
    for index, kind in enumerate(rng.sample(kinds, len(kinds))):
        share = (index + rng.random()) / len(kinds)
        if kind not in ENDING or kind in NEEDS_WORKERS:
            share *= 0.7
        if rng.random() < 0.5:
            faults.append(Fault(kind, delay=seconds * share))
        else:
            moment = MOMENTS[int(len(MOMENTS) * share)]
            number = rng.randint(1, 3) if moment in ("fragment", "commit", "ledger") else 1
            faults.append(Fault(kind, moment, number, rng.choice([0.0, rng.uniform(0, 0.05)])))
    rng.shuffle(faults)
    return faults


class Ordeal:
    """A run, attempt after attempt, until all faults have come and it has ended well."""

    patience, grace = PATIENCE, GRACE
    other_codes: frozenset[int] = frozenset()
    """Exit codes that a driver may have as well, when a fault has ended it."""

    def __init__(
        self, corpus: Corpus, reference: Reference, mill: Mill, folder: Path, faults: Sequence[Fault], seed: int
    ) -> None:
        assert all(PASSING.get(fault.kind, 0) <= mill.retries for fault in faults)
        self.corpus, self.reference, self.folder = corpus, reference, folder
        self.faults, self.rng = list(faults), random.Random(seed)
        self.mill = mill.at(folder / "0")
        self.mark = secrets.token_hex(8)
        self.tally = Tally()
        self.misses = self.fresh = 0
        self.history: list[str] = []
        self.killed: list[int] = []
        self.done: dict[Path, tuple[int, int]] = {}

    @property
    def output(self) -> Path:
        return Path(self.mill.output)

    def run(self) -> Tally:
        """Until the faults have all come, or something is wrong. Then no process of the run is left."""
        began = time.monotonic()
        try:
            while self._attempt() or (self.faults and not self.tally.violated):
                pass
        finally:
            kill_at_once(marked(self.mark))
            self._left_by_killed()
            self.tally.seconds = time.monotonic() - began
        return self.tally

    def _attempt(self) -> bool:
        """Start the run, or go on with it. False when it has come to its end."""
        attempt = self._start()
        self.tally.runs += 1
        fault = self._disturb(attempt)
        code = self._end_of(attempt, self.grace if fault else self.patience)
        if fault and code:
            self._came(fault)
            self.killed.append(attempt.driver)
            self._look(fault, code)
            self._change()
            return not self.tally.problems
        if fault:
            self._missed(fault)
        if code and self._may_give_up(attempt):
            self.tally.gave_up += 1
            self._change()
            return True
        self._finish(code, attempt.driver)
        self._begin_anew()
        return False

    def _start(self) -> Attempt:
        return Attempt(self.mill, self.mark, self.folder)

    def _may_give_up(self, attempt: Attempt) -> bool:
        """Whether the run may end with an error after what it has suffered, and be started again."""
        return False

    # -- faults ----------------------------------------------------------------------------------------

    def _disturb(self, attempt: Attempt) -> Fault | None:
        """Inject faults until one should end the driver: that one; None when the run is left to come to its end."""
        while fault := self._next(attempt):
            if not attempt.reaches(fault) or not attempt.suffers(fault.kind, self.rng):
                self._missed(fault)
                return None
            if fault.kind in ENDING:
                return fault
            self._came(fault)
        return None

    def _next(self, attempt: Attempt) -> Fault | None:
        bearable = self.mill.retries - attempt.killed
        return next((fault for fault in self.faults if PASSING.get(fault.kind, 0) <= bearable), None)

    def _came(self, fault: Fault) -> None:
        self.tally.faults[fault.kind] += 1
        self.history.append(str(fault))
        self.faults.remove(fault)
        self.misses = 0

    def _missed(self, fault: Fault) -> None:
        """The run was over before. What comes too late twice comes next time at a moment that every run has; on a
        busy machine even that may pass unseen, and then it does not come at all."""
        self.misses += 1
        if self.misses >= 2:
            self.faults[self.faults.index(fault)] = Fault(fault.kind, "worker")
        if self.misses >= 5:
            self.faults = [other for other in self.faults if other.kind != fault.kind]
            self.misses = 0

    def _end_of(self, attempt: Attempt, seconds: float) -> int:
        try:
            return attempt.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._object(f"the driver was still there after {seconds:g} s")
            kill_at_once(marked(self.mark))
            return attempt.process.wait()

    def _look(self, fault: Fault, code: int) -> None:
        """What must be true after a fault has ended a run."""
        starting = {1} if fault.moment == "launch" else set()  # Python itself was
        allowed = ENDING[fault.kind] | self.other_codes | starting
        if code not in allowed:
            self._object(f"after {fault}, the driver ended with {code}: {self._messages()}")
        if self.rng.random() < 0.5:  # or the next attempt starts while workers of this one are still dying
            self._no_process_is_left()
        for problem in half_files(self.output, self.reference.whole, self.corpus.kept, self._joins):
            self._object(f"after {fault}: {problem}")
        self.done |= recorded(Path(self.mill.run_dir))

    def _change(self) -> None:
        """Go on with another number of workers, other blocks, and another way to start."""
        self.mill = replace(
            self.mill,
            workers=self.rng.choice([count for count in (1, 2, 3) if count != self.mill.workers]),
            blocksize=self.rng.choice([3000, 8000, 50_000]),
            command=self.rng.random() < 0.3,
        )

    # -- the end ---------------------------------------------------------------------------------------

    def _finish(self, code: int, driver: int) -> None:
        """What must be true when a run has come to its end."""
        if code:
            self._object(f"the run ended with {code}: {self._messages()}")
            return
        self._no_process_is_left()
        self.tally.orphaned += self._left_by_killed()
        problems = wrong_output(self.output, self.reference.whole)
        problems += [f"{path} is left over" for path in left_over([driver], self._places())]
        problems += [f"{path} is left over" for path in (self.folder / "tmp").iterdir()]
        joined = {path for path in self.done if self._joins and not path.exists()}
        again = [path for path, before in self.done.items() if path not in joined and changed(path, before)]
        problems += [f"{path} was done, and done again" for path in again]
        for problem in problems:
            self._object(problem)
        self._count()

    def _count(self) -> None:
        found, aside = ids(self.output), quarantined(self.mill.run_dir)
        poison = {name for name in self.corpus.names if poisoned(name, self.mill.poison)}
        self.tally.records += self.corpus.rows
        self.tally.lost += len(self.corpus.kept - poison - found.keys()) + len(poison - aside.keys())
        self.tally.duplicated += sum(many.total() - len(many) for many in (found, aside))
        if strange := (found.keys() - (self.corpus.kept - poison)) | (aside.keys() - poison):
            self._object(f"{len(strange)} records should not be where they are, such as {min(strange)}")

    def _left_by_killed(self) -> list[str]:
        """Temporary files of attempts that were killed. They are removed once they were seen."""
        found = left_over(self.killed, self._places())
        for path in found:
            shutil.rmtree(path)
        return [str(path) for path in found]

    @property
    def _joins(self) -> bool:
        """Whether small files are joined at the end, and go then."""
        return "target_file_size" in WRITERS[self.mill.writer][1]

    def _places(self) -> list[Path]:
        return [self.folder / "tmp", Path(self.mill.run_dir), SHARED]

    def _begin_anew(self) -> None:
        if not self.tally.violated:  # else it is left for us to look at
            shutil.rmtree(self.output.parent)
        self.fresh += 1
        self.mill = self.mill.at(self.folder / str(self.fresh))
        self.done.clear()

    def _no_process_is_left(self) -> None:
        if left := outlasting(self.mark, self.grace):
            self._object(f"processes {left} outlived their driver")

    def _object(self, problem: str) -> None:
        self.tally.problems.append(f"{self.output}, {self.mill.writer}, {self.history}: {problem}")

    def _messages(self) -> str:
        return (self.folder / "messages.txt").read_text(errors="replace")[-2000:]
