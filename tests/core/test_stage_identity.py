"""What a stage computes with is compared between runs: a change is never missed, and never made up."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import subprocess
import sys
import threading
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gristmill import DocumentBatch, ProcessingStage, processing_stage
from gristmill.core.records.stage_identity import describe_stage, plan_differences
from gristmill.core.records.value_identity import describe_value, identity_hash
from gristmill.text import Filter, RedactPii, WordCountFilter

LIMIT = 5
LOCK = threading.Lock()
LOG = logging.getLogger("identity")


class Holder(ProcessingStage[DocumentBatch, DocumentBatch]):
    """A user's stage that computes with a value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class PrivateHolder(ProcessingStage[DocumentBatch, DocumentBatch]):
    def __init__(self, value: Any) -> None:
        self._value = value

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class Slotted:
    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def passes(self, value: int) -> bool:
        return value > self.limit


@dataclass(frozen=True)
class Rule:
    batch_size: int
    limit: float = 0.5


def closing_over(limit: Any) -> Callable[[int], bool]:
    return lambda value: bool(value > limit)


def nested(limit: int) -> Callable[[int], bool]:
    def inner(value: int) -> bool:
        return value > limit

    return lambda value: not inner(value)


def with_default(limit: int) -> Callable[..., bool]:
    def passes(value: int, limit: int = limit) -> bool:
        return value > limit

    return passes


def with_keyword_default(limit: int) -> Callable[..., bool]:
    def passes(value: int, *, limit: int = limit) -> bool:
        return value > limit

    return passes


def compare(value: int, limit: int) -> bool:
    return value > limit


def cached(limit: int) -> Callable[[int], bool]:
    return functools.lru_cache(closing_over(limit))


def code(source: str) -> Any:
    """An object of a module that a user has written."""
    module = types.ModuleType("users_module")
    sys.modules["users_module"] = module
    exec(source, vars(module))  # the test's own text
    return vars(module)["found"]


def subclass(limit: int) -> Any:
    return code(f"class Found:\n    LIMIT = {limit}\n    def passes(self, x): return x > self.LIMIT\nfound = Found()")


def method(limit: int) -> Any:
    return code(f"class Found:\n    def passes(self, x): return x > {limit}\nfound = Found()")


def reads_global(limit: int) -> Any:
    return code(f"LIMIT = {limit}\ndef found(x): return x > LIMIT")


def calls_helper(limit: int) -> Any:
    return code(f"def helper(x): return x > {limit}\ndef found(x): return helper(x)")


def array(limit: int) -> np.ndarray[Any, Any]:
    return np.arange(10) * limit


MAKERS: list[Callable[[int], Any]] = [
    closing_over,
    nested,
    with_default,
    with_keyword_default,
    cached,
    subclass,
    method,
    reads_global,
    calls_helper,
    array,
    lambda n: functools.partial(compare, limit=n),
    lambda n: functools.partial(compare, n),
    lambda n: Slotted(n).passes,
    Slotted,
    Rule,
    lambda n: Rule(1, n),
    lambda n: [Rule(1), (Rule(n), 2)],
    lambda n: {"deep": {"deeper": [[[[[[[[n]]]]]]]]}},
    lambda n: {1: n},
    lambda n: {(1, n): "x"},
    lambda n: {n, 1, 2},
    lambda n: {f"word {k + n}" for k in range(1000)},
    lambda n: list(range(1000 + n)),
    lambda n: {str(k): k * n for k in range(1000)},
    lambda n: "long " * 1000 + str(n),
    lambda n: bytes([n]),
    lambda n: re.compile(f"a{{{n}}}"),
    lambda n: Path(f"folder {n}"),
    lambda n: pa.table({"x": [n]}),
    lambda n: pd.DataFrame({"x": [n], "y": ["a"]}),
    lambda n: pa.list_(pa.int32(), n),
    lambda n: float("inf") if n == 5 else None,
    lambda n: float("nan") if n == 5 else 0.0,
    lambda n: 2**70 + n,
    lambda n: closing_over({"a": array(n)}),
    lambda n: closing_over(Slotted(n)),
    np.random.default_rng,
    lambda n: "\ud800" + str(n),
]


@pytest.mark.parametrize("holder", [Holder, PrivateHolder])
@pytest.mark.parametrize("make", MAKERS)
def test_a_change_of_anything_that_a_stage_computes_with_is_seen(make: Callable[[int], Any], holder: Any) -> None:
    before, same, after = ([describe_stage(holder(make(limit)))] for limit in (5, 5, 15))
    assert plan_differences(before, same) == []
    assert identity_hash(before) == identity_hash(same)
    assert plan_differences(before, after)
    assert identity_hash(before) != identity_hash(after)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (closing_over, "value.closure.limit was 5, and is now 15"),
        (with_default, "value.defaults was [5], and is now [15]"),
        (lambda n: functools.partial(compare, limit=n), "value.keywords.limit was 5, and is now 15"),
        (lambda n: Slotted(n).passes, "value.of.limit was 5, and is now 15"),
        (reads_global, "value.globals.LIMIT was 5, and is now 15"),
        (calls_helper, "the code of value.globals.helper has changed"),
        (method, "the code of value.@code.passes has changed"),
        (lambda n: list(range(1000 + n)), "value.items was 1005, and is now 1015"),
        (lambda n: bytes([n]), "value has changed"),
    ],
)
def test_a_change_is_explained(make: Callable[[int], Any], message: str) -> None:
    differences = plan_differences([describe_stage(Holder(make(5)))], [describe_stage(Holder(make(15)))])
    assert f"stage 'Holder': {message}" in differences


def test_what_cannot_be_compared_counts_as_changed_and_is_named() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    program = (
        "import json, sys; from tests.core.test_stage_identity import Holder; "
        "from gristmill.core.records.stage_identity import describe_stage; "
        "print(json.dumps([describe_stage(Holder(x for x in 'ab'))]))"
    )
    before = json.loads(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
    (difference,) = plan_differences(before, [describe_stage(Holder(numbers()))])
    assert "value is a builtins.generator, which cannot be compared with that of an earlier run" in difference
    assert "setup()" in difference
    assert "not_identity" in difference


@pytest.mark.parametrize(
    "make", [lambda n: (x for x in [n]), lambda n: memoryview(bytes([n])), lambda n: ContextVar("limit", default=n)]
)
def test_in_one_process_too_what_cannot_be_compared_counts_as_changed(make: Callable[[int], Any]) -> None:
    """As in a notebook, where the cell with the value is run again."""
    old, new = (describe_stage(Holder(make(value))) for value in (5, 15))
    assert plan_differences([old], [new])


def test_locks_and_loggers_do_not_count() -> None:
    def work(value: int) -> int:
        with LOCK:
            LOG.info("%s", value)
        return value

    described = describe_value(work)
    assert described["globals"]["LOCK"] == {"@": "object", "name": "_thread.lock"}
    assert "incomparable" not in str(described)


def test_a_docstring_does_not_count() -> None:
    first = code('def found(x):\n    """One."""\n    return x')
    second = code('def found(x):\n    """Two."""\n    return x')
    assert describe_value(first) == describe_value(second)


def test_settings_do_not_count_and_names_do() -> None:
    stage = Holder(1)
    assert describe_stage(stage) == describe_stage(stage.with_(batch_size=7, num_workers=2, timeout_s=3.0))
    assert describe_stage(stage) != describe_stage(stage.with_(name="other"))


def test_objects_that_refer_to_each_other_are_described() -> None:
    first: dict[str, Any] = {}
    rule = types.SimpleNamespace(first=first)
    first["rule"] = rule
    assert describe_value(rule)
    looped: list[Any] = []
    looped.append(looped)
    assert describe_value(looped)


def test_identity_is_the_same_in_every_process() -> None:
    program = (
        "from tests.core.test_stage_identity import in_a_set, Holder, MAKERS; "
        "from gristmill.core.records.stage_identity import describe_stage; "
        "from gristmill.core.records.value_identity import identity_hash; "
        "print([identity_hash(describe_stage(Holder(value))) for value in [in_a_set, *(make(5) for make in MAKERS)]])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, env={"PYTHONHASHSEED": seed, **path_env()}
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def path_env() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}


def in_a_set(value: str) -> bool:
    return value in {"one", "two", "three", ("a", frozenset({"x", "y"}))} or value in {1.5, "four"}


def test_secrets_are_not_in_a_description() -> None:
    values = {
        "nested": {"headers": {"Authorization": "Bearer hunter2"}, "list": [({"api_key": "hunter2"},)]},
        "url": "postgres://reader:hunter2@example.com/db",
        "function": functools.partial(compare, api_token="hunter2"),
    }
    for stage in (Holder(values), RedactPii(key="hunter2"), Holder(types.SimpleNamespace(password="hunter2"))):
        assert "hunter2" not in str(describe_stage(stage))
    assert describe_stage(RedactPii(key="one")) != describe_stage(RedactPii(key="two"))


def test_gristmills_own_stages_are_described_by_their_parameters() -> None:
    described = describe_stage(Filter(WordCountFilter(min_words=3), "words"))
    assert described["class"] == "gristmill.text.Filter"
    assert not [name for name in described if name.startswith(("_", "@"))]


def test_functions_as_stages() -> None:
    def stage_with(limit: int) -> ProcessingStage[Any, Any]:
        @processing_stage
        def drop(task: DocumentBatch) -> DocumentBatch | None:
            return task if task.num_items > limit else None

        return drop

    assert describe_stage(stage_with(5)) == describe_stage(stage_with(5))
    assert describe_stage(stage_with(5)) != describe_stage(stage_with(15))


def _module(limit: int) -> types.ModuleType:
    module = types.ModuleType("settings_of_a_test")
    module.limit = limit  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    return module


def _reads_by_name(limit: int) -> Any:
    module = _module(limit)
    return lambda: getattr(module, "limit")


def _reads_from_closure(limit: int) -> Any:
    module = _module(limit)
    return lambda: module.limit


def _imports_inside(limit: int) -> Any:
    _module(limit)

    def work() -> int:
        from settings_of_a_test import limit  # type: ignore[import-not-found]

        return int(limit)

    return work


def _metaclass(limit: int) -> Any:
    meta = type("Meta", (type,), {"limit": limit, "__module__": __name__})
    return meta("Made", (), {"__module__": __name__})()


def _dunder(limit: int) -> Any:
    return type("Made", (), {"__limit__": limit, "__module__": __name__})()


def _default_factory(limit: int) -> Any:
    return defaultdict(lambda: limit, a=1)


@pytest.mark.parametrize(
    "make", [_reads_by_name, _reads_from_closure, _imports_inside, _metaclass, _dunder, _default_factory]
)
def test_places_where_values_hide_count_too(make: Any) -> None:
    assert describe_value(make(5)) == describe_value(make(5))
    assert describe_value(make(5)) != describe_value(make(15))
    assert "incomparable" not in str(describe_value(make(5)))
