"""Compute which rows other filter parameters would have kept, from recorded scores and without the text.

Of a row it is known what each filter says that has scored it. A row is dropped if one of them drops it; kept if all are
known and keep it; else it is not known. So what a stricter filter keeps is exact, and what a laxer one keeps as far as
the filters after it have scored the rows that it dropped. `scores=True` has them do that, up to the next stage that
changes the text or has rows meet. What stages decide that have no scores, such as deduplication, is taken from the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import InputError, shorten
from gristmill.core.records.rejected_rows import PART as REJECTED_PART
from gristmill.core.records.row_scores import (
    CHARS,
    DROPPED,
    FILE,
    ID,
    LANGUAGE,
    PART,
    PLACE,
    SOURCE,
    TOKENS,
    unique_names,
)
from gristmill.core.row_sampling import draw_uniform
from gristmill.core.task import digest
from gristmill.report.recorded_filters import RecordedFilter, Settings, recorded_filters
from gristmill.report.run_records import SCORES, Records, read_input_row

SAMPLE_ROWS, MAX_GROUP_VALUES = 5, 1000
NO_VALUE = "(none)"
"""What rows without a language or a source are counted as."""

SCORES_CONFUSED = (
    "not known: a stage made several rows of one, and these have no names that a batch class tells (part_column), so "
    "that their scores could not be kept apart"
)

_FALSE = literal(False, pa.bool_())


@dataclass
class KeptAmount:
    """Rows, with their characters and tokens as far as those are known."""

    rows: int = 0
    chars: int = 0
    tokens: int = 0

    def add(self, table: pa.Table, mask: pa.Array) -> None:
        self.rows += mask.true_count
        for name in (CHARS, TOKENS):
            if name in table.column_names:
                more = pc.sum(table.column(name).filter(mask)).as_py() or 0
                setattr(self, name, getattr(self, name) + more)


@dataclass
class WhatIf:
    """What would be otherwise."""

    settings: dict[str, Any]
    rows: int = 0
    """Of the input."""
    before: KeptAmount = field(default_factory=KeptAmount)
    after: KeptAmount = field(default_factory=KeptAmount)
    unknown: KeptAmount = field(default_factory=KeptAmount)
    """Rows that no filter that has scored them drops, but which some filter has not scored."""
    groups: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    """By language and by source (or file): rows kept before and after."""
    stages: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rows that each stage drops, before and after."""
    gained: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    """Some of the rows that would be kept, and that would be dropped, each with file, position, scores and row."""
    rules: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of stages that are changed, for each rule of a filter with several: rows that the stage drops and that break this
    rule first, before and after. By the column of the rule's numbers."""
    exact: bool = True
    """Whether a run would keep just the rows that are counted in `after`. False: part of that is not known."""
    notes: list[str] = field(default_factory=list)


def whatif(
    run: str | Records, settings: Settings, samples: int = SAMPLE_ROWS, storage_options: Mapping[str, Any] | None = None
) -> WhatIf:
    """What a run would have kept with other parameters: `whatif("run", {"WordCountFilter.min_words": 30})`."""
    records = run if isinstance(run, Records) else Records(run, storage_options)
    if records.scores is None:
        raise InputError(f"{records.place}: {records.explain_missing(SCORES)}")
    if records.scores.are_confused:
        raise InputError(f"{records.place}: {SCORES_CONFUSED}. Run the pipeline again with the other parameters")
    rules = recorded_filters(records, settings)
    found = WhatIf(dict(settings))
    order = {name: number for number, name in enumerate(unique_names(stage["name"] for stage in records.stages))}
    aside = quarantined_positions(records)
    count = _WhatIfCounter(found, rules, order, aside, records.scores.has_parts, samples)
    for table in records.scores.pieces():
        count.add(table)
    count.close(records)
    found.exact = not found.unknown.rows and not (count.differs and _decide_by_all_rows(rules))
    found.notes += _notes(rules, found)
    return found


QuarantinedPositions = Mapping[str, Mapping[int, list[str]]]
"""By file and position, the values of text that the records in quarantine have: the name of a part is one of them."""


def quarantined_positions(records: Records) -> QuarantinedPositions:
    """Where the records in quarantine come from."""
    places: dict[str, dict[int, list[str]]] = {}
    for record in records.quarantined():
        if record.file is not None and record.position is not None:
            values = places.setdefault(record.file, {}).setdefault(record.position, [])
            values += [value for value in (record.row or {}).values() if isinstance(value, str)]
    return places


def is_quarantined(table: pa.Table, aside: QuarantinedPositions) -> pa.Array:
    """Which rows are in quarantine."""
    mask = pa.repeat(_FALSE, table.num_rows)
    for file, places in aside.items():
        here = pc.equal(table.column(FILE), literal(file, pa.string()))
        there = pc.is_in(table.column(PLACE), value_set=make_array([*places], pa.int64()))
        if PART in table.column_names:
            part = table.column(PART)
            names = make_array([value for values in places.values() for value in values], pa.string())
            there = pc.and_(there, pc.or_(pc.is_null(part), pc.is_in(part, value_set=names)))
        mask = pc.or_(mask, as_one_array(pc.and_(here, there)))
    return mask


def is_undivided(table: pa.Table) -> pa.Array:
    """Which rows were dropped whole, in a run that divides rows into parts: how many rows would be made of them, and
    what would become of these, is not known."""
    if PART not in table.column_names:
        return pa.repeat(_FALSE, table.num_rows)
    return as_one_array(pc.and_(pc.is_null(table.column(PART)), pc.is_valid(table.column(DROPPED))))


def with_stages_without_scores(
    rules: Sequence[RecordedFilter], was: pa.Array, order: Mapping[str, int]
) -> list[RecordedFilter]:
    """The rules, and a stage for each name that is none of theirs: one that drops rows without saying so."""
    names = {rule.name for rule in rules}
    others = [name for name in pc.unique(was).to_pylist() if name is not None and name not in names]
    more = [RecordedFilter(name, order.get(name, -1), {}, {}) for name in others]
    return sorted([*rules, *more], key=lambda rule: rule.number)


def _notes(rules: Sequence[RecordedFilter], found: WhatIf) -> list[str]:
    notes = [
        f"not known: {label} would give other scores with this setting. Run the pipeline again to find out"
        for rule in rules
        for label in rule.not_known
    ]
    if found.unknown.rows:
        why = "" if notes else ": an earlier stage dropped them, so later stages have not scored them"
        notes.append(f"up to {found.unknown.rows:,} more rows may be kept{why}")
    for setting in found.settings:
        several = [rule.name for rule in rules if setting in rule.settings]
        if len(several) > 1:
            name, _, parameter = setting.rpartition(".")
            notes.append(
                f"{setting} changes {len(several)} filters: {shorten(several, 6)}. For one of them write its name, or "
                f"{name}#2.{parameter} for the second"
            )
    if later := _decide_by_all_rows(rules):
        notes.append(
            f"not known: what {', '.join(later)} would drop, which depends on the rows that reach it. The run's "
            "decisions were used"
        )
    return notes


def _decide_by_all_rows(rules: Sequence[RecordedFilter]) -> list[str]:
    """The stages after the first change whose decisions depend on which rows reach them."""
    first = min((rule.number for rule in rules if rule.changed), default=0)
    return [rule.name for rule in rules if rule.number > first and rule.needs_all_rows]


class _WhatIfCounter:
    """Adds up what tables of scores tell."""

    def __init__(
        self,
        found: WhatIf,
        rules: Sequence[RecordedFilter],
        order: Mapping[str, int],
        aside: QuarantinedPositions,
        has_parts: bool,
        samples: int,
    ) -> None:
        self.has_parts = has_parts
        self.found, self.rules, self.order, self.quarantined, self.samples = found, rules, order, aside, samples
        self.differs = False
        """Whether other rows leave a filter than did."""
        self._before: Counter[str] = Counter()
        self._after: Counter[str] = Counter()
        self._by_rule: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._groups: dict[str, tuple[Counter[str], Counter[str]]] = {}
        self._picked: dict[str, list[tuple[float, dict[str, Any]]]] = {"gained": [], "lost": []}

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        table = table.combine_chunks()
        was = as_one_array(table.column(DROPPED))
        aside = is_quarantined(table, self.quarantined)
        kept = pc.and_(pc.is_null(was), pc.invert(aside))
        verdicts = {
            rule.name: stage_verdict(rule, table, was, self.order)
            for rule in with_stages_without_scores(self.rules, was, self.order)
        }
        dropped = reduce(pc.or_, [pc.equal(one, _FALSE).fill_null(_FALSE) for one in verdicts.values()], aside)
        known = reduce(pc.and_, [pc.is_valid(one) for one in verdicts.values()], pc.is_valid(aside))
        if self.has_parts:
            known = pc.and_not(known, is_undivided(table))
        now = pc.and_(pc.invert(dropped), known)
        self.found.rows += table.num_rows
        self.found.before.add(table, kept)
        self.found.after.add(table, now)
        self.found.unknown.add(table, pc.and_(pc.invert(dropped), pc.invert(known)))
        self.differs |= pc.not_equal(now, kept).true_count > 0
        self._count_stages(table, was, verdicts, aside)
        self._count_groups(table, kept, now)
        self._pick("gained", table, pc.and_(now, pc.invert(kept)))
        self._pick("lost", table, pc.and_(kept, pc.invert(now)))

    def _count_stages(self, table: pa.Table, was: pa.Array, verdicts: Mapping[str, pa.Array], aside: pa.Array) -> None:
        left = pc.invert(aside)
        changed = {rule.name: rule for rule in self.rules if rule.changed}
        for name, verdict in verdicts.items():
            drops = pc.and_(left, pc.equal(verdict, _FALSE).fill_null(_FALSE))
            self._after[name] += drops.true_count
            if name in changed:
                then = pc.equal(was, literal(name, pa.string())).fill_null(_FALSE)
                for counts, dropped, after in zip(self._by_rule, (then, drops), (False, True), strict=True):
                    counts.update(changed[name].drops_by_rule(table, dropped, after))
            left = pc.and_(left, pc.invert(drops))
        for name, count in _counted(was).items():
            self._before[name] += count

    def _count_groups(self, table: pa.Table, kept: pa.Array, now: pa.Array) -> None:
        by = [name for name in (LANGUAGE, SOURCE) if name in table.column_names]
        for name in by if SOURCE in by else [*by, FILE]:
            before, after = self._groups.setdefault(name, (Counter(), Counter()))
            for counts, mask in ((before, kept), (after, now)):
                values = as_one_array(table.column(name)).filter(mask)
                more = _counted(values.fill_null(NO_VALUE))
                counts.update(
                    {value: n for value, n in more.items() if value in counts or len(counts) < MAX_GROUP_VALUES}
                )

    def _pick(self, kind: str, table: pa.Table, mask: pa.Array) -> None:
        """A random sample of rows, the same each time."""
        rows = table.filter(mask)
        if not rows.num_rows or not self.samples:
            return
        places = as_one_array(rows.column(PLACE)).cast(pa.uint64(), safe=False)
        drawn = draw_uniform(places, int(digest(["what if", str(rows.column(FILE)[0])]), 16))
        best = pc.array_sort_indices(drawn).slice(0, self.samples)
        drawn_rows = zip(drawn.take(best).to_pylist(), rows.take(best).to_pylist(), strict=True)
        self._picked[kind] = sorted([*self._picked[kind], *drawn_rows], key=lambda one: one[0])[: self.samples]

    def close(self, records: Records) -> None:
        found = self.found
        names = dict.fromkeys([*(rule.name for rule in self.rules), *self._before, *self._after])
        found.stages = {name: (self._before[name], self._after[name]) for name in names}
        was, now = self._by_rule
        found.rules = {name: (was[name], now[name]) for name in dict.fromkeys([*was, *now])}
        for group, (before, after) in self._groups.items():
            values = [value for value, _ in (before + after).most_common()]
            found.groups[group] = {value: (before[value], after[value]) for value in values}
        found.gained = [_sample_row(row, records, self.rules) for _, row in self._picked["gained"]]
        found.lost = [_sample_row(row, records, self.rules) for _, row in self._picked["lost"]]


def stage_verdict(rule: RecordedFilter, table: pa.Table, was: pa.Array, order: Mapping[str, int]) -> pa.Array:
    """Whether a stage keeps each row: as it did, if it has the same parameters as then and the row got there; else as
    its scores say; null where that is not known. Rows of other branches pass it by."""
    names = [name for name in pc.unique(was).to_pylist() if name is not None]
    before = [name for name in names if order.get(name, -1) < rule.number]
    gone = pc.is_in(was, value_set=make_array(before, pa.string())) if before else pa.repeat(_FALSE, len(was))
    then = pc.invert(pc.equal(was, literal(rule.name, pa.string())).fill_null(_FALSE))
    unseen = rule.verdict(table)
    if rule.branch:  # which branch a row would take that was dropped before is not known
        unseen = pc.if_else(unseen.fill_null(_FALSE), unseen, literal(None, pa.bool_()))
    if rule.other_branches:
        passing = pc.is_in(was, value_set=make_array([*rule.other_branches], pa.string()))
        unseen = pc.if_else(passing, literal(True, pa.bool_()), unseen)
    return pc.if_else(gone, unseen, rule.verdict(table, then) if rule.changed or rule.stale else then)


def _counted(values: pa.Array) -> dict[str, int]:
    counts = pc.value_counts(values.drop_null())
    return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))


def _sample_row(row: Mapping[str, Any], records: Records, rules: Sequence[RecordedFilter]) -> dict[str, Any]:
    changed = [column for rule in rules for column in rule.changed_columns()]
    return {
        "file": row[FILE],
        "position": row[PLACE],
        "id": row.get(ID) if row.get(PART) is None else row[PART],
        "dropped_by": row[DROPPED],
        "scores": {column: row.get(column) for column in changed},
        "row": input_row_at(records, row[FILE], row[PLACE], row.get(PART)),
    }


def input_row_at(records: Records, file: str, position: int, part: str | None = None) -> dict[str, Any] | None:
    """A row of the input, or a part of one: from the rejected rows, if it is there, else from the input itself."""
    from pyarrow import dataset as ds

    there = (ds.field("rejected_file") == file) & (ds.field("rejected_position") == position)
    for rejected in records.rejected or ():
        if part is not None and REJECTED_PART not in rejected.schema.names:
            continue
        mine = there if part is None else there & (ds.field(REJECTED_PART) == part)
        rows = rejected.to_table(filter=mine).to_pylist()
        if rows:
            return {name: value for name, value in rows[0].items() if not name.startswith("rejected_")}
    path = records.input_path(file)
    try:
        return read_input_row(path, position, records.options) if path else None
    except (OSError, ValueError):
        return None
