"""The folder of a classifier that `gristmill train-classifier` has made, and what reads it.

    classifier.json      kind, labels, the label that scores are about, threshold, calibration, checksums, figures
    model.bin            fasttext: a file that every fastText library reads
    head.safetensors     linear and minilm: a logistic regression on embeddings
    report.html          how good it is

Scores are calibrated probabilities of one label. The checksum of every file is compared when the folder is opened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import InputError
from gristmill.models.fasttext_model import FastTextModel
from gristmill.models.model_files import Wanted
from gristmill.models.model_loader import Array, Device
from gristmill.models.text.classifier_metrics import Calibration
from gristmill.models.text.fasttext_trainer import fasttext_label
from gristmill.models.text.logistic_regression import LogisticRegression
from gristmill.models.text.pooling import Pooling
from gristmill.models.text.static_embeddings import StaticEmbeddings
from gristmill.models.text.text_encoder import TextEncoder
from gristmill.models.weights import read_weights, write_safetensors

FASTTEXT, LINEAR, MINILM = "fasttext", "linear", "minilm"
KINDS = (FASTTEXT, LINEAR, MINILM)
DESCRIPTION, FASTTEXT_FILE, HEAD_FILE = "classifier.json", "model.bin", "head.safetensors"
DEFAULT_EMBEDDERS = {LINEAR: "wordllama", MINILM: "sentence-transformers/all-MiniLM-L6-v2"}
FORMAT = 1


class TextScorer(Protocol):
    """The probabilities of the labels of texts."""

    def __call__(self, texts: pa.Array) -> Array: ...


@dataclass(frozen=True)
class ClassifierDescription:
    """What classifier.json says."""

    folder: Path
    content: Mapping[str, Any]

    @classmethod
    def read(cls, folder: str | Path) -> ClassifierDescription:
        place = Path(folder).expanduser()
        file = place / DESCRIPTION
        if not file.is_file():
            raise InputError(
                f"{folder} is not the folder of a classifier, it has no {DESCRIPTION}: make one with "
                "`gristmill train-classifier`"
            )
        try:
            content = json.loads(file.read_text())
            known = content["format"] == FORMAT and content["kind"] in KINDS and content["label"] in content["labels"]
            Calibration(**content["calibration"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file} is damaged: {error!r}. Train the classifier again") from error
        if not known:
            raise InputError(f"{file} was written by a later version: its format is {content['format']!r}")
        return cls(place, content)

    @property
    def kind(self) -> str:
        return str(self.content["kind"])

    @property
    def labels(self) -> list[str]:
        return [str(label) for label in self.content["labels"]]

    @property
    def threshold(self) -> float:
        return float(self.content["threshold"])

    @property
    def stamp(self) -> str:
        """Changes when the classifier does."""
        return hashlib.sha256((self.folder / DESCRIPTION).read_bytes()).hexdigest()

    def check_files(self) -> None:
        """Raise if a file is missing or not the one that was written."""
        for name, wanted in self.content["files"].items():
            file = self.folder / Path(name).name
            if not file.is_file() or checksum(file) != wanted:
                raise InputError(f"{file} is missing, or not what {DESCRIPTION} names: copy the folder again")

    def embedder(self) -> Wanted:
        return Wanted(str(self.content["embedder"]), purpose=f"the classifier in {self.folder}")


@dataclass(frozen=True)
class TrainedClassifier:
    """A classifier that is loaded."""

    description: ClassifierDescription
    scorer: TextScorer
    calibration: Calibration

    @classmethod
    def load(cls, folder: str | Path, device: Device | None = None) -> TrainedClassifier:
        description = ClassifierDescription.read(folder)
        description.check_files()
        scorer = open_scorer(description, device or Device())
        return cls(description, scorer, Calibration(**description.content["calibration"]))

    def scores(self, texts: pa.Array, label: str | None = None) -> Array:
        """The probability of a label for each text; calibrated for the one that the classifier is about."""
        own = str(self.description.content["label"])
        found = self.scorer(texts)[:, self.description.labels.index(label or own)]
        return self.calibration(found) if label in (None, own) else found


def open_scorer(description: ClassifierDescription, device: Device) -> TextScorer:
    if description.kind == FASTTEXT:
        return FastTextScorer(description.folder / FASTTEXT_FILE, description.labels)
    weights = read_weights(description.folder / HEAD_FILE)
    head = LogisticRegression(weights["weight"], weights["bias"])
    return HeadScorer(open_embedder(description.kind, description.embedder().fetch(), device), head)


class FastTextScorer:
    """Probabilities by a fastText file."""

    def __init__(self, file: Path, labels: Sequence[str]) -> None:
        self.model, self.labels = FastTextModel(file, "a classifier"), [fasttext_label(label) for label in labels]

    def __call__(self, texts: pa.Array) -> Array:
        if len(self.labels) == 2:
            first = np.array(self.model.probability(texts, self.labels[0]), np.float64)
            return np.stack([first, 1 - first], axis=1)
        columns = [self.model.probability(texts, label) for label in self.labels]
        return np.array(columns, np.float64).T.reshape(len(texts), len(self.labels))


class HeadScorer:
    """Probabilities by a logistic regression on embeddings."""

    def __init__(self, embedder: TextScorer, head: LogisticRegression) -> None:
        self.embedder, self.head = embedder, head

    def __call__(self, texts: pa.Array) -> Array:
        return self.head(self.embedder(texts))


def open_embedder(kind: str, place: Path, device: Device) -> TextScorer:
    """What maps texts to embeddings."""
    if kind == LINEAR:
        return StaticEmbeddings(place).embed
    encoder, pooling = TextEncoder.load(place, device), Pooling.read(place)

    def embed(texts: pa.Array) -> Array:
        rows = encoder.reduce_rows(encoder.tokenize(texts.to_pylist()), pooling)
        return np.stack(rows) if rows else np.zeros((0, 1), np.float32)

    return embed


def write_head(head: LogisticRegression, file: Path) -> None:
    write_safetensors(file, {"weight": head.weight, "bias": head.bias})


def write_description(folder: Path, content: Mapping[str, Any], files: Sequence[str]) -> None:
    """Written last, so that a folder with it is complete."""
    whole = {"format": FORMAT, **content, "files": {name: checksum(folder / name) for name in files}}
    (folder / DESCRIPTION).write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")


def checksum(file: Path) -> str:
    with open(file, "rb") as opened:
        return f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()}"


def as_texts(values: Sequence[str | None]) -> pa.Array:
    return make_array([value or "" for value in values], pa.string())
