"""The compute functions that workers have do what those of Arrow do."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LOADED = (
    "from gristmill.executors.local.fast_compute_import import load\nmodule = load()\n"
    "import pyarrow as pa, pyarrow.compute as pc\n"
)


def _run(code: str) -> str:
    """In a process of its own: this one must keep its `pyarrow.compute`."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_functions_are_made_when_they_are_asked_for() -> None:
    code = """
assert module is pc is pa.compute
assert "add" not in vars(pc)
assert pc.add(pa.array([1]), 2).to_pylist() == [3]
assert "add" in vars(pc) and pc.add is pc.add
assert pc.and_ is getattr(pc, "and") and pc.and_.__name__ == "and_"
from pyarrow.compute import or_kleene, utf8_upper
assert utf8_upper(pa.array(["a"])).to_pylist() == ["A"]
assert not hasattr(pc, "nothing_of_the_kind") and not hasattr(pc, "hash_sum") and not hasattr(pc, "count_all")
assert pc.function_registry().get_function("add").name == "add"
assert len(pc.list_functions()) > 200
import pickle, cloudpickle
assert pickle.loads(pickle.dumps(pc.subtract)) is cloudpickle.loads(cloudpickle.dumps(pc.subtract)) is pc.subtract
"""
    _run(_LOADED + code)


def test_options_are_taken_in_all_ways() -> None:
    code = """
texts = pa.array(["a-b", None])
for split in (pc.split_pattern(texts, "-"), pc.split_pattern(texts, pattern="-"),
              pc.split_pattern(texts, options=pc.SplitPatternOptions("-"))):
    assert split.to_pylist() == [["a", "b"], None]
numbers = pa.array([3, 1, None])
assert pc.sort_indices(numbers, null_placement="at_start").to_pylist() == [2, 1, 0]
assert numbers.filter(pc.is_valid(numbers)).cast(pa.string()).to_pylist() == ["3", "1"]
assert pc.fill_null(numbers, 0).take(pa.array([2])).to_pylist() == [0]
assert pa.table({"a": numbers}).filter(pc.field("a") > 1).num_rows == 1
assert pa.table({"a": numbers}).group_by("a").aggregate([("a", "count")]).num_rows == 3
assert str(pc.utf8_upper(pc.field("a")))
"""
    _run(_LOADED + code)


_ALL = """
import inspect, pyarrow.compute as pc
found = {}
exec("from pyarrow.compute import *", found)
for name in sorted(set(found) | set(dir(pc))):
    if not name.startswith("_"):
        value = getattr(pc, name)
        assert found[name] is value
        described = getattr(value, "__arrow_compute_function__", None)
        print(name, type(value).__name__, described, inspect.signature(value) if described else "")
"""


def test_all_functions_are_there_with_their_signatures() -> None:
    assert _run(_LOADED + _ALL) == _run(_ALL)


@pytest.mark.parametrize(
    "change",
    [
        "parts.function_registry = None",
        "del parts.function_registry",
        "fast_compute_import._PartialRegistry.list_functions = lambda self: []",
        "fast_compute_import._add_missing_functions = None",
    ],
)
def test_a_module_that_is_not_as_expected_is_loaded_as_it_is(change: str) -> None:
    """What is changed is changed back before the second try, which is the plain import."""
    code = f"""
import importlib, pyarrow as pa, pyarrow._compute as parts
from gristmill.executors.local import fast_compute_import
kept, plain = parts.function_registry, importlib.import_module
def import_module(*arguments):
    parts.function_registry = kept
    return plain(*arguments)
importlib.import_module = import_module
{change}
module = fast_compute_import.load()
import pyarrow.compute as pc
assert module is pc is pa.compute and "add" in vars(pc) and "__getattr__" not in vars(pc)
assert pc.add(pa.scalar(1), 2).as_py() == 3 and pc.add.__doc__ and pc.function_registry is kept
assert "vendored.docscrape" in pc.docscrape.__name__ and hasattr(pc.docscrape, "FunctionDoc")
"""
    _run(code)


def test_a_module_that_is_there_stays_as_it_is() -> None:
    _run(f"import pyarrow.compute as before\n{_LOADED}assert module is pc is before and 'add' in vars(pc)")


def test_workers_have_them_and_the_driver_does_not() -> None:
    code = """
import sys
from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage
import pyarrow as pa
class Look(ProcessingStage):
    def process(self, task):
        import sys, pyarrow.compute as pc
        return task.with_data(pa.table({"lazy": ["__getattr__" in vars(pc)]}))
out = Pipeline("look", stages=[Look()]).run(LocalExecutor(), initial_tasks=[DocumentBatch(pa.table({"a": [1]}))])
assert [task.data["lazy"].to_pylist() for task in out] == [[True]]
assert "pyarrow.compute" not in sys.modules or "add" in vars(sys.modules["pyarrow.compute"])
"""
    _run(code)
