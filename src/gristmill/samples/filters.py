"""Filters of samples: a score for each sample, and a decision by the score.

A modality subclasses `SampleFilter` once, to name what its filters may look at, and its filters subclass that. Score
stages (`score.py`), recipes, reports, `why` and what-if work with every subclass: there is nothing to register.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.deciding_stage import Rule, rule_of_bounds
from gristmill.core.run.row_progress import in_turn

SIZE = "size"
"""A value of `looks_at`: the number of encoded bytes. Every modality has it."""


class SampleFilter(ABC):
    """One score per sample, and a decision per score. Constructors have no side effects."""

    name: str = "SampleFilter"
    """The name of the class, unless set."""

    looks_at: ClassVar[str] = SIZE
    """What `score_sample` is given: a name that the score stages of the modality know (`ScoresSamples.decoder`)."""

    score_type: ClassVar[pa.DataType] = pa.float64()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @abstractmethod
    def score_sample(self, sample: Any) -> Any:
        """The score of one sample, usually a number."""

    @abstractmethod
    def keep_score(self, score: Any) -> bool:
        """Whether a sample with this score is kept."""

    def score_batch(self, samples: Sequence[Any]) -> pa.Array:
        return make_array([self.score_sample(sample) for sample in in_turn(samples)], self.score_type)

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        """The decisions for a column of scores. A sample without a score is not kept."""
        kept = [score is not None and bool(self.keep_score(score)) for score in scores.to_pylist()]
        return make_array(kept, pa.bool_())

    def deciding_rules(self) -> Sequence[Rule]:
        """The rules by which samples are kept; none if that is decided in another way."""
        return ()

    def threshold(self) -> str:
        """The parameters that scores are compared with, as shown beside rejected rows."""
        parameters = {key: value for key, value in vars(self).items() if value is not None and not key.startswith("_")}
        return ", ".join(f"{key}={value!r}" for key, value in parameters.items())

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({arguments})"


class RangeFilter(SampleFilter):
    """A filter that keeps scores between two bounds, which are included."""

    @abstractmethod
    def bounds(self) -> tuple[float | None, float | None]:
        """The smallest and the largest score that is kept; None for no bound."""

    def deciding_rules(self) -> Sequence[Rule]:
        own = type(self)
        by_bounds = (own.keep_score, own.keep_batch) == (RangeFilter.keep_score, SampleFilter.keep_batch)
        return (rule_of_bounds(self, *self.bounds()),) if by_bounds else ()

    def keep_score(self, score: Any) -> bool:
        low, high = self.bounds()
        return (low is None or score >= low) and (high is None or score <= high)

    def _check_bounds(self) -> None:
        """For constructors: every parameter must be a number or None, and the lower bound not above the upper one."""
        for key, value in vars(self).items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
            if value is not None and (not number or value < 0):
                raise ValueError(f"{self.name}: {key} is {value!r}, must be a number, 0 or more, or None")
        low, high = self.bounds()
        if low is not None and high is not None and low > high:
            raise ValueError(f"{self.name}: {self.threshold()} leaves nothing: the lower bound is above the upper one")
