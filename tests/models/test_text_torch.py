"""Architectures and heads of published text models on small random weights, beside transformers: equal to 1e-4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill import Resources
from gristmill.models.model_loader import Device
from gristmill.models.text.text_encoder import load_states_model
from gristmill.samples.batch import DocumentBatch
from gristmill.text import (
    AegisClassifier,
    DistributedDataClassifier,
    FineWebEduClassifier,
    InstructionDataGuardClassifier,
    PerplexityFilter,
    PromptTaskComplexityClassifier,
    QualityClassifier,
)
from tests.models.text_fixtures import (
    BERT,
    DEBERTA,
    VOCABULARY,
    linear,
    texts,
    write_encoder,
    write_safetensors,
    write_tokenizer,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def rows_of_ids(lengths: list[int]) -> list[np.ndarray]:
    draw = np.random.default_rng(3)
    return [draw.integers(4, len(VOCABULARY), (1, length)) for length in lengths]


@pytest.mark.parametrize("config", [BERT, DEBERTA], ids=["bert", "deberta"])
def test_graphs_give_the_hidden_states_of_transformers(config: dict, tmp_path: Path) -> None:
    place = write_encoder(tmp_path, config)
    graph = load_states_model(place, Device(), "onnx")
    reference = transformers.AutoModel.from_pretrained(str(place)).eval()
    ours = load_states_model(place, Device(), "torch")
    for ids in rows_of_ids([1, 2, 17, 60]):
        mask = np.ones_like(ids)
        with torch.no_grad():
            expected = reference(input_ids=torch.from_numpy(ids)).last_hidden_state.numpy()
        np.testing.assert_allclose(graph(ids, mask), expected, atol=1e-4)
        np.testing.assert_allclose(ours(ids, mask), expected, atol=1e-5)


def test_positions_of_roberta_begin_after_the_padding(tmp_path: Path) -> None:
    config = transformers.XLMRobertaConfig(
        vocab_size=90, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=66, pad_token_id=1,
    )  # fmt: skip
    reference = transformers.XLMRobertaModel(config).eval()
    reference.save_pretrained(tmp_path)
    graph = load_states_model(tmp_path, Device(), "onnx")
    ids = np.random.default_rng(0).integers(5, 90, (1, 30))
    with torch.no_grad():
        expected = reference(input_ids=torch.from_numpy(ids)).last_hidden_state.numpy()
    np.testing.assert_allclose(graph(ids, np.ones_like(ids)), expected, atol=1e-4)


def run(stage: Any, documents: list[str]) -> pa.Table:
    stage = stage.with_(resources=Resources(cpus=1))
    stage.check()
    stage.setup()
    table = stage.process(DocumentBatch(data=pa.table({"text": documents}))).data
    stage.teardown()
    return table


def tokens(place: Path, document: str) -> Any:
    tool = transformers.PreTrainedTokenizerFast(tokenizer_file=str(place / "tokenizer.json"))
    return torch.tensor([tool(document)["input_ids"]])


@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_nvidia_classifiers_are_an_encoder_and_one_layer(engine: str, tmp_path: Path) -> None:
    """config.json names a base model whose shape is elsewhere; weights are `model.*` and `fc.*`."""
    labels = ["High", "Medium", "Low"]
    config = {"base_model": "someone/small", "fc_dropout": 0.2, "id2label": dict(enumerate(labels))}
    place = write_encoder(tmp_path, DEBERTA, root="model.", weights=linear("fc", 32, 3), config=config)
    (place / "base_model_config.json").write_text(json.dumps(DEBERTA))
    documents = texts(12)
    stage = QualityClassifier(model_identifier=place, score_field="probabilities", engine=engine)
    table = run(stage, documents)

    weights = transformers.modeling_utils.load_state_dict(str(place / "model.safetensors"))
    reference = transformers.AutoModel.from_config(transformers.DebertaV2Config(**DEBERTA)).eval()
    reference.load_state_dict({name[6:]: value for name, value in weights.items() if name.startswith("model.")})
    for document, row in zip(documents, table.to_pylist(), strict=True):
        with torch.no_grad():
            states = reference(input_ids=tokens(place, document)).last_hidden_state[:, 0]
            expected = torch.softmax(states @ weights["fc.weight"].T + weights["fc.bias"], dim=1)[0].numpy()
        np.testing.assert_allclose(row["probabilities"], expected, atol=1e-4)
        assert row["quality_pred"] == labels[int(expected.argmax())]
        assert row["text"] == document


def test_fineweb_edu_is_a_regression_on_bert(tmp_path: Path) -> None:
    config = {**BERT, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    place = write_encoder(tmp_path, root="bert.", weights=linear("classifier", 32, 1), config=config)
    documents = texts(30)
    table = run(FineWebEduClassifier(model_identifier=place), documents)
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(str(place)).eval()
    assert table.num_rows == 30
    for document, row in zip(documents, table.to_pylist(), strict=True):
        with torch.no_grad():
            expected = reference(input_ids=tokens(place, document)).logits.item()
        assert row["fineweb-edu-score-float"] == pytest.approx(min(5, max(0, expected)), abs=1e-4)
        assert row["fineweb-edu-score-int"] == round(min(5, max(0, expected)))
        assert row["fineweb-edu-score-label"] == ("high_quality" if expected >= 2.5 else "low_quality")


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
@pytest.mark.parametrize("kind", ["bert", "deberta-v2"])
def test_sequence_classifiers_of_transformers(kind: str, problem: str, tmp_path: Path) -> None:
    base = BERT if kind == "bert" else DEBERTA
    named = {"bert": "BertForSequenceClassification", "deberta-v2": "DebertaV2ForSequenceClassification"}[kind]
    labels = {"0": "toxic", "1": "insult", "2": "fine", "3": "threat"}
    config = {
        **base,
        "architectures": [named],
        "id2label": labels,
        "problem_type": problem,
        "pooler_hidden_act": "gelu",
    }
    pooler = linear("pooler.dense", 32, 32) if kind == "deberta-v2" else {}
    root = "bert." if kind == "bert" else "deberta."
    place = write_encoder(tmp_path, base, root=root, weights={**linear("classifier", 32, 4), **pooler}, config=config)
    documents = texts(10, seed=4)
    table = run(DistributedDataClassifier(place, score_field="scores"), documents)
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(str(place)).eval()
    for document, row in zip(documents, table.to_pylist(), strict=True):
        with torch.no_grad():
            logits = reference(input_ids=tokens(place, document)).logits[0]
        expected = torch.softmax(logits, 0) if problem.startswith("single") else torch.sigmoid(logits)
        np.testing.assert_allclose(row["scores"], expected.numpy(), atol=1e-4)


def test_the_classifier_of_prompts_has_eight_heads(tmp_path: Path) -> None:
    sizes = {
        "task_type": 3, "creativity_scope": 4, "reasoning": 2, "contextual_knowledge": 2, "number_of_few_shots": 3,
        "domain_knowledge": 4, "no_label_reason": 1, "constraint_ct": 2,
    }  # fmt: skip
    config = {
        "base_model": "someone/small",
        "target_sizes": sizes,
        "task_type_map": {"0": "Chatbot", "1": "Code Generation", "2": "Other"},
        "weights_map": {name: list(range(size)) for name, size in sizes.items()},
        "divisor_map": {name: max(1, size - 1) for name, size in sizes.items()},
    }
    heads: dict[str, tuple[int, ...]] = {}
    for number, size in enumerate(sizes.values()):
        heads |= linear(f"head_{number}.fc", 32, size)
    place = write_encoder(tmp_path, DEBERTA, root="backbone.", weights=heads, config=config)
    (place / "base_model_config.json").write_text(json.dumps(DEBERTA))
    documents = texts(8)
    table = run(PromptTaskComplexityClassifier(model_identifier=place), documents)

    weights = transformers.modeling_utils.load_state_dict(str(place / "model.safetensors"))
    reference = transformers.AutoModel.from_config(transformers.DebertaV2Config(**DEBERTA)).eval()
    reference.load_state_dict({name[9:]: value for name, value in weights.items() if name.startswith("backbone.")})
    for document, row in zip(documents, table.to_pylist(), strict=True):
        with torch.no_grad():
            mean = reference(input_ids=tokens(place, document)).last_hidden_state.mean(dim=1)[0]
        parts = {}
        for number, name in enumerate(sizes):
            logits = weights[f"head_{number}.fc.weight"] @ mean + weights[f"head_{number}.fc.bias"]
            parts[name] = torch.softmax(logits, 0).numpy()
        assert row["task_type_1"] == config["task_type_map"][str(int(parts["task_type"].argmax()))]
        assert row["task_type_prob"] == pytest.approx(parts["task_type"].max(), abs=2e-3)
        expected = (parts["reasoning"] * [0, 1]).sum()
        assert row["reasoning"] == pytest.approx(expected, abs=2e-4)
        shares = {
            "creativity_scope": 0.35, "reasoning": 0.25, "constraint_ct": 0.15, "domain_knowledge": 0.15,
            "contextual_knowledge": 0.05, "number_of_few_shots": 0.05,
        }  # fmt: skip
        assert row["prompt_complexity_score"] == pytest.approx(sum(shares[k] * row[k] for k in shares), abs=1e-4)


def write_language_model(folder: Path, seed: int = 0) -> Any:
    """A small Llama with random weights."""
    config = transformers.LlamaConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=512, pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def test_perplexity_is_the_loss_of_transformers(tmp_path: Path) -> None:
    model = write_language_model(tmp_path)
    documents = ["the cat and the dog", "human rights are equal", "a", ""]
    found = PerplexityFilter(tmp_path).score_batch(pa.array([*documents, None])).to_pylist()
    for document, score in zip(documents, found, strict=False):
        ids = tokens(tmp_path, document)
        with torch.no_grad():
            expected = float(model(input_ids=ids, labels=ids).loss.exp())
        assert score == pytest.approx(expected, rel=1e-4)
    assert found[-1] == found[-2]


def write_adapter(folder: Path, base: Any) -> dict[str, Any]:
    folder.mkdir()
    torch.manual_seed(1)
    layer = "model.layers.1.self_attn.q_proj"
    down, up = torch.randn(4, 32), torch.randn(32, 4)
    name = f"base_model.model.{layer}.lora_"
    write_safetensors(
        folder / "adapter_model.safetensors", {f"{name}A.weight": down.numpy(), f"{name}B.weight": up.numpy()}
    )
    (folder / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8}')
    with torch.no_grad():
        dict(base.named_modules())[layer].weight += 2 * up @ down
    return {"base_model": folder.parent / "base", "aegis_variant": folder}


def test_aegis_asks_the_merged_model(tmp_path: Path) -> None:
    base = write_language_model(tmp_path / "base")
    parts = write_adapter(tmp_path / "adapter", base)
    (tmp_path / "prompt.txt").write_text("the cat {text} free")
    documents = ["human rights", "a dog " * 30]
    stage = AegisClassifier(**parts, keep_raw_output=True, prompt_path=tmp_path / "prompt.txt", max_chars=12)
    table = run(stage, documents)
    tool = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "base" / "tokenizer.json"))
    for document, row in zip(documents, table.to_pylist(), strict=True):
        ids = tokens(tmp_path / "base", f"the cat {document[:12]} free")
        with torch.no_grad():
            answer = base.generate(ids, max_new_tokens=100, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
        assert row["_aegis_raw_pred"] == tool.decode(answer, skip_special_tokens=True)
        assert row["aegis_pred"] == "unknown"
        assert row["text"] == document


def test_the_guard_of_instructions_reads_the_last_hidden_state(tmp_path: Path) -> None:
    base = write_language_model(tmp_path / "base")
    parts = write_adapter(tmp_path / "adapter", base)
    draw = np.random.default_rng(2)
    sizes = {"input_layer": (32, 32), "hidden_layer_0": (20, 32), "hidden_layer_1": (9, 20), "hidden_layer_2": (1, 9)}
    weights = {f"{name}.weight": draw.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    weights |= {f"{name}.bias": draw.normal(size=size[0]).astype(np.float32) for name, size in sizes.items()}
    (tmp_path / "guard").mkdir()
    write_safetensors(tmp_path / "guard" / "model.safetensors", weights)
    documents = texts(6, seed=3)
    table = run(InstructionDataGuardClassifier(**parts, guard_model=tmp_path / "guard"), documents)
    for document, row in zip(documents, table.to_pylist(), strict=True):
        with torch.no_grad():
            ids = tokens(tmp_path / "base", document)
            x = torch.nn.functional.normalize(base(ids, output_hidden_states=True).hidden_states[-1][0, -1], dim=-1)
            for number, name in enumerate(sizes):
                x = torch.from_numpy(weights[f"{name}.weight"]) @ x + torch.from_numpy(weights[f"{name}.bias"])
                x = torch.relu(x) if number < 3 else torch.sigmoid(x)
        assert row["instruction_data_guard_poisoning_score"] == pytest.approx(float(x), abs=1e-4)
        assert row["is_poisoned"] == (float(x) >= 0.5)
