"""ClassifierFilter: a filter by a classifier that `gristmill train-classifier` has made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.deciding_stage import Rule
from gristmill.core.errors import InputError, did_you_mean
from gristmill.models.text.trained_classifier import FASTTEXT, ClassifierDescription, TrainedClassifier, as_texts
from gristmill.text.document_filter import BoundedFilter
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    import os

    from gristmill.text.text_columns import Texts


class ClassifierFilter(BoundedFilter):
    """The probability of a label by a trained classifier; keeps `min_score` and above.

    `model` is a folder that `gristmill train-classifier` has made; without `min_score`, the threshold in it holds,
    which was chosen for a wished precision. `label` is another of its labels, whose probability is not calibrated. A
    null or blank document has the score that the model gives to the empty one. A run that is resumed starts anew when
    the classifier has changed.
    """

    score_type = pa.float64()
    _not_pickled: ClassVar[tuple[str, ...]] = ("_loaded", "_chosen")

    def __init__(self, model: str | os.PathLike[str], min_score: float | None = None, label: str | None = None) -> None:
        self.model, self.min_score, self.label = str(model), min_score, label
        self._loaded: TrainedClassifier | None = None
        self._chosen: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in self._not_pickled}
        try:
            stamp = ClassifierDescription.read(self.model).stamp
        except InputError:  # reported by `check`
            stamp = ""
        return {**state, "stamp": stamp}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_loaded": None, "_chosen": None})

    def check(self) -> None:
        description = ClassifierDescription.read(self.model)
        if self.label is not None and self.label not in description.labels:
            hint = did_you_mean(self.label, description.labels)
            raise InputError(
                f"ClassifierFilter: {self.model} has no label {self.label!r}.{hint} "
                f"There are: {', '.join(description.labels)}"
            )
        if description.kind != FASTTEXT:
            description.embedder().check()

    def setup(self) -> None:
        if self._loaded is None:
            self._loaded = TrainedClassifier.load(self.model)

    def score_document(self, text: str) -> float:
        score: float = self.score_batch(as_texts([text]))[0].as_py()
        return score

    def score_batch(self, texts: Texts) -> pa.Array:
        self.setup()
        assert self._loaded is not None
        values = as_texts(as_array(texts).to_pylist())
        return make_array(self._loaded.scores(values, self.label).tolist(), pa.float64())

    def bounds(self) -> tuple[float | None, float | None]:
        return (self._least(), None)

    def deciding_rules(self) -> Sequence[Rule]:
        least = self._least()
        return (Rule("", least, None, "min_score" if self.min_score is not None else f"min_score={least:g}"),)

    def threshold(self) -> str:
        return f"min_score={self._least():g}"

    def _least(self) -> float:
        if self.min_score is not None:
            return self.min_score
        if self._chosen is None:
            self._chosen = ClassifierDescription.read(self.model).threshold
        return self._chosen
