"""Rebuild the filters of a run from its recorded plan, optionally with other parameters, to judge recorded scores.

Gives up: filters that hold functions or other values that a plan cannot record, and those that draw random numbers.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import scatter_to_rows
from gristmill.core.deciding_stage import DecidingStage, FilteringStage, Rule
from gristmill.core.errors import InputError, did_you_mean, shorten
from gristmill.core.records.drop_reasons import limit_text
from gristmill.core.records.value_identity import KIND, describe_value
from gristmill.core.stage import ProcessingStage
from gristmill.report.unchanged_scores import changed_labels, comparable_scores
from gristmill.samples.filters import SampleFilter
from gristmill.text.document_filter import DocumentFilter

if TYPE_CHECKING:
    from gristmill.report.run_records import Records

Settings = Mapping[str, Any]
"""New parameters: `Class.parameter`, `Class#2.parameter` for the second of two, or `name of a stage.parameter`, and the
value."""


@dataclass
class RecordedFilter:
    """A stage that judges rows: the columns of its scores by label, and the stage itself, if it could be made again."""

    name: str
    number: int
    columns: Mapping[str, str]
    thresholds: Mapping[str, str]
    stage: Any = None
    settings: Sequence[str] = ()
    """Those that it was made anew with."""
    branch: str = ""
    """Of a `Route`."""
    needs_all_rows: bool = False
    """What it decides depends on the rows that get there."""
    other_branches: Sequence[str] = ()
    """Rules on other branches: it never sees the rows that those drop."""
    before: Any = None
    """The stage as it was in the run, if its parameters are changed."""
    stale: set[str] = field(default_factory=set)
    """Labels that judge a column of scores that would be different."""
    rules: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """What is recorded of the rules of each label: name, limits and the column of their numbers."""

    @property
    def changed(self) -> bool:
        return bool(self.settings)

    @property
    def is_recallable(self) -> bool:
        """Whether all recorded numbers are those that the stage would compute with its parameters."""
        labelled_rules = [(label, one) for label, several in self.rules.items() for one in several]
        return all(self.comparable.get(label) for label in self.columns) and (
            not self.changed or all(self._is_measured_as_before(label, one) for label, one in labelled_rules)
        )

    @property
    def not_known(self) -> list[str]:
        """The filters that cannot be judged with their new parameters by what was recorded."""
        return [label for label, same in self.comparable.items() if not same]

    @cached_property
    def comparable(self) -> Mapping[str, bool]:
        """By label, whether the recorded scores are those that the stage would give with its parameters."""
        if not self.changed:
            return {label: label not in self.stale for label in self.columns}
        same = comparable_scores(self.before, self.stage)
        return {label: same.get(label, False) and label not in self.stale for label in self.columns}

    @cached_property
    def changed_labels(self) -> set[str]:
        """Of the filters whose parameters are changed."""
        return changed_labels(self.before, self.stage) if self.changed else set()

    def verdicts(self, table: pa.Table, then: pa.Array | None = None) -> dict[str, pa.Array]:
        """What each filter says to the scores of a table, by label; null where that is not known, as without a score.
        Labels that cannot be judged by numbers are left out. Of rows that the stage kept `then`, a score of null is
        known too."""
        if not isinstance(self.stage, DecidingStage):
            return {}
        found = {}
        for label in self.columns:
            if not self.comparable.get(label):
                continue
            scores = _column(table, self.columns[label])
            there = pc.is_valid(scores)
            measures = self._measures(label, table, there)
            if self.changed and not measures and any(rule.name for rule in self.stage.rules().get(label, ())):
                continue  # of a run that did not record them
            given = {label: measures} if measures else None
            for name, keep in (self.stage.judge({label: scores.filter(there)}, given) or {}).items():
                found[name] = scatter_to_rows(keep, there)
                if then is not None and not measures and label in self.changed_labels:
                    found[name] = self._with_null_scores(label, scores, then, found[name])
        return found

    def broken_rule(self, label: str, row: Mapping[str, Any]) -> tuple[str | None, float, float, str] | None:
        """The first rule that a row breaks: its name, the number, the limit, and the parameter that sets it."""
        for rule in self.rules.get(label, ()):
            number = row.get(rule["column"])
            if not isinstance(number, int | float) or number == rule.get("spared"):
                continue
            for side, outside in (("low", -1), ("high", 1)):
                limit = rule[side]
                if limit is None:
                    continue
                if (number - limit) * outside > 0 or (rule.get("strict") and number == limit):
                    limit_shown = limit_text(limit, rule[f"{side}_name"], side == "low")
                    return rule["rule"] or None, number, limit, limit_shown
        return None

    def changed_columns(self) -> list[str]:
        """The columns of the numbers that the changed parameters are compared with: those of the rules that differ, or
        of a filter without named rules its score."""
        if not self.changed or not isinstance(self.stage, DecidingStage):
            return []
        before, now = self.before.rules(), self.stage.rules()
        columns = []
        for label, column in self.columns.items():
            kept = {rule.name: rule for rule in before.get(label, ())}
            changed = {rule.name for rule in now.get(label, ()) if _limits(rule) != _limits(kept.get(rule.name))}
            named = [one["column"] for one in self.rules.get(label, ()) if one["rule"] and one["rule"] in changed]
            columns += named or ([column] if label in self.changed_labels else [])
        return columns

    def drops_by_rule(self, table: pa.Table, dropped: pa.Array, changed: bool) -> Counter[str]:
        """Of rows that the stage drops, or with its changed parameters would drop: how many break each rule first, by
        the column of its numbers. Filters without named rules, and inverted ones, are left out."""
        found: Counter[str] = Counter()
        left = dropped
        now = self.stage.rules() if changed and isinstance(self.stage, DecidingStage) else {}
        for label, several in self.rules.items():
            if self.thresholds.get(label, "").startswith("not ("):
                continue
            limits = {rule.name: rule for rule in now.get(label, ())}
            for recorded in several:
                rule = limits.get(recorded["rule"]) if changed else _recorded_rule(recorded)
                if rule is None or not rule.is_on or (changed and not self._is_measured_as_before(label, recorded)):
                    continue
                breaks = pc.invert(rule.holds(_column(table, recorded["column"]))).fill_null(literal(False, pa.bool_()))
                mine = pc.and_(left, breaks)
                left = pc.and_not(left, mine)
                if rule.name:
                    found[recorded["column"]] += mine.true_count
        return found

    def _is_measured_as_before(self, label: str, recorded: Mapping[str, Any]) -> bool:
        now = {rule.name: describe_value(rule.measured_with) for rule in self.stage.rules().get(label, ())}
        return recorded["rule"] in now and now[recorded["rule"]] == recorded["measured_with"]

    def _with_null_scores(self, label: str, scores: pa.Array, then: pa.Array, found: pa.Array) -> pa.Array:
        """What is found, with what the stage says to a score of null, for the rows that have it."""
        null = pc.and_(then, pc.is_null(scores))
        if not null.true_count:
            return found
        if self.branch:  # rows of other branches, which have no score and pass this stage by
            return pc.if_else(null, literal(True, pa.bool_()), found)
        try:
            judged = (self.stage.judge({label: scores.filter(null).slice(0, 1)}) or {}).get(label)
        except Exception:  # noqa: BLE001  filters of users may not expect it of other parameters
            judged = None
        return found if judged is None else pc.if_else(null, judged[0], found)

    def _measures(self, label: str, table: pa.Table, there: pa.Array) -> dict[str, pa.Array]:
        """The numbers of the rules of a label, where those still are what they were measured by."""
        recorded = {rule["rule"]: rule for rule in self.rules.get(label, ()) if rule["rule"]}
        if not recorded:
            return {}
        now = {rule.name: describe_value(rule.measured_with) for rule in self.stage.rules().get(label, ())}
        unknown = pa.nulls(there.true_count, pa.float64())
        return {
            name: _column(table, rule["column"]).filter(there)
            if name in now and now[name] == rule["measured_with"]
            else unknown
            for name, rule in recorded.items()
        }

    def verdict(self, table: pa.Table, then: pa.Array | None = None) -> pa.Array:
        """What the stage as a whole says; null where that is not known from scores. `then` tells which of the rows it
        kept in the run: these pass its filters that are as they were, whether or not those can be judged."""
        found = self.verdicts(table, then)
        unknown = pa.nulls(table.num_rows, pa.bool_())
        parts = []
        for label in self.columns:
            own = found.get(label, unknown)
            if then is not None and label not in self.changed_labels | self.stale:
                own = pc.if_else(pc.and_(then, pc.is_null(own)), literal(True, pa.bool_()), own)
            parts.append(own)
        return reduce(pc.and_kleene, parts) if parts else unknown


def _limits(rule: Rule | None) -> Any:
    return rule and (rule.low, rule.high, rule.strict, rule.spared)


def _recorded_rule(recorded: Mapping[str, Any]) -> Rule:
    strict, spared = bool(recorded.get("strict")), recorded.get("spared")
    return Rule(recorded["rule"], recorded["low"], recorded["high"], strict=strict, spared=spared)


def _column(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        return pa.nulls(table.num_rows, pa.float64())
    return as_one_array(table.column(name))


def recorded_filters(records: Records, settings: Settings | None = None) -> list[RecordedFilter]:
    """The rules of a run, in the order of its stages. Each setting must change one of them at least."""
    if records.scores is None:
        return []
    maker = _FilterRebuilder(settings or {})
    as_it_was = _FilterRebuilder({})
    rules = []
    for recorded in records.scores.stages:
        described = records.stages[recorded["stage"]] if recorded["stage"] < len(records.stages) else {}
        stage = maker.stage(described, recorded["name"])
        settings_of = maker.changed_stages.get(recorded["name"], ())
        columns, thresholds, branch = recorded["columns"], recorded["thresholds"], recorded.get("branch", "")
        rules.append(
            RecordedFilter(
                recorded["name"],
                recorded["stage"],
                columns,
                thresholds,
                stage,
                settings_of,
                branch,
                needs_all_rows=recorded.get("together", not columns),
                before=as_it_was.stage(described, recorded["name"]) if settings_of else None,
                rules=recorded.get("rules", {}),
            )
        )
    maker.check(rules)
    _mark_stale_scores(rules, records.stages)
    for rule in rules:
        rule.other_branches = [other.name for other in rules if _on_other_branches(rule.branch, other.branch)]
    return rules


def _mark_stale_scores(rules: Sequence[RecordedFilter], described: Sequence[Any]) -> None:
    """Find the filters that judge the scores of one whose scores would be different."""
    columns: set[str | None] = set()
    for rule in rules:
        steps = rule.stage.filter_steps() if isinstance(rule.stage, FilteringStage) else ()
        rule.stale = {step.label for step in steps if step.field in columns}
        if not steps and columns and any(_mentions(described[rule.number], column) for column in columns):
            rule.stale = {*rule.columns}
        columns |= {step.score_field for step in steps if step.label in rule.not_known} - {None}


def _mentions(described: Any, value: Any) -> bool:
    """Whether a stage that could not be made again has a value among its parameters."""
    parts = described.values() if isinstance(described, dict) else described if isinstance(described, list) else ()
    return bool(described == value) or any(_mentions(part, value) for part in parts)


def _on_other_branches(branch: str, other: str) -> bool:
    """Whether no row goes along both branches."""
    first, second = f"{branch}/", f"{other}/"
    return bool(branch and other) and not first.startswith(second) and not second.startswith(first)


@dataclass
class _FilterRebuilder:
    """Makes objects again from what a plan says of them."""

    settings: Settings
    used: set[str] = field(default_factory=set)
    changed_stages: dict[str, list[str]] = field(default_factory=dict)
    class_counts: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)

    def stage(self, described: Mapping[str, Any], name: str) -> Any:
        try:
            return self.rebuild(described, name)
        except InputError:
            raise
        except Exception as error:
            if name in self.changed_stages:
                raise InputError(f"{name}: {error}") from error
            self.failures[name] = str(error)
            return None

    def rebuild(self, described: Any, stage: str) -> Any:
        if isinstance(described, list):
            return [self.rebuild(one, stage) for one in described]
        if not isinstance(described, dict) or (KIND not in described and "class" not in described):
            return described
        if KIND in described:
            raise LookupError(f"a value of its own is not recorded: {described[KIND]}")
        kind = class_named_in_plan(described["class"])
        parameters = inspect.signature(kind).parameters
        given = {
            name: self.rebuild(described[name], stage)
            for name, parameter in parameters.items()
            if name in described and not (described[name] is None and parameter.default is not None)
        }
        self.class_counts[kind.__name__] += 1
        nth = f"{kind.__name__}#{self.class_counts[kind.__name__]}"
        names = {kind.__name__, nth, str(getattr(kind, "name", "")), stage}
        given |= self._changes(kind, names - {""}, parameters, stage)
        return kind(**given)

    def _changes(self, kind: type, names: set[str], parameters: Mapping[str, Any], stage: str) -> dict[str, Any]:
        found = {}
        for setting, value in self.settings.items():
            target, _, parameter = setting.rpartition(".")
            if target not in names:
                continue
            if parameter in parameters:
                found[parameter] = value
                self.used.add(setting)
                self.changed_stages.setdefault(stage, []).append(setting)
            elif target.partition("#")[0] == kind.__name__:
                hint = did_you_mean(parameter, parameters)
                raise InputError(f"{target} has no parameter {parameter!r}.{hint} Valid names: {', '.join(parameters)}")
        return found

    def check(self, rules: Sequence[RecordedFilter]) -> None:
        for setting in self.settings.keys() - self.used:
            target, _, number = setting.rpartition(".")[0].partition("#")
            if number and (there := self.class_counts[target]):
                raise InputError(f"{setting}: the run has {there} filters {target}: use {target}#1 to {target}#{there}")
            if target in self.failures:
                raise InputError(f"{setting}: cannot rebuild {target} from the recorded plan: {self.failures[target]}")
            names = [rule.name for rule in rules]
            raise InputError(
                f"{setting}: no filter of the run is called {target!r}.{did_you_mean(target, names)} "
                f"Valid names: {shorten(names, 40)}. Write NAME.PARAMETER=VALUE"
            )
        for rule in rules:
            judges = isinstance(rule.stage, DecidingStage) and rule.stage.judge({}) is not None
            if rule.name in self.changed_stages and not judges:
                raise InputError(f"{rule.name} cannot be re-evaluated from recorded scores: run the pipeline again")


def class_named_in_plan(path: str) -> type:
    """The class that a plan names by its public name, or by its module as earlier versions did: one of Gristmill's, or
    of a module that is loaded already."""
    module, _, name = path.rpartition(".")
    if module.startswith("gristmill."):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:  # the class has moved since: its package may export it
            module = ".".join(module.split(".")[:2])
            importlib.import_module(module)
    found = getattr(sys.modules.get(module), name, None)
    if isinstance(found, type) and issubclass(found, DocumentFilter | SampleFilter | ProcessingStage):
        return found
    raise LookupError(f"{path} is not a known filter or stage: import its module first")
