"""Files of JSON lines, for tests of workflows: written, and looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.*"))}


def texts(folder: Path) -> list[str]:
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line)["text"] for path in files for line in path.read_text().splitlines()]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
