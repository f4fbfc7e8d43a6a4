"""The result of a run: a sequence of the last stage's tasks, loaded on access, and the counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

from gristmill.core.errors import AccountingError
from gristmill.core.executor import Progress, rows_read
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.task import SHUFFLE_FILE_SUFFIX, FileGroupTask

if TYPE_CHECKING:
    from gristmill.core.executor import TaskRef
    from gristmill.core.records.quarantine import QuarantinedRecord
    from gristmill.core.records.run_directory import Run
    from gristmill.core.records.stage_stats import StageStats
    from gristmill.core.task import Lineage, Task


class Result(Sequence["Task[Any]"]):
    """The tasks of the last stage, in the order of the input. Their payloads stay where they are until used."""

    def __init__(self, refs: list[tuple[Lineage, TaskRef]], progress: Progress, run: Run | None = None) -> None:
        self._refs = sorted(refs, key=lambda entry: entry[0].sort_key())
        self._progress, self._run = progress, run

    def __len__(self) -> int:
        return len(self._refs)

    @overload
    def __getitem__(self, index: int) -> Task[Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[Task[Any]]: ...

    def __getitem__(self, index: int | slice) -> Task[Any] | list[Task[Any]]:
        if isinstance(index, slice):
            return [self._load(entry) for entry in self._refs[index]]
        return self._load(self._refs[index])

    def __iter__(self) -> Iterator[Task[Any]]:
        return map(self._load, self._refs)

    def _load(self, entry: tuple[Lineage, TaskRef]) -> Task[Any]:
        lineage, ref = entry
        changed = self._run.changed_outputs.get(lineage.source) if self._run else None
        return changed or ref.load().named(lineage)

    def summary(self, attempt: bool = False) -> Summary:
        """Rows in, kept and dropped, seconds and rate for each stage: of the whole run, or only of this `attempt`.

        Each source counts once, with what the attempt did that finished it."""
        progress = self._progress
        return Summary.of(Progress(progress.attempt_stages, seconds=progress.seconds) if attempt else progress)

    def quarantined(self) -> list[QuarantinedRecord]:
        """The records that failed, each with its row, stage, error and traceback."""
        return list(self._run.quarantined()) if self._run else []

    def rejected(self) -> list[str]:
        """The files with the rows that stages dropped, when `rejected` was asked for."""
        return sorted(self._run.rejected) if self._run else []

    def files(self) -> list[str]:
        """The files that the last stage wrote, without those that pass from one segment to the next."""
        paths = [path for task in self if isinstance(task, FileGroupTask) for path in task.data]
        return [path for path in dict.fromkeys(paths) if not path.endswith(SHUFFLE_FILE_SUFFIX)]

    @property
    def rows_read(self) -> int:
        """Rows of the input that all attempts have read, each counted once."""
        return rows_read(stats for _, stats in self._progress.stages[:2])  # of the first segment

    @property
    def run_dir(self) -> str | None:
        """Where the records of the run are: in its `run_dir`, or beside the output if something was set aside."""
        return (self._run.url or None) if self._run else None

    @property
    def resumed(self) -> bool:
        """Whether some of the output was written by an earlier attempt."""
        return bool(self._run and self._run.kept_outputs)

    @property
    def nothing_to_do(self) -> bool:
        """Whether all was done by earlier attempts."""
        return 0 < self._progress.sources_kept == self._progress.sources_done

    @property
    def sources(self) -> int:
        """The sources that are done."""
        return self._progress.sources_done

    @property
    def sources_not_counted(self) -> int:
        """Sources that version 0.1 has finished, which recorded no counts."""
        return self._run.counts.sources_unknown if self._run else 0

    def __repr__(self) -> str:
        return f"<Result of {len(self)} tasks>"


@fast_dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage of a summary."""

    name: str
    rows_in: int
    rows_out: int
    quarantined: int
    seconds: float
    mb_per_s: float
    counts: dict[str, float]
    waiting: int = 0
    """Rows that wait in the stage for others, in a run that still goes on."""

    @property
    def dropped(self) -> int:
        return max(self.rows_in - self.rows_out - self.quarantined - self.waiting, 0)

    def counted(self) -> tuple[str, str, str, str]:
        """Rows in, kept, dropped and quarantined as text; empty where a stage takes or yields no rows."""
        took, gave = self.rows_in > 0, self.rows_out > 0
        return (
            f"{self.rows_in:,}" if took else "",
            f"{self.rows_out:,}" if took or gave else "",
            f"{self.dropped:,}" if took else "",
            f"{self.quarantined:,}" if self.quarantined else "",
        )

    @classmethod
    def of(cls, name: str, parts: Sequence[StageStats]) -> StageSummary:
        """The line of a stage with its parts: rows enter at the first part that takes any, and leave at the last."""
        last = parts[-1]
        counts: dict[str, float] = {}
        for part in parts:
            for key, value in part.counts.items():
                counts[key] = counts.get(key, 0) + value
        failed = sum(part.quarantined for part in parts)
        came = next((part.rows_in for part in parts if part.rows_in), 0)
        arrived = last.rows_in + failed - last.quarantined
        rows = max(came, arrived) if len(parts) > 1 else last.rows_in  # some came in an earlier attempt
        seconds = sum(part.seconds for part in parts)
        size = max(*(part.bytes_in for part in parts), last.bytes_out, int(counts.pop("bytes_read", 0)))
        rate = size / 1e6 / seconds if seconds > 0 else 0.0
        waiting = (rows - arrived if len(parts) > 1 else 0) + last.undecided
        return cls(name, rows, last.rows_out, failed, seconds, rate, counts, waiting)


def folded_stages(stages: Sequence[tuple[str, StageStats]]) -> Iterator[tuple[str, list[StageStats]]]:
    """The stages as the user wrote them, each with its parts. The last part has the stage's name."""
    parts: list[StageStats] = []
    for index, (name, stats) in enumerate(stages):
        parts.append(stats)
        after = stages[index + 1] if index + 1 < len(stages) else None
        if stats.part_of and after and stats.part_of in (after[0], after[1].part_of):
            continue
        yield stats.part_of or name, parts
        parts = []


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did, stage by stage. `print` it."""

    stages: list[StageSummary]
    seconds: float

    @classmethod
    def of(cls, progress: Progress) -> Summary:
        return cls([StageSummary.of(*parts) for parts in folded_stages(progress.stages)], progress.all_seconds)

    @property
    def rows_in(self) -> int:
        """Rows that the pipeline was given or read."""
        first = next((line for line in self.stages if line.rows_in or line.rows_out or line.quarantined), None)
        return (first.rows_in or first.rows_out + first.quarantined) if first else 0

    @property
    def rows_out(self) -> int:
        """Rows that left the last stage."""
        return self.stages[-1].rows_out if self.stages else 0

    @property
    def kept_share(self) -> float | None:
        """Rows out per row in; None where there are none, or where a stage makes several rows of one, as a Tee does."""
        more = any(line.rows_out > line.rows_in > 0 for line in self.stages)
        return None if more or not self.rows_in else self.rows_out / self.rows_in

    @property
    def quarantined(self) -> int:
        """Rows that failed."""
        return sum(line.quarantined for line in self.stages)

    def titles(self) -> tuple[str, ...]:
        """The titles for `StageLine.counted`; one for quarantined rows only if there are any."""
        titles = ("rows in", "kept", "dropped", "quarantined")
        return titles if self.quarantined else titles[:3]

    def __getitem__(self, name: str) -> StageSummary:
        for line in self.stages:
            if line.name == name:
                return line
        raise KeyError(f"no stage {name!r}; stages: {', '.join(line.name for line in self.stages)}")

    def __str__(self) -> str:
        width = max([len(line.name) for line in self.stages], default=5)
        titles = self.titles()
        lines = [f"{'stage':<{width}} {_columns(titles)} {'seconds':>9} {'MB/s':>8}"]
        for line in self.stages:
            notes = "".join(f"  {note}" for note in count_texts(line.counts))
            rows = _columns(line.counted()[: len(titles)])
            lines.append(f"{line.name:<{width}} {rows} {line.seconds:>9.2f} {line.mb_per_s:>8.1f}{notes}")
        lines.append(f"{self.seconds:.2f} s in total; stage times are summed over all workers")
        if self.quarantined:
            verb = "is" if self.quarantined == 1 else "are"
            lines.append(f"{count_noun(self.quarantined)} failed and {verb} not included")
        return "\n".join(lines)


def count_texts(counts: Mapping[str, float]) -> list[str]:
    """The counters of a stage in words: `220 candidate pairs`, `largest cluster 3`, `estimated recall 99.5%`.

    Those of samples, and of clusters by size, are left to the report.
    """
    texts = []
    for name, value in counts.items():
        title, colon, rest = name.partition(": ")
        words = title.replace("_", " ") + colon + rest
        if name.startswith(("sample_", "clusters_of_")):
            continue
        if name.endswith(("recall", "precision")):
            texts.append(f"{words} {value:.1%}")
        elif name.startswith("largest_"):
            texts.append(f"{words} {value:,g}")
        else:
            texts.append(f"{value:,.0f} {words}" if float(value).is_integer() else f"{value:,g} {words}")
    return texts


def _columns(texts: Sequence[str]) -> str:
    return " ".join(f"{text:>12}" for text in texts)


def count_noun(count: int, what: str = "record") -> str:
    """`1 record`, `2 records`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def check_row_accounting(stages: Sequence[tuple[str, StageStats]]) -> None:
    """Every row that left a stage must have arrived at the next: rows in = kept + dropped + quarantined."""
    for (before, gave), (after, got) in pairwise(stages):
        left, came = gave.rows_out + gave.rows_past, got.rows_in + got.rows_past
        if left != came:
            raise AccountingError(
                f"{left:,} rows left stage {before!r}, and {came:,} arrived at {after!r}. Does a stage "
                "change a batch that it has given away, or give another answer when it is asked again? If not, this "
                "is a defect of Gristmill: please report it. The output is not marked as complete"
            )
