"""What a model has made goes through deduplication and decontamination like other documents, over exchanges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import Decontaminate, ExactDeduplicationStage
from gristmill.synthetic import QAMultilingualSyntheticStage
from gristmill.text import JsonlWriter
from tests.synthetic.test_judging import Scripted

LEAKED = "What is the name of the tall grass that people grow for its seed and make their daily bread of?"
MADE = [
    "Why is rye sown in autumn and not in spring?",
    LEAKED,
    "Why is rye sown in autumn and not in spring?",
    "Is oat a grass?",
]


def test_copies_and_benchmark_questions_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "benchmark.jsonl").write_text(json.dumps({"text": LEAKED}) + "\n")
    client = Scripted(lambda model, text, seed: MADE[seed])
    stages: list[Any] = [
        QAMultilingualSyntheticStage("Ask something in {language}.", ["English"], client, "m", num_samples=4),
        ExactDeduplicationStage(),
        Decontaminate([str(tmp_path / "benchmark.jsonl")]),
        JsonlWriter(str(tmp_path / "out")),
    ]
    Pipeline("made", stages=stages).run(LocalExecutor(num_workers=0), run_dir=tmp_path / "run")
    rows = [json.loads(line) for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted((row["text"], row["synthetic_seed"]) for row in rows) == [(MADE[3], 3), (MADE[0], 0)]
