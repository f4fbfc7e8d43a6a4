"""Images as scripts for NeMo Curator have them: ImageObject, its `embedding`, and models without a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gristmill import FilePartitioningStage, ImageBatch, LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError
from gristmill.dedup import ImageDuplicatesRemovalStage, SemanticDeduplicationWorkflow
from gristmill.image import (
    ConvertImageBatchToDocumentBatchStage,
    ImageAestheticFilterStage,
    ImageEmbeddingStage,
    ImageNSFWFilterStage,
    ImageObject,
    ImageReaderStage,
    ImageWriterStage,
)
from gristmill.models import export
from gristmill.models.model_files import CLIP
from gristmill.text import ParquetWriter
from tests.image.image_fixtures import archive, encoded
from tests.models.clip_fixtures import small_clip

HERE = LocalExecutor(0)


@pytest.fixture
def default_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model in the place of the default one."""
    monkeypatch.setenv("GRISTMILL_MODELS", str(tmp_path / "models"))
    place = tmp_path / "models" / CLIP
    place.parent.mkdir(parents=True)
    export(small_clip(tmp_path / "weights"), place)


@pytest.mark.usefixtures("default_model")
def test_the_tutorial_on_duplicates(tmp_path: Path) -> None:
    files = [(f"{number}.jpg", encoded(number % 5, width=64, height=64)) for number in range(8)]
    (tmp_path / "in").mkdir()
    archive(tmp_path / "in" / "00000.tar", files)

    def reading() -> list[Any]:
        listing = FilePartitioningStage(
            file_paths=str(tmp_path / "in"), files_per_partition=1, file_extensions=[".tar"]
        )
        return [listing, ImageReaderStage(dali_batch_size=4, verbose=True, num_threads=2, num_gpus_per_worker=0.25)]

    embedding = [
        *reading(),
        ImageEmbeddingStage(model_inference_batch_size=4, remove_image_data=False, verbose=True),
        ConvertImageBatchToDocumentBatchStage(fields=["image_id", "embedding"]),
        ParquetWriter(path=str(tmp_path / "embeddings")),
    ]
    Pipeline(name="embed", stages=embedding).run(HERE)
    [table] = [pq.read_table(path) for path in (tmp_path / "embeddings").glob("*.parquet")]
    assert table.column_names == ["image_id", "embedding"]
    workflow = SemanticDeduplicationWorkflow(
        input_path=str(tmp_path / "embeddings"), output_path=str(tmp_path / "removal"), id_field="image_id",
        embedding_field="embedding", n_clusters=2, eps=0.01, read_kwargs={}, write_kwargs={}, verbose=True,
    )  # fmt: skip
    assert workflow.run(HERE).duplicates == 3
    removal = ImageDuplicatesRemovalStage(
        removal_parquets_dir=str(tmp_path / "removal" / "duplicates"), duplicate_id_field="id", verbose=True
    )
    writer = ImageWriterStage(output_dir=str(tmp_path / "out"), images_per_tar=10, remove_image_data=True, verbose=True)
    Pipeline(name="remove", stages=[*reading(), removal, writer]).run(HERE)
    assert sum(pq.read_table(path).num_rows for path in (tmp_path / "out").glob("*.parquet")) == 5


def test_a_default_model_that_is_not_there_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRISTMILL_MODELS", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for stage in (ImageEmbeddingStage(), ImageEmbeddingStage(model_dir=None), ImageAestheticFilterStage()):
        with pytest.raises(GristmillError, match=r"is not in .*(hf download|gristmill\[hub\])"):
            stage.wanted().fetch()
    assert ImageNSFWFilterStage(model_dir=None).model_dir == "open_nsfw"


def test_batches_of_objects_and_back() -> None:
    pixels = np.zeros((8, 6, 3), np.uint8)
    objects = [
        ImageObject(image_path="a.jpg", image_id="a", image_data=pixels, embedding=np.ones(3), nsfw_score=0.5),
        ImageObject(image_path="b.jpg", image_id="b", image_data=pixels + 1, embedding=np.zeros(3)),
    ]
    batch = ImageBatch(data=objects, dataset_name="d")
    assert batch.get_columns() == ["image_path", "image_id", "image_embedding", "nsfw_score"]
    again = batch.take([1]).to_objects()[0]
    assert (again.image_id, again.embedding, again.nsfw_score, again.metadata) == ("b", [0.0, 0.0, 0.0], None, {})
    assert (again.image_data == 1).all()
    encoded_one = ImageBatch([{"image_id": "c", "image": encoded(1, width=20, height=10)}])
    assert encoded_one.to_objects()[0].image_data.shape == (10, 20, 3)
    assert ImageBatch([ImageObject(image_id="x")]).get_columns() == ["image_id"]


def test_an_empty_list_of_fields_is_the_id() -> None:
    batch = ImageBatch([{"image_id": "c", "image": encoded(1), "caption": "a mill"}])
    [documents] = Pipeline("p", stages=[ConvertImageBatchToDocumentBatchStage(fields=[])]).run(
        HERE, initial_tasks=[batch]
    )
    assert documents.get_columns() == ["image_id"]
