"""Run directories of others, or damaged ones: refused with the name of the file, never by an error of a library."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import InputError
from gristmill.text import JsonlReader, JsonlWriter
from gristmill.view.data.row_sets import RunOrDataset


def finished(folder: Path) -> Path:
    (folder / "in.jsonl").write_text('{"text": "a"}\n')
    stages = [JsonlReader(str(folder / "in.jsonl")), JsonlWriter(str(folder / "out"))]
    Pipeline("p", stages=stages).run(LocalExecutor(num_workers=0), str(folder / "run"))
    return folder / "run"


@pytest.mark.parametrize(
    "line",
    [
        b'{"source": ', b"[1]", b"[" * 100_000,
        b"\xff", b'"text"', b"{}", b'{"source": 1, "fingerprint": "", "plan": "", "files": []}',
        b'{"source": "a", "fingerprint": "", "plan": "", "files": 1}',
        b'{"source": "a", "fingerprint": "", "plan": "", "files": [], "written": [{"path": 1, "rows": 1}]}',
        b'{"source": "a", "fingerprint": "", "plan": "", "files": [], "unknown": 1}',
    ],
)  # fmt: skip
def test_a_damaged_ledger_is_told(line: bytes, tmp_path: Path) -> None:
    run = finished(tmp_path)
    [ledger] = (run / "ledger").iterdir()
    ledger.write_bytes(ledger.read_bytes() + line + b"\n")
    with pytest.raises(InputError, match="records of this run are damaged.*another run directory"):
        RunOrDataset(str(run))


def test_a_damaged_plan_is_told(tmp_path: Path) -> None:
    run = finished(tmp_path)
    (run / "plan.json").write_bytes((run / "plan.json").read_bytes()[:-20])
    with pytest.raises(InputError, match=r"plan\.json is not JSON"):
        RunOrDataset(str(run)).row_sets()
