"""Rewrite the imports of a Python script, and say line by line what differs or is missing.

Only the text of imports, of dotted uses (`nc.pipeline.Pipeline`) and of class paths in strings is replaced; comments
and formatting stay. What is given up: names that are put together at run time, and parameters passed as `**options`.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass, field

from gristmill.core.errors import did_you_mean
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import Task
from gristmill.migrate.name_map import CURATOR, Place, find_name, why_missing

ERROR, NOTE = "error", "note"
_PATH = re.compile(rf"{CURATOR}(?:\.\w+)+")
_FRAME_METHODS = frozenset(
    ("iterrows", "apply", "loc", "iloc", "copy", "dropna", "merge", "groupby", "columns", "assign")
)


@dataclass(frozen=True)
class Finding:
    """What a line needs that an import cannot give. `kind` is "error" if it would not run, else "note"."""

    line: int
    kind: str
    text: str


@dataclass
class Rewrite:
    """A text after the rewrite. Notebooks carry `classes` and `modules` from cell to cell."""

    text: str
    findings: list[Finding] = field(default_factory=list)
    classes: dict[str, Place] = field(default_factory=dict)
    """Names of the script that stand for something of Gristmill."""
    modules: dict[str, str] = field(default_factory=dict)
    """Names of the script that stand for a module of NeMo Curator."""


def rewrite_script(text: str, known: Rewrite | None = None) -> Rewrite:
    """The script for Gristmill. `known` is what earlier cells of a notebook have imported."""
    result = Rewrite(text)
    if known:
        result.classes, result.modules = dict(known.classes), dict(known.modules)
    try:
        tree = ast.parse(_without_magics(text))
    except SyntaxError as error:
        if CURATOR in text:
            result.findings.append(Finding(error.lineno or 1, ERROR, f"not Python that can be read: {error.msg}"))
        return result
    _Script(tree, result).rewrite()
    result.findings = sorted(set(result.findings), key=lambda one: (one.line, one.text))
    return result


def _without_magics(text: str) -> str:
    """Lines of IPython (`%pip`, `!ls`) as comments of the same length."""
    return re.sub(r"(?m)^([ \t]*)[%!?](.*)$", r"\1#\2", text)


class _Script:
    """One script: what its imports bind, and the edits."""

    def __init__(self, tree: ast.Module, result: Rewrite) -> None:
        self.tree, self.result = tree, result
        self.edits: list[tuple[int, int, str]] = []
        lines = result.text.splitlines(keepends=True)
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line.encode()))

    def rewrite(self) -> None:
        nodes = list(ast.walk(self.tree))
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        for one in imports:
            self._bind(one)
        used = {place.module for node in nodes if (place := self._dotted_use(node))}
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                self._rewrite_chain(node)
            elif isinstance(node, ast.Call):
                self._check_call(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and CURATOR in node.value:
                self._rewrite_string(node)
        for one in imports:
            self._rewrite_import(one, used)
        self.result.text = self._edited()

    # -- imports -------------------------------------------------------------------------------------------

    def _bind(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_curator(alias.name):
                    self.result.modules[alias.asname or CURATOR] = alias.name if alias.asname else CURATOR
        elif _is_curator(node.module) and not node.level:
            for alias in node.names:
                place = find_name(str(node.module), alias.name)
                if place:
                    self.result.classes[alias.asname or alias.name] = place
                elif alias.name.islower() and alias.name != "*":
                    self.result.modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _rewrite_import(self, node: ast.Import | ast.ImportFrom, used: set[str]) -> None:
        names = node.names
        if isinstance(node, ast.Import):
            if not any(_is_curator(alias.name) for alias in names):
                return
            others = [ast.unparse(ast.Import([alias])) for alias in names if not _is_curator(alias.name)]
            self._replace(node, [*others, *(f"import {module}" for module in sorted(used | {"gristmill"}))])
            return
        if node.level or not _is_curator(node.module):
            return
        module, lines, left = str(node.module), list[str](), list[ast.alias]()
        groups: dict[str, list[str]] = {}
        for alias in names:
            place = find_name(module, alias.name)
            bound = alias.asname or alias.name
            if place:
                asname = "" if place.name == bound else f" as {bound}"
                groups.setdefault(place.module, []).append(place.name + asname)
            elif self._is_used_module(bound):
                lines += [f"import {one}" for one in sorted(used | {"gristmill"})]
            else:
                left.append(alias)
                self._find(node, ERROR, why_missing(module, alias.name) if alias.name != "*" else f"{module}: import *")
        lines += [f"from {target} import {', '.join(found)}" for target, found in sorted(groups.items())]
        lines += [ast.unparse(ast.ImportFrom(module, left, 0))] if left else []
        self._replace(node, list(dict.fromkeys(lines)))

    def _is_used_module(self, bound: str) -> bool:
        chains = (node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute))
        return bound in self.result.modules and any(
            isinstance(node.value, ast.Name) and node.value.id == bound for node in chains
        )

    # -- uses ----------------------------------------------------------------------------------------------

    def _dotted_use(self, node: ast.AST) -> Place | None:
        """What `nc.pipeline.Pipeline` stands for; None for other attributes."""
        names = _chain(node)
        if len(names) < 2 or names[0] not in self.result.modules:
            return None
        return find_name(".".join([self.result.modules[names[0]], *names[1:-1]]), names[-1])

    def _rewrite_chain(self, node: ast.Attribute) -> None:
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            place = self._dotted_use(inner)
            if place:
                self._replace(inner, [f"{place.module}.{place.name}"])
                return
            inner = inner.value
        names = _chain(node)
        if names and names[0] in self.result.modules:
            path = ".".join([self.result.modules[names[0]], *names[1:-1]])
            self._find(node, ERROR, why_missing(path, names[-1]))
        elif len(names) > 2 and names[-2] == "data" and names[-1] in _FRAME_METHODS:
            self._find(node, NOTE, f"data of a DocumentBatch is an Arrow table, without .{names[-1]}: use to_pandas()")

    def _check_call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "num_workers":
            self._find(node, NOTE, "num_workers is an attribute of stages: leave the parentheses out")
        name = node.func.id if isinstance(node.func, ast.Name) else None
        place = self.result.classes.get(name) if name else self._dotted_use(node.func)
        if place:
            for keyword in node.keywords:
                problem = parameter_problem(place, keyword.arg)
                if problem:
                    self._find(keyword, ERROR, problem)

    def _rewrite_string(self, node: ast.Constant) -> None:
        start, end = self._span(node)
        source = self.result.text.encode()[start:end].decode()
        new, missing = rewrite_paths(source)
        for text in missing:
            self._find(node, ERROR, text)
        if new != source:
            self.edits.append((start, end, new))

    # -- edits ---------------------------------------------------------------------------------------------

    def _find(self, node: ast.expr | ast.stmt | ast.keyword, kind: str, text: str) -> None:
        self.result.findings.append(Finding(node.lineno, kind, text))

    def _span(self, node: ast.AST) -> tuple[int, int]:
        place: ast.expr = node  # type: ignore[assignment]
        start = self.starts[place.lineno - 1] + place.col_offset
        return start, self.starts[(place.end_lineno or place.lineno) - 1] + (place.end_col_offset or 0)

    def _replace(self, node: ast.AST, lines: list[str]) -> None:
        start, end = self._span(node)
        indent = " " * getattr(node, "col_offset", 0)
        self.edits.append((start, end, f"\n{indent}".join(lines)))

    def _edited(self) -> str:
        raw, last = self.result.text.encode(), len(self.result.text.encode()) + 1
        for start, end, new in sorted(self.edits, reverse=True):
            if end <= last:
                raw, last = raw[:start] + new.encode() + raw[end:], start
        return raw.decode()


def rewrite_paths(text: str) -> tuple[str, list[str]]:
    """A text in which each class path of NeMo Curator is the one of Gristmill, and what of them is missing."""
    missing: list[str] = []

    def own(found: re.Match[str]) -> str:
        module, _, name = found[0].rpartition(".")
        place = find_name(module, name)
        if place is None and name[:1].isupper():
            missing.append(why_missing(module, name))
        return found[0] if place is None else f"{place.module}.{place.name}"

    return _PATH.sub(own, text), missing


def _is_curator(module: str | None) -> bool:
    return module is not None and (module == CURATOR or module.startswith(f"{CURATOR}."))


def _chain(node: ast.AST) -> list[str]:
    """`a.b.c` as its names; empty for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*reversed([*names, node.id])] if isinstance(node, ast.Name) else []


def is_stage(place: Place) -> bool:
    """Whether a name of Gristmill is a class of stages."""
    found = place.load()
    return isinstance(found, type) and issubclass(found, ProcessingStage)


def parameter_problem(place: Place, parameter: str | None) -> str | None:
    """What to say of a parameter that a class or function of Gristmill has not; None if it has."""
    found = place.load()
    if parameter is None or not callable(found):
        return None
    try:
        known = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
    if parameter in known or any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return None
    if isinstance(found, type) and issubclass(found, Task):
        if parameter in ("_metadata", "_stage_perf"):
            return None
        if parameter == "task_id":
            return f"{place.name}: the framework gives ids; leave task_id= out"
    return f"{place.name} has no parameter {parameter!r}.{did_you_mean(parameter, known)}".rstrip()
