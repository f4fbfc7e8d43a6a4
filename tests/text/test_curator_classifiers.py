"""What tutorials of NeMo Curator do with classifiers and semantic deduplication, with their imports rewritten, on small
weights in the place of those that they download."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.migrate import rewrite_script
from tests.models.text_fixtures import BERT, linear, texts, write_encoder

CLASSIFY = """
from nemo_curator.pipeline import Pipeline
from nemo_curator.stages.text.classifiers import FineWebEduClassifier, QualityClassifier
from nemo_curator.stages.text.io.reader import JsonlReader
from nemo_curator.stages.text.io.writer import JsonlWriter

pipeline = Pipeline(name="classifier_pipeline", description="Run classifiers")
pipeline.add_stage(JsonlReader(file_paths="in", files_per_partition=1))
pipeline.add_stage(QualityClassifier(cache_dir="models", filter_by=["Low", "Medium"], model_inference_batch_size=256))
pipeline.add_stage(FineWebEduClassifier(cache_dir="models", text_field="text", sort_by_length=True))
pipeline.add_stage(JsonlWriter("out"))
if __name__ == "__main__":
    pipeline.run()
"""

DEDUPLICATE = """
from nemo_curator.stages.text.deduplication.semantic import TextSemanticDeduplicationWorkflow

workflow = TextSemanticDeduplicationWorkflow(
    input_path="in",
    output_path="out",
    cache_path="cache",
    perform_removal=True,
    text_field="text",
    model_identifier="models/sentence-transformers/all-MiniLM-L6-v2",
    n_clusters=3,
    eps=0.0001,
    which_to_keep="hard",
    pairwise_batch_size=1024,
    input_filetype="jsonl",
    output_filetype="jsonl",
)
if __name__ == "__main__":
    workflow.run()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    quality = {**BERT, "id2label": {"0": "High", "1": "Medium", "2": "Low"}}
    models = tmp_path / "models"
    education = {**BERT, "id2label": {"0": "LABEL_0"}}
    heads = {
        "nvidia/quality-classifier-deberta": (3, quality),
        "HuggingFaceFW/fineweb-edu-classifier": (1, education),
    }
    for name, (labels, config) in heads.items():
        write_encoder(models / name, seed=3, root="bert.", weights=linear("classifier", 32, labels), config=config)
    write_encoder(models / "sentence-transformers" / "all-MiniLM-L6-v2")
    (tmp_path / "in").mkdir()
    for number in range(2):
        rows = [*texts(30, seed=number), "the cat and the dog are free"]
        lines = [json.dumps({"id": f"{number}-{row}", "text": text}) for row, text in enumerate(rows)]
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(place: Path, script: str) -> list[dict]:
    rewritten = rewrite_script(script)
    assert not rewritten.findings
    assert "nemo_curator" not in rewritten.text
    (place / "script.py").write_text(rewritten.text)
    done = subprocess.run([sys.executable, "script.py"], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = sorted((place / "out").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_the_classifier_tutorial(place: Path) -> None:
    rows = run(place, CLASSIFY)
    assert rows
    names = {
        "id",
        "text",
        "quality_pred",
        "fineweb-edu-score-float",
        "fineweb-edu-score-int",
        "fineweb-edu-score-label",
    }
    assert set(rows[0]) == names
    assert {row["quality_pred"] for row in rows} <= {"Low", "Medium"}


def test_the_semantic_deduplication_tutorial(place: Path) -> None:
    rows = run(place, DEDUPLICATE)
    assert [row["text"] for row in rows].count("the cat and the dog are free") == 1
    assert "embeddings" not in rows[0]
