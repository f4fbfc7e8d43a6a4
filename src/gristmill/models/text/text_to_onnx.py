"""Writes text models as ONNX files, and quantises them to 8 bits.

    export     config.json and model.safetensors become model.onnx, with the weights beside it in model.onnx_data
    quantise   the weights of matrix products become 8-bit numbers: a quarter of the size, two to three times as fast
               on a CPU with VNNI instructions; on others it gains little

ONNX Runtime maps weights that are stored beside a graph, so workers of a machine share what is only looked up.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gristmill.core.errors import InputError, require
from gristmill.models.text.encoder_graph import EncoderWeights, build_encoder
from gristmill.models.text.pooling import Pooling
from gristmill.models.text.text_encoder import TextEncoder, text_graph
from gristmill.models.weights import write_safetensors

GRAPH, DATA, WEIGHTS = "model.onnx", "model.onnx_data", "model.safetensors"
COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json", "modules.json")
LEAST_EXTERNAL_BYTES = 65_536
"""Smaller tensors stay in the graph."""

FLOAT = 1
"""The number of 32-bit floats in ONNX files."""

SAMPLES = (
    "The committee approved the budget for the coming year after a long debate.",
    "How do I sort a list of dictionaries by a value in Python?",
    "Photosynthesis converts light into chemical energy that is stored in sugar.",
    "Buy one, get one free! Limited offer, click here now.",
    "In 1969 two astronauts walked on the Moon while a third stayed in orbit.",
    "Add the flour slowly, stir until smooth, and let the dough rest for an hour.",
)
"""What the agreement is measured on if no texts are given."""


def export_text_model(place: str | Path, out: str | Path) -> list[Path]:
    """Write the encoder in a folder as an ONNX graph, with the head of a classifier beside it. Returns the files."""
    source, target = Path(place).expanduser(), Path(out).expanduser()
    onnx = require("onnx", "onnx", "writing ONNX files")
    encoder = EncoderWeights.read(source)
    if source.resolve() == target.resolve():
        raise InputError(f"{out} is the folder of the model itself: give another one")
    target.mkdir(parents=True, exist_ok=True)
    (target / DATA).unlink(missing_ok=True)  # it would be appended to
    onnx.save(
        build_encoder(encoder),
        str(target / GRAPH),
        save_as_external_data=True,
        location=DATA,
        size_threshold=LEAST_EXTERNAL_BYTES,
    )
    written = [target / name for name in (GRAPH, DATA) if (target / name).is_file()]
    if head := {name: value for name, value in encoder.weights.items() if _is_head(name, encoder.root)}:
        write_safetensors(target / WEIGHTS, head)
        written.append(target / WEIGHTS)
    return written + _copied(source, target)


def _is_head(name: str, root: str) -> bool:
    """Whether a weight belongs to what comes after the encoder."""
    inner = name.removeprefix(root) if root else name
    own = name.startswith(root) and inner.startswith(("embeddings.", "encoder."))
    return not own


def quantise_text_model(place: str | Path, out: str | Path, texts: Sequence[str] = SAMPLES) -> float:
    """Write the model with 8-bit weights. Returns the lowest cosine between embeddings of texts before and after."""
    source, target = Path(place).expanduser(), Path(out).expanduser()
    tools = require("onnxruntime.quantization", "onnx", "quantising")
    if source.resolve() == target.resolve():
        raise InputError(f"{out} is the folder of the model itself: give another one")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        graph = text_graph(source)
        if graph is None:
            export_text_model(source, folder)
            graph = Path(folder, GRAPH)
        with _without_advice():
            tools.quantize_dynamic(
                str(graph),
                str(target / GRAPH),
                op_types_to_quantize=["MatMul"],
                per_channel=True,
                weight_type=tools.QuantType.QInt8,
                nodes_to_exclude=_kept_whole(graph),
                extra_options={"DefaultTensorType": FLOAT},  # of what the tool does not know the type of
            )
        exported = Path(folder, WEIGHTS)
        if exported.is_file():
            shutil.copyfile(exported, target / WEIGHTS)
    _copied(source, target)
    return _agreement(source, target, texts)


def _kept_whole(graph: Path) -> list[str]:
    """The products that stay as they are: in the first third of the layers those after the activation, whose few very
    large values 8 bits cannot hold."""
    nodes = require("onnx", "onnx", "quantising").load(str(graph), load_external_data=False).graph.node
    made_by = {name: node.op_type for node in nodes for name in node.output}
    after = [node.name for node in nodes if node.op_type == "MatMul" and made_by.get(node.input[0]) == "Gelu"]
    return [name for name in after[: len(after) // 3] if name]  # no name would mean every node without one


@contextmanager
def _without_advice() -> Iterator[None]:
    """The tool logs on the root logger that the graph could be prepared, which changes nothing for these models."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _agreement(source: Path, target: Path, texts: Sequence[str]) -> float:
    before, after = (_embeddings(place, texts) for place in (source, target))
    return float((before * after).sum(axis=1).min())


def _embeddings(place: Path, texts: Sequence[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    encoder = TextEncoder.load(place)
    return np.stack(encoder.reduce_rows(encoder.tokenize(texts), Pooling.read(place, normalise=True)))


def _copied(source: Path, target: Path) -> list[Path]:
    """The files that belong to the model beside its weights."""
    folder = source.parent if source.is_file() else source
    names = [folder / name for name in COPIED] + sorted(folder.glob("[0-9]_*/*"))
    copied = []
    for file in names:
        if file.is_file():
            to = target / file.relative_to(folder)
            to.parent.mkdir(exist_ok=True)
            copied.append(Path(shutil.copyfile(file, to)))
    return copied
