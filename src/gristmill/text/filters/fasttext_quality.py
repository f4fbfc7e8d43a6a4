"""FastTextQualityFilter: samples documents by the quality that a fastText classifier predicts."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.row_sampling import draw_uniform, row_ids
from gristmill.core.task import digest
from gristmill.models.fasttext_model import FastTextModel
from gristmill.text.document_filter import DocumentFilter
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from gristmill.core.batch import Batch
    from gristmill.text.text_columns import Texts


class FastTextQualityFilter(DocumentFilter):
    """The probability of a label; keeps a random sample, in which a better document is more likely.

    As in the data of GPT-3, a document is kept when a number drawn from a Pareto distribution of shape `alpha` is above
    1 - score. The number is a hash of `seed`, the document's file and its position there, so the decision is the same
    in every run and on every machine, and `Filter` on a column of scores keeps the same rows. `keep_batch`, which gets
    scores without rows, draws by the score. The empty document has the score that the model gives it.
    """

    score_type = pa.float64()

    def __init__(self, model_path: str, label: str = "__label__hq", alpha: float = 3, seed: int = 42) -> None:
        if alpha <= 0:
            raise ValueError(f"FastTextQualityFilter: alpha is {alpha!r}, must be above 0")
        self.model_path, self.label, self.alpha, self.seed = model_path, label, alpha, seed
        self._model = FastTextModel(model_path, "FastTextQualityFilter")

    def check(self) -> None:
        self._model.check()

    def setup(self) -> None:
        self._model.load()

    def score_document(self, text: str) -> float:
        return self._model.probability(make_array([text], pa.string()), self.label)[0]

    def score_batch(self, texts: Texts) -> pa.Array:
        return make_array(self._model.probability(as_array(texts), self.label), pa.float64())

    def keep_document(self, score: float) -> bool:
        return self.keep_batch(make_array([score], pa.float64()))[0].as_py() is True

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        bits = [struct.unpack("<Q", struct.pack("<d", value))[0] for value in _scores_or_zero(scores)]
        return self._sampled(scores, make_array(bits, pa.uint64()), "score")

    def keep_rows(self, scores: pa.Array, batch: Batch) -> pa.BooleanArray:
        owner, numbers = row_ids(batch)
        return self._sampled(scores, numbers, owner)

    def _sampled(self, scores: pa.Array, numbers: pa.Array, owner: str) -> pa.BooleanArray:
        drawn = draw_uniform(numbers, int(digest([str(self.seed), "FastTextQualityFilter", owner]), 16)).to_pylist()
        limits = ((1 - one) ** (-1 / self.alpha) - 1 for one in drawn)  # a Pareto distribution that begins at 0
        return make_array(
            [limit > 1 - value for limit, value in zip(limits, _scores_or_zero(scores), strict=True)], pa.bool_()
        )

    def threshold(self) -> str:
        return f"alpha={self.alpha!r}, seed={self.seed!r}"


def _scores_or_zero(scores: pa.Array) -> list[float]:
    return [0.0 if score is None else float(score) for score in scores.to_pylist()]
