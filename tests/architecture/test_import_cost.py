"""What importing and a small run cost, measured in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

HEAVY = ("ray", "torch", "transformers", "pandas", "polars", "numba", "cudf")
SELDOM = (
    "gristmill.core.run.preview",
    "gristmill.core.records.row_scores",
    "gristmill.dedup.index.dedup_index",
    "gristmill.dedup.columns.normalisation",
    "gristmill.io.formats.csv",
    "gristmill.observe.live_progress",
)
"""What a run loads only if it is asked for more than most are."""


def loaded_by(code: str, *arguments: str, names: tuple[str, ...] = HEAVY) -> set[str]:
    """Those of some modules that a program has loaded at its end."""
    ending = f"\nimport sys\nprint('LOADED', *[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code + ending, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


def cpu_seconds(code: str) -> float:
    program = f"import time; began = time.process_time(); {code}; print(time.process_time() - began)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, check=True) for _ in range(3)]
    return min(float(run.stdout) for run in runs)


def test_import_is_quick() -> None:
    assert cpu_seconds("import gristmill") < 0.3


@pytest.mark.parametrize(
    "code",
    [
        "import gristmill",
        "from gristmill import Pipeline; import gristmill.text",
        "from gristmill import *",
        "from gristmill.text import *",
        "import gristmill.recipes",
        "import gristmill.cli.main",
    ],
)
def test_import_loads_nothing_heavy(code: str) -> None:
    assert loaded_by(code) == set()


RUN = """
import sys
from gristmill import LocalExecutor, Pipeline
from gristmill.text import JsonlReader, JsonlWriter, Modify, QuotationUnifier, ScoreFilter, WordCountFilter
stages = [
    JsonlReader(sys.argv[1]),
    Modify(QuotationUnifier()),
    ScoreFilter(WordCountFilter(min_words=2), score_field="words"),
    JsonlWriter(sys.argv[2]),
]
result = Pipeline("small", stages=stages).run(LocalExecutor(num_workers=0))
assert sum(task.rows for task in result) == 2, result
"""


def test_a_small_run_does_not_load_pandas(tmp_path: Path) -> None:
    rows = [{"text": "“one two”", "meta": {"n": 1}}, {"text": "one"}, {"text": "one two", "late": 1.5}]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    assert loaded_by(RUN, str(tmp_path / "in.jsonl"), str(tmp_path / "out")) == set()


EXACT = """
import sys
from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import ExactDeduplicationStage
from gristmill.text import JsonlReader, JsonlWriter
stages = [JsonlReader(sys.argv[1]), ExactDeduplicationStage(), JsonlWriter(sys.argv[2])]
result = Pipeline("small", stages=stages).run(LocalExecutor(num_workers=int(sys.argv[3])))
assert sum(task.rows for task in result) == 2, result
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_exact_deduplication_loads_no_more_than_it_needs(tmp_path: Path, workers: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(orjson.dumps({"text": text}) for text in ("one", "two", "one")))
    arguments = (str(tmp_path / "in.jsonl"), str(tmp_path / "out"), workers)
    assert loaded_by(EXACT, *arguments, names=(*SELDOM, "pandas")) == set()
