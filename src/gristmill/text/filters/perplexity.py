"""PerplexityFilter: how surprising a text is for a language model, by a small model or by KenLM.

A causal model in ONNX (with the output `logits`) or of `transformers` runs through the engine of text models; a
document is cut at `max_seq_length` tokens for it. A file `.arpa` or `.binary` is read by KenLM (`pip install
kenlm`), for which every word counts.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import InputError, MissingDependencyError
from gristmill.models.model_files import Wanted
from gristmill.models.model_loader import Device
from gristmill.models.text.text_encoder import TextEncoder, load_language_model
from gristmill.models.text.text_tokenizer import TextTokenizer
from gristmill.text.document_filter import BoundedFilter
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from gristmill.models.model_loader import Array
    from gristmill.text.text_columns import Texts

KENLM = (".arpa", ".binary", ".klm", ".arpa.gz")


class PerplexityFilter(BoundedFilter):
    """The perplexity of a text for a language model; keeps `min_perplexity` to `max_perplexity`.

    `model` is a folder or a name on the hub of a causal model (model.onnx, or weights with `gristmill[transformers]`),
    or a file of KenLM. Fluent prose is low, lists and garbled text are high, repetition is very low. A text of less
    than two tokens has the perplexity 0.
    """

    score_type = pa.float64()
    _not_pickled: ClassVar[tuple[str, ...]] = ("_scorer",)

    def __init__(
        self,
        model: str | Path,
        max_perplexity: float = 1000.0,
        min_perplexity: float = 0.0,
        max_seq_length: int = 512,
    ) -> None:
        if not 0 <= min_perplexity <= max_perplexity:
            raise ValueError(
                f"PerplexityFilter: min_perplexity={min_perplexity} and max_perplexity={max_perplexity} must be 0 or "
                "more, and min at most max"
            )
        self.model, self.max_perplexity, self.min_perplexity = str(model), max_perplexity, min_perplexity
        self.max_seq_length = max_seq_length
        self._scorer: Any = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_scorer": None})

    @property
    def _uses_kenlm(self) -> bool:
        return self.model.endswith(KENLM)

    def check(self) -> None:
        if not self._uses_kenlm:
            Wanted(self.model, purpose="PerplexityFilter").check()
            return
        if not Path(self.model).expanduser().is_file():
            raise InputError(f"PerplexityFilter: there is no file {self.model}")
        if importlib.util.find_spec("kenlm") is None:
            raise MissingDependencyError("PerplexityFilter: a file of KenLM needs 'kenlm': pip install kenlm")

    def setup(self) -> None:
        if self._scorer is None:
            self._scorer = _kenlm(self.model) if self._uses_kenlm else _causal(self.model, self.max_seq_length)

    def score_document(self, text: str) -> float:
        score: float = self.score_batch(make_array([text], pa.string()))[0].as_py()
        return score

    def score_batch(self, texts: Texts) -> pa.Array:
        self.setup()
        values = [text or "" for text in as_array(texts).to_pylist()]
        return make_array(self._scorer(values), pa.float64())

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_perplexity, self.max_perplexity


def _causal(model: str, most: int) -> Any:
    place = Wanted(model, purpose="PerplexityFilter").fetch()
    tokenizer = TextTokenizer(place, most)
    encoder = TextEncoder(tokenizer, _Surprise(load_language_model(place, Device())))
    return lambda texts: [float(row) for row in encoder.reduce_rows(encoder.tokenize(texts), lambda values, _: values)]


class _Surprise:
    """The perplexity of each row of tokens, from the logits of a language model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, ids: Array, mask: Array) -> Array:
        if ids.shape[1] < 2:
            return np.zeros(len(ids))
        logits = self.model(ids, mask)[:, :-1].astype(np.float64)
        highest = logits.max(axis=-1, keepdims=True)
        totals = np.log(np.exp(logits - highest).sum(axis=-1)) + highest[..., 0]
        own = np.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]
        perplexity: Array = np.exp((totals - own).mean(axis=1))
        return perplexity


def _kenlm(model: str) -> Any:
    kenlm = importlib.import_module("kenlm")
    loaded = kenlm.Model(str(Path(model).expanduser()))

    def score(text: str) -> float:
        words = " ".join(text.split())
        if not words:
            return 0.0
        return float(math.exp(-loaded.score(words) * math.log(10) / (words.count(" ") + 2)))

    return lambda texts: [score(text) for text in texts]
