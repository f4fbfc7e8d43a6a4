"""Which rows a run would keep if the limits of one filter, or of one of its rules, were changed, from recorded scores.

A row is kept if its score lies within the limits and no other rule or filter drops it, as `report/whatif.py` tells. A
row that was dropped before some stage could see it may be kept or not: such rows are counted apart.

Gives up: what duplicates there would be among other rows; and rows beyond those that have 100 million scores together:
it says so then.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import GristmillError
from gristmill.core.records.row_scores import CHARS, DROPPED, LANGUAGE, unique_names
from gristmill.io.read.file_listing import list_files
from gristmill.io.storage.file_input import ignore
from gristmill.report.drop_sentence import limit_in_words, rule_in_words
from gristmill.report.recorded_filters import RecordedFilter, recorded_filters
from gristmill.report.run_records import Records
from gristmill.report.run_report.score_histogram import build_histogram, limits_in_threshold
from gristmill.report.whatif import (
    NO_VALUE,
    QuarantinedPositions,
    is_quarantined,
    is_undivided,
    quarantined_positions,
    stage_verdict,
    with_stages_without_scores,
)
from gristmill.view.data.query import is_number
from gristmill.view.data.row_access import FileRowAccess
from gristmill.view.data.row_sets import RunOrDataset

SCORES_DIRECTORY, SCORES_INDEX = "scores", "scores/_scores.json"
MOST_SCORES = 100_000_000
BINS = 60

_FLOAT = pa.float64()
_TRUE, _FALSE = literal(True, pa.bool_()), literal(False, pa.bool_())


@dataclass(frozen=True, slots=True)
class ScoredFilter:
    """A filter with recorded scores: the stage that it belongs to, the column of its scores, and what it wants."""

    stage: str
    label: str
    column: str
    threshold: str
    rule: str = ""
    """One of several rules that it has, which each have a column of numbers."""
    limits_known: ScoreLimits | None = None
    """The limits of the score or of the rule, where they were recorded."""
    name: str = ""
    """What the filter is called on a page: its label, or if several have that the name of its column."""

    @property
    def title(self) -> str:
        return f"{self.name}: {rule_in_words(self.rule)}" if self.rule else self.name

    @property
    def limits(self) -> list[tuple[str, float]]:
        """The numbers that its scores are compared with."""
        return limits_in_threshold(self.threshold)

    @property
    def is_inverted(self) -> bool:
        return self.threshold.startswith("not (")

    def drops(self, number: Any) -> bool | None:
        """Whether a row with this number is dropped by it; None if that is not known."""
        known = self.limits_known
        if known is None or (self.rule and self.is_inverted) or not isinstance(number, int | float):
            return None
        return known.good(make_array([float(number)], _FLOAT))[0].as_py() is self.is_inverted


@dataclass(frozen=True, slots=True)
class ScoreLimits:
    """From where to where a score is good. `open_low`: a score that is just the lowest is not."""

    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    spared: float | None = None
    """A score that is good although it is outside."""

    def good(self, scores: pa.Array) -> pa.Array:
        """Whether each score is good; null where there is none."""
        found = pa.repeat(_TRUE, len(scores))
        if self.low is not None:
            found = pc.and_(
                found, (pc.greater if self.open_low else pc.greater_equal)(scores, literal(self.low, _FLOAT))
            )
        if self.high is not None:
            found = pc.and_(found, (pc.less if self.open_high else pc.less_equal)(scores, literal(self.high, _FLOAT)))
        if self.spared is not None:
            found = pc.or_(found, pc.equal(scores, literal(self.spared, _FLOAT)))
        return pc.if_else(pc.is_valid(scores), found, literal(None, pa.bool_()))


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """Rows and characters that are kept: in the run, and with other limits; and the rows by language."""

    rows: int
    kept: tuple[int, int]
    dropped: tuple[int, int]
    """By the filter itself."""
    rows_gained: int
    rows_lost: int
    """Rows that would be kept and are not now; rows that would no longer be kept."""
    unknown: int
    """Rows that may be kept: they were dropped before some stage could see them."""
    chars: tuple[int, int]
    languages: tuple[tuple[str, int, int], ...]


class ScoreReader:
    """The recorded scores of a run."""

    def __init__(self, library: RunOrDataset) -> None:
        self._library = library
        self._loaded: dict[str, JudgedRows] = {}
        self._lock = threading.Lock()

    def filters(self) -> list[ScoredFilter]:
        """Those that judge rows by themselves, each rule of those with several; none when the run was not asked to keep
        scores."""
        room = self._library.records_store
        raw = room.get(SCORES_INDEX) if room else None
        if raw is None:
            return []
        parts = [
            (stage, label, column)
            for stage in orjson.loads(raw).get("stages", [])
            if not stage.get("together")
            for label, column in stage.get("columns", {}).items()
        ]
        labels = Counter(label for _, label, _ in parts)
        return [
            replace(one, name=label if labels[label] == 1 else column)
            for stage, label, column in parts
            for one in _filter_and_rules(stage, label, column)
        ]

    def sources(self) -> list[FileRowAccess]:
        room = self._library.records_store
        if room is None:
            return []
        try:
            files = list_files(f"{room.url}/{SCORES_DIRECTORY}", [".parquet"], self._library.storage_options)
        except GristmillError:  # none are there yet
            return []
        return [FileRowAccess(file.path, file.size or 0, self._library.storage_options) for file in files]

    def judged(self, column: str) -> JudgedRows | None:
        """All rows that the filter with this column may have judged."""
        with self._lock:
            sources = self.sources()
            stamp = str([(source.id, source.size) for source in sources])
            known = self._loaded.pop(column, None)
            if known is None or known.stamp != stamp:
                chosen = [one for one in self.filters() if one.column == column]
                chosen = chosen or [one for one in self.filters() if one.rule and column in (one.label, one.stage)]
                known = self._load(chosen[0], stamp) if chosen else None
            if known is not None:
                self._loaded[column] = known
                while len(self._loaded) > 3:
                    self._loaded.pop(next(iter(self._loaded)))
            return known

    def _load(self, chosen: ScoredFilter, stamp: str) -> JudgedRows | None:
        assert self._library.records_store is not None
        records = Records(self._library.records_store.url, self._library.storage_options, self._library.follow_paths)
        schema = records.scores.rows.schema if records.scores else None
        if records.scores is None or schema is None or chosen.column not in schema.names:
            return None
        if records.scores.are_confused:
            return None
        kind = schema.field(chosen.column).type
        if not (is_number(kind) or pa.types.is_boolean(kind)):
            return None
        rules, aside = recorded_filters(records), quarantined_positions(records)
        order = {name: number for number, name in enumerate(unique_names(one["name"] for one in records.stages))}
        columns = [column for rule in rules for column in rule.columns.values()]
        columns += [recorded["column"] for rule in rules for several in rule.rules.values() for recorded in several]
        tables, rows, partial = [], 0, False
        for piece in records.scores.pieces(columns):
            if rows * len(columns) >= MOST_SCORES:
                partial = True
                break
            if piece.num_rows:
                tables.append(
                    _judge_rows(chosen, piece.combine_chunks(), rules, order, aside, records.scores.has_parts)
                )
                rows += piece.num_rows
        found = pa.concat_tables(tables).combine_chunks() if rows else None
        numbers = found is not None and found.column("score").null_count < rows
        return JudgedRows(chosen, found, stamp, partial) if numbers else None

    def scores_of_row(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The scores of the row that has these facts: the file and the position that it came from, or its id."""
        found: dict[str, Any] = {}
        for source in self.sources():
            if not set(wanted) <= set(source.columns):
                continue
            for block in source.blocks(list(wanted), ignore):
                assert block.table is not None
                place = _first_matching_row(block.table, wanted)
                if place >= 0:
                    row = source.rows_between(block.start + place, block.start + place + 1).to_pylist()[0]
                    found |= {name: value for name, value in row.items() if value is not None}
        return found


def _filter_and_rules(stage: Mapping[str, Any], label: str, column: str) -> list[ScoredFilter]:
    """A filter, or instead of it the rules that it has."""
    threshold, found = str(stage.get("thresholds", {}).get(label) or ""), stage.get("rules", {}).get(label, ())
    rules = []
    for one in found:
        low, high, strict = one["low"], one["high"], bool(one.get("strict"))
        if low is None and high is None:
            continue
        limits = ScoreLimits(low, high, strict, strict, one.get("spared"))
        words = limit_in_words(low, high, one["low_name"], one["high_name"], strict)
        if one["rule"]:
            words = f"not ({words})" if threshold.startswith("not (") else words
            rules.append(ScoredFilter(stage["name"], label, one["column"], words, one["rule"], limits))
        elif len(found) == 1:
            rules.append(ScoredFilter(stage["name"], label, column, threshold, "", limits))
    if threshold and not any(map(str.isdigit, threshold)):
        return rules  # such as "drop=email": there is no limit to move
    return rules or [ScoredFilter(stage["name"], label, column, threshold)]


def _first_matching_row(table: pa.Table, wanted: Mapping[str, Any]) -> int:
    """The number of the first row that has these values; -1 if there is none."""
    same = pa.repeat(literal(True, pa.bool_()), table.num_rows)
    for name, value in wanted.items():
        kind = pa.int64() if isinstance(value, int) else pa.string()
        same = pc.and_(same, pc.equal(table.column(name).cast(kind), literal(value, kind)))
    return int(pc.index(same, literal(True, pa.bool_())).as_py())


def _judge_rows(
    chosen: ScoredFilter,
    table: pa.Table,
    rules: Sequence[RecordedFilter],
    order: Mapping[str, int],
    aside: QuarantinedPositions,
    has_parts: bool,
) -> pa.Table:
    """What is to be known of each row: its score, what the run did with it, and what all others than the chosen filter
    say: before its stage and in all. Those are null where they have not seen the row."""
    was, apart = as_one_array(table.column(DROPPED)), is_quarantined(table, aside)
    before = others = pc.invert(apart)
    rest, mine = pa.repeat(_TRUE, table.num_rows), _is(was, chosen.stage)
    for rule in with_stages_without_scores(rules, was, order):
        if rule.name == chosen.stage:
            found = rule.verdicts(table)
            unsaid = pc.if_else(mine, literal(None, pa.bool_()), _TRUE)
            labels = list(rule.columns)
            said = {label: found.get(label, unsaid) for label in labels if label != chosen.label}
            earlier = reduce(
                pc.and_kleene, [said[label] for label in labels[: labels.index(chosen.label)]], pc.invert(apart)
            )
            earlier_rules, rest = _other_rules(chosen, rule.rules.get(chosen.label, ()), table)
            earlier = pc.and_kleene(earlier, earlier_rules)
            own = ScoreLimits() if chosen.limits_known is None else chosen.limits_known
            passes = own.good(_floats(table, chosen.column)) if chosen.rule and not chosen.is_inverted else None
            mine = pc.and_(mine, pc.fill_null(earlier, _TRUE))
            if passes is None:
                passes = found.get(chosen.label, pc.if_else(mine, literal(None, pa.bool_()), _TRUE))
            mine = pc.and_(mine, pc.invert(pc.fill_null(passes, _FALSE)))
            before = pc.and_kleene(others, earlier)
            others = reduce(pc.and_kleene, said.values(), others)
        else:
            others = pc.and_kleene(others, stage_verdict(rule, table, was, order))
    if has_parts:
        others = pc.and_kleene(others, pc.if_else(is_undivided(table), literal(None, pa.bool_()), _TRUE))
    columns = {
        "score": _floats(table, chosen.column),
        "kept": pc.and_(pc.is_null(was), pc.invert(apart)),
        "mine": mine,
        "before": before,
        "others": others,
        "rest": rest,
        LANGUAGE: _texts(table, LANGUAGE),
        CHARS: pc.fill_null(_floats(table, CHARS), literal(0.0, _FLOAT)),
    }
    return pa.table(columns)


def _other_rules(
    chosen: ScoredFilter, rules: Sequence[Mapping[str, Any]], table: pa.Table
) -> tuple[pa.Array, pa.Array]:
    """Whether the rules before the chosen one hold, and all others of its filter; null where it was not measured. What
    an inverted filter drops has broken no rule: there, none comes before another."""
    before = rest = pa.repeat(_TRUE, table.num_rows)
    if not chosen.rule:
        return before, rest
    is_before = not chosen.is_inverted
    for one in rules:
        if one["rule"] == chosen.rule:
            is_before = False
            continue
        strict = bool(one.get("strict"))
        limits = ScoreLimits(one["low"], one["high"], strict, strict, one.get("spared"))
        if one["low"] is None and one["high"] is None:
            continue
        holds = limits.good(_floats(table, one["column"]))
        rest = pc.and_kleene(rest, holds)
        before = pc.and_kleene(before, holds) if is_before else before
    return before, rest


def _floats(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name) if name in table.column_names else None
    if column is not None and pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if column is None or not is_number(column.type):
        return pa.nulls(table.num_rows, _FLOAT)
    return as_one_array(column.cast(_FLOAT, safe=False))


def _texts(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        return pa.nulls(table.num_rows, pa.string())
    return as_one_array(table.column(name).cast(pa.string()))


class JudgedRows:
    """Rows with their scores, in memory, ready for questions."""

    def __init__(self, chosen: ScoredFilter, table: pa.Table, stamp: str, partial: bool) -> None:
        self.filter, self.stamp, self.partial = chosen, stamp, partial
        self._rows = table.num_rows
        self._scores, self._kept, self._mine = (_column(table, name) for name in ("score", "kept", "mine"))
        self._others, self._rest = _column(table, "others"), _column(table, "rest")
        self._reach = pc.fill_null(_column(table, "before"), _FALSE)
        self.limits_in_run = limits_of_filter(chosen, self._scores, self._mine, self._kept)
        self._languages = _column(table, LANGUAGE).dictionary_encode()
        self._chars = _column(table, CHARS)
        self.histogram = build_histogram(self._scores.drop_null().to_numpy(zero_copy_only=False), bins=BINS)

    def ask(self, low: float | None, high: float | None) -> WhatIfAnswer:
        """What there would be with these limits."""
        now = self.limits_in_run
        same_low, same_high = low == now.low, high == now.high
        same = same_low and same_high
        strict = self.filter.limits_known is not None and now.open_low
        open_low, open_high = now.open_low and (strict or same_low), now.open_high and (strict or same_high)
        limits = ScoreLimits(low, high, open_low, open_high, now.spared)
        good = limits.good(self._scores)
        passes = good
        if self.filter.is_inverted:
            good = passes = pc.invert(pc.and_kleene(self._rest, good))
        elif self.filter.rule:
            passes = pc.and_kleene(self._rest, good)
        verdict = pc.and_kleene(self._others, passes)
        kept = self._kept if same else pc.fill_null(verdict, _FALSE)
        drops = pc.and_(pc.invert(pc.fill_null(good, _TRUE)), self._reach)
        before, after = (self._count(which) for which in (self._kept, kept))
        languages = [
            (name or NO_VALUE, was, after[1].get(name, 0))
            for name, was in sorted({**dict.fromkeys(after[1], 0), **before[1]}.items(), key=lambda item: -item[1])
        ]
        return WhatIfAnswer(
            self._rows,
            (self._kept.true_count, kept.true_count),
            (self._mine.true_count, self._mine.true_count if same else drops.true_count),
            pc.and_(kept, pc.invert(self._kept)).true_count,
            pc.and_(self._kept, pc.invert(kept)).true_count,
            0 if same else verdict.null_count,
            (before[0], after[0]),
            tuple(languages[:20]) if len(self._languages.dictionary) else (),
        )

    def _count(self, chosen: pa.Array) -> tuple[int, dict[str | None, int]]:
        chars = pc.sum(self._chars.filter(chosen)).as_py() or 0
        counted = pc.value_counts(self._languages.filter(chosen))
        names, counts = counted.field("values"), counted.field("counts").to_pylist()
        return int(chars), dict(zip(names.to_pylist(), counts, strict=True))


def _column(table: pa.Table, name: str) -> pa.Array:
    return as_one_array(table.column(name))


def _is(stages: pa.Array, name: str) -> pa.Array:
    return pc.fill_null(pc.equal(stages, literal(name, pa.string())), literal(False, pa.bool_()))


def limits_of_filter(one: ScoredFilter, scores: pa.Array, dropped: pa.Array, passed: pa.Array) -> ScoreLimits:
    """Where a filter has its limits: as was recorded, else by the names of its thresholds, else by what it dropped and
    what went on."""
    if one.limits_known is not None:
        return one.limits_known
    good = pc.min_max(scores.filter(passed)).as_py()
    bad = scores.filter(dropped)
    low = high = None
    for name, value in one.limits:
        if name.startswith("min"):
            low = value
        elif name.startswith("max"):
            high = value
        elif good["min"] is not None and len(bad):
            below = pc.any(pc.less(bad, literal(good["min"], _FLOAT))).as_py()
            low, high = (value, high) if below else (low, value)
    return ScoreLimits(low, high, _open(bad, low), _open(bad, high))


def _open(bad: pa.Array, limit: float | None) -> bool:
    """Whether a score that is just the limit was dropped."""
    return limit is not None and bool(pc.any(pc.equal(bad, literal(limit, _FLOAT))).as_py())
