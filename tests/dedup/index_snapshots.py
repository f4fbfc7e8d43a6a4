"""Snapshots that share documents, and runs over them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import DedupIndex, ExactDeduplicationStage, FuzzyDeduplicationStage
from gristmill.text import JsonlReader, JsonlWriter

STAGES: dict[str, Any] = {"exact": ExactDeduplicationStage, "fuzzy": partial(FuzzyDeduplicationStage, word_ngrams=2)}

Rows = list[dict[str, Any]]


def write(folder: Path, **files: Rows) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(source: Path, out: Path, stage: Any, run_dir: Path | None = None, executor: Any = None, **options: Any) -> Any:
    stages = [JsonlReader(str(source), blocksize=2_000), stage, JsonlWriter(str(out))]
    return Pipeline("p", stages=stages).run(executor or LocalExecutor(0), run_dir, **options)


def ids(out: Path) -> list[str]:
    return [json.loads(line)["id"] for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def numbered(letter: str, texts: list[Any]) -> Rows:
    return [{"id": f"{letter}{number}", "text": text} for number, text in enumerate(texts)]


def text(number: int) -> str:
    """One of many texts that have nothing in common."""
    return " ".join(
        f"{word}{number * 31 % 1009}" for word in ["mill", "stone", "wheel", "brook", "weir", "sack", "flour"]
    )


OLD = numbered("a", [text(number % 60) for number in range(90)])
NEW = numbered("b", [text(number % 80 + 40) for number in range(120)])
ONLY_NEW = [f"b{number}" for number in range(20, 80)]


def indexed(stage: str, tmp_path: Path, **options: Any) -> str:
    """An index of the old snapshot."""
    index = DedupIndex(tmp_path / "index", snapshot="old")
    run(write(tmp_path / "old", x=OLD), tmp_path / "old-out", STAGES[stage](id_field="id", extend=index, **options))
    return str(tmp_path / "index")


# -- one index and many runs ---------------------------------------------------------------------------------

ONE, TWO, GROWN = (numbered("a", [text(n) for n in range(number)]) for number in (4, 2, 5))
MORE = numbered("b", [text(3), text(8)])
KEPT = [row["id"] for row in ONE]
WITH_MORE = [*KEPT, "b1"]


class Corner:
    """Files in a directory, an index, and an output directory for all runs that have no other."""

    def __init__(self, folder: Path, stage: str = "exact") -> None:
        self.folder, self.stage, self.out, self.source = folder, STAGES[stage], folder / "out", folder / "in"

    def add(
        self,
        run_dir: str | None,
        snapshot: str | None = None,
        out: str = "out",
        id_field: str | None = "id",
        **files: Rows,
    ) -> list[str]:
        """Run over these files, and no others."""
        for path in self.source.glob("*"):
            path.unlink()
        index = DedupIndex(self.folder / "index", snapshot=snapshot)
        stage = self.stage(id_field=id_field, extend=index)
        run(write(self.source, **files), self.folder / out, stage, self.folder / run_dir if run_dir else None)
        return ids(self.folder / out)

    @property
    def snapshots(self) -> list[tuple[str, int]]:
        return [(one["snapshot"], one["documents"]) for one in DedupIndex(self.folder / "index").info()["snapshots"]]


def from_scratch(files: dict[str, Rows]) -> list[str]:
    kept: dict[str, str] = {}
    for _, rows in sorted(files.items()):
        for row in rows:
            kept.setdefault(row["text"], row["id"])
    return list(kept.values())
