"""GenerationConfig: how a language model is to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.models.plain_parameters import PlainParameters


@fast_dataclass(frozen=True)
class GenerationConfig(PlainParameters):
    """How a language model is to answer. None leaves a parameter to the server.

    `extra_kwargs` are further fields of the request; None removes one, as in
    `extra_kwargs={"max_tokens": None, "max_completion_tokens": 512}`. `stream` has no effect: answers come whole.
    """

    max_tokens: int | None = 2048
    n: int | None = 1
    seed: int | None = 0
    stop: str | Sequence[str] | None = None
    stream: bool = False
    temperature: float | None = 0.0
    top_k: int | None = None
    top_p: float | None = 0.95
    extra_kwargs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "n", "top_k"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"GenerationConfig: {name} is {value!r}, must be a whole number, 1 or more, or None")
        for name, most in (("temperature", None), ("top_p", 1.0)):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= (most or value):
                raise ValueError(
                    f"GenerationConfig: {name} is {value!r}, must be 0 or more" + (", up to 1" * bool(most))
                )

    @classmethod
    def of(cls, value: GenerationConfig | Mapping[str, Any] | None) -> GenerationConfig:
        """A config from one, or from its parameters; None is the default."""
        if value is None:
            return cls()
        return cls(**value) if isinstance(value, Mapping) else value

    def for_sample(self, sample: int) -> GenerationConfig:
        """The config for the n-th answer to the same messages."""
        return replace(self, seed=self.seed + sample) if self.seed is not None and sample else self

    def fields(self, sample: int = 0) -> dict[str, Any]:
        """The fields of a request for the n-th answer to the same messages. Each answer has its own seed."""
        seed = self.for_sample(sample).seed
        stop = list(self.stop) if self.stop is not None and not isinstance(self.stop, str) else self.stop
        found = {
            "max_tokens": self.max_tokens,
            "seed": seed,
            "stop": stop,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            **(self.extra_kwargs or {}),
        }
        return {name: value for name, value in found.items() if value is not None}
