"""Loading names when they are first used leaves the program as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

SPIN = "OPENBLAS_THREAD_TIMEOUT"


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("own", [None, "12"])
def test_the_collector_and_the_environment_are_as_before(collects: bool, own: str | None) -> None:
    code = f"""
import gc, os, sys, importlib.abc

seen = []

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            seen.append((gc.isenabled(), os.environ.get("{SPIN}")))

sys.meta_path.insert(0, Watch())
if not {collects}:
    gc.disable()
os.environ.pop("{SPIN}", None)
if {own!r}:
    os.environ["{SPIN}"] = {own!r}
from gristmill.dedup import ExactDeduplicationStage
assert seen == [(False, {own!r} or "10")], seen
assert gc.isenabled() is {collects}
assert os.environ.get("{SPIN}") == {own!r}
"""
    subprocess.run([sys.executable, "-c", code], check=True)
