"""The image pipeline of the migration guide, with only its import lines changed."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, XennaExecutor
from gristmill.dedup import SemanticDeduplicationStage
from gristmill.image import ImageAestheticFilterStage, ImageEmbeddingStage, ImageReaderStage
from gristmill.models import export
from tests.image.image_fixtures import archive, encoded
from tests.models.clip_fixtures import aesthetic_head, small_clip


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model of the architecture of CLIP ViT-L/14, and a head."""
    place = tmp_path_factory.mktemp("model")
    export(small_clip(place / "weights"), place / "onnx")
    aesthetic_head(place / "onnx" / "aesthetic.safetensors")
    return str(place / "onnx")


@pytest.mark.parametrize(
    "executor",
    [LocalExecutor(num_workers=0), pytest.param(XennaExecutor(), marks=pytest.mark.ray)],
    ids=["local", "xenna"],
)
def test_the_image_pipeline(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, executor: Any
) -> None:
    if isinstance(executor, XennaExecutor):  # the cluster that it starts is left running, and others would join it
        place = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        request.addfinalizer(place.cleanup)
        request.addfinalizer(pytest.importorskip("ray").shutdown)
        monkeypatch.setenv("RAY_TMPDIR", place.name)  # or it joins one that others have on this machine
    archive(
        tmp_path / "00000.tar", [(f"{number}.jpg", encoded(number % 5, width=256, height=256)) for number in range(8)]
    )
    monkeypatch.chdir(tmp_path)
    args = Namespace(
        task_batch_size=4,
        model_dir=model_dir,
        embedding_gpus_per_worker=0.25,
        embedding_batch_size=32,
        aesthetic_gpus_per_worker=0.25,
        aesthetic_batch_size=32,
        aesthetic_threshold=-1000.0,
        verbose=True,
    )
    read_stage = ImageReaderStage(
        task_batch_size=args.task_batch_size,
        num_threads=16,
        num_gpus_per_worker=0.25,
    )
    img_embedding_stage = ImageEmbeddingStage(
        model_dir=args.model_dir,
        num_gpus_per_worker=args.embedding_gpus_per_worker,
        model_inference_batch_size=args.embedding_batch_size,
        remove_image_data=False,
        verbose=args.verbose,
    )
    aesthetic_filter_stage = ImageAestheticFilterStage(
        model_dir=args.model_dir,
        num_gpus_per_worker=args.aesthetic_gpus_per_worker,
        model_inference_batch_size=args.aesthetic_batch_size,
        score_threshold=args.aesthetic_threshold,
        verbose=args.verbose,
    )
    semantic_dedup_stage = SemanticDeduplicationStage(
        id_field="image_id",
        embedding_field="image_embedding",
        n_clusters=100,
        eps=0.01,
    )
    pipeline = Pipeline(
        name="image_curation",
        description="Curate images with embeddings and quality scoring",
        stages=[
            read_stage,
            img_embedding_stage,
            aesthetic_filter_stage,
            semantic_dedup_stage,
        ],
    )
    results = pipeline.run(executor)
    assert sorted(row["image_id"] for batch in results for row in batch.to_rows()) == list("01234")
