"""All stages that cut and drop, in one pipeline, give the same bytes on every executor."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import (
    BloomDeduplicationStage,
    Decontaminate,
    LineDeduplicationStage,
    SimHashDeduplicationStage,
    SubstringDeduplicationStage,
)
from gristmill.text import JsonlReader, JsonlWriter
from tests.conformance.executor_params import CLUSTER


def text(seed: int, changes: int = 0, size: int = 400) -> str:
    words = [f"word{number}" for number in random.Random(seed).choices(range(3000), k=size)]
    for number in range(changes):
        words[number * 17 % size] = f"other{seed}"
    return " ".join(words)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Texts, in three files, with menus, a passage, and the item of a quiz; some are copies, and some nearly."""
    (tmp_path / "in").mkdir()
    (tmp_path / "quiz.jsonl").write_text(json.dumps({"text": ITEM}) + "\n")
    for part in range(3):
        lines = (json.dumps({"text": document(seed)}) + "\n" for seed in range(part, 60, 3))
        (tmp_path / "in" / f"{part}.jsonl").write_text("".join(lines))
    return tmp_path


ITEM, PASSAGE, MENU = text(900, size=30), text(901, size=60), "Home | About us | Contact | Imprint"


def document(seed: int) -> str:
    start = f"{MENU}\n" if seed % 3 == 0 else ""
    end = PASSAGE if seed % 5 == 0 else "\n"
    return start + text(seed % 15, seed % 2) + end + (ITEM if seed % 11 == 0 else "")


def together(corpus: Path, out: Path, executor: Any, blocksize: str) -> dict[str, bytes]:
    stages = [
        JsonlReader(corpus / "in", blocksize=blocksize),
        Decontaminate([str(corpus / "quiz.jsonl")], action="span", context=0, min_piece=1),
        BloomDeduplicationStage(capacity=20),
        LineDeduplicationStage(),
        SimHashDeduplicationStage(radius=8),
        SubstringDeduplicationStage(min_length=100),
        JsonlWriter(out),
    ]
    summary = Pipeline("p", stages=stages).run(executor).summary()
    assert summary["BloomDeduplicationStage"].dropped > 0
    assert summary["SimHashDeduplicationStage"].dropped > 0
    assert summary["Decontaminate"].counts["quiz_items_found"] == 1
    return {path.name: path.read_bytes() for path in out.glob("*.jsonl")}


def test_the_same_bytes_for_any_number_of_workers(corpus: Path, tmp_path: Path) -> None:
    found = together(corpus, tmp_path / "one", LocalExecutor(0), "1MB")
    assert together(corpus, tmp_path / "two", LocalExecutor(2), "15KB") == found
    everything = b"".join(found.values())
    assert everything.count(MENU.encode()) == everything.count(PASSAGE.encode()) == 1
    assert ITEM.encode() not in everything


@pytest.mark.ray
@pytest.mark.parametrize("name", CLUSTER)
def test_the_same_bytes_on_a_cluster(corpus: Path, tmp_path: Path, cluster: str, name: str) -> None:
    if name == "xenna":
        pytest.importorskip("cosmos_xenna")
    found = together(corpus, tmp_path / "one", LocalExecutor(0), "1MB")
    assert together(corpus, tmp_path / "two", CLUSTER[name](), "15KB") == found
