"""A CPU tokeniser, an embedder on a quarter of a GPU and a classifier on half of one, on Ray with logical GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gristmill import LocalExecutor, Pipeline, RayActorPoolExecutor, Resources
from gristmill.text import (
    DistributedDataClassifier,
    EmbeddingCreatorStage,
    JsonlReader,
    JsonlWriter,
    TokenizerStage,
)
from tests.models.text_fixtures import BERT, linear, texts, write_encoder
from tests.ray_cluster import ray_cluster

pytestmark = pytest.mark.ray


def test_models_share_logical_gpus(tmp_path: Path) -> None:
    config = {**BERT, "id2label": {"0": "a", "1": "b"}}
    place = write_encoder(tmp_path / "model", root="bert.", weights=linear("classifier", 32, 2), config=config)
    (tmp_path / "in").mkdir()
    for number in range(4):
        rows = [json.dumps({"text": text}) for text in texts(60, seed=number)]
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join(rows) + "\n")
    embed = EmbeddingCreatorStage(place, use_existing_tokens=True, keep_tokens=True, engine="onnx")
    label = DistributedDataClassifier(place, score_field="scores", use_existing_tokens=True, engine="onnx")
    found = {}
    with ray_cluster(num_cpus=3, num_gpus=1):
        for name, executor in (("ray", RayActorPoolExecutor()), ("local", LocalExecutor(num_workers=0))):
            stages = [
                JsonlReader(str(tmp_path / "in"), blocksize=2000),
                TokenizerStage(place),
                embed.with_(resources=Resources(cpus=0.5, gpus=0.25, or_cpu=True)),
                label.with_(resources=Resources(cpus=0.5, gpus=0.5, or_cpu=True)),
                JsonlWriter(str(tmp_path / name)),
            ]
            Pipeline(name, stages=stages).run(executor)
            found[name] = {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.jsonl")}
    assert found["ray"] == found["local"]
    assert len(found["ray"]) == 4
    assert b"input_ids" not in b"".join(found["ray"].values())
