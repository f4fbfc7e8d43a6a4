"""Shards: a pipeline over one input as several runs, such as jobs of a Slurm array, which need not know each other.

    RUN/shards.json                  how many shards there are, and a hash of the names of all sources
    RUN/shard-00003-of-00010/        the run directory of one of them
    RUN/shard-00003-of-00010/shard.json   whether it is done

Source n of the input belongs to shard n modulo count, so all shards must list the same input: one that sees another is
refused. They write to the same output, where files are named after their source. What is given up: stages that need
the rows of other shards (exchanges, deduplication), and writers that name or delete files of other shards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import PlanError
from gristmill.core.records.run_record_store import RecordStore, damaged_records
from gristmill.core.records.value_identity import identity_hash
from gristmill.core.stage_roles import CommitRole, output_directory_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gristmill.core.plan.planner import Plan
    from gristmill.core.task import WrittenFiles

SHARDS, STATE = "shards.json", "shard.json"
DONE, BEGUN, NOT_BEGUN = "done", "begun, not done", "not begun"


@dataclass(frozen=True)
class Shard:
    """Shard `number` of `count`, counted from 1. In a Slurm array its index is `first + (number - 1) * step`."""

    number: int
    count: int
    run: str
    """The directory of all shards."""
    first: int = 1
    step: int = 1

    @property
    def directory(self) -> str:
        return f"{self.run.rstrip('/')}/shard-{self.number:05}-of-{self.count:05}"

    @property
    def array_index(self) -> int:
        return self.first + (self.number - 1) * self.step

    def record(self) -> dict[str, Any]:
        return {"number": self.number, "count": self.count, "run": self.run, "first": self.first, "step": self.step}

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def open_shard(text: str, run_dir: str | Path | None, storage_options: Mapping[str, Any] | None = None) -> Shard:
    """The shard that `3/10` stands for, or `slurm`, which reads the variables of a job array."""
    if not run_dir:
        raise PlanError(f"shard {text}: give run_dir too, one directory for the records of all shards")
    known = RecordStore(str(run_dir), storage_options).read(SHARDS)
    if text == "slurm":
        return _slurm_shard(str(run_dir), known)
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise PlanError(f"shard {text}: write its number and how many there are, from 1/10 to 10/10, or slurm")
    given = (known or {}).get("first", 1), (known or {}).get("step", 1)
    return Shard(int(found[1]), int(found[2]), str(run_dir), *given)


def _slurm_shard(run: str, known: Mapping[str, Any] | None) -> Shard:
    index = _slurm_number("SLURM_ARRAY_TASK_ID")
    if known:  # a part of the array is submitted again: its variables describe only that part
        first, step, count = (int(known[name]) for name in ("first", "step", "count"))
    else:
        first, step = _slurm_number("SLURM_ARRAY_TASK_MIN"), _slurm_number("SLURM_ARRAY_TASK_STEP", 1)
        count = _slurm_number("SLURM_ARRAY_TASK_COUNT")
    number, rest = divmod(index - first, max(step, 1))
    if rest or not 0 <= number < count:
        raise PlanError(
            f"shard slurm: job {index} is not one of {count} jobs from {first} on in steps of {step}. Submit an array "
            "without gaps first, such as --array=1-10; only then a part of it again"
        )
    return Shard(number + 1, count, run, first, step)


def _slurm_number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise PlanError(
            f"shard slurm: {name} is {text!r}, must be a number. Is this a job of an array (sbatch --array)?"
        )
    return int(text)


def shard_of_record(record: Mapping[str, Any] | None) -> Shard | None:
    """The shard that an earlier attempt in the same directory was."""
    content = (record or {}).get("shard")
    try:
        return Shard(**content) if content else None
    except TypeError as error:
        raise damaged_records(f"its shard is incomplete ({error})") from error


def keep_shard(plan: Plan, shard: Shard) -> str:
    """Keep the sources of one shard in a plan. Returns a hash of the names of all sources."""
    if plan.next_segment is not None:
        raise PlanError(
            f"shard {shard}: stage {plan.next_segment.stages[0].name!r} needs the rows of all shards. Run the stages "
            "before it as shards, and it and the rest afterwards, over their output"
        )
    for stage in plan.stages:
        if isinstance(stage, CommitRole):
            stage.check_shards()
    if plan.source is None:
        raise PlanError(f"shard {shard}: the pipeline must begin with a reader or another stage that lists its input")
    return identity_hash(plan.source.keep_shard(shard.number - 1, shard.count))


def begin_shard(plan: Plan, shard: Shard, storage_options: Mapping[str, Any]) -> str:
    """Keep the sources of one shard, after checking that those of the other shards are the rest of the same input."""
    sources = keep_shard(plan, shard)
    record = {"count": shard.count, "first": shard.first, "step": shard.step, "sources": sources}
    store = RecordStore(shard.run, storage_options)
    known = store.read(SHARDS)
    if known is None:
        store.write(SHARDS, record)
        known = store.read(SHARDS) or record  # another shard may have begun in the same moment
    if known.get("count") != shard.count:
        raise PlanError(
            f"shard {shard}: {shard.run} holds the records of {known.get('count')} shards. Use as many, or another "
            "directory"
        )
    if known.get("sources") != sources:
        raise PlanError(
            f"shard {shard}: the input is not what the first shard in {shard.run} has found: files were added, removed "
            "or renamed, so that the shards would overlap or leave some out. Use another run_dir for all shards"
        )
    RecordStore(shard.directory, storage_options).write(STATE, {"done": False, "sources": sources})
    return sources


def finish_shard(shard: Shard, sources: str, outputs: Iterable[WrittenFiles], options: Mapping[str, Any]) -> None:
    """Record that a shard is done, and the columns of what it has written."""
    layouts: dict[str, str] = {}
    for output in outputs:
        for file in output.written:
            if file.layout:
                layouts.setdefault(file.branch, identity_hash(str(file.layout)))
    RecordStore(shard.directory, options).write(STATE, {"done": True, "sources": sources, "columns": layouts})


def shard_states(run_dir: str) -> tuple[list[tuple[Shard, str]], list[str]]:
    """All shards of a run, each with its state, and what is wrong with them as a whole."""
    known = RecordStore(run_dir).read(SHARDS)
    if known is None:
        raise PlanError(f"{run_dir} holds no shards: it has no {SHARDS}. Give the run_dir that all shards were given")
    states: list[tuple[Shard, str]] = []
    sources: set[str] = {known["sources"]}
    columns: dict[str, set[str]] = {}
    for number in range(1, known["count"] + 1):
        shard = Shard(number, known["count"], run_dir, known["first"], known["step"])
        state = RecordStore(shard.directory).read(STATE)
        states.append((shard, NOT_BEGUN if state is None else DONE if state["done"] else BEGUN))
        sources |= {state["sources"]} if state else set()
        for branch, layout in (state or {}).get("columns", {}).items():
            columns.setdefault(branch, set()).add(layout)
    problems = ["the shards have found different input: run all of them again"] if len(sources) > 1 else []
    if any(len(layouts) > 1 for layouts in columns.values()):
        problems.append(
            "the files of some shards have other columns or types than those of others: declare them with schema= of "
            "the writer, and run all shards with another run_dir"
        )
    return states, problems


def refuse_shards(stage: Any, why: str, way_out: str) -> PlanError:
    """An error that says why a stage cannot write one shard of several."""
    where = output_directory_of(stage)
    return PlanError(
        f"stage {stage.name!r} cannot write {where or 'its output'} as one shard of several: {why}. {way_out}"
    )
