"""A recipe in a file, and what it may read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    """Writes a recipe file; lines of stages are enough."""

    def write(stages: str, head: str = "") -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(f"{head}\nstages:\n{stages}\n", encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [{"id": number, "text": "some words here " * number} for number in range(1, 21)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)
