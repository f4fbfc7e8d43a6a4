"""Recipe: a pipeline as YAML. Load one, build its pipeline, write one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gristmill.core.errors import RecipeError, did_you_mean
from gristmill.core.pipeline import Pipeline
from gristmill.core.secret_values import remember_secrets
from gristmill.recipes.recipe_file import RecipeFile, StageSpec, read_recipe_file
from gristmill.recipes.secret_references import SecretReferences
from gristmill.recipes.stage_builder import build_executor, build_stage, executor_class
from gristmill.recipes.variables import fill_variables

if TYPE_CHECKING:
    from gristmill.core.executor import Executor

BUNDLED_DIRECTORY = Path(__file__).parent / "library"


@dataclass(frozen=True)
class Recipe:
    """A recipe whose variables are filled in. `place` is its file, for messages."""

    name: str
    description: str | None
    stages: list[StageSpec]
    executor_form: StageSpec | None = None
    place: str = field(default="recipe", compare=False)

    def build(self) -> Pipeline:
        """The pipeline. Raises a RecipeError that names the stage and what would be right."""
        stages = [build_stage(form, f"{self.place}, stage {number}") for number, form in enumerate(self.stages, 1)]
        return Pipeline(self.name, self.description, stages)

    def executor(self, name: str | None = None, **params: Any) -> Executor | None:
        """The executor that the recipe asks for, or the named one; None when neither says."""
        form = self.executor_form
        if name is None and form is None:
            return build_executor("local", params, "executor") if params else None
        own = dict(form.params) if form else {}
        if name is not None and form and executor_class(name, "--executor") != executor_class(form.target, self.place):
            own = {}
        wanted = name or (form.target if form else "local")
        return build_executor(wanted, own | params, "--executor" if name else f"{self.place}, executor")

    def to_yaml(self) -> str:
        """The recipe as YAML, without variables. Secrets are references to environment variables."""
        references = SecretReferences()
        content: dict[str, Any] = {"name": self.name}
        if self.description:
            content["description"] = self.description
        content["stages"] = [_written(stage, references) for stage in self.stages]
        if self.executor_form:
            content["executor"] = _written(self.executor_form, references)
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def _written(form: StageSpec, references: SecretReferences) -> Any:
    params, settings = (references.write(part, form.target) for part in (form.params, form.settings))
    return StageSpec(target=form.target, params=params, settings=settings).to_yaml()


def load_recipe(path_or_name: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe from a file, or a bundled one by its name, and fill in its variables.

    `overrides` sets variables (`{"input": "data"}`) and parameters (`{"WordCountFilter.min_words": 30}`).
    """
    path = find_recipe(path_or_name)
    place = str(path_or_name)
    form = fill_variables(read_recipe_file(path), overrides or {}, place)
    remember_secrets([[stage.params, stage.settings] for stage in form.stages])
    return Recipe(form.name, form.description, form.stages, form.executor, place)


def find_recipe(path_or_name: str | Path) -> Path:
    path, name = Path(path_or_name), str(path_or_name)
    if path.is_file():
        return path
    names = sorted(found.stem for found in BUNDLED_DIRECTORY.glob("*.yaml"))
    if name in names:
        return BUNDLED_DIRECTORY / f"{name}.yaml"
    what = "is a directory" if path.is_dir() else "is not a file"
    raise RecipeError(
        f"{name} {what}, and no bundled recipe has that name.{did_you_mean(name, names)} "
        f"Bundled recipes: {', '.join(names)}"
    )


def bundled() -> dict[str, RecipeFile]:
    """The recipes that come with the package, by name, as they are written."""
    return {path.stem: read_recipe_file(path) for path in sorted(BUNDLED_DIRECTORY.glob("*.yaml"))}
