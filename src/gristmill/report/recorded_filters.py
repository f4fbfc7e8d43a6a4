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
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import scatter_to_rows
from gristmill.core.deciding_stage import DecidingStage
from gristmill.core.errors import InputError, did_you_mean, shorten
from gristmill.core.records.value_identity import KIND
from gristmill.core.stage import ProcessingStage
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

    @property
    def changed(self) -> bool:
        return bool(self.settings)

    def verdicts(self, table: pa.Table) -> dict[str, pa.Array]:
        """What each filter says to the scores of a table, by label; null where there is no score."""
        there = {label: column for label, column in self.columns.items() if column in table.column_names}
        if not there or not isinstance(self.stage, DecidingStage):
            return {}
        found = {}
        for label, column in there.items():
            scores = as_one_array(table.column(column))
            for name, keep in (self.stage.judge({label: scores.drop_null()}) or {}).items():
                found[name] = scatter_to_rows(keep, pc.is_valid(scores))
        return found

    def verdict(self, table: pa.Table) -> pa.Array | None:
        """What the stage as a whole says; None if that is not known from scores."""
        found = self.verdicts(table)
        known = [label for label, column in self.columns.items() if column in table.column_names]
        return reduce(pc.and_kleene, found.values()) if found and set(known) == set(found) else None


def recorded_filters(records: Records, settings: Settings | None = None) -> list[RecordedFilter]:
    """The rules of a run, in the order of its stages. Each setting must change one of them at least."""
    if records.scores is None:
        return []
    maker = _FilterRebuilder(settings or {})
    rules = []
    for told in records.scores.stages:
        described = records.stages[told["stage"]] if told["stage"] < len(records.stages) else {}
        stage = maker.stage(described, told["name"])
        settings_of = maker.changed_stages.get(told["name"], ())
        columns, thresholds, branch = told["columns"], told["thresholds"], told.get("branch", "")
        together = told.get("together", not columns)
        rules.append(
            RecordedFilter(told["name"], told["stage"], columns, thresholds, stage, settings_of, branch, together)
        )
    maker.check(rules)
    for rule in rules:
        rule.other_branches = [other.name for other in rules if _on_other_branches(rule.branch, other.branch)]
    return rules


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
