"""Rubric: by what a model judges texts, from a YAML file or a mapping.

    name: helpfulness
    scale: [1, 5]
    criteria:
      accuracy: All statements are correct.
      clarity: A reader of the target group understands it at once.

A judge answers with a whole number of the scale for each criterion, as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gristmill.core.errors import InputError
from gristmill.models.plain_parameters import PlainParameters

_KEYS = {"name", "scale", "criteria", "description"}


class Rubric(PlainParameters):
    """Criteria, and the scale that each is judged on."""

    def __init__(
        self, criteria: Mapping[str, str], scale: tuple[int, int] = (1, 5), name: str = "quality", description: str = ""
    ) -> None:
        low, high = scale
        if not criteria or not all(isinstance(text, str) and key.isidentifier() for key, text in criteria.items()):
            raise ValueError(
                f"Rubric: criteria is {criteria!r:.200}, must be names, each with a text that says what counts"
            )
        if not (isinstance(low, int) and isinstance(high, int) and low < high):
            raise ValueError(
                f"Rubric: scale is {scale!r}, must be the lowest and the highest whole number, such as [1, 5]"
            )
        self.criteria, self.scale, self.name, self.description = dict(criteria), (low, high), name, description

    @classmethod
    def of(cls, value: Rubric | Mapping[str, Any] | str | Path) -> Rubric:
        """A rubric from one, from a mapping, from a YAML file, or from one criterion in words."""
        if isinstance(value, Rubric):
            return value
        if isinstance(value, Mapping):
            return cls._of_mapping(value, "Rubric")
        path = Path(value)
        if path.suffix in (".yaml", ".yml"):
            return cls._of_file(path)
        return cls({"quality": str(value)})

    @classmethod
    def _of_file(cls, path: Path) -> Rubric:
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(f"the rubric {path} cannot be read: {error}") from error
        if not isinstance(content, Mapping):
            raise InputError(f"the rubric {path} is no mapping with criteria")
        return cls._of_mapping(content, f"the rubric {path}")

    @classmethod
    def _of_mapping(cls, content: Mapping[str, Any], what: str) -> Rubric:
        if unknown := sorted(set(content) - _KEYS):
            raise ValueError(f"{what}: there is no {unknown[0]!r}. There are: {', '.join(sorted(_KEYS))}")
        if not isinstance(content.get("criteria"), Mapping):
            raise ValueError(f"{what}: criteria must be given, names with texts")  # noqa: TRY004
        return cls(
            content["criteria"],
            tuple(content.get("scale") or (1, 5)),
            str(content.get("name") or "quality"),
            str(content.get("description") or ""),
        )

    def schema(self) -> dict[str, Any]:
        """The JSON that a judge answers."""
        low, high = self.scale
        score = {"type": "integer", "enum": list(range(low, high + 1))}
        names = list(self.criteria)
        return {
            "type": "object",
            "properties": dict.fromkeys(names, score),
            "required": names,
            "additionalProperties": False,
        }

    def text(self) -> str:
        """The criteria as a judge reads them."""
        low, high = self.scale
        lines = [self.description] if self.description else []
        lines += [f"- {name}: {text}" for name, text in self.criteria.items()]
        return "\n".join([*lines, f"Scale: {low} (worst) to {high} (best), whole numbers only."])

    def score(self, value: Mapping[str, Any]) -> float:
        """The mean over the criteria of one judgement."""
        return sum(float(value[name]) for name in self.criteria) / len(self.criteria)
