"""The directory of one run, on any fsspec URL, from which a killed run can be resumed.

    plan.json        what the stages compute, and state they keep for later attempts (beside an output whose records are
                     elsewhere: a link to them, see run_location.py)
    ledger/          the sources that are done, with the files written for each: one small object per flush
    counts/          what each of these sources has counted, likewise
    quarantine/      the records that could not be processed, likewise
    rejected/        rows that stages dropped, if requested
    scores/          the scores that filters gave each row, if requested
    segments/        data passed from one segment of the pipeline to the next
    metrics.json     the counts of the run, and those of its last attempt

Only the driver writes here, and only new objects, except that plan.json is replaced: there are no locks and no
database. A source is entered in the ledger after its output is committed. If the driver is killed in between, the
source is done again and yields the same files with the same bytes.
"""

from __future__ import annotations

import itertools
import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.core import VERSION
from gristmill.core.executor import rows_read
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.quarantine import QuarantinedRecord
from gristmill.core.records.rejected_rows import RejectedFiles
from gristmill.core.records.run_location import BESIDE, LINK, PLAN, directory_url, link_to
from gristmill.core.records.run_record_store import RecordStore, damaged_records, to_json_line
from gristmill.core.records.sharded_run import Shard, shard_of_record
from gristmill.core.records.source_counts import COUNTS_DIRECTORY, SourceCounts
from gristmill.core.records.stage_identity import describe_plan, plan_differences, without_code
from gristmill.core.records.value_identity import identity_hash
from gristmill.core.stage_roles import CommitRole, RunStateRole
from gristmill.core.task import Lineage, OutputPart, WrittenFile, WrittenFiles, digest, upgraded_file_entry

if TYPE_CHECKING:
    from gristmill.core.executor import Progress
    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.stage_stats import StageStats
    from gristmill.core.task import ScoreFiles, Task

FLUSH_SECONDS = 1.0
FLUSH_ENTRIES = 500


@fast_dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A source that is done, and the files written for it."""

    source: str
    fingerprint: str
    plan: str
    files: tuple[str, ...] = ()
    rows: int = 0
    written: tuple[WrittenFile, ...] = ()
    attempt: str = ""
    quarantined: int = 0
    rejected: tuple[WrittenFile, ...] | None = None
    """Files of rejected rows; None if they were not recorded."""
    read: int = 0
    scores: tuple[WrittenFile, ...] | None = None
    """Files of scores; None if they were not recorded."""

    @classmethod
    def of(cls, line: dict[str, Any]) -> LedgerEntry:
        try:
            written = {name: _files(line.get(name)) for name in ("written", "rejected", "scores")}
            entry = cls(**{**line, "files": tuple(line["files"]), **written})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged_records(f"an entry of the ledger is incomplete ({error!r})") from error
        paths = [file.path for some in (entry.written, entry.rejected, entry.scores) for file in some or ()]
        numbers = (entry.rows, entry.read, entry.quarantined)
        if not all(isinstance(text, str) for text in (entry.source, entry.attempt, *entry.files, *paths)) or not all(
            isinstance(number, int) for number in numbers
        ):
            raise damaged_records("an entry of the ledger has values of other types")
        return entry

    @property
    def is_obsolete(self) -> bool:
        """Whether the entry only says that an earlier one does not count any more."""
        return not self.plan

    def output(self, now: Lineage) -> WrittenFiles:
        """The task that the last stage returned for the source, with its current input files and order."""
        task = WrittenFiles([file.path for file in self.written], rows=self.rows, written=self.written)
        return task.named(Lineage(self.source, self.source, now.files, now.order))


@fast_dataclass
class _OpenSource:
    """A source in progress."""

    fingerprint: str
    files: tuple[str, ...]
    rows: int = 0
    written: list[WrittenFile] = field(default_factory=list)
    rejected: list[WrittenFile] = field(default_factory=list)
    scores: list[WrittenFile] = field(default_factory=list)


def _files(lines: list[dict[str, Any]] | None) -> tuple[WrittenFile, ...] | None:
    return None if lines is None else tuple(map(_file, lines))


def _file(line: dict[str, Any]) -> WrittenFile:
    file = WrittenFile(**upgraded_file_entry(line))
    return replace(file, part=OutputPart(**line["part"])) if line.get("part") else file


OUTPUT_GONE = "its output is gone"


class Run:
    """The records of a run. Without a directory nothing is recorded or resumed, except that quarantined records are
    written beside the output, if there is one. A run that `restarts` is recorded, but does not resume."""

    def __init__(
        self,
        url: str | Path | None = None,
        storage_options: Mapping[str, Any] | None = None,
        replay: bool = False,
        restarts: bool = False,
    ) -> None:
        self.store = RecordStore(str(url), storage_options) if url else None
        self.storage_options = dict(storage_options or {})
        self.restarts, self.resumes = restarts, bool(url) and not restarts
        self.before = self.store.read(PLAN) if self.store and not restarts else None
        if self.before and LINK in self.before:  # to the directory of an earlier run
            self.before = None
        self.replay = replay
        self.entries: dict[str, LedgerEntry] = {}
        self.plan = ""
        """The identity of the pipeline; `_segments` holds those of its segments."""
        self._segments: list[str] = []
        self._segment = ""
        self.kept_outputs: list[WrittenFiles] = []
        self.outputs: list[WrittenFiles] = []
        """Outputs of the current segment: those kept of an earlier attempt, and those written in this one."""
        self._listed: set[str] = set()
        self.listed_sources: set[str] = set()
        """The sources of all segments so far."""
        self.earlier_errors = (0, 0)
        """Records quarantined and read in the sources that are kept of an earlier attempt."""
        self.rejected: list[str] = []
        self._keeps_rejected = self._keeps_scores = False
        self.changes: list[str] = []
        self._attempt = os.urandom(4).hex()
        self.counts = SourceCounts(self._attempt)
        self._attempt_number, self._flushes = 1, 0  # what is written is in their order, whatever clocks say
        self._open: dict[str, _OpenSource] = {}
        self._ready: list[LedgerEntry] = []
        self.rows_finished = 0
        """Rows of the input in the sources that this attempt has finished."""
        self._finishes = False
        """Whether this attempt has finished a source."""
        self.changed_outputs: dict[str, WrittenFiles] = {}
        """Outputs, by source, of which the last step of the run has changed files."""
        self._finished: dict[str, LedgerEntry] = {}
        """The sources of the current segment that this attempt has finished."""
        self._aside: list[QuarantinedRecord] = []
        self._aside_of: Counter[str] = Counter()
        self._fallback: RecordStore | None = None
        self.quarantined_in_memory: list[QuarantinedRecord] = []
        """The quarantined records, if there is no directory to write them to."""
        self._flushed = time.monotonic()

    @cached_property
    def shard(self) -> Shard | None:
        """The part of the input to do, if other runs do the rest: that of an earlier attempt, unless set."""
        return shard_of_record(self.before)

    @property
    def resuming(self) -> bool:
        return self.before is not None

    @property
    def attempt(self) -> str:
        """The name of this attempt, which no other has."""
        return self._attempt

    @property
    def lasting_name(self) -> str:
        """The name of the run, which all attempts share if it can be resumed."""
        return digest([directory_url(self.url)], 6) if self.store and not self.restarts else self._attempt

    @property
    def scratch(self) -> str | None:
        """A local directory for results that do not fit in memory."""
        lasts = self.store and not self.restarts and "://" not in self.store.url
        return self.store.url if self.store and lasts else None

    @property
    def first_and_last_segment(self) -> tuple[str, str]:
        """The identities of the first and the last segment."""
        return (self._segments[0], self._segments[-1]) if self._segments else ("", "")

    @property
    def segments(self) -> Sequence[str]:
        """The identities of all segments."""
        return self._segments

    def begin(self, plan: Plan) -> None:
        """Compare the plan with that of the earlier attempt, prepare the stages, and record both."""
        self._keeps_rejected, self._keeps_scores = plan.rejects is not None, plan.scores is not None
        described = self._compare(plan)
        if self.store and self.entries:
            self.counts.load(self.store, {source: entry.attempt for source, entry in self.entries.items()})
        before = self.before or {}
        memories = before.get("memories") or []
        if len(memories) != len(plan.all_stages):
            memories = [{} for _ in plan.all_stages]
        for stage, memory in zip(plan.all_stages, memories, strict=True):
            if isinstance(stage, RunStateRole):
                stage.prepare_run(memory)
        beside = {"rejects": before.get("rejects") or {}, "scores": before.get("scores") or {}}
        writers: dict[str, Any] = {"rejects": plan.rejects, "scores": plan.scores}
        for name, writer in writers.items():
            if isinstance(writer, RunStateRole):
                writer.prepare_run(beside[name])
        self._record = {"name": plan.name, "plan": self.plan, "stages": described, "memories": memories}
        self._record |= {
            **beside,
            "text": plan.describe(verbose=True),
            "versions": versions(),
            "attempt": self._attempt,
        }
        self._record |= {"whole": True} if self.restarts else {}
        self._record |= {"shard": self.shard.record()} if self.shard else {}
        commit = plan.segments[-1].commit
        beside_outputs = [RecordStore(*directory) for directory in commit.records_directories()] if commit else []
        self._fallback = beside_outputs[0] if beside_outputs and not self.store else None
        self._link_outputs(beside_outputs)
        if self.store:
            self.store.write(PLAN, self._record)

    def _link_outputs(self, beside_outputs: Sequence[RecordStore]) -> None:
        """Make the records beside each output lead to those of this run. Records of an earlier run become obsolete."""
        mine = self.store or self._fallback
        if mine is None:
            return
        self._attempt_number = self._record["attempt_number"] = 1 + _last_attempt(mine)
        self._record |= {BESIDE: [link_to(mine.url, store.url) for store in beside_outputs]}
        for store in beside_outputs:
            if self.shard:  # the same for all shards: they write it at the same time
                store.write(PLAN, {LINK: link_to(store.url, RecordStore(self.shard.run, self.storage_options).url)})
            elif store.url != mine.url:
                store.write(PLAN, {LINK: link_to(store.url, mine.url)})
            elif not self.store and store.get(PLAN) is not None:
                store.write(PLAN, {**self._record, "whole": True})

    def _compare(self, plan: Plan) -> list[dict[str, Any]]:
        parts = [describe_plan(segment) for segment in plan.segments]
        described = [stage for part in parts for stage in part]
        self.plan, self._segments = identity_hash(described), [identity_hash(part) for part in parts]
        self.changes = plan_differences((self.before or {}).get("stages", described), described)
        known = not self.restarts and any(segment.durable for segment in plan.segments)
        self.entries = self._read_ledger() if known else {}
        if self.before and self.before.get("whole"):  # that run started over, so older entries are obsolete
            last = self.before.get("attempt")
            self.entries = {source: entry for source, entry in self.entries.items() if entry.attempt == last}
        if self.replay:
            self._accept_changed_code(parts)
        return described

    def _accept_changed_code(self, parts: Sequence[list[dict[str, Any]]]) -> None:
        """A replay comes after a fix: sources that were done with other code, but the same settings, stay done. They
        are entered anew with the present plan, so that later attempts take them as done too."""
        before = iter((self.before or {}).get("stages", ()))
        for part, identity in zip(parts, self._segments, strict=True):
            earlier = list(itertools.islice(before, len(part)))
            if earlier == part or without_code(earlier) != without_code(part):
                continue
            known = identity_hash(earlier)
            done = (entry for entry in self.entries.values() if entry.plan == known)
            accepted = {entry.source: replace(entry, plan=identity) for entry in done}
            self.entries.update(accepted)
            self._ready += accepted.values()

    def left_to_do(
        self, plan: Plan, sources_of: Callable[[Plan], Iterator[Sequence[Task[Any]]]]
    ) -> tuple[list[str], list[tuple[Lineage, str]], int]:
        """Changes of the plan, the sources left with the reason for each, and the number done. Writes nothing.

        Stops at the first segment with work left: the sources of later ones are not known yet.
        """
        self._compare(plan)
        done = 0
        left: list[tuple[Lineage, str]] = []
        for segment in segments_in_order(plan):
            kept = []
            for tasks in filter(None, sources_of(segment)):
                first = tasks[0].lineage
                why = self.why_redo(segment, first.source, tasks[0].fingerprint())
                if why is None:
                    kept.append(self.entries[first.source].output(first))
                else:
                    left.append((first, why))
            done += len(kept)
            if left or segment.next_segment is None:
                break
            if segment.commit is not None:
                segment.commit.complete(kept, {})
        return self.changes, left, done

    def _read_ledger(self) -> dict[str, LedgerEntry]:
        if self.store is None:
            return {}
        lines = self.store.lines("ledger")
        entries = {entry.source: entry for entry in map(LedgerEntry.of, lines)}
        return {source: entry for source, entry in entries.items() if not entry.is_obsolete}

    # -- sources ---------------------------------------------------------------------------------------

    def why_redo(self, plan: Plan, source: str, fingerprint: str) -> str | None:
        """Why a source has to be done, or None if it is done already."""
        entry = self.entries.get(source)
        if plan.source is None:
            return "it is not known whether its input is the same"
        if entry is None:
            return "it is new, or was not finished"
        if entry.plan != self._segments[plan.number]:
            return "the pipeline has changed"
        if entry.fingerprint != fingerprint:
            return "the input has changed"
        if self.replay and entry.quarantined:
            return "records of it are in quarantine"
        return _missing_output(plan, entry)

    def to_do(self, sources: Iterator[Sequence[Task[Any]]], plan: Plan) -> Iterator[Sequence[Task[Any]]]:
        """The sources that are not done yet. Files written earlier for a source that is redone are removed first."""
        self.kept_outputs, self._segment, self._listed = [], self._segments[plan.number], set()
        self._finished = {}
        self.counts.begin_segment(plan)
        return self._to_do(sources, plan)

    def _to_do(self, sources: Iterator[Sequence[Task[Any]]], plan: Plan) -> Iterator[Sequence[Task[Any]]]:
        order = 0
        for tasks in sources:
            if not tasks or not plan.durable:
                yield tasks
                continue
            first = tasks[0].lineage
            self._listed.add(first.source)
            order = max(order, first.order + 1)
            fingerprint = tasks[0].fingerprint()
            entry = self.entries.get(first.source)
            if entry and self.why_redo(plan, first.source, fingerprint) is None:
                self._keep(plan, entry, first)
                continue
            self.listed_sources.add(first.source)
            if entry:
                self._mark_obsolete(entry)
                for stage in plan.stages:
                    if isinstance(stage, CommitRole):
                        stage.discard_files(entry.written)
                for commit in plan.side_output_commits:
                    commit.discard_files((*(entry.rejected or ()), *(entry.scores or ())))
            self._open[first.source] = _OpenSource(fingerprint, first.files)
            yield tasks

        if plan.number == 0 and plan.next_segment is None:
            self._keep_removed_sources(plan, order)

    def _keep(self, plan: Plan, entry: LedgerEntry, now: Lineage) -> None:
        """Count a source that an earlier attempt has finished."""
        self.listed_sources.add(entry.source)
        self.kept_outputs.append(entry.output(now))
        self.counts.keep(entry.source, entry.attempt)
        read = 0 if plan.number else entry.read  # later segments read the same rows again, or fewer
        self.earlier_errors = (self.earlier_errors[0] + entry.quarantined, self.earlier_errors[1] + read)
        self.rejected += [file.path for file in entry.rejected or () if plan.rejects]

    def _keep_removed_sources(self, plan: Plan, order: int) -> None:
        """Without an exchange, the output of input files that were removed is kept, and so it counts, unless the
        pipeline has changed."""
        if plan.commit is not None and not plan.commit.keeps_removed():
            return
        for entry in self.entries.values():
            if entry.source in self._listed or entry.plan != self._segment or _missing_output(plan, entry):
                continue
            self._keep(plan, entry, Lineage(entry.source, entry.source, entry.files, order))
            order += 1

    def _mark_obsolete(self, entry: LedgerEntry) -> None:
        self._ready.append(LedgerEntry(entry.source, "", "", attempt=self._attempt))
        self._flush_in_time(len(self._ready))

    def discard_removed_sources(self, plan: Plan) -> None:
        """Sources that no longer exist do not count any more. After an exchange, where the sources of a segment depend
        on all input, the files that the last segment wrote for them go; in a single segment the writer decides."""
        written = {file.path for output in (*self.kept_outputs, *self.outputs) for file in output.written}
        left: list[str] = []
        for entry in [entry for entry in self.entries.values() if entry.source not in self.listed_sources]:
            files = [file for file in entry.written if file.path not in written]
            if plan.commit is not None and (plan.number or not plan.commit.keeps_removed()):
                plan.commit.discard_files(files)
            elif plan.commit is not None and files and plan.commit.has_files(files):
                left += [file.path for file in files]
            for commit in plan.side_output_commits:
                commit.discard_files((*(entry.rejected or ()), *(entry.scores or ())))
            self._mark_obsolete(entry)
        self.flush()
        if left:
            warnings.warn(
                f"the input of files in the output is gone, and the pipeline has changed since. They are left as they "
                f"were and are not counted; delete what you do not need: {', '.join(left[:3])}"
                f"{f' and {len(left) - 3:,} more' if len(left) > 3 else ''}",
                RuntimeWarning,
                stacklevel=2,
            )

    def add_written(self, source: str, output: Task[Any]) -> None:
        """Record files that the last stage wrote for a source."""
        if isinstance(output, WrittenFiles) and source in self._open:
            self._open[source].rows += output.rows
            self._open[source].written += output.written

    def add_counts(self, source: str, group: int, stats: Sequence[StageStats]) -> None:
        """Record what the stages of a group have done with a source."""
        if source in self._open:
            self.counts.add(source, group, stats)

    def add_rejected(self, source: str, output: RejectedFiles) -> None:
        """Record the files of a source's rejected rows."""
        self.rejected += output.data
        if source in self._open:
            self._open[source].rejected += output.written

    def add_scores(self, source: str, output: ScoreFiles) -> None:
        """Record the files of a source's scores."""
        if source in self._open:
            self._open[source].scores += output.written

    def finish_source(self, source: str) -> None:
        """Enter a finished source in the ledger."""
        opened = self._open.pop(source, None)
        if opened is None:
            return
        written, aside = tuple(opened.written), self._aside_of.pop(source, 0)
        rejected = tuple(opened.rejected) if self._keeps_rejected else None
        done = (source, opened.fingerprint, self._segment, opened.files, opened.rows, written)
        scores = tuple(opened.scores) if self._keeps_scores else None
        read = rows_read(self.counts.finish(source, bool(self.store)))
        entry = self._finished[source] = LedgerEntry(*done, self._attempt, aside, rejected, read, scores)
        self._finishes = True
        self.rows_finished += 0 if self.counts.segment else read
        self._ready.append(entry)
        self._flush_in_time(len(self._ready))

    def replace_outputs(self, outputs: Sequence[WrittenFiles] | None) -> None:
        """Record the outputs of the last segment as they are after its last step, which may have changed files."""
        if outputs is None:
            return
        before = [*self.kept_outputs, *self.outputs]
        known = {**self.entries, **self._finished}
        for old, new in zip(before, outputs, strict=True):
            entry = known.get(new.lineage.source)
            if new.written != old.written:
                self.changed_outputs[new.lineage.source] = new
                self._ready += [replace(entry, written=new.written)] if entry else []
        kept = len(self.kept_outputs)
        self.kept_outputs, self.outputs[:] = list(outputs[:kept]), outputs[kept:]
        self.flush()

    # -- quarantine --------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.store.url if self.store else ""

    def add_quarantined(self, records: Sequence[QuarantinedRecord]) -> None:
        """Add quarantined records. They are written before their source is entered in the ledger."""
        if self._fallback and not self.store:
            self._use_fallback()
        if not self.store:
            self.quarantined_in_memory += records
            return
        self._aside += records
        self._aside_of.update(record.source for record in records)
        self._flush_in_time(len(self._aside))

    def _use_fallback(self) -> None:
        assert self._fallback is not None
        self.store = self._fallback
        self.store.write(PLAN, {**self._record, "whole": True})

    def quarantined(self) -> Iterator[QuarantinedRecord]:
        """The current quarantined records: for a finished source those of the attempt that finished it, for others
        those of the last attempt. Records of other attempts, or of runs before one that started over, are obsolete."""
        if not self.store:
            yield from self.quarantined_in_memory
            return
        record = self.store.read(PLAN) or {}
        entries = {} if record.get("whole") else self._read_ledger()
        attempts = {source: entry.attempt for source, entry in entries.items()}
        last = record.get("attempt", "")
        for line in self.store.lines("quarantine"):
            if line["attempt"] == attempts.get(line["source"], last):
                yield QuarantinedRecord.of(line)

    # -- writing -----------------------------------------------------------------------------------------

    def _flush_in_time(self, waiting: int) -> None:
        if waiting >= FLUSH_ENTRIES or time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self.store and (self._ready or self._aside or self.counts.lines):
            self._flushes += 1
            name = f"{self._attempt_number:06}-{self._flushes:08}-{self._attempt}.jsonl"
            if self._aside:
                self.store.write_lines(f"quarantine/{name}", (record.line(self._attempt) for record in self._aside))
            if lines := self.counts.take_lines():  # before the ledger, which says whose lines are valid
                self.store.write_lines(f"{COUNTS_DIRECTORY}/{name}", lines)
            if self._ready:
                self.store.write_lines(f"ledger/{name}", map(to_json_line, self._ready))
        self._ready.clear()
        self._aside.clear()
        self.counts.take_lines()
        self._flushed = time.monotonic()

    def end(self, progress: Progress) -> None:
        """End the attempt, successful or not."""
        if self._finishes and self.store:
            self.counts.end(progress.seconds)
        self.flush()
        if self.store:
            all_stages = {"stages": progress.stages, "attempt_stages": progress.attempt_stages}
            metrics = {
                key: [{"name": name, **stats.as_counts()} for name, stats in stages]
                for key, stages in all_stages.items()
            }
            seconds = {"seconds": progress.all_seconds, "attempt_seconds": progress.seconds}
            self.store.write("metrics.json", {**seconds, **metrics})


def segments_in_order(plan: Plan) -> Iterator[Plan]:
    """The segments in order; some more than once, if the last stage of a segment asks for it on completion."""
    number = 0
    while number < len(plan.segments):
        segment = plan.segments[number]
        yield segment
        number += 1 - (segment.commit.segments_to_repeat() if segment.commit else 0)


def _last_attempt(store: RecordStore | None) -> int:
    """The number of the last attempt whose records are in a store; 0 if there are none."""
    record = store.read(PLAN) if store else None
    if store is None or record is None:
        return 0
    written = (store.last_number(folder) for folder in ("ledger", "quarantine", COUNTS_DIRECTORY))
    return max(int(record.get("attempt_number") or 0), *written)


def _missing_output(plan: Plan, entry: LedgerEntry) -> str | None:
    if plan.commit is not None and not plan.commit.has_files(entry.written):
        return OUTPUT_GONE
    beside = plan.side_output_commits
    if plan.rejects and (entry.rejected is None or not beside[-1].has_files(entry.rejected)):
        return "its rejected rows were not kept"
    if plan.scores and (entry.scores is None or not beside[-1].has_files(entry.scores)):
        return "its scores were not kept"
    return None


def versions() -> dict[str, str]:
    """The versions that the output may depend on."""
    import pyarrow as pa

    return {"gristmill": VERSION, "python": platform.python_version(), "pyarrow": pa.__version__}
